"""Names that the documentation of version 0.1 used still work, and warn."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module

import numpy as np
import pytest
import scipy.sparse as sp

from warpmpc import ADMMSettings, QPSolver
from warpmpc._moved import MOVED
from warpmpc.qp.loops.registry import LOOPS, Engine

# What the pages of version 0.1 imported from modules that have another name now.
IMPORTED = [
    ("warpmpc.qp.engines", "LOOPS"),
    ("warpmpc.qp.kkt_solvers.kkt_engines", "DenseEngine"),
    ("warpmpc.qp.conditioning", "EQUALITY_TOLERANCE"),
    ("warpmpc.codegen.lane_text", "LaneText"),
    ("warpmpc.sqp.onchip", "lane_memory"),
    ("warpmpc.sqp.line_search", "LINE_SEARCHES"),
    ("warpmpc.bench.ldl_baselines", "BASELINES"),
    ("warpmpc.bench.qp_baselines", "BASELINES"),
    ("warpmpc.bench.ldl_variants", "VARIANTS"),
    ("warpmpc.bench.qp_variants", "VARIANTS"),
    ("warpmpc.bench.mpc_variants", "VARIANTS"),
]
# And from modules that are where they were.
KEPT = [
    ("warpmpc.problem.evaluation", "evaluate"),
    ("warpmpc.problem.evaluation", "initial_guess"),
    ("warpmpc.problem.integrators", "INTEGRATORS"),
    ("warpmpc.problem.integrators", "Discretisation"),
    ("warpmpc.problem.integrators", "Interval"),
    ("warpmpc.symbolic.ordering", "ORDERINGS"),
    ("warpmpc.systems", "SYSTEMS"),
    ("warpmpc.systems", "System"),
    ("warpmpc.systems.base", "batched"),
    ("warpmpc.systems.base", "benchmark_settings"),
    ("warpmpc.systems.base", "closed_loop"),
    ("warpmpc.systems.base", "symbolic"),
    ("warpmpc.systems.patterns", "STRUCTURES"),
    ("warpmpc.systems.patterns", "structure"),
    ("warpmpc.viz", "PatternAnalysis"),
    ("warpmpc.viz", "analyse"),
    ("warpmpc.viz.pattern_figures", "FIGURES"),
    ("warpmpc.qp.ldl_solver", "BACKENDS"),
]


@pytest.fixture
def forgotten():
    """Old names have not been imported yet."""

    def forget():
        for name in MOVED:
            sys.modules.pop(name, None)

    forget()
    yield
    forget()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(("module", "name"), IMPORTED)
def test_old_modules_warn_and_work(module, name):
    with warnings.catch_warnings(record=True) as caught:  # packages on the way warn, too
        warnings.simplefilter("always")
        alias = import_module(module)
    messages = [str(warning.message) for warning in caught]
    assert any(text.startswith(f"{module} is now called {MOVED[module]};") for text in messages)
    assert {warning.category for warning in caught} == {DeprecationWarning}
    new = "LaneSource" if name == "LaneText" else name
    assert getattr(alias, name) is getattr(import_module(MOVED[module]), new)
    with pytest.raises(AttributeError):
        _ = alias.nothing_of_this_name


@pytest.mark.parametrize(("module", "name"), KEPT)
def test_other_modules_are_where_they_were(module, name):
    assert hasattr(import_module(module), name)


def test_every_alias_has_its_place():
    for new in MOVED.values():
        import_module(new)


def test_requests_of_engines_know_their_former_name(monkeypatch):
    from warpmpc.qp.linear_solvers.kkt_solvers import DenseEngine

    def build(request):
        with pytest.warns(DeprecationWarning, match="is now called structure"):
            return request.generic(DenseEngine(request.system))

    monkeypatch.setitem(LOOPS, "old", Engine("old", build))
    P, A = sp.csc_matrix([[2.0]]), sp.csc_matrix([[1.0]])
    settings = ADMMSettings(eps_abs=1e-9, eps_rel=1e-9)
    solver = QPSolver(P, A, settings, dtype="float64", engine="old")
    found = solver.solve(*(np.array([[value]]) for value in (2.0, -2.0, 1.0, -3.0, 3.0)))
    assert abs(float(found.x[0, 0]) - 1) < 1e-7


def test_import_statement_of_a_page():
    code = "from warpmpc.qp.kkt_solvers.kkt_engines import DenseEngine; print(DenseEngine.__name__)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == ["DenseEngine"]
