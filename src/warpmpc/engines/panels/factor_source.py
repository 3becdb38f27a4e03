"""Native source of the factorisation by panels, in which several warps share a tile.

On CUDA, a block handles one tile with WARPS warps, and a lane is a problem.  The working rows of the
panel and the products among its own rows are in shared memory, K and L in device memory.  While a
record is used, the values of the next one and the indices of the one after it are being loaded.
Nothing is being loaded where warps synchronise, because the next phase may read what this one wrote.
Until the end the factor holds pivots instead of their inverses.  `engines.panels.factor_plan` explains
the records.

The CPU does the same, one warp after the other.
"""

from __future__ import annotations

from functools import cache

from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.codegen.native.preamble import INVERT_PIVOT
from warpmpc.engines.panels import factor_plan as tables
from warpmpc.engines.runtime.admm_loop import ON_DEVICE, kernel_source

OWN_ROWS = tables.COLUMNS * tables.COLUMNS  # rows of memory for the products among a panel's rows

_DEVICE = r"""
const int warp = (int)((thread >> 5) % WARPS);
#define MY_WARP warp
#define MY_STRIDE WARPS
#define MET __syncthreads();
struct alignas(16) Quad { SCALAR v[COLUMNS]; };
Quad* working = (Quad*)scratch.data.ptr + lane;
SCALAR* own = scratch.data.ptr + (Offset)n_working * COLUMNS * 32 + lane;
#define WORKING(slot, c) working[(slot) * 32].v[c]
#define OWN_ROW(r, c) own[((r) * COLUMNS + (c)) * 32]
#define FOR_EACH_WARP(w) for (int w = warp; w == warp; w = -1)
// Values and indices of a record.  L changes while the kernel runs.
struct alignas(16) Record { int entry[STEPS], slot[STEPS], start[COLUMNS], target[COLUMNS], flags[4]; };
#define FETCH_NUMBERS(f, k, record)                                           \
    _Pragma("unroll") for (int v = 0; v < STEPS; ++v) {                       \
        f[v] = 0;                                                             \
        if (record.entry[v] >= 0) f[v] = AT(L, (Offset)record.entry[v]);      \
    }                                                                         \
    if (record.flags[0] & BEGIN)                                              \
        _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c) {                 \
            k[c] = 0;                                                         \
            if (record.start[c] >= 0) k[c] = GET(K, (Offset)record.start[c]); \
        }
#define GATHER_ROWS(from, to)                                                 \
    if ((from) < (to)) {                                                      \
        const Record* __restrict__ list = (const Record*)records_in.data;     \
        Record now = list[from], next = list[(from) + 1 < (to) ? (from) + 1 : (from)]; \
        SCALAR f[STEPS], f_next[STEPS], k_next[COLUMNS], acc[COLUMNS];        \
        FETCH_NUMBERS(f_next, k_next, now)                                    \
        for (int b = (from); b < (to); ++b) {                                 \
            _Pragma("unroll") for (int v = 0; v < STEPS; ++v) f[v] = f_next[v]; \
            if (now.flags[0] & BEGIN)                                         \
                _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c) acc[c] = k_next[c]; \
            if (b + 1 < (to)) { FETCH_NUMBERS(f_next, k_next, next) }         \
            const Record later = list[b + 2 < (to) ? b + 2 : b];              \
            _Pragma("unroll") for (int v = 0; v < STEPS; ++v) {               \
                const Quad m = working[now.slot[v] * 32];                     \
                _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c) acc[c] -= f[v] * m.v[c]; \
            }                                                                 \
            if (now.flags[0] & END) { FINISH_ROW(now.flags, now.target) }     \
            now = next;                                                       \
            next = later;                                                     \
        }                                                                     \
    }
"""

_HOST = r"""
#define MY_WARP 0
#define MY_STRIDE 1
#define MET
SCALAR* working = scratch.data.ptr;
SCALAR* own = working + (Offset)n_working * COLUMNS * 32;
#define WORKING(slot, c) AT(working, (slot) * COLUMNS + (c))
#define OWN_ROW(r, c) AT(own, (r) * COLUMNS + (c))
#define FOR_EACH_WARP(w) for (int w = 0; w < WARPS; ++w)
#define GATHER_ROWS(from, to)                                                 \
    {                                                                         \
        Pack acc[COLUMNS];                                                    \
        for (int b = (from); b < (to); ++b) {                                 \
            const int* entry = records_in.data + (Offset)b * RECORD;          \
            const int* slot = entry + STEPS;                                  \
            const int* start = slot + STEPS;                                  \
            const int* target = start + COLUMNS;                              \
            const int* flags = target + COLUMNS;                              \
            if (flags[0] & BEGIN)                                             \
                for (int c = 0; c < COLUMNS; ++c)                             \
                    acc[c] = start[c] >= 0 ? (Pack)GET(K, start[c]) : (Pack)0; \
            for (int v = 0; v < STEPS && entry[v] >= 0; ++v) {                \
                const Pack f = AT(L, entry[v]);                               \
                for (int c = 0; c < COLUMNS; ++c) acc[c] -= f * WORKING(slot[v], c); \
            }                                                                 \
            if (flags[0] & END) { FINISH_ROW(flags, target) }                 \
        }                                                                     \
    }
"""

# Completes a row after its products with older columns: the columns of the panel itself remain.
_BODY = (
    INVERT_PIVOT
    + r"""
#define FINISH_ROW(flags, target)                                             \
    if (flags[0] & OWN) {                                                     \
        _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c) OWN_ROW(flags[1], c) = acc[c]; \
    } else {                                                                  \
        _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c) {                 \
            _Pragma("unroll") for (int j = 0; j < c; ++j) acc[c] -= acc[j] * l[c][j]; \
            if (target[c] >= 0) AT(L, (Offset)target[c]) = acc[c] * inverse[c]; \
        }                                                                     \
    }
if (!todo_in.data[tile]) return;
SCALAR* L = BASE(factor_io);
SCALAR* D = L + (Offset)n_L * 32;
const SCALAR* __restrict__ K = BASE(K_in);
const int n = factor_io.shape[1] - n_L;
const int n_panels = panels_in.shape[0];
Pack l[COLUMNS][COLUMNS], inverse[COLUMNS];
for (int p = 0; p < n_panels; ++p) {
    const int* panel = panels_in.data + p * PANEL_ROW;
    for (int i = panel[0] + MY_WARP; i < panel[1]; i += MY_STRIDE) {
        const int* leaf = leaves_in.data + i * 4;
        const Pack pivot = GET(K, (Offset)leaf[1]);
        Pack quotient;
        PACK_EACH(quotient, pivot, invert);
        AT(D, (Offset)leaf[0]) = pivot;
        _Pragma("unroll 4") for (int e = leaf[2]; e < leaf[3]; ++e)
            AT(L, (Offset)e) = GET(K, (Offset)sources_in.data[e]) * quotient;
    }
    MET
    for (int i = panel[2] + MY_WARP; i < panel[3]; i += MY_STRIDE) {
        const int* row = working_in.data + (Offset)i * 8;
        const Pack pivot = AT(D, (Offset)row[COLUMNS]);
        _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c)
            WORKING(i - panel[2], c) = row[c] >= 0 ? (Pack)(AT(L, (Offset)row[c]) * pivot) : (Pack)0;
    }
    MET
    const int* begin = begin_in.data + (Offset)p * 2 * WARPS;
    FOR_EACH_WARP(w) { GATHER_ROWS(begin[w], begin[w + 1]) }
    MET
    // Every warp solves the small problem of the panel's own rows; the first one keeps the result.
    _Pragma("unroll") for (int r = 0; r < COLUMNS; ++r) {
        const bool there = panel[NODES + r] >= 0;
        Pack pivot = there ? (Pack)OWN_ROW(r, r) : (Pack)1;
        _Pragma("unroll") for (int c = 0; c < r; ++c) {
            Pack product = there ? (Pack)OWN_ROW(r, c) : (Pack)0;
            _Pragma("unroll") for (int j = 0; j < c; ++j) product -= l[j][r] * l[c][j];
            l[c][r] = product;  // not yet divided by its pivot
            l[r][c] = product * inverse[c];
            pivot -= product * l[r][c];
        }
        PACK_EACH(inverse[r], pivot, invert);
        if (MY_WARP == 0 && there) {
            AT(D, (Offset)panel[NODES + r]) = pivot;
            _Pragma("unroll") for (int c = 0; c < r; ++c) {
                const int entry = panel[INSIDE + r * (r - 1) / 2 + c];
                if (entry >= 0) AT(L, (Offset)entry) = l[r][c];
            }
        }
    }
    begin += WARPS;
    FOR_EACH_WARP(w) { GATHER_ROWS(begin[w], begin[w + 1]) }
}
MET
for (int i = MY_WARP; i < n; i += MY_STRIDE) {
    const Pack pivot = AT(D, (Offset)i);
    Pack quotient;
    PACK_EACH(quotient, pivot, invert);
    AT(D, (Offset)i) = quotient;
}
"""
)

_CONSTANTS = (
    *("COLUMNS", "STEPS", "RECORD", "BEGIN", "END", "OWN"),
    *("NODES", "INSIDE", "PANEL_ROW"),
)


# The tables of a plan, then those of its records.
FACTOR_TABLES = (
    *arguments("records", "panels_in", "leaves_in"),
    Argument("sources_in", "table"),
    *arguments("records", "working_in", "records_in"),
    Argument("begin_in", "table"),
)


def panel_factor_source(dtype: str, warps: int) -> str:
    """Body of the factorisation kernel for a number of warps per tile."""
    values = {name: getattr(tables, name) for name in _CONSTANTS}
    body = ON_DEVICE.format(_DEVICE, _HOST) + _BODY
    return kernel_source("K_in", body, dtype, WARPS=warps, THREADS=f"(32 * {warps})", **values)


@cache
def panel_factor_kernel(dtype: str, warps: int, scratch: int, registers: int) -> KernelSource:
    """Kernel that factorises the tiles marked in `todo`; other tiles keep their factors.

    Args:
        dtype: "float32" or "float64".
        warps: Warps per tile.
        scratch: Values of shared memory per tile.
        registers: Most registers per thread.
    """
    return KernelSource(
        name="panel_factor",
        title="Factorisation of a KKT matrix by panels.",
        dtype=dtype,
        inputs=[
            Argument("K_in"),
            Argument("todo_in", "table"),
            *FACTOR_TABLES,
            *arguments("number", "n_L", "n_working"),
        ],
        outputs=[Argument("factor_io")],
        head="",
        merged=32,
        body=panel_factor_source(dtype, warps),
        registers=registers,
        scratch=scratch,
    )
