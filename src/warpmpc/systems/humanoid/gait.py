"""Gait, references and parameters of the humanoid for commands, as functions of the time.

Produces: `Gait` of batches of times, and `references`, all parameters of a solve by name.  The
functions take NumPy or JAX arrays with any leading axes (`ops` is numpy or jax.numpy), so that
closed loops run on the device and tests on the host.

A cycle is: both feet on the ground, the right one in the air, both, the left one in the air.  The
grid of nodes is adapted so that nodes lie on the times when a foot leaves or lands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from warpmpc.systems.humanoid import tables

NODES, DT = 28, 0.03
PERIOD, SWITCHES = 0.7, (0.01, 0.35, 0.36, 0.70)
DEADBAND = 0.007  # switches nearer than this count as passed [s]
SWING, LIFT = 0.34, 0.05  # duration [s] and height [m] of a step
SWING_BEGINS = (0.01, 0.36)  # the right foot, then the left one
FIRST_STEP = 0.002  # by which references of node 0 are ahead of the measured state [s]
# Commands: forward and sideways speed [m/s], rate of yaw [rad/s], height of the base [m].
N_COMMAND = 4
STANDING = np.array([0.0, 0.0, 0.0, 0.61])
COMMAND_LOWER, COMMAND_UPPER = (-1.0, -0.2, -1.0, 0.60), (1.0, 0.2, 1.0, 0.67)


@dataclass(frozen=True, eq=False)
class Gait:
    """Times of the nodes and what the feet do there; contacts are in the order of `CONTACTS`.

    Attributes:
        dt: Length of the interval behind each node, ``[..., nodes]``.
        gamma: 1 where a contact carries, else 0, ``[..., nodes, 4]``.
        height: Height of each contact above the ground, likewise.
    """

    dt: Any
    gamma: Any
    height: Any


def walking(ops: Any, time: Any, nodes: int = NODES) -> Gait:
    """The gait from a time on.

    Args:
        ops: The module numpy or jax.numpy.
        time: Time since the first cycle began, ``[...]``.
        nodes: Number of nodes.
    """
    now, steps, times = ops.asarray(time), [], []
    two_cycles = [at + cycle for cycle in (0, PERIOD) for at in SWITCHES]
    switches = ops.asarray(two_cycles, dtype=now.dtype).reshape((1,) * now.ndim + (-1,))
    for _ in range(nodes - 1):
        times.append(now)
        ahead = switches - (now % PERIOD)[..., None]
        until = ops.where(ahead > DEADBAND, ahead, PERIOD).min(axis=-1)
        lands = (until > DEADBAND) & (until < DT - DEADBAND)
        steps.append(ops.where(lands, until, DT))
        now = now + steps[-1]
    steps.append(ops.full_like(now, DT))
    times.append(now)
    gamma, height = _feet(ops, ops.stack(times, axis=-1))
    return Gait(ops.stack(steps, axis=-1), gamma, height)


def standing(ops: Any, time: Any, nodes: int = NODES) -> Gait:
    """Both feet on the ground; of `time` only the shape matters."""
    ones = ops.ones((*ops.asarray(time).shape, nodes), dtype=ops.asarray(time).dtype)
    feet = ops.stack([ones] * 4, axis=-1)
    return Gait(DT * ones, feet, 0.0 * feet)


def _feet(ops: Any, times: Any) -> tuple[Any, Any]:
    phase = (times + DEADBAND) % PERIOD
    flags, lifts = [], []
    for begin in SWING_BEGINS:
        s = (phase - begin) / SWING
        swings = (s >= 0) & (s < 1)
        flags.append(ops.where(swings, 0.0, 1.0).astype(times.dtype))
        lifts.append(ops.where(swings, LIFT * 16 * (s * (1 - s)) ** 2, 0.0))
    return tuple(ops.stack(feet * 2, axis=-1) for feet in (flags, lifts))


def references(ops: Any, x: Any, gait: Gait, command: Any = STANDING) -> dict[str, Any]:
    """The parameters of a solve that change with time, by name.

    Args:
        ops: The module numpy or jax.numpy.
        x: Measured states, of which q comes first, ``[..., 24 or more]``.
        gait: What the feet do.
        command: Speeds and height, within `COMMAND_LOWER` and `COMMAND_UPPER`; clipped.
    """
    command = ops.broadcast_to(ops.asarray(command, dtype=x.dtype), (*x.shape[:-1], N_COMMAND))
    forward, sideways, turn, height = (
        ops.clip(command[..., i, None], COMMAND_LOWER[i], COMMAND_UPPER[i])
        for i in range(N_COMMAND)
    )
    dt = ops.broadcast_to(gait.dt, (*x.shape[:-1], gait.dt.shape[-1])).astype(x.dtype)
    steps = ops.concatenate([ops.full_like(dt[..., :1], FIRST_STEP), dt[..., :-1]], axis=-1)
    yaw = x[..., 5, None] + ops.cumsum(turn * steps, axis=-1)
    ahead, beside = ops.cos(yaw), ops.sin(yaw)
    place_x = x[..., 0, None] + ops.cumsum((ahead * forward - beside * sideways) * steps, axis=-1)
    place_y = x[..., 1, None] + ops.cumsum((beside * forward + ahead * sideways) * steps, axis=-1)
    ones = ops.ones_like(dt)
    zeros = 0 * ones
    q = [place_x, place_y, height * ones, zeros, zeros, yaw]
    q += [float(joint) * ones for joint in tables.HOME[6:]]
    dq = [zeros, zeros, turn * ones, forward * ones, sideways * ones]
    dq += [zeros] * (tables.N_Q - len(dq))
    gamma, lift = (
        ops.broadcast_to(part, (*dt.shape, 4)).astype(x.dtype) for part in (gait.gamma, gait.height)
    )
    return {
        "gamma": gamma,
        "height": lift,
        "q_ref": ops.stack(q, axis=-1),
        "dq_ref": ops.stack(dq, axis=-1),
        "force_ref": _forces(ops, gamma[..., :-1, :]),
        "dt": dt[..., None],
    }


def _forces(ops: Any, gamma: Any) -> Any:
    """References of the contact forces: twice the weight on two feet."""
    nothing = 0 * gamma[..., :1]
    columns = [
        part
        for c in range(4)
        for part in (nothing, nothing, tables.STANCE_FORCE * gamma[..., c, None])
    ]
    return ops.concatenate(columns, axis=-1)


def guess_forces(nodes: int = NODES) -> np.ndarray:
    """Forces of the initial guess ``[nodes - 1, 12]``, from an older gait with a phase.

    At nodes 4, 14 and 24 the phase is that of a switch up to rounding.  As published, the right
    foot has left the ground at node 14 and the left one at node 24.
    """
    forces = np.zeros((nodes - 1, tables.N_FORCE))
    for k in range(nodes - 1):
        for contact in range(4):
            is_left = contact % 2 == 1
            phase = (DT * k / 0.6 + 0.5 * is_left) % 1
            left_ground = k == (24 if is_left else 14)
            if phase <= 0.7 and not left_ground:
                forces[k, 3 * contact + 2] = tables.STANCE_FORCE
    return forces
