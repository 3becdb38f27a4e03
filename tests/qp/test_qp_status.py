"""Statuses of `QPSolver` for instances without a solution, which do not affect others."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from qp_cases import (
    INF,
    OSQP_TIGHT,
    SPOILED,
    osqp_solve,
    ring,
    ring_patterns,
    solver_for,
    spoiled_ring,
)

from warpmpc import QPSolver, Status

ENGINES = ["sparse", "dense"]
BAD = sorted(SPOILED)
GOOD = sorted(set(range(33)) - set(BAD))
HOPELESS = [b for b, s in SPOILED.items() if s in (Status.NON_FINITE, Status.INVALID_BOUNDS)]


def leaves(solution) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(solution)]


@pytest.mark.parametrize("engine", ENGINES)
class TestMixedBatch:
    """Feasible, infeasible, unbounded, crossed, not finite and slow instances in one batch."""

    def test_statuses(self, engine):
        given = spoiled_ring()
        status = np.asarray(solver_for(given, engine=engine).solve(*given.args).status)
        assert {b: Status(status[b]) for b in BAD} == dict(sorted(SPOILED.items()))
        np.testing.assert_array_equal(status[GOOD], Status.SOLVED)

    def test_good_instances_keep_every_bit(self, engine):
        good, spoiled = ring(33), spoiled_ring()
        solver = solver_for(good, engine=engine)
        for wanted, got in zip(
            leaves(solver.solve(*good.args)), leaves(solver.solve(*spoiled.args)), strict=True
        ):
            np.testing.assert_array_equal(got[GOOD], wanted[GOOD])

    def test_finished_instances_keep_every_bit(self, engine):
        """They stay untouched while one of them goes on and adapts its rho."""
        given = ring(33)
        solver = solver_for(given, engine=engine)
        quick = np.flatnonzero(np.asarray(solver.solve(*given.args).iterations) == 25)
        good = given.map(lambda array: array[np.resize(quick, 33)])
        mixed = good.copy()
        for mine, theirs in zip(mixed.args, spoiled_ring().args, strict=True):
            mine[5] = theirs[6]
        wanted, got = solver.solve(*good.args), solver.solve(*mixed.args)
        assert len(quick) > 3
        assert np.max(wanted.iterations) == 25
        assert np.max(got.iterations) == 4000
        for one, other in zip(leaves(got), leaves(wanted), strict=True):
            np.testing.assert_array_equal(np.delete(one, 5, axis=0), np.delete(other, 5, axis=0))

    def test_each_bad_instance_keeps_every_bit_among_good_ones(self, engine):
        """What is reported of an instance does not depend on how long its neighbours run."""
        good, spoiled = ring(33), spoiled_ring()
        solver = solver_for(good, engine=engine)
        all_bad = leaves(solver.solve(*spoiled.args))
        for b in (1, 4, 8, 12):
            one = good.copy()
            for mine, theirs in zip(one.args, spoiled.args, strict=True):
                mine[b] = theirs[b]
            for wanted, got in zip(all_bad, leaves(solver.solve(*one.args)), strict=True):
                np.testing.assert_array_equal(got[b], wanted[b])

    def test_a_whole_batch_without_hope(self, engine):
        """No instance to iterate: the same report as among others."""
        given = spoiled_ring()
        solver = solver_for(given, engine=engine)
        wanted = leaves(solver.solve(*given.args))
        crossed = given.map(lambda array: np.repeat(array[8:9], 33, axis=0))
        for one, among in zip(leaves(solver.solve(*crossed.args)), wanted, strict=True):
            np.testing.assert_array_equal(one[0], among[8])

    def test_numbers_of_bad_instances(self, engine):
        """NaN where there is nothing to tell, otherwise the last iterate."""
        given = spoiled_ring()
        solution = solver_for(given, engine=engine).solve(*given.args)
        floats = (solution.x, solution.y, solution.objective, solution.primal_residual)
        for array in (*floats, solution.dual_residual):
            assert np.isnan(np.asarray(array)[HOPELESS]).all()
            assert np.isfinite(np.delete(np.asarray(array), HOPELESS, axis=0)).all()
        iterations = np.asarray(solution.iterations)
        np.testing.assert_array_equal(iterations[HOPELESS], 0)
        assert (np.delete(iterations, HOPELESS) > 0).all()
        assert iterations[6] == 4000

    def test_a_bad_instance_recovers(self, engine):
        """A warm start left behind by an instance without a solution does no harm."""
        good, spoiled = ring(33), spoiled_ring()
        solver = solver_for(good, engine=engine)
        wanted = solver.solve(*good.args)
        after = solver.solve(*good.args, warm_start=solver.solve(*spoiled.args).warm_start)
        np.testing.assert_array_equal(after.status, Status.SOLVED)
        np.testing.assert_array_equal(np.asarray(after.x)[HOPELESS], np.asarray(wanted.x)[HOPELESS])


@pytest.mark.oracle
def test_osqp_agrees():
    given = spoiled_ring()
    for b in [*GOOD, 1, 4, 18, 32]:
        status = osqp_solve(given.instance(b)).status
        assert status == SPOILED.get(b, Status.SOLVED)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("P_vals", INF, Status.NON_FINITE),
        ("q", -INF, Status.NON_FINITE),
        ("A_vals", INF, Status.NON_FINITE),
        ("lower", INF, Status.INVALID_BOUNDS),
        ("upper", -INF, Status.INVALID_BOUNDS),
        ("lower", 1e30, Status.INVALID_BOUNDS),
    ],
)
def test_infinite_numbers(engine, name, value, status):
    given = ring(33).copy()
    getattr(given, name)[7, 3] = value
    solution = solver_for(given, engine=engine).solve(*given.args)
    assert solution.status[7] == status
    np.testing.assert_array_equal(np.delete(solution.status, 7), Status.SOLVED)


@pytest.mark.parametrize("engine", ENGINES)
def test_overflow_on_the_way(engine):
    given = ring(33).copy()
    given.q[7] = 1e308
    solution = solver_for(given, engine=engine).solve(*given.args)
    assert solution.status[7] == Status.NON_FINITE
    assert np.isnan(solution.x[7]).all()
    np.testing.assert_array_equal(np.delete(solution.status, 7), Status.SOLVED)


def test_huge_bounds_are_absent_bounds():
    given = ring(33)
    solver = solver_for(given)
    huge = given.map(lambda array: np.where(np.isinf(array), np.sign(array) * 1e30, array))
    wanted, got = solver.solve(*given.args), solver.solve(*huge.args)
    np.testing.assert_array_equal(got.status, wanted.status)
    np.testing.assert_allclose(got.x, wanted.x, rtol=0, atol=1e-12)


@pytest.mark.oracle
def test_degenerate_constraints():
    """One row three times over, in some instances an equality, in some an active inequality."""
    given = ring(33).copy()
    row, kinds = given.A.indices, set()
    for i in (4, 8):  # rows 0, 4 and 8 have the same columns
        given.A_vals[:, row == i] = given.A_vals[:, row == 0]
        given.lower[:, i], given.upper[:, i] = given.lower[:, 0], given.upper[:, 0]
    solution = solver_for(given).solve(*given.args)
    for b, qp in enumerate(given.instances):
        wanted = osqp_solve(qp, **OSQP_TIGHT)
        assert solution.status[b] == osqp_solve(qp).status == wanted.status == Status.SOLVED
        np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=0.05)
        kinds.add((qp.lower[0] == qp.upper[0], abs(wanted.y[0]) > 1e-3))
    assert {(True, True), (False, True)} <= kinds


@pytest.mark.oracle
def test_row_types_are_data(caplog):
    """A row is an equality, then one-sided, then free; nothing is compiled again."""
    given, row, few = ring(33).copy(), 2, 6
    given.lower[:, row], given.upper[:, row] = -INF, INF
    solver = solver_for(given)
    solver.solve(*given.args)
    # A value of the row between those of two feasible points: between those of opposite costs.
    ends = [
        [osqp_solve(replace(qp, q=sign * qp.q)).x for qp in given.instances] for sign in (1, -1)
    ]
    value = [qp.A[row] @ (a + b) / 2 for qp, a, b in zip(given.instances, *ends, strict=True)]
    value = np.array(value)[:, 0]
    answers = []
    for low, high in [(0.0, 0.0), (0.0, INF), (-INF, 0.0), (-INF, INF), (-0.1, 0.1), (0.0, 0.0)]:
        changed = given.copy()
        changed.lower[:, row], changed.upper[:, row] = value + low, value + high
        with jax.log_compiles(), caplog.at_level("WARNING"):
            solution = solver.solve(*changed.args)
        assert not [r for r in caplog.records if "ompiling" in r.getMessage()]
        answers.append(np.asarray(solution.x))
        for b, qp in enumerate(changed.instances[:few]):
            wanted = osqp_solve(qp, **OSQP_TIGHT)
            assert solution.status[b] == wanted.status == Status.SOLVED
            np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=0.05)
    np.testing.assert_array_equal(answers[0], answers[-1])
    assert all(np.abs(answers[0] - other).max() > 0.1 for other in answers[1:-1])
    with jax.log_compiles(), caplog.at_level("WARNING"):  # the log does tell
        jax.jit(lambda x: x + 17.25)(1.5)
    assert [r for r in caplog.records if "ompiling" in r.getMessage()]


class TestUnusualShapes:
    def test_linear_program(self):
        """P has no entry at all."""
        n = 4
        A = sp.csc_matrix(np.vstack([np.eye(n), np.ones((1, n))]))
        solver = QPSolver(sp.csc_matrix((n, n)), A, dtype="float64")
        q = np.array([[1.0, 2, 3, 4], [-1, -2, -3, -4]])
        bounds = np.zeros((2, n + 1)), np.ones((2, n + 1))
        solution = solver.solve(np.zeros((2, 0)), q, np.tile(A.data, (2, 1)), *bounds)
        np.testing.assert_array_equal(solution.status, Status.SOLVED)
        np.testing.assert_allclose(solution.x, [[0, 0, 0, 0], [0, 0, 0, 1]], rtol=0, atol=1e-3)
        np.testing.assert_allclose(solution.objective, [0, -4], rtol=0, atol=5e-3)

    def test_without_constraints(self):
        given, none = ring(33), np.zeros((33, 0))
        P, _ = ring_patterns()
        solver = QPSolver(P, sp.csc_matrix((0, P.shape[0])), dtype="float64")
        solution = solver.solve(given.P_vals, given.q, none, none, none)
        np.testing.assert_array_equal(solution.status, Status.SOLVED)
        wanted = [-np.linalg.solve(qp.full_P.toarray(), qp.q) for qp in given.instances]
        np.testing.assert_allclose(solution.x, wanted, rtol=0, atol=1e-3)
        assert solution.y.shape == (33, 0)
