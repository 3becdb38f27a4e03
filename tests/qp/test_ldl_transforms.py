"""`LDLSolver` under `jax.jit`, `jax.vmap` and `lax.scan`: the same values as outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ldl_cases import solver_for, systems

from warpmpc import LDLFactor, LDLSolver, ProblemError

NAME = "random_10"
ENGINES = ["warp", "warp_tables", "warp_batch_first", "jax", "dense"]


def solve(solver: LDLSolver, values, rhs) -> jax.Array:
    return solver.solve(solver.factor(values), rhs)


def check_equal(engine: str, result, wanted) -> None:
    """The kernels never change a bit; XLA may fuse its own operations differently."""
    assert result.shape == wanted.shape
    if engine.startswith("warp"):
        np.testing.assert_array_equal(result, wanted)
    else:
        np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_vmap_of_a_branch(engine):
    """A mapped predicate maps even the tables of a kernel, which must not be read that way."""
    solver, batch = solver_for(NAME, engine), systems(NAME, batch=40)
    wanted = solve(solver, batch.values, batch.rhs)

    def one(flag, values, rhs):
        def solved(values, rhs):
            return solve(solver, values, rhs)

        return jax.lax.cond(flag, solved, lambda _, rhs: rhs, values, rhs)

    flags = np.arange(4) % 2 == 0
    groups = (array.reshape(4, 10, -1) for array in (batch.values, batch.rhs))
    found = jax.vmap(one)(flags, *groups)
    np.testing.assert_array_equal(found[1::2], batch.rhs.reshape(4, 10, -1)[1::2])
    check_equal(engine, found[::2], wanted.reshape(4, 10, -1)[::2])


class TestJit:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_factor_and_solve_in_one_program(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=40)
        wanted = solve(solver, batch.values, batch.rhs)
        jitted = jax.jit(lambda values, rhs: solve(solver, values, rhs))
        check_equal(engine, jitted(batch.values, batch.rhs), wanted)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_factor_crosses_programs(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=40)
        wanted = solve(solver, batch.values, batch.rhs)
        factor = jax.jit(solver.factor)(batch.values)
        assert isinstance(factor, LDLFactor)
        np.testing.assert_array_equal(factor.status, 0)
        check_equal(engine, jax.jit(solver.solve)(factor, batch.rhs), wanted)
        check_equal(engine, solver.solve(factor, batch.rhs), wanted)

    def test_checks_run_while_tracing(self):
        solver, batch = solver_for(NAME), systems(NAME)
        with pytest.raises(ProblemError, match="last axis must have length"):
            jax.jit(solver.factor)(batch.rhs[:, 1:])
        with pytest.raises(ProblemError, match="dtype complex128"):
            jax.jit(solver.factor)(batch.values.astype("complex128"))

    def test_inside_a_larger_program(self):
        """Iterative refinement, as a user would write it."""
        solver, batch = solver_for(NAME, dtype="float32"), systems(NAME, "float32", 5)
        cols = np.repeat(np.arange(solver.n), np.diff(batch.K.indptr))
        rows, off = batch.K.indices, batch.K.indices != cols

        @jax.jit
        def refined(values, rhs):
            factor = solver.factor(values)
            x = solver.solve(factor, rhs)
            product = jnp.zeros_like(x).at[:, rows].add(values * x[:, cols])
            product = product.at[:, cols[off]].add(values[:, off] * x[:, rows[off]])
            return x + solver.solve(factor, rhs - product)

        wanted = solve(solver, batch.values, batch.rhs)
        np.testing.assert_allclose(refined(batch.values, batch.rhs), wanted, rtol=1e-4, atol=1e-5)


class TestVmap:
    @pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
    @pytest.mark.parametrize("engine", ENGINES)
    def test_instances_one_by_one(self, engine, wrap):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=6)
        wanted = solve(solver, batch.values, batch.rhs)
        mapped = wrap(jax.vmap(lambda values, rhs: solve(solver, values, rhs)))
        check_equal(engine, mapped(batch.values, batch.rhs), wanted)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_batches(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=80)
        wanted = solve(solver, batch.values, batch.rhs).reshape(2, 40, -1)
        values, rhs = batch.values.reshape(2, 40, -1), batch.rhs.reshape(2, 40, -1)
        mapped = jax.vmap(lambda values, rhs: solve(solver, values, rhs))
        check_equal(engine, mapped(values, rhs), wanted)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_nested(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=6)
        wanted = solve(solver, batch.values, batch.rhs).reshape(2, 3, -1)
        values, rhs = batch.values.reshape(2, 3, -1), batch.rhs.reshape(2, 3, -1)
        mapped = jax.vmap(jax.vmap(lambda values, rhs: solve(solver, values, rhs)))
        check_equal(engine, mapped(values, rhs), wanted)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_factor_and_solve_mapped_separately(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=6)
        wanted = solve(solver, batch.values, batch.rhs)
        factor = jax.vmap(solver.factor)(batch.values)
        np.testing.assert_array_equal(factor.status, np.zeros(6))
        check_equal(engine, jax.vmap(solver.solve)(factor, batch.rhs), wanted)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_only_right_hand_sides(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=40)
        factor = solver.factor(batch.values)
        rhs = np.stack([batch.rhs, 2 * batch.rhs, batch.rhs[::-1]])
        mapped = jax.vmap(solver.solve, in_axes=(None, 0))(factor, rhs)
        wanted = jnp.stack([solver.solve(factor, one) for one in rhs])
        check_equal(engine, mapped, wanted)
        last = jax.vmap(solver.solve, in_axes=(None, 2), out_axes=2)(factor, np.moveaxis(rhs, 0, 2))
        check_equal(engine, jnp.moveaxis(last, 2, 0), wanted)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_one_matrix_many_right_hand_sides(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=7)
        factor = solver.factor(batch.values[0])
        mapped = jax.vmap(solver.solve, in_axes=(None, 0))(factor, batch.rhs)
        wanted = jnp.stack([solver.solve(factor, one) for one in batch.rhs])
        check_equal(engine, mapped, wanted)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_flags(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=4)
        values = batch.values.copy()
        values[2] = np.nan
        factor = jax.vmap(solver.factor)(values)
        np.testing.assert_array_equal(factor.status, [0, 0, 2, 0])
        solution = jax.vmap(solver.solve)(factor, batch.rhs)
        np.testing.assert_array_equal(np.isnan(solution).any(axis=1), [False, False, True, False])

    @pytest.mark.parametrize("engine", ENGINES)
    def test_mapped_factor_needs_a_mapped_solve(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=4)
        factor = jax.vmap(solver.factor)(batch.values)
        with pytest.raises(ProblemError, match=r"under another `jax\.vmap`"):
            solver.solve(factor, batch.rhs)


class TestScan:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_right_hand_sides(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=40)
        factor = solver.factor(batch.values)
        sequence = np.stack([k * batch.rhs for k in range(1, 4)])

        def step(factor, rhs):
            return factor, solver.solve(factor, rhs)

        carried, solutions = jax.lax.scan(step, factor, sequence)
        assert isinstance(carried, LDLFactor)
        wanted = jnp.stack([solver.solve(factor, rhs) for rhs in sequence])
        check_equal(engine, solutions, wanted)

    @pytest.mark.parametrize("engine", ["warp", "jax"])
    def test_refactoring_in_a_loop(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=5)

        def body(k, x):
            return solve(solver, batch.values * (1.0 + k), x)

        wanted = jnp.asarray(batch.rhs)
        for k in range(3):
            wanted = body(k, wanted)
        looped = jax.lax.fori_loop(0, 3, body, jnp.asarray(batch.rhs))
        np.testing.assert_allclose(looped, wanted, rtol=1e-12, atol=1e-13)


class TestPytree:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_flatten_and_back(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME, batch=3)
        factor = solver.factor(batch.values)
        leaves, tree = jax.tree.flatten(factor)
        assert all(isinstance(leaf, jax.Array) for leaf in leaves)
        again = jax.tree.unflatten(tree, leaves)
        assert isinstance(again, LDLFactor)
        np.testing.assert_array_equal(
            solver.solve(again, batch.rhs), solver.solve(factor, batch.rhs)
        )

    def test_tree_map_and_device_calls(self):
        solver, batch = solver_for(NAME), systems(NAME, batch=3)
        factor = jax.block_until_ready(solver.factor(batch.values))
        copied = jax.tree.map(jnp.copy, factor)
        moved = jax.device_put(copied, jax.devices()[0])
        np.testing.assert_array_equal(
            solver.solve(moved, batch.rhs), solver.solve(factor, batch.rhs)
        )
