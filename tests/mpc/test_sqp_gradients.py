"""Gradients of `solve` and `step` against central differences in float64.

All perturbed instances of a check are one batch, so that differences cost one program.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sqp_cases import ARM_X0, TIGHT, TIGHT_QP, arm, soft_arm

from warpmpc import LineSearchSettings, MPCSolver, MPCStatus, SQPSettings

pytestmark = pytest.mark.slow
H = 1e-4


def differences(losses, points):
    """Central differences of ``losses([batch, n]) -> [batch]`` at every point, ``[points, n]``."""
    n = points.shape[1]
    steps = H * np.concatenate([np.eye(n), -np.eye(n)])
    ends = losses(jnp.asarray((points[:, None] + steps).reshape(-1, n)))
    plus, minus = np.split(np.asarray(ends).reshape(-1, 2 * n), 2, axis=1)
    return (plus - minus) / (2 * H)


def agree(found, wanted, tolerance=1e-5):
    assert np.all(np.isfinite(found))
    assert np.all(np.abs(wanted).max(axis=0) > 1e-6)  # every parameter matters
    scale = np.maximum(1, np.abs(wanted).max(axis=1, keepdims=True))
    np.testing.assert_allclose(found / scale, wanted / scale, rtol=0, atol=tolerance)


def weighted(solver, solution):
    """A loss of everything that has a derivative: trajectory, cost and multipliers."""
    c = jnp.asarray(np.random.default_rng(0).standard_normal(solver.problem.n_vars))
    y = 0.1 * (solution.y**2).sum(axis=-1)
    return jnp.sin(solution.z) @ c + solution.cost + y


def losses_of(solver):
    """Losses as a function of parameter vectors."""
    n = solver.problem.n_x0
    return lambda p: weighted(solver, solver.solve(p[..., :n], p[..., n:]))


def gradient(losses):
    return jax.jit(jax.grad(lambda p: losses(p).sum()))


@pytest.fixture(scope="module")
def limited():
    """An arm with active bounds."""
    return MPCSolver(arm(4, hard=True), TIGHT, "float64", "dense")


@pytest.fixture(scope="module")
def limited_points(limited):
    x0 = np.array([[0.3, 0.0], [-0.5, 0.1], [0.4, -0.2], [0.2, 0.15]])
    return np.asarray(limited.pack(x0))


@pytest.fixture(scope="module")
def limited_gradient(limited):
    return gradient(losses_of(limited))


class TestHardRows:
    """x0, weights and gravity; one instance at a time goes wrong."""

    def test_against_differences(self, limited, limited_points, limited_gradient):
        wanted = differences(losses_of(limited), limited_points)
        agree(limited_gradient(limited_points), wanted)
        # A batch of the same size: every instance has an active inequality.
        n = limited_points.shape[1]
        many = jnp.asarray(np.repeat(limited_points, 2 * n, axis=0))
        solution = limited.solve(many[:, :2], many[:, 2:])
        np.testing.assert_array_equal(solution.status, MPCStatus.CONVERGED)
        bounds = [name.startswith(("torque", "speed")) for name in limited.problem.row_names]
        assert np.all(np.abs(solution.y[:, bounds]).max(axis=1) > 1e-2)

    @pytest.mark.parametrize("trouble", [np.nan, np.inf, 50.0])
    def test_no_gradient_where_there_is_no_solution(
        self, limited_points, limited_gradient, trouble
    ):
        """NaN, infinite, infeasible: zero there, and every bit of the others as before."""
        wanted = np.asarray(limited_gradient(limited_points))
        wrong = limited_points.copy()
        wrong[1, 1] = trouble
        found = np.asarray(limited_gradient(wrong))
        np.testing.assert_array_equal(found[1], 0)
        others = [0, 2, 3]
        np.testing.assert_array_equal(found[others], wanted[others])


@pytest.fixture(scope="module")
def soft_points():
    rng = np.random.default_rng(0)
    x0 = np.stack([rng.uniform(-0.9, 0.9, 8), rng.uniform(-0.3, 0.3, 8)], axis=1)
    return np.concatenate([x0, 10.0 ** rng.uniform(-1.5, 1.5, (8, 2))], axis=1)


@pytest.fixture(scope="module")
def soft_losses():
    return losses_of(MPCSolver(soft_arm(), TIGHT, "float64", "staged"))


@pytest.fixture(scope="module")
def soft_slopes(soft_losses, soft_points):
    return differences(soft_losses, soft_points)


class TestSoftRows:
    """Penalties of all kinds, rows beyond their bounds and at rest; penalties as parameters."""

    def test_against_differences(self, soft_points, soft_losses, soft_slopes):
        agree(gradient(soft_losses)(soft_points), soft_slopes)

    def test_vmap_of_grad(self, soft_points, soft_slopes):
        """Instance by instance, on another engine."""
        solver = MPCSolver(soft_arm(), TIGHT, "float64", "sparse")
        agree(jax.jit(jax.vmap(jax.grad(losses_of(solver))))(soft_points), soft_slopes)


def plant(x, u):
    """The model of the arm."""
    return x + 0.3 * jnp.stack([x[..., 1], jnp.sin(x[..., 0]) + u], axis=-1)


def closed_loop(control, start, w):
    """Cost of ten steps of the plant under a controller with weights w, ``[batch]``."""
    x0 = jnp.broadcast_to(jnp.asarray(ARM_X0[1]), (w.shape[0], 2))

    def body(carry, _):
        x, memory = carry
        u, memory = control(x, w, memory)
        return (plant(x, u), memory), (x**2).sum(axis=-1) + 0.1 * u**2

    _, costs = jax.lax.scan(body, (x0, start(x0, w)), None, length=10)
    return costs.sum(axis=0)


WEIGHTS = np.array([[1.0, 0.1, 0.1], [0.5, 0.3, 0.2]])


class TestClosedLoop:
    """Ten MPC steps; the plant is the model.  Gradients with respect to the cost weights."""

    def check(self, control, start):
        losses = jax.jit(lambda w: closed_loop(control, start, w))
        found = gradient(losses)(WEIGHTS)
        agree(found, differences(losses, WEIGHTS), 1e-6)
        assert np.all(np.abs(found).max(axis=1) > 1e-2)

    def test_solve(self):
        solver = MPCSolver(arm(4), TIGHT, "float64", "staged")

        def control(x, w, memory):
            solution = solver.solve(x, {"w": w}, warm_start=memory)
            return solution.u[:, 0, 0], solution.warm_start

        self.check(control, lambda x, w: solver.cold_start(solver.z_guess(x, {"w": w})))

    def test_step(self):
        """The real-time iteration: derivatives flow from step to step through the trajectory."""
        full = LineSearchSettings(kind="full")
        settings = SQPSettings(mode="fixed", qp=replace(TIGHT_QP, max_iter=4000), line_search=full)
        solver = MPCSolver(arm(4), settings, "float64", "sparse")

        def control(x, w, memory):
            z, state = memory
            result, state = solver.step(z, {"w": w, "x0": x}, state)
            return result.u[:, 0, 0], (result.z, state)

        def start(x, w):
            first = solver.cold_start(solver.z_guess(x, {"w": w}))
            return first.z, first.qp

        self.check(control, start)
