"""Checks of the arguments of `OCP` that are not expressions in states.

Reads: horizon, dt, nodes, bounds and soft rows as the user gave them.  Produces: checked values, or
errors that say what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex
from warpmpc.problem.expressions import ExpressionLike
from warpmpc.problem.stage import Soft


def checked_horizon(horizon: Any) -> int:
    """Checks the number of intervals."""
    if not ex.is_integer(horizon, 1, 2**31):
        raise ProblemError(
            f"horizon must be an integer, at least 1 (the number of intervals), got {horizon!r}."
        )
    return int(horizon)


def checked_dt(dt: Any, horizon: int) -> float | np.ndarray | ca.SX:
    """Converts dt to a number, an array with one number per interval, or a scalar expression."""
    given = ex.column(dt, "dt")
    if not given.is_constant():
        return ex.scalar(given, "dt")
    values = ex.constants(given)
    if not (np.all(np.isfinite(values)) and np.all(values > 0)):
        wrong = values[~(np.isfinite(values) & (values > 0))][0]
        raise ProblemError(f"dt must be positive and finite, got {wrong:g}.")
    # A list or array means one value per interval, even for a single interval.
    if values.size == 1 and (isinstance(dt, ca.SX | ca.DM) or np.ndim(dt) == 0):
        return float(values[0])
    if values.size != horizon:
        raise ProblemError(
            f"dt has {values.size} values but there are {horizon} intervals; give one each, or a "
            "scalar."
        )
    return values


def nodes_of(at: Any, horizon: int) -> frozenset[int]:
    """The nodes that the argument `at` stands for."""
    last = horizon
    if isinstance(at, str):
        ranges = {
            "path": range(last),
            "terminal": [last],
            "initial": [0],
            "all": range(last + 1),
        }
        if at not in ranges:
            raise ProblemError(
                f"at must be one of {list(ranges)}, an integer or a range, got {at!r}."
            )
        return frozenset(ranges[at])
    if isinstance(at, np.ndarray):
        at = at.ravel().tolist()
    given: list[Any] = list(at) if isinstance(at, Iterable) else [at]
    for k in given:
        if not ex.is_integer(k, 0, last):
            raise ProblemError(f"at names node {k!r}, but the nodes are 0 to {last}.")
    if not given:
        raise ProblemError(f"at is empty: name at least one of the nodes 0 to {last}.")
    if len(set(given)) < len(given):
        raise ProblemError("at names a node twice; name each once.")
    return frozenset(int(k) for k in given)


def bounds_of(
    lower: ExpressionLike | None, upper: ExpressionLike | None, n_rows: int
) -> tuple[ca.SX, ca.SX]:
    """Converts bounds to columns with one entry per row, in which None becomes infinite."""
    if lower is None and upper is None:
        raise ProblemError("subject_to got neither lower nor upper; give at least one of them.")
    return (
        ex.sized_column(-np.inf if lower is None else lower, n_rows, "lower", "expr"),
        ex.sized_column(np.inf if upper is None else upper, n_rows, "upper", "expr"),
    )


def soft_rows(soft: Any, n_rows: int) -> Mapping[int, Soft]:
    """Penalties by row; a single `Soft` or number (a linear penalty) holds for all rows."""
    if soft is None:
        return {}
    if isinstance(soft, Mapping):
        return soft
    if isinstance(soft, Soft):
        return dict.fromkeys(range(n_rows), soft)
    if isinstance(soft, bool | str):
        raise ProblemError(
            f"soft must be a Soft, a linear penalty or a dict row -> Soft, got {soft!r}."
        )
    return dict.fromkeys(range(n_rows), Soft(linear=ex.scalar(soft, "soft")))
