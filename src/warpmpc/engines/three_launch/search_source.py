"""Native source of a launch that reports on a QP's solution, searches along it and takes a step.

Reads: stage functions and `ReportStep`s as programs with their rows.  Produces: a body for
`codegen.kernel_source`.

One warp per tile and trial point walks over the stages, and one more warp computes the residuals.
All of them exchange results in shared memory, make the same choice, and share the update.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpmpc.codegen.emit_native import place_source
from warpmpc.codegen.kernel_source import pointers, switch
from warpmpc.codegen.native.line_search import (
    POINT_SUMS,
    SearchRule,
    collected,
    report_source,
)
from warpmpc.codegen.native.status import STATUS_ENUM
from warpmpc.codegen.stage_functions import StagePlan
from warpmpc.symbolic.derivatives.qp_residuals import REPORT_MAXIMA, REPORT_SUMS

# Rows of results: cost, squares, absolute, worst of all points, then the report.
_SEARCH = r"""
#define POINTS {points}
{statuses}
#define ROOT(x) LIBM(sqrt)(x)
{macros}
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
// The step; 1 where the direction is usable; 1 where its multipliers are meaningful as well.
Pack taken, kept, honest;
for (int l = 0; l < LANES_HERE; ++l) {{
    const int status = BASE(status_in)[l];
    const bool tried = IS_TRIED(status);
    const bool usable = tried && FOUND_OF(POISON, l) == 0;
    const SCALAR slope = FOUND_OF(SLOPE, l), weight = FOUND_OF(Y, l);
    SEARCH_AT_ITERATE(FOUND_OF(COST, l), FOUND_OF(SQUARES, l), FOUND_OF(ABSOLUTE, l))
    int choice = 0;
    bool accepted = false;
    for (int i = 1; i < POINTS && !accepted; ++i) {{
        const SCALAR step = ladder[i];
        const SCALAR cost = FOUND_OF(OF_POINT * i + COST, l);
        const SCALAR squares = FOUND_OF(OF_POINT * i + SQUARES, l);
        const SCALAR absolute = FOUND_OF(OF_POINT * i + ABSOLUTE, l);
        SEARCH_AT_TRIAL
        if (SEARCH_TAKES(i + 1 == POINTS)) choice = i;
    }}
    if (!usable) choice = 0;
    LANE(taken, l) = ladder[choice];
    LANE(kept, l) = usable;
    const bool solvable = IS_SOLVABLE(status);
    LANE(honest, l) = usable && solvable;
    if (CHIEF) {{
        SCALAR* report = BASE(report_out) + l;
        const SCALAR alpha = ladder[choice], worst_here = FOUND_OF(WORST, l);
        const SCALAR cost_new = FOUND_OF(OF_POINT * choice + COST, l);
        const SCALAR worst_new = FOUND_OF(OF_POINT * choice + WORST, l);
        const SCALAR squares_new = FOUND_OF(OF_POINT * choice + SQUARES, l);
        const SCALAR primal = FOUND_OF(PRIMAL, l), dual = FOUND_OF(DUAL, l);
        const SCALAR stationarity = FOUND_OF(STATIONARITY, l), gradient = FOUND_OF(GRADIENT, l);
        const SCALAR slack = FOUND_OF(SLACK, l);
        const SCALAR d_size = FOUND_OF(D, l), z_size = FOUND_OF(Z, l);
        {report_rows}
    }}
}}
SCALAR* __restrict__ z_new = BASE(z_out);
SCALAR* __restrict__ X_new = BASE(X_out);
SCALAR* __restrict__ S_new = BASE(S_out);
const Pack none = 0;
// Without branches, so that many loads are in flight at once.
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
    const Pack v = GET(X, node), r = GET(R, node), s = CLIP(v, GET(Q, node), GET(U, node));
    AT(S_new, node) = kept > none ? s : none;
    AT(X_new, node) = honest > none ? MULTIPLIER(v, s, r) : none;
}}
END_TILE
"""

REPORT_COLLECTED = (
    *((name, "+") for name in REPORT_SUMS),
    *((name, "max") for name in REPORT_MAXIMA),
)


def search_body(
    rule: SearchRule, evaluate: StagePlan, report: StagePlan, names: Sequence[str], dtype: str
) -> str:
    """Evaluates the ladder, chooses a step and takes it.

    Args:
        rule: Step lengths, and the condition that accepts one.
        evaluate: Programs for cost, sum of squares, sum and largest of the violations; their last
            input is d, with the rows of X.
        report: Programs of `ReportStep`s; their last inputs are d, v and 1/rho.
        names: Names of the inputs at a point.
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
        # A value that is not finite gives NaN when it is subtracted from itself.
        values = [
            f"GET(X, {place_source(place)})" for i in (count, count + 1) for place in a.inputs[i]
        ]
        lines += [f"{{ const Pack x = {value}; poison += x - x; }}" for value in values]
        reports.append(lines)
    return _SEARCH.format(
        points=len(rule.ladder) + 1,
        statuses=STATUS_ENUM,
        macros=rule.macros(dtype),
        ladder=rule.steps(dtype),
        inputs=pointers(names),
        evaluate=switch("points_in.data[2 * item]", points),
        report=switch("reports_in.data[2 * item]", reports),
        report_rows=report_source(tiled=True),
    )
