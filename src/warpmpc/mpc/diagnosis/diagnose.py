"""`diagnose`: which instances of a solution failed and why, with rows and parameters by name.

Reads: a `Solution`, and x0 and parameters if the caller has them.  Produces: a `Diagnosis`.  Rows
are evaluated on the host by CasADi in float64, for the worst instances only.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from warpmpc._checks import ArrayLike
from warpmpc._errors import ProblemError
from warpmpc.mpc.diagnosis.causes import CAUSES
from warpmpc.mpc.diagnosis.host_batch import HostBatch
from warpmpc.mpc.diagnosis.report import Diagnosis, InstanceReport, ViolatedRow
from warpmpc.mpc.parameters import Params
from warpmpc.mpc.types import History, MPCStatus, Solution
from warpmpc.problem.evaluation import Evaluation

MOST_EXAMINED = 50  # instances whose rows are evaluated
_SCALARS = (
    *("iterations", "cost", "violation", "kkt_residual", "primal_residual", "dual_residual"),
    "step_length",
)


def diagnose(
    solution: Solution,
    x0: ArrayLike | None = None,
    params: Params = None,
    *,
    worst: int = 5,
) -> Diagnosis:
    """Says which instances failed and why.

    ```python
    solution = solver.solve(x0)
    print(wm.diagnose(solution, x0))
    ```

    Args:
        solution: Result of `MPCSolver.solve` or `step`.
        x0: What the solver got.  None: the first state of each trajectory; violations of the
            initial state are not seen then.
        params: What the solver got; None: defaults.
        worst: How many instances are reported one by one.
    """
    if not isinstance(worst, int | np.integer) or isinstance(worst, bool) or worst < 0:
        raise ProblemError(f"worst must be an integer, at least 0, got {worst!r}.")
    batch = HostBatch.of(solution, x0, params)
    order = batch.worst_first()
    examined = order[:MOST_EXAMINED]
    points = {b: batch.evaluation(b) for b in examined.tolist()} if batch.params is not None else {}
    status = batch.status
    numbers = {b: point for b, point in points.items() if status[b] != MPCStatus.NON_FINITE}
    batch.compare(numbers)
    found, counts = np.unique(status, return_counts=True)
    return Diagnosis(
        batch=status.size,
        counts={MPCStatus(s).name: int(n) for s, n in zip(found, counts, strict=True)},
        failed=np.flatnonzero(status > MPCStatus.MAX_ITER),
        unfinished=np.flatnonzero(status == MPCStatus.MAX_ITER),
        worst=tuple(_report(batch, b, points.get(b)) for b in order[:worst].tolist()),
        rows=_violated_rows(batch, list(numbers.values())),
        examined=len(numbers),
        notes=tuple(batch.notes),
    )


def _violated_rows(batch: HostBatch, points: list[Evaluation]) -> tuple[ViolatedRow, ...]:
    """All rows of one name together, the most violated first."""
    if not points:
        return ()
    excess = np.stack([batch.violations(point) for point in points])
    names = np.array(batch.problem.row_names)
    rows = []
    for name in np.unique(names[(excess > batch.tolerance).any(axis=0)]).tolist():
        at = np.flatnonzero(names == name)
        own = excess[:, at]
        node = batch.problem.con_stage[at[own.max(axis=0).argmax()]]
        count = int((own > batch.tolerance).any(axis=1).sum())
        rows.append(ViolatedRow(name, int(node), float(own.max()), count))
    return tuple(sorted(rows, key=lambda row: -row.violation))


def _report(batch: HostBatch, b: int, point: Evaluation | None) -> InstanceReport:
    solution, row, node = batch.solution, None, None
    status = MPCStatus(int(batch.status[b]))
    if point is not None and status != MPCStatus.NON_FINITE:
        excess = batch.violations(point)
        worst = int(excess.argmax())
        if excess[worst] > batch.tolerance:
            row = batch.problem.row_names[worst]
            node = int(batch.problem.con_stage[worst])
    return InstanceReport(
        index=b,
        status=status,
        cause=CAUSES[status](batch, b, point),
        row=row,
        node=node,
        **{name: getattr(solution, name)[b].item() for name in _SCALARS},
        history=_history(solution.history, b),
    )


def _history(history: History | None, b: int) -> dict[str, np.ndarray]:
    """What was recorded of one instance, iterations that it took only."""
    if history is None:
        return {}
    took_part = ~np.isnan(np.asarray(history.step_length)[b])
    return {f.name: np.asarray(getattr(history, f.name))[b][took_part] for f in fields(history)}
