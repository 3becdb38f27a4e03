"""Symbolic rigid bodies agree with MuJoCo on every model, at random states."""

from __future__ import annotations

import casadi as ca
import mujoco
import numpy as np
import pytest
import robot_oracle as oracle
from robot_models import MODELS

from warpmpc.robots import load

RTOL = 1e-9
ORIENTATIONS = ("quaternion", "zyx")
CASES = [
    (name, orientation)
    for name in MODELS
    for orientation in ORIENTATIONS
    # Without ball and free joints there is no difference.
    if orientation == "quaternion" or name in ("ball_chain", "free_body", "creature", "humanoid")
]


def close(found, wanted, scale=None):
    scale = np.abs(wanted).max() if scale is None else scale
    assert np.abs(found - wanted).max() <= RTOL * max(scale, 1e-3)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def setting(request):
    name, orientation = request.param
    robot = load(MODELS[name], orientation=orientation)
    model = oracle.without_constraints(robot.mujoco_model)
    return robot, model, oracle.random_states(model)


def test_models_cover_what_they_should():
    kinds = {joint.kind for text in MODELS.values() for joint in load(text).joints}
    sizes = [load(text).nv for text in MODELS.values()]
    assert kinds == {"hinge", "slide", "ball", "free"}
    assert min(sizes) == 1
    assert {7, 30, 35} <= set(sizes)


def test_inverse_dynamics(setting):
    robot, model, states = setting
    (q, v), a = robot.symbols(), ca.SX.sym("a", robot.nv)
    expression = robot.inverse_dynamics(q, v, a)
    for state in states:
        values = [robot.from_mujoco(state.qpos), state.v, state.a]
        close(oracle.evaluated(expression, [q, v, a], values), oracle.inverse(model, state))


def test_forward_dynamics(setting):
    robot, model, states = setting
    (q, v), tau = robot.symbols(), ca.SX.sym("tau", robot.nv)
    expression = robot.forward_dynamics(q, v, tau)
    for state in states:
        values = [robot.from_mujoco(state.qpos), state.v, state.tau]
        wanted = np.array(oracle.data_at(model, state).qacc)
        close(oracle.evaluated(expression, [q, v, tau], values), wanted)


def test_mass_matrix_bias_and_passive_forces(setting):
    robot, model, states = setting
    q, v = robot.symbols()
    mass, bias, passive = robot.mass_matrix(q), robot.bias(q, v), robot.passive(q, v)
    for state in states:
        data, at = oracle.data_at(model, state), robot.from_mujoco(state.qpos)
        wanted = oracle.full_mass_matrix(model, data)
        found = oracle.evaluated(mass, [q], [at])
        close(np.reshape(found, wanted.shape), wanted)
        close(oracle.evaluated(bias, [q, v], [at, state.v]), np.array(data.qfrc_bias))
        close(oracle.evaluated(passive, [q, v], [at, state.v]), np.array(data.qfrc_passive))


def test_energies(setting):
    """MuJoCo counts bodies that stand still, too: differences are compared."""
    robot, model, states = setting
    q, v = robot.symbols()
    energies = ca.vertcat(robot.potential_energy(q), robot.kinetic_energy(q, v))
    found, wanted = [], []
    for state in states:
        at = robot.from_mujoco(state.qpos)
        found.append(oracle.evaluated(energies, [q, v], [at, state.v]))
        wanted.append(np.array(oracle.data_at(model, state).energy))
    shift = np.array([wanted[0][0] - found[0][0], 0.0])
    close(np.array(found) + shift, np.array(wanted))


def test_center_of_mass(setting):
    robot, model, states = setting
    q, _ = robot.symbols()
    expression = robot.center_of_mass(q)
    moving = np.array(model.body_weldid) != 0
    mass = np.array(model.body_mass)[moving]
    assert robot.mass == pytest.approx(mass.sum(), rel=RTOL)
    for state in states:
        places = np.array(oracle.data_at(model, state).xipos)[moving]
        found = oracle.evaluated(expression, [q], [robot.from_mujoco(state.qpos)])
        close(found, mass @ places / mass.sum())


def test_poses_and_jacobians(setting):
    robot, model, states = setting
    q, _ = robot.symbols()
    names = [*list(robot.bodies)[-2:], *list(robot.sites)[:1]]
    for name in names:
        pose, (linear, angular) = robot.pose(name, q), robot.jacobian(name, q)
        for state in states:
            data, at = oracle.data_at(model, state), robot.from_mujoco(state.qpos)
            place = data.site(name) if name in robot.sites else data.body(name)
            body = model.site(name).bodyid[0] if name in robot.sites else model.body(name).id
            close(oracle.evaluated(pose.position, [q], [at]), place.xpos, scale=1.0)
            close(oracle.evaluated(pose.rotation, [q], [at]), place.xmat.reshape(3, 3))
            wanted = np.zeros((3, model.nv)), np.zeros((3, model.nv))
            mujoco.mj_jac(model, data, *wanted, place.xpos, body)
            for expression, theirs in zip((linear, angular), wanted, strict=True):
                found = oracle.evaluated(expression, [q], [at])
                close(np.reshape(found, theirs.shape), theirs, scale=1.0)


def test_rates_of_coordinates_are_velocities(setting):
    """The pose of the last body moves along the rates as its Jacobians say."""
    robot, _, states = setting
    q, v = robot.symbols()
    name = list(robot.bodies)[-1]
    pose, (linear, angular) = robot.pose(name, q), robot.velocity(name, q, v)
    both = ca.vertcat(pose.position, ca.vec(pose.rotation))
    moved = ca.jtimes(both, q, robot.q_rates(q, v))
    turned = ca.vec(ca.horzcat(*(ca.cross(angular, pose.rotation[:, i]) for i in range(3))))
    difference = moved - ca.vertcat(linear, turned)
    for state in states:
        values = [robot.from_mujoco(state.qpos), state.v]
        assert np.abs(oracle.evaluated(difference, [q, v], values)).max() < 1e-9


def test_integrate_quaternions_as_mujoco(setting):
    robot, model, states = setting
    q, v = robot.symbols()
    if robot.tree.orientation == "zyx":
        step = robot.integrate(q, v, 0.1) - q - 0.1 * robot.q_rates(q, v)
        assert np.abs(oracle.evaluated(step, [q, v], [robot.q0, states[0].v])).max() < 1e-12
        return
    expression = robot.integrate(q, v, 0.3)
    for state in states:
        for speed in (1.0, 4.0, 0.0):
            wanted = np.array(state.qpos)
            mujoco.mj_integratePos(model, wanted, speed * state.v, 0.3)
            found = oracle.evaluated(expression, [q, v], [state.qpos, speed * state.v])
            close(found, wanted)


def test_coordinates_of_mujoco_and_back(setting):
    robot, model, states = setting
    qpos = np.stack([state.qpos for state in states])
    q = robot.from_mujoco(qpos)
    assert q.shape == (len(states), robot.nq)
    back = robot.to_mujoco(q)
    for found, wanted in zip(back, qpos, strict=True):
        apart = np.zeros(model.nv)
        mujoco.mj_differentiatePos(model, apart, 1.0, found, wanted)
        assert np.abs(apart).max() < 1e-12


@pytest.mark.parametrize("name", ["creature", "several_joints", "humanoid"])
def test_external_forces(name):
    """Wrenches at two frames are those that MuJoCo maps with its Jacobians."""
    robot = load(MODELS[name])
    model = oracle.without_constraints(robot.mujoco_model)
    (q, v), a = robot.symbols(), ca.SX.sym("a", robot.nv)
    site, body = next(iter(robot.sites)), list(robot.bodies)[-1]
    forces = {site: ca.SX.sym("f", 6), body: ca.SX.sym("g", 3)}
    given = [q, v, a, *forces.values()]
    torques = robot.inverse_dynamics(q, v, a, forces)
    accelerations = robot.forward_dynamics(q, v, a, forces)
    rng = np.random.default_rng(1)
    for state in oracle.random_states(model):
        data, (f, g) = oracle.data_at(model, state), (rng.normal(size=6), rng.normal(size=3))
        mapped = np.zeros(model.nv)
        mujoco.mj_applyFT(
            model, data, f[:3], f[3:], data.site(site).xpos, model.site(site).bodyid[0], mapped
        )
        where = data.body(body).xpos
        mujoco.mj_applyFT(model, data, g, np.zeros(3), where, model.body(body).id, mapped)
        found = oracle.evaluated(torques, given, [state.qpos, state.v, state.a, f, g])
        close(found, oracle.inverse(model, state) - mapped)
        pushed = oracle.State(state.qpos, state.v, state.a, state.tau + mapped)
        found = oracle.evaluated(accelerations, given, [state.qpos, state.v, state.tau, f, g])
        close(found, np.array(oracle.data_at(model, pushed).qacc))


def test_quaternions_of_any_length_are_rotations():
    robot = load(MODELS["free_body"])
    q, _ = robot.symbols()
    rotation = robot.pose("camera", q).rotation
    unit = oracle.random_states(robot.mujoco_model)[0].qpos
    longer = np.concatenate([unit[:3], 3 * unit[3:]])
    found = [oracle.evaluated(rotation, [q], [at]) for at in (unit, longer)]
    close(found[1], found[0])


def test_derivatives_at_rest_are_finite():
    """A step by a rotation vector has no kink at zero."""
    robot = load(MODELS["ball_chain"])
    q, v = robot.symbols()
    second = ca.hessian(ca.sum1(robot.integrate(q, v, 0.1)), v)[0]
    found = oracle.evaluated(second, [q, v], [robot.q0, np.zeros(robot.nv)])
    assert np.isfinite(found).all()
    assert np.abs(found).max() > 1e-3
