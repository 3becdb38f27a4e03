"""The policy as firmware: the Crazyflie app is checked part by part, and drives closed loops."""

import json
import math
import subprocess
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import learn_cases
import numpy as np
import pytest
from learn_policies import needs_compiler, needs_cortex, random_policy
from scipy.spatial.transform import Rotation

from warpmpc import ProblemError
from warpmpc.cli.main import main
from warpmpc.learn import DataError, Firmware, Policy, evaluate_firmware, write_firmware
from warpmpc.learn.export.cortex_m4 import CortexFunction
from warpmpc.learn.export.host import HostPolicy, host_compiler
from warpmpc.learn.firmware.crazyflie import RATE, THRUST, TORQUES, crazyflie_app
from warpmpc.learn.firmware.loop import ACT, CORTEX, HOST, PYTHON, simulate
from warpmpc.learn.tasks import limited_motors, quadrotor_plant
from warpmpc.systems import quadrotor

UNITS = np.array(quadrotor.MOMENTS)
WEIGHT = quadrotor.PHYSICS["mass"] * quadrotor.PHYSICS["gravity"]


@pytest.fixture(scope="module")
def flying():
    """A policy as large as that of a quadrotor, whose outputs move around hover."""
    unit = np.ones(4, np.float32)
    policy = random_policy(seed=3)
    x_std = np.array([0.5] * 3 + [0.3] * 3 + [1.0] * 3 + [3.0] * 3, dtype=np.float32)
    zero = np.zeros(12, np.float32)
    return replace(
        policy,
        x_mean=zero,
        x_std=x_std,
        x_low=-4 * x_std,
        x_high=4 * x_std,
        u_mean=0 * unit,
        u_std=np.array([0.5, 0.5, 1.0, 0.1], dtype=np.float32),
        safe=0 * unit,
    )


@pytest.fixture(scope="module")
def app(flying, tmp_path_factory):
    folder = tmp_path_factory.mktemp("app")
    for name, content in crazyflie_app(flying).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.fixture(scope="module")
def sources(app):
    return [app / "src" / "controller_warpmpc.c", app / "src" / "policy.c", app / "host" / "act.c"]


def states(count, seed=0):
    x = 0.4 * np.random.default_rng(seed).normal(size=(count, 12)).clip(-3, 3)
    x[:, 9:] *= 10
    return x.astype(np.float32)


@needs_compiler
def test_controller_is_the_policy_behind_errors_and_limits(app, sources, flying, tmp_path):
    """In `act` the set-point is elsewhere and turned; what comes back must not show it."""
    act = HostPolicy(sources, tmp_path, (12, 4), ACT)
    x = states(2000)
    np.testing.assert_allclose(act(x), limited_motors(flying(x)), atol=2e-3)
    moved = np.abs(np.asarray(flying(x)) - np.asarray(limited_motors(flying(x)))).max(axis=0)
    assert (moved > 0.05).all()  # all limits were met


PROBE = """\
#include "controller.h"
void probe(const float x[13], float u[5]);
/* Position, velocity, quaternion and gyroscope as the firmware has them; motors off if x[12]. */
void probe(const float x[13], float u[5]) {
  control_t control = {{0}, controlModeLegacy};
  setpoint_t setpoint = {0};
  state_t state = {0};
  sensorData_t sensors = {0};
  setpoint.mode.z = x[12] > 0.0f ? modeDisable : modeAbs;
  state.attitudeQuaternion = (quaternion_t){x[0], x[1], x[2], x[3]};
  state.position = (point_t){x[4], x[5], x[6]};
  state.velocity = (velocity_t){x[7], x[8], 0.0f};
  sensors.gyro = (Axis3f){x[9], x[10], x[11]};
  controllerOutOfTree(&control, &setpoint, &sensors, &state, 0);
  for (int i = 0; i < 4; ++i) u[i] = control.normalizedForces[i];
  u[4] = (float)control.controlMode;
}
"""


@needs_compiler
def test_attitude_and_motors_by_scipy(app, sources, flying, tmp_path):
    """Quaternions of any length become ZYX angles; forces are those of the motors of the model."""
    (tmp_path / "probe.c").write_text(PROBE)
    probe = HostPolicy([*sources[:2], tmp_path / "probe.c", sources[2]], tmp_path, (13, 5), "probe")
    rotation = Rotation.random(500, random_state=1)
    rng = np.random.default_rng(2)
    given = np.zeros((500, 13), dtype=np.float32)
    given[:, :4] = rotation.as_quat() * rng.uniform(0.5, 2, (500, 1))
    given[:, 4:9] = rng.normal(size=(500, 5)) * 0.3
    given[:, 9:12] = rng.normal(size=(500, 3)) * 100
    yaw, pitch, roll = rotation.as_euler("ZYX").T
    x = np.zeros((500, 12))
    x[:, :3], x[:, 3:6] = given[:, 4:7], np.stack([roll, pitch, yaw], axis=1)
    x[:, 6:8], x[:, 9:] = given[:, 7:9], np.radians(given[:, 9:12])
    u = np.asarray(flying(x), dtype=np.float64)
    u[:, :3] = np.clip(u[:, :3] * UNITS, -np.array(TORQUES), TORQUES) / UNITS
    u[:, 3] = np.clip(u[:, 3] + WEIGHT, 0, THRUST) - WEIGHT
    forces = quadrotor.motors(np, u.T, tuple(quadrotor.PHYSICS.values()))
    wanted = np.clip(np.stack(forces, axis=1) / quadrotor.MOTOR_LIMIT, 0, 1)
    found = probe(given)
    smooth = np.abs(pitch) < 1.4  # close to 90 degrees roll and yaw are not determined
    np.testing.assert_allclose(found[smooth, :4], wanted[smooth], atol=2e-3)
    assert (found[:, 4] == 2).all()  # controlModeForce
    given[:, 12] = 1
    np.testing.assert_array_equal(probe(given)[:, :4], 0)
    given[:, 12], given[:, 9] = 0, np.nan
    np.testing.assert_allclose(probe(given)[:, :4], WEIGHT / 4 / quadrotor.MOTOR_LIMIT, rtol=1e-5)


@needs_compiler
def test_app_compiles_without_warnings_and_is_complete(app, sources, flying):
    command = [host_compiler(), "-std=c11", "-Wall", "-Wextra", "-Wdouble-promotion", "-Werror"]
    command += ["-fsyntax-only", f"-I{app / 'host'}", f"-I{app / 'src'}", str(sources[0])]
    subprocess.run(command, check=True)
    readme = (app / "README.md").read_text()
    assert flying.fingerprint in readme
    for name in ("Makefile", "Kbuild", "app-config", "src/Kbuild"):
        assert (app / name).stat().st_size > 0


@needs_cortex
def test_app_on_the_emulated_controller_in_closed_loop(sources, flying, tmp_path):
    plant = partial(quadrotor_plant, dt=1 / RATE)
    with CortexFunction(sources, tmp_path / "cortex", (12, 4), ACT) as act:
        x, u = simulate(plant, act, states(1, seed=4), 20)
    host = HostPolicy(sources, tmp_path / "host", (12, 4), ACT)
    expected = np.stack([host(x[:, k]) for k in range(20)], axis=1)
    np.testing.assert_allclose(u, expected, atol=1e-3)
    assert np.ptp(u, axis=1).max() > 0.01


@needs_cortex
def test_an_emulator_that_ends_is_said(tmp_path):
    source = tmp_path / "act.c"
    source.write_text("#include <stdlib.h>\nvoid act(const float *x, float *u) { exit(3); }\n")
    with (
        CortexFunction([source], tmp_path, (1, 1), ACT) as act,
        pytest.raises(DataError, match="gave no answer"),
    ):
        act(np.zeros((1, 1)))


@needs_compiler
def test_loop_at_another_rate_reaches_what_python_reaches(policy, tmp_path):
    def faster(x, u):
        half = learn_cases.DT / 2
        u = jnp.clip(u, -learn_cases.LIMIT, learn_cases.LIMIT)
        return x + half * jnp.concatenate([x[:, 1:] + half / 2 * u, u], axis=1)

    task = learn_cases.task(firmware=Firmware(rate=2 / learn_cases.DT, plant=faster))
    found = evaluate_firmware(task, policy, tmp_path, starts=40, emulated_steps=5)
    assert found.rate == pytest.approx(20)
    assert found.row(HOST).steps == found.row(PYTHON).steps == 50
    assert found.row(HOST).success == found.row(PYTHON).success > 0.9
    assert found.row(HOST).cost_ratio == pytest.approx(1, abs=1e-3)
    assert found.row(HOST).difference < 1e-5
    cortex = found.row(CORTEX)
    assert cortex.difference < 1e-5 if cortex.starts else "not installed" in cortex.note
    assert "success 1" in found.table() or "success 9" in found.table()
    assert json.loads(json.dumps(found.to_json()))["rows"][0]["where"] == PYTHON


def test_missing_tools_are_said(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = evaluate_firmware(learn_cases.task(), policy, tmp_path, starts=2)
    assert found.row(HOST).starts == 0
    assert math.isnan(found.row(HOST).success)
    assert "not run: no C compiler" in found.table()


def test_a_policy_of_another_task_is_refused(tmp_path):
    with pytest.raises(ProblemError, match="The policy has 12 states and 4 inputs"):
        evaluate_firmware(learn_cases.task(), random_policy(), tmp_path)


@needs_compiler
def test_command(policy, tmp_path, capsys):
    policy.save(tmp_path / "policy.npz")
    arguments = ["learn", "evaluate", "learn_cases:task", "--out", str(tmp_path)]
    assert main([*arguments, "--firmware", "--starts", "20"]) == 0
    text = capsys.readouterr().out
    assert "controller at 10 Hz in closed loop" in text
    assert f"{HOST} 20 starts, 25 steps" in text
    assert (tmp_path / "app" / "policy.c").exists()
    assert json.loads((tmp_path / "firmware.json").read_text())["rate"] == 10.0
    assert Policy.load(tmp_path / "policy.npz").fingerprint == policy.fingerprint


def test_write_firmware_returns_its_c_files(policy, tmp_path):
    found = write_firmware(learn_cases.task(), policy, tmp_path)
    assert [path.name for path in found] == ["policy.c", "act.c"]
