"""Units in which a problem is well scaled, and the problem in these units.

Reads: an `MPCProblem` in the units of its user.  Produces: `Units`, factors of variables, rows
and the cost, and the problem after a change of variables ``z = S z'``, rows times R and cost times
c.  All factors are powers of two, so nothing is rounded, and there are none where a problem is well
scaled already.  They are found once, on the host, from what does not depend on an instance: bounds,
defaults, a nominal trajectory, and cost and rows at a representative point.

Entries of z with the same place within their node are one *kind* with one factor: states stay
states over the horizon, and stages that were equal stay equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import casadi as ca
import numpy as np

from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.stage import Soft, Stage
from warpmpc.symbolic.derivatives.assembly import Assembly, HostQP, host_qp
from warpmpc.symbolic.derivatives.representative_kkt import (
    representative_params,
    representative_values,
)

# A problem is left as it is if all sizes of variables and rows are within this factor of one, the
# root of the mean squared logarithm of those of its variables is within the second one, and its
# cost within the third one.  Tolerances and the unit of the cost take variables for about one, and
# one that is off does less harm than all of them.
_GOOD, _GOOD_MEAN, _GOOD_COST = 2.0**6, 2.0**3.25, 2.0**12
_MOST_EXPONENT = 40
_LARGEST = 3000  # variables and rows of a problem that is looked at


@dataclass(frozen=True, eq=False)
class Units:
    """Variables are `z` times scaled ones; scaled rows are `rows` and a scaled cost `cost` times.

    Attributes:
        z: Factor of each variable.
        rows: Factor of each row.
        cost: Factor of the cost.
    """

    z: np.ndarray
    rows: np.ndarray
    cost: float

    @property
    def y(self) -> np.ndarray:
        """Multipliers are this times scaled ones."""
        return self.rows / self.cost


def find_units(assembly: Assembly, nominal: np.ndarray | None = None) -> Units | None:
    """The units of a problem, or None if it is well scaled as it is.

    Args:
        assembly: Index tables of the problem.
        nominal: A representative trajectory.
    """
    problem = assembly.problem
    if problem.n_vars + problem.n_cons > _LARGEST:
        return None
    kind = np.concatenate([np.arange(stage.n_z) for stage in problem.stages])
    size = _sizes(assembly, kind, nominal)
    if size is None:
        return None
    S = _powers(size)[kind]
    qp = _representative(assembly, S)
    if not qp.is_known:
        return None
    R = _row_factors(assembly, qp, S)
    P = _diagonal(assembly, qp) * S**2
    cost = float(_powers(1 / _mean(P[P > 0])))
    far = [np.abs(np.log2(part)).max(initial=0) > np.log2(_GOOD) for part in (S, R)]
    mean = np.sqrt(np.mean(np.log2(_powers(size)) ** 2))
    far += [mean > np.log2(_GOOD_MEAN), abs(np.log2(cost)) > np.log2(_GOOD_COST)]
    if not any(far):
        return None
    return Units(S, R, cost)


def problem_in(units: Units, problem: MPCProblem) -> MPCProblem:
    """The problem in other units; parameters stay what they are."""
    made: dict[int, Stage] = {}
    stages: list[Stage] = []
    for k, stage in enumerate(problem.stages):
        group = int(problem.group_of[k])
        if group not in made:
            first, after = problem.z_offset[k], problem.z_offset[k] + stage.n_z
            w = units.z[first : after + stage.z_next.numel()]
            rows = units.rows[problem.g_offset[k] : problem.g_offset[k + 1]]
            made[group] = _stage_in(stage, w, rows, units.cost)
        stages.append(made[group])
    return MPCProblem(
        stages,
        x0=problem.x0,
        shared=problem.shared,
        full_diagonal=problem.full_diagonal,
        defaults=problem.defaults,
        names=problem.names,
        param_names=problem.param_names,
    )


def _stage_in(stage: Stage, w: np.ndarray, rows: np.ndarray, cost: float) -> Stage:
    """One stage in other units.

    Args:
        stage: The stage.
        w: Factors of its variables and of those of the next one.
        rows: Factors of its rows.
        cost: Factor of its cost.
    """
    symbols, R = ca.vertcat(stage.z, stage.z_next), ca.DM(rows)
    given = [stage.cost, stage.residual, stage.g, stage.lower, stage.upper]
    value, residual, g, lower, upper = ca.substitute(given, [symbols], [ca.DM(w) * symbols])
    soft = {}
    for i, row in enumerate(stage.soft_rows.tolist()):
        linear, quadratic = stage.penalties[i, :2], stage.penalties[i, 2:]
        share = cost / float(rows[row])
        of_linear = tuple(share * linear[a] for a in (0, 1))
        of_quadratic = tuple(share / float(rows[row]) * quadratic[a] for a in (0, 1))
        soft[row] = Soft(of_linear, of_quadratic)
    return Stage(
        stage.z,
        stage.z_next,
        stage.p,
        cost * value,
        R * g,
        R * lower,
        R * upper,
        residual=residual,
        weight=cost * stage.weight,
        soft=soft or None,
        n_x=stage.n_x,
        n_u=stage.n_u,
        guess=stage.guess / ca.DM(w[: stage.n_z]),
        tau=stage.tau,
        row_names=stage.row_names,
    )


def _sizes(assembly: Assembly, kind: np.ndarray, nominal: np.ndarray | None) -> np.ndarray | None:
    """Typical size of each kind of variable; None where the problem says nothing.

    A bound tells it, else the nominal trajectory, else the cost: weights make variables of their
    typical size equally expensive.  What neither tells follows from the rows.
    """
    size = _sizes_of_bounds(assembly, kind)
    if nominal is not None:
        seen = _largest(np.abs(nominal), kind)
        size = np.where(np.isnan(size) & (seen > 0), seen, size)
    qp = _representative(assembly, np.nan_to_num(size, nan=1.0)[kind])
    if not qp.is_known:
        return None
    weight = _largest(_diagonal(assembly, qp), kind)
    heavy, known = weight > 0, ~np.isnan(size)
    both = heavy & known
    level = _mean((weight * size**2)[both]) if both.any() else _mean(weight[heavy])
    size = np.where(heavy & ~known, np.sqrt(level / np.where(heavy, weight, 1)), size)
    for _ in range(size.size):
        more = _sizes_of_rows(assembly, qp, kind, size)
        if not (np.isnan(size) & ~np.isnan(more)).any():
            break
        size = np.where(np.isnan(size), more, size)
    return np.nan_to_num(size, nan=1.0)


def _sizes_of_bounds(assembly: Assembly, kind: np.ndarray) -> np.ndarray:
    """Largest bound of each kind of variable that does not depend on the instance; NaN: none."""
    problem, A = assembly.problem, assembly.A_pattern
    z = np.zeros(problem.n_vars)
    # Unknown parameters are NaN here, and so are bounds that depend on them.
    qp = host_qp(assembly, z, problem.defaults)
    single = np.bincount(A.row_idx, minlength=problem.n_cons) == 1
    found = np.full(kind.max() + 1, np.nan)
    columns = np.repeat(np.arange(A.n_cols), np.diff(A.col_ptr))
    for entry in np.flatnonzero(single[A.row_idx]).tolist():
        row, slope = A.row_idx[entry], qp.A[entry]
        bounds = np.array([qp.lower[row], qp.upper[row]])
        bounds = np.abs(bounds[np.isfinite(bounds)])
        if np.isfinite(slope) and slope and bounds.size and bounds.max() > 0:
            at = kind[columns[entry]]
            found[at] = np.fmax(found[at], bounds.max() / abs(slope))
    return found


def _sizes_of_rows(
    assembly: Assembly, qp: HostQP, kind: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """Sizes of kinds that make as much difference in a row as those that are known."""
    A = assembly.A_pattern
    columns = np.repeat(np.arange(A.n_cols), np.diff(A.col_ptr))
    of_entry, slope = size[kind[columns]], np.abs(qp.A)
    known = ~np.isnan(of_entry) & (slope > 0)
    share = np.zeros(assembly.problem.n_cons)
    np.maximum.at(share, A.row_idx[known], (slope * of_entry)[known])
    other = np.isnan(of_entry) & (slope > 0) & (share[A.row_idx] > 0)
    found = np.full(size.size, np.nan)
    for at in np.unique(kind[columns[other]]).tolist():
        mine = other & (kind[columns] == at)
        found[at] = _mean(share[A.row_idx[mine]] / slope[mine])
    return found


def _row_factors(assembly: Assembly, qp: HostQP, S: np.ndarray) -> np.ndarray:
    """Factors with which the largest coefficient of every row is about one."""
    A, problem = assembly.A_pattern, assembly.problem
    columns = np.repeat(np.arange(A.n_cols), np.diff(A.col_ptr))
    largest = np.zeros(problem.n_cons)
    np.maximum.at(largest, A.row_idx, np.abs(qp.A) * S[columns])
    for rows in assembly.g_rows:
        if rows.size:
            largest[rows] = largest[rows].max(axis=0)
    return _powers(1 / np.where(largest > 0, largest, 1))


def _representative(assembly: Assembly, S: np.ndarray) -> HostQP:
    """The QP at a point of typical size."""
    problem = assembly.problem
    z = np.concatenate([representative_values(stage.n_z) for stage in problem.stages])
    return host_qp(assembly, S * z, representative_params(problem.defaults))


def _diagonal(assembly: Assembly, qp: HostQP) -> np.ndarray:
    P, found = assembly.P_pattern, np.zeros(assembly.problem.n_vars)
    on = P.row_idx == P.col_idx
    found[P.row_idx[on]] = np.maximum(qp.P[on], 0)
    return found


def _largest(values: np.ndarray, kind: np.ndarray) -> np.ndarray:
    found = np.zeros(kind.max() + 1)
    np.maximum.at(found, kind, values)
    return found


def _mean(values: np.ndarray) -> float:
    """Geometric mean; one of nothing."""
    return float(np.exp(np.log(values).mean())) if values.size else 1.0


def _powers(values: np.ndarray | float) -> np.ndarray:
    """The nearest powers of two."""
    exponents = np.clip(np.round(np.log2(values)), -_MOST_EXPONENT, _MOST_EXPONENT)
    return np.exp2(exponents)
