"""What went wrong in a batch, as plain data with a readable text.

Produces: `Diagnosis`, the result of `warpmpc.diagnose`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from warpmpc.mpc.types import MPCStatus

LAST_ITERATIONS = 8  # the part of a history that is printed


@dataclass(frozen=True)
class ViolatedRow:
    """A constraint row, or all rows of one name along the horizon.

    Attributes:
        name: As given in `subject_to(..., name=)`; "initial[...]" and "dynamics[...]" otherwise.
        node: Where it is violated most.
        violation: Largest violation of all instances that were looked at.
        instances: How many of them violate it.
    """

    name: str
    node: int
    violation: float
    instances: int


@dataclass(frozen=True, eq=False)
class InstanceReport:
    """One instance and what became of it.

    Attributes:
        index: Place in the batch; in the flattened one if there are several leading axes.
        status: Outcome.
        cause: What happened, in a sentence.
        row: Name of the row that is violated most; None: none is, or rows are not known.
        node: Its node.
        iterations: SQP iterations.
        cost: Cost of the trajectory.
        violation: Largest violation of a row.
        kkt_residual: Residual of the optimality conditions.
        primal_residual: Primal residual of the last QP.
        dual_residual: Dual residual of the last QP.
        step_length: Last step length.
        history: Attributes of `History`, one number per iteration; empty unless recorded.
    """

    index: int
    status: MPCStatus
    cause: str
    row: str | None
    node: int | None
    iterations: int
    cost: float
    violation: float
    kkt_residual: float
    primal_residual: float
    dual_residual: float
    step_length: float
    history: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Which instances of a batch failed, and why; `print` shows a table.

    Attributes:
        batch: Number of instances.
        counts: Instances per status, by name; outcomes that do not occur are left out.
        failed: Indices of instances that are neither converged nor merely unfinished.
        unfinished: Indices with status MAX_ITER; with a fixed number of iterations the usual one.
        worst: The worst instances that did not converge, the worst first.
        rows: Violated rows of the instances that were looked at, the most violated first.
        examined: How many instances were looked at for `rows`.
        notes: What the reader should know about these figures.
    """

    batch: int
    counts: dict[str, int]
    failed: np.ndarray
    unfinished: np.ndarray
    worst: tuple[InstanceReport, ...]
    rows: tuple[ViolatedRow, ...]
    examined: int
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no instance failed."""
        return self.failed.size == 0

    def __str__(self) -> str:
        """Counts, rows and the worst instances as tables."""
        counted = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        lines = [f"{_count(self.batch)}: {counted}"]
        if self.failed.size:
            lines.append(f"failed: {listed(self.failed)}")
        if self.rows:
            lines += [
                "",
                f"Violated rows of {_count(self.examined)} looked at",
                *_rows(self.rows),
            ]
        if self.worst:
            lines += ["", "Worst instances", *_instances(self.worst)]
            lines += [f"  {one.index}: {one.cause}" for one in self.worst]
            lines += _history(self.worst)
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _count(instances: int) -> str:
    return "1 instance" if instances == 1 else f"{instances} instances"


def listed(indices: np.ndarray, most: int = 12) -> str:
    """The first of some indices, and how many there are."""
    shown = ", ".join(str(index) for index in indices[:most].tolist())
    return shown if indices.size <= most else f"{shown}, ... ({indices.size} in all)"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table; the first column is text, all others are numbers."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        aligned = [row[0].ljust(widths[0])]
        aligned += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(aligned))
    return lines


def _rows(rows: Sequence[ViolatedRow]) -> list[str]:
    return table(
        ("row", "worst node", "violation", "instances"),
        ((r.name, str(r.node), f"{r.violation:.3g}", str(r.instances)) for r in rows),
    )


def _instances(reports: Sequence[InstanceReport]) -> list[str]:
    header = ("instance", "status", "iterations", "violation", "row", "node", "KKT", "step")
    return table(
        header,
        (
            (
                str(r.index),
                r.status.name,
                str(r.iterations),
                f"{r.violation:.2g}",
                r.row or "-",
                "-" if r.node is None else str(r.node),
                f"{r.kkt_residual:.2g}",
                f"{r.step_length:.2g}",
            )
            for r in reports
        ),
    )


def _history(reports: Sequence[InstanceReport]) -> list[str]:
    """The last iterations of the first instance that took some, if they were recorded."""
    report = next((r for r in reports if r.history and r.history["cost"].size), None)
    if report is None:
        return []
    names = {"cost": "cost", "theta": "theta", "step_length": "step", "kkt_residual": "KKT"}
    columns = [report.history[name] for name in names]
    total = columns[0].size
    first = max(total - LAST_ITERATIONS, 0)
    rows = (
        (str(it + 1), *(f"{column[it]:.4g}" for column in columns)) for it in range(first, total)
    )
    title = f"Instance {report.index}, iterations {first + 1} to {total}"
    return ["", title, *table(("iteration", *names.values()), rows)]
