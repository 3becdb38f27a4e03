"""`evaluate`: expert and policy in closed loop from the same unseen starts.

Reads: a task and a policy.  Produces: a report with one row per situation and controller, the worst
starts of the policy, and the share of visited states that the training data do not cover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.learn.controllers import RECORDED, Expert, NetworkController
from warpmpc.learn.loops import Loop, closed_loop
from warpmpc.learn.policy import Policy
from warpmpc.learn.task import Noise, Task

SITUATIONS = ("noise-free", "noisy", "perturbed plant")
WORST, DRAWN = 5, 100
COLUMNS = ("situation", "controller", "success", "cost ratio", "violation", "outside")


@dataclass(frozen=True)
class Row:
    """One controller in one situation.

    Attributes:
        situation: "noise-free", "noisy" or "perturbed plant".
        controller: "expert" or "policy".
        success: Share of the starts from which it succeeds.
        reached: Shares by other criteria of the task, by name.
        cost_ratio: Median over starts where both succeed of the policy's cost over the expert's;
            NaN without costs.
        violation: Largest "violation" or "input_excess" of an instance that succeeds, by name.
        outside: Share of visited states outside of the box of the training data.
        worst: The policy's worst starts: those that fail, then the most expensive ones.
    """

    situation: str
    controller: str
    success: float
    reached: dict[str, float]
    cost_ratio: float
    violation: dict[str, float]
    outside: float
    worst: tuple[int, ...]


@dataclass(frozen=True)
class Evaluation:
    """Closed loops of expert and policy.

    Attributes:
        task: Name of the task.
        starts: Number of starts of the policy.
        expert_starts: The expert starts from the first ones of them.
        seed: Seed of the starts.
        rows: One per situation and controller.
        x0: The starts ``[starts, n_x]``.
        states: Noise-free states by controller, of at most 100 starts ``[starts, steps + 1, n_x]``.
        inputs: Inputs that belong to them, ``[starts, steps, n_u]``.
    """

    task: str
    starts: int
    expert_starts: int
    seed: int
    rows: tuple[Row, ...]
    x0: np.ndarray
    states: dict[str, np.ndarray]
    inputs: dict[str, np.ndarray]

    def row(self, situation: str, controller: str) -> Row:
        """One of the rows."""
        for row in self.rows:
            if (row.situation, row.controller) == (situation, controller):
                return row
        raise ProblemError(f"There is no row {situation!r}, {controller!r}.")

    def table(self) -> str:
        """The rows as text."""
        lines = [COLUMNS, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
        texts = [
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in lines
        ]
        return "\n".join(text.rstrip() for text in texts)

    def to_json(self) -> dict[str, Any]:
        """Everything but the trajectories."""
        rows = [asdict(row) for row in self.rows]
        sizes = {"starts": self.starts, "expert_starts": self.expert_starts}
        return {"task": self.task, **sizes, "seed": self.seed, "rows": rows}


def evaluate(
    task: Task,
    policy: Policy,
    *,
    starts: int = 1000,
    expert_starts: int | None = None,
    seed: int = 5000,
    situations: tuple[str, ...] = SITUATIONS,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Compares policy and expert in closed loop.

    Args:
        task: Plant, noise and judgement.
        policy: The network.
        starts: Number of starts, which are the same for both controllers.
        expert_starts: The expert, which needs most of the time, sees only so many of them; None:
            all.
        seed: Seed of starts and noise; data are drawn from other numbers.
        situations: Some of `SITUATIONS`; a task without noise or perturbed plant leaves those out.
        progress: Function of (situations done, situations).
    """
    unknown = set(situations) - set(SITUATIONS)
    if unknown:
        raise ProblemError(f"situations must be of {SITUATIONS}, got {sorted(unknown)}.")
    if policy.n_x != task.n_x or policy.n_u != task.n_u:
        raise ProblemError(
            f"The policy has {policy.n_x} states and {policy.n_u} inputs, the task {task.n_x} and "
            f"{task.n_u}."
        )
    x0 = task.starts(starts, seed)
    few = min(expert_starts or starts, starts)
    cases = [name for name in situations if _has(task, name)]
    rows: list[Row] = []
    first: dict[str, Loop] = {}
    expert = Expert(task.solver, task.shift)
    network = NetworkController(policy.network, task.dtype)
    for i, name in enumerate(cases):
        world = {
            "seed": seed,
            "steps": task.evaluation_steps,
            "noise": task.noise if name == "noisy" else None,
            "perturbed": name == "perturbed plant",
            "record": RECORDED,
        }
        loops = {"expert": closed_loop(task, expert, task.params, x0[:few], **world)}
        world["record"] = ()
        loops["policy"] = closed_loop(task, network, policy.data, x0, **world)
        rows += _rows(task, policy, name, loops)
        first = first or loops
        if progress is not None:
            progress(i + 1, len(cases))
    states = {who: loop.x[:DRAWN] for who, loop in first.items()}
    inputs = {who: loop.u[:DRAWN] for who, loop in first.items()}
    return Evaluation(task.name, starts, few, seed, tuple(rows), np.asarray(x0), states, inputs)


def _has(task: Task, situation: str) -> bool:
    """Whether a task has a situation."""
    if situation == "perturbed plant":
        return task.perturbed is not None
    return situation != "noisy" or task.noise != Noise()


def judge(task: Task, x: np.ndarray, u: np.ndarray) -> dict[str, np.ndarray]:
    """The metrics of a task; instances that are not finite never succeed."""
    finite = np.isfinite(x).all(axis=(1, 2)) & np.isfinite(u).all(axis=(1, 2))
    found: dict[str, np.ndarray] = {"success": np.asarray(finite)}
    if task.metrics is not None:
        found = dict(task.metrics(x.astype(np.float64), u.astype(np.float64)))
        if np.shape(found.get("success", 0)) != finite.shape:
            raise ProblemError('metrics must return a dictionary with "success", one per instance.')
    found["success"] = np.asarray(found["success"], dtype=bool) & finite
    return found


def _rows(
    task: Task,
    policy: Policy,
    situation: str,
    loops: dict[str, Loop],
) -> list[Row]:
    judged = {who: judge(task, loop.x, loop.u) for who, loop in loops.items()}
    costs = {who: _costs(task, loop.x, loop.u) for who, loop in loops.items()}
    few = len(loops["expert"].x)
    both = judged["expert"]["success"] & judged["policy"]["success"][:few]
    rows = []
    for who, loop in loops.items():
        found = judged[who]
        success = found["success"]
        ratio = np.nan
        if task.cost is not None and both.any():
            ratio = float(np.median(costs[who][:few][both] / costs["expert"][both]))
        more = {
            name: float(values.mean())
            for name, values in found.items()
            if values.dtype == bool and name not in ("success", "satisfied")
        }
        excess = {
            name: float(np.max(found[name][success], initial=0.0))
            for name in ("violation", "input_excess")
            if name in found
        }
        outside = float(policy.outside(loop.x).mean())
        order = np.lexsort((-np.nan_to_num(costs[who], nan=np.inf), success))
        worst = tuple(order[:WORST].tolist())
        share = float(success.mean())
        rows.append(Row(situation, who, share, more, ratio, excess, outside, worst))
    return rows


def _costs(task: Task, x: np.ndarray, u: np.ndarray) -> np.ndarray:
    if task.cost is None:
        return np.zeros(len(x))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(task.cost(x.astype(np.float64), u.astype(np.float64)))


def _cells(row: Row) -> tuple[str, ...]:
    more = "".join(f" ({name} {share:.1%})" for name, share in row.reached.items())
    ratio = "-" if np.isnan(row.cost_ratio) else f"{row.cost_ratio:.3f}"
    excess = ", ".join(f"{name} {value:.2g}" for name, value in row.violation.items()) or "-"
    share = f"{row.success:.1%}{more}"
    return row.situation, row.controller, share, ratio, excess, f"{row.outside:.2%}"


def imitation_error(policy: Policy, x: np.ndarray, labels: np.ndarray) -> float:
    """Root mean square of the policy's error, in standard deviations of the labels."""
    error = (np.asarray(policy(jnp.asarray(x))) - labels) / policy.u_std
    return float(np.sqrt((error**2).mean()))
