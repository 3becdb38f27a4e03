"""The QP of one instance at a point, computed on the host.

Reads: an `Assembly` and a point.  Produces: `HostQP`, in float64, without compiling anything: for
what is decided or scaled once, before there are kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpmpc.symbolic.derivatives.assembly import Assembly, Overlap

_OUTPUTS = ("P", "q", "A", "lower", "upper", "blocks")


@dataclass(frozen=True, eq=False)
class HostQP:
    """min half x'Px + q'x subject to lower <= A x <= upper; values in the order of the patterns."""

    P: np.ndarray
    q: np.ndarray
    A: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    @property
    def is_known(self) -> bool:
        """Whether all numbers are finite; bounds need not be."""
        numbers = np.concatenate([self.P, self.q, self.A])
        bounds = np.concatenate([self.lower, self.upper])
        return bool(np.isfinite(numbers).all() and not np.isnan(bounds).any())


def host_qp(assembly: Assembly, z: np.ndarray, params: np.ndarray) -> HostQP:
    """The QP at a point; multipliers in an exact Hessian are zero.

    Args:
        assembly: The problem; no parameter may be common.
        z: Trajectory.
        params: Parameter vector.
    """
    at = assembly
    tables = (at.P_rows, at.q_rows, at.A_rows, at.g_rows, at.g_rows, at.block_rows)
    m = at.problem.n_cons
    sizes = (at.P_overlap.n_rows, at.q_overlap.n_rows, at.A_pattern.nnz, m, m)
    found = [np.zeros(size) for size in (*sizes, sum(rows.size for rows in at.block_rows))]
    for i, model in enumerate(at.models):
        function = model.linearize("host_qp", _OUTPUTS)
        multipliers = [np.zeros(model.y.numel())] if model.exact else []
        for a in range(at.stages[i].size):
            point = [z[at.w_rows[i][a]], params[at.p_rows[i][a]], *multipliers]
            for array, rows, values in zip(found, tables, function.call(point), strict=True):
                array[rows[i][a]] = values.full().ravel()
    P, q, A, lower, upper, blocks = found
    hessian = _with_blocks(_added(P, at.P_overlap), blocks, at)
    return HostQP(hessian, _added(q, at.q_overlap), A, lower, upper)


def _added(rows: np.ndarray, overlap: Overlap) -> np.ndarray:
    """Entries with second contributions added."""
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
