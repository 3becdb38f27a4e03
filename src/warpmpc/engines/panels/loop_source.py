"""Native source of the ADMM loop by panels, in which several warps share a tile.

On CUDA, a block handles one tile: WARPS warps gather, and one more solves the triangles of the panels.
A lane is a problem.  All warps share the window of live values in shared memory.  Each warp that
gathers has a ring, which asynchronous copies fill LEAD records ahead of their use, even across
synchronisation, because the copied values were written before the sweep began.  The triangles have two
buffers.  The 32 lanes of a warp copy together, and each computes for its own problem.  All warps share
a termination check.  `engines.panels.sweep_plan` explains the records.

The CPU does the same epoch by epoch, one warp after the other, without rings.
"""

from __future__ import annotations

from functools import cache

from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.codegen.native.termination import GATHERED
from warpmpc.engines.panels import sweep_plan as tables
from warpmpc.engines.runtime.admm_loop import (
    LOOP_ARRAYS,
    LOOP_LIMITS,
    LOOP_OUTPUTS,
    ON_DEVICE,
    admm_body,
    kernel_source,
)

_TABLES = r"""
#define RECORDS (sweep ? backward_records_in.data : forward_records_in.data)
#define BEGIN (sweep ? backward_begin_in.data : forward_begin_in.data)
#define TRIANGLES (sweep ? backward_triangles_in.data : forward_triangles_in.data)
#define N_PANELS (forward_triangles_in.shape[0])
"""

_DEVICE_BEGIN = r"""
const int warp = (int)((thread >> 5) % (WARPS + 1));
#define RING (LEAD + 1)
#define LINE (32u * (unsigned)sizeof(SCALAR))  // bytes of one row of a tile
#define LANES_PER_ROW (LINE / 16)               // a copy moves 16 bytes per lane
#define ROWS_PER_COPY (32 / LANES_PER_ROW)
#define COPIES (LINES / ROWS_PER_COPY)
#define PLACE (LINES * LINE + 4 * (RECORD - LINES))  // bytes of one record in a ring
#define TRIANGLE_PLACE (TRIANGLE * LINE + 4 * PANEL)
const unsigned my_row = lane / LANES_PER_ROW, my_part = lane % LANES_PER_ROW;
// Byte addresses in shared memory: this lane of the window, the pointers to arrays, the ring.
const unsigned base = (unsigned)__cvta_generic_to_shared(scratch.data.ptr);
const unsigned window = base + lane * (unsigned)sizeof(SCALAR);
const unsigned arrays = base + window_rows * LINE;
const unsigned ring = arrays + 64 + warp * RING * PLACE;
#undef MEET
#undef ON_SIDE
#undef SEND
#undef RECEIVED
#undef MY_FIRST_NODE
#undef MY_LAST_NODE
#define MEET asm volatile("bar.sync 0;" ::: "memory");
#define ON_SIDE(which) if ((warp == WARPS) == (which))
// Between iterations the window is unused.
#define SEND(i, value) STORE(window + (warp * MAILBOX + (i)) * LINE, value);
#define MY_FIRST_NODE ((int)((Offset)n * warp / (WARPS + 1)))
#define MY_LAST_NODE ((int)((Offset)n * (warp + 1) / (WARPS + 1)))
#define LOAD(value, address) asm volatile("ld.shared." PTX " %0, [%1];" : "=" REG(value) : "r"(address))
#define LOAD_4(a, address) asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];" \
    : "=r"((a)[0]), "=r"((a)[1]), "=r"((a)[2]), "=r"((a)[3]) : "r"(address))
#define STORE(address, value) asm volatile("st.shared." PTX " [%0], %1;" ::"r"(address), REG(value))
#define COPY(to, from, bytes)                                                 \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes))
#define KEEP_ARRAY(i, array)                                                  \
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(arrays + 8 * (i)), "l"(BASE(array) - lane))
if (thread % THREADS == 0) {
    KEEP_ARRAY(0, factor_in); KEEP_ARRAY(1, W_out); KEEP_ARRAY(2, X_io);
    KEEP_ARRAY(3, Q_in); KEEP_ARRAY(4, U_in); KEEP_ARRAY(5, R_in);
}
"""

_DEVICE_SWEEPS = r"""
if (warp == 0) STORE(window + zero * LINE, (SCALAR)0);
__threadfence();  // values that one lane wrote are copied by another one
MEET
for (int sweep = 0; sweep < 2; ++sweep) {
if (warp < WARPS) {
    const int first_record = BEGIN[warp], count = BEGIN[warp + 1] - first_record;
    const int* __restrict__ ahead = RECORDS + (Offset)first_record * RECORD;
    // Lines of the next record to copy, for each lane those that it copies.
    int line[COPIES], issued = 0;
    _Pragma("unroll") for (int c = 0; c < COPIES; ++c) line[c] = ahead[c * ROWS_PER_COPY + my_row];
    unsigned to = ring, at = ring;
    auto issue = [&] {
        if (issued < count) {
            _Pragma("unroll") for (int c = 0; c < COPIES; ++c) {
                // A line that is absent becomes zeros.
                const int there = line[c] >= 0, code = there ? line[c] : 0;
                const char* from;
                asm volatile("ld.shared.u64 %0, [%1];" : "=l"(from) : "r"(arrays + 8 * (code >> ARRAY_SHIFT)));
                from += (Offset)(code & ((1 << ARRAY_SHIFT) - 1)) * LINE + my_part * 16;
                COPY(to + (c * ROWS_PER_COPY + my_row) * LINE + my_part * 16, from, there * 16);
            }
            if (lane < (RECORD - LINES) / 4)
                COPY(to + LINES * LINE + lane * 16, ahead + LINES + lane * 4, 16);
            to = to == ring + LEAD * PLACE ? ring : to + PLACE;
            if (++issued < count) {
                ahead += RECORD;
                _Pragma("unroll") for (int c = 0; c < COPIES; ++c)
                    line[c] = ahead[c * ROWS_PER_COPY + my_row];
            }
        }
        asm volatile("cp.async.commit_group;");
    };
    for (int c = 0; c < LEAD; ++c) issue();
    SCALAR acc = 0;
    for (int b = 0; b < count; ++b) {
        __syncwarp();  // the previous record has been read, its place is filled next
        issue();
        asm volatile("cp.async.wait_group %0;" ::"n"(LEAD) : "memory");
        __syncwarp();
        int what[4];
        SCALAR f[LINES];
        LOAD_4(what, at + LINES * LINE + 4 * LINES);
        _Pragma("unroll") for (int v = 0; v < LINES; ++v)
            LOAD(f[v], at + v * LINE + lane * (unsigned)sizeof(SCALAR));
        if (what[0] & FROM_START) acc = f[0];
        if (what[0] & FROM_SLOT) LOAD(acc, window + what[2] * LINE);
        if (!(what[0] & FINISH)) {
            int slot[LINES];
            SCALAR w[LINES];
            LOAD_4(slot, at + LINES * LINE);
            LOAD_4(slot + 4, at + LINES * LINE + 16);
            _Pragma("unroll") for (int v = 0; v < LINES; ++v) LOAD(w[v], window + slot[v] * LINE);
            if (what[0] & FROM_START) f[0] = 0;
            _Pragma("unroll") for (int v = 0; v < LINES; ++v) acc -= f[v] * w[v];
        }
        if (what[0] & TO_SLOT) STORE(window + what[2] * LINE, acc);
        if (what[0] & FINISH) {
            const Offset u = what[1];
            if (!sweep) {
                AT(W, u) = acc * f[1];
            } else if (what[0] & IS_ROW) {
                OF_SOFT_ROW
                const SCALAR s = first ? GET(S, u) : PROJECT_ITEM(f[0], f[1], f[2]);
                const SCALAR v_next = NEXT_V(f[0], s, (f[3] * acc));
                PUT(X, u, v_next);
                AT(W, u) = RHS_OF_V(v_next, PROJECT_ITEM(v_next, f[1], f[2]));
            } else {
                const SCALAR x_next = NEXT_X(f[0], acc);
                PUT(X, u, x_next);
                AT(W, u) = RHS_OF_X(x_next, f[1]);
            }
        }
        at = at == ring + LEAD * PLACE ? ring : at + PLACE;
        for (int s = what[0] / SYNC; s > 0; --s) MEET
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
} else {
    // Two buffers alternate: the next triangle is loaded, and the one after it while this one is solved.
    const int* __restrict__ ahead = TRIANGLES;
    int line[TRIANGLE / ROWS_PER_COPY], issued = 0;
    auto look = [&] {
        _Pragma("unroll") for (int c = 0; c < TRIANGLE / ROWS_PER_COPY; ++c)
            line[c] = ahead[c * ROWS_PER_COPY + my_row];
    };
    auto issue = [&] {
        const unsigned to = ring + (issued & 1) * TRIANGLE_PLACE;
        if (issued < N_PANELS) {
            _Pragma("unroll") for (int c = 0; c < TRIANGLE / ROWS_PER_COPY; ++c) {
                const int there = line[c] >= 0, entry = there ? line[c] : 0;
                const char* from = (const char*)(L - lane + (Offset)entry * 32) + my_part * 16;
                COPY(to + (c * ROWS_PER_COPY + my_row) * LINE + my_part * 16, from, there * 16);
            }
            if (lane < PANEL / 4) COPY(to + TRIANGLE * LINE + lane * 16, ahead + TRIANGLE + lane * 4, 16);
            if (issued + 1 < N_PANELS) { ahead += TRIANGLE + PANEL; look(); }
        }
        ++issued;
        asm volatile("cp.async.commit_group;");
    };
    look();
    issue();
    issue();
    for (int s = 0; s < 4; ++s) MEET
    for (int q = 0; q < N_PANELS; ++q) {
        const unsigned at = ring + (q & 1) * TRIANGLE_PLACE;
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
        int slot[PANEL];
        SCALAR f[TRIANGLE], a[PANEL];
        _Pragma("unroll") for (int v = 0; v < PANEL; v += 4) LOAD_4(slot + v, at + TRIANGLE * LINE + 4 * v);
        _Pragma("unroll") for (int v = 0; v < PANEL; ++v) LOAD(a[v], window + slot[v] * LINE);
        _Pragma("unroll") for (int v = 0; v < TRIANGLE; ++v)
            LOAD(f[v], at + v * LINE + lane * (unsigned)sizeof(SCALAR));
        _Pragma("unroll") for (int r = 1; r < PANEL; ++r) {
            _Pragma("unroll") for (int c = 0; c < r; ++c) a[r] -= f[r * (r - 1) / 2 + c] * a[c];
            STORE(window + slot[r] * LINE, a[r]);
        }
        __syncwarp();
        issue();
        MEET
        MEET
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    MEET
}
__threadfence();
MEET
}
"""

_HOST_SWEEPS = r"""
SCALAR* window = scratch.data.ptr;
const SCALAR* lines_of[] = {L, W, X, Q, U, R};
AT(window, zero) = (Pack)0;
for (int sweep = 0; sweep < 2; ++sweep) {
    int at[WARPS], met[WARPS];
    for (int w = 0; w < WARPS; ++w) { at[w] = BEGIN[w]; met[w] = 0; }
    for (int epoch = 0; epoch < 2 * N_PANELS + 5; ++epoch) {
        for (int w = 0; w < WARPS; ++w) {
            Pack acc = 0;
            while (met[w] == epoch && at[w] < BEGIN[w + 1]) {
                const int* record = RECORDS + (Offset)at[w]++ * RECORD;
                const int* slots = record + LINES;
                const int* what = slots + LINES;
                const int begun = what[0] & FROM_START ? 1 : 0;
                const Offset u = what[1];
#define VALUE(v) (*(const Pack*)(lines_of[record[v] >> ARRAY_SHIFT]           \
    + (Offset)(record[v] & ((1 << ARRAY_SHIFT) - 1)) * 32))
                if (begun) acc = VALUE(0);
                if (what[0] & FROM_SLOT) acc = AT(window, what[2]);
                if (!(what[0] & FINISH))
                    for (int v = begun; v < what[3]; ++v)
                        acc -= GET(L, (Offset)record[v]) * AT(window, slots[v]);
                if (what[0] & TO_SLOT) AT(window, what[2]) = acc;
                met[w] += what[0] / SYNC;
                if (!(what[0] & FINISH)) continue;
                if (!sweep) {
                    AT(W, u) = acc * VALUE(1);
                } else if (what[0] & IS_ROW) {
                    const Pack lo = GET(Q, u), hi = GET(U, u), v = AT(X, u);
                    const Pack s = first ? (Pack)GET(S, u) : (Pack)PROJECT(u, v, lo, hi);
                    const Pack v_next = NEXT_V(v, s, (GET(R, u) * acc));
                    PUT(X, u, v_next);
                    AT(W, u) = RHS_OF_V(v_next, PROJECT(u, v_next, lo, hi));
                } else {
                    const Pack x_next = NEXT_X(AT(X, u), acc);
                    PUT(X, u, x_next);
                    AT(W, u) = RHS_OF_X(x_next, GET(Q, u));
                }
            }
        }
        const int q = epoch / 2 - 2;
        if (epoch % 2 || q < 0 || q >= N_PANELS) continue;
        const int* entry = TRIANGLES + q * (TRIANGLE + PANEL);
        const int* slot = entry + TRIANGLE;
        for (int r = 1; r < PANEL; ++r) {
            Pack acc = AT(window, slot[r]);
            for (int c = 0; c < r; ++c, ++entry)
                if (*entry >= 0) acc -= GET(L, *entry) * AT(window, slot[c]);
            AT(window, slot[r]) = acc;
        }
    }
}
"""

_SOFT_LINES = "const SCALAR a_lo = f[4], b_lo = f[5], a_hi = f[6], b_hi = f[7];"
_CONSTANTS = (
    *("LINES", "RECORD", "ARRAY_SHIFT", "TRIANGLE", "PANEL"),
    *("FROM_START", "FROM_SLOT", "TO_SLOT", "FINISH", "IS_ROW", "SYNC"),
)
MAILBOX = len(GATHERED)


def _gather() -> str:
    """The last warp combines the results of the others, in their order."""
    sends = [f"SEND({i}, {name})" for i, name in enumerate(GATHERED)]
    joins = [
        f"LOAD(other, window + (w * MAILBOX + {i}) * LINE); {name} = {join}({name}, other);"
        for i, (name, join) in enumerate(GATHERED.items())
    ]
    lines = ["ON_SIDE(0) {", *sends, "}", "MEET", "ON_SIDE(1) for (int w = 0; w < WARPS; ++w) {"]
    return "\n".join([*lines, "SCALAR other;", *joins, "}"])


def panel_admm_source(dtype: str, warps: int, lead: int, *, soft: bool = False) -> str:
    """Body of the ADMM kernel: `warps` that gather, each with `lead` records in flight."""
    begin = _TABLES + ON_DEVICE.format(_DEVICE_BEGIN, "")
    sweeps = ON_DEVICE.format(_DEVICE_SWEEPS, _HOST_SWEEPS)
    sweeps = sweeps.replace("OF_SOFT_ROW", _SOFT_LINES if soft else "")
    body = admm_body(begin, sweeps, ON_DEVICE.format(_gather(), ""), soft=soft)
    values = {name: getattr(tables, name) for name in _CONSTANTS}
    return kernel_source(
        "X_io",
        body,
        dtype,
        TOGETHER=1,
        WARPS=warps,
        LEAD=lead,
        MAILBOX=MAILBOX,
        THREADS=f"(32 * ({warps} + 1))",
        **values,
    )


# The tables of both sweeps.
SWEEP_TABLES = tuple(
    argument
    for sweep in ("forward", "backward")
    for argument in (
        Argument(f"{sweep}_records_in", "records"),
        Argument(f"{sweep}_begin_in", "table"),
        Argument(f"{sweep}_triangles_in", "records"),
    )
)


@cache
def panel_admm_kernel(
    dtype: str, warps: int, lead: int, scratch: int, registers: int, soft: bool
) -> KernelSource:
    """Kernel of the ADMM loop with its termination check.

    Args:
        dtype: "float32" or "float64".
        warps: Warps that gather, per tile.
        lead: Records that each of them has in flight.
        scratch: Values of shared memory per tile.
        registers: Most registers per thread.
        soft: Whether there are soft rows.
    """
    own = arguments("number", "n_L", "zero", "window_rows")
    return KernelSource(
        name="panel_admm",
        title="ADMM iterations of a QP by panels.",
        dtype=dtype,
        inputs=[*LOOP_ARRAYS, *SWEEP_TABLES, *own, *LOOP_LIMITS],
        outputs=LOOP_OUTPUTS,
        head="",
        merged=32,
        body=panel_admm_source(dtype, warps, lead, soft=soft),
        registers=registers,
        scratch=scratch,
    )
