"""One toy entry of each extension point, added from outside of the package and run end to end.

The page docs/extending.md is run by `tests/docs/test_pages.py`; here its subcommand becomes part of
the command line, and the results of all other kinds of entries are compared with independent ones.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.integrate import solve_ivp
from toy_system import DT, REST, STEPS, TOY, build, sample, xdot

from warpmpc import (
    ADMMSettings,
    LDLSolver,
    LineSearchSettings,
    MPCSolver,
    QPSolver,
    SQPSettings,
    systems,
)
from warpmpc.cli.main import build_parser, main
from warpmpc.mpc.line_search import LINE_SEARCHES, LineSearch
from warpmpc.problem.integrators import INTEGRATORS, Discretisation
from warpmpc.qp.linear_solvers.kkt_solvers import DenseEngine
from warpmpc.qp.loops.registry import LOOPS, Engine
from warpmpc.symbolic.ordering import ORDERINGS
from warpmpc_bench.common.record import read_rows
from warpmpc_bench.mpc.baselines import BASELINES

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
LONGEST = 0.25
FIXED = ADMMSettings(max_iter=50, check_every=0, adaptive_rho_every=0, scaling=0)


def test_integrator(monkeypatch):
    """A trajectory of Heun's method is near that of SciPy."""

    def heun(interval):
        x, h = interval.x, interval.step
        slope = interval.xdot(x)
        after = x + h / 2 * (slope + interval.xdot(x + h * slope))
        return Discretisation({"dynamics": interval.x_next - after})

    monkeypatch.setitem(INTEGRATORS, "heun", heun)
    x0 = np.array([[0.3, -0.1], [-0.2, 0.2]])
    settings = SQPSettings(mode="converge", max_iter=50)
    solver = MPCSolver(build(5, integrator="heun"), settings, "float64", "dense")
    solution = solver.solve(x0)
    for start, plan, inputs in zip(x0, solution.x, np.asarray(solution.u), strict=True):
        x = start
        for k, u in enumerate(inputs):
            x = solve_ivp(lambda t, x, u=u: xdot(np, x, u), (0, DT), x, rtol=1e-9).y[:, -1]
            np.testing.assert_allclose(plan[k + 1], x, atol=1e-3)


def test_ordering(monkeypatch):
    def backwards(K_pattern, stages=None):
        return np.arange(K_pattern.n_cols, dtype=np.int32)[::-1]

    monkeypatch.setitem(ORDERINGS, "backwards", backwards)
    K = sp.csc_matrix(np.array([[4.0, 1.0, 0.0], [1.0, 4.0, 1.0], [0.0, 1.0, -4.0]]))
    solver = LDLSolver(K, ordering="backwards", backend="jax", dtype="float64")
    np.testing.assert_array_equal(solver.elimination.perm, [2, 1, 0])
    rhs = np.array([[1.0, 2.0, 3.0]])
    found = solver.solve(solver.factor(solver.values(K)[None]), rhs)
    np.testing.assert_allclose(found[0], np.linalg.solve(K.toarray(), rhs[0]), rtol=1e-12)


@pytest.mark.parametrize("native", [None, lambda settings, dtype: f"step <= (SCALAR){LONGEST}"])
def test_line_search(native, monkeypatch):
    """The native condition is optional; without it the general iteration runs."""

    def short(trial, steps, settings):
        return jnp.broadcast_to(steps <= LONGEST, trial.there.cost.shape)

    monkeypatch.setitem(LINE_SEARCHES, "short", LineSearch(short, native))
    search = LineSearchSettings(kind="short", step_min=0.1)
    settings = SQPSettings(mode="fixed", max_iter=2, line_search=search, qp=FIXED, record=True)
    solution = MPCSolver(build(3), settings, "float64", "staged").solve(sample(2))
    np.testing.assert_array_equal(solution.history.step_length, LONGEST)


def test_engine(monkeypatch):
    """A linear solver of a user works in both solvers."""
    prepared = []

    class Counted(DenseEngine):
        def prepare(self, P, A, rho):
            prepared.append(P.shape)
            return super().prepare(P, A, rho)

    monkeypatch.setitem(
        LOOPS, "counted", Engine("counted", lambda r: r.generic(Counted(r.structure)))
    )
    P, A = sp.csc_matrix(np.diag([1.0, 2.0])), sp.csc_matrix(np.ones((1, 2)))
    settings = ADMMSettings(eps_abs=1e-8, eps_rel=1e-8)
    solver = QPSolver(P, A, settings, dtype="float64", engine="counted")
    one = np.ones((1, 1))
    found = solver.solve(P.data[None], np.zeros((1, 2)), A.data[None], one, one)
    np.testing.assert_allclose(found.x, [[2 / 3, 1 / 3]], atol=1e-7)
    of_qps = len(prepared)
    assert of_qps
    mpc = SQPSettings(mode="fixed", max_iter=2, qp=FIXED)
    wanted = MPCSolver(build(3), mpc, "float64", "sparse").solve(sample(2))
    found = MPCSolver(build(3), mpc, "float64", "counted").solve(sample(2))
    np.testing.assert_allclose(found.z, wanted.z, atol=1e-8)
    assert len(prepared) > of_qps


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(systems.SYSTEMS, "toy", TOY)


@pytest.mark.usefixtures("toy")
def test_system(capsys):
    assert main(["solve", "toy", "--batch", "3", "--mode", "fixed"]) == 0
    assert "3 x toy" in capsys.readouterr().out


@pytest.mark.usefixtures("toy")
def test_baseline(monkeypatch, tmp_path):
    monkeypatch.setitem(BASELINES, "rest", REST)
    rows = tmp_path / "rows.jsonl"
    options = ["--batch", "2", "--sample", "2", "--repeats", "1", "--steps", str(STEPS)]
    files = ["--json", str(rows), "--plot", str(tmp_path / "rates.png"), "--no-profile"]
    command = ["bench", "toy", *options, "--no-full-loops", "--baselines", "rest", *files]
    assert main(command) == 0
    assert {row["solver"] for row in read_rows(rows)} == {"rest", "default"}


ROWS = re.findall(r"^\| \[?(?:a|an) (.*?)(?:\]\(.*?\))? \| .* \| (.*) \|$", PAGE.read_text(), re.M)


@pytest.mark.parametrize(("kind", "place"), ROWS)
def test_table_names_registries(kind, place):
    """Each registry is a dict with entries, in the module that the table of the page names."""
    if kind == "subcommand":
        return  # entry points, see below
    name, path = re.fullmatch(r"`([A-Z_]+)` in `(.*)`", place).groups()
    folders = re.search(r"{(.*)}", path)
    paths = [path]
    if folders:
        paths = [path.replace(folders[0], folder) for folder in folders[1].split(",")]
    for one in paths:
        module = one.removesuffix(".py").replace("/", ".")
        module = module if module.startswith("warpmpc_bench") else f"warpmpc.{module}"
        entries = getattr(importlib.import_module(module), name)
        assert isinstance(entries, dict)
        assert entries


def test_table_is_read():
    assert len(ROWS) == 11


def test_subcommand(monkeypatch, tmp_path, capsys):
    """The module and the entry point of the page, installed as a distribution would be."""
    page = PAGE.read_text()
    (module,) = re.findall(r'```python title="warpmpc_hello.py"\n(.*?)```', page, flags=re.DOTALL)
    (entry,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    (command,) = re.findall(r"^warpmpc (hello .*)$", page, flags=re.MULTILINE)
    group, line = re.fullmatch(
        r'\[project\.entry-points\."(.*)"\]\n(\w+ = )"\w+"\n', entry
    ).groups()
    (tmp_path / "warpmpc_hello.py").write_text(module)
    installed = tmp_path / "warpmpc_hello-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: warpmpc_hello\nVersion: 1.0\n"
    )
    (installed / "entry_points.txt").write_text(f"[{group}]\n{line}warpmpc_hello\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    try:
        assert "greet the user" in build_parser().format_help()
        assert main(command.split()) == 0
    finally:
        sys.modules.pop("warpmpc_hello", None)
    assert capsys.readouterr().out == "hello Ada\n"
