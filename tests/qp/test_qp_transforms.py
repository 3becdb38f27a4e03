"""`QPSolver.solve` under `jit`, `vmap` and `lax.scan`; shapes, order of the batch, repetition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qp_cases import OSQP_TIGHT, osqp_solve, ring, solver_for

from warpmpc import QPSolution, QPWarmStart, Status

BATCH = 33
ENGINES = ["sparse", "dense"]


def leaves(solution) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(solution)]


def check_equal(got, wanted, exact=True):
    """Equal leaves, bit by bit, or up to rounding (XLA compiles each shape in its own way)."""
    for one, other in zip(leaves(got), leaves(wanted), strict=True):
        assert one.shape == other.shape
        if exact or one.dtype.kind == "i":
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("engine", ENGINES)
class TestBits:
    def test_repetition(self, engine):
        given = ring(BATCH)
        solver = solver_for(given, engine=engine)
        check_equal(solver.solve(*given.args), solver.solve(*given.args))

    def test_order_of_the_batch(self, engine):
        given, order = ring(BATCH), np.random.default_rng(0).permutation(BATCH)
        solver = solver_for(given, engine=engine)
        wanted = jax.tree.map(lambda leaf: leaf[order], solver.solve(*given.args))
        check_equal(solver.solve(*given.map(lambda a: a[order]).args), wanted)


class TestShapes:
    def test_one_problem_without_a_batch_axis(self):
        given = ring(BATCH)
        solver = solver_for(given)
        batch = solver.solve(*given.args)
        for b in (0, 32):
            one = solver.solve(*(array[b] for array in given.args))
            assert one.x.shape == (8,)
            assert one.status.shape == ()
            check_equal(one, jax.tree.map(lambda leaf, b=b: leaf[b], batch), exact=False)

    def test_several_leading_axes(self):
        given = ring(BATCH)
        solver = solver_for(given)
        wanted = solver.solve(*given.args)
        wanted = jax.tree.map(lambda leaf: leaf.reshape(3, 11, *leaf.shape[1:]), wanted)
        shaped = given.map(lambda a: a.reshape(3, 11, -1))
        check_equal(solver.solve(*shaped.args), wanted)


class TestJit:
    def test_equals_the_call(self):
        given = ring(BATCH)
        solver = solver_for(given)
        solution = jax.jit(solver.solve)(*given.args)
        assert isinstance(solution, QPSolution)
        check_equal(solution, solver.solve(*given.args))

    def test_inside_a_larger_program(self):
        """Bounds and costs are computed on the device; the solution is used there."""
        given = ring(BATCH)
        solver = solver_for(given)

        @jax.jit
        def program(shift):
            moved = (jnp.asarray(array) for array in given.args)
            P_vals, q, A_vals, lower, upper = moved
            return solver.solve(P_vals, q + shift, A_vals, lower, upper).x.sum(axis=-1)

        wanted = solver.solve(given.P_vals, given.q + 0.5, *given.args[2:]).x.sum(axis=-1)
        np.testing.assert_allclose(program(0.5), wanted, rtol=1e-12)


class TestVmap:
    def test_batches_equal_a_loop(self):
        """Three batches that share tiles once they are folded."""
        batches = [ring(BATCH, seed) for seed in range(3)]
        solver = solver_for(batches[0])
        mapped = jax.vmap(solver.solve)(
            *map(np.stack, zip(*(b.args for b in batches), strict=True))
        )
        loop = [solver.solve(*batch.args) for batch in batches]
        check_equal(mapped, jax.tree.map(lambda *parts: jnp.stack(parts), *loop), exact=False)

    def test_single_problems_with_shared_matrices(self):
        """One instance per call, P and A not mapped, the mapped axis not the first."""
        given = ring(BATCH)
        solver = solver_for(given)
        P_vals, q, A_vals, lower, upper = given.args
        lower, upper = lower - 5, upper + 5  # no longer feasible by construction
        mapped = jax.vmap(solver.solve, in_axes=(None, 1, None, 0, 0))
        solution = mapped(P_vals[3], q.T, A_vals[3], lower, upper)
        shared = (np.tile(P_vals[3], (BATCH, 1)), q, np.tile(A_vals[3], (BATCH, 1)))
        check_equal(solution, solver.solve(*shared, lower, upper))
        assert (np.asarray(solution.status) == Status.SOLVED).sum() > 20

    def test_with_warm_start(self):
        given = ring(BATCH)
        solver = solver_for(given)
        first = solver.solve(*given.args)
        mapped = jax.vmap(lambda *args: solver.solve(*args[:-1], warm_start=args[-1]))
        check_equal(
            mapped(*given.args, first.warm_start),
            solver.solve(*given.args, warm_start=first.warm_start),
        )


def test_scan_of_warm_started_solves():
    given, steps = ring(BATCH), 4
    solver = solver_for(given)
    scales = 1 + 0.05 * np.arange(steps)

    def step(warm_start: QPWarmStart, scale):
        solution = solver.solve(
            given.P_vals, scale * given.q, *given.args[2:], warm_start=warm_start
        )
        return solution.warm_start, solution

    zero = QPWarmStart(*(jnp.zeros_like(a) for a in (given.q, given.lower, given.lower)))
    _, solutions = jax.lax.scan(step, zero, scales)
    state, loop = zero, []
    for scale in scales:
        state, solution = step(state, scale)
        loop.append(solution)
    check_equal(solutions, jax.tree.map(lambda *parts: jnp.stack(parts), *loop), exact=False)
    np.testing.assert_array_equal(solutions.status, Status.SOLVED)
    assert np.sum(solutions.iterations[1:]) < (steps - 1) * np.sum(solutions.iterations[0])


@pytest.mark.oracle
def test_single_precision():
    given = ring(BATCH)
    narrow = given.map(lambda array: array.astype("float32"))
    solution = solver_for(given, dtype="float32").solve(*narrow.args)
    assert {leaf.dtype.name for leaf in leaves(solution)} == {"float32", "int32"}
    np.testing.assert_array_equal(solution.status, Status.SOLVED)
    for b, qp in enumerate(given.instances):
        wanted = osqp_solve(qp, **OSQP_TIGHT)
        np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=0.05)
        np.testing.assert_allclose(solution.objective[b], wanted.objective, rtol=0.02, atol=0.05)
