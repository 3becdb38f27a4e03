"""The source tree obeys its layering; the checker itself is tested with planted violations."""

from __future__ import annotations

from pathlib import Path

import pytest

from layout_rules import ALLOWED, LAYERS, MAX_LINES, violations

SOURCE = Path(__file__).parents[1] / "src" / "warpmpc"
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def test_source_tree_is_found():
    assert "symbolic/pattern.py" in FILES


@pytest.mark.parametrize("path", FILES)
def test_layering(path):
    assert violations(path, (SOURCE / path).read_text()) == []


@pytest.mark.parametrize("path", [path for path in FILES if not path.endswith("__init__.py")])
def test_every_folder_is_a_package(path):
    assert (SOURCE / path).with_name("__init__.py").exists()


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("symbolic/a.py", "from warpmpc.qp.admm import solve"),
        ("symbolic/a.py", "import warpmpc.kernels.ffi as ffi"),
        ("symbolic/a.py", "from warpmpc import qp"),
        ("symbolic/a.py", "from warpmpc import LDLSolver"),
        ("symbolic/a.py", "import warpmpc"),
        ("symbolic/a.py", "from ..kernels import ffi"),
        ("qp/kkt_solvers/a.py", "from ...sqp import solver"),
        ("qp/kkt_solvers/a.py", "from warpmpc.viz import plot_pattern"),
        ("qp/a.py", "def f():\n    from warpmpc.sqp import solver"),
        ("qp/a.py", "import importlib\nimportlib.import_module('warp')"),
        ("qp/a.py", "import casadi as ca"),
        ("cli/info.py", "import warp as wp"),
        ("bench/a.py", "from warp.types import float32"),
        ("viz/a.py", "from casadi import SX"),
        ("viz/a.py", "from warpmpc.cli import main"),
        ("bench/a.py", "from warpmpc.cli import main"),
        ("systems/a.py", "from warpmpc.symbolic.pattern import SparsePattern"),
        ("systems/a.py", "from warpmpc.codegen.emit_jax import jax_function"),
        ("sqp/a.py", "from warpmpc.systems import cartpole"),
        ("_errors.py", "from warpmpc.symbolic import pattern"),
        ("__init__.py", "from warpmpc.bench import ldl"),
        ("viz/a.py", "import warpmpc"),
        ("newlayer/a.py", ""),
        ("qp/a.py", "x = 1\n" * (MAX_LINES + 1)),
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
        ("qp/kkt_solvers/a.py", "from ..types import QPData\nfrom warpmpc.kernels import ffi"),
        ("kernels/ffi.py", "import warp as wp\nfrom warpmpc._errors import CodegenError"),
        ("systems/a.py", "from warpmpc.problem.stage import Stage\nimport casadi"),
        (
            "systems/a.py",
            "from warpmpc.qp.types import ADMMSettings\nimport warpmpc.sqp.settings",
        ),
        (
            "cli/info.py",
            "from warpmpc.viz import plot_pattern\nimport warpmpc\nimport warpmpc.bench",
        ),
        ("__init__.py", "from warpmpc.qp.ldl import LDLSolver\nfrom ._types import Status"),
        ("qp/a.py", "x = 1\n" * MAX_LINES),
        ("qp/a.py", "import warpath"),
    ],
)
def test_allowed_import_passes(path, source):
    assert violations(path, source) == []


def test_layers_see_only_their_left():
    for i, layer in enumerate(LAYERS):
        assert ALLOWED[layer].isdisjoint(LAYERS[i + 1 :])
