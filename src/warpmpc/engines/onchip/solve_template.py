"""Templates of the native source of a whole MPC solve by one warp per problem.

On CUDA, each thread is a lane.  On the CPU, one thread solves a problem: blocks that belong to a
lane run in a loop over the 32 lanes, and the reduction works on vectors of lanes.  Shared values
are in shared memory, see `LaneMemory`.  z, d, s and y are read at the beginning and written at the
end. Between QPs X holds d and s, and R holds y.
"""

# Phases whose cycles can be counted, in the order of the source.
PHASES = ("linearize", "factor", "couple", "admm", "report", "search")

NO_PART = -1  # the status of a problem that is not solved at all
LOST = -2  # the status of a QP whose data are finite and whose iteration has diverged

SOLVE = r"""
{invert}
auto inverted = [&](Lanes x) -> Lanes {{ EACH_LANE OF_LANE(x) = invert(OF_LANE(x)); return x; }};
{statuses}
const Offset problem = thread >> 5;
if (problem >= z_io.shape[0]) return;
const int n_z = z_io.shape[1], n_g = s_io.shape[1];
// Places of the values of each node in the copy of the caller's arrays.
const int* __restrict__ nodes = nodes_in.data;
SCALAR* z_of = z_io.data + problem * n_z;
SCALAR* d_of = d_io.data + problem * n_z;
SCALAR* s_of = s_io.data + problem * n_g;
SCALAR* y_of = y_io.data + problem * n_g;
// All arrays of the caller are requested before the first one is used.
const int is_active = active_in.data[problem];
{inputs}
{ask}
int* status_of = status_out.data + problem * status_out.shape[1];
SCALAR* report_of = report_out.data + problem * report_out.shape[1];
// Zero times a value that is not finite is NaN: `odd` covers d, s and y, `lost` covers z.
Lanes odd = (Lanes)0, lost = (Lanes)0;
{read}
if (!is_active || !is_zero(lost)) {{
    EACH_LANE ROLLED for (int i = lane; i < report_out.shape[1]; i += 32) report_of[i] = 0;
    EACH_LANE ROLLED for (int i = lane; i < status_out.shape[1]; i += 32)
        status_of[i] = i ? 0 : {no_part};
    return;
}}
{rounds}
{linearize_first}
// Prefetches the arrays of a problem that follows after this one.
if (problem + FOLLOWING < z_io.shape[0]) EACH_LANE {{
    ASK_LATER(z_of + FOLLOWING * n_z, n_z)
    ASK_LATER(d_of + FOLLOWING * n_z, n_z)
    ASK_LATER(s_of + FOLLOWING * n_g, n_g)
    ASK_LATER(y_of + FOLLOWING * n_g, n_g)
    {inputs_later}
}}
// Rows that no stage writes, because the lane does not have them.
EACH_LANE {{ CLEAR(Q_ROWS, R_ROWS - Q_ROWS) }}
// A problem without a solution leaves such values behind.
if (!is_zero(odd)) ROLLED for (int i = 0; i < X_COUNT; ++i) EACH_LANE {{
    MEM(X_ROWS + i) = 0;
    if (i < R_COUNT) MEM(R_ROWS + i) = 0;
}}
const SCALAR ladder[POINTS] = {{ {ladder} }};
int spent = 0, last_status = RUNNING;{begin}
// Values at the iterate: from the first linearisation, later from line searches.  The two round
// differently, so that a step of length zero may change their last digit.
SCALAR cost_here = 0, squares_here = 0, absolute_here = 0, worst_here = 0;
ROLLED for (int iteration = 0;; ++iteration) {{
    int status = RUNNING;
    bool usable = false, solvable = true;
    const bool reports = REPORT_ALWAYS || iteration + 1 == n_iterations;
    SCALAR slope = 0, stationarity = 0, gradient = 0, dual = 0, primal = 0, slack = 0;
    SCALAR weight = 0, d_size = 0, z_size = 0;{begin_unit}
    Lanes cost_of = (Lanes)0, squares_of = (Lanes)0, absolute_of = (Lanes)0, worst_of = (Lanes)0;
    SYNC
    EACH_LANE {{ CLEAR(W_ROWS, K_COUNT) }}
    SYNC
    EACH_LANE {{
        {clear}
    }}
    SYNC
    ROLLED for (int item = 0; item < LINEARIZE_ITEMS; item += 32) {{
        const int* __restrict__ row = linearize_in.data + item * LINEARIZE_WIDTH;
        const bool more = item + 32 < LINEARIZE_ITEMS;
        EACH_LANE {{
            SCALAR* __restrict__ base = memory + lane;
            {linearize}
        }}
    }}
    SYNC
    EACH_LANE {{
        {add_incoming}
    }}
    if (!iteration) {{
        cost_here = summed(cost_of);
        squares_here = summed(squares_of);
        absolute_here = summed(absolute_of);
        worst_here = largest(worst_of);
    }}
    CLOCK(0){damp}
    Lanes crossed, broken;
    EACH_LANE {{
        SCALAR is_crossed = 0, is_broken = 0;
        {prepare}
        OF_LANE(crossed) = is_crossed;
        OF_LANE(broken) = is_broken;
    }}
    if (!is_zero(crossed)) status = INVALID_BOUNDS;
    if (!is_zero(broken)) status = NON_FINITE;{finite}
    // Eliminate the interior of the lanes, then prepare the solves for their separators.
    Lanes diag[NX][NX], above[NX][NX], below[NX][NX], ahead[NX][NX];
    EACH_LANE {{
        {save_couplings}
    }}
    if (reports || CHECKS) EACH_LANE {{
        {save_rest}
    }}
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
        poison_of += ROW_OF_LANES(X_ROWS + row) * 0;
    const bool tried = IS_TRIED(status);
    usable = tried && is_zero(poison_of);
    solvable = IS_SOLVABLE(status);
    const bool honest = usable && solvable;
    {slope}
    EACH_LANE {{
        {finish}
    }}
    SYNC
    if (reports) {{
        {report}
    }} else {{
        {evaluate_first}
    }}
    CLOCK(4)
    last_status = status;
    // Search along the direction: the largest accepted step, otherwise the smallest or none.
    SCALAR step = ladder[0], taken = 0;
    SCALAR cost_new = cost_here, squares_new = squares_here, absolute_new = absolute_here;
    SCALAR worst_new = worst_here;
    bool accepted = false;
    ROLLED for (int point = 0; point < POINTS; ++point) {{
        EACH_LANE {{
            Pack cost = (Pack)0, squares = (Pack)0, absolute = (Pack)0, worst = (Pack)0;
            ROLLED for (int item = 0; item < EVALUATE_ITEMS; item += 32) {{
                const int* __restrict__ row = evaluate_in.data + item * EVALUATE_WIDTH;
                const bool more = item + 32 < EVALUATE_ITEMS;
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
        SEARCH_AT_ITERATE(cost_here, squares_here, absolute_here)
        SEARCH_AT_TRIAL
        if (usable && SEARCH_TAKES(point + 1 == POINTS)) {{
            taken = step;
            cost_new = cost;
            squares_new = squares;
            absolute_new = absolute;
            worst_new = worst;
        }}
        if (accepted) break;
        if (point + 1 < POINTS) {{
            step = ladder[point + 1];
            {evaluate_first}
        }}
    }}{judge}
    const bool goes_on = iteration + 1 < n_iterations{leave};
    {forget_places}
    if (!goes_on) {{ {ask_places} }}
    if (CHIEF && ({reported})) {{
        SCALAR* report = report_of + (RECORD ? iteration * {n_report} : 0);
        const SCALAR alpha = taken;
        {report_rows}
    }}
    cost_here = cost_new;
    squares_here = squares_new;
    absolute_here = absolute_new;
    worst_here = worst_new;
    CLOCK(5)
    // Take the step, and leave d, s and y for the next QP.
    SYNC
    if (taken > 0) EACH_LANE {{
        {move}
    }}
    if (!usable) ROLLED for (int row = 0; row < X_COUNT; ++row) EACH_LANE MEM(X_ROWS + row) = 0;
{forget_state}    if (!goes_on) break;
    {linearize_first}
}}
SYNC
{write}
CLOCK(5)
WRITE_CLOCKS
if (CHIEF) {{ status_of[0] = last_status; status_of[1] = spent; }}{count}
"""

# All ADMM iterations of a QP.
PLAIN_LOOP = r"""if (status == RUNNING) {{
        // The first iteration is separate, so that its correction does not slow the others down.
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

# Residuals of QP and optimality conditions, from K, d, s and y; `engines.onchip.check_source`.
REPORT = r"""
Lanes slope_of = (Lanes)0, of[8];{roots}
UNROLL for (int i = 0; i < 8; ++i) of[i] = (Lanes)0;
#define LARGEST(i, value) \
    {{ const SCALAR size = LIBM(fabs)(value); OF_LANE(of[i]) = MAX(OF_LANE(of[i]), size); }}
{residuals}
// Fetched here, because the products need the registers and the exchanges below hide the latency.
{evaluate_first}
slope = summed(slope_of);
stationarity = largest(of[0]); gradient = largest(of[1]); dual = largest(of[2]);
primal = largest(of[3]); slack = largest(of[4]); weight = largest(of[5]);
d_size = largest(of[6]); z_size = largest(of[7]);
{checked}{unit}"""
