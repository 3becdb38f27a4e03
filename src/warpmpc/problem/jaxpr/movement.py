"""Primitives that only move entries.

Each is applied to the positions of the entries, and the entries are taken in the order that
results.  Indices must be constants, because an expression has a fixed structure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import casadi as ca
import numpy as np
from jax import lax

from warpmpc.problem.jaxpr.values import (
    Equation,
    RefusalError,
    Symbolic,
    Value,
    entries,
    flat_of,
    joint_positions,
    positions,
    take,
    take_from,
)

Mover = Callable[[Equation, np.ndarray], np.ndarray]
_MISSING = -1  # position of an entry that an index out of bounds asks for


def _broadcast(eqn: Equation, where: np.ndarray) -> np.ndarray:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    lengths = [1] * len(shape)
    for axis, length in zip(axes, where.shape, strict=True):
        lengths[axis] = length
    return np.broadcast_to(where.reshape(lengths), shape)


def _slice(eqn: Equation, where: np.ndarray) -> np.ndarray:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or [1] * len(starts)
    return where[tuple(map(slice, starts, limits, strides))]


_MOVERS: dict[str, Mover] = {
    "broadcast_in_dim": _broadcast,
    "reshape": lambda eqn, where: where.reshape(eqn.params["new_sizes"]),
    "rev": lambda eqn, where: np.flip(where, eqn.params["dimensions"]),
    "slice": _slice,
    "squeeze": lambda eqn, where: where.reshape(eqn.outvars[0].aval.shape),
    "tile": lambda eqn, where: np.tile(where, eqn.params["reps"]),
    "transpose": lambda eqn, where: np.transpose(where, eqn.params["permutation"]),
}


def _move(eqn: Equation, values: list[Value]) -> Value:
    mover = _MOVERS[eqn.primitive.name]
    return take(values[0], mover(eqn, positions(values[0].shape)))


def _concatenate(eqn: Equation, values: list[Value]) -> Value:
    where = joint_positions([value.shape for value in values])
    return take_from(values, np.concatenate(where, axis=eqn.params["dimension"]))


def _split(eqn: Equation, values: list[Value]) -> list[Value]:
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    parts = np.split(positions(values[0].shape), ends, axis=eqn.params["axis"])
    return [take(values[0], part) for part in parts]


def _stack(eqn: Equation, values: list[Value]) -> Value:
    where = joint_positions([value.shape for value in values])
    return take_from(values, np.stack(where, axis=eqn.params["axis"]))


def _unstack(eqn: Equation, values: list[Value]) -> list[Value]:
    where = np.moveaxis(positions(values[0].shape), eqn.params["axis"], 0)
    return [take(values[0], part) for part in where]


def _pad(eqn: Equation, values: list[Value]) -> Value:
    """Padding may be negative (entries are dropped) and lie between entries."""
    where, filler = joint_positions([value.shape for value in values])
    for axis, (low, high, interior) in enumerate(eqn.params["padding_config"]):
        length = where.shape[axis]
        inner = length + max(length - 1, 0) * interior
        padded = np.full([*where.shape[:axis], inner, *where.shape[axis + 1 :]], int(filler))
        padded[(slice(None),) * axis + (slice(None, None, interior + 1),)] = where
        added = [(0, 0)] * where.ndim
        added[axis] = (max(low, 0), max(high, 0))
        padded = np.pad(padded, added, constant_values=int(filler))
        kept = slice(max(-low, 0), padded.shape[axis] - max(-high, 0))
        where = padded[(slice(None),) * axis + (kept,)]
    return take_from(values, where)


def _constant(index: Value) -> np.ndarray:
    if isinstance(index, Symbolic):
        raise RefusalError(
            "the index depends on the arguments; index with constants, or choose among all entries "
            "with jnp.where"
        )
    return index


def _window(shape: Sequence[int], starts: list[Value], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The place of a window; JAX shifts windows that leave the array back into it."""
    first = [int(_constant(start)) for start in starts]
    last = [length - size for length, size in zip(shape, sizes, strict=True)]
    clipped = np.clip(first, 0, last)
    return tuple(slice(at, at + size) for at, size in zip(clipped, sizes, strict=True))


def _dynamic_slice(eqn: Equation, values: list[Value]) -> Value:
    array, *starts = values
    window = _window(array.shape, starts, eqn.params["slice_sizes"])
    return take(array, positions(array.shape)[window])


def _dynamic_update_slice(eqn: Equation, values: list[Value]) -> Value:
    array, update, *starts = values
    where, new = joint_positions([array.shape, update.shape])
    where[_window(array.shape, starts, update.shape)] = new
    return take_from([array, update], where)


def _gather(eqn: Equation, values: list[Value]) -> Value:
    array, indices = values
    where = lax.gather(
        positions(array.shape),
        _constant(indices),
        eqn.params["dimension_numbers"],
        eqn.params["slice_sizes"],
        mode=eqn.params["mode"],
        fill_value=_MISSING,
    )
    # Position -1 is the last one, which holds the filler.
    filler = np.asarray(_filler(eqn))
    return take_from([array, filler], np.asarray(where))


def _filler(eqn: Equation) -> float:
    """The value that JAX returns for an index out of bounds, which depends on the dtype."""
    given, dtype = eqn.params["fill_value"], np.dtype(eqn.outvars[0].aval.dtype)
    if given is not None:
        return float(given)
    if dtype.kind == "f":
        return np.nan
    if dtype.kind == "b":
        return 1.0
    return float(np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max)


_COMBINE: dict[str, Callable[[ca.SX, ca.SX], ca.SX]] = {
    "scatter-add": lambda old, new: old + new,
    "scatter-max": ca.fmax,
    "scatter-min": ca.fmin,
    "scatter-mul": lambda old, new: old * new,
    "scatter-sub": lambda old, new: old - new,
}


def _destinations(eqn: Equation, array: Value, indices: Value, updates: Value) -> np.ndarray:
    """Position in the array that each update goes to, from the gather that reads there."""
    numbers = eqn.params["dimension_numbers"]
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    lengths = iter([updates.shape[axis] for axis in numbers.update_window_dims])
    where = lax.gather(
        positions(array.shape),
        _constant(indices),
        lax.GatherDimensionNumbers(
            offset_dims=numbers.update_window_dims,
            collapsed_slice_dims=numbers.inserted_window_dims,
            start_index_map=numbers.scatter_dims_to_operand_dims,
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=numbers.scatter_indices_batching_dims,
        ),
        [1 if axis in single else next(lengths) for axis in range(len(array.shape))],
        mode=eqn.params["mode"],
        fill_value=_MISSING,
    )
    return np.asarray(where).reshape(-1)


def _scatter(eqn: Equation, values: list[Value]) -> Value:
    """Overwrites entries; the last one of several updates of an entry stays."""
    array, indices, updates = values
    changes = eqn.params["update_jaxpr"]
    if changes is not None and getattr(changes, "jaxpr", changes).eqns:
        raise RefusalError("`.at[].apply` has no rule; write `x.at[i].set(f(x[i]))`")
    target = _destinations(eqn, array, indices, updates)
    where, new = joint_positions([array.shape, updates.shape])
    kept = target != _MISSING
    where.reshape(-1)[target[kept]] = new.reshape(-1)[kept]
    return take_from([array, updates], where)


def _scatter_combine(eqn: Equation, values: list[Value]) -> Value:
    array, indices, updates = values
    combine = _COMBINE[eqn.primitive.name.replace("_", "-")]
    target = _destinations(eqn, array, indices, updates)
    result, new = ca.SX(flat_of(array)), flat_of(updates)
    waiting = np.flatnonzero(target != _MISSING)
    while waiting.size:  # each pass meets an entry once, so it is one vector operation
        first = np.unique(target[waiting], return_index=True)[1]
        rows, at = waiting[first], target[waiting[first]]
        result[at.tolist(), 0] = combine(entries(result, at), entries(new, rows))
        waiting = np.delete(waiting, first)
    return Symbolic(result, array.shape)


# Rules that apply to constant arrays as well.
ON_NUMBERS = {
    **dict.fromkeys(_MOVERS, _move),
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
    "split": _split,
    "stack": _stack,
    "unstack": _unstack,
}
RULES = {
    **ON_NUMBERS,
    **dict.fromkeys(_COMBINE, _scatter_combine),
    **dict.fromkeys([name.replace("-", "_") for name in _COMBINE], _scatter_combine),
    "gather": _gather,
    "scatter": _scatter,
}
