"""Native text of a whole MPC solve by one warp per problem, as templates.

On CUDA a thread is a lane.  On the CPU one thread does a problem: blocks of a lane run in a loop
over the 32 lanes, the reduction works on vectors of lanes.  What QPs need lies in shared memory,
see `LaneMemory`; z stays in the caller's array, d, s and y are read at the beginning and written at
the end.  Between QPs X has d and s, R has y.
"""

SOLVE = r"""
{invert}
auto inverted = [&](Lanes x) -> Lanes {{ EACH_LANE OF_LANE(x) = invert(OF_LANE(x)); return x; }};
// Values of `qp.types.Status`.
enum {{ SOLVED, RUNNING, PRIMAL_INFEASIBLE, DUAL_INFEASIBLE, NON_FINITE, INVALID_BOUNDS }};
const Offset problem = thread >> 5;
if (problem >= z_io.shape[0]) return;
const int n_z = z_io.shape[1], n_g = s_io.shape[1];
SCALAR* z_of = z_io.data + problem * n_z;
SCALAR* d_of = d_io.data + problem * n_z;
SCALAR* s_of = s_io.data + problem * n_g;
SCALAR* y_of = y_io.data + problem * n_g;
{inputs}
int* status_of = status_out.data + problem * status_out.shape[1];
SCALAR* report_of = report_out.data + problem * report_out.shape[1];
if (CHIEF) for (int i = 0; i < status_out.shape[1]; ++i) status_of[i] = 0;  // SOLVED by nothing
if (!active_in.data[problem]) {{
    EACH_LANE for (int i = lane; i < report_out.shape[1]; i += 32) report_of[i] = 0;
    return;
}}
const int* __restrict__ nodes = nodes_in.data;
// A number of the caller that belongs to a node; nothing where a lane has no such node.
auto fetch = [&](const SCALAR* from, int node, int first, int lane) -> SCALAR {{
    const int i = READ(nodes, node * 32 + lane + nothing);
    return i < 0 ? (SCALAR)0 : from[i - first];
}};
auto put = [&](SCALAR* to, int node, int first, int lane, SCALAR x) {{
    const int i = READ(nodes, node * 32 + lane);
    if (i >= 0) to[i - first] = x;
}};
// Code that runs once per iteration has to be short, because it is fetched anew every time; the
// caller's memory is asked for some numbers at a time, because each takes long.
ROLLED_BY_8 for (int row = 0; row < MEMORY_ROWS; ++row) EACH_LANE MEM(row) = 0;
Lanes odd = (Lanes)0;
ROLLED_BY_8 for (int i = 0; i < X_COUNT; ++i) EACH_LANE {{
    const int at = READ(nodes, i * 32 + lane);
    const bool is_row = at >= n_z;
    const SCALAR x = at < 0 ? (SCALAR)0 : is_row ? s_of[at - n_z] : d_of[at];
    const SCALAR y = is_row ? y_of[at - n_z] : (SCALAR)0;
    MEM(X_ROWS + i) = x;
    if (is_row) MEM(R_ROWS + i) = y;
    OF_LANE(odd) += (x - x) + (y - y);
}}
// Numbers that are not finite are what a problem without solution leaves behind.
if (!(summed(odd) == 0)) ROLLED for (int i = 0; i < X_COUNT; ++i) EACH_LANE {{
    MEM(X_ROWS + i) = 0;
    if (i < R_COUNT) MEM(R_ROWS + i) = 0;
}}
const SCALAR ladder[POINTS] = {{ 0, {ladder} }};
int spent = 0, last_status = RUNNING;{begin}
// At the point itself: known from the search before.
SCALAR cost_here = 0, squares_here = 0, absolute_here = 0, worst_here = 0;
ROLLED for (int iteration = 0; iteration < n_iterations; ++iteration) {{
    int status = RUNNING;
    bool usable = false, solvable = true;
    SCALAR slope = 0, stationarity = 0, gradient = 0, dual = 0, primal = 0, slack = 0;
    SCALAR weight = 0, d_size = 0, z_size = 0;
    // The second time for residuals: with one text for both there is less to fetch.
    const bool reports = REPORT_ALWAYS || iteration + 1 == n_iterations;
    const int passes = reports && !KEEPS_K ? 2 : 1;
    ROLLED for (int pass = 0; pass < passes; ++pass) {{
    SYNC
    EACH_LANE for (int i = 32 * lane; i < n_z; i += 1024) {{ ASK_FOR(z_of + i) }}
    {linearize_first}
    ROLLED_BY_8 for (int i = 0; i < K_COUNT; ++i) EACH_LANE MEM(W_ROWS + i) = 0;
    EACH_LANE {{
        {clear}
    }}
    SYNC
    ROLLED for (int item = 0; item < LINEARIZE_ITEMS; item += 32) {{
        const int* __restrict__ row = linearize_in.data + item * LINEARIZE_WIDTH;
        const int* __restrict__ next = row + (item + 32 < LINEARIZE_ITEMS) * 32 * LINEARIZE_WIDTH;
        EACH_LANE {{
            SCALAR* __restrict__ base = memory + lane;
            {linearize}
        }}
    }}
    SYNC
    EACH_LANE {{
        {add_incoming}
    }}
    CLOCK(0)
    #if !KEEPS_K
    if (pass == 1) {{
        {report}
        CLOCK(4)
        break;
    }}
    #endif
    Lanes crossed, broken;
    EACH_LANE {{
        SCALAR is_crossed = 0, is_broken = 0;
        {prepare}
        OF_LANE(crossed) = is_crossed;
        OF_LANE(broken) = is_broken;
    }}
    if (largest(crossed) > 0) status = INVALID_BOUNDS;
    if (largest(broken) > 0) status = NON_FINITE;{finite}
    // Eliminate what is inside lanes, then prepare the solves for their separators.
    Lanes diag[NX][NX], above[NX][NX], below[NX][NX], ahead[NX][NX];
    {eliminate}
    CLOCK(1)
    {couple}
    SYNC
    EACH_LANE {{
        {separators}
    }}
    CLOCK(2)
    {admm}
    SYNC
    CLOCK(3)
    Lanes poison_of = (Lanes)0;
    ROLLED_BY_8 for (int row = 0; row < X_COUNT; ++row)
        poison_of += ROW_OF_LANES(X_ROWS + row) - ROW_OF_LANES(X_ROWS + row);
    const bool tried = status != NON_FINITE && status != INVALID_BOUNDS;
    usable = tried && summed(poison_of) == 0;
    // Multipliers of a QP without solution grow without bound and mean nothing.
    solvable = status != PRIMAL_INFEASIBLE && status != DUAL_INFEASIBLE;
    const bool honest = usable && solvable;
    {slope}
    EACH_LANE {{
        {finish}
    }}
    #if KEEPS_K
    SYNC
    if (reports) {{
        {report}
    }}
    CLOCK(4)
    #endif
    }}
    last_status = status;
    // Search along the direction: the largest step that is accepted, else the smallest or none.
    int choice = 0;
    SCALAR cost_new = cost_here, squares_new = squares_here, absolute_new = absolute_here;
    SCALAR worst_new = worst_here;
    bool accepted = false;
    ROLLED for (int point = iteration ? 1 : 0; point < POINTS; ++point) {{
        const SCALAR step = ladder[point];
        Lanes cost_of = (Lanes)0, squares_of = (Lanes)0, absolute_of = (Lanes)0;
        Lanes worst_of = (Lanes)0;
        EACH_LANE {{
            Pack cost = (Pack)0, squares = (Pack)0, absolute = (Pack)0, worst = (Pack)0;
            {evaluate_first}
            ROLLED for (int item = 0; item < EVALUATE_ITEMS; item += 32) {{
                const int* __restrict__ row = evaluate_in.data + item * EVALUATE_WIDTH;
                const int* next = row + (item + 32 < EVALUATE_ITEMS) * 32 * EVALUATE_WIDTH;
                const SCALAR* __restrict__ base = memory + lane;
                {evaluate}
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
    }}{judge}
    if (CHIEF && ({reported})) {{
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
    CLOCK(5)
    // Take the step, and leave d, s and y for the next QP.
    SYNC
    if (choice > 0) {{
        const SCALAR taken = ladder[choice];
        ROLLED_BY_8 for (int i = 0; i < X_COUNT; ++i) EACH_LANE {{
            const int at = READ(nodes, i * 32 + lane);
            if (at >= 0 && at < n_z) z_of[at] += taken * MEM(X_ROWS + i);
        }}
    }}
    if (!usable) ROLLED for (int row = 0; row < X_COUNT; ++row) EACH_LANE MEM(X_ROWS + row) = 0;
{leave}}}
SYNC
ROLLED_BY_8 for (int i = 0; i < X_COUNT; ++i) EACH_LANE {{
    const int at = READ(nodes, i * 32 + lane);
    if (at >= n_z) {{
        s_of[at - n_z] = MEM(X_ROWS + i);
        y_of[at - n_z] = MEM(R_ROWS + i);
    }} else if (at >= 0) d_of[at] = MEM(X_ROWS + i);
}}
if (CHIEF) {{ status_of[0] = last_status; status_of[1] = spent; }}{count}
"""

# All ADMM iterations of a QP.
PLAIN_LOOP = r"""if (status == RUNNING) {{
        // The first iteration apart from the others: what corrects it is not in their way.
        ROLLED for (int later = 0; later < 2; ++later) {{
            const int end = later ? n_admm : 1;
            {loaded}
            ROLLED for (int t = later; t < end; ++t) {{
                {iterate}
            }}
            FORGET
            if (!later) EACH_LANE {{
                {correct}
            }}
        }}
        spent += n_admm;
    }}"""

# Residuals of QP and optimality conditions, from K, d, s and y in memory.
REPORT = r"""
Lanes slope_of = (Lanes)0, of[8];
UNROLL for (int i = 0; i < 8; ++i) of[i] = (Lanes)0;
#define LARGEST(i, value) \
    { const SCALAR size = LIBM(fabs)(value); OF_LANE(of[i]) = MAX(OF_LANE(of[i]), size); }
ROLLED for (int i = 0; i < X_COUNT; ++i) EACH_LANE {
    const int at = READ(nodes, i * 32 + lane);
    if (at >= 0) {
        const int* __restrict__ node = products_in.data + i * 8;
        const SCALAR* base = memory + lane;
        SCALAR with_d = 0, with_y = 0;
        const int split = at < n_z ? node[1] : node[2], end = node[2];
        ROLLED_BY_4 for (int t = node[0]; t < end; ++t) {
            const auto term = TERM(t);
            const int other = lane + term.z;
            const bool is_there = other >= 0 && other < 32;
            SCALAR entry = base[is_there && term.x >= 0 ? term.x : 0];
            if (term.x < 0) entry = READ(literals_in.data, -1 - term.x);
            const SCALAR product = entry * base[is_there ? term.y : 0];
            if (is_there) (t < split ? with_d : with_y) += product;
        }
        const SCALAR q = MEM(Q_ROWS + i);
        if (at < n_z) {
            const SCALAR d = MEM(X_ROWS + i);
            OF_LANE(slope_of) += q * d;
            LARGEST(0, q + with_y)
            LARGEST(1, q)
            LARGEST(2, q + with_y + with_d)
            LARGEST(6, d)
            LARGEST(7, z_of[at])
        } else {
            const SCALAR y = MEM(R_ROWS + i), s = MEM(X_ROWS + i);
            const int up = node[3];
            const SCALAR hi = up >= 0 ? MEM(U_ROWS + up) : up == -2 ? (SCALAR)INFINITY : q;
            const SCALAR lo = up == -3 ? (SCALAR)-INFINITY : q;
            const SCALAR bound = y > 0 ? hi : y < 0 ? lo : (SCALAR)0;
            LARGEST(3, with_d - s)
            LARGEST(5, y)
            bool is_soft = false;
            SOFT_SLOPE
            if (!is_soft && bound - bound == 0) LARGEST(4, y * bound)
        }
    }
}
slope = summed(slope_of);
stationarity = largest(of[0]); gradient = largest(of[1]); dual = largest(of[2]);
primal = largest(of[3]); slack = largest(of[4]); weight = largest(of[5]);
d_size = largest(of[6]); z_size = largest(of[7]);
"""

# What the QP expects the penalties of a soft row to change by.
SOFT_SLOPE = r"""
UNROLL for (int side = 0; side < 2; ++side) {
    const int linear_at = node[4 + side], quadratic_at = node[6 + side];
    is_soft = is_soft || linear_at >= 0;
    if (linear_at >= 0) {
        SCALAR linear = MEM(H_ROWS + linear_at), quadratic = MEM(H_ROWS + quadratic_at);
        #if KEEPS_K
        // Coefficients of the proximal map, see `qp.soft`.
        const SCALAR whole = (1 / R_ROW) / quadratic;
        linear *= whole;
        quadratic = whole - (1 / R_ROW);
        #endif
        const SCALAR end = side ? with_d - hi : lo - with_d, begin = side ? -hi : lo;
        const SCALAR after = MAX(end, (SCALAR)0), before = MAX(begin, (SCALAR)0);
        if (linear <= INFINITE && quadratic <= INFINITE)
            OF_LANE(slope_of) += linear * (after - before)
                + (SCALAR)0.5 * quadratic * (after * after - before * before);
    }
}
"""
