"""An engine that is added from outside the package works in both solvers, with derivatives."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from qp_cases import ring, solver_for

from warpmpc import ADMMSettings, MPCSolver, QPSolver, SettingsError, SQPSettings
from warpmpc.qp.linear_solvers.kkt_solvers import DenseEngine
from warpmpc.qp.loops.registry import LOOPS, Engine
from warpmpc.systems import pendulum

FIXED = SQPSettings(
    mode="fixed",
    max_iter=2,
    qp=ADMMSettings(max_iter=30, check_every=0, adaptive_rho_every=0, scaling=0),
)


class Cholesky(DenseEngine):
    """A linear solver of a user; it counts how often it prepares itself."""

    prepared = 0

    def prepare(self, P, A, rho):
        """See `KKTEngine`."""
        Cholesky.prepared += 1
        return super().prepare(P, A, rho)


@pytest.fixture
def mine(monkeypatch):
    engine = Engine("mine", lambda request: request.generic(Cholesky(request.structure)))
    monkeypatch.setitem(LOOPS, engine.name, engine)
    return engine


def test_qp_solver(mine):
    given, before = ring(5), Cholesky.prepared
    found = solver_for(given, engine="mine")
    wanted = solver_for(given, engine="dense")
    assert found.engine == "mine"
    x = wanted.solve(*given.args).x
    np.testing.assert_allclose(found.solve(*given.args).x, x, rtol=1e-9, atol=1e-11)
    assert Cholesky.prepared > before

    def loss(solver, q):
        return solver.solve(given.P_vals, q, *given.args[2:]).x.sum()

    # The layout of the derivatives is that of their own linear solver.
    gradients = [jax.grad(loss, argnums=1)(solver, given.q) for solver in (found, wanted)]
    np.testing.assert_allclose(*gradients, rtol=1e-6, atol=1e-8)


def test_mpc_solver(mine):
    problem, before = pendulum.make(3).problem, Cholesky.prepared
    x0 = np.array([[0.3, 0.0], [-0.2, 0.1], [0.1, -0.4]])
    found = MPCSolver(problem, FIXED, dtype="float64", engine="mine")
    assert found.engine == "mine"
    wanted = MPCSolver(problem, FIXED, dtype="float64", engine="sparse").solve(x0)
    np.testing.assert_allclose(found.solve(x0).z, wanted.z, rtol=1e-7, atol=1e-8)
    assert Cholesky.prepared > before
    gradient = jax.grad(lambda x: found.solve(x).cost.sum())(x0)
    assert np.isfinite(gradient).all()


def test_messages_list_it(mine):
    eye = sp.identity(2, format="csc")
    with pytest.raises(SettingsError, match=r"choose one of .*'dense', 'mine', 'pcg'"):
        QPSolver(eye, eye, engine="yours")
    with pytest.raises(SettingsError, match=r"choose one of .*'onchip', .*'dense', 'mine'"):
        MPCSolver(pendulum.make(3).problem, engine="yours")


def test_it_has_no_use_for_stages(mine):
    eye = sp.identity(2, format="csc")
    with pytest.raises(SettingsError, match='engine="mine" has no use for `stages`'):
        QPSolver(eye, eye, engine="mine", stages=[0, 1, 0, 1])


def test_without_sensitivities(monkeypatch):
    engine = Engine("rough", LOOPS["dense"].build, sensitivity=None)
    monkeypatch.setitem(LOOPS, engine.name, engine)
    given = ring(3)
    solver = solver_for(given, engine="rough")
    assert np.isfinite(solver.solve(*given.args).x).all()
    with pytest.raises(SettingsError, match='Engine "rough" is too inexact for sensitivities'):
        jax.grad(lambda q: solver.solve(given.P_vals, q, *given.args[2:]).x.sum())(given.q)
    with pytest.raises(SettingsError, match="Unknown engine 'rough'"):
        MPCSolver(pendulum.make(3).problem, engine="rough")


def test_an_engine_is_built_when_it_is_needed(monkeypatch):
    built = []

    def build(request):
        built.append(request)
        return LOOPS["dense"].build(request)

    monkeypatch.setitem(LOOPS, "late", Engine("late", build))
    given = ring(3)
    solver = solver_for(given, engine="late")
    assert built == []
    jax.jit(solver.solve)(*given.args)  # also inside a program of the caller
    solver.solve(*given.args)
    assert len(built) == 1


def test_an_on_chip_solver_builds_no_engine_of_qps(monkeypatch):
    def refused(request):
        raise AssertionError("an on-chip solver needs no loop of QPs")

    for name in ("staged", "sparse"):
        monkeypatch.setitem(LOOPS, name, Engine(name, refused, LOOPS[name].takes_stages))
    system = pendulum.make(3)
    solver = MPCSolver(system.problem, system.settings, engine="onchip")
    x0 = np.array([[0.3, 0.0]], dtype="float32")
    assert np.isfinite(solver.solve(x0).z).all()
    assert np.isfinite(jax.grad(lambda x: solver.solve(x).cost.sum())(x0)).all()
