"""Native text of a whole MPC solve by one warp per problem.

Reads: `LaneText`, programs of the stages with their offsets, the rule of the line search.  Produces:
a body for `codegen.fused_module`.

On CUDA a thread is a lane.  On the CPU one thread does a problem: straight-line text works on
vectors of 32 lanes, stage programs on one lane after the other.  What QPs
need lies in shared memory, see `LaneMemory`; z stays in the caller's array, d and y are read at the
beginning and written at the end, and s of the caller serves as memory between QPs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from warpmpc.codegen.emit_native import Access, literal, place_text
from warpmpc.codegen.fused_module import inlined, switch
from warpmpc.codegen.fused_search_text import (
    POINT_SUMS,
    REPORT_COLLECTED,
    REPORT_ROWS,
    SearchRule,
    collected,
)
from warpmpc.codegen.ir import ScalarProgram
from warpmpc.codegen.lane_text import LaneText
from warpmpc.codegen.native_preamble import INVERT_PIVOT, TINY, preamble
from warpmpc.codegen.stage_module import StagePlan
from warpmpc.symbolic.lane_memory import LaneMemory
from warpmpc.symbolic.lanes import Node
from warpmpc.symbolic.row_kinds import RowKind

STATIC_SHARED = 48 * 1024  # bytes that a kernel may declare itself


@dataclass(frozen=True)
class OnchipNumbers:
    """Settings that are numbers of the text.

    Attributes:
        sigma: Of the ADMM iteration.
        relaxation: Likewise.
        inverse_rho: 1/rho of inequalities, equalities and free rows.
        same: Distance below which bounds are equal.
        absent: Size from which bounds are absent.
        check_every: ADMM iterations between residual checks; 0: none.
        eps: Absolute and relative tolerance of these checks.
    """

    sigma: float
    relaxation: float
    inverse_rho: tuple[float, float, float]
    same: float
    absent: float
    check_every: int
    eps: tuple[float, float]


@dataclass(frozen=True, eq=False)
class OnchipPlans:
    """Programs of the stages; items are the stages of the problem in order.

    Attributes:
        linearize: To the contributions named in `outputs`.
        outputs: Of `linearize`.
        evaluate: To cost and violations; the last input is d.
        report: Of `ReportStep`s; the last inputs are d, v and 1/rho.
        names: Of the inputs at a point.
    """

    linearize: StagePlan
    outputs: Sequence[str]
    evaluate: StagePlan
    report: StagePlan
    names: Sequence[str]


_HEAD = r"""
#if defined(__CUDA_ARCH__)
typedef SCALAR Lanes;
#define ALL 0xffffffffu
const int lane = thread & 31;
#if STATIC
__shared__ SCALAR memory[MEMORY_ROWS * 32];
#else
SCALAR* const memory = scratch.data.ptr;
#endif
#define EACH_LANE
#define OF_LANE(x) (x)
#define KEEP(i, name) name##i
#define FROM_BEFORE(i, to, name, h) to##i = __shfl_up_sync(ALL, name##i, h);
#define FROM_BEHIND(i, to, name, h) to##i = __shfl_down_sync(ALL, name##i, h);
#define UP(x, h) __shfl_up_sync(ALL, x, h)
#define DOWN(x, h) __shfl_down_sync(ALL, x, h)
#define UNROLL _Pragma("unroll")
#define SYNC __syncwarp();
#define CHIEF (lane == 0)
#define READ(base, place) __ldg((base) + (place))
#define NUMBER(pack) (pack)
#define ROW_OF_LANES(row) memory[(row) * 32 + lane]
#else
if (thread & 31) return;  // one thread does the whole problem
typedef SCALAR Lanes __attribute__((ext_vector_type(32), aligned(sizeof(SCALAR))));
SCALAR memory[MEMORY_ROWS * 32];
// Long bodies: turning them into vector instructions takes the compiler minutes.
#define EACH_LANE                                                                       \
    _Pragma("clang loop vectorize(disable) interleave(disable) unroll(disable)")        \
    for (int lane = 0; lane < 32; ++lane)
#define OF_LANE(x) (x)[lane]
#define KEEP(i, name) kept_##name[i][lane]
#define FROM_BEFORE(i, to, name, h) \
    EACH_LANE kept_##to[i][lane] = kept_##name[i][lane < h ? lane : lane - h];
#define FROM_BEHIND(i, to, name, h) \
    EACH_LANE kept_##to[i][lane] = kept_##name[i][lane + h > 31 ? lane : lane + h];
auto up = [](Lanes x, int h) { for (int l = 31; l >= h; --l) x[l] = x[l - h]; return x; };
auto down = [](Lanes x, int h) { for (int l = 0; l + h < 32; ++l) x[l] = x[l + h]; return x; };
#define UP(x, h) up(x, h)
#define DOWN(x, h) down(x, h)
#define UNROLL _Pragma("clang loop unroll(disable)")
#define SYNC
#define CHIEF true
#define READ(base, place) (base)[place]
#define NUMBER(pack) (pack)[0]
#define ROW_OF_LANES(row) (*(Lanes*)(memory + (row) * 32))
#endif
KEPT_NUMBERS
#define MEM(row) memory[(row) * 32 + lane]
#define IF_BEFORE(x) (lane > 0 ? (x) : (SCALAR)0)
#define IF_BEHIND(x) (lane < 31 ? (x) : (SCALAR)0)
#define MIN(a, b) ((b) < (a) ? (b) : (a))
#define MAX(a, b) ((a) < (b) ? (b) : (a))
#define INFINITE (SCALAR)1e20
// Sums and largest numbers of all lanes.
auto summed = [&](Lanes x) -> SCALAR {
#if defined(__CUDA_ARCH__)
    #pragma unroll
    for (int h = 16; h > 0; h >>= 1) x += __shfl_xor_sync(ALL, x, h);
    return x;
#else
    for (int h = 16; h > 0; h >>= 1) for (int l = 0; l < h; ++l) x[l] += x[l + h];
    return x[0];
#endif
};
auto largest = [&](Lanes x) -> SCALAR {
#if defined(__CUDA_ARCH__)
    #pragma unroll
    for (int h = 16; h > 0; h >>= 1) {
        const SCALAR other = __shfl_xor_sync(ALL, x, h);
        x = MAX(x, other);
    }
    return x;
#else
    for (int l = 1; l < 32; ++l) x[0] = MAX(x[0], x[l]);
    return x[0];
#endif
};
"""


def _kept_text(counts: dict[str, int]) -> str:
    """Declares what lanes keep: local variables on CUDA, arrays on the CPU."""
    names = ", ".join(f"{name}{i}" for name, count in counts.items() for i in range(count))
    arrays = [f"SCALAR kept_{name}[{max(count, 1)}][32];" for name, count in counts.items()]
    there = f"SCALAR {names};" if names else ""
    return "\n".join(["#if defined(__CUDA_ARCH__)", there, "#else", *arrays, "#endif"])


# Values of `qp.types.Status`.
_SOLVE = r"""
{invert}
auto inverted = [&](Lanes x) -> Lanes {{ EACH_LANE OF_LANE(x) = invert(OF_LANE(x)); return x; }};
enum {{ SOLVED, RUNNING, PRIMAL_INFEASIBLE, DUAL_INFEASIBLE, NON_FINITE, INVALID_BOUNDS }};
const Offset problem = thread >> 5;
if (problem >= z_io.shape[0]) return;
const int n_z = z_io.shape[1], n_g = s_io.shape[1];
SCALAR* z_of = z_io.data + problem * n_z;
SCALAR* d_of = d_io.data + problem * n_z;
SCALAR* s_of = s_io.data + problem * n_g;
SCALAR* y_of = y_io.data + problem * n_g;
{inputs}
int* status_of = status_out.data + problem * 2;
SCALAR* report_of = report_out.data + problem * report_out.shape[1];
if (!active_in.data[problem]) {{
    if (CHIEF) {{ status_of[0] = SOLVED; status_of[1] = 0; }}
    EACH_LANE for (int i = lane; i < report_out.shape[1]; i += 32) report_of[i] = 0;
    return;
}}
const int* __restrict__ nodes = nodes_in.data;
// A number of the caller that belongs to a node; nothing where a lane has no such node.
auto fetch = [&](const SCALAR* from, int node, int first, int lane) -> SCALAR {{
    const int i = nodes[node * 32 + lane];
    return i < 0 ? (SCALAR)0 : from[i - first];
}};
auto put = [&](SCALAR* to, int node, int first, int lane, SCALAR x) {{
    const int i = nodes[node * 32 + lane];
    if (i >= 0) to[i - first] = x;
}};
for (int row = 0; row < MEMORY_ROWS; ++row) EACH_LANE MEM(row) = 0;
for (int i = 0; i < X_COUNT; ++i) EACH_LANE {{
    const int at = nodes[i * 32 + lane];
    if (at >= n_z) MEM(R_ROWS + i) = y_of[at - n_z];
    else if (at >= 0) MEM(X_ROWS + i) = d_of[at];
}}
const SCALAR ladder[POINTS] = {{ 0, {ladder} }};
int spent = 0, last_status = RUNNING;
// At the point itself: known from the search before.
SCALAR cost_here = 0, squares_here = 0, absolute_here = 0, worst_here = 0;
#pragma unroll 1
for (int iteration = 0; iteration < n_iterations; ++iteration) {{
    // Linearise.
    SYNC
    for (int i = 0; i < K_COUNT; ++i)
        EACH_LANE MEM(W_ROWS + i) = READ(K_start_in.data, i * 32 + lane);
    EACH_LANE {{
        {clear_costs}
    }}
    SYNC
    #pragma unroll 1
    for (int stage = 0; stage < PER_LANE; ++stage) {{
        EACH_LANE {{
            const int item = lane * PER_LANE + stage;
            if (item < n_stages) {{
                const int* __restrict__ rows = linearize_in.data + linearize_in.data[2 * item + 1];
                SCALAR* __restrict__ base = memory + lane;
                {linearize}
            }}
        }}
        SYNC
    }}
    Lanes crossed, broken;
    EACH_LANE {{
        SCALAR is_crossed = 0, is_broken = 0;
        {prepare}
        OF_LANE(crossed) = is_crossed;
        OF_LANE(broken) = is_broken;
    }}
    int status = RUNNING;
    if (largest(crossed) > 0) status = INVALID_BOUNDS;
    if (largest(broken) > 0) status = NON_FINITE;
    // Eliminate what is inside lanes, then prepare the solves for their separators.
    Lanes diag[NX][NX], above[NX][NX], below[NX][NX], ahead[NX][NX];
    {eliminate}
    {couple}
    SYNC
    EACH_LANE {{
        {separators}
    }}
    if (status == RUNNING) {{
        #pragma unroll 1
        for (int t = 0; t < n_admm; ++t) {{
            {iterate}
            if (t == 0) EACH_LANE {{
                {correct}
            }}
            ++spent;
            {check}
        }}
    }}
    SYNC
    last_status = status;
    // Search along the direction: the largest step that is accepted, else the smallest or none.
    Lanes poison_of = (Lanes)0;
    #pragma unroll 1
    for (int row = 0; row < X_COUNT; ++row)
        poison_of += ROW_OF_LANES(X_ROWS + row) - ROW_OF_LANES(X_ROWS + row);
    const bool tried = status != NON_FINITE && status != INVALID_BOUNDS;
    const bool usable = tried && summed(poison_of) == 0;
    // Multipliers of a QP without solution grow without bound and mean nothing.
    const bool solvable = status != PRIMAL_INFEASIBLE && status != DUAL_INFEASIBLE;
    SCALAR slope = 0, stationarity = 0, gradient = 0, dual = 0, primal = 0, slack = 0;
    SCALAR weight = 0, d_size = 0, z_size = 0;
    {slope}
    if (REPORT_ALWAYS || iteration + 1 == n_iterations) {{
        {report}
    }}
    int choice = 0;
    SCALAR cost_new = cost_here, squares_new = squares_here, absolute_new = absolute_here;
    SCALAR worst_new = worst_here;
    bool accepted = false;
    #pragma unroll 1
    for (int point = iteration ? 1 : 0; point < POINTS; ++point) {{
        const SCALAR step = ladder[point];
        Lanes cost_of = (Lanes)0, squares_of = (Lanes)0, absolute_of = (Lanes)0;
        Lanes worst_of = (Lanes)0;
        EACH_LANE {{
            Pack cost = (Pack)0, squares = (Pack)0, absolute = (Pack)0, worst = (Pack)0;
            #pragma unroll 1
            for (int stage = 0; stage < PER_LANE; ++stage) {{
                const int item = lane * PER_LANE + stage;
                if (item < n_stages) {{
                    const int* __restrict__ rows =
                        evaluate_in.data + evaluate_in.data[2 * item + 1];
                    const SCALAR* __restrict__ base = memory + lane;
                    {evaluate}
                }}
            }}
            OF_LANE(cost_of) = NUMBER(cost);
            OF_LANE(squares_of) = NUMBER(squares);
            OF_LANE(absolute_of) = NUMBER(absolute);
            OF_LANE(worst_of) = NUMBER(worst);
        }}
        const SCALAR cost = summed(cost_of), squares = summed(squares_of);
        const SCALAR absolute = summed(absolute_of), worst = largest(worst_of);
        if (point == 0) {{
            cost_new = cost_here = cost;
            squares_new = squares_here = squares;
            absolute_new = absolute_here = absolute;
            worst_new = worst_here = worst;
            continue;
        }}
        const SCALAR theta = {scale} * LIBM(sqrt)(squares);
        const SCALAR theta_0 = {scale} * LIBM(sqrt)(squares_here), absolute_0 = absolute_here;
        const SCALAR cost_0 = cost_here + {slack} * LIBM(fabs)(cost_here);
        const bool finite = cost - cost == 0 && squares - squares == 0;
        accepted = finite && ({accepts});
        if (usable && (accepted || ({fallback} && point + 1 == POINTS))) {{
            choice = point;
            cost_new = cost;
            squares_new = squares;
            absolute_new = absolute;
            worst_new = worst;
        }}
        if (accepted) break;
    }}
    if (CHIEF && (RECORD || iteration + 1 == n_iterations)) {{
        SCALAR* report = report_of + (RECORD ? iteration * {report_rows} : 0);
        const SCALAR known = usable ? (SCALAR)0 : (SCALAR)NAN;
        report[0] = ladder[choice];
        report[1] = accepted && usable;
        report[2] = usable;
        report[3] = cost_new;
        report[4] = worst_new;
        report[5] = squares_new;
        report[6] = worst_here;
        report[7] = primal + known;
        report[8] = dual + known;
        report[9] = (solvable ? stationarity : gradient) + known;
        report[10] = gradient + known;
        report[11] = (solvable ? slack : (SCALAR)0) + known;
        report[12] = d_size + known;
        report[13] = z_size;
    }}
    cost_here = cost_new;
    squares_here = squares_new;
    absolute_here = absolute_new;
    worst_here = worst_new;
    // Take the step, and leave d, s and y for the next QP.
    SYNC
    if (choice > 0) {{
        const SCALAR taken = ladder[choice];
        for (int i = 0; i < X_COUNT; ++i) EACH_LANE {{
            const int at = nodes[i * 32 + lane];
            if (at >= 0 && at < n_z) z_of[at] += taken * MEM(X_ROWS + i);
        }}
    }}
    const bool honest = usable && solvable;
    EACH_LANE {{
        {finish}
    }}
    if (!usable) for (int row = 0; row < X_COUNT; ++row) EACH_LANE MEM(X_ROWS + row) = 0;
}}
SYNC
for (int i = 0; i < X_COUNT; ++i) EACH_LANE {{
    const int at = nodes[i * 32 + lane];
    if (at >= n_z) y_of[at - n_z] = MEM(R_ROWS + i);
    else if (at >= 0) d_of[at] = MEM(X_ROWS + i);
}}
if (CHIEF) {{ status_of[0] = last_status; status_of[1] = spent; }}
"""

_COUPLE = r"""
auto of_neighbour = [&](Lanes x) -> Lanes {
    x = UP(x, 1);
    EACH_LANE OF_LANE(x) = IF_BEFORE(OF_LANE(x));
    return x;
};
// Parallel cyclic reduction of the separators: each step doubles the distance of neighbours.
auto invert_block = [&](Lanes (&a)[NX][NX]) {
    UNROLL
    for (int k = 0; k < NX; ++k) {
        const Lanes p = inverted(a[k][k]);
        a[k][k] = p;
        UNROLL
        for (int j = 0; j < NX; ++j) if (j != k) a[k][j] *= p;
        UNROLL
        for (int i = 0; i < NX; ++i) if (i != k) {
            const Lanes f = a[i][k];
            UNROLL
            for (int j = 0; j < NX; ++j) if (j != k) a[i][j] -= f * a[k][j];
            a[i][k] = -f * p;
        }
    }
};
UNROLL
for (int i = 0; i < NX; ++i) {
    UNROLL
    for (int j = 0; j < NX; ++j) below[i][j] = of_neighbour(above[j][i]);
    UNROLL
    for (int j = 0; j <= i; ++j) {
        diag[i][j] += of_neighbour(ahead[i][j]);
        diag[j][i] = diag[i][j];
    }
}
#pragma unroll 1
for (int level = 0; level < LEVELS; ++level) {
    const int h = 1 << level, first = W_ROWS + 2 * level * NX * NX;
    Lanes inverse[NX][NX], product[NX][NX], next[NX][NX];
    UNROLL
    for (int i = 0; i < NX; ++i)
        UNROLL
        for (int j = 0; j < NX; ++j) inverse[i][j] = diag[i][j];
    invert_block(inverse);
    REDUCE(UP, below, 0)
    REDUCE(DOWN, above, NX * NX)
}
invert_block(diag);
UNROLL
for (int i = 0; i < NX; ++i)
    UNROLL
    for (int j = 0; j < NX; ++j) ROW_OF_LANES(W_ROWS + 2 * LEVELS * NX * NX + i * NX + j) = diag[i][j];
"""

# One neighbour in one step: takes its share from the diagonal and couples to its other neighbour.
_REDUCE = r"""
#define REDUCE(FROM, side, place)                                                       \
    UNROLL for (int i = 0; i < NX; ++i)                                      \
        UNROLL for (int j = 0; j < NX; ++j) {                                \
            product[i][j] = (Lanes)0;                                                   \
            next[i][j] = (Lanes)0;                                                      \
        }                                                                               \
    UNROLL for (int k = 0; k < NX; ++k)                                      \
        UNROLL for (int j = 0; j < NX; ++j) {                                \
            const Lanes other = FROM(inverse[k][j], h);                                 \
            UNROLL for (int i = 0; i < NX; ++i)                              \
                product[i][j] += side[i][k] * other;                                    \
        }                                                                               \
    UNROLL for (int i = 0; i < NX; ++i)                                      \
        UNROLL for (int j = 0; j < NX; ++j)                                  \
            ROW_OF_LANES(first + place + i * NX + j) = product[i][j];                            \
    UNROLL for (int i = 0; i < NX; ++i)                                      \
        UNROLL for (int j = 0; j < NX; ++j)                                  \
            UNROLL for (int k = 0; k < NX; ++k)                              \
                diag[i][j] -= product[i][k] * side[j][k];                               \
    UNROLL for (int k = 0; k < NX; ++k)                                      \
        UNROLL for (int j = 0; j < NX; ++j) {                                \
            const Lanes other = FROM(side[k][j], h);                                    \
            UNROLL for (int i = 0; i < NX; ++i)                              \
                next[i][j] -= product[i][k] * other;                                    \
        }                                                                               \
    UNROLL for (int i = 0; i < NX; ++i)                                      \
        UNROLL for (int j = 0; j < NX; ++j) side[i][j] = next[i][j];
"""

_REPORT = r"""
Lanes slope_of = (Lanes)0, {of_lanes};
EACH_LANE {{
    Pack slope = (Pack)0, {of_packs};
    #pragma unroll 1
    for (int stage = 0; stage < PER_LANE; ++stage) {{
        const int item = lane * PER_LANE + stage;
        if (item < n_stages) {{
            const int* __restrict__ rows = report_in.data + report_in.data[2 * item + 1];
            const SCALAR* __restrict__ base = memory + lane;
            {programs}
        }}
    }}
    OF_LANE(slope_of) = NUMBER(slope);
    {keep}
}}
slope = summed(slope_of);
{reduce}
"""


def onchip_head(memory: LaneMemory, dtype: str, *, static: bool) -> str:
    """What precedes the body: types, memory, exchange between lanes."""
    defines = {"WIDTH": 1, "STATIC": int(static), "MEMORY_ROWS": memory.n_rows}
    defines |= {f"{name}_ROWS": s.first for name, s in memory.sections.items()}
    defines |= {"X_COUNT": memory.sections["X"].count, "NX": memory.n_separators, "LEVELS": memory.levels, "K_COUNT": memory.dump}
    defines |= {"PER_LANE": memory.layout.per_lane}
    lines = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    head = _HEAD.replace("KEPT_NUMBERS", _kept_text(LaneText(memory, dtype).counts))
    return f"{lines}#define TINY {TINY[dtype]}\n{preamble(dtype)}{head}{_REDUCE}"


class OnchipText:
    """The body of one problem."""

    def __init__(
        self, memory: LaneMemory, plans: OnchipPlans, rule: SearchRule, numbers: OnchipNumbers
    ):
        """Keeps what the text is made from."""
        self._m, self._plans, self._rule, self._numbers = memory, plans, rule, numbers
        self.plans = [plans.linearize, plans.evaluate, plans.report]

    def body(self, dtype: str, *, record: bool, restart: bool) -> str:
        """The text.

        Args:
            dtype: "float32" or "float64".
            record: Whether every iteration reports.
            restart: Whether QPs start from direction zero.
        """
        lane, rule, nothing = LaneText(self._m, dtype), self._rule, ""
        always = record or rule.weighs or bool(self._m.soft)
        texts = {
            "invert": INVERT_PIVOT,
            "inputs": self._inputs(),
            "ladder": ", ".join(literal(step, dtype) for step in rule.ladder),
            "clear_costs": "\n".join(self._clear_costs()),
            "linearize": self._linearize(dtype),
            "prepare": "\n".join(self._prepare(lane, restart=restart)),
            "eliminate": "\n".join(lane.elimination()),
            "couple": _COUPLE if self._m.n_separators else nothing,
            "separators": "\n".join(self._separators()),
            "iterate": "\n".join(lane.iteration()),
            "correct": "\n".join(self._correct(lane)),
            "check": nothing,
            "slope": nothing if always else "\n".join(self._slope()),
            "report": self._report(dtype),
            "evaluate": self._evaluate(dtype),
            "finish": "\n".join(self._finish(lane)),
        }
        values = {"scale": rule.scale, "slack": rule.slack, "accepts": rule.accepts}
        values |= {"fallback": str(rule.fallback), "report_rows": str(len(REPORT_ROWS))}
        return self._settings(dtype, record=record, always=always) + _SOLVE.format(
            **texts, **values
        )

    def _settings(self, dtype: str, *, record: bool, always: bool) -> str:
        n = self._numbers
        row, equal, free = n.inverse_rho
        numbers = {"SIGMA": n.sigma, "OMEGA": n.relaxation, "R_ROW": row, "R_EQUAL": equal}
        numbers |= {"R_FREE": free, "SAME": n.same, "ABSENT": n.absent}
        lines = [f"#define {name} {literal(value, dtype)}" for name, value in numbers.items()]
        lines.append(f"#define POINTS {len(self._rule.ladder) + 1}")
        lines += [f"#define RECORD {int(record)}", f"#define REPORT_ALWAYS {int(always)}"]
        return "\n".join(lines)

    def _inputs(self) -> str:
        """Pointers ``in1``, ... to the parameters of the problem; ``in0`` and y are in memory."""
        lines = []
        for i, name in enumerate(self._plans.names):
            if name in ("z", "y"):
                continue
            own = f"problem % {name}_in.shape[0] * {name}_in.shape[1]"
            lines.append(f"const SCALAR* __restrict__ in{i} = {name}_in.data + {own};")
        return "\n".join(lines)

    def _reads(self) -> dict[str, str]:
        return {
            f"in{i}": {"z": "z_of[{place}]", "y": "base[{place}]"}.get(
                name, f"READ(in{i}, {{place}})"
            )
            for i, name in enumerate(self._plans.names)
        }

    def _clear_costs(self) -> list[str]:
        return [
            f"MEM(Q_ROWS + {i}) = (SCALAR)0;"
            for i, node in enumerate(self._m.nodes)
            if not node.is_row
        ]

    def _linearize(self, dtype: str) -> str:
        plan = self._plans.linearize
        cases = [
            self._written(case.program, access, dtype)
            for case, access in zip(plan.cases, plan.accesses, strict=True)
        ]
        return switch("linearize_in.data[2 * item]", cases)

    def _written(self, program: ScalarProgram, access: Access, dtype: str) -> list[str]:
        lines, values = inlined(program, access, dtype, **self._reads())
        for name, places, of_output in zip(
            self._plans.outputs, access.outputs, values, strict=True
        ):
            sign = "+=" if name in ("P", "q") else "="
            lines += [
                f"base[{place_text(place)}] {sign} NUMBER({value});"
                for place, value in zip(places, of_output, strict=True)
            ]
        return lines

    def _prepare(self, lane: LaneText, *, restart: bool) -> list[str]:
        """Bounds, 1/rho and penalties of rows, v and right-hand sides; what v lacks goes to s."""
        m, lines = self._m, []
        for i, node in enumerate(m.nodes):
            if node in m.incoming:
                lines.append(f"MEM(Q_ROWS + {i}) += MEM(W_ROWS + {m.incoming[node]});")
            if node.is_row:
                lines += ["{", *self._row(lane, i, node, restart=restart), "}"]
                continue
            if restart:
                lines.append(f"MEM(X_ROWS + {i}) = (SCALAR)0;")
            if i < m.n_interior:
                x = f"MEM(X_ROWS + {i})"
                lines.append(f"MEM(R_ROWS + {i}) = SIGMA * {x} - MEM(Q_ROWS + {i});")
        return lines

    def _row(self, lane: LaneText, i: int, node: Node, *, restart: bool) -> list[str]:
        m, kind = self._m, self._m.layout.row_slot(node).kind
        lines = [lane.bounds(node)]
        names = ("lo", "hi") if node in m.upper else ("hi",) if kind is RowKind.UPPER else ("lo",)
        if kind is RowKind.UNKNOWN:
            lines += [
                "const SCALAR kind = hi - lo < SAME ? R_EQUAL : R_ROW;",
                "const SCALAR r = ((lo < -ABSENT) & (hi > ABSENT)) ? R_FREE : kind;",
                f"MEM(RHO_ROWS + {m.rho[node]}) = r;",
            ]
        else:
            lines.append(f"const SCALAR r = {lane.inverse_rho(node)};")
        lines += [f"is_broken = {name} != {name} ? (SCALAR)1 : is_broken;" for name in names]
        if len(names) == 2:
            lines.append("is_crossed = lo > hi ? (SCALAR)1 : is_crossed;")
        if "lo" in names:
            lines.append("is_crossed = lo > INFINITE ? (SCALAR)1 : is_crossed;")
        if "hi" in names or kind is RowKind.EQUALITY:
            lines.append(f"is_crossed = {names[-1]} < -INFINITE ? (SCALAR)1 : is_crossed;")
        lines += self._penalties(node)
        s = "(SCALAR)0" if restart else f"fetch(s_of, {i}, n_z, lane)"
        return [
            *lines,
            f"const SCALAR s = {s}, v = s + r * MEM(R_ROWS + {i});",
            f"put(s_of, {i}, n_z, lane, OMEGA * (s - {lane.project(node)}));",
            f"MEM(X_ROWS + {i}) = v; MEM(R_ROWS + {i}) = 2 * s - v;",
        ]

    def _penalties(self, node: Node) -> list[str]:
        """Penalties become coefficients of the proximal map; see `qp.soft`."""
        lines = []
        for side in (0, 1):
            if (node, side) not in self._m.soft:
                continue
            b, a = (f"MEM(H_ROWS + {self._m.soft[node, part]})" for part in (side, side + 2))
            lines += [
                f"{{ const SCALAR hard = (({b} > INFINITE) | ({a} > INFINITE)) ? (SCALAR)1 : (SCALAR)0;",
                f"const SCALAR whole = 1 / r + (hard > 0 ? (SCALAR)0 : {a});",
                f"{b} = hard > 0 ? (SCALAR)INFINITY : {b} / whole;",
                f"{a} = 1 / (r * whole); }}",
            ]
        return lines

    def _separators(self) -> list[str]:
        """Right-hand sides of the separators."""
        n = self._m.n_interior
        return [
            f"KEEP({i}, g) = SIGMA * MEM(X_ROWS + {n + i}) - MEM(Q_ROWS + {n + i});"
            for i in range(self._m.n_separators)
        ]

    def _correct(self, lane: LaneText) -> list[str]:
        """The first iteration starts from s of the QP before, not from the projection of v."""
        lines = []
        for i, node in enumerate(self._m.nodes):
            if node.is_row:
                x = f"MEM(X_ROWS + {i})"
                lines += [
                    f"{{ const SCALAR v = {x} + fetch(s_of, {i}, n_z, lane); {lane.bounds(node)}",
                    f"{x} = v; MEM(R_ROWS + {i}) = 2 * {lane.project(node)} - v; }}",
                ]
        return lines

    def _slope(self) -> list[str]:
        terms = [
            f"MEM(Q_ROWS + {i}) * MEM(X_ROWS + {i})"
            for i, node in enumerate(self._m.nodes)
            if not node.is_row
        ]
        return [
            "Lanes slope_of;",
            f"EACH_LANE OF_LANE(slope_of) = {' + '.join(terms) or '(SCALAR)0'};",
            "slope = summed(slope_of);",
        ]

    def _evaluate(self, dtype: str) -> str:
        moved = "(step > 0 ? z_of[{place}] + step * base[{also}] : z_of[{place}])"
        plan = self._plans.evaluate
        cases = [
            collected(case.program, access, dtype, POINT_SUMS, **{**self._reads(), "in0": moved})
            for case, access in zip(plan.cases, plan.accesses, strict=True)
        ]
        return switch("evaluate_in.data[2 * item]", cases)

    def _report(self, dtype: str) -> str:
        plan, count = self._plans.report, len(self._plans.names)
        reads = self._reads() | {f"in{count + i}": "base[{place}]" for i in (0, 1)}
        reads[f"in{count + 2}"] = (
            "(({place}) >= 0 ? base[{place}] : ({place}) == -1 ? R_ROW : R_EQUAL)"
        )
        cases = [
            collected(case.program, access, dtype, REPORT_COLLECTED, **reads)
            for case, access in zip(plan.cases, plan.accesses, strict=True)
        ]
        names = {name: name for name, how in REPORT_COLLECTED if how == "max"} | {
            "y_size": "weight"
        }
        return _REPORT.format(
            of_lanes=", ".join(f"{name}_of = (SCALAR)0" for name in names),
            of_packs=", ".join(f"{name} = (Pack)0" for name in names),
            programs=switch("report_in.data[2 * item]", cases),
            keep="\n".join(f"OF_LANE({name}_of) = NUMBER({name});" for name in names),
            reduce="\n".join(f"{to} = largest({name}_of);" for name, to in names.items()),
        )

    def _finish(self, lane: LaneText) -> list[str]:
        lines = []
        for i, node in enumerate(self._m.nodes):
            if node.is_row:
                lines += [
                    f"{{ const SCALAR v = MEM(X_ROWS + {i}); {lane.bounds(node)}",
                    f"const SCALAR s = {lane.project(node)};",
                    f"put(s_of, {i}, n_z, lane, usable ? s : (SCALAR)0);",
                    f"MEM(R_ROWS + {i}) = honest ? (v - s) / {lane.inverse_rho(node)} : (SCALAR)0; }}",
                ]
        return lines
