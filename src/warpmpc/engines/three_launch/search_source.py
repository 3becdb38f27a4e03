"""Native text of a launch that reports on a QP's solution, searches along it and takes a step.

Reads: stage functions and `ReportStep`s as programs with their rows.  Produces: a body for
`codegen.kernel_source`.

One warp per tile and trial point walks over the stages, one more warp computes the residuals; they
meet in shared memory, choose alike, and share the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from warpmpc.codegen.emit_native import Access, place_source
from warpmpc.codegen.ir import ScalarProgram
from warpmpc.codegen.kernel_source import inlined, pointers, switch
from warpmpc.codegen.native.status import STATUS_ENUM
from warpmpc.codegen.stage_functions import StagePlan
from warpmpc.symbolic.derivatives.qp_residuals import REPORT_MAXIMA, REPORT_SUMS


@dataclass(frozen=True)
class SearchRule:
    """The line search as numbers of the text.

    Attributes:
        ladder: Step lengths, the largest first.
        accepts: Condition in terms of the names of `_SEARCH`.
        scale: Of the violation measure.
        slack: Relative rise of the cost that may be rounding.
        fallback: Step that is taken if none is accepted: 1 for the smallest one, else 0.
        weighs: Whether the condition depends on the largest multiplier.
    """

    ladder: tuple[float, ...]
    accepts: str
    scale: str
    slack: str
    fallback: int
    weighs: bool = False


# Rows of what is found: cost, squares, absolute, worst of all points, then the report.
_SEARCH = r"""
#define POINTS {points}
{statuses}
enum {{ COST, SQUARES, ABSOLUTE, WORST, OF_POINT }};
enum {{
    SLOPE = OF_POINT * POINTS, STATIONARITY, GRADIENT, DUAL, PRIMAL, SLACK, Y, D, Z, POISON, FOUND
}};
if (tile >= status_in.shape[0]) return;
#if defined(__CUDA_ARCH__)
__shared__ SCALAR found[FOUND][32];
#define AT_FOUND(row) found[row][lane]
#define FOUND_OF(row, l) found[row][lane]
#define EACH_PART
#define GATHER __syncthreads();
#define FROM_PART part
#define BY_PARTS PARTS
#define CHIEF (part == 0)
#else
SCALAR found[FOUND][WIDTH];
#define AT_FOUND(row) (*(Pack*)found[row])
#define FOUND_OF(row, l) found[row][l]
#define EACH_PART for (int part = 0; part < PARTS; ++part)
#define GATHER
#define FROM_PART 0
#define BY_PARTS 1
#define CHIEF true
#endif
// Not even infinite directions change the point itself.
auto moved = [](Pack z, Pack d, SCALAR step) -> Pack {{ return step > 0 ? z + step * d : z; }};
#define MOVED(z, d) moved(z, d, step)
const SCALAR ladder[POINTS] = {{ 0, {ladder} }};
const int n_z = z_out.shape[1], n_rows = X_in.shape[1] - n_z;
BEGIN_TILE
{inputs}
const SCALAR* __restrict__ X = BASE(X_in);
const SCALAR* __restrict__ Q = BASE(Q_in);
const SCALAR* __restrict__ U = BASE(U_in);
const SCALAR* __restrict__ R = BASE(R_in);
EACH_PART {{
    if (part < POINTS) {{
        const SCALAR step = ladder[part];
        Pack cost = 0, squares = 0, absolute = 0, worst = 0;
        #pragma unroll 1
        for (int item = 0; item < n_points; ++item) {{
            const int* __restrict__ rows = points_in.data + points_in.data[2 * item + 1];
            {evaluate}
        }}
        AT_FOUND(OF_POINT * part + COST) = cost;
        AT_FOUND(OF_POINT * part + SQUARES) = squares;
        AT_FOUND(OF_POINT * part + ABSOLUTE) = absolute;
        AT_FOUND(OF_POINT * part + WORST) = worst;
    }} else {{
        Pack slope = 0, stationarity = 0, gradient = 0, dual = 0, primal = 0, slack = 0;
        Pack y_size = 0, d_size = 0, z_size = 0, poison = 0;
        #pragma unroll 1
        for (int item = 0; item < n_reports; ++item) {{
            const int* __restrict__ rows = reports_in.data + reports_in.data[2 * item + 1];
            {report}
        }}
        AT_FOUND(SLOPE) = slope;
        AT_FOUND(STATIONARITY) = stationarity;
        AT_FOUND(GRADIENT) = gradient;
        AT_FOUND(DUAL) = dual;
        AT_FOUND(PRIMAL) = primal;
        AT_FOUND(SLACK) = slack;
        AT_FOUND(Y) = y_size;
        AT_FOUND(D) = d_size;
        AT_FOUND(Z) = z_size;
        AT_FOUND(POISON) = poison;
    }}
}}
GATHER
// The step; 1 where the direction is one; 1 where multipliers mean something, too.
Pack taken, kept, honest;
for (int l = 0; l < LANES_HERE; ++l) {{
    const int status = BASE(status_in)[l];
    const bool tried = status != NON_FINITE && status != INVALID_BOUNDS;
    const bool usable = tried && FOUND_OF(POISON, l) == 0;
    const SCALAR slope = FOUND_OF(SLOPE, l), weight = FOUND_OF(Y, l);
    const SCALAR theta_0 = {scale} * LIBM(sqrt)(FOUND_OF(SQUARES, l));
    const SCALAR absolute_0 = FOUND_OF(ABSOLUTE, l);
    const SCALAR cost_0 = FOUND_OF(COST, l) + {slack} * LIBM(fabs)(FOUND_OF(COST, l));
    int choice = 0;
    for (int i = POINTS - 1; i > 0; --i) {{
        const SCALAR step = ladder[i];
        const SCALAR cost = FOUND_OF(OF_POINT * i + COST, l);
        const SCALAR squares = FOUND_OF(OF_POINT * i + SQUARES, l);
        const SCALAR absolute = FOUND_OF(OF_POINT * i + ABSOLUTE, l);
        const SCALAR theta = {scale} * LIBM(sqrt)(squares);
        const bool finite = cost - cost == 0 && squares - squares == 0;
        if (finite && ({accepts})) choice = i;
    }}
    const bool accepted = choice > 0;
    if (!accepted && {fallback}) choice = POINTS - 1;
    if (!usable) choice = 0;
    LANE(taken, l) = ladder[choice];
    LANE(kept, l) = usable;
    // Multipliers of a QP without solution grow without bound and mean nothing.
    const bool solvable = status != PRIMAL_INFEASIBLE && status != DUAL_INFEASIBLE;
    LANE(honest, l) = usable && solvable;
    if (CHIEF) {{
        SCALAR* report = BASE(report_out) + l;
        const SCALAR known = usable ? (SCALAR)0 : (SCALAR)NAN;
        report[0 * 32] = ladder[choice];
        report[1 * 32] = accepted && usable;
        report[2 * 32] = usable;
        report[3 * 32] = FOUND_OF(OF_POINT * choice + COST, l);
        report[4 * 32] = FOUND_OF(OF_POINT * choice + WORST, l);
        report[5 * 32] = FOUND_OF(OF_POINT * choice + SQUARES, l);
        report[6 * 32] = FOUND_OF(WORST, l);
        report[7 * 32] = FOUND_OF(PRIMAL, l) + known;
        report[8 * 32] = FOUND_OF(DUAL, l) + known;
        report[9 * 32] = FOUND_OF(solvable ? STATIONARITY : GRADIENT, l) + known;
        report[10 * 32] = FOUND_OF(GRADIENT, l) + known;
        report[11 * 32] = (solvable ? FOUND_OF(SLACK, l) : (SCALAR)0) + known;
        report[12 * 32] = FOUND_OF(D, l) + known;
        report[13 * 32] = FOUND_OF(Z, l);
    }}
}}
SCALAR* __restrict__ z_new = BASE(z_out);
SCALAR* __restrict__ X_new = BASE(X_out);
SCALAR* __restrict__ S_new = BASE(S_out);
const Pack none = 0;
// Without branches, so that many loads are under way at once.
#pragma unroll 4
for (int i = FROM_PART; i < n_z; i += BY_PARTS) {{
    const int node = nodes_in.data[i];
    const Pack z = GET(in0, i), d = GET(X, node);
    AT(z_new, i) = taken > none ? z + taken * d : z;
    AT(X_new, node) = kept > none ? d : none;
}}
#pragma unroll 4
for (int i = FROM_PART; i < n_rows; i += BY_PARTS) {{
    const int node = nodes_in.data[n_z + i];
    const Pack v = GET(X, node), r = GET(R, node), s = MIN(MAX(v, GET(Q, node)), GET(U, node));
    AT(S_new, node) = kept > none ? s : none;
    AT(X_new, node) = honest > none ? (v - s) / r : none;
}}
END_TILE
"""

REPORT_ROWS = (
    "alpha",
    "accepted",
    "usable",
    "cost",
    "worst",
    "squares",
    "worst_before",
    "primal",
    "dual",
    "stationarity",
    "gradient",
    "slack",
    "d_size",
    "z_size",
)


def search_body(
    rule: SearchRule, evaluate: StagePlan, report: StagePlan, names: Sequence[str], dtype: str
) -> str:
    """Evaluates the ladder, chooses a step and takes it.

    Args:
        rule: Which steps there are and which is accepted.
        evaluate: Programs to cost, sum of squares, sum and largest of the violations; their last
            input is d, with the rows of X.
        report: Programs of `ReportStep`s; their last inputs are d, v and 1/rho.
        names: Of the inputs at a point.
        dtype: "float32" or "float64".
    """
    count = len(names)
    moved = (
        "(step > 0 ? (Pack)(GET(in0, {place}) + step * GET(X, {also})) : (Pack)GET(in0, {place}))"
    )
    points = [
        collected(c.program, a, dtype, POINT_SUMS, in0=moved)
        for c, a in zip(evaluate.cases, evaluate.accesses, strict=True)
    ]
    solution = {f"in{count}": "GET(X, {place})", f"in{count + 1}": "GET(X, {place})"}
    solution[f"in{count + 2}"] = "GET(R, {place})"
    reports = []
    for c, a in zip(report.cases, report.accesses, strict=True):
        lines = collected(c.program, a, dtype, REPORT_COLLECTED, **solution)
        # What is not finite is no number when it is subtracted from itself.
        values = [
            f"GET(X, {place_source(place)})" for i in (count, count + 1) for place in a.inputs[i]
        ]
        lines += [f"{{ const Pack x = {value}; poison += x - x; }}" for value in values]
        reports.append(lines)
    steps = ", ".join(repr(float(np.dtype(dtype).type(step))) for step in rule.ladder)
    return _SEARCH.format(
        points=len(rule.ladder) + 1,
        statuses=STATUS_ENUM,
        ladder=steps,
        inputs=pointers(names),
        evaluate=switch("points_in.data[2 * item]", points),
        report=switch("reports_in.data[2 * item]", reports),
        scale=rule.scale,
        slack=rule.slack,
        accepts=rule.accepts,
        fallback=rule.fallback,
    )


POINT_SUMS = (("cost", "+"), ("squares", "+"), ("absolute", "+"), ("worst", "max"))
REPORT_COLLECTED = (
    *((name, "+") for name in REPORT_SUMS),
    *((name, "max") for name in REPORT_MAXIMA),
)


def collected(
    program: ScalarProgram,
    access: Access,
    dtype: str,
    sums: Sequence[tuple[str, str]],
    **replaced: str,
) -> list[str]:
    """A program whose outputs are single numbers, added up or compared with the largest so far."""
    lines, outputs = inlined(program, access, dtype, **replaced)
    for (name, how), (value,) in zip(sums, outputs, strict=True):
        lines.append(f"{name} += {value};" if how == "+" else f"{name} = MAX({name}, {value});")
    return lines
