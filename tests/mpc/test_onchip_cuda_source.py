"""The CUDA source of the on-chip engine compiles, on machines without a GPU, too."""

from dataclasses import replace

import pytest
import warp as wp
from mpc_cases import mixed_stages, pendulum
from onchip_cases import apart, as_problem, crane
from sqp_cases import FIXED, FIXED_QP, soft_arm

from warpmpc import MPCSolver
from warpmpc.engines.onchip import lane_source as lane_text
from warpmpc.engines.onchip.launch import OnchipCounts
from warpmpc.engines.runtime.loading import start_warp
from warpmpc.mpc.sqp.onchip import OnchipIteration
from warpmpc.systems import car

HOPPER = 90
PLAIN = replace(FIXED, convexify="gershgorin")
ENDING = replace(PLAIN, mode="converge", qp=replace(FIXED_QP, check_every=5))
EXACT = replace(PLAIN, hessian="exact", line_search=replace(PLAIN.line_search, kind="merit"))
CASES = {
    "plain": (lambda: pendulum(33), PLAIN, "float32"),
    "exact_merit": (mixed_stages, EXACT, "float64"),
    "blocks_in_registers": (lambda: car.build(50), ENDING, "float32"),
    "more_than_48_KB": (lambda: car.build(50), ENDING, "float64"),
    "several_in_a_block": (lambda: car.build(50), PLAIN, "float32"),
    "several_in_48_KB": (lambda: pendulum(20), PLAIN, "float32"),
    "neighbours_coupled": (lambda: crane(70), ENDING, "float64"),
    "no_separators": (apart, PLAIN, "float64"),
    "soft_ending": (soft_arm, ENDING, "float32"),
}


FOLDED = ("plain", "more_than_48_KB", "no_separators", "soft_ending")


@pytest.mark.parametrize(
    ("name", "folded"), [*((name, False) for name in CASES), *((name, True) for name in FOLDED)]
)
def test_compiles_for_a_gpu(name, folded, tmp_path, monkeypatch):
    if folded:
        monkeypatch.setattr(lane_text, "_LONGEST_LOOP", 0)
    make, settings, dtype = CASES[name]
    solver = MPCSolver(as_problem(make()), settings, dtype, "onchip")
    iteration = OnchipIteration(solver.programs, solver.qp, settings)
    counts = OnchipCounts(2, 10, record=True, restart=False, profile=True, ends=settings.converges)
    together = 4 if name.startswith("several") else 1
    text = iteration.kernel.kernel_source(counts, list(solver.programs.point_rows), together)
    assert (text.scratch > 0) == (name in ("more_than_48_KB", "several_in_a_block"))
    start_warp()
    module = text.kernel().module
    wp.compile_aot_module(module, arch=HOPPER, module_dir=tmp_path, use_ptx=True)
    (found,) = tmp_path.glob("*.ptx")
    native = found.read_text(errors="replace")
    assert "prefetch.global.L2" in native
    assert ("redux.sync.max.s32" in native) == (dtype == "float32")
    assert "brx.idx" not in native  # a jump by a table waits for the table
