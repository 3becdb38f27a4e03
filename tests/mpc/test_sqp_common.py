"""Parameters that all instances share: kept once, and as if each instance had its own."""

from __future__ import annotations

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sqp_cases import FIXED, arm

from warpmpc import OCP, MPCProblem, MPCSolver, MPCStatus, Stage
from warpmpc.codegen.from_casadi import translate

BATCH = 40
W = np.array([0.7, 0.2, 0.3])


@pytest.fixture(scope="module")
def solver():
    return MPCSolver(arm(), FIXED, "float64", "staged")


@pytest.fixture(scope="module")
def x0():
    return np.random.default_rng(0).normal(size=(BATCH, 2))


def of_all(value, batch=BATCH):
    return np.broadcast_to(value, (batch, *value.shape)).copy()


def equal(found, wanted):
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(mine, theirs)


class TestSplit:
    def test_kept_once(self, solver, x0):
        """The eight instances differ in x0 alone."""
        packed = solver._packed(x0, {"w": W})
        assert packed.own.shape == (BATCH, 2)
        assert packed.common.shape == (1, solver.problem.n_params - 2)
        np.testing.assert_array_equal(packed.joined(), solver.pack(x0, {"w": W}))

    def test_what_has_batch_axes_is_not(self, solver, x0):
        packed = solver._packed(x0, {"w": of_all(W)})
        assert packed.own.shape == (BATCH, 5)
        np.testing.assert_array_equal(packed.joined(), solver.pack(x0, {"w": W}))
        rest = solver.pack(x0)[:, 2:]
        assert solver._packed(x0, rest).common is None
        assert solver._packed(x0[0], rest).common is None

    def test_a_single_problem_uses_the_program_of_batches(self, solver, x0):
        assert solver._packed(x0[0], {"w": W}).split is solver._packed(x0, {"w": W}).split

    @pytest.mark.slow
    def test_equal_stages_read_alike(self):
        """Nodes 1 and 2 are equal stages: where one has its own parameter, so has the other."""
        z, after, p, x_init = (ca.SX.sym(name) for name in ("z", "n", "p", "x0"))
        step, cost = after - 0.9 * z - 0.1 * ca.sin(p * z), (z - p) ** 2
        first = Stage(z, after, p, cost, ca.vertcat(z - x_init, step), [0, 0], [0, 0])
        path, end = Stage(z, after, p, cost, step, 0, 0), Stage(z, None, None, z**2, z, -5, 5)
        names = {name: np.array([row]) for row, name in enumerate("abc", start=1)}
        problem = MPCProblem([first, path, path, end], x0=x_init, param_names=names)
        solver = MPCSolver(problem, FIXED, "float64", "sparse")
        x0, own = np.linspace(-1, 1, 3)[:, None], np.array([[1.0], [2.0], [3.0]])
        params = {"a": np.array([0.5]), "b": own, "c": np.array([0.7])}
        split = solver._packed(x0, params).split
        assert split.common.tolist() == [1]
        assert split.own.tolist() == [0, 2, 3]
        rest = solver.pack(x0, params)[:, 1:]
        equal(solver.solve(x0, params), solver.solve(x0, rest))


class TestSolutions:
    def test_same_bits(self, solver, x0):
        equal(solver.solve(x0, {"w": W}), solver.solve(x0, {"w": of_all(W)}))
        wanted = solver.solve(x0[3], {"w": W})
        equal(wanted, jax.tree.map(lambda a: a[3], solver.solve(x0, {"w": W})))

    def test_not_finite(self, solver, x0):
        solution = solver.solve(x0, {"w": np.array([1.0, np.nan, 1.0])})
        np.testing.assert_array_equal(solution.status, MPCStatus.NON_FINITE)

    @pytest.mark.slow
    def test_another_one_for_each_mapped_batch(self, solver, x0):
        weights = np.stack([W, 2 * W, 3 * W])
        wanted = [solver.solve(x0, {"w": w}) for w in weights]
        found = jax.jit(jax.vmap(lambda w: solver.solve(x0, {"w": w})))(weights)
        equal(found, jax.tree.map(lambda *parts: jnp.stack(parts), *wanted))
        starts = x0[:3]
        found = jax.jit(jax.vmap(lambda x, w: solver.solve(x, {"w": w})))(starts, weights)
        equal(found, solver.solve(starts, {"w": weights}))

    def test_the_same_one_for_all_mapped_batches(self, solver, x0):
        folded = x0.reshape(5, 8, 2)
        found = jax.jit(jax.vmap(lambda x: solver.solve(x, {"w": W})))(folded)
        wanted = solver.solve(x0, {"w": W})
        equal(jax.tree.map(lambda a: a.reshape(BATCH, *a.shape[2:]), found), wanted)


def solved(solver, x0, w):
    return (solver.solve(x0, {"w": w}).z ** 2).sum()


def stepped(solver, x0, w):
    z = solver.z_guess(x0)
    return (solver.step(z, {"w": w}, x0=x0)[0].z ** 2).sum()


class TestGradients:
    @pytest.mark.parametrize("loss", [solved, pytest.param(stepped, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("wrap", [lambda f: f, pytest.param(jax.jit, marks=pytest.mark.slow)])
    @pytest.mark.slow
    def test_shares_of_all_instances(self, solver, x0, loss, wrap):
        """Those that fill the last tile have no share."""
        shares = jax.grad(lambda w: loss(solver, x0, w))(jnp.asarray(of_all(W)))
        wanted = shares.sum(axis=0)
        assert np.abs(wanted).min() > 1e-3
        found = wrap(jax.grad(lambda w: loss(solver, x0, w)))(jnp.asarray(W))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


class TestConstantBounds:
    """Constants in the source of the kernels: no input has a row for them."""

    def read_and_constants(self, bound):
        """What the residuals of the rows read of their inputs, and their constants."""
        x, u, limit = ca.SX.sym("x"), ca.SX.sym("u"), ca.SX.sym("limit")
        ocp = OCP(x, u, {"limit": limit}, horizon=3, dt=0.1)
        ocp.set_dynamics(u, integrator="euler")
        ocp.add_cost(x**2 + u**2)
        ocp.subject_to(-0.3125, u, limit if bound is None else bound)
        read, constants = set(), set()
        for number, model in enumerate(MPCSolver(ocp, FIXED, "float64").programs.models):
            program = translate(model.linearize(f"f{number}", ["lower", "upper"]))
            used = np.concatenate([program.left, program.right, *program.outputs])
            read |= {(number, i) for i in used[used < program.n_inputs].tolist() if i >= 0}
            constants |= set(np.abs(program.constants).tolist())
        return read, constants

    def test_nothing_is_read(self):
        read, constants = self.read_and_constants(0.4375)
        more, fewer = self.read_and_constants(None)
        assert {0.3125, 0.4375} <= constants
        assert 0.4375 not in fewer
        assert read < more
