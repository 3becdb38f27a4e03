"""The source tree obeys its layering; the checker itself is tested with planted violations."""

from __future__ import annotations

from pathlib import Path

import pytest
from layout_rules import ALLOWED, BENCH, LAYERS, MAX_LINES, violations

SOURCE = Path(__file__).parents[1] / "src" / "warpmpc"
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
FILES += sorted(
    path.relative_to(SOURCE.parent).as_posix() for path in (SOURCE.parent / BENCH).rglob("*.py")
)


def location(path):
    return (SOURCE.parent if path.startswith(BENCH) else SOURCE) / path


def test_source_tree_is_found():
    assert {"symbolic/pattern.py", "warpmpc_bench/mpc/bench.py"} <= {*FILES}


@pytest.mark.parametrize("path", FILES)
def test_layering(path):
    assert violations(path, location(path).read_text()) == []


@pytest.mark.parametrize("path", [path for path in FILES if not path.endswith("__init__.py")])
def test_every_folder_is_a_package(path):
    assert location(path).with_name("__init__.py").exists()


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("symbolic/a.py", "from warpmpc.qp.loops.general import solve"),
        ("symbolic/a.py", "import warpmpc.engines.runtime.ffi as ffi"),
        ("symbolic/a.py", "from warpmpc import qp"),
        ("symbolic/a.py", "from warpmpc import LDLSolver"),
        ("symbolic/a.py", "import warpmpc"),
        ("symbolic/a.py", "from ..engines import runtime"),
        ("qp/linear_solvers/a.py", "from ...mpc import solver"),
        ("qp/linear_solvers/a.py", "from warpmpc.viz import plot_pattern"),
        ("qp/a.py", "def f():\n    from warpmpc.mpc import solver"),
        ("qp/a.py", "import importlib\nimportlib.import_module('warp')"),
        ("qp/a.py", "import casadi as ca"),
        ("cli/info.py", "import warp as wp"),
        ("warpmpc_bench/a.py", "from warp.types import float32"),
        ("viz/a.py", "from casadi import SX"),
        ("viz/a.py", "import mujoco"),
        ("robots/a.py", "from warpmpc.sim.rollout import rollout"),
        ("problem/a.py", "from warpmpc.robots.tree import Tree"),
        ("viz/a.py", "from warpmpc.cli import main"),
        ("cli/a.py", "from warpmpc_bench.mpc import bench"),
        ("engines/staged/a.py", "import warpmpc_bench"),
        ("systems/a.py", "from warpmpc.symbolic.pattern import SparsePattern"),
        ("systems/a.py", "from warpmpc.codegen.emit_jax import jax_function"),
        ("mpc/a.py", "from warpmpc.systems import cartpole"),
        ("_errors.py", "from warpmpc.symbolic import pattern"),
        ("__init__.py", "from warpmpc_bench import ldl"),
        ("viz/a.py", "import warpmpc"),
        ("newlayer/a.py", ""),
        ("qp/a.py", "x = 1\n" * (MAX_LINES + 1)),
        ("warpmpc_bench/qp/a.py", "x = 1\n" * (MAX_LINES + 1)),
        ("engines/staged/stage_source.py", "x = 1\n" * (MAX_LINES + 1)),
    ],
)
def test_planted_violation_is_found(path, source):
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "symbolic/a.py",
            "import casadi as ca\nfrom warpmpc.symbolic.pattern import SparsePattern",
        ),
        ("symbolic/a.py", "from . import pattern\nfrom .pattern import SparsePattern"),
        (
            "qp/linear_solvers/a.py",
            "from ..types import QPData\nfrom warpmpc.engines.runtime import ffi",
        ),
        ("engines/runtime/ffi.py", "import warp as wp\nfrom warpmpc._errors import CodegenError"),
        ("systems/a.py", "from warpmpc.problem.stage import Stage\nimport casadi"),
        ("robots/a.py", "from warpmpc.problem.ocp.ocp import OCP\nimport casadi\nimport mujoco"),
        (
            "systems/a.py",
            "from warpmpc.qp.types import ADMMSettings\nimport warpmpc.mpc.settings",
        ),
        (
            "cli/info.py",
            "from warpmpc.viz import plot_pattern\nimport warpmpc\nimport warpmpc.sim",
        ),
        ("__init__.py", "from warpmpc.qp.ldl import LDLSolver\nfrom ._conventions import Status"),
        ("warpmpc_bench/mpc/a.py", "import warpmpc\nfrom warpmpc_bench.common import record"),
        ("warpmpc_bench/mpc/a.py", "from ..common import record"),
        ("engines/onchip/head_template.py", "x = 1\n" * (MAX_LINES + 1)),
        ("codegen/native/admm.py", "x = 1\n" * (MAX_LINES + 1)),
        ("qp/a.py", "x = 1\n" * MAX_LINES),
        ("qp/a.py", "import warpath"),
    ],
)
def test_allowed_import_passes(path, source):
    assert violations(path, source) == []


def test_layers_see_only_their_left():
    for i, layer in enumerate(LAYERS):
        assert ALLOWED[layer].isdisjoint(LAYERS[i + 1 :])
