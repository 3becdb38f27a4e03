"""Slow and obvious versions of what the package computes: dense NumPy in float64, brute force."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import qdldl  # pyright: ignore[reportMissingImports]
import scipy.sparse as sp

from warpmpc.engines.ldl.schedule import FactorSchedule, LDLSchedule, SolveSchedule
from warpmpc.engines.ldl.window import Sweep, WindowStream
from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import SparsePattern


def dense_pattern(pattern: SparsePattern) -> np.ndarray:
    """The pattern as a boolean matrix, entry by entry."""
    dense = np.zeros(pattern.shape, dtype=bool)
    for col in range(pattern.n_cols):
        for t in range(pattern.col_ptr[col], pattern.col_ptr[col + 1]):
            dense[pattern.row_idx[t], col] = True
    return dense


def dense_symmetric(K: sp.csc_matrix, values: np.ndarray) -> np.ndarray:
    """Full symmetric matrices ``[..., n, n]`` from an upper pattern and values ``[..., nnz]``."""
    n = K.indptr.size - 1
    cols = np.repeat(np.arange(n), np.diff(K.indptr))
    dense = np.zeros((*values.shape[:-1], n, n))
    dense[..., K.indices, cols] = values
    dense[..., cols, K.indices] = values
    return dense


def dense_ldl(K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit lower L and pivots D of K = L D L', no pivoting."""
    work, n = K.astype(float), K.shape[0]
    L, D = np.eye(n), np.empty(n)
    for j in range(n):
        D[j] = work[j, j]
        L[j + 1 :, j] = work[j + 1 :, j] / D[j]
        work[j + 1 :, j + 1 :] -= D[j] * np.outer(L[j + 1 :, j], L[j + 1 :, j])
    return L, D


def symbolic_fill(full: np.ndarray) -> np.ndarray:
    """Strictly lower boolean L of a full symmetric boolean matrix: eliminate node after node."""
    filled = full.copy()
    for j in range(filled.shape[0]):
        rows = j + 1 + np.flatnonzero(filled[j + 1 :, j])
        filled[np.ix_(rows, rows)] = True
    return np.tril(filled, -1)


def permuted_full(pattern: SparsePattern, perm: np.ndarray) -> np.ndarray:
    """Boolean full symmetric matrix of an upper pattern, rows and columns in order `perm`."""
    upper = dense_pattern(pattern)
    return (upper | upper.T)[np.ix_(perm, perm)]


def first_below(L: np.ndarray) -> np.ndarray:
    """Elimination tree by definition: the first nonzero below the diagonal, -1 if none."""
    return np.where(L.any(axis=0), L.argmax(axis=0), -1)


def naive_levels(L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Forward and backward level of each node: one more than the deepest it waits for."""
    n = L.shape[0]
    forward, backward = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
    for i in range(n):
        forward[i] = max((forward[j] + 1 for j in np.flatnonzero(L[i])), default=0)
    for j in reversed(range(n)):
        backward[j] = max((backward[i] + 1 for i in np.flatnonzero(L[:, j])), default=0)
    return forward, backward


def cut_cost(widths: list[int], weights: list[int], bounds: tuple[int, ...]) -> int:
    """Sum of |segment| * max width over the segments between `bounds`."""
    return sum(sum(weights[a:b]) * max(widths[a:b]) for a, b in pairwise(bounds))


def cheapest_cut_cost(widths: list[int], budget: int, weights: list[int], breaks: list[int]) -> int:
    """Least cost over all cuts with the forced breaks and fewer than `budget` further cuts."""
    n, forced = len(widths), set(breaks) - {0}
    free = sorted(set(range(1, n)) - forced)
    return min(
        cut_cost(widths, weights, (0, *sorted(forced | set(extra)), n))
        for count in range(min(budget, len(free) + 1))
        for extra in combinations(free, count)
    )


def qdldl_factors(
    K: sp.csc_matrix, values: np.ndarray
) -> tuple[sp.csc_matrix, np.ndarray, np.ndarray]:
    """qdldl's strictly lower L, pivots D and its own permutation ``perm[new] = old``."""
    upper = sp.csc_matrix((values, K.indices, K.indptr), shape=K.shape)
    L, D, perm = qdldl.Solver(upper, upper=True).factors()
    return L, D, perm


def run_updates(elimination: Elimination, K_vals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Left-looking LDL' that follows the list of updates: values of L and D."""
    L_pattern, updates = elimination.L_pattern, elimination.updates
    by_row, position = elimination.L_rows
    L = np.where(elimination.K_to_L >= 0, K_vals[elimination.K_to_L], 0.0)
    D = K_vals[elimination.K_to_D].astype(float)
    for j in range(elimination.n):
        in_row = slice(by_row.col_ptr[j], by_row.col_ptr[j + 1])
        row, before = position[in_row], by_row.row_idx[in_row]
        undivided = L[row]
        L[row] = undivided / D[before]
        D[j] -= undivided @ L[row]
        for t in range(L_pattern.col_ptr[j], L_pattern.col_ptr[j + 1]):
            s = slice(updates.ptr[t], updates.ptr[t + 1])
            L[t] -= L[updates.left[s]] @ L[updates.right[s]]
    return L, D


def launch_groups(schedule: FactorSchedule | SolveSchedule) -> list[tuple[bool, list[int]]]:
    """Segments between barriers: (parallel, segments); a group never mixes both kinds."""
    groups: list[tuple[bool, list[int]]] = []
    fresh = True
    for s, (parallel, barrier) in enumerate(
        zip(schedule.parallel.tolist(), schedule.barrier.tolist(), strict=True)
    ):
        if fresh:
            groups.append((parallel, []))
        assert groups[-1][0] == parallel, f"segment {s} runs differently from its group"
        groups[-1][1].append(s)
        fresh = barrier
    assert fresh, "no barrier after the last segment"
    return groups


def _operands(slots: np.ndarray) -> np.ndarray:
    return slots[slots[:, 0] >= 0]


def run_factor(schedule: LDLSchedule, K_vals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walks the factorisation tables; nothing may be read before it was written.

    In a parallel group every item sees only what earlier groups wrote, plus its own row.
    """
    plan, elimination = schedule.factor, schedule.elimination
    L, D = np.full(elimination.nnz_L, np.nan), np.full(elimination.n, np.nan)
    for parallel, segments in launch_groups(plan):
        seen_L, seen_D = (L.copy(), D.copy()) if parallel else (L, D)
        for s in segments:
            first_item = int(plan.rows.bounds[s])
            first_entry = int(plan.pairs.bounds[s])
            rows, pairs = plan.rows.segment(s), plan.pairs.segment(s)
            for at in range(rows.shape[0]):
                j = plan.items[first_item + at]
                position, before = _operands(rows[at]).T
                undivided = seen_L[position]
                L[position] = undivided / seen_D[before]
                D[j] = K_vals[elimination.K_to_D[j]] - undivided @ L[position]
                own = seen_L.copy()
                own[position] = L[position]
                span = range(plan.entry_ptr[first_item + at], plan.entry_ptr[first_item + at + 1])
                for e in span:
                    t = plan.entries[e]
                    left, right = _operands(pairs[e - first_entry]).T
                    source = elimination.K_to_L[t]
                    start = K_vals[source] if source >= 0 else 0.0
                    L[t] = start - own[left] @ own[right]
    return L, D


def _run_triangular(schedule: SolveSchedule, L: np.ndarray, start: np.ndarray) -> np.ndarray:
    """``out[i] = start[i] - sum L[t] * out[node]`` in the order of the schedule."""
    out = np.full(start.size, np.nan)
    for parallel, segments in launch_groups(schedule):
        seen = out.copy() if parallel else out
        for s in segments:
            first = int(schedule.padded.bounds[s])
            for at, slots in enumerate(schedule.padded.segment(s)):
                i = schedule.items[first + at]
                position, node = _operands(slots).T
                out[i] = start[i] - L[position] @ seen[node]
    return out


def run_solve(schedule: LDLSchedule, L: np.ndarray, D: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Walks the solve tables: forward, divide by D, backward; `rhs` in the caller's order."""
    perm = schedule.elimination.perm
    forward = _run_triangular(schedule.forward, L, rhs[perm])
    backward = _run_triangular(schedule.backward, L, forward / D)
    solution = np.empty_like(rhs, dtype=float)
    solution[perm] = backward
    return solution


def _run_sweep(
    sweep: Sweep, zero: int, factor: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Unknowns by node (NaN where no item wrote) and the row of the first step of each node.

    A padded step multiplies whatever the kernel has at hand, here one, by its slot: that must be
    the zero slot.
    """
    rows, slots = sweep.rows.ravel(), sweep.slots.ravel()
    at_hand = np.append(factor, 1.0)  # row -1
    memory = np.full(zero + 2, np.nan)
    memory[zero] = 0.0
    out, first_row = np.full(start.size, np.nan), np.full(start.size, -1)
    items = iter(sweep.items.tolist())
    for n_items, steps, first in sweep.segments.tolist():
        for k in range(n_items):
            node, slot = next(items)
            span = slice(first + k * steps, first + (k + 1) * steps)
            out[node] = start[node] - at_hand[rows[span]] @ memory[slots[span]]
            first_row[node] = rows[span][0]
            if slot != zero + 1:  # what goes to the last slot is never seen again
                memory[slot] = out[node]
    return out, first_row


def run_window(window: WindowStream, factor: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Walks both sweeps of a windowed solve; `factor` lists L, then inverse pivots by node."""
    forward, pivot = _run_sweep(window.forward, window.zero, factor, rhs)
    return _run_sweep(window.backward, window.zero, factor, forward * factor[pivot])[0]


def most_alive(order: np.ndarray, reads: np.ndarray) -> int:
    """Largest number of unknowns that are computed and still needed, right after any item.

    ``reads[i, j]``: item i reads unknown j.  An item that reads an unknown for the last time may
    take its place.
    """
    time = np.argsort(order)
    last = np.where(reads.any(axis=0), np.where(reads, time[:, None], -1).max(axis=0), -1)
    return max(int(((time <= now) & (last > now)).sum()) for now in range(order.size))


def relative_residuals(
    K: sp.csc_matrix, values: np.ndarray, solution: np.ndarray, rhs: np.ndarray
) -> np.ndarray:
    """``|K x - rhs| / |rhs|`` per instance in float64; upper pattern, batch-first arrays."""
    values, x, b = (np.asarray(a, dtype=np.float64) for a in (values, solution, rhs))
    cols = np.repeat(np.arange(K.shape[1]), np.diff(K.indptr))
    off = K.indices != cols
    residual = -b.T
    np.add.at(residual, K.indices, (values * x[:, cols]).T)
    np.add.at(residual, cols[off], (values[:, off] * x[:, K.indices[off]]).T)
    return np.linalg.norm(residual, axis=0) / np.linalg.norm(b, axis=1)
