"""Closed loops of `MPCSolver`: a pendulum, one JAX function for model and plant."""

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import warpmpc as wm
from warpmpc.sim.rollout import rollout

pytestmark = pytest.mark.slow

DT, HORIZON, BATCH, LIMIT = 0.05, 8, 3, 6.0
X0 = np.array([[0.4, 0.0], [-0.3, 0.5], [0.1, -0.2]])


def xdot(x, u, length=1.0):
    return jnp.stack([x[1], (9.81 * jnp.sin(x[0]) + u[0]) / length])


def rk4(x, u, length=1.0):
    k1 = xdot(x, u, length)
    k2 = xdot(x + DT / 2 * k1, u, length)
    k3 = xdot(x + DT / 2 * k2, u, length)
    k4 = xdot(x + DT * k3, u, length)
    return x + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def simulate(x, u, t, plant):
    after = jax.vmap(rk4)(x, u, plant["length"])
    return jnp.where((plant["breaks"] == t)[:, None], jnp.nan, after)


PLANT = {"length": np.array([1.0, 1.1, 0.9]), "breaks": np.full(BATCH, -1)}
GOAL = {"goal": np.array([0.05])}
STEPS = 4


@pytest.fixture(scope="module")
def solver():
    x, u, goal = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("goal")
    ocp = wm.OCP(x, u, {"goal": goal}, horizon=HORIZON, dt=DT)
    ocp.set_dynamics(x_next=wm.from_jax(lambda x, u: rk4(x, u), 2, 1)(x, u))
    ocp.add_residual(ca.vertcat(x[0] - goal, x[1]), [1.0, 0.1])
    ocp.add_residual(u, 1e-3)
    ocp.add_residual(ca.vertcat(x[0] - goal, x[1]), [20.0, 2.0], at="terminal")
    ocp.subject_to(-LIMIT, u, LIMIT)
    ocp.set_default("goal", 0.0)
    qp = wm.ADMMSettings(eps_abs=1e-9, eps_rel=1e-9)
    return wm.MPCSolver(ocp, wm.SQPSettings(qp=qp), dtype="float64", engine="auto")


def test_is_a_loop_of_solves(solver):
    found = rollout(solver, simulate, X0, STEPS, params=GOAL, plant=PLANT)
    x, warm = jnp.asarray(X0), None
    for k in range(STEPS):
        solution = solver.solve(x, GOAL, warm, shift=warm is not None)
        warm = solution.warm_start
        np.testing.assert_allclose(found.u[:, k], solution.u[:, 0], atol=1e-7)
        np.testing.assert_array_equal(found.status[:, k], solution.status)
        x = simulate(x, solution.u[:, 0], k, PLANT)
        np.testing.assert_allclose(found.x[:, k + 1], x, atol=1e-7)


def test_a_broken_state_disturbs_nobody(solver):
    fine = rollout(solver, simulate, X0, STEPS, params=GOAL, plant=PLANT)
    plant = {**PLANT, "breaks": np.array([-1, 1, -1])}
    result = rollout(solver, simulate, X0, STEPS, params=GOAL, plant=plant)
    np.testing.assert_allclose(result.x[::2], fine.x[::2], atol=1e-9)
    np.testing.assert_array_equal(result.status[1, 2:], wm.MPCStatus.NON_FINITE)
    np.testing.assert_array_equal(result.finite, [True, False, True])


def test_gradients(solver):
    """Derivatives by initial states, a parameter of the problem and one of the plant."""

    def loss(x0, goal, length):
        plant = {**PLANT, "length": length}
        result = rollout(solver, simulate, x0, STEPS, params={"goal": goal}, plant=plant)
        return (result.x[:, -1] ** 2).sum() + 1e-3 * (result.u**2).sum()

    arguments = [jnp.asarray(a) for a in (X0, GOAL["goal"], PLANT["length"])]
    found = jax.grad(loss, argnums=(0, 1, 2))(*arguments)
    for i, gradient in enumerate(found):
        direction = np.random.default_rng(i).normal(size=gradient.shape)
        more, less = list(arguments), list(arguments)
        more[i], less[i] = more[i] + 1e-5 * direction, less[i] - 1e-5 * direction
        difference = (loss(*more) - loss(*less)) / 2e-5
        np.testing.assert_allclose((gradient * direction).sum(), difference, rtol=1e-4)


def test_balances_with_the_wrong_model(solver):
    """One SQP iteration per step."""
    result = rollout(solver, simulate, X0, 60, plant=PLANT, method="step", record=["kkt_residual"])
    assert result.success_rate(lambda x, u: jnp.all(jnp.abs(x[-1]) < 0.02)) == 1
    assert (np.abs(result.u) <= LIMIT + 1e-3).all()
    assert (np.abs(result.u) > LIMIT - 1e-3).any(), "the limit matters"
    assert result.max_violation[0] > result.violation[0, -1]
    residuals = np.asarray(result.recorded["kkt_residual"])
    assert residuals.shape == (BATCH, 60)
    assert residuals[:, -1].max() < 0.1 * residuals[:, 0].min()
