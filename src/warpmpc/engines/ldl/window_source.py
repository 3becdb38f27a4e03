"""Native source of the windowed solve: the factor streams by, the live unknowns stay on chip.

On CUDA there is one thread per problem.  A ring in shared memory receives rows of the factor by
asynchronous copies that run LEAD chunks ahead of their use, and a second ring the right-hand sides.
The 32 threads of a warp copy together, and each computes for its own problem.  The CPU walks the same
stream without rings.

The sweeps serve more than one kernel, which define these macros:

    FORWARD_START, BACKWARD_START    array (for this thread's lane) that a sweep starts from
    BEGIN_ITEM(u)                    node u begins: values for its end may be fetched
    END_ITEM(u, slot, acc, pivot)    its value is acc; `sweep` is 0 forward, 1 backward
    SLOT(slot)                       its place in the window
    PLAIN_START_FORWARD(u), PLAIN_END_FORWARD(u, acc, pivot) and so on: the same on the CPU
"""

from __future__ import annotations

from functools import cache

from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.engines.ldl.source import THREADS, specialise
from warpmpc.engines.ldl.window import CHUNK

LEAD = 2  # chunks of the factor in flight per warp, beside the one in use
_WARPS_PER_SM = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24)

WINDOW_SETUP = r"""
#define RING (LEAD + 1)
#define ITEM_RING (LEAD + 2)
#define LINE (32u * (unsigned)sizeof(SCALAR))  // bytes of one row of a tile
#define LANES_PER_ROW (LINE / 16)               // a copy moves 16 bytes per lane
#define ROWS_PER_COPY (32 / LANES_PER_ROW)
#define COPIES (CHUNK / ROWS_PER_COPY)
const unsigned my_row = lane / LANES_PER_ROW, my_part = lane % LANES_PER_ROW;
// Where this lane copies from, and (below) to.
#define COPY_FROM(array) ((const char*)((array) - lane) + my_part * 16)
const char* F = COPY_FROM(BASE(factor_in));
const unsigned my_place = my_row * LINE + my_part * 16;
// Byte addresses in shared memory: this thread's lane of factor, start values and window; then
// what all lanes share, the slots of each step and the node and slot of each item.
const unsigned base = (unsigned)__cvta_generic_to_shared(scratch.data.ptr);
const unsigned ring = base + lane * (unsigned)sizeof(SCALAR);
const unsigned values = ring + RING * CHUNK * LINE;
const unsigned window = values + ITEM_RING * CHUNK * LINE;
const unsigned lists = window - lane * (unsigned)sizeof(SCALAR) + (zero + 2) * LINE;
const unsigned entries = lists + RING * CHUNK * 4;
// Opaque to the compiler, so that an address is one multiply-add away from its base.
asm("" : "+l"(F));

#define FETCH(to, from)                                                       \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from))
#define LOAD(value, address) asm volatile("ld.shared." PTX " %0, [%1];" : "=" REG(value) : "r"(address))
#define STORE(address, value) asm volatile("st.shared." PTX " [%0], %1;" ::"r"(address), REG(value))

// A padded step finds an older entry of this factor in the ring; the first one must be finite too.
for (int v = 0; v < RING * CHUNK; ++v) STORE(ring + v * LINE, (SCALAR)0);
STORE(window + zero * LINE, (SCALAR)0);
__syncwarp();
"""

WINDOW_SWEEPS = r"""
for (int sweep = 0; sweep < 2; ++sweep) {
    const int* __restrict__ segments = sweep ? backward_segments_in.data : forward_segments_in.data;
    const int* __restrict__ items = sweep ? backward_items_in.data : forward_items_in.data;
    const int* __restrict__ rows = sweep ? backward_rows_in.data : forward_rows_in.data;
    const int* __restrict__ slots = sweep ? backward_slots_in.data : forward_slots_in.data;
    const int* __restrict__ brings = sweep ? backward_brings_in.data : forward_brings_in.data;
    const int n_segments = sweep ? backward_segments_in.shape[0] : forward_segments_in.shape[0];
    const int n_chunks = sweep ? backward_rows_in.shape[0] : forward_rows_in.shape[0];
    const char* start = COPY_FROM(sweep ? BACKWARD_START : FORWARD_START);
    asm("" : "+l"(start));

    // What the next fetch needs is read one fetch ahead, by each lane for the rows it copies.
    int row[COPIES], node[COPIES];
    const int2* fetch_item = (const int2*)items;
    _Pragma("unroll") for (int c = 0; c < COPIES; ++c) {
        row[c] = rows[c * ROWS_PER_COPY + my_row];
        node[c] = fetch_item[c * ROWS_PER_COPY + my_row].x;
    }
    int bring = brings[0], issued = 0;
    unsigned to = base + my_place, to_list = lists;
    unsigned to_value = to + RING * CHUNK * LINE, to_entry = entries;
    auto issue = [&] {
        if (issued < n_chunks) {
            _Pragma("unroll") for (int c = 0; c < COPIES; ++c)
                if (row[c] >= 0) FETCH(to + c * ROWS_PER_COPY * LINE, F + (ptrdiff_t)row[c] * LINE);
            if (lane < 2) FETCH(to_list + lane * 16, slots + issued * CHUNK + lane * 4);
            if (bring) {
                _Pragma("unroll") for (int c = 0; c < COPIES; ++c)
                    FETCH(to_value + c * ROWS_PER_COPY * LINE, start + (ptrdiff_t)node[c] * LINE);
                if (lane < 4) FETCH(to_entry + lane * 16, fetch_item + lane * 2);
                to_value += CHUNK * LINE;
                to_entry += CHUNK * 8;
                if (to_entry == entries + ITEM_RING * CHUNK * 8) {
                    to_value -= ITEM_RING * CHUNK * LINE;
                    to_entry = entries;
                }
                fetch_item += CHUNK;
                _Pragma("unroll") for (int c = 0; c < COPIES; ++c)
                    node[c] = fetch_item[c * ROWS_PER_COPY + my_row].x;
            }
            to += CHUNK * LINE;
            to_list += CHUNK * 4;
            if (to_list == entries) { to -= RING * CHUNK * LINE; to_list = lists; }
            if (++issued < n_chunks) {
                _Pragma("unroll") for (int c = 0; c < COPIES; ++c)
                    row[c] = rows[issued * CHUNK + c * ROWS_PER_COPY + my_row];
                bring = brings[issued];
            }
        }
        asm volatile("cp.async.commit_group;");
    };
    for (int c = 0; c < LEAD; ++c) issue();

    // The chunk that is being consumed: addresses of its factor rows and slots, steps taken.
    unsigned f_chunk = ring + (RING - 1) * CHUNK * LINE, list = lists + (RING - 1) * CHUNK * 4;
    int taken = CHUNK;
    auto advance = [&] {
        __syncwarp();  // the slots of the chunk before are read, its place is filled next
        issue();
        asm volatile("cp.async.wait_group %0;" ::"n"(LEAD) : "memory");
        __syncwarp();
        f_chunk += CHUNK * LINE;
        list += CHUNK * 4;
        if (f_chunk == ring + RING * CHUNK * LINE) { f_chunk = ring; list = lists; }
        taken = 0;
    };
    unsigned value = values, entry = entries;
    int next_count = segments[0], next_steps = segments[1];

#define SLOTS_1(at) asm volatile("ld.shared.s32 %0, [%1];" : "=r"(i_next[0]) : "r"(at))
#define SLOTS_2(at) asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(i_next[0]), "=r"(i_next[1]) : "r"(at))
#define SLOTS_4(at) asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];" \
    : "=r"(i_next[0]), "=r"(i_next[1]), "=r"(i_next[2]), "=r"(i_next[3]) : "r"(at))
#define SLOTS_8(at) SLOTS_4(at); asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4 + 16];" \
    : "=r"(i_next[4]), "=r"(i_next[5]), "=r"(i_next[6]), "=r"(i_next[7]) : "r"(at))
#define TAKE(U)                                                               \
    {                                                                         \
        if (taken == CHUNK) advance();                                        \
        const unsigned f_at = f_chunk + taken * LINE;                         \
        SLOTS_##U(list + taken * 4);                                          \
        _Pragma("unroll") for (int v = 0; v < U; ++v) LOAD(f_next[v], f_at + v * LINE); \
        taken += U;                                                           \
    }
// Whatever does not depend on the previous item is computed before that item is finished.
#define RUN(U)                                                                \
    {                                                                         \
        SCALAR f[U], f_next[U], w[U];                                         \
        int i_next[U];                                                        \
        const int batches = steps / U;                                        \
        int left = n_items * batches;                                         \
        taken = (taken + U - 1) / U * U;                                      \
        TAKE(U)                                                               \
        for (int k = 0; k < n_items; ++k) {                                   \
            SCALAR acc;                                                       \
            int u, slot;                                                      \
            LOAD(acc, value);                                                 \
            asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(u), "=r"(slot) : "r"(entry)); \
            value += LINE;                                                    \
            entry += 8;                                                       \
            if (entry == entries + ITEM_RING * CHUNK * 8) { value = values; entry = entries; } \
            const SCALAR pivot = f_next[0];                                   \
            BEGIN_ITEM(u)                                                     \
            for (int b = 0; b < batches; ++b) {                               \
                _Pragma("unroll") for (int v = 0; v < U; ++v) {               \
                    f[v] = f_next[v];                                         \
                    LOAD(w[v], window + i_next[v] * LINE);                    \
                }                                                             \
                if (--left) TAKE(U)                                           \
                _Pragma("unroll") for (int v = 0; v < U; ++v) acc -= f[v] * w[v]; \
            }                                                                 \
            STORE(window + SLOT(slot) * LINE, acc);                           \
            END_ITEM(u, slot, acc, pivot)                                     \
        }                                                                     \
    }
    for (int s = 0; s < n_segments; ++s) {
        const int n_items = next_count, steps = next_steps;
        if (s + 1 < n_segments) { next_count = segments[3 * s + 3]; next_steps = segments[3 * s + 4]; }
        switch (steps) {
            case 1: RUN(1) break;
            case 2: RUN(2) break;
            case 4: RUN(4) break;
            default: RUN(8) break;
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __threadfence();  // lanes copy each other's results back in the next sweep
    __syncwarp();
}
"""

PLAIN_SETUP = r"""
SCALAR* F = BASE(factor_in);
SCALAR* window = scratch.data.ptr;
AT(window, zero) = (Pack)0;
#define SWEEP(segments_in, items_in, rows_in, slots_in, START, END)           \
    {                                                                         \
        int item = 0;                                                         \
        for (int s = 0; s < (segments_in).shape[0]; ++s) {                    \
            const int* seg = (segments_in).data + s * 3;                      \
            for (int k = 0; k < seg[0]; ++k, ++item) {                        \
                const int* row = (rows_in).data + seg[2] + k * seg[1];        \
                const int* slots = (slots_in).data + seg[2] + k * seg[1];     \
                const int u = (items_in).data[2 * item];                      \
                const int slot = (items_in).data[2 * item + 1];               \
                Pack acc = START;                                             \
                for (int t = 0; t < seg[1]; ++t)                              \
                    if (row[t] >= 0) acc -= AT(F, row[t]) * AT(window, slots[t]); \
                AT(window, SLOT(slot)) = acc;                                 \
                END;                                                          \
            }                                                                 \
        }                                                                     \
    }
"""

PLAIN_SWEEPS = r"""
SWEEP(forward_segments_in, forward_items_in, forward_rows_in, forward_slots_in,
      PLAIN_START_FORWARD(u), PLAIN_END_FORWARD(u, acc, AT(F, row[0])))
SWEEP(backward_segments_in, backward_items_in, backward_rows_in, backward_slots_in,
      PLAIN_START_BACKWARD(u), PLAIN_END_BACKWARD(u, slot, acc))
"""

_SOLVE = r"""
SCALAR* x = BASE(x_out);
SCALAR* rhs = BASE(rhs_in);
#define SLOT(slot) (slot)
#define FORWARD_START rhs
#define BACKWARD_START x  // results of the forward sweep, in the output
#define BEGIN_ITEM(u)
#define END_ITEM(u, slot, acc, pivot) x[(ptrdiff_t)(u) * 32] = sweep ? acc : acc * pivot;
#define PLAIN_START_FORWARD(u) AT_CONST(rhs, u)
#define PLAIN_START_BACKWARD(u) AT(x, u)
#define PLAIN_END_FORWARD(u, acc, pivot) AT(x, u) = acc * pivot
#define PLAIN_END_BACKWARD(u, slot, acc) AT(x, u) = acc
#if ON_CUDA && STRIDE == 32
asm("" : "+l"(x));
const int lane = inside & 31;
"""

WINDOW_SOLVE = (
    "#define PER_TILE factor_in\n#define CHUNK 8\nint warps = 1;\n"
    + THREADS
    + _SOLVE
    + WINDOW_SETUP
    + WINDOW_SWEEPS
    + "#else\n"
    + PLAIN_SETUP
    + PLAIN_SWEEPS
    + "#endif\n"
)


@cache
def window_kernel(dtype: str, *, scratch: int) -> KernelSource:
    """Kernel that solves with the unknowns in a window of shared memory; see `WINDOW_SOLVE`.

    Args:
        dtype: "float32" or "float64".
        scratch: Values of shared memory per warp, from `window_scratch`.
    """
    tables = [
        argument
        for sweep in ("forward", "backward")
        for argument in (
            *arguments("records", f"{sweep}_segments_in", f"{sweep}_items_in"),
            *arguments("records", f"{sweep}_rows_in", f"{sweep}_slots_in"),
            Argument(f"{sweep}_brings_in", "table"),
        )
    ]
    return KernelSource(
        name="window_solve",
        title="Forward and backward solve with a window of live unknowns in shared memory.",
        dtype=dtype,
        inputs=[*arguments("real", "factor_in", "rhs_in"), *tables, Argument("zero", "number")],
        outputs=[Argument("x_out")],
        head="",
        merged=32,
        body=specialise(WINDOW_SOLVE, dtype, tiled=True, LEAD=LEAD),
        scratch=scratch,
    )


def window_scratch(n_slots: int, dtype: str, limit: int) -> int | None:
    """Shared memory of the window kernel in values per warp; None if `limit` bytes are too few.

    Sizes are rounded up to what the same number of warps per multiprocessor can have, so that a
    handful of kernels serves all patterns.
    """
    item = 4 if dtype == "float32" else 8
    needed = ((2 * LEAD + 3) * CHUNK + n_slots) * 32 * item
    needed += (LEAD + 1) * CHUNK * 4 + (LEAD + 2) * CHUNK * 8
    # A multiprocessor has 1 KiB more than one block may use; each block costs it 1 KiB, and Warp
    # keeps 4 bytes per thread.
    fitting = [((limit + 1024) // warps - 1024 - 128) // 16 * 16 for warps in _WARPS_PER_SM]
    return next((size // item for size in reversed(fitting) if size >= needed), None)
