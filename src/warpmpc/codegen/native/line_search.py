"""C++ source of the SQP iteration behind its QP: acceptance, choice of a step, verdict, report.

Reads: settings as values.  Produces: conditions, macros and statements that the three-launch engine
and the on-chip engine share.  The JAX side of each formula is in `mpc.line_search` (acceptance and
choice) and `mpc.sqp.general` (verdict).

A condition is a C++ expression in these names, all of type SCALAR:

    step                        step length of the trial point
    cost, squares, absolute     cost, sum of squares and sum of the violations at the trial point
    theta                       violation measure at the trial point
    cost_0, absolute_0, theta_0 the same at the iterate; cost_0 includes the rounding slack
    slope                       change of the cost along the direction to first order
    weight                      largest multiplier
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from warpmpc.codegen.emit_native import Access, literal
from warpmpc.codegen.ir import ScalarProgram
from warpmpc.codegen.kernel_source import inlined

FULL_CONDITION = "true"


def filter_condition(
    dtype: str, *, gamma: float, armijo: float, theta_min: float, theta_max: float, converges: bool
) -> str:
    """The condition of `mpc.line_search.filter_accepts`.

    Args:
        dtype: "float32" or "float64".
        gamma: Margin by which cost or violation must fall.
        armijo: Share of the predicted decrease that the cost must reach.
        theta_min: Violation below which only the cost counts.
        theta_max: Violation above which only the violation counts.
        converges: Whether the iteration runs until it converges.
    """
    less = f"theta < {literal(1 - gamma, dtype)} * theta_0"
    least = literal(theta_min, dtype)
    near = f"theta < {least} && theta_0 < {least}"
    falls = f"cost < cost_0 + {literal(armijo, dtype)} * slope"
    if converges:
        bought = "weight * (absolute_0 + absolute)"
        falls = f"cost < cost_0 + {bought} + {literal(armijo, dtype)} * AT_MOST_ZERO(slope)"
    else:
        near += " && slope < 0"
    either = f"cost < cost_0 - {literal(gamma, dtype)} * theta_0 || {less}"
    return f"theta > {literal(theta_max, dtype)} ? {less} : ({near}) ? {falls} : ({either})"


def merit_condition(dtype: str, *, armijo: float, margin: float) -> str:
    """The condition of `mpc.line_search.merit_accepts`.

    Args:
        dtype: "float32" or "float64".
        armijo: Share of the predicted decrease that the merit function must reach.
        margin: Factor between the largest multiplier and the weight of violations.
    """
    weight = f"{literal(margin, dtype)} * weight"
    falls = f"AT_MOST_ZERO(slope - {weight} * absolute_0)"
    return (
        f"cost + {weight} * absolute <= "
        f"cost_0 + {weight} * absolute_0 + {literal(armijo, dtype)} * step * {falls}"
    )


# The enum of `codegen.native.status` precedes these macros.  SEARCH_AT_ITERATE declares what conditions read of the iterate, SEARCH_AT_TRIAL what they read of
# a trial point; it sets `accepted`.  Trial points are visited from the largest step to the smallest
# one, and the first one for which SEARCH_TAKES holds is the choice.
_SEARCH = r"""
#define AT_MOST_ZERO(x) ((x) > 0 ? (SCALAR)0 : (x))  // unlike fmin, it keeps a NaN
#define SEARCH_AT_ITERATE(cost_here, squares_here, absolute_here)                         \
    const SCALAR theta_0 = {scale} * ROOT(squares_here), absolute_0 = absolute_here;      \
    const SCALAR cost_0 = cost_here{slack};
#define SEARCH_AT_TRIAL                                                                   \
    const SCALAR theta = {scale} * ROOT(squares);                                         \
    const bool finite = cost - cost == 0 && squares - squares == 0;                       \
    accepted = finite && ({accepts});
#define SEARCH_TAKES(is_last) (accepted || ({fallback} && (is_last)))
// By the status of its QP: whether an iteration was run, and whether multipliers are meaningful; those
// of a QP without solution grow without bound.
#define IS_TRIED(status) ((status) != NON_FINITE && (status) != INVALID_BOUNDS)
#define IS_SOLVABLE(status) ((status) != PRIMAL_INFEASIBLE && (status) != DUAL_INFEASIBLE)
"""


@dataclass(frozen=True)
class SearchRule:
    """A line search as values and a condition of the source.

    Attributes:
        ladder: Step lengths, the largest first.
        accepts: Condition in the names of this module.
        scale: Factor of the violation measure.
        slack: Relative rise of the cost that may be rounding.
        takes_smallest: Whether the smallest step is taken if none is accepted.
    """

    ladder: tuple[float, ...]
    accepts: str
    scale: float
    slack: float
    takes_smallest: bool

    @property
    def weighs(self) -> bool:
        """Whether the condition depends on the largest multiplier."""
        return re.search(r"\bweight\b", self.accepts) is not None

    def steps(self, dtype: str) -> str:
        """The elements of an array of all step lengths."""
        return ", ".join(literal(step, dtype) for step in self.ladder)

    def macros(self, dtype: str) -> str:
        """Definitions of SEARCH_AT_ITERATE, SEARCH_AT_TRIAL and SEARCH_TAKES."""
        # Without slack the term is left out: zero times an infinite cost would be NaN.
        slack = f" + {literal(self.slack, dtype)} * LIBM(fabs)(cost_here)" if self.slack else ""
        return _SEARCH.format(
            scale=literal(self.scale, dtype),
            slack=slack,
            accepts=self.accepts,
            fallback=int(self.takes_smallest),
        )


# What stationarity and complementarity are measured against; see `mpc.sqp.subproblem.cost_unit`.
COST_UNIT = r"""
#define COST_UNIT(gradient, roots, n) unit_of_cost(gradient, (roots) / (SCALAR)(n))
auto unit_of_cost = [](SCALAR gradient, SCALAR typical) -> SCALAR {
    const SCALAR unit = MAX(gradient, typical * typical);
    return unit > 0 ? unit : (SCALAR)1;
};
"""

# Sets `converged`.  Where no step is acceptable any more, the conditions alone decide.
_VERDICT = r"""
    const bool at_rest = d_size <= TOL_STEP * MAX((SCALAR)1, z_size) || !accepted;
    const SCALAR kkt = MAX(stationarity, slack) / unit;
    converged = usable && solvable && at_rest && worst_here <= TOL_VIOLATION && kkt <= TOL_KKT;"""

# Multipliers of soft rows belong to s, and apply to z only where A d is s.
_SOFT_VERDICT = "converged = converged && primal <= TOL_VIOLATION;"


@dataclass(frozen=True)
class SQPTolerances:
    """Tolerances of the SQP iteration; see `SQPSettings`.

    Attributes:
        tol_step: Tolerance of steps, relative to the largest entry of z.
        tol_kkt: Tolerance of the optimality conditions.
        tol_violation: Tolerance of constraint rows.
    """

    tol_step: float
    tol_kkt: float
    tol_violation: float

    def defines(self, dtype: str) -> list[str]:
        """Macros that `verdict` reads."""
        values = (self.tol_step, self.tol_kkt, self.tol_violation)
        names = ("TOL_STEP", "TOL_KKT", "TOL_VIOLATION")
        pairs = zip(names, values, strict=True)
        return [f"#define {name} {literal(value, dtype)}" for name, value in pairs]


def verdict(*, soft: bool) -> str:
    """Statements that set `converged` from the names of `REPORT`.

    Args:
        soft: Whether there are soft rows.
    """
    return f"{_VERDICT}\n    {_SOFT_VERDICT if soft else ''}"


# What an iteration reports, in order.  `known` is NaN where the QP has no usable solution.  Without
# a solution of the QP its multipliers mean nothing, and stationarity is that of the cost alone.
REPORT = {
    "alpha": "alpha",
    "accepted": "accepted && usable",
    "usable": "usable",
    "cost": "cost_new",
    "worst": "worst_new",
    "squares": "squares_new",
    "worst_before": "worst_here",
    "primal": "primal + known",
    "dual": "dual + known",
    "stationarity": "(solvable ? stationarity : gradient) + known",
    "gradient": "gradient + known",
    "slack": "(solvable ? slack : (SCALAR)0) + known",
    "d_size": "d_size + known",
    "z_size": "z_size",
}
REPORT_ROWS = tuple(REPORT)


def report_source(*, tiled: bool = False, converges: bool = False) -> str:
    """Statements that write all rows of a report.

    Args:
        tiled: Whether the rows are those of a tile.
        converges: Whether the iteration runs until it converges; the gradient of the report is then
            the unit of the cost.
    """
    rows = REPORT | ({"gradient": "unit + known"} if converges else {})
    lines = ["const SCALAR known = usable ? (SCALAR)0 : (SCALAR)NAN;"]
    places = [f"TILE_{i}" if tiled and i else str(i) for i in range(len(rows))]
    lines += [f"report[{i}] = {value};" for i, value in zip(places, rows.values(), strict=True)]
    return "\n        ".join(lines)


# What is known of a point: outputs of an evaluation of one stage, and how those of all stages make
# one value.
POINT_SUMS = (("cost", "+"), ("squares", "+"), ("absolute", "+"), ("worst", "max"))


def collected(
    program: ScalarProgram,
    access: Access,
    dtype: str,
    sums: Sequence[tuple[str, str]],
    **replaced: str,
) -> list[str]:
    """Statements of a program whose outputs are added up, or compared with the largest so far.

    Args:
        program: Program with one value per output.
        access: Places of its inputs and outputs.
        dtype: "float32" or "float64".
        sums: Name of each output, with "+" or "max".
        **replaced: Source that reads an input in another way, see `inlined`.
    """
    lines, outputs = inlined(program, access, dtype, **replaced)
    for (name, how), (value,) in zip(sums, outputs, strict=True):
        lines.append(f"{name} += {value};" if how == "+" else f"{name} = MAX({name}, {value});")
    return lines
