"""One stage with its derivatives: the functions that the kernels of the SQP iteration evaluate.

Reads: a `Stage` and the symbols that all stages share.  Produces: a `StageModel`, whose methods
return CasADi functions over the same few arrays: w = (z, z_next), p = (x0, shared, own parameters),
which may come in two parts, and the multipliers y.  Outputs list structural nonzeros only.

The Hessian of a stage (`StageHessian`) is positive semidefinite by construction.  The kind
"gauss_newton" uses J'WJ of the residuals and the exact Hessian of cost expressions, the kind
"exact" the Hessian of the Lagrangian.  Parts that are not semidefinite by their form are
convexified: the variables of a Hessian fall into groups that it does not couple.  A group of one
variable keeps the positive part of its entry, constant groups are projected here, and all others
are treated as `HessianRule.convexify` says, some of them online.

The bounds of a stage tell the `RowKind` of a row before any value is known.  Kernels that know the
kind read neither 1/rho nor a second bound from memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Literal

import casadi as ca
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from warpmpc._conventions import INFINITY
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.stage import Stage
from warpmpc.symbolic.derivatives import vertex_elimination
from warpmpc.symbolic.pattern import IntArray

_DEPTH = 10  # how deep two expressions are compared
LONG = 1000  # instructions from which on more is done to save some of the derivative's


@dataclass(frozen=True)
class HessianRule:
    """The choice of second derivatives for the QP.

    Attributes:
        kind: "gauss_newton" or "exact".
        convexify: "project" sets negative eigenvalues to zero; "gershgorin" raises diagonal entries
            until they dominate their rows, which is cheaper and farther from the Hessian; "none"
            leaves the Hessian as it is.
        damping: Constant that is added to the diagonal.
    """

    kind: Literal["gauss_newton", "exact"] = "gauss_newton"
    convexify: Literal["project", "gershgorin", "none"] = "project"
    damping: float = 0.0


@dataclass(frozen=True, eq=False)
class StageHessian:
    """Upper triangle of the Hessian of a stage over (z, z_next).

    Attributes:
        rows: Local row of each value.
        cols: Local column of each value.
        values: Expressions, one per entry; zero where only a block contributes.
        blocks: Local variables of each block that is projected online, in ascending order.
        block_values: Upper triangle of each block, row by row.
    """

    rows: IntArray
    cols: IntArray
    values: ca.SX
    blocks: list[IntArray] = field(default_factory=list)
    block_values: list[ca.SX] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class StageModel:
    """One stage with the derivatives that a QP is built from.

    Attributes:
        stage: The stage as the user wrote it.
        w: Symbols of the variables (z, z_next).
        p: Symbols of the parameters (x0, shared, own).
        y: Symbols of the multipliers of the rows.
        hessian: Upper triangle of the Hessian over w.
        exact: Whether the Hessian depends on the multipliers.
        common: Parameters that form an input of their own behind the others, or None if there is
            no such input.
    """

    stage: Stage
    w: ca.SX
    p: ca.SX
    y: ca.SX
    hessian: StageHessian
    exact: bool
    common: IntArray | None = None

    @classmethod
    def build(cls, problem: MPCProblem, stage: Stage, rule: HessianRule) -> StageModel:
        """Differentiates one stage of a problem."""
        w = ca.vertcat(stage.z, stage.z_next)
        p = ca.vertcat(problem.x0, problem.shared, stage.p)
        y = ca.SX.sym("y", stage.g.numel())
        hessian = stage_hessian(stage, y, rule, full_diagonal=problem.full_diagonal)
        return cls(stage, w, p, y, hessian, rule.kind == "exact")

    @property
    def n_z(self) -> int:
        """Number of variables of the stage itself."""
        return self.stage.z.numel()

    @property
    def total_cost(self) -> ca.SX:
        """Cost expression and residuals, without the penalties of soft rows."""
        return self.stage.cost + 0.5 * ca.dot(self.stage.weight, self.stage.residual**2)

    @cached_property
    def _slope(self) -> ca.SX:
        """Gradient of the cost as a sparse column."""
        return ca.jacobian(self.total_cost, self.w).T

    @property
    def gradient(self) -> ca.SX:
        """Gradient of the cost: all entries of z, then the structural nonzeros of z_next."""
        own, other = self._slope[: self.n_z], self._slope[self.n_z :]
        return ca.vertcat(ca.densify(own), nonzeros(other))

    @cached_property
    def gradient_cols(self) -> IntArray:
        """Local variable of each entry of the gradient."""
        beyond = [j for j in self._slope.sparsity().row() if j >= self.n_z]
        return np.array([*range(self.n_z), *beyond], dtype=np.int32)

    @cached_property
    def jacobian(self) -> ca.SX:
        """Sparse Jacobian of the rows over w, in few operations."""
        return sparse_jacobian(self.stage.g, self.w)

    @cached_property
    def _quick_jacobian(self) -> ca.SX:
        """The same to rounding, found quickly."""
        return ca.jacobian(self.stage.g, self.w)

    @cached_property
    def jacobian_positions(self) -> tuple[IntArray, IntArray]:
        """Local row and variable of each entry of the Jacobian."""
        rows, cols = self._quick_jacobian.sparsity().get_triplet()
        return np.array(rows, dtype=np.int32), np.array(cols, dtype=np.int32)

    def qp_expressions(self, *, quick: bool = False) -> dict[str, ca.SX]:
        """Contributions of the stage to the QP at a point, by name.

        Args:
            quick: Whether finding them matters more than the time that evaluating them takes.
        """
        stage = self.stage
        return {
            "P": self.hessian.values,
            "q": self.gradient,
            "A": nonzeros(self._quick_jacobian if quick else self.jacobian),
            "lower": _distance(stage.lower, stage.g),
            "upper": _distance(stage.upper, stage.g),
            "soft": ca.vec(stage.penalties),
            "blocks": ca.vertcat(ca.SX(0, 1), *self.hessian.block_values),
        }

    def linearize(self, name: str, outputs: Sequence[str]) -> ca.Function:
        """Function from (w, p), and y if the Hessian is exact, to the named contributions."""
        found = self.qp_expressions()
        return self._function(name, self._point, [found[which] for which in outputs])

    def host_values(self, name: str, outputs: Sequence[str]) -> ca.Function:
        """`linearize` to rounding, for a few points on the host.

        To save operations takes longer there than to evaluate them.
        """
        found = self.qp_expressions(quick=True)
        return ca.Function(name, self._point, [found[which] for which in outputs])

    def linearize_part(
        self, name: str, picked: Mapping[str, IntArray], rows: Collection[int], *, with_cost: bool
    ) -> ca.Function:
        """Like `linearize`, for some elements of each contribution.

        The outputs of `evaluate_part` for the given rows follow.
        """
        found = self.qp_expressions()
        outputs = [
            ca.vertcat(ca.SX(0, 1), *(found[which][i] for i in elements.tolist()))
            for which, elements in picked.items()
        ]
        outputs += self._values(rows, with_cost=with_cost)
        return self._function(name, self._point, outputs)

    def newton(self, name: str) -> ca.Function:
        """Function from (w, p, y) to what a Newton step on the optimality conditions needs.

        These are P, q and A as in `linearize`, and the gradient of the Lagrangian with respect to
        all of w.
        """
        found = self.qp_expressions()
        slope = self._slope + ca.jtimes(self.stage.g, self.w, self.y, True)
        outputs = [found["P"], found["q"], found["A"], ca.densify(slope)]
        return self._function(name, [*self._cost_inputs, self.y], outputs)

    def values(self, name: str) -> ca.Function:
        """Function from (w, p) to the cost without penalties and the values of the rows."""
        outputs = [ca.densify(self.total_cost), ca.densify(self.stage.g)]
        return self._function(name, self._cost_inputs, outputs)

    def bounds(self, name: str, *, soft: bool) -> ca.Function:
        """Function from (w, p) to the bounds of the rows, and the penalties of `soft` ones."""
        outputs = [ca.densify(self.stage.lower), ca.densify(self.stage.upper)]
        if soft:
            outputs.append(ca.vec(self.stage.penalties))
        return self._function(name, self._cost_inputs, outputs)

    @property
    def _point(self) -> list[ca.SX]:
        return [*self._cost_inputs, self.y] if self.exact else self._cost_inputs

    @property
    def _cost_inputs(self) -> list[ca.SX]:
        """Variables and parameters, of which the common ones come last."""
        if self.common is None:
            return [self.w, self.p]
        own = np.setdiff1d(np.arange(self.p.numel()), self.common)
        parts = (
            ca.vertcat(ca.SX(0, 1), *(self.p[int(i)] for i in at)) for at in (own, self.common)
        )
        return [self.w, *parts]

    def evaluate(self, name: str) -> ca.Function:
        """Function from (w, p) to the cost with penalties and three measures of the violations.

        These are the sum of squares, the sum, and the largest one.
        """
        return self.evaluate_part(name, range(self.stage.g.numel()), with_cost=True)

    def evaluate_part(self, name: str, rows: Collection[int], *, with_cost: bool) -> ca.Function:
        """Like `evaluate`, for some rows, and with the penalties alone unless `with_cost`."""
        return self._function(name, self._cost_inputs, self._values(rows, with_cost=with_cost))

    def _values(self, rows: Collection[int], *, with_cost: bool) -> list[ca.SX]:
        cost = self.total_cost if with_cost else ca.SX(0)
        beyond, larger = self._hard_violations(rows)
        worst = ca.mmax(larger) if larger.numel() else ca.SX(0)
        outputs = [cost + self._penalty(rows), ca.sumsqr(beyond), ca.sum1(beyond), worst]
        return [ca.densify(o) for o in outputs]

    def pull_back(self, name: str, outputs: Sequence[str], *, of_w: bool) -> ca.Function:
        """Function from the cotangents of contributions to those of (w, p), or of p alone.

        Args:
            name: Name of the function.
            outputs: Contributions that have cotangents, which follow the inputs of `linearize`.
            of_w: Whether the cotangent of w is an output as well.
        """
        found = self.qp_expressions()
        bars = [ca.SX.sym(f"{which}_bar", found[which].numel()) for which in outputs]
        pairing = sum(
            (ca.dot(bar, found[o]) for bar, o in zip(bars, outputs, strict=True)), ca.SX(0)
        )
        wanted = [self.w, self.p] if of_w else [self.p]
        results = [ca.densify(ca.gradient(pairing, symbols)) for symbols in wanted]
        return self._function(name, [*self._point, *bars], results)

    def push_forward(self, name: str, outputs: Sequence[str], *, of_w: bool) -> ca.Function:
        """Function from changes of (w, p), or of p alone, to those of contributions.

        Args:
            name: Name of the function.
            outputs: Contributions whose changes are wanted.
            of_w: Whether w changes; its change comes between the inputs of `linearize` and the
                change of p.
        """
        found = self.qp_expressions()
        symbols = [self.w, self.p] if of_w else [self.p]
        moves = [ca.SX.sym(f"move_{i}", s.numel()) for i, s in enumerate(symbols)]
        given = ca.vertcat(*symbols), ca.vertcat(*moves)
        results = [ca.densify(ca.jtimes(found[which], *given)) for which in outputs]
        return self._function(name, [*self._point, *moves], results)

    def cost_pull_back(self, name: str) -> ca.Function:
        """Function from (w, p) to the gradients of the cost with penalties."""
        cost = self.total_cost + self._penalty(range(self.stage.g.numel()))
        results = [ca.densify(ca.gradient(cost, symbols)) for symbols in (self.w, self.p)]
        return self._function(name, self._cost_inputs, results)

    @cached_property
    def _soft_number(self) -> dict[int, int]:
        """Number of each soft row among the soft rows."""
        return {int(row): a for a, row in enumerate(self.stage.soft_rows)}

    def _sides(self, i: int) -> Iterator[tuple[ca.SX, tuple[ca.SX, ca.SX] | None]]:
        """Distance of a row beyond each of its bounds, and the penalties of soft bounds."""
        stage, soft = self.stage, self._soft_number
        ends = (
            (stage.lower[i], -np.inf, stage.lower[i] - stage.g[i]),
            (stage.upper[i], np.inf, stage.g[i] - stage.upper[i]),
        )
        for side, (bound, absent, excess) in enumerate(ends):
            if _is(bound, absent):
                continue
            penalties = None
            if i in soft and not _is(stage.penalties[soft[i], side], np.inf):
                penalties = (stage.penalties[soft[i], side], stage.penalties[soft[i], 2 + side])
            yield excess, penalties

    def _hard_violations(self, rows: Collection[int]) -> tuple[ca.SX, ca.SX]:
        """Sum of the violations of both bounds of each row, and the larger one of them.

        They differ for crossed bounds only.  The sum keeps a violation that is NaN, for which
        `fmax` would return the other one.
        """
        sums, larger = [], []
        for i in rows:
            sides = [excess for excess, soft in self._sides(i) if soft is None]
            if len(sides) == 2 and are_equal(self.stage.lower[i], self.stage.upper[i]):
                sums.append(ca.fabs(sides[0]))
                larger.append(sums[-1])
                continue
            ramps = [_ramp(side) for side in sides]
            ramps += [
                ca.if_else(_is_hard(soft[0]), _ramp(excess), 0)
                for excess, soft in self._sides(i)
                if soft is not None and not soft[0].is_constant()
            ]
            if ramps:
                sums.append(sum(ramps))
                larger.append(ca.fmax(*ramps) if len(ramps) == 2 else ramps[0])
        none = ca.SX(0, 1)
        return ca.vertcat(none, *sums), ca.vertcat(none, *larger)

    def _penalty(self, rows: Collection[int]) -> ca.SX:
        """Cost of the violations of soft bounds."""
        cost = ca.SX(0)
        for way, soft in (side for i in rows for side in self._sides(i)):
            if soft is not None:
                excess, (linear, quadratic) = _ramp(way), soft
                if not linear.is_constant():
                    # Not the product is selected: its derivative would be zero times infinity.
                    hard = _is_hard(linear)
                    linear, quadratic = (ca.if_else(hard, 0, weight) for weight in soft)
                cost += linear * excess + 0.5 * quadratic * excess**2
        return cost

    @staticmethod
    def _function(name: str, inputs: list[ca.SX], outputs: list[ca.SX]) -> ca.Function:
        return ca.Function(name, inputs, ca.cse(outputs))


def stage_hessian(
    stage: Stage, y: ca.SX, rule: HessianRule, *, full_diagonal: bool
) -> StageHessian:
    """Builds the Hessian of one stage.

    Args:
        stage: The stage as the user wrote it.
        y: Symbols for the multipliers of its rows, which an exact Hessian depends on.
        rule: The choice of second derivatives.
        full_diagonal: Whether all diagonal entries of z exist, even if they are zero.
    """
    w = ca.vertcat(stage.z, stage.z_next)
    rest = stage.cost
    certain = ca.SX(w.numel(), w.numel())
    if rule.kind == "exact":
        rest = rest + 0.5 * ca.dot(stage.weight, stage.residual**2) + ca.dot(y, stage.g)
    elif stage.residual.numel():
        J = sparse_jacobian(stage.residual, w)
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


class RowKind(Enum):
    """The bounds that a row has in every instance."""

    UNKNOWN = "depends on the instance"
    EQUALITY = "two equal bounds"
    BOTH = "two bounds apart"
    LOWER = "a lower bound"
    UPPER = "an upper bound"


def row_kinds(problem: MPCProblem, apart: float) -> list[RowKind]:
    """The kind of each row of a problem.

    Args:
        problem: The problem.
        apart: Distance of constant bounds up to which a row counts as an equality online.
    """
    kinds = [RowKind.UNKNOWN] * problem.n_cons
    for group in problem.groups:
        stage = group.stage
        for i in range(stage.g.numel()):
            kind = _kind(stage.lower[i], stage.upper[i], apart)
            for k in group.ks:
                kinds[int(problem.g_offset[k]) + i] = kind
    return kinds


def sparse_jacobian(expressions: ca.SX, variables: ca.SX) -> ca.SX:
    """The Jacobian of a column; of a long one in few operations."""
    function = ca.Function("f", [variables], [expressions], {"allow_free": True})
    if function.n_instructions() < LONG:
        return ca.jacobian(expressions, variables)
    return vertex_elimination.jacobian(expressions, variables)


def _is_hard(penalty: ca.SX) -> ca.SX:
    """Whether a linear penalty keeps its bound hard."""
    return penalty >= INFINITY


def are_equal(lower: ca.SX, upper: ca.SX) -> bool:
    """Whether two bounds are equal in every instance."""
    if lower.is_constant() and upper.is_constant():
        return bool(np.isfinite(float(lower))) and float(lower) == float(upper)
    return bool(ca.is_equal(lower, upper, _DEPTH))


def nonzeros(matrix: ca.SX) -> ca.SX:
    """Stored entries in column-major order as a column."""
    # Selected nonzeros of a row are a row.
    return ca.vec(matrix.nz[:]) if matrix.nnz() else ca.SX(0, 1)


def constants_of(vector: ca.SX) -> list[float | None]:
    """The value of each element that is a constant, and None for the others."""
    elements = [vector[i] for i in range(vector.numel())]
    return [float(e) if e.is_constant() else None for e in elements]


def _positions(matrix: ca.SX) -> tuple[list[int], list[int]]:
    """Column and row of each stored entry."""
    rows, cols = matrix.sparsity().get_triplet()
    return cols, rows


def _not_negative(weight: ca.SX) -> ca.SX:
    """Weights whose negative values count as zero, because P must not be indefinite."""
    entries = [w if w.is_constant() else ca.fmax(w, 0) for w in ca.vertsplit(weight)]
    return ca.vertcat(*entries)


def _convexified(hessian: ca.SX, how: str) -> tuple[ca.SX, list[IntArray], list[ca.SX]]:
    """A semidefinite matrix, and the groups of variables whose blocks are projected online.

    The entries of those groups are structural zeros of the matrix.
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
    """The nearest semidefinite matrix; a semidefinite one is returned unchanged."""
    eigenvalues, vectors = np.linalg.eigh(block)
    if eigenvalues[0] >= -1e-12 * max(1.0, abs(eigenvalues[-1])):
        return block
    return (vectors * np.maximum(eigenvalues, 0)) @ vectors.T


def _dominant(block: ca.SX) -> ca.SX:
    """The block with diagonal entries raised to at least the sum of their row (Gershgorin)."""
    size = block.size1()
    dominant = ca.SX(block)
    for i in range(size):
        others = sum((ca.fabs(block[i, j]) for j in range(size) if j != i), ca.SX(0))
        dominant[i, i] = ca.fmax(block[i, i], others)
    return dominant


def _is(entry: ca.SX, value: float) -> bool:
    """Whether an expression is this constant."""
    return bool(entry.is_constant()) and float(entry) == value


def _ramp(excess: ca.SX) -> ca.SX:
    """The positive part; unlike `fmax`, it does not count NaN as no violation."""
    return ca.if_else(excess < 0, 0, excess)


def _distance(bounds: ca.SX, rows: ca.SX) -> ca.SX:
    """Bounds minus rows, where absent bounds stay constants."""
    entries = [
        bounds[i] if _is(bounds[i], np.inf) or _is(bounds[i], -np.inf) else bounds[i] - rows[i]
        for i in range(rows.numel())
    ]
    return ca.vertcat(ca.SX(0, 1), *entries)


def _kind(lower: ca.SX, upper: ca.SX, apart: float) -> RowKind:
    below, above = (float(b) if b.is_constant() else None for b in (lower, upper))
    if (below == -np.inf) != (above == np.inf):
        return RowKind.UPPER if below == -np.inf else RowKind.LOWER
    if are_equal(lower, upper):
        return RowKind.EQUALITY
    if below is not None and above is not None and np.isfinite([below, above]).all():
        return RowKind.BOTH if above - below > 2 * apart else RowKind.UNKNOWN
    return RowKind.UNKNOWN
