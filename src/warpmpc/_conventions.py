"""Conventions of all solvers: status codes, and when a bound is absent or a row an equality.

Layers from the symbolic analysis to the generated kernels depend on them, so they stand below all
of them.  The numbers are OSQP's.
"""

from __future__ import annotations

from enum import IntEnum


class FactorStatus(IntEnum):
    """Outcome of one factorisation, per instance."""

    OK = 0
    ZERO_PIVOT = 1
    NON_FINITE = 2


class Status(IntEnum):
    """Outcome of a quadratic program, per instance.

    SOLVED: residuals, and the duality gap if it is asked for, are within tolerance.
    MAX_ITER: they are not (yet).
    PRIMAL_INFEASIBLE: no point satisfies the rows.
    DUAL_INFEASIBLE: the cost is unbounded below.
    NON_FINITE: data or iterates are not finite.
    INVALID_BOUNDS: bounds are crossed, or a penalty is negative.
    NON_CONVEX: P has a direction of negative curvature that the equalities allow; x is where the
        iteration ended, which need not be a minimiser.
    """

    SOLVED = 0
    MAX_ITER = 1
    PRIMAL_INFEASIBLE = 2
    DUAL_INFEASIBLE = 3
    NON_FINITE = 4
    INVALID_BOUNDS = 5
    NON_CONVEX = 6


class MPCStatus(IntEnum):
    """Outcome of an SQP iteration or solve, per instance.

    CONVERGED: the optimality conditions hold within tolerance.
    MAX_ITER: they do not (yet); the iterate is usable.
    QP_INFEASIBLE: the last quadratic program has no solution; in an interior-point method the rows
        cannot be met near the iterate.
    LINE_SEARCH_FAILED: no step length was acceptable in the last iteration.
    NON_FINITE: data are not finite.
    """

    CONVERGED = 0
    MAX_ITER = 1
    QP_INFEASIBLE = 2
    LINE_SEARCH_FAILED = 3
    NON_FINITE = 4


class GradientStatus(IntEnum):
    """Whether an instance has a gradient: see `gradient_status` of `MPCSolver` and `QPSolver`.

    VALID: it has.
    NOT_CONVERGED: it is zero, because the instance has no solution to differentiate at.
    UNSOLVED: it is zero, because its linear system was not solved accurately.
    """

    VALID = 0
    NOT_CONVERGED = 1
    UNSOLVED = 2


class RowClass(IntEnum):
    """Codes of OSQP for the rho that a constraint row has."""

    FREE = -1
    INEQUALITY = 0
    EQUALITY = 1


INFINITY = 1e20  # bounds beyond it are absent, sides with penalties beyond it are hard
SCALE_MIN = 1e-4  # the smallest factor of the Ruiz equilibration
BOUND_LARGE = INFINITY * SCALE_MIN  # a scaled bound of this size is absent
EQUALITY_TOLERANCE = 1e-4  # a row whose scaled bounds are closer is an equality
RHO_MIN = 1e-6  # rho of free rows, and the smallest rho that the adaptation chooses
