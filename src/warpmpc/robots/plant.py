"""`MuJoCoPlant`: MuJoCo as the simulated system of a closed loop.

Reads: states [q, v] and inputs of whole batches.  Produces: the states after one control interval,
by a callback on the host, in float64, with as many threads as wanted.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from warpmpc._checks import check_count, check_flag
from warpmpc._errors import ProblemError, SettingsError
from warpmpc.robots.reading import import_mujoco
from warpmpc.robots.robot import Robot, load

DIVERGED = 1e8  # no robot is that fast, that far away or that strong


@dataclass(frozen=True)
class PD:
    """Inputs are positions of the driven joints: torque = stiffness * error - damping * speed.

    Attributes:
        stiffness: Torque per error of the position, one value or one per driven joint.
        damping: Torque per speed of each joint.
    """

    stiffness: float | tuple[float, ...]
    damping: float | tuple[float, ...]

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in ("stiffness", "damping"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim > 1 or not np.all(np.isfinite(values)) or np.any(values < 0):
                raise SettingsError(
                    f"{name} must be a number that is not negative, or one per joint, got "
                    f"{getattr(self, name)!r}."
                )


@dataclass(frozen=True)
class TorqueLaw:
    """Inputs are whatever a function turns into torques, in every step of MuJoCo.

    ```python
    law = wm.robots.TorqueLaw(lambda x, u, time: u - 0.5 * x[:, robot.nq :], n_u=robot.nv)
    plant = wm.robots.MuJoCoPlant(robot, dt=0.01, substeps=20, actuation=law)
    ```

    Attributes:
        function: ``function(x, u, time)`` on the host: generalised forces ``[batch, nv]`` for
            states [q, v], the inputs ``[batch, n_u]`` and the time since they were given.  They
            are clipped to the limits of the actuators; instances must not influence each other.
        n_u: Number of inputs.
        clipped: Whether forces are clipped; False where they contain more than those of actuators,
            such as friction.
    """

    function: Callable[[np.ndarray, np.ndarray, float], np.ndarray]
    n_u: int
    clipped: bool = True

    def __post_init__(self) -> None:
        """Checks the values."""
        if not callable(self.function):
            raise SettingsError(f"function must be a function, got {self.function!r}.")
        check_count(self, "n_u", 1)
        check_flag(self, "clipped")


Actuation: TypeAlias = Literal["torque", "control"] | PD | TorqueLaw


@dataclass(frozen=True)
class _Steps:
    """How many steps one call takes, and with how many threads."""

    substeps: int
    threads: int

    def __post_init__(self) -> None:
        check_count(self, "substeps", 1)
        check_count(self, "threads", 1)


class MuJoCoPlant:
    """A robot in MuJoCo, with contacts, limits and dry friction, for `wm.rollout`.

    ```python
    plant = wm.robots.MuJoCoPlant(robot, dt=0.02, substeps=10)
    loop = wm.rollout(solver, plant, x0, 100)
    ```

    Call it as ``plant(x, u)`` with states [q, v] ``[batch, nq + nv]`` and inputs, inside of
    `jax.jit` or outside.  Inputs are limited as in the file.  It has no derivative.  States that
    are not finite, or beyond all bounds, come back as NaN, and other instances are not affected.

    Attributes:
        robot: The robot, whose coordinates the states have.
        dt: Time that one call simulates.
        driven: Names of the joints whose positions are the inputs of PD control.
    """

    def __init__(
        self,
        robot_or_file: Robot | str | Path,
        dt: float,
        substeps: int = 1,
        threads: int | None = None,
        *,
        actuation: Actuation = "torque",
    ) -> None:
        """A plant.

        Args:
            robot_or_file: A robot, or what `load` takes.
            dt: Control interval.
            substeps: Steps of MuJoCo per interval; they replace the time step of the file.
            threads: Threads for batches; None: one per core.
            actuation: What inputs are: "torque": generalised forces, one per velocity, within the
                limits of the actuators; "control": controls of the actuators of the file; a `PD`:
                positions; a `TorqueLaw`: what its function takes.
        """
        mujoco = import_mujoco()
        self.robot = robot_or_file if isinstance(robot_or_file, Robot) else load(robot_or_file)
        if not (isinstance(dt, float | int | np.floating) and np.isfinite(dt) and dt > 0):
            raise SettingsError(f"dt must be a positive number, got {dt!r}.")
        self.dt = float(dt)
        self._steps = _Steps(substeps, os.cpu_count() or 1 if threads is None else threads)
        self._actuation = _checked_actuation(actuation)
        self._model = copy.copy(self.robot.mujoco_model)
        if self._model.na:
            raise ProblemError(
                "Actuators of the robot have states of their own, which a plant with the state "
                "[q, v] cannot keep; remove their dynamics."
            )
        self._model.opt.timestep = self.dt / self._steps.substeps
        self._model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        if actuation != "control":
            self._model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
        self._data = [mujoco.MjData(self._model) for _ in range(self._steps.threads)]
        self._lock = threading.Lock()
        self._torques = self.robot.torque_limits()
        self._driven = self._find_driven()
        self.driven = [self.robot.joints[j].name for j in self._driven]
        self._gains = self._find_gains()

    @property
    def n_u(self) -> int:
        """Number of inputs."""
        if self._actuation == "torque":
            return self.robot.nv
        if isinstance(self._actuation, TorqueLaw):
            return self._actuation.n_u
        return self._model.nu if self._actuation == "control" else len(self._driven)

    def __call__(self, x: jax.Array, u: jax.Array) -> jax.Array:
        """States after one control interval.

        Args:
            x: States ``[batch, nq + nv]``.
            u: Inputs ``[batch, n_u]``, held over the interval.
        """
        n_x = self.robot.nq + self.robot.nv
        if x.ndim != 2 or x.shape[1] != n_x:
            raise ProblemError(f"x must have the shape [batch, {n_x}], got {list(x.shape)}.")
        if u.shape != (x.shape[0], self.n_u):
            raise ProblemError(f"u must have the shape [batch, {self.n_u}], got {list(u.shape)}.")
        after = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(self._simulate, after, x, u, vmap_method="sequential")

    def _simulate(self, x: Any, u: Any) -> np.ndarray:
        """One step on the host."""
        given = np.asarray(x)
        states, inputs = (np.array(values, dtype=np.float64) for values in (given, u))
        lost = ~(_is_sane(states) & _is_sane(inputs))
        states[lost], inputs[lost] = np.concatenate([self.robot.q0, np.zeros(self.robot.nv)]), 0.0
        with self._lock:  # the data of the threads serve one call at a time
            after = self._rolled_out(states, inputs)
        after[lost | ~_is_sane(after)] = np.nan
        return after.astype(given.dtype)

    def _rolled_out(self, states: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        kinds, state = import_mujoco().mjtState, self._full_states(states)
        if self._actuation == "control":
            return self._states(self._advanced(state, inputs, kinds.mjSTATE_CTRL))
        spec = kinds.mjSTATE_QFRC_APPLIED
        if self._actuation == "torque":
            return self._states(self._advanced(state, np.clip(inputs, *self._torques), spec))
        for i in range(self._steps.substeps):
            if isinstance(self._actuation, TorqueLaw):
                time = i * self.dt / self._steps.substeps
                torques = self._law_torques(self._actuation, state, inputs, time)
            else:
                torques = self._pd_torques(state, inputs)
            state = self._advanced(state, torques, spec, nstep=1)
        return self._states(state)

    def _advanced(
        self, state: np.ndarray, inputs: np.ndarray, spec: Any, nstep: int | None = None
    ) -> np.ndarray:
        """Full states of MuJoCo some steps later.

        Args:
            state: Full states.
            inputs: Held over all steps.
            spec: What they are.
            nstep: Number of steps; None: all of an interval.
        """
        run: Any = import_module("mujoco.rollout").rollout

        nstep = nstep or self._steps.substeps
        held = np.repeat(inputs[:, None], nstep, axis=1)
        data = self._data[: len(state)]
        after, _ = run(self._model, data, state, held, control_spec=int(spec), persistent_pool=True)
        return after[:, -1]

    def _full_states(self, states: np.ndarray) -> np.ndarray:
        mujoco, model = import_mujoco(), self._model
        size = mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_FULLPHYSICS))
        full = np.zeros((len(states), size))
        qpos = self.robot.to_mujoco(states[:, : self.robot.nq])
        full[:, 1 : 1 + model.nq] = qpos  # after the time
        full[:, 1 + model.nq : 1 + model.nq + model.nv] = states[:, self.robot.nq :]
        return full

    def _states(self, full: np.ndarray) -> np.ndarray:
        qpos, qvel = self._positions(full)
        return np.concatenate([self.robot.from_mujoco(qpos), qvel], axis=1)

    def _positions(self, full: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        begin, nq = 1, self._model.nq
        return full[:, begin : begin + nq], full[:, begin + nq : begin + nq + self._model.nv]

    def _law_torques(
        self, law: TorqueLaw, full: np.ndarray, inputs: np.ndarray, time: float
    ) -> np.ndarray:
        torques = np.asarray(law.function(self._states(full), inputs, time), dtype=np.float64)
        wanted = (len(full), self.robot.nv)
        if torques.shape != wanted:
            raise ProblemError(
                f"The function of TorqueLaw must return torques {list(wanted)}, one per velocity, "
                f"got the shape {list(torques.shape)}."
            )
        # Instances that are lost anyway must not stop the simulation of others.
        torques = np.where(_is_sane(torques)[:, None], torques, 0.0)
        return np.clip(torques, *self._torques) if law.clipped else torques

    def _pd_torques(self, full: np.ndarray, positions: np.ndarray) -> np.ndarray:
        qpos, qvel = self._positions(full)
        dofs = [self.robot.joints[j].v.start for j in self._driven]
        at = [int(self._model.jnt_qposadr[j]) for j in self._driven]
        stiffness, damping = self._gains
        torques = np.zeros_like(qvel)
        torques[:, dofs] = stiffness * (positions - qpos[:, at]) - damping * qvel[:, dofs]
        return np.clip(torques, *self._torques)

    def _find_driven(self) -> list[int]:
        """Hinges and slides that may have a torque."""
        lower, upper = self._torques
        return [
            j
            for j, joint in enumerate(self.robot.joints)
            if joint.kind in ("hinge", "slide") and lower[joint.v.start] < upper[joint.v.start]
        ]

    def _find_gains(self) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(self._actuation, PD):
            return np.zeros(0), np.zeros(0)
        gains = [np.asarray(g) for g in (self._actuation.stiffness, self._actuation.damping)]
        for gain in gains:
            if gain.ndim and gain.size != len(self._driven):
                raise SettingsError(
                    f"PD has {gain.size} gains, but the driven joints are {self.driven}."
                )
        return gains[0], gains[1]


def _is_sane(values: np.ndarray) -> np.ndarray:
    """Which rows are finite and not so large that a simulation has diverged."""
    return np.asarray((np.abs(values) < DIVERGED).all(axis=1))  # false for NaN


def _checked_actuation(actuation: Any) -> Actuation:
    known = isinstance(actuation, PD | TorqueLaw) or actuation in ("torque", "control")
    if not known:
        raise SettingsError(
            f'actuation must be "torque", "control", a PD or a TorqueLaw, got {actuation!r}.'
        )
    return actuation
