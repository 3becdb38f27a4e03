"""The humanoid in MuJoCo: torque law, commands, and closed loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import ProblemError, rollout, systems
from warpmpc.systems import humanoid
from warpmpc.systems.humanoid import gait, model, tables
from warpmpc.systems.humanoid.walking import Walk, random_commands, torques

pytest.importorskip("mujoco")

FORWARD = np.array([[[0.5, 0.0, 0.0, 0.61]]])


def law_inputs(rng, carries, dt=0.03):
    """Parts of the input of the law for one robot, and all of it."""
    parts = {name: rng.normal(size=36) for name in ("torque", "q", "dq")}
    parts |= {"carries": np.array(carries, dtype=float), "dt": np.array([dt])}
    return parts, np.concatenate(list(parts.values()))[None]


class TestTorqueLaw:
    @pytest.mark.parametrize("time", [0.0, 0.006, 0.03])
    def test_by_joint(self, time):
        """As the specification says, joint after joint; rates are planned ones on the ground."""
        rng = np.random.default_rng(0)
        parts, u = law_inputs(rng, carries=(1, 0))
        x = 0.1 * rng.normal(size=(1, 48))
        found = torques(x, u, time)[0]
        assert not found[:6].any()
        share = time / 0.03
        torque, q, dq = (
            (1 - share) * parts[name][:18] + share * parts[name][18:]
            for name in ("torque", "q", "dq")
        )
        error, slower = q - x[0, 6:24], dq - x[0, 30:]
        wanted = np.zeros(18)
        legs = (range(5), [0] * 5, [3, 3, 3, 1.5, 1.5]), (range(5, 10), [50] * 5, [2] * 5)
        for joints, stiffness, damping in legs:
            pull = [k * error[j] + d * slower[j]
                    for j, k, d in zip(joints, stiffness, damping, strict=True)]  # fmt: skip
            for i, j in enumerate(joints[:3]):
                wanted[j] = torque[j] + pull[i]
            knee, ankle = joints[3], joints[4]
            k, d = stiffness[4], damping[4]
            of_ankle = k * (error[knee] + error[ankle]) + d * (slower[knee] + slower[ankle])
            wanted[ankle] = torque[ankle] + of_ankle
            wanted[knee] = torque[knee] + pull[3] + k * error[knee] + d * slower[knee] + of_ankle
        for j in range(10, 18):
            wanted[j] = torque[j] + (50, 50, 25, 25)[(j - 10) % 4] * error[j] + slower[j]
        rates = x[0, 30:]
        at_voltage = tables.VOLTAGE - tables.SLOPE @ rates
        wanted = np.clip(wanted, -tables.TORQUES, np.minimum(tables.TORQUES, at_voltage))
        lost = tables.DAMPING[:10, :10] @ rates[:10]
        lost += tables.DRY_FRICTION[:10, :10] @ np.tanh(2 * rates[:10])
        wanted[:10] -= lost
        wanted[10:] -= 0.1 * rates[10:] + np.tanh(2 * rates[10:])
        np.testing.assert_allclose(found[6:], wanted, atol=1e-12)

    def test_limits(self):
        """Limits: torques of the motors at rest, and of the voltage at speed."""
        _, u = law_inputs(np.random.default_rng(1), carries=(1, 1))
        u[:, :36] = 1e4
        still, fast = np.zeros((1, 48)), np.zeros((1, 48))
        fast[0, 32] = 20.0  # the right hip pitch
        np.testing.assert_allclose(torques(still, u, 0.0)[0, 6:], tables.TORQUES)
        held = 125 - 3.20625 * 20 - (tables.DAMPING[2, 2] * 20 + tables.DRY_FRICTION[2, 2])
        assert torques(fast, u, 0.0)[0, 8] == pytest.approx(held, rel=1e-9)


class TestCommands:
    def test_draws(self):
        found = random_commands(300, 10.0)
        assert found.shape == (300, 100, 4)
        np.testing.assert_array_equal(found[:, :10], np.broadcast_to(gait.STANDING, (300, 10, 4)))
        assert np.all(found[:, 10:].std(axis=(0, 1)) > [0.5, 0.1, 0.5, 0.01])
        assert found.min(axis=(0, 1)) == pytest.approx([-1, -0.2, -1, 0.6], abs=0.02)
        assert found.max(axis=(0, 1)) == pytest.approx([1, 0.2, 1, 0.67], abs=0.02)
        changes = (np.diff(found, axis=1) != 0).any(axis=2).sum(axis=1)
        assert 3 <= changes.min() <= changes.max() <= 13

    def test_ramps(self):
        """One m/s^2 forward; the robot stands before, and the last command stays."""
        walk = Walk(FORWARD, standing=0.05)
        seen = [float(walk.command(t, 1)[0, 0]) for t in range(80)]
        wanted = np.clip(0.01 * (np.arange(80) - 4), 0, 0.5)
        np.testing.assert_allclose(seen, wanted, atol=1e-6)

    def test_robots_share_commands(self):
        walk = Walk(np.concatenate([FORWARD, -FORWARD]), standing=0.0)
        found = np.asarray(walk.command(100, 3))
        np.testing.assert_allclose(found[:, 0], [0.5, -0.5, 0.5], atol=1e-6)

    def test_gait_begins_after_standing(self):
        walk = Walk(FORWARD, standing=0.1)
        x = jnp.asarray(humanoid.sample(2), dtype="float32")
        references = jax.jit(walk.references)
        for t in (0, 9):
            assert np.asarray(references(t, x)["gamma"]).min() == 1
        begun = references(15, x)
        wanted = gait.walking(np, 0.05)
        np.testing.assert_allclose(begun["gamma"][1], wanted.gamma)
        np.testing.assert_allclose(begun["dt"][0, :, 0], wanted.dt, atol=1e-5)

    @pytest.mark.parametrize(
        ("commands", "message"),
        [
            (np.zeros((2, 4)), r"\[robots, times, 4\].* got \[2, 4\]"),
            (np.zeros((2, 0, 4)), r"\[robots, times, 4\].* got \[2, 0, 4\]"),
            (np.full((1, 1, 4), np.nan), "commands must be finite"),
        ],
    )
    def test_wrong_commands(self, commands, message):
        with pytest.raises(ProblemError, match=message):
            Walk(commands)


class TestPlant:
    def test_feet_on_the_ground(self):
        """At home the soles touch it: the robot falls by less than 2 cm before anything holds."""
        heights = [model.Motion(*home()).height(name) for name in tables.CONTACTS]
        assert np.abs(np.array([float(h) for h in heights])).max() < 0.02

    def test_held_at_home(self):
        """Joints that are held stiffly by the swing gains sag, but stay for 50 ms."""
        walk = Walk(FORWARD, threads=1)
        x = jnp.asarray(humanoid.sample(2))
        u = jnp.zeros((2, 84)).at[:, 36:].set(x[:, :48])
        simulate = jax.jit(walk.simulate)
        for t in range(5):
            x = simulate(x, u, t)
        assert x.shape == (2, 66)
        assert np.all(np.abs(np.asarray(x)[:, 2] - 0.61) < 0.03)

    def test_yaw_goes_on_beyond_a_turn(self):
        walk = Walk(FORWARD, threads=1)
        x = jnp.asarray(humanoid.sample(2)).at[:, 5].set(jnp.array([7.0, -10.0]))
        after = np.asarray(walk.simulate(x, jnp.zeros((2, 84)), 0))
        assert np.abs(after[:, 5] - [7.0, -10.0]).max() < 0.1

    def test_a_lost_robot_is_alone(self):
        """NaN in one robot changes no bit of the others."""
        walk = Walk(FORWARD, threads=1)
        x, u = jnp.asarray(humanoid.sample(3)), jnp.zeros((3, 84))
        wanted = np.asarray(walk.simulate(x, u, 0))
        found = np.asarray(walk.simulate(x.at[1, 8].set(jnp.nan), u, 0))
        assert np.isnan(found[1, :48]).all()
        np.testing.assert_array_equal(found[[0, 2]], wanted[[0, 2]])


def home():
    import casadi as ca

    return ca.SX(tables.HOME), ca.SX.zeros(24)


@pytest.mark.slow
class TestClosedLoop:
    def test_walks(self):
        """Half a second of standing, then 2 s of each command, without a fall."""
        commands = [[0, 0, 0, 0.61], [0.5, 0, 0, 0.61], [0, 0.15, 0, 0.61], [0, 0, 0.5, 0.61]]
        walk = Walk(np.array(commands)[:, None], standing=0.5)
        system = systems.make("humanoid")
        x0 = np.tile(np.append(tables.HOME, np.zeros(42)), (4, 1)).astype("float32")
        loop = rollout(system.solver(), walk.simulate, x0, 250, params=walk.references, shift=False)
        x = np.asarray(loop.x)
        assert humanoid.metrics(x, np.asarray(loop.u))["success"].all()
        moved = x[:, -1] - x[:, 110]
        assert moved[1, 0] / 1.4 == pytest.approx(0.5, abs=0.1)
        assert abs(moved[0, 0]) < 0.1
        assert moved[2, 1] > 0.1
        assert moved[3, 5] > 0.35

    def test_one_that_falls_is_alone(self):
        """A commanded fall and a NaN state change no bit of the others."""
        walk = Walk(FORWARD, standing=0.0, threads=1)
        system = systems.make("humanoid")
        solver = system.solver()
        x0 = humanoid.sample(4).astype("float32")

        def ends(x):
            loop = rollout(solver, walk.simulate, x, 20, params=walk.references, shift=False)
            return np.asarray(loop.x), np.asarray(loop.u)

        wanted = ends(x0)
        lost = x0.copy()
        lost[1, 3], lost[2, 7] = 1.2, np.nan  # thrown on its side; no number
        found = ends(lost)
        assert found[0][1, -1, 2] != wanted[0][1, -1, 2]
        assert not np.isfinite(found[0][2, -1]).all()
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a[[0, 3]], b[[0, 3]])
