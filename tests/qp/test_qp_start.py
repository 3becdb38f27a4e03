"""Warm starts from (x, y) and (x, v), and classes of rows fixed by the caller."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qp_cases import INF, OSQP_FIXED, OSQP_TIGHT, QP, fixed, osqp_solve, ring, solver_for

from warpmpc import ADMMSettings, ProblemError, QPSolver, QPWarmStart, RowClass, Status

BATCH, TOLERANCE = 6, 1e-9
RHO, RHO_EQUALITY, RHO_FREE, SIGMA, RELAXATION = 0.1, 1e2, 1e-6, 1e-6, 1.6


def points(given, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """x and y of each instance, far from anything."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=given.q.shape), rng.normal(size=given.lower.shape)


def own_rho(qp: QP) -> np.ndarray:
    """Rho of each row as its bounds say."""
    free = np.isinf(qp.lower) & np.isinf(qp.upper)
    return np.select([qp.lower == qp.upper, free], [RHO_EQUALITY, RHO_FREE], RHO)


def plain_admm(qp: QP, rho: np.ndarray, iterations: int, x, v):
    """The v-form of DESIGN.md section 5, dense, from x and v; returns x, s and y."""
    A, n = qp.A.toarray(), qp.q.size
    K = np.block([[qp.full_P.toarray() + SIGMA * np.eye(n), A.T], [A, -np.diag(1 / rho)]])
    for _ in range(iterations):
        s = np.clip(v, qp.lower, qp.upper)
        solution = np.linalg.solve(K, np.concatenate([SIGMA * x - qp.q, 2 * s - v]))
        x = RELAXATION * solution[:n] + (1 - RELAXATION) * x
        v = s + (1 - RELAXATION) * (v - s) + RELAXATION / rho * solution[n:]
    s = np.clip(v, qp.lower, qp.upper)
    return x, s, rho * (v - s)


def check(solution, b: int, x, s, y):
    np.testing.assert_allclose(solution.x[b], x, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(solution.warm_start.s[b], s, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(solution.y[b], y, rtol=0, atol=TOLERANCE)


@pytest.mark.oracle
class TestFromXY:
    @pytest.mark.parametrize("iterations", [1, 10])
    @pytest.mark.parametrize("engine", ["sparse", "dense"])
    def test_iterates_are_osqps(self, engine, iterations):
        given = ring(BATCH)
        x, y = points(given)
        solver = solver_for(given, fixed(iterations), engine)
        solution = solver.solve(*given.args, warm_start=QPWarmStart.from_xy(x, y))
        for b, qp in enumerate(given.instances):
            wanted = osqp_solve(qp, (x[b], y[b]), max_iter=iterations, **OSQP_FIXED)
            np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=TOLERANCE)
            np.testing.assert_allclose(solution.y[b], wanted.y, rtol=0, atol=TOLERANCE)

    def test_with_scaling(self):
        given = ring(BATCH)
        exact = [osqp_solve(qp, **OSQP_TIGHT) for qp in given.instances]
        x, y = np.stack([one.x for one in exact]), np.stack([one.y for one in exact])
        settings = ADMMSettings(check_every=1)
        solution = solver_for(given, settings).solve(
            *given.args, warm_start=QPWarmStart.from_xy(x, y)
        )
        np.testing.assert_array_equal(solution.iterations, 1)
        np.testing.assert_allclose(solution.x, x, rtol=0, atol=1e-6)


class TestFromXV:
    @pytest.mark.parametrize("iterations", [1, 10])
    @pytest.mark.parametrize("engine", ["sparse", "dense"])
    def test_iterates(self, engine, iterations):
        given = ring(BATCH)
        x, v = points(given)
        solver = solver_for(given, fixed(iterations), engine)
        solution = solver.solve(*given.args, warm_start=QPWarmStart.from_xv(x, v))
        for b, qp in enumerate(given.instances):
            check(solution, b, *plain_admm(qp, own_rho(qp), iterations, x[b], v[b]))

    def test_equals_the_full_start(self):
        """Starts with scaling: s and y are those of the unscaled problem."""
        given = ring(BATCH)
        solver = solver_for(given)
        full = solver.solve(*given.args).warm_start
        rho = np.stack([own_rho(qp) for qp in given.instances])
        v = np.asarray(full.s) + np.asarray(full.y) / rho
        wanted = solver.solve(*given.args, warm_start=full)
        got = solver.solve(*given.args, warm_start=QPWarmStart.from_xv(full.x, v))
        np.testing.assert_array_equal(got.iterations, wanted.iterations)
        np.testing.assert_allclose(got.x, wanted.x, rtol=0, atol=1e-8)


MAKERS = {"xy": QPWarmStart.from_xy, "xv": QPWarmStart.from_xv}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
class TestStructure:
    def test_is_that_of_a_solution(self, make):
        given = ring(BATCH)
        solution = solver_for(given, fixed(10)).solve(*given.args)
        start = make(*points(given))
        assert jax.tree.structure(start) == jax.tree.structure(solution.warm_start)
        for one, other in zip(*map(jax.tree.leaves, (start, solution.warm_start)), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)

    def test_integers(self, make):
        """Nothing that is unknown may look like a number."""
        x, rows = points(ring(BATCH))
        one, other = (
            make(np.ones_like(x, dtype=int), np.ones_like(rows, dtype=int)),
            make(np.ones_like(x), np.ones_like(rows)),
        )
        for mine, wanted in zip(*map(jax.tree.leaves, (one, other)), strict=True):
            np.testing.assert_array_equal(mine, wanted)

    @pytest.mark.parametrize("given", [None, "a", [0.0], np.array(["a"]), np.ones(2) * 1j])
    def test_what_is_no_array_of_numbers(self, make, given):
        with pytest.raises(ProblemError, match="x must be a NumPy or JAX array of real numbers, g"):
            make(given, np.ones(2))

    def test_jit_and_vmap(self, make):
        given = ring(BATCH)
        solver, (x, rows) = solver_for(given, fixed(10)), points(given)
        wanted = solver.solve(*given.args, warm_start=make(x, rows)).x

        def one(x, rows, *args):
            return solver.solve(*args, warm_start=make(x, rows)).x

        for function in (jax.jit(one), jax.vmap(one), jax.jit(jax.vmap(one))):
            np.testing.assert_allclose(function(x, rows, *given.args), wanted, atol=1e-11)

    def test_scan_goes_on_with_full_starts(self, make):
        given = ring(BATCH)
        solver, start = solver_for(given, fixed(10)), make(*points(given))

        def step(start, _):
            solution = solver.solve(*given.args, warm_start=start)
            return solution.warm_start, solution.x

        _, xs = jax.lax.scan(step, start, length=2)
        first = solver.solve(*given.args, warm_start=start)
        second = solver.solve(*given.args, warm_start=first.warm_start)
        np.testing.assert_allclose(xs, jnp.stack([first.x, second.x]), atol=1e-11)

    @pytest.mark.parametrize("wrong", [np.nan, np.inf])
    def test_an_instance_with_other_numbers_starts_at_zero(self, make, wrong):
        given = ring(BATCH)
        solver = solver_for(given, fixed(10))
        cold = solver.solve(*given.args)
        for part, at in ((0, (2, 3)), (1, (4, 5))):
            parts = points(given)
            parts[part][at] = wrong
            warm = solver.solve(*given.args, warm_start=make(*parts))
            np.testing.assert_array_equal(warm.x[at[0]], cold.x[at[0]])
            assert np.abs(warm.x[1] - cold.x[1]).max() > 1e-3


def test_starts_may_be_mixed():
    """What is unknown is told instance by instance."""
    given = ring(3)
    solver, (x, rows) = solver_for(given, fixed(10)), points(given)
    kinds = [
        QPWarmStart.from_xy(x, rows),
        QPWarmStart.from_xv(x, rows),
        QPWarmStart(*map(jnp.asarray, (x, rows, rows))),
    ]
    mixed = jax.tree.map(lambda *parts: jnp.stack([p[b] for b, p in enumerate(parts)]), *kinds)
    got = solver.solve(*given.args, warm_start=mixed)
    for b, kind in enumerate(kinds):
        wanted = solver.solve(*given.args, warm_start=kind)
        np.testing.assert_array_equal(got.x[b], wanted.x[b])


class TestRowClasses:
    CLASSES = np.resize([RowClass.EQUALITY, RowClass.INEQUALITY, RowClass.FREE], 12)
    RHO = np.select(
        [CLASSES == RowClass.EQUALITY, CLASSES == RowClass.FREE], [RHO_EQUALITY, RHO_FREE], RHO
    )

    @staticmethod
    @cache
    def solver(engine: str = "sparse") -> QPSolver:
        P, A = ring(BATCH).P, ring(BATCH).A
        classes = TestRowClasses.CLASSES
        return QPSolver(P, A, fixed(10), dtype="float64", engine=engine, row_classes=classes)

    @pytest.mark.parametrize("engine", ["sparse", "dense"])
    def test_iterates(self, engine):
        """Whatever the bounds are, rho is that of the class."""
        given = ring(BATCH)
        x, v = points(given)
        solution = self.solver(engine).solve(*given.args, warm_start=QPWarmStart.from_xv(x, v))
        for b, qp in enumerate(given.instances):
            assert not np.array_equal(own_rho(qp), self.RHO)
            check(solution, b, *plain_admm(qp, self.RHO, 10, x[b], v[b]))

    def test_a_bound_that_changes_keeps_the_class(self):
        """One row is made an equality, an inequality and free at run time."""
        given, row = ring(BATCH).copy(), 4  # its class: inequality
        zero = np.zeros(given.q.shape[1])
        for low, high in ((0.3, 0.3), (0.0, 0.5), (-INF, INF)):
            given.lower[:, row], given.upper[:, row] = low, high
            solution = self.solver().solve(*given.args)
            for b, qp in enumerate(given.instances):
                assert self.CLASSES[row] == RowClass.INEQUALITY
                first = np.zeros(given.lower.shape[1])  # s = y = 0, which is not a projection
                wanted = plain_admm_from_zero(qp, self.RHO, 10, zero, first)
                check(solution, b, *wanted)

    def test_own_classes_given_by_hand(self):
        """The classes that would have been found make no difference."""
        given = ring(BATCH)
        same = given.map(lambda array: np.repeat(array[:1], BATCH, axis=0))
        lower, upper = same.lower[0], same.upper[0]
        classes = [
            RowClass.EQUALITY if a == b else RowClass(-int(np.isinf(a) and np.isinf(b)))
            for a, b in zip(lower, upper, strict=True)
        ]
        assert len(set(classes)) == 3
        solver = QPSolver(given.P, given.A, dtype="float64", row_classes=classes)
        wanted = solver_for(given).solve(*same.args)
        got = solver.solve(*same.args)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(one, other)

    def test_solution_is_the_same_and_rho_adapts(self):
        given = ring(BATCH)
        settings = ADMMSettings(eps_abs=1e-8, eps_rel=1e-8, max_iter=20_000)
        classes = np.full(12, RowClass.INEQUALITY)
        solver = QPSolver(given.P, given.A, settings, dtype="float64", row_classes=classes)
        solution = solver.solve(*given.args)
        np.testing.assert_array_equal(solution.status, Status.SOLVED)
        wanted = solver_for(given, settings).solve(*given.args)
        np.testing.assert_allclose(solution.x, wanted.x, rtol=0, atol=1e-6)

    def test_codes_are_osqps(self):
        assert (RowClass.FREE, RowClass.INEQUALITY, RowClass.EQUALITY) == (-1, 0, 1)


def plain_admm_from_zero(qp: QP, rho: np.ndarray, iterations: int, x, s):
    """Starts from s = y = 0: the first right-hand side contains s itself; later v determines s."""
    A, n = qp.A.toarray(), qp.q.size
    K = np.block([[qp.full_P.toarray() + SIGMA * np.eye(n), A.T], [A, -np.diag(1 / rho)]])
    solution = np.linalg.solve(K, np.concatenate([SIGMA * x - qp.q, s]))
    x = RELAXATION * solution[:n] + (1 - RELAXATION) * x
    return plain_admm(qp, rho, iterations - 1, x, s + RELAXATION / rho * solution[n:])
