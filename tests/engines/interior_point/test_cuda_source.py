"""The kernels of the interior-point method compile for a GPU, on machines without one, too."""

import pytest
import warp as wp

from warpmpc import MPCSolver, SQPSettings, systems
from warpmpc.engines.interior_point.launch import RowKernels
from warpmpc.engines.interior_point.source import Constants, RowsSource
from warpmpc.engines.runtime.loading import start_warp
from warpmpc.mpc.interior_point.linear_system import StagedSolver
from warpmpc.mpc.interior_point.problem_functions import RowOrder
from warpmpc.mpc.interior_point.solve import kkt_layout

HOPPER = 90


def compiled(source, folder):
    """The machine code, as text of PTX."""
    start_warp()
    wp.compile_aot_module(source.kernel().module, arch=HOPPER, module_dir=folder, use_ptx=True)
    (found,) = folder.glob("*.ptx")
    return found.read_text(errors="replace")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["errors", "eliminated", "step", "trial", "measured", "taken"])
def test_work_on_rows(name, dtype, tmp_path):
    rows = RowsSource(soft=True, hard=True, dtype=dtype, constants=Constants(1e-8, 1e20, 1e10))
    assert ".visible .entry" in compiled(RowKernels(rows).sources[name], tmp_path)


@pytest.mark.parametrize("kernel", ["factor_source", "solve_source"])
def test_newton_systems(kernel, tmp_path):
    settings = SQPSettings(method="interior_point")
    programs = MPCSolver(systems.make("pendulum").problem, settings).programs
    solver = StagedSolver(kkt_layout(programs, RowOrder(programs)), "float64")
    native = compiled(getattr(solver._kernels, kernel), tmp_path)
    assert ".visible .entry" in native
    assert ".local" not in native  # the working values of a stage stay in registers
