"""Limits of a file become rows of a problem; torques as variables give the same motion."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
import robot_oracle as oracle
from robot_models import CART_DOUBLE_PENDULUM, MODELS, PENDULUM, arm, mjcf

import warpmpc as wm
from warpmpc.problem.evaluation import evaluate
from warpmpc.robots import inverse_dynamics_rows, load

LIMITED = mjcf(
    '<body name="b"><joint name="j" actuatorfrcrange="-2 3" range="-1 1"/>'
    '<geom size="0.1"/></body>',
    '<actuator><motor name="m" joint="j" gear="-10" ctrlrange="-1 1" forcerange="-0.1 0.25"/>'
    "</actuator>",
)


def problem_of(robot, inputs):
    q, v = robot.symbols()
    ocp = wm.OCP({"q": q, "v": v}, inputs, horizon=3, dt=0.1)
    ocp.set_dynamics(ca.SX.zeros(robot.nq + robot.nv))
    return ocp


def bounds(ocp):
    """Name of a row of the first node -> its bounds."""
    problem = ocp.problem()
    at = evaluate(problem, np.zeros(problem.n_vars), np.nan_to_num(problem.defaults))
    first = np.asarray(problem.con_stage) == 0
    found = zip(np.asarray(problem.row_names)[first], at.lower[first], at.upper[first], strict=True)
    return {str(name): (lower, upper) for name, lower, upper in found}


def test_arm():
    robot = load(arm())
    ocp = problem_of(robot, {"tau": ca.SX.sym("tau", 7)})
    robot.limits(ocp)
    found = bounds(ocp)
    assert found["position[1]"] == (-2.0, 2.0)
    assert found["torque[6]"] == (-40.0, 40.0)
    assert not any(name.startswith(("velocity", "control")) for name in found)


def test_controls_of_a_cart():
    robot = load(CART_DOUBLE_PENDULUM)
    ocp = problem_of(robot, {"u": ca.SX.sym("u")})
    robot.limits(ocp, soft=100.0)
    found = bounds(ocp)
    assert found["control[0]"] == (-1.0, 1.0)
    assert found["position[0]"] == (-2.0, 2.0)
    assert "position[1]" not in found
    assert len(ocp.problem().stages[0].soft_rows) == 1, "the position is soft"


def test_velocity_limits_and_given_expressions():
    text = """<robot name="r"><link name="base"/><link name="link"><inertial><mass value="1"/>
    <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
    <joint name="j" type="continuous"><parent link="base"/><child link="link"/>
    <axis xyz="0 1 0"/><limit effort="30" velocity="4"/></joint></robot>"""
    robot = load(text)
    q, v = robot.symbols()
    a, tau = ca.SX.sym("a"), ca.SX.sym("tau")
    ocp = wm.OCP({"v": v, "q": q}, {"a": a, "tau": tau}, horizon=3, dt=0.1)
    ocp.set_dynamics([a, v])
    robot.limits(ocp, q=q, v=v, tau=tau)
    found = bounds(ocp)
    assert found["velocity[0]"] == (-4.0, 4.0)
    assert found["torque[0]"] == (-30.0, 30.0)
    assert not any(name.startswith("position") for name in found)


def test_gears_forces_and_joints_limit_torques():
    robot = load(LIMITED)
    assert [limit.tolist() for limit in robot.torque_limits()] == [[-2.0], [1.0]]
    assert [limit.tolist() for limit in robot.control_limits()] == [[-0.1], [0.25]]


def test_bases_have_no_torque():
    lower, upper = load(MODELS["humanoid"]).torque_limits()
    assert lower.tolist() == [0.0] * 6 + [-60.0] * 29
    assert upper.tolist() == [0.0] * 6 + [60.0] * 29
    lower, upper = load(MODELS["creature"]).torque_limits()
    assert lower.tolist() == [0.0] * 6 + [-np.inf] * 7, "without actuators joints decide"


def test_actuators_act_as_in_mujoco():
    robot = load(MODELS["several_joints"])
    model = robot.mujoco_model
    (q, v), control = robot.symbols(), ca.SX.sym("control", robot.nu)
    expression = robot.actuation(control, q, v)
    rng = np.random.default_rng(0)
    for state in oracle.random_states(model):
        given = rng.uniform(-0.3, 0.3, robot.nu)
        data = oracle.data_at(model, state)
        data.ctrl[:] = given
        model.actuator_forcelimited[:] = 0  # limits are rows of the problem
        oracle.mujoco.mj_forward(model, data)
        found = oracle.evaluated(expression, [control, q, v], [given, state.qpos, state.v])
        assert np.allclose(found, data.qfrc_actuator, rtol=1e-9, atol=1e-12)


def test_dry_friction():
    robot = load(PENDULUM.replace("damping", "frictionloss"))
    _, v = robot.symbols()
    friction = robot.dry_friction(v, 0.01)
    found = [float(ca.Function("f", [v], [friction])(speed)) for speed in (-1.0, 0.0, 1.0)]
    assert np.allclose(found, [0.1, 0.0, -0.1])


def test_which_inputs_is_asked():
    robot = load(LIMITED)
    ocp = problem_of(robot, {"u": ca.SX.sym("u")})
    with pytest.raises(wm.ProblemError, match=r"torques or controls.*pass tau= or control="):
        robot.limits(ocp)
    robot.limits(ocp, control=ocp.u)
    assert bounds(ocp)["control[0]"] == (-0.1, 0.25)


def test_wrong_sizes():
    robot = load(CART_DOUBLE_PENDULUM)
    q, _ = robot.symbols()
    ocp = wm.OCP({"q": q}, {"u": ca.SX.sym("u", 2)}, horizon=3, dt=0.1)
    with pytest.raises(wm.ProblemError, match="3 states, but the robot needs 3 coordinates and 3"):
        robot.limits(ocp)
    with pytest.raises(wm.ProblemError, match="v has 2 rows"):
        robot.limits(ocp, q=q, v=q[:2])
    with pytest.raises(wm.ProblemError, match="2 inputs, which are neither 3 torques nor 1"):
        robot.limits(ocp, q=q, v=q)
    with pytest.raises(wm.ProblemError, match="tau has 2 rows"):
        robot.limits(ocp, q=q, v=q, tau=ocp.u)


def test_rows_of_inverse_dynamics():
    """They vanish for the accelerations of forward dynamics, and only for those."""
    robot = load(MODELS["several_joints"])
    (q, v), a = robot.symbols(), ca.SX.sym("a", robot.nv)
    control, f = ca.SX.sym("control", robot.nu), ca.SX.sym("f", 3)
    rows = inverse_dynamics_rows(robot, q, v, a, control=control, forces={"end": f})
    tau = robot.actuation(control, q, v)
    solution = robot.forward_dynamics(q, v, tau, {"end": f})
    at_solution = ca.substitute(rows, a, solution)
    rng = np.random.default_rng(0)
    for state in oracle.random_states(robot.mujoco_model):
        values = [state.qpos, state.v, rng.normal(size=robot.nu), rng.normal(size=3)]
        found = oracle.evaluated(at_solution, [q, v, control, f], values)
        assert np.abs(found).max() < 1e-9
        other = oracle.evaluated(rows, [q, v, control, f, a], [*values, state.a])
        assert np.abs(other).max() > 1e-2


def test_rows_need_torques_or_controls():
    robot = load(PENDULUM)
    q, v = robot.symbols()
    for given in ({}, {"tau": v, "control": v}):
        with pytest.raises(wm.ProblemError, match="either tau or control"):
            inverse_dynamics_rows(robot, q, v, v, **given)
