"""The cartpole and the quadrotor of the method's paper, written with OCP: sizes, groups, values."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

from warpmpc.problem.evaluation import evaluate, initial_guess
from warpmpc.problem.ocp.ocp import OCP

INERTIA = dict(zip(("h1", "h2", "h4", "h7"), (0.55569701, 0.0664, 0.0431, 0.6516), strict=True))
STEP = 0.1


def cartpole_motion(lib, x, u):
    """Time derivative of (position, speed, angle, rate) with the functions of NumPy or CasADi."""
    _, v, angle, w = x
    h1, h2, h4, h7 = INERTIA.values()
    s, c, friction = lib.sin(angle), lib.cos(angle), 0.00172243
    force = -3.918722 * v + 0.5374264 * u
    det = h1 * h4 - h2**2 * c**2
    dv = (h2 * h4 * w**2 * s - h2 * h7 * c * s + h4 * force - h2 * c * friction * w) / det
    dw = -(h2**2 * w**2 * c * s - h1 * h7 * s + h2 * c * force + h1 * friction * w) / det
    return [v, dv, w, dw]


@pytest.fixture(scope="module")
def cartpole():
    x, u = ca.SX.sym("x", 4), ca.SX.sym("u")
    w, s = ca.SX.sym("w", 13), ca.SX.sym("s")
    ocp = OCP(x, u, {"w": w}, p_stage={"s": s}, horizon=100, dt=STEP, terminal_input=True)
    ocp.set_dynamics(cartpole_motion(ca, ca.vertsplit(x), u), integrator="euler")
    ocp.add_cost(ocp.dt / 2 * (ca.dot(w[:4], x**2) + w[4] * u**2))
    ocp.add_cost(ocp.dt / 2 * ca.dot(w[5:9], x**2), at="terminal")
    ocp.subject_to(-(9 - w[11] * s), u, 9 - w[11] * s, name="input")
    ocp.subject_to(-(0.35 - w[12] * s), x[0], 0.35 - w[12] * s, at="all", name="rail")
    ocp.set_guess(x=(1 - ocp.tau) * ocp.x0)
    return ocp.problem()


def jacobian_entries(problem):
    return [
        ca.jacobian(group.stage.g, ca.vertcat(group.stage.z, group.stage.z_next)).nnz()
        for group in problem.groups
    ]


class TestCartpole:
    def test_sizes(self, cartpole):
        assert (cartpole.n_vars, cartpole.n_cons, cartpole.horizon) == (505, 606, 100)
        assert [group.ks for group in cartpole.groups] == [(0,), tuple(range(1, 100)), (100,)]
        assert [group.stage.n_g for group in cartpole.groups] == [10, 6, 2]
        assert jacobian_entries(cartpole) == [22, 18, 2]

    def test_names(self, cartpole):
        start = [f"{kind}[x_{i}]" for kind in ("initial", "dynamics") for i in range(4)]
        assert list(cartpole.row_names[:10]) == [*start, "input[0]", "rail[0]"]
        assert cartpole.row_names[-2:] == ("terminal_input[u]", "rail[0]")
        assert cartpole.names["u"].shape == (101, 1)
        assert cartpole.param_names["w"].shape == (13,)
        assert cartpole.param_names["s"].shape == (101, 1)

    def test_values_against_numpy(self, cartpole):
        rng = np.random.default_rng(0)
        z, params = rng.normal(size=505), rng.uniform(0.5, 2, size=cartpole.n_params)
        found = evaluate(cartpole, z, params)
        x, u = z[cartpole.names["x"]], z[cartpole.names["u"]][:, 0]
        x0, w, s = params[:4], params[4:17], params[17:]
        cost = STEP / 2 * (x**2 @ w[:4] + w[4] * u**2)
        cost[-1] = STEP / 2 * x[-1] ** 2 @ w[5:9]
        np.testing.assert_allclose(found.cost, cost, rtol=1e-14)
        rows, upper = [x[0] - x0], [np.zeros(4)]
        for k in range(100):
            motion = np.array(cartpole_motion(np, x[k], u[k]))
            rows += [x[k + 1] - x[k] - STEP * motion, [u[k]], [x[k, 0]]]
            upper += [np.zeros(4), [9 - w[11] * s[k]], [0.35 - w[12] * s[k]]]
        rows += [[u[-1]], [x[-1, 0]]]
        upper += [[0], [0.35 - w[12] * s[-1]]]
        np.testing.assert_allclose(found.g, np.concatenate(rows), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.upper, np.concatenate(upper), rtol=1e-14)
        np.testing.assert_array_equal(found.lower, -found.upper)

    def test_guess(self, cartpole):
        params = np.ones(cartpole.n_params)
        guess = initial_guess(cartpole, params).reshape(101, 5)
        expected = np.outer(1 - np.linspace(0, 1, 101), [1, 1, 1, 1, 0])
        np.testing.assert_allclose(guess, expected, atol=1e-15)


def quadrotor(cylinders=False):
    x, u = ca.SX.sym("x", 12), ca.SX.sym("u", 4)
    reference = ca.SX.sym("x_ref", 12)
    dt = 0.01 * 1.05 ** np.arange(40)
    ocp = OCP(x, u, {"x_ref": reference}, horizon=40, dt=dt, terminal_input=True)
    p, angles, v, w = (x[i : i + 3] for i in (0, 3, 6, 9))
    (s1, s2, s3), (c1, c2, c3) = (ca.vertsplit(f(angles)) for f in (ca.sin, ca.cos))
    mass, gravity = 0.0402, 9.8066
    inertia = ca.DM([1.8e-5, 1.8e-5, 3.6e-5])
    thrust = u[3] + mass * gravity
    torque = u[:3] * ca.DM([1e-2, 1e-2, 1e-3])
    up = ca.vertcat(c3 * s2 * c1 + s3 * s1, s3 * s2 * c1 - c3 * s1, c2 * c1)
    rates = ca.vertcat(
        w[0] + s1 * s2 / c2 * w[1] + c1 * s2 / c2 * w[2],
        c1 * w[1] - s1 * w[2],
        (s1 * w[1] + c1 * w[2]) / c2,
    )
    # Ixx = Iyy, so nothing turns about z but its torque and drag.
    spin = ca.vertcat(w[1] * w[2] * 1.8e-5, -w[0] * w[2] * 1.8e-5, 0)
    turning = (torque - spin - 5e-6 * w) / inertia
    motion = ca.vertcat(v, rates, up * thrust / mass - ca.DM([0, 0, gravity]), turning)
    ocp.set_dynamics(motion, integrator="euler")
    Q = np.array([200, 200, 100, 1, 1, 1000, 1, 1, 1, 1, 1, 10]) / 200
    error = x - reference
    ocp.add_residual(error, weight=ocp.dt * Q)
    ocp.add_residual(u, weight=ocp.dt * np.array([200, 200, 10, 100]) / 200)
    ocp.add_residual(error, weight=Q, at="terminal")
    a, kappa = 0.0325, 0.0051648627905205285
    signs = np.array([[-1, -1, -1, 1], [-1, 1, 1, 1], [1, 1, -1, 1], [1, -1, 1, 1]])
    mixer = signs / 4 * np.array([1 / a, 1 / a, 1 / kappa, 1])
    ocp.subject_to(0, mixer @ ca.vertcat(torque, thrust), 0.18, name="motor")
    if cylinders:
        center = np.array([(0.58, 0.42), (-0.62, 0.56), (0.55, -0.62), (-0.78, -0.35)])
        radius = np.array([0.17, 0.22, 0.15, 0.19]) + 0.1
        distance = [20 * ca.sumsqr(p[:2] - c) for c in center]
        ocp.subject_to(20 * radius**2, distance, None, at="all", name="cylinder")
    return ocp.problem(), dt


class TestQuadrotor:
    def test_sizes(self):
        problem, _ = quadrotor()
        assert (problem.n_vars, problem.n_cons, len(problem.groups)) == (656, 656, 3)
        assert [group.stage.n_g for group in problem.groups] == [28, 16, 4]
        assert jacobian_entries(problem) == [84, 72, 4]

    def test_dt_is_a_parameter_of_the_nodes(self):
        problem, dt = quadrotor()
        rows = problem.param_names["dt"]
        assert rows.shape == (41, 1)
        np.testing.assert_array_equal(problem.defaults[rows[:, 0]], [*dt, dt[-1]])
        assert np.isnan(problem.defaults[problem.param_names["x_ref"]]).all()

    def test_with_cylinders(self):
        problem, _ = quadrotor(cylinders=True)
        assert (problem.n_vars, problem.n_cons, len(problem.groups)) == (656, 820, 3)
        assert [group.stage.n_g for group in problem.groups] == [32, 20, 8]
        assert jacobian_entries(problem) == [92, 80, 12]
        found = evaluate(problem, np.zeros(656), np.nan_to_num(problem.defaults))
        np.testing.assert_array_equal(found.upper[-4:], np.inf)
        np.testing.assert_allclose(found.lower[-4:], 20 * np.array([0.27, 0.32, 0.25, 0.29]) ** 2)
        np.testing.assert_allclose(found.g[-4], 20 * (0.58**2 + 0.42**2))

    def test_hovering_is_an_equilibrium(self):
        """At rest on the reference the cost is zero and only the initial rows are not."""
        problem, _ = quadrotor()
        params = np.where(np.isnan(problem.defaults), 0, problem.defaults)
        params[:12] = 1
        found = evaluate(problem, np.zeros(656), params)
        np.testing.assert_array_equal(found.cost, 0)
        np.testing.assert_array_equal(found.g[:12], -1)
        dynamics = [name.startswith("dynamics") for name in problem.row_names]
        np.testing.assert_allclose(found.g[dynamics], 0, atol=1e-15)
        motors = [name.startswith("motor") for name in problem.row_names]
        np.testing.assert_allclose(found.g[motors], 0.0402 * 9.8066 / 4, rtol=1e-14)
