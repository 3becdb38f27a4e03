"""What the arguments of a `QPSolver` must be; everything else raises and says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from warpmpc._errors import ProblemError, SettingsError
from warpmpc._types import ArrayLike, check_array
from warpmpc.qp.types import RowClass
from warpmpc.symbolic.pattern import IntArray


def check_kind(name: str, given: Any, kind: type) -> None:
    """Refuses what is neither None nor of this type."""
    if given is not None and not isinstance(given, kind):
        raise SettingsError(f"{name} must be {kind.__name__}, got {type(given).__name__}.")


def finite_vectors(given: Any, sizes: tuple[int, ...], dtype: str) -> list[np.ndarray] | None:
    """Vectors of these sizes; None if they are anything else."""
    try:
        arrays = [np.asarray(values, dtype=dtype) for values in given]
    except (TypeError, ValueError):
        return None
    shapes = [array.shape for array in arrays]
    fine = shapes == [(size,) for size in sizes] and all(np.isfinite(a).all() for a in arrays)
    return arrays if fine else None


def check_classes(
    given: Sequence[int] | np.ndarray | None, n_cons: int, n_spare: int, soft: IntArray
) -> np.ndarray | None:
    """`RowClass` of each row; spare rows behind them are free."""
    if given is None:
        return None
    classes = np.asarray(given)
    if classes.shape != (n_cons,) or (n_cons and classes.dtype.kind not in "iu"):
        raise ProblemError(
            f"row_classes must be one RowClass per row of A: {n_cons} integers; got shape "
            f"{classes.shape}, dtype {classes.dtype}."
        )
    wrong = np.flatnonzero(~np.isin(classes, list(RowClass)))
    if wrong.size:
        raise ProblemError(
            f"row_classes[{wrong[0]}] is {classes[wrong[0]]}; use RowClass.EQUALITY, "
            "RowClass.INEQUALITY or RowClass.FREE."
        )
    equal = soft[classes[soft] == RowClass.EQUALITY]
    if equal.size:
        raise ProblemError(
            f"row_classes[{equal[0]}] is RowClass.EQUALITY, but the row is soft; use "
            "RowClass.INEQUALITY, also if its bounds are equal."
        )
    return np.append(classes, np.full(n_spare, RowClass.FREE))


def check_soft_rows(given: Sequence[int] | np.ndarray | None, n_cons: int) -> IntArray:
    """Indices of soft rows; none for None."""
    return _indices(given, "soft_rows", "row", n_cons)


def check_light(given: Sequence[int] | np.ndarray | None, n_vars: int) -> IntArray:
    """Indices of variables with little weight; none for None."""
    return _indices(given, "light", "column", n_vars)


def _indices(given: Any, name: str, what: str, size: int) -> IntArray:
    """Indices of rows or columns of A."""
    try:
        found = np.asarray([] if given is None else given)
    except ValueError:  # ragged
        found = np.zeros((1, 1))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ProblemError(
            f"{name} must list {what}s of A as integers; got shape {found.shape}, dtype "
            f"{found.dtype}."
        )
    outside = found[(found < 0) | (found >= size)]
    if outside.size:
        there = f"{what}s 0 to {size - 1}" if size else f"no {what}s"
        raise ProblemError(f"{name} has {what} {outside[0]}, but A has {there}.")
    different, times = np.unique(found, return_counts=True)
    if times.max(initial=1) > 1:
        raise ProblemError(f"{name} has {what} {different[times > 1][0]} more than once.")
    return found.astype(np.int32)


def check_penalties(given: ArrayLike | None, n_soft: int, dtype: str) -> list[jax.Array]:
    """Penalties of soft rows as ``[..., 4 n_soft]``; nothing without soft rows."""
    if given is None:
        if n_soft:
            raise ProblemError(
                f"The solver has {n_soft} soft rows: pass `penalties`, [batch, 4, {n_soft}], in "
                "the order linear lower, linear upper, quadratic lower, quadratic upper."
            )
        return []
    if not n_soft:
        raise ProblemError(
            "penalties belong to soft rows: create the solver with `soft_rows`, or leave them out."
        )
    array = check_array(given, "penalties", n_soft, dtype)
    if array.ndim < 2 or array.shape[-2] != 4:
        raise ProblemError(
            f"penalties has shape {tuple(array.shape)}; its last axes must be (4, {n_soft}), in "
            "the order linear lower, linear upper, quadratic lower, quadratic upper."
        )
    return [array.reshape(*array.shape[:-2], 4 * n_soft)]
