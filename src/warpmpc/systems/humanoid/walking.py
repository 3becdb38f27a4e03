"""The humanoid in MuJoCo: hard contacts, steps of 0.5 ms, and the torque law between two solves.

Produces: `Walk`, whose `simulate` and `references` are what `rollout` wants.  A robot gets the
torques of nodes 0 and 1 of a solve and the state of node 1, every 10 ms.  In between, legs in the
air and arms follow the planned positions; a leg on the ground follows planned rates only, since its
position is given by the ground.  Torques are clipped to the limits of motors and voltage.  Then the
friction of the real joints, of which the MPC knows that of the legs, is taken away.

Two things differ from the published loop.  Its law damps a leg on the ground towards rest, this one
towards the planned rates.  And its commands jump, by up to 2 m/s; here a ramp follows them.  The
page docs/humanoid.md has what robots did before and after these changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.robots.plant import MuJoCoPlant, TorqueLaw
from warpmpc.systems.humanoid import gait, model, tables
from warpmpc.systems.humanoid.tables import LEG_JOINTS, N_JOINTS, N_Q, N_X

CONTROL_DT, SUBSTEPS = 0.01, 20
STANDING_TIME = 2.0
# Gains of the legs in the air, of those on the ground (hips and knee, ankle), and of the arms.
_SWING_STIFFNESS, _SWING_DAMPING = np.full(5, 50.0), np.full(5, 2.0)
_STANCE_STIFFNESS, _STANCE_DAMPING = np.zeros(5), np.array([3, 3, 3, 1.5, 1.5])
_ARM_STIFFNESS, _ARM_DAMPING = np.array([50.0, 50, 25, 25] * 2), np.full(8, 1.0)
_DAMPING, _DRY_FRICTION = tables.DAMPING.copy(), tables.DRY_FRICTION.copy()
_ARMS = range(LEG_JOINTS, N_JOINTS)
_DAMPING[_ARMS, _ARMS], _DRY_FRICTION[_ARMS, _ARMS] = tables.ARM_DAMPING, tables.ARM_DRY_FRICTION
# How fast the followed command may change: [m/s^2], [rad/s^2], [m/s].
_RAMPS = np.array([1.0, 0.5, 2.0, 0.1])
_LEAST, _LARGEST = (-1.0, -0.2, -1.0, 0.5), (1.0, 0.2, 1.0, 0.7)  # random commands
# What the law gets: torques at both ends of an interval, positions and rates there, whether each
# foot carries, and the time of the interval.
_PARTS = {"torque": 2 * N_JOINTS, "q": 2 * N_JOINTS, "dq": 2 * N_JOINTS, "carries": 2, "dt": 1}
N_LAW = sum(_PARTS.values())


@dataclass(frozen=True, eq=False)
class Walk:
    """Robots that stand and then walk as commanded.

    A command is followed by a ramp: a robot at full speed cannot turn round within a step, and the
    published commands jump by up to 2 m/s.

    Attributes:
        commands: Speeds and heights over time, ``[robots, times, 4]``; the last one stays, and more
            robots than that begin with the first ones again.
        every: Time between two commands [s].
        standing: Time before the first step [s].
        threads: Threads of MuJoCo; None: one per core.
        nodes: Number of nodes of the problem.
    """

    commands: np.ndarray
    every: float = 1.0
    standing: float = STANDING_TIME
    threads: int | None = None
    nodes: int = gait.NODES
    _table: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Checks the commands."""
        commands = np.asarray(self.commands, dtype=np.float64)
        if commands.ndim != 3 or commands.shape[2] != gait.N_COMMAND or not commands.size:
            raise ProblemError(
                f"commands needs the shape [robots, times, {gait.N_COMMAND}]: forward and sideways "
                f"speed, rate of yaw, height; got {list(commands.shape)}."
            )
        if not np.isfinite(commands).all():
            raise ProblemError("commands must be finite.")
        object.__setattr__(self, "_table", _ramped(commands, self.every))

    @cached_property
    def plant(self) -> MuJoCoPlant:
        """The robots in MuJoCo."""
        law = TorqueLaw(torques, N_LAW, clipped=False)
        return MuJoCoPlant(model.robot(), CONTROL_DT, SUBSTEPS, threads=self.threads, actuation=law)

    @property
    def _first(self) -> int:
        """Step in which the gait begins."""
        return round(self.standing / CONTROL_DT)

    def command(self, t: jax.Array, batch: int) -> jax.Array:
        """Commands in step t, ``[batch, 4]``."""
        # Row 0 is the command while the robots stand.
        number = jnp.clip(t - self._first + 1, 0, self._table.shape[1] - 1)
        robots = np.arange(batch) % self._table.shape[0]
        return jnp.asarray(self._table[robots])[:, number]

    def gait(self, t: jax.Array, dtype: jax.typing.DTypeLike) -> gait.Gait:
        """What the feet do from step t on."""
        time = CONTROL_DT * jnp.asarray(t - self._first).astype(dtype)
        walks = gait.walking(jnp, jnp.maximum(time, 0), self.nodes)
        stands = gait.standing(jnp, time, self.nodes)
        pairs = zip(vars(walks).values(), vars(stands).values(), strict=True)
        return gait.Gait(*(jnp.where(t < self._first, stand, walk) for walk, stand in pairs))

    def references(self, t: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
        """Parameters of the solve in step t."""
        return gait.references(jnp, x, self.gait(t, x.dtype), self.command(t, len(x)))

    def simulate(self, x: jax.Array, u: jax.Array, t: jax.Array) -> jax.Array:
        """States 10 ms later; x is [q, dq, torques], u that of the problem."""
        now = self.gait(t, x.dtype)
        joints, rates = slice(6, N_Q), slice(N_Q + 6, N_X)
        torque, planned = u[:, : 2 * N_JOINTS], u[:, 2 * N_JOINTS :]
        carries = jnp.broadcast_to(now.gamma[0, :2], (len(x), 2))
        dt = jnp.broadcast_to(now.dt[:1], (len(x), 1))
        given = (torque, x[:, joints], planned[:, joints], x[:, rates], planned[:, rates])
        law = jnp.concatenate([*given, carries, dt], axis=1).astype(x.dtype)
        after = model.from_robot(jnp, self.plant(model.to_robot(jnp, x[:, :N_X]), law))
        # MuJoCo knows yaw up to a turn; the plan goes on from where it was.
        turns = jnp.round((x[:, 5] - after[:, 5]) / (2 * jnp.pi))
        after = after.at[:, 5].add(2 * jnp.pi * turns)
        return jnp.concatenate([after, u[:, :N_JOINTS]], axis=1)


def _ramped(commands: np.ndarray, every: float) -> np.ndarray:
    """Commands in every control step ``[robots, steps + 1, 4]``; the first row is that at rest."""
    steps = max(1, round(every / CONTROL_DT))
    wanted = np.repeat(commands, steps, axis=1)
    found, most = [np.broadcast_to(gait.STANDING, wanted[:, 0].shape)], CONTROL_DT * _RAMPS
    tail = int(np.ceil(np.ptp([_LEAST, _LARGEST], axis=0) / most).max())
    for k in range(wanted.shape[1] + tail):
        target = wanted[:, min(k, wanted.shape[1] - 1)]
        found.append(found[-1] + np.clip(target - found[-1], -most, most))
    return np.stack(found, axis=1).astype(np.float32)


def random_commands(batch: int, duration: float, seed: int = 0, every: float = 0.1) -> np.ndarray:
    """Commands ``[batch, times, 4]`` that change now and then, as published.

    From a walking time of 1 s on, each robot draws new ones after 0.7 s to 3 s: forward and
    sideways speed, rate of yaw and height between -1 and 1, -0.2 and 0.2, -1 and 1, 0.5 and 0.7;
    heights are clipped to those that are allowed.

    Args:
        batch: Number of robots.
        duration: Time of walking [s].
        seed: Seed of the draws.
        every: Time between two rows [s].
    """
    rng = np.random.default_rng(seed)
    times = every * np.arange(max(1, int(np.ceil(duration / every))))
    commands = np.tile(gait.STANDING, (batch, times.size, 1))
    lower, upper = np.array(_LEAST), np.array(_LARGEST)
    for own in commands:
        begin = 1.0
        while begin < duration:
            own[times >= begin] = rng.uniform(lower, upper)
            begin += rng.uniform(0.7, 3.0)
    return np.clip(commands, gait.COMMAND_LOWER, gait.COMMAND_UPPER)


def torques(x: np.ndarray, u: np.ndarray, time: float) -> np.ndarray:
    """Generalised forces for states of `robots`; see the module.

    Args:
        x: States ``[batch, 48]``; joints stand behind the base, as in the MPC.
        u: Parts as in `_PARTS`.
        time: Since the solve.
    """
    torque, q, dq, carries, dt = np.split(u, np.cumsum([*_PARTS.values()])[:-1], axis=1)
    share = np.clip(time / np.maximum(dt, 1e-3), 0, 1)
    feed, q_plan, dq_plan = (_between(part, share) for part in (torque, q, dq))
    q_now, dq_now = x[:, 6:N_Q], x[:, N_Q + 6 :]
    stiffness, damping = _gains(carries > 0.5)
    error, rate_error = q_plan - q_now, dq_plan - dq_now
    applied = feed + stiffness * error + damping * rate_error
    for knee, ankle in ((3, 4), (8, 9)):
        # The motor of the ankle sits at the knee: it holds the sum of both angles, and the motor
        # of the knee must not notice it.
        shared = stiffness[:, ankle] * (error[:, knee] + error[:, ankle])
        shared += damping[:, ankle] * (rate_error[:, knee] + rate_error[:, ankle])
        applied[:, ankle] = feed[:, ankle] + shared
        applied[:, knee] += shared + stiffness[:, ankle] * error[:, knee]
        applied[:, knee] += damping[:, ankle] * rate_error[:, knee]
    taken = dq_now @ tables.SLOPE.T
    lower = np.maximum(-tables.TORQUES, -tables.VOLTAGE - taken)
    upper = np.minimum(tables.TORQUES, tables.VOLTAGE - taken)
    applied = np.clip(applied, lower, np.maximum(lower, upper))
    dry = np.tanh(tables.FRICTION_SLOPE * dq_now) @ _DRY_FRICTION.T
    joints = applied - dq_now @ _DAMPING.T - dry
    return np.concatenate([np.zeros((len(x), 6)), joints], axis=1)


def _between(pair: np.ndarray, share: np.ndarray) -> np.ndarray:
    first, second = np.split(pair, 2, axis=1)
    return first + share * (second - first)


def _gains(carries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stiffness and damping of all joints; `carries` of the right and the left foot."""
    batch = len(carries)
    found = []
    for swing, stance, arms in (
        (_SWING_STIFFNESS, _STANCE_STIFFNESS, _ARM_STIFFNESS),
        (_SWING_DAMPING, _STANCE_DAMPING, _ARM_DAMPING),
    ):
        legs = [np.where(carries[:, [side]], stance[None], swing[None]) for side in (0, 1)]
        found.append(np.concatenate([*legs, np.tile(arms, (batch, 1))], axis=1))
    return found[0], found[1]
