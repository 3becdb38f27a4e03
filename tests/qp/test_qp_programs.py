"""`QPSolver.solve` inside the programs of users: branches, maps of gradients, loops, donation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qp_cases import ring, solver_for

from warpmpc import ADMMSettings, Status

pytestmark = pytest.mark.slow

BATCH = 33
TIGHT = ADMMSettings(eps_abs=1e-9, eps_rel=1e-9)
ENGINES = ["sparse", "dense"]


def on_device(given) -> tuple[jax.Array, ...]:
    """Fresh copies, which a donation may consume."""
    return tuple(jnp.array(array) for array in given.args)


class TestBranches:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_mapped_predicate(self, engine):
        """Some instances are solved, the others take what they have."""
        given = ring(BATCH)
        solver = solver_for(given, engine=engine)
        wanted, solve = solver.solve(*given.args).x, np.arange(BATCH) % 3 == 0

        def one(chosen, old, *args):
            return jax.lax.cond(chosen, lambda: solver.solve(*args).x, lambda: old)

        got = jax.jit(jax.vmap(one))(solve, -np.ones_like(given.q), *given.args)
        np.testing.assert_allclose(got[solve], wanted[solve], rtol=1e-9, atol=1e-11)
        np.testing.assert_array_equal(np.asarray(got)[~solve], -1)

    def test_predicate_of_the_whole_batch(self):
        given = ring(BATCH)
        solver = solver_for(given)

        @jax.jit
        def program(chosen, *args):
            return jax.lax.cond(chosen, lambda a: solver.solve(*a).x, lambda a: a[1], args)

        np.testing.assert_array_equal(program(False, *given.args), given.q)
        np.testing.assert_array_equal(program(True, *given.args), solver.solve(*given.args).x)

    def test_two_solvers_behind_a_switch(self):
        given = ring(BATCH)
        solvers = [solver_for(given), solver_for(given, TIGHT), solver_for(given, engine="dense")]
        branches = [lambda *args, s=s: s.solve(*args).x for s in solvers]
        chosen = np.arange(BATCH) % 3
        got = jax.jit(jax.vmap(lambda i, *args: jax.lax.switch(i, branches, *args)))(
            chosen, *given.args
        )
        for i, solver in enumerate(solvers):
            wanted = solver.solve(*given.args).x
            mine = chosen == i
            np.testing.assert_allclose(got[mine], wanted[mine], rtol=1e-9, atol=1e-11)

    def test_where_on_solutions(self):
        """A fallback for instances that failed, as `jnp.where` has it, and its gradient."""
        given = ring(BATCH).copy()
        given.lower[7, 3], given.upper[7, 3] = 1.0, 0.0
        solver = solver_for(given, TIGHT)

        def loss(q):
            solution = solver.solve(given.P_vals, q, *given.args[2:])
            solved = (solution.status == Status.SOLVED)[:, None]
            return jnp.where(solved, solution.x, q).sum()

        gradient = jax.jit(jax.grad(loss))(given.q)
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[7], 1)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_gradient_through_a_mapped_branch(self, engine):
        given = ring(BATCH)
        solver, chosen = solver_for(given, TIGHT, engine), np.arange(BATCH) % 2 == 0

        def loss(q, chosen, P_vals, *rest):
            def solved(q):
                return solver.solve(P_vals, q, *rest).x.sum()

            return jax.lax.cond(chosen, solved, lambda q: 3 * q.sum(), q)

        P_vals, q, *rest = given.args
        got = jax.jit(jax.vmap(jax.grad(loss)))(q, chosen, P_vals, *rest)
        total = jax.grad(lambda q: solver.solve(P_vals, q, *rest).x.sum())
        wanted = np.where(chosen[:, None], total(q), 3.0)
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-9)


class TestLoops:
    def test_scan_of_warm_starts_under_vmap(self):
        """Closed loops of single instances, mapped: each has its own carry."""
        given = ring(BATCH)
        solver = solver_for(given)
        scales = jnp.asarray([1.0, 1.05, 1.1])

        def loop(P_vals, q, *rest):
            first = solver.solve(P_vals, q, *rest)

            def step(start, scale):
                solution = solver.solve(P_vals, scale * q, *rest, warm_start=start)
                return solution.warm_start, (solution.x, solution.iterations)

            return jax.lax.scan(step, first.warm_start, scales)[1]

        x, iterations = jax.jit(jax.vmap(loop))(*given.args)
        batch_x, batch_iterations = jax.jit(loop)(*given.args)
        np.testing.assert_allclose(x, batch_x.swapaxes(0, 1), rtol=1e-9, atol=1e-11)
        np.testing.assert_array_equal(iterations, batch_iterations.T)

    def test_while_until_all_are_solved(self):
        given = ring(BATCH)
        solver = solver_for(given, ADMMSettings(max_iter=25, adaptive_rho_every=0))

        @jax.jit
        def program(*args):
            first = solver.solve(*args)
            return jax.lax.while_loop(
                lambda s: (s.status != Status.SOLVED).any(),
                lambda s: solver.solve(*args, warm_start=s.warm_start),
                first,
            )

        np.testing.assert_array_equal(program(*given.args).status, Status.SOLVED)

    def test_gradient_through_a_scan(self):
        """Later solves depend on the solutions before them, not on the warm start."""
        given = ring(BATCH)
        solver = solver_for(given, TIGHT)

        def last(q, unrolled):
            def step(carry, _):
                start, q = carry
                solution = solver.solve(given.P_vals, q, *given.args[2:], warm_start=start)
                return (solution.warm_start, q + 0.1 * solution.x), None

            carry = (solver.solve(given.P_vals, q, *given.args[2:]).warm_start, q)
            if unrolled:
                for _ in range(2):
                    carry, _ = step(carry, None)
            else:
                carry, _ = jax.lax.scan(step, carry, length=2)
            return carry[1].sum()

        got, wanted = (jax.jit(jax.grad(partial(last, unrolled=u)))(given.q) for u in (False, True))
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-9)


def test_grad_of_vmap_equals_vmap_of_grad():
    given = ring(BATCH)
    solver = solver_for(given, TIGHT)
    P_vals, q, *rest = given.args

    def one(q, P_vals, *rest):
        solution = solver.solve(P_vals, q, *rest)
        return solution.x.sum() + solution.objective

    inside = jax.jit(jax.vmap(jax.grad(one)))(q, P_vals, *rest)
    outside = jax.jit(jax.grad(lambda q: jax.vmap(one)(q, P_vals, *rest).sum()))(q)
    np.testing.assert_allclose(inside, outside, rtol=1e-9, atol=1e-11)


class TestDonation:
    """Warnings are errors here: every donated buffer must find a use."""

    def test_vectors(self):
        """q, lower and upper have the shapes of x, s and y."""
        given = ring(BATCH)
        solver = solver_for(given)
        wanted = solver.solve(*given.args)
        args = on_device(given)
        got = jax.jit(solver.solve, donate_argnums=(1, 3, 4))(*args)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(one, other)
        assert [array.is_deleted() for array in args] == [False, True, False, True, True]

    def test_warm_start(self):
        given = ring(BATCH)
        solver = solver_for(given)
        wanted = solver.solve(*given.args)
        again = solver.solve(*given.args, warm_start=wanted.warm_start)

        @partial(jax.jit, donate_argnums=0)
        def step(start, args):
            return solver.solve(*args, warm_start=start).warm_start

        start = jax.tree.map(jnp.array, wanted.warm_start)
        got = step(start, on_device(given))
        np.testing.assert_array_equal(got.x, again.x)
        np.testing.assert_array_equal(got.y, again.y)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(start))

    def test_everything_into_the_gradient(self):
        """The gradient has the shapes of all data."""
        given = ring(BATCH)
        solver = solver_for(given, TIGHT)
        gradient = jax.grad(lambda args: solver.solve(*args).x.sum())
        wanted = jax.jit(gradient)(given.args)
        args = on_device(given)
        got = jax.jit(gradient, donate_argnums=0)(args)
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_matrices_have_no_use(self):
        """No result has their shape: JAX warns about it, and the values are right nevertheless."""
        given = ring(BATCH)
        solver = solver_for(given)
        wanted = solver.solve(*given.args).x
        with pytest.warns(UserWarning, match="donated buffers were not usable"):
            got = jax.jit(solver.solve, donate_argnums=(0, 2))(*on_device(given))
        np.testing.assert_array_equal(got.x, wanted)
