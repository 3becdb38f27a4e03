"""The schedule of `engines.ldl` in pure JAX: readable, portable, differentiable by JAX itself.

Arrays are ``[rows, batch]`` inside.  A sequential segment is a `lax.scan` over its columns, a
parallel one a single vectorised step; padded operands point past the end and count as zero.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.engines.ldl.schedule import FactorSchedule, SolveSchedule, build_schedule
from warpmpc.qp.linear_solvers.base import (
    LDLSettings,
    LinearSystem,
    invert_pivots,
    status_of,
)
from warpmpc.symbolic.pattern import IntArray

# A parallel level is unrolled into the program, a narrow one scanned: wide levels only, so that
# compile time stays bounded.
_NARROW = 8
_SEGMENTS = 16  # each is compiled on its own
Tables = tuple[IntArray, ...]


class JaxLDL:
    """Factorises and solves with `jax.lax` only."""

    honours: ClassVar[frozenset[str]] = frozenset({"segments", "level_scheduling"})

    def __init__(self, system: LinearSystem, settings: LDLSettings):
        """Builds the padded tables of every segment."""
        elimination = system.elimination
        self._system, self._perm, self._n_L = system, elimination.perm, elimination.nnz_L
        schedule = build_schedule(
            elimination,
            settings.segments or _SEGMENTS,
            level_scheduling=settings.level_scheduling,
            narrow_solve=_NARROW,
            narrow_factor=_NARROW,
        )
        self._factor_steps = _factor_steps(schedule.factor, system)
        self._forward = _solve_steps(schedule.forward, self._n_L)
        self._backward = _solve_steps(schedule.backward, self._n_L)

    def factor(self, K_vals: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """L ``[nnz_L, batch]``, inverse pivots ``[n, batch]`` in elimination order, and status."""
        scale = jnp.asarray(self._system.value_scale, dtype=K_vals.dtype)
        K, batch = (K_vals * scale[None]).T, K_vals.shape[0]
        # Not yet computed is NaN: a schedule that reads too early shows.
        empty = jnp.full((self._n_L, batch), jnp.nan, dtype=K.dtype)
        state = (K, empty, jnp.full((self._perm.size, batch), jnp.nan, dtype=K.dtype))
        for tables, parallel in self._factor_steps:
            state = _run(_factor_columns, state, tables, parallel=parallel)
        _, L, D_inv = state
        return (L, D_inv), status_of(D_inv, axis=0)

    def solve(self, factor: tuple[jax.Array, jax.Array], rhs: jax.Array) -> jax.Array:
        """Solutions in the caller's order."""
        L, D_inv = factor
        state = (L, rhs.T[self._perm])
        for tables, parallel in self._forward:
            state = _run(_solve_rows, state, tables, parallel=parallel)
        state = (L, state[1] * D_inv)
        for tables, parallel in self._backward:
            state = _run(_solve_rows, state, tables, parallel=parallel)
        return jnp.zeros_like(state[1]).at[self._perm].set(state[1]).T

    def factors(
        self, factor: tuple[jax.Array, jax.Array], batch: int
    ) -> tuple[jax.Array, jax.Array]:
        """L and D in elimination order, batch-first."""
        del batch
        return factor[0].T, 1 / factor[1].T


def _run(step, state, tables: Tables, *, parallel: bool):
    """All columns at once, or one after the other."""
    if parallel:
        return step(state, tables)

    def body(carry, column: Tables):
        return step(carry, tuple(table[None] for table in column)), None

    return jax.lax.scan(body, state, tables)[0]


def _take(array: jax.Array, index: IntArray) -> jax.Array:
    if not array.shape[0]:  # L of a diagonal matrix; `take` refuses empty arrays
        return jnp.zeros((*index.shape, *array.shape[1:]), dtype=array.dtype)
    return jnp.take(array, index, axis=0, mode="fill", fill_value=0)


def _factor_columns(state, tables: Tables):
    """Left-looking step for a set of independent columns; see `engines.ldl.schedule`."""
    K, L, D_inv = state
    column, diagonal, row_entry, row_node, entry, entry_K, left, right = tables
    row = _take(L, row_entry)
    scaled = row * _take(D_inv, row_node)
    pivot = _take(K, diagonal) - (row * scaled).sum(axis=1)
    L = L.at[row_entry].set(scaled, mode="drop")
    D_inv = D_inv.at[column].set(invert_pivots(pivot))
    update = (_take(L, left) * _take(L, right)).sum(axis=2)
    return K, L.at[entry].set(_take(K, entry_K) - update, mode="drop"), D_inv


def _solve_rows(state, tables: Tables):
    L, x = state
    row, entry, node = tables
    return L, x.at[row].add(-(_take(L, entry) * _take(x, node)).sum(axis=1))


def _beyond(index: IntArray, size: int) -> IntArray:
    """Padding (-1) becomes an index past the end, which `fill` and `drop` treat as absent."""
    return np.where(index < 0, size, index).astype(np.int32)


def _solve_steps(part: SolveSchedule, nnz_L: int) -> list[tuple[Tables, bool]]:
    steps: list[tuple[Tables, bool]] = []
    n, bounds = part.items.size, part.padded.bounds
    for s, width in enumerate(part.padded.widths.tolist()):
        if not width:
            continue
        operands = part.padded.segment(s)
        rows = part.items[bounds[s] : bounds[s + 1]]
        tables = (rows, _beyond(operands[..., 0], nnz_L), _beyond(operands[..., 1], n))
        steps.append((tables, bool(part.parallel[s])))
    return steps


def _factor_steps(part: FactorSchedule, system: LinearSystem) -> list[tuple[Tables, bool]]:
    """Tables of each segment, entries padded to the longest column of the segment."""
    elimination = system.elimination
    source = np.append(system.source, -1)
    n, nnz_L, bounds = elimination.n, elimination.nnz_L, part.rows.bounds
    steps: list[tuple[Tables, bool]] = []
    for s in range(part.rows.widths.size):
        first, last = int(bounds[s]), int(bounds[s + 1])
        items, operands = part.items[first:last], part.rows.segment(s)
        ptr = part.entry_ptr[first : last + 1]
        # Column k of the segment owns rows ptr[k]:ptr[k + 1] of the segment's pair table.
        longest = int(np.diff(ptr).max(initial=0))
        inside = np.arange(longest)
        owned = np.where(inside < np.diff(ptr)[:, None], ptr[:-1, None] + inside, -1)
        entries = np.append(part.entries, -1)[owned]
        pairs = np.concatenate([part.pairs.segment(s), np.full((1, *_shape(part, s)), -1)])
        pairs = pairs[np.where(owned >= 0, owned - ptr[0], -1)]
        tables = (
            items,
            source[elimination.K_to_D[items]].astype(np.int32),
            _beyond(operands[..., 0], nnz_L),
            _beyond(operands[..., 1], n),
            _beyond(entries, nnz_L),
            _beyond(source[np.append(elimination.K_to_L, -1)[entries]], system.n_values),
            _beyond(pairs[..., 0], nnz_L),
            _beyond(pairs[..., 1], nnz_L),
        )
        steps.append((tables, bool(part.parallel[s])))
    return steps


def _shape(part: FactorSchedule, s: int) -> tuple[int, int]:
    return int(part.pairs.widths[s]), 2
