"""Certificates of primal infeasibility: as many in float32 as in float64, and no wrong ones."""

import numpy as np
import pytest
import scipy.sparse as sp
from hard_qps import cases
from infeasible_qps import KINDS, feasible, infeasible
from qp_cases import osqp_solve, solver_for, stack
from unbounded_qps import KINDS as UNBOUNDED
from unbounded_qps import bounded, unbounded

from warpmpc import QPSolver, Status

PER_KIND, FEASIBLE_PER_KIND = 20, 25


def statuses(kind, engine, dtype, counts=(PER_KIND, FEASIBLE_PER_KIND)):
    """Statuses of the infeasible instances of a kind, and of the feasible ones."""
    found = []
    for batch in (infeasible(kind, counts[0]), feasible(kind, counts[1])):
        solver = solver_for(batch, engine=engine, dtype=dtype)
        given = batch.map(lambda array: array.astype(dtype))
        found.append(np.asarray(solver.solve(*given.args).status))
    return found


@pytest.mark.parametrize(
    ("kind", "engine"), [("narrow_network", "sparse"), ("tight_pair", "dense")]
)
def test_float32_certifies(kind, engine):
    without, with_solution = statuses(kind, engine, "float32", (8, 8))
    np.testing.assert_array_equal(without, Status.PRIMAL_INFEASIBLE)
    assert (with_solution != Status.PRIMAL_INFEASIBLE).all()


def cart_stages():
    """Stages of `short_of_power`: states and the input behind them, dynamics, then the limits."""
    n = infeasible("short_of_power", 1).A.shape[1]
    steps = (n - 2) // 3
    of_states, of_inputs = np.repeat(np.arange(steps + 1), 2), np.arange(steps)
    return np.concatenate([of_states, of_inputs, of_states, [steps, steps], of_inputs])


def test_staged_float32_certifies():
    """In several launches, between which rho may change."""
    with_none, with_some = infeasible("short_of_power", 8), feasible("short_of_power", 8)
    solver = QPSolver(with_none.P, with_none.A, engine="staged", stages=cart_stages())
    for batch, expected in ((with_none, Status.PRIMAL_INFEASIBLE), (with_some, Status.SOLVED)):
        given = batch.map(lambda array: array.astype("float32"))
        np.testing.assert_array_equal(solver.solve(*given.args).status, expected)


@pytest.mark.parametrize("engine", ["sparse", "dense"])
def test_a_cost_in_small_units_is_not_flat(engine):
    """All entries of P are below the tolerance of certificates, and the problem is bounded."""
    given = stack([cases()["smoothing_units_1"]])
    assert np.abs(given.P_vals).max() < 1e-4
    assert solver_for(given, engine=engine).solve(*given.args).status[0] == Status.SOLVED


@pytest.mark.parametrize("engine", ["sparse", "dense"])
def test_variables_in_small_units_are_not_infeasible(engine):
    """All entries of A are near the tolerance of certificates, so every change of y nearly is one.

    In float32 the iteration takes longer to close the gap than such a change takes to appear.
    """
    given = stack([cases()["grid_flow_units_3"]]).map(lambda array: array.astype("float32"))
    assert np.abs(given.A_vals).max() < 1e-2
    status = solver_for(given, engine=engine, dtype="float32").solve(*given.args).status[0]
    assert status in (Status.SOLVED, Status.MAX_ITER)


@pytest.mark.parametrize("engine", ["sparse", "dense", "staged"])
@pytest.mark.parametrize("unit", [1e-3, 1e-5, 1e-7])
def test_rows_in_small_units_are_not_unbounded(engine, unit):
    """A box whose rows rise by less than the tolerance of certificates is a box."""
    eye, none = sp.identity(2, format="csc"), sp.csc_matrix((2, 2))
    stages = {"stages": np.zeros(4, dtype=int)} if engine == "staged" else {}
    solver = QPSolver(none, eye, dtype="float64", engine=engine, **stages)
    q, upper = np.array([[-1.0, -1.0], [-1.0, 0.0]]), np.array([[1.0, 1.0], [np.inf, 1.0]])
    data = np.zeros((2, 0)), q, np.full((2, 2), unit), np.zeros((2, 2)), upper
    status = solver.solve(*data).status
    assert status[0] in (Status.SOLVED, Status.MAX_ITER)
    assert status[1] == Status.DUAL_INFEASIBLE


@pytest.mark.slow
@pytest.mark.parametrize("seed", [101, 202, 303])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engine", ["sparse", "dense"])
def test_certificates_of_unbounded_kinds(engine, dtype, seed):
    """Seeds that have been drawn after the kinds were written."""
    for kind in UNBOUNDED:
        statuses = []
        for batch in (unbounded(kind, 20, seed=seed), bounded(kind, 20, seed=seed)):
            given = batch.map(lambda array: array.astype(dtype))
            solver = solver_for(given, engine=engine, dtype=dtype)
            statuses.append(np.asarray(solver.solve(*given.args).status))
        assert np.mean(statuses[0] == Status.DUAL_INFEASIBLE) >= 0.95, kind
        allowed = (Status.SOLVED, Status.MAX_ITER)
        assert np.isin(statuses[1], allowed).all(), kind


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engine", ["sparse", "dense"])
def test_certificates_of_all_kinds(engine, dtype):
    found = {kind: statuses(kind, engine, dtype) for kind in KINDS}
    certified = {k: int((a == Status.PRIMAL_INFEASIBLE).sum()) for k, (a, _) in found.items()}
    false = {k: int((b == Status.PRIMAL_INFEASIBLE).sum()) for k, (_, b) in found.items()}
    assert len(KINDS) * PER_KIND == 160
    assert len(KINDS) * FEASIBLE_PER_KIND == 200
    assert sum(certified.values()) >= 151, certified
    assert not any(false.values()), false


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_osqp_agrees(kind):
    """The set is what it claims to be."""
    without = [osqp_solve(qp).status for qp in infeasible(kind, PER_KIND).instances]
    with_solution = [osqp_solve(qp).status for qp in feasible(kind, FEASIBLE_PER_KIND).instances]
    assert without.count(Status.PRIMAL_INFEASIBLE) >= PER_KIND - 1
    assert Status.PRIMAL_INFEASIBLE not in with_solution
