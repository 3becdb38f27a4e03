"""The plant does what MuJoCo does step by step, also in batches, closed loops and trouble."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from robot_models import CART_DOUBLE_PENDULUM, MODELS, PENDULUM, arm, mjcf

import warpmpc as wm
from warpmpc.robots import PD, MuJoCoPlant, TorqueLaw, load

BALL_ON_FLOOR = mjcf(
    '<geom type="plane" size="5 5 0.1"/><body name="ball" pos="0 0 0.1"><freejoint/>'
    '<geom size="0.1" mass="1"/></body>'
)


def by_steps(robot, x, torque, dt, substeps):
    """One instance, MuJoCo called in a loop."""
    model = robot.mujoco_model.__copy__()
    model.opt.timestep = dt / substeps
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = robot.to_mujoco(x[: robot.nq]), x[robot.nq :]
    for _ in range(substeps):
        data.qfrc_applied[:] = torque(data)
        mujoco.mj_step(model, data)
    return np.concatenate([robot.from_mujoco(data.qpos), data.qvel])


def some(robot, batch, seed=0):
    rng = np.random.default_rng(seed)
    x = np.concatenate([robot.q0, np.zeros(robot.nv)]) + 0.1 * rng.normal(
        size=(batch, robot.nq + robot.nv)
    )
    for joint in robot.joints:
        if joint.kind in ("ball", "free") and robot.tree.orientation == "quaternion":
            turned = slice(joint.q.stop - 4, joint.q.stop)
            x[:, turned] /= np.linalg.norm(x[:, turned], axis=1, keepdims=True)
    return x, rng.normal(size=(batch, robot.nv))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_torques_as_in_a_loop(threads, batch):
    robot = load(arm())
    plant = MuJoCoPlant(robot, 0.02, substeps=5, threads=threads)
    x, u = some(robot, batch)
    found = np.asarray(plant(jnp.asarray(x), jnp.asarray(30 * u)))
    limited = np.clip(30 * u, *robot.torque_limits())
    wanted = [by_steps(robot, x[i], lambda _, i=i: limited[i], 0.02, 5) for i in range(batch)]
    assert np.allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("orientation", ["quaternion", "zyx"])
def test_floating_bases_in_all_coordinates(orientation):
    robot = load(MODELS["creature"], orientation=orientation)
    plant = MuJoCoPlant(robot, 0.01, substeps=2, threads=1)
    x, u = some(robot, 3)
    free = np.zeros_like(u)
    free[:, 6:] = u[:, 6:]  # the base has no motor
    found = np.asarray(plant(jnp.asarray(x), jnp.asarray(u)))
    wanted = [by_steps(robot, x[i], lambda _, i=i: free[i], 0.01, 2) for i in range(3)]
    assert np.allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_controls_go_through_the_actuators_of_the_file():
    plant = MuJoCoPlant(CART_DOUBLE_PENDULUM, 0.01, threads=1, actuation="control")
    robot = plant.robot
    x, _ = some(robot, 2)
    found = np.asarray(plant(jnp.asarray(x), jnp.array([[0.3], [7.0]])))
    forces = [np.array([20 * 0.3, 0, 0]), np.array([20 * 1.0, 0, 0])]  # gear, and the limit
    wanted = [by_steps(robot, x[i], lambda _, i=i: forces[i], 0.01, 1) for i in range(2)]
    assert np.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert plant.n_u == 1


def test_pd_control():
    gains = tuple(float(g) for g in range(10, 17)), 2.0
    plant = MuJoCoPlant(arm(), 0.02, substeps=4, threads=1, actuation=PD(*gains))
    robot = plant.robot
    x, target = some(robot, 2)
    lower, upper = robot.torque_limits()

    def torque(data, i):
        wanted = np.array(gains[0]) * (target[i] - data.qpos) - gains[1] * data.qvel
        return np.clip(wanted, lower, upper)

    found = np.asarray(plant(jnp.asarray(x), jnp.asarray(target)))
    wanted = [by_steps(robot, x[i], lambda d, i=i: torque(d, i), 0.02, 4) for i in range(2)]
    assert np.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert plant.driven == [f"joint{i}" for i in range(1, 8)]
    assert MuJoCoPlant(CART_DOUBLE_PENDULUM, 0.1, actuation=PD(1.0, 1.0)).driven == ["rail"]


@pytest.mark.parametrize("clipped", [True, False])
def test_torque_law(clipped):
    """In every step of MuJoCo, with its own inputs and the time since they were given."""
    robot = load(arm())
    law = TorqueLaw(lambda x, u, time: u * time - 3.0 * x[:, 7:], 7, clipped=clipped)
    plant = MuJoCoPlant(robot, 0.02, substeps=4, threads=1, actuation=law)
    assert plant.n_u == 7
    x, u = some(robot, 2)
    u *= 1e5
    lower, upper = robot.torque_limits()

    def torque(data, i):
        wanted = u[i] * data.time - 3.0 * data.qvel
        return np.clip(wanted, lower, upper) if clipped else wanted

    found = np.asarray(plant(jnp.asarray(x), jnp.asarray(u)))
    wanted = [by_steps(robot, x[i], lambda d, i=i: torque(d, i), 0.02, 4) for i in range(2)]
    assert np.allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_torque_law_of_lost_instances():
    """One that is lost, by its state or by its law, changes no bit of the others."""
    robot = load(arm())
    law = TorqueLaw(lambda x, u, _: np.where(u > 1, np.nan, u) - x[:, 7:], 7)
    plant = MuJoCoPlant(robot, 0.02, substeps=2, threads=1, actuation=law)
    x, _ = some(robot, 3)
    u = np.zeros((3, 7))
    wanted = np.asarray(plant(jnp.asarray(x), jnp.asarray(u)))
    u[0] = 2.0
    x[1, 3] = np.nan
    found = np.asarray(plant(jnp.asarray(x), jnp.asarray(u)))
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[2], wanted[2])


def test_contacts_hold_a_ball():
    """It would fall 5 m in a second; the floor lets it sink less than a millimetre."""
    plant = MuJoCoPlant(BALL_ON_FLOOR, 0.05, substeps=25, threads=1)
    x = jnp.asarray(np.concatenate([plant.robot.q0, np.zeros(6)]))[None]
    for _ in range(20):
        x = plant(x, jnp.zeros((1, 6)))
    assert abs(float(x[0, 2]) - 0.1) < 1e-3


def test_instances_that_are_lost_stay_alone():
    robot = load(arm())
    plant = MuJoCoPlant(robot, 0.02, threads=2)
    x, u = some(robot, 4)
    alone = np.asarray(plant(jnp.asarray(x), jnp.asarray(u)))
    x[1, 3], u[2, 0] = np.nan, np.inf
    found = np.asarray(plant(jnp.asarray(x), jnp.asarray(u)))
    assert np.isnan(found[1:3]).all()
    assert np.array_equal(found[[0, 3]], alone[[0, 3]])


def test_keeps_the_dtype_and_works_in_programs():
    plant = MuJoCoPlant(PENDULUM, 0.02, substeps=2, threads=1)
    x, u = jnp.full((3, 2), 0.1, "float32"), jnp.zeros((3, 1), "float32")
    compiled = jax.jit(plant)(x, u)
    assert compiled.dtype == jnp.float32
    assert np.array_equal(compiled, plant(x, u))

    def step(x, _):
        return plant(x, u), None

    end, _ = jax.lax.scan(step, x, None, length=3)
    for _ in range(3):
        x = plant(x, u)
    assert np.array_equal(end, x)


def test_closed_loop():
    """A pendulum under a torque limit is held at its target."""
    robot = load(PENDULUM.replace("</worldbody>", "</worldbody><actuator><motor joint='swing' "
                                  "ctrlrange='-4 4'/></actuator>"))  # fmt: skip
    (q, v), tau = robot.symbols(), robot.symbols()[1]
    ocp = wm.OCP({"q": q, "v": v}, {"tau": tau}, horizon=10, dt=0.05)
    ocp.set_dynamics(robot.xdot(q, v, tau), integrator="rk4")
    ocp.add_residual(wm.problem.expressions.column([q - 0.5, 0.1 * v], "r"), weight=10.0, at="all")
    ocp.add_residual(tau - robot.bias(q, v), weight=0.01)
    robot.limits(ocp)
    settings = wm.SQPSettings(mode="fixed", max_iter=2, qp=wm.ADMMSettings())
    solver = wm.MPCSolver(ocp, settings, dtype="float64")
    plant = MuJoCoPlant(robot, 0.05, substeps=5, threads=1)
    loop = wm.rollout(solver, plant, jnp.zeros((2, 2)), 40)
    assert np.abs(np.asarray(loop.x[:, -1]) - [0.5, 0.0]).max() < 0.02


ERRORS = {
    "dt": ({"dt": 0.0}, wm.SettingsError, "dt must be a positive number, got 0.0"),
    "substeps": ({"substeps": 0}, wm.SettingsError, "substeps must be an integer, at least 1"),
    "threads": ({"threads": 1.5}, wm.SettingsError, "threads must be an integer, at least 1"),
    "actuation": ({"actuation": "pd"}, wm.SettingsError, 'actuation must be "torque", "control"'),
    "gains": (
        {"actuation": PD((1.0, 2.0), 1.0)},
        wm.SettingsError,
        r"PD has 2 gains, but the driven joints are \['swing'\]",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_wrong_settings(name):
    given, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        MuJoCoPlant(PENDULUM, **{"dt": 0.1, **given})


@pytest.mark.parametrize("gain", [-1.0, float("nan"), ((1.0,), (2.0,))])
def test_wrong_gains(gain):
    with pytest.raises(wm.SettingsError, match="stiffness must be a number that is not negative"):
        PD(gain, 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"function": 3, "n_u": 1}, "function must be a function, got 3"),
        ({"function": abs, "n_u": 0}, "n_u must be an integer, at least 1"),
        ({"function": abs, "n_u": 1, "clipped": 1}, "clipped must be True or False"),
    ],
)
def test_wrong_torque_laws(given, message):
    with pytest.raises(wm.SettingsError, match=message):
        TorqueLaw(**given)


def test_torque_law_of_the_wrong_shape():
    plant = MuJoCoPlant(PENDULUM, 0.1, actuation=TorqueLaw(lambda x, u, _: u[:, 0], 1))
    with pytest.raises(Exception, match=r"must return torques \[1, 1\], one per velocity"):
        plant(jnp.zeros((1, 2)), jnp.zeros((1, 1)))


def test_actuators_with_states_are_refused():
    text = '<actuator><general name="slow" joint="swing" dyntype="filter"/></actuator></mujoco>'
    with (
        pytest.warns(wm.robots.RobotWarning, match="'slow'"),
        pytest.raises(wm.ProblemError, match="states of their own"),
    ):
        MuJoCoPlant(PENDULUM.replace("</mujoco>", text), 0.1)


def test_wrong_shapes():
    plant = MuJoCoPlant(PENDULUM, 0.1)
    with pytest.raises(wm.ProblemError, match=r"x must have the shape \[batch, 2\], got \[2\]"):
        plant(jnp.zeros(2), jnp.zeros(1))
    with pytest.raises(wm.ProblemError, match=r"u must have the shape \[batch, 1\], got \[1, 2\]"):
        plant(jnp.zeros((1, 2)), jnp.zeros((1, 2)))
