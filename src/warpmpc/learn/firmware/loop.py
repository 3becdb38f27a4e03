"""`evaluate_firmware`: the exported C in closed loop, at the rate of the robot's firmware.

Reads: a task and a policy.  Produces: one row per place where the controller ran: the policy in
Python, the C of the robot on this machine, and, for one short loop, on an emulated Cortex-M4F.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.learn.evaluation import judge
from warpmpc.learn.export.c_source import float_source, header
from warpmpc.learn.export.cortex_m4 import CortexFunction, missing_tools
from warpmpc.learn.export.export import output_range
from warpmpc.learn.export.host import HostPolicy, host_compiler
from warpmpc.learn.files import write_bytes
from warpmpc.learn.policy import Policy
from warpmpc.learn.task import Firmware, Task

ACT = "act"
PYTHON, HOST, CORTEX = "Python", "C, this machine", "C, Cortex-M4F"
Act = Callable[[np.ndarray], np.ndarray]

PLAIN = """\
#include "policy.h"
void act(const float x[POLICY_NX], float u[POLICY_NU]);

void act(const float x[POLICY_NX], float u[POLICY_NU]) { policy(x, u); }
"""


@dataclass(frozen=True)
class FirmwareRow:
    """One place where the controller ran.

    Attributes:
        where: "Python", "C, this machine" or "C, Cortex-M4F".
        starts: Number of closed loops; 0 if there was no tool to run them.
        steps: Calls of the controller in each.
        success: Share of the starts from which it succeeds; NaN for a short loop.
        cost_ratio: Median of the cost over that of the row "Python"; NaN likewise, without costs,
            and without a success of both.
        difference: Largest difference of an input in the first call, relative to the range of the
            policy's outputs; from Python, for the Cortex-M4F from C on this machine over all steps.
        note: Why nothing ran.
    """

    where: str
    starts: int
    steps: int
    success: float = math.nan
    cost_ratio: float = math.nan
    difference: float = math.nan
    note: str = ""


@dataclass(frozen=True)
class FirmwareReport:
    """Closed loops with the controller as it will be flashed.

    Attributes:
        rate: Calls of the controller per second.
        rows: One per place.
    """

    rate: float
    rows: tuple[FirmwareRow, ...]

    def row(self, where: str) -> FirmwareRow:
        """The row of a place."""
        return next(row for row in self.rows if row.where == where)

    def table(self) -> str:
        """The rows as text."""
        lines = [f"controller at {self.rate:g} Hz in closed loop"]
        for row in self.rows:
            if not row.starts:
                lines.append(f"  {row.where:<16}not run: {row.note}")
                continue
            parts = [f"{row.starts} starts, {row.steps} steps"]
            parts += [f"success {row.success:.1%}"] if not math.isnan(row.success) else []
            parts += [f"cost ratio {row.cost_ratio:.3f}"] if not math.isnan(row.cost_ratio) else []
            if not math.isnan(row.difference):
                parts.append(f"inputs differ by {row.difference:.1e} of their range")
            lines.append(f"  {row.where:<16}{', '.join(parts)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """For a report on disk."""
        return {"rate": self.rate, "rows": [asdict(row) for row in self.rows]}


def write_firmware(task: Task, policy: Policy, folder: str | Path) -> list[Path]:
    """Writes the task's app around a policy, or the policy alone; returns its C files."""
    app = _firmware(task).app
    plain = {"policy.c": float_source(policy), "policy.h": header(policy), "host/act.c": PLAIN}
    files = plain if app is None else app(policy)
    paths = [Path(folder) / name for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        write_bytes(path, content.encode())
    return [path for path in paths if path.suffix == ".c"]


def evaluate_firmware(
    task: Task,
    policy: Policy,
    folder: str | Path,
    *,
    starts: int = 1000,
    seed: int = 5000,
    emulated_steps: int = 100,
) -> FirmwareReport:
    """Drives the plant with the policy as C, compiled for this machine and for the robot's.

    Args:
        task: Plant, judgement, and how the firmware calls the policy.
        policy: The network.
        folder: Where the C is written.
        starts: Number of starts, those of `evaluate` with the same seed.
        seed: Seed of the starts.
        emulated_steps: Steps of the loop with the emulated Cortex-M4F; 0: none.
    """
    if policy.n_x != task.n_x or policy.n_u != task.n_u:
        raise ProblemError(
            f"The policy has {policy.n_x} states and {policy.n_u} inputs, the task {task.n_x} and "
            f"{task.n_u}."
        )
    how, sizes = _firmware(task), (task.n_x, task.n_u)
    sources = write_firmware(task, policy, folder)
    x0 = np.asarray(task.starts(starts, seed), dtype=np.float32)
    steps = round((task.evaluation_steps or task.steps) * task.control_dt * how.rate)
    wanted = simulate(how.plant, _in_python(how, policy), x0, steps)
    rows = [_row(PYTHON, task, wanted, wanted, math.nan)]
    if host_compiler() is None:
        rows.append(FirmwareRow(HOST, 0, 0, note="no C compiler on the path"))
        return FirmwareReport(how.rate, tuple(rows))
    with tempfile.TemporaryDirectory() as build:
        host = HostPolicy(sources, Path(build), sizes, ACT)
        found = simulate(how.plant, host, x0, steps)
        rows.append(_row(HOST, task, found, wanted, _gap(policy, found[1][:, 0], wanted[1][:, 0])))
        if emulated_steps:
            rows.append(_on_cortex(task, policy, sources, Path(build), (x0[:1], emulated_steps)))
    return FirmwareReport(how.rate, tuple(rows))


def simulate(
    plant: Callable[[jax.Array, jax.Array], jax.Array], act: Act, x0: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """States ``[batch, steps + 1, n_x]`` and inputs of closed loops with a controller on the host.

    Args:
        plant: Batches of states and inputs to the next states.
        act: Batches of states to inputs.
        x0: Where the loops start.
        steps: Their number of steps.
    """
    compiled = jax.jit(plant)
    x, inputs = [x0], []
    for _ in range(steps):
        inputs.append(act(x[-1]))
        x.append(np.asarray(compiled(jnp.asarray(x[-1]), jnp.asarray(inputs[-1]))))
    return np.stack(x, axis=1), np.stack(inputs, axis=1)


def _firmware(task: Task) -> Firmware:
    """How the task's firmware runs a policy; without any, as the control loop of the data."""
    return task.firmware or Firmware(1 / task.control_dt, task.plant)


def _in_python(how: Firmware, policy: Policy) -> Act:
    def act(x: np.ndarray) -> np.ndarray:
        u = policy(x)
        return np.asarray(u if how.limit is None else how.limit(u))

    return act


def _row(
    where: str,
    task: Task,
    found: tuple[np.ndarray, np.ndarray],
    wanted: tuple[np.ndarray, np.ndarray],
    difference: float,
) -> FirmwareRow:
    success, reference = (judge(task, *loop)["success"] for loop in (found, wanted))
    ratio, both = math.nan, success & reference
    if task.cost is not None and both.any():
        loops = ([array[both].astype(np.float64) for array in loop] for loop in (found, wanted))
        costs = [np.asarray(task.cost(*loop)) for loop in loops]
        ratio = float(np.median(costs[0] / costs[1]))
    starts, steps = found[1].shape[:2]
    return FirmwareRow(where, starts, steps, float(success.mean()), ratio, difference)


def _on_cortex(
    task: Task, policy: Policy, sources: list[Path], build: Path, loop: tuple[np.ndarray, int]
) -> FirmwareRow:
    """One short loop with the emulator in it; the host's controller sees the same states."""
    if missing := missing_tools():
        return FirmwareRow(CORTEX, 0, 0, note=f"{', '.join(missing)} not installed")
    how, sizes, (x0, steps) = _firmware(task), (task.n_x, task.n_u), loop
    with CortexFunction(sources, build, sizes, ACT) as act:
        x, u = simulate(how.plant, act, x0, steps)
    # Controllers may have a memory: this one is a new one, too.
    host = HostPolicy(sources, build / "again", sizes, ACT)
    expected = np.stack([host(x[:, k]) for k in range(steps)], axis=1)
    return FirmwareRow(CORTEX, len(x0), steps, difference=_gap(policy, u, expected))


def _gap(policy: Policy, found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.max(np.abs(found - wanted) / output_range(policy)))
