"""MuJoCo as the oracle of the robots: the same quantities, computed by its own functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import casadi as ca
import mujoco
import numpy as np

STATES = 4


@dataclass(frozen=True)
class State:
    """One random state, in MuJoCo's coordinates."""

    qpos: np.ndarray
    v: np.ndarray
    a: np.ndarray
    tau: np.ndarray


def without_constraints(model: Any) -> Any:
    """A copy of a model where nothing touches, no limit acts and no joint is dry."""
    model = model.__copy__()
    for name in ("CONTACT", "LIMIT", "FRICTIONLOSS", "ACTUATION"):
        model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{name}"))
    model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    return model


def random_states(model: Any, seed: int = 0) -> list[State]:
    rng = np.random.default_rng(seed)
    states = []
    for _ in range(STATES):
        qpos = np.array(model.qpos0)
        mujoco.mj_integratePos(model, qpos, rng.normal(size=model.nv), 0.9)
        states.append(State(qpos, *rng.normal(size=(3, model.nv))))
    return states


def data_at(model: Any, state: State) -> Any:
    """Everything that depends on coordinates and velocities."""
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = state.qpos, state.v
    data.qfrc_applied[:] = state.tau
    mujoco.mj_forward(model, data)
    return data


def inverse(model: Any, state: State) -> np.ndarray:
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:], data.qacc[:] = state.qpos, state.v, state.a
    mujoco.mj_inverse(model, data)
    return np.array(data.qfrc_inverse)


def full_mass_matrix(model: Any, data: Any) -> np.ndarray:
    mass = np.zeros((model.nv, model.nv))
    if int(mujoco.__version__.split(".")[0]) >= 4:
        mujoco.mj_fullM(model, data, mass)
    else:
        mujoco.mj_fullM(model, mass, data.qM)
    return mass


def evaluated(expression: ca.SX, symbols: list[ca.SX], values: list[np.ndarray]) -> np.ndarray:
    """Values of an expression; columns lose their second axis."""
    function = ca.Function("f", symbols, [ca.densify(expression)])
    result = np.array(function(*values))
    return result[:, 0] if result.shape[1] == 1 else result
