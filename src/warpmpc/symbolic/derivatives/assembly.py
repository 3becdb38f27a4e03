"""Index tables from the values of single stages to the QP of the whole problem.

Reads: an `MPCProblem` and a `StageModel` per group of equal stages.  Produces: an `Assembly` with
the patterns of P and A, and for every stage the rows that its inputs come from and the rows that
its outputs go to.

Neighbouring stages may contribute to the same entry (a cost that couples z_k with z_{k+1}).  No
thread adds to a value that another thread writes: the second contribution gets a row behind all
entries, and `Overlap` says which entry it belongs to.

`host_qp` evaluates the QP of one instance with these tables on the host, in float64 and without
compiling anything.  It serves decisions and scalings that are made once, before there are kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.symbolic.derivatives.stage_model import StageModel
from warpmpc.symbolic.pattern import IntArray, SparsePattern

_OUTPUTS = ("P", "q", "A", "lower", "upper", "blocks")


@dataclass(frozen=True, eq=False)
class Overlap:
    """Rows of an output array: `size` entries, then second contributions.

    Attributes:
        size: Entries of the array.
        targets: Entry that each further row has to be added to; no entry occurs twice.
    """

    size: int
    targets: IntArray

    @property
    def n_rows(self) -> int:
        """Number of rows that kernels write."""
        return self.size + self.targets.size


@dataclass(frozen=True, eq=False)
class BlockSet:
    """Blocks of one size whose negative eigenvalues are removed online.

    Attributes:
        values: Rows of the raw values, ``[blocks, size, size]``.
        upper: Entries of P that the upper triangles are added to, ``[blocks, entries]``.
        parity: Stage of each block modulo 2; blocks of equal parity share no entry.
    """

    values: IntArray
    upper: IntArray
    parity: IntArray


class Assembly:
    """Index tables of a problem; one list entry per group of equal stages."""

    def __init__(self, problem: MPCProblem, models: Sequence[StageModel]):
        """Numbers all entries of the QP.

        Args:
            problem: The problem with its groups of stages.
            models: The derivatives of each group.
        """
        self.problem, self.models = problem, models
        self.stages = [np.array(group.ks, dtype=np.int32) for group in problem.groups]
        self.w_rows = [
            self._variables(ks, model) for ks, model in zip(self.stages, models, strict=True)
        ]
        self.p_rows = [
            np.array([problem.param_rows(k) for k in ks], dtype=np.int32).reshape(ks.size, -1)
            for ks in self.stages
        ]
        self.g_rows = [
            problem.g_offset[ks][:, None] + np.arange(m.stage.g.numel())
            for ks, m in zip(self.stages, models, strict=True)
        ]
        self.P_pattern, self.P_places = self._hessian()
        self.P_rows, self.P_overlap = self._joined(self.P_places, self.P_pattern.nnz)
        self.A_pattern, self.A_rows = self._jacobian()
        self.q_places = [w[:, m.gradient_cols] for w, m in self._groups()]
        self.q_rows, self.q_overlap = self._joined(self.q_places, problem.n_vars)

    def _groups(self):
        return zip(self.w_rows, self.models, strict=True)

    def _variables(self, ks: IntArray, model: StageModel) -> IntArray:
        """Rows of (z_k, z_{k+1}) in z, where the two stand side by side."""
        return (self.problem.z_offset[ks][:, None] + np.arange(model.w.numel())).astype(np.int32)

    def _hessian(self) -> tuple[SparsePattern, list[IntArray]]:
        n = self.problem.n_vars
        keys = [
            w[:, m.hessian.cols].astype(np.int64) * n + w[:, m.hessian.rows]
            for w, m in self._groups()
        ]
        pattern = _pattern(keys, n, n)
        return pattern, [pattern.positions(key % n, key // n) for key in keys]

    def _jacobian(self) -> tuple[SparsePattern, list[IntArray]]:
        n, m = self.problem.n_vars, self.problem.n_cons
        keys: list[IntArray] = []
        for g, (w, model) in zip(self.g_rows, self._groups(), strict=True):
            rows, cols = model.jacobian_positions
            keys.append(w[:, cols].astype(np.int64) * m + g[:, rows])
        pattern = _pattern(keys, m, n)
        return pattern, [pattern.positions(key % m, key // m) if m else key for key in keys]

    def _joined(self, places: list[IntArray], size: int) -> tuple[list[IntArray], Overlap]:
        """Gives an entry to the first stage that has it, and a row behind all to the second."""
        stage = np.concatenate(
            [np.repeat(ks, p.shape[1]) for ks, p in zip(self.stages, places, strict=True)]
        )
        flat = np.concatenate([p.ravel() for p in places]).astype(np.int64)
        order = np.lexsort((stage, flat))
        again = np.zeros(flat.size, dtype=bool)
        again[order[1:]] = flat[order[1:]] == flat[order[:-1]]
        targets = flat[again]
        rows = flat.copy()
        rows[again] = size + np.arange(targets.size)
        cuts = np.cumsum([p.size for p in places])[:-1]
        parts = np.split(rows.astype(np.int32), cuts)
        tables = [part.reshape(p.shape) for part, p in zip(parts, places, strict=True)]
        return tables, Overlap(size, targets.astype(np.int32))

    @cached_property
    def w_joined(self) -> tuple[list[IntArray], Overlap]:
        """Rows for values of (z_k, z_{k+1}) that stages add up."""
        return self._joined(self.w_rows, self.problem.n_vars)

    @cached_property
    def stage_rows(self) -> list[IntArray]:
        """Rows for a single value per stage."""
        return [ks[:, None] for ks in self.stages]

    @cached_property
    def p_bar_rows(self) -> list[IntArray]:
        """Rows for the cotangents of parameters.

        ``n_common * (horizon + 1)`` rows hold the share of every stage in x0 and in the shared
        parameters.  Behind them each parameter of a single stage has its row.
        """
        problem = self.problem
        common, n_stages = problem.n_x0 + problem.n_shared, problem.horizon + 1
        tables: list[IntArray] = []
        for ks, p in zip(self.stages, self.p_rows, strict=True):
            first = np.arange(common) * n_stages + ks[:, None]
            tables.append(np.hstack([first, p[:, common:] - common + common * n_stages]))
        return [table.astype(np.int32) for table in tables]

    @cached_property
    def soft_rows(self) -> IntArray:
        """Soft rows of the whole problem in ascending order."""
        rows = [
            (g[:, m.stage.soft_rows]).ravel() for g, m in zip(self.g_rows, self.models, strict=True)
        ]
        return np.sort(np.concatenate(rows)).astype(np.int32)

    @cached_property
    def penalty_rows(self) -> list[IntArray]:
        """Rows of the penalties of each stage: four columns, each of which has all soft rows."""
        n_soft = self.soft_rows.size
        tables: list[IntArray] = []
        for g, model in zip(self.g_rows, self.models, strict=True):
            place = np.searchsorted(self.soft_rows, g[:, model.stage.soft_rows])
            columns = np.arange(4) * n_soft
            tables.append((columns[None, :, None] + place[:, None, :]).reshape(place.shape[0], -1))
        return [table.astype(np.int32) for table in tables]

    @cached_property
    def block_rows(self) -> list[IntArray]:
        """Rows of the raw values of blocks that are projected online."""
        tables, begin = [], 0
        for ks, model in zip(self.stages, self.models, strict=True):
            width = sum(len(b) * (len(b) + 1) // 2 for b in model.hessian.blocks)
            tables.append(
                begin + np.arange(ks.size * width, dtype=np.int32).reshape(ks.size, width)
            )
            begin += ks.size * width
        return tables

    @cached_property
    def block_sets(self) -> list[BlockSet]:
        """The projected blocks of all stages, sorted by size."""
        found: dict[int, list[tuple[IntArray, IntArray, int]]] = {}
        for ks, rows, (w, model) in zip(self.stages, self.block_rows, self._groups(), strict=True):
            begin = 0
            for block in model.hessian.blocks:
                size = len(block)
                i, j = np.tril_indices(size)
                index = np.zeros((size, size), dtype=np.int32)
                index[i, j] = index[j, i] = begin + np.arange(i.size)
                begin += i.size
                for a, k in enumerate(ks.tolist()):
                    at = self.P_pattern.positions(w[a, block[j]], w[a, block[i]])
                    found.setdefault(size, []).append((rows[a][index], at, k % 2))
        return [
            BlockSet(*(np.stack(part) for part in zip(*blocks, strict=True)))
            for _, blocks in sorted(found.items())
        ]


@dataclass(frozen=True, eq=False)
class HostQP:
    """The QP min 1/2 x'Px + q'x, lower <= A x <= upper; values in the order of the patterns."""

    P: np.ndarray
    q: np.ndarray
    A: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    @property
    def is_known(self) -> bool:
        """Whether no value is NaN and all values but the bounds are finite."""
        values = np.concatenate([self.P, self.q, self.A])
        bounds = np.concatenate([self.lower, self.upper])
        return bool(np.isfinite(values).all() and not np.isnan(bounds).any())


def host_qp(assembly: Assembly, z: np.ndarray, params: np.ndarray) -> HostQP:
    """Evaluates the QP at a point; the multipliers of an exact Hessian are zero there.

    Args:
        assembly: Index tables of the problem; its models must have no common parameters.
        z: Trajectory ``[n_vars]``.
        params: Parameter vector ``[n_params]``.
    """
    at = assembly
    tables = (at.P_rows, at.q_rows, at.A_rows, at.g_rows, at.g_rows, at.block_rows)
    m = at.problem.n_cons
    sizes = (at.P_overlap.n_rows, at.q_overlap.n_rows, at.A_pattern.nnz, m, m)
    found = [np.zeros(size) for size in (*sizes, sum(rows.size for rows in at.block_rows))]
    for i, model in enumerate(at.models):
        function = model.host_values("host_qp", _OUTPUTS)
        multipliers = [np.zeros(model.y.numel())] if model.exact else []
        for a in range(at.stages[i].size):
            point = [z[at.w_rows[i][a]], params[at.p_rows[i][a]], *multipliers]
            for array, rows, values in zip(found, tables, function.call(point), strict=True):
                array[rows[i][a]] = values.full().ravel()
    P, q, A, lower, upper, blocks = found
    hessian = _with_blocks(_added(P, at.P_overlap), blocks, at)
    return HostQP(hessian, _added(q, at.q_overlap), A, lower, upper)


def _pattern(keys: list[IntArray], n_rows: int, n_cols: int) -> SparsePattern:
    """The union of entries given as ``column * n_rows + row``."""
    every = np.unique(np.concatenate([key.ravel() for key in keys]))
    if not n_rows:
        every = every[:0]
    rows = every % n_rows if n_rows else every
    cols = every // n_rows if n_rows else every
    return SparsePattern.from_coo(rows, cols, (n_rows, n_cols))


def _added(rows: np.ndarray, overlap: Overlap) -> np.ndarray:
    """Entries of an array after the second contributions have been added."""
    entries = rows[: overlap.size].copy()
    entries[overlap.targets] += rows[overlap.size :]
    return entries


def _with_blocks(P: np.ndarray, raw: np.ndarray, assembly: Assembly) -> np.ndarray:
    """P with the projections of the raw blocks added."""
    for blocks in assembly.block_sets:
        dense = np.nan_to_num(raw[blocks.values])
        eigenvalues, vectors = np.linalg.eigh(dense)
        positive = (vectors * np.maximum(eigenvalues, 0)[:, None, :]) @ vectors.transpose(0, 2, 1)
        i, j = np.tril_indices(dense.shape[-1])
        np.add.at(P, blocks.upper, positive[:, i, j])
    return P
