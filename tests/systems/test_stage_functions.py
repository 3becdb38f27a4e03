"""Cost, rows, bounds and plants of the benchmark systems against plain NumPy formulas."""

import casadi as ca
import jax
import numpy as np
import pytest
import reference_models as models
import reference_sqp as reference

from warpmpc import systems
from warpmpc.problem.evaluation import evaluate
from warpmpc.systems import car, cartpole, linear_mpc, pendulum, quadrotor

REFERENCES = {
    "cartpole": reference.cartpole,
    "quadrotor": reference.quadrotor,
    "quadrotor_obstacles": lambda horizon: reference.quadrotor(horizon, cylinders=True),
}
HORIZON = 6


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def params_of(problem, x0, **changed):
    params = problem.defaults.copy()
    params[: x0.size] = x0
    for name, value in changed.items():
        params[problem.param_names[name]] = value
    return params


@pytest.mark.parametrize("free_physics", [False, True])
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_problem_at_random_points(name, free_physics, rng):
    problem = systems.make(name, horizon=HORIZON, free_physics=free_physics).problem
    wanted = REFERENCES[name](HORIZON)
    for _ in range(5):
        z, x0 = 0.5 * rng.normal(size=problem.n_vars), rng.normal(size=problem.n_x0)
        found = evaluate(problem, z, params_of(problem, x0))
        g, lower, upper = wanted.rows(z, x0)
        assert found.cost.sum() == pytest.approx(wanted.cost(z), rel=1e-13)
        np.testing.assert_allclose(found.g, g, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(found.lower, lower, rtol=1e-14)
        np.testing.assert_allclose(found.upper, upper, rtol=1e-14)


def test_weights_and_references_are_where_they_belong(rng):
    problem = systems.make("quadrotor", horizon=HORIZON).problem
    wanted = reference.quadrotor(HORIZON)
    z, x_ref = rng.normal(size=problem.n_vars), rng.normal(size=12)
    Q, R = rng.uniform(size=12), rng.uniform(size=4)
    found = evaluate(problem, z, params_of(problem, np.zeros(12), x_ref=x_ref, Q=Q, R=R))
    nodes = z.reshape(-1, 16) - np.concatenate([x_ref, np.zeros(4)])
    weights = np.append(wanted.dt, 1.0)[:, None] * np.concatenate([Q, R])
    weights[-1, 12:] = 0
    np.testing.assert_allclose(found.cost, 0.5 * np.sum(weights * nodes**2, axis=1), rtol=1e-13)


def test_weights_of_the_cartpole(rng):
    problem = systems.make("cartpole", horizon=HORIZON).problem
    z, w = rng.normal(size=problem.n_vars), rng.uniform(size=13)
    tube = rng.uniform(size=HORIZON + 1)
    found = evaluate(problem, z, params_of(problem, np.zeros(4), w=w, tube=tube[:, None]))
    nodes, voltage = z.reshape(-1, 5), 9 - w[11] * tube
    assert found.cost[2] == pytest.approx(0.05 * w[:5] @ nodes[2] ** 2, rel=1e-13)
    assert found.cost[-1] == pytest.approx(0.05 * w[5:9] @ nodes[-1, :4] ** 2, rel=1e-13)
    np.testing.assert_allclose(found.upper[8:-2:6], voltage[:-1], rtol=1e-13)
    np.testing.assert_allclose(found.lower[9:-2:6], w[12] * tube[:-1] - 0.35, rtol=1e-13)
    assert found.upper[-1] == pytest.approx(0.35 - w[12] * tube[-1])


def test_tube_grows_towards_its_limit():
    np.testing.assert_allclose(cartpole.tube(100), models.cartpole_tube(100), rtol=1e-12)
    assert cartpole.tube(400)[-1] == pytest.approx(5.37e-6, rel=2e-3)
    assert cartpole.tube(2, rate=10.0, disturbance=5.0)[1] == pytest.approx(0.5 * (1 - np.exp(-1)))


@pytest.mark.parametrize(
    ("name", "physics", "states"),
    [("cartpole", cartpole.PHYSICS, 4), ("quadrotor", quadrotor.PHYSICS, 12)],
)
def test_other_physical_constants(name, physics, states):
    """Free constants take part: twice the gravity is twice the weight."""
    problem = systems.make(name, horizon=HORIZON, free_physics=True).problem
    z = np.zeros(problem.n_vars)
    z[2] = np.pi / 2 if name == "cartpole" else 0.0  # a horizontal pole is turned by its weight
    rates = []
    for factor in (1.0, 2.0):
        values = [v * factor if n == "gravity" else v for n, v in physics.items()]
        found = evaluate(problem, z, params_of(problem, np.zeros(states), physics=values))
        rates.append(found.g[states : 2 * states])
    if name == "cartpole":
        assert rates[1][3] / rates[0][3] == pytest.approx(2)
    else:  # thrust above weight: gravity cancels in the motion, the motors carry it
        np.testing.assert_allclose(rates[1], rates[0], atol=1e-15)
        motors = slice(2 * states, 2 * states + 4)
        assert found.g[motors] == pytest.approx(np.full(4, 2 * 0.0402 * 9.8066 / 4))


def linear_order(horizon):
    """Variables and rows of `linear_mpc` in the order of the stages; signs of its rows."""
    n = 12 * (horizon + 1)
    x = np.arange(n).reshape(-1, 12)
    u = n + np.arange(4 * horizon).reshape(-1, 4)
    m = 12 * (horizon + 1)
    variables, rows, signs = [], [x[0]], [-np.ones(12)]
    for k in range(horizon):
        variables += [x[k], u[k]]
        rows += [x[k + 1], m + x[k], m + u[k]]
        signs += [-np.ones(12), np.ones(16)]
    variables, rows, signs = [*variables, x[-1]], [*rows, m + x[-1]], [*signs, np.ones(12)]
    return tuple(np.concatenate(part) for part in (variables, rows, signs))


def test_linear_mpc_is_that_of_the_matrices(rng):
    problem, matrices = systems.make("linear", horizon=HORIZON).problem, linear_mpc.build(HORIZON)
    variables, rows, signs = linear_order(HORIZON)
    z, x0 = rng.normal(size=problem.n_vars), rng.normal(size=12)
    flat = np.empty_like(z)
    flat[variables] = z
    found = evaluate(problem, z, params_of(problem, x0))
    constant = 0.5 * 10 * (HORIZON + 1)
    cost = 0.5 * flat @ (matrices.P @ flat) + matrices.q @ flat + constant
    assert found.cost.sum() == pytest.approx(cost, rel=1e-13)
    g = signs * (matrices.A @ flat)[rows]
    np.testing.assert_allclose(found.g[:12], g[:12] - x0, atol=1e-13)
    np.testing.assert_allclose(found.g[12:], g[12:], atol=1e-13)
    wanted = [side[rows] for side in (matrices.lower, matrices.upper)]
    np.testing.assert_array_equal(found.lower, wanted[0])
    np.testing.assert_array_equal(found.upper, wanted[1])


def test_plants(rng):
    x, u = 0.3 * rng.normal(size=(50, 4)), 10 * rng.normal(size=(50, 1))
    wanted = x + 0.1 * models.cartpole_xdot(x, np.clip(u, -9, 9))
    np.testing.assert_allclose(jax.jit(cartpole.simulate)(x, u), wanted, rtol=1e-12)
    x, u = 0.3 * rng.normal(size=(50, 12)), rng.normal(size=(50, 4))
    wanted = x + 0.01 * models.quadrotor_xdot(x, u)
    for name in ("quadrotor", "quadrotor_obstacles"):
        found = jax.jit(systems.make(name, horizon=1).simulate)(x, u)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)
    A, B = linear_mpc.dynamics()
    wanted = np.stack([A @ a + B @ np.clip(b, -0.9916, 2.4084) for a, b in zip(x, u, strict=True)])
    found = jax.jit(systems.make("linear", horizon=1).simulate)(x, u)
    np.testing.assert_allclose(found, wanted, atol=1e-13)


def fine_steps(xdot, x, u, dt, pieces=2000):
    for _ in range(pieces):
        middle = x + dt / pieces / 2 * xdot(x, u)
        x = x + dt / pieces * xdot(middle, u)
    return x


def pendulum_xdot(x, u):
    return np.stack([x[:, 1], u[:, 0] + 9.81 * np.sin(x[:, 0]) - 0.1 * x[:, 1]], axis=1)


def car_xdot(x, u):
    turn = x[:, 3] * np.tan(u[:, 1]) / 2.7
    columns = [x[:, 3] * np.cos(x[:, 2]), x[:, 3] * np.sin(x[:, 2]), turn, u[:, 0]]
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(
    ("module", "xdot", "limits"),
    [(pendulum, pendulum_xdot, [6.0]), (car, car_xdot, [3.0, 0.6])],
)
def test_small_systems_move_as_they_should(module, xdot, limits, rng):
    """The plant is clipped and integrated well; the model of the problem is the same."""
    limits, system = np.array(limits), module.make(horizon=2)
    x = rng.normal(size=(20, system.n_x))
    u = rng.normal(size=(20, limits.size)) * 2 * limits
    clipped = np.clip(u, -limits, limits)
    wanted = fine_steps(xdot, x, clipped, system.control_dt)
    found = jax.jit(system.simulate)(x, u)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    n_x, n_z = system.n_x, system.n_x + system.n_u
    z = np.zeros(system.problem.n_vars)
    z[:n_z], z[n_z : n_z + n_x] = np.concatenate([x[0], clipped[0]]), found[0]
    rows = evaluate(system.problem, z, params_of(system.problem, x[0])).g[: 2 * n_x]
    np.testing.assert_allclose(rows, 0, atol=1e-12)


def test_car_keeps_away_from_the_obstacle():
    problem = car.make(horizon=2).problem
    z = np.zeros(problem.n_vars)
    z[problem.x_rows[1, :2]] = -7.0, 2.5
    found = evaluate(problem, z, params_of(problem, np.zeros(4)))
    row = problem.row_names.index("obstacle[0]")
    assert found.g[row] == pytest.approx((2.5**2 - 2.1**2) / 4.2)
    assert (found.lower[row], found.upper[row]) == (0, np.inf)
    z[problem.x_rows[1, :2]] = -7.0, 2.0
    assert evaluate(problem, z, params_of(problem, np.zeros(4))).g[row] < 0


def test_formulas_are_the_same_for_casadi_and_jax(rng):
    x, u = rng.normal(size=12), rng.normal(size=4)
    constants = list(quadrotor.PHYSICS.values())
    found = quadrotor.xdot(ca, x.tolist(), u.tolist(), constants)
    np.testing.assert_allclose([float(v) for v in found], models.quadrotor_xdot(x, u), rtol=1e-12)
    np.testing.assert_allclose(
        quadrotor.motors(ca, u.tolist(), constants), models.quadrotor_motors(u), rtol=1e-12
    )
