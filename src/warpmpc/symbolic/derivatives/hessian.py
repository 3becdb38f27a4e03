"""The Hessian that a stage hands to the QP, positive semidefinite by construction.

Reads: cost, residuals and constraints of a stage.  Produces: `StageHessian`, the upper triangle
over (z, z_next) as expressions, and the blocks whose eigenvalues have to be looked at online.

"gauss_newton" uses J'WJ of the residuals and the exact Hessian of cost expressions; "exact" the
Hessian of the Lagrangian.  What is not semidefinite by form is convexified: the variables of a
Hessian fall into groups that it does not couple.  A group of one variable keeps the positive part
of its entry, constant groups are projected here, all others as `HessianRule.convexify` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import casadi as ca
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from warpmpc.problem.stage import Stage
from warpmpc.symbolic.pattern import IntArray


@dataclass(frozen=True)
class HessianRule:
    """Which second derivatives the QP gets.

    Attributes:
        kind: "gauss_newton" or "exact".
        convexify: "project" (negative eigenvalues become zero) or "gershgorin" (diagonal entries
            grow until they dominate their rows: cheaper, farther from the Hessian).
        damping: Added to the diagonal.
    """

    kind: Literal["gauss_newton", "exact"] = "gauss_newton"
    convexify: Literal["project", "gershgorin", "none"] = "project"
    damping: float = 0.0


@dataclass(frozen=True, eq=False)
class StageHessian:
    """Upper triangle of a stage's Hessian over (z, z_next).

    Attributes:
        rows: Local row of each value.
        cols: Local column.
        values: Expressions, one per entry; zero where only a block contributes.
        blocks: Local variables of each block that is projected online, ascending.
        block_values: Its upper triangle, row by row.
    """

    rows: IntArray
    cols: IntArray
    values: ca.SX
    blocks: list[IntArray] = field(default_factory=list)
    block_values: list[ca.SX] = field(default_factory=list)


def stage_hessian(
    stage: Stage, y: ca.SX, rule: HessianRule, *, full_diagonal: bool
) -> StageHessian:
    """The Hessian of one stage.

    Args:
        stage: What the user wrote.
        y: Multipliers of its rows, for the exact Hessian.
        rule: Which second derivatives.
        full_diagonal: Whether all diagonal entries of z exist, even if zero.
    """
    w = ca.vertcat(stage.z, stage.z_next)
    rest = stage.cost
    certain = ca.SX(w.numel(), w.numel())
    if rule.kind == "exact":
        rest = rest + 0.5 * ca.dot(stage.weight, stage.residual**2) + ca.dot(y, stage.g)
    elif stage.residual.numel():
        J = ca.jacobian(stage.residual, w)
        certain = J.T @ ca.diag(_not_negative(stage.weight)) @ J
    if full_diagonal:
        own = ca.Sparsity.diag(stage.z.numel())
        own.enlarge(w.numel(), w.numel(), range(own.size1()), range(own.size2()))
        certain = certain + ca.SX(own, rule.damping)
    hessian, _ = ca.hessian(rest, w)
    safe, blocks, raw = _convexified(hessian, rule.convexify)
    total = ca.triu(certain + safe)
    cols, rows = (np.asarray(part, dtype=np.int32) for part in _positions(total))
    return StageHessian(rows, cols, nonzeros(total), blocks, raw)


def nonzeros(matrix: ca.SX) -> ca.SX:
    """Stored entries in column-major order as a column."""
    # Selected nonzeros of a row are a row.
    return ca.vec(matrix.nz[:]) if matrix.nnz() else ca.SX(0, 1)


def _positions(matrix: ca.SX) -> tuple[list[int], list[int]]:
    """Column and row of each stored entry."""
    rows, cols = matrix.sparsity().get_triplet()
    return cols, rows


def _not_negative(weight: ca.SX) -> ca.SX:
    """Weights that are given online could be negative, and P must not be indefinite."""
    entries = [w if w.is_constant() else ca.fmax(w, 0) for w in ca.vertsplit(weight)]
    return ca.vertcat(*entries)


def _convexified(hessian: ca.SX, how: str) -> tuple[ca.SX, list[IntArray], list[ca.SX]]:
    """A semidefinite matrix, and the groups of variables that are left to be projected online.

    Entries of those groups are structural zeros of the matrix.
    """
    n = hessian.size1()
    if not hessian.nnz() or how == "none":
        return hessian, [], []
    rows, cols = hessian.sparsity().get_triplet()
    pattern = sp.csc_matrix((np.ones(len(rows)), (rows, cols)), shape=(n, n))
    _, labels = connected_components(pattern, directed=False)
    safe, blocks, raw = ca.SX(n, n), [], []
    used = np.flatnonzero(np.diff(pattern.indptr))
    for label in np.unique(labels[used]):
        members = np.flatnonzero(labels == label)
        index = members.tolist()
        block = ca.densify(hessian[index, index])
        if block.is_constant():
            block = ca.SX(_projected(np.array(ca.DM(block))))
        elif len(index) == 1:
            block = ca.fmax(block, 0)
        elif how == "gershgorin":
            block = _dominant(block)
        else:
            blocks.append(members.astype(np.int32))
            raw.append(ca.vertcat(*[block[i, j] for i in range(len(index)) for j in range(i + 1)]))
            block = ca.SX(ca.Sparsity.dense(*block.shape), 0)
        safe = safe + _embedded(block, index, n)
    return safe, blocks, raw


def _embedded(block: ca.SX, index: list[int], n: int) -> ca.SX:
    """A dense block among n variables; its zeros stay structural."""
    pattern = block.sparsity()
    values = block.nz[:]
    pattern.enlarge(n, n, index, index)
    return ca.SX(pattern, values)


def _projected(block: np.ndarray) -> np.ndarray:
    """The nearest semidefinite matrix; one that is semidefinite stays what it is."""
    eigenvalues, vectors = np.linalg.eigh(block)
    if eigenvalues[0] >= -1e-12 * max(1.0, abs(eigenvalues[-1])):
        return block
    return (vectors * np.maximum(eigenvalues, 0)) @ vectors.T


def _dominant(block: ca.SX) -> ca.SX:
    """Diagonal entries that are at least the sum of the others in their row (Gershgorin)."""
    size = block.size1()
    dominant = ca.SX(block)
    for i in range(size):
        others = sum((ca.fabs(block[i, j]) for j in range(size) if j != i), ca.SX(0))
        dominant[i, i] = ca.fmax(block[i, i], others)
    return dominant
