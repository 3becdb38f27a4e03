"""Native source of the LDL' kernels, the same for CUDA and CPU.

A `Pack` holds one row for one thread: a single value on CUDA, where the 32 lanes of a warp are the 32
problems of a tile, and a vector of 32 values on the CPU, where one thread handles a whole tile.  All
control flow depends on tables that are equal for all problems, so lanes never diverge.  Every operand
list is padded with -1; a padded operand reads nothing and counts as zero.
"""

from __future__ import annotations

from functools import cache

from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.codegen.native.preamble import INVERT_PIVOT, TYPES

THREADS = r"""
#if defined(__CUDA_ARCH__)
#define ON_CUDA 1
#define SYNC() do { if (warps > 1) __syncthreads(); } while (0)
#else
#define ON_CUDA 0
#define SYNC()
#endif
struct alignas(8) Pair { int a, b; };
#define AT_CONST(base, row) (*(const Pack*)((base) + (row) * STRIDE))

#if STRIDE == 1
// Batch-first: a problem's values are contiguous, one thread (or loop pass) per problem.
const int warp = 0;
const size_t problem = thread;
if (problem >= (size_t)PER_TILE.shape[0]) return;
#define BASE(array) ((array).data + problem * (array).shape[1])
#else
// Tiles: `warps` warps share a tile; on the CPU the first of its threads does all the work.
const size_t tile = thread / (32 * warps);
const int inside = (int)(thread % (32 * warps));
if (tile >= (size_t)PER_TILE.shape[0]) return;
#if ON_CUDA
const int warp = inside / 32;
#define BASE(array) ((array).data + tile * (array).shape[1] * 32 + inside % 32)
#else
const int warp = 0;
if (inside != 0) return;
warps = 1;
#define BASE(array) ((array).data + tile * (array).shape[1] * 32)
#endif
#endif
"""

# acc -= sum of left[a] * right[b] over one operand list, U at a time so that U loads of each kind
# are in flight together; the order of the sum is that of the table, whose width is a multiple of U.
DOT = r"""
#if ON_CUDA
#define DOT_CHUNKS(U, acc, list, width, left, right)                          \
    for (int t = 0; t < (width); t += U) {                                    \
        Pair ix[U]; Pack l[U], r[U];                                          \
        _Pragma("unroll") for (int v = 0; v < U; ++v) ix[v] = (list)[t + v];  \
        _Pragma("unroll") for (int v = 0; v < U; ++v) {                       \
            l[v] = r[v] = 0;                                                  \
            if (ix[v].a >= 0) {                                               \
                l[v] = AT(left, (ptrdiff_t)ix[v].a);                          \
                r[v] = AT(right, (ptrdiff_t)ix[v].b);                         \
            }                                                                 \
        }                                                                     \
        _Pragma("unroll") for (int v = 0; v < U; ++v) acc -= l[v] * r[v];     \
    }
// Opaque to the compiler, so that an address is one multiply-add away from its base.
#define OPAQUE(pointer) asm("" : "+l"(pointer))
#else
#define DOT_CHUNKS(U, acc, list, width, left, right)                          \
    for (int t = 0; t < (width); ++t)                                         \
        if ((list)[t].a >= 0) acc -= AT(left, (list)[t].a) * AT(right, (list)[t].b);
#define OPAQUE(pointer)
#endif
"""

FACTOR = (
    r"""
#define PER_TILE factor_io
"""
    + THREADS
    + DOT
    + r"""
#if STRIDE == 32
if (!todo_in.data[tile]) return;
#endif
const SCALAR* __restrict__ K = BASE(K_in);
SCALAR* L = BASE(factor_io);
SCALAR* D_inv = L + (factor_io.shape[1] - columns_in.shape[0]) * STRIDE;
OPAQUE(L);
OPAQUE(D_inv);
const Pair* __restrict__ row_table = (const Pair*)rows_in.data;
const Pair* __restrict__ pair_table = (const Pair*)pairs_in.data;
const Pair* __restrict__ columns = (const Pair*)columns_in.data;
const Pair* __restrict__ entries = (const Pair*)entries_in.data;
const int* __restrict__ entry_ptr = entry_ptr_in.data;
const SCALAR* __restrict__ scale = scale_in.data;

"""
    + INVERT_PIVOT
    + r"""
// Divide row j of L by its pivots; the rest of the diagonal is the pivot of column j.
#if ON_CUDA
#define DIVIDE_ROW(U)                                                         \
    for (int t = 0; t < row_width; t += U) {                                  \
        Pair ix[U]; Pack l[U], r[U];                                          \
        _Pragma("unroll") for (int v = 0; v < U; ++v) ix[v] = list[t + v];    \
        _Pragma("unroll") for (int v = 0; v < U; ++v) {                       \
            l[v] = r[v] = 0;                                                  \
            if (ix[v].a >= 0) {                                               \
                l[v] = AT(L, (ptrdiff_t)ix[v].a);                             \
                r[v] = AT(D_inv, (ptrdiff_t)ix[v].b);                         \
            }                                                                 \
        }                                                                     \
        _Pragma("unroll") for (int v = 0; v < U; ++v) {                       \
            r[v] *= l[v];                                                     \
            d -= l[v] * r[v];                                                 \
            if (ix[v].a >= 0) AT(L, (ptrdiff_t)ix[v].a) = r[v];               \
        }                                                                     \
    }
#else
#define DIVIDE_ROW(U)                                                         \
    for (int t = 0; t < row_width; ++t) {                                     \
        if (list[t].a < 0) continue;                                          \
        const Pack v = AT(L, list[t].a);                                      \
        const Pack l = v * AT(D_inv, list[t].b);                              \
        d -= v * l;                                                           \
        AT(L, list[t].a) = l;                                                 \
    }
#endif
#define PIVOT(p)                                                              \
    {                                                                         \
        const Pair* list = row_table + row_start + ((p) - first) * row_width; \
        const Pair column = columns[p];                                       \
        Pack d = AT_CONST(K, column.b) * scale[column.b];                     \
        if (row_width <= 1) { DIVIDE_ROW(1) }                                 \
        else if (row_width <= 4) { DIVIDE_ROW(2) }                            \
        else { DIVIDE_ROW(8) }                                                \
        Pack inverse;                                                         \
        PACK_EACH(inverse, d, invert);                                        \
        AT(D_inv, column.a) = inverse;                                        \
    }
#define ENTRY(e, U)                                                           \
    {                                                                         \
        const Pair* list = pair_table + pair_start + ((e) - entry_first) * pair_width; \
        const Pair entry = entries[e];                                        \
        Pack acc = 0;                                                         \
        if (entry.b >= 0) acc = AT_CONST(K, entry.b) * scale[entry.b];        \
        DOT_CHUNKS(U, acc, list, pair_width, L, L)                            \
        AT(L, entry.a) = acc;                                                 \
    }
#define WALK(U)                                                               \
    if (parallel) {                                                           \
        for (int p = first + warp; p < last; p += warps) PIVOT(p)             \
        SYNC();                                                               \
        for (int e = entry_first + warp; e < entry_last; e += warps) ENTRY(e, U) \
    } else if (warp == 0) {                                                   \
        for (int p = first; p < last; ++p) {                                  \
            PIVOT(p)                                                          \
            const int end = entry_ptr[p + 1];                                 \
            for (int e = entry_ptr[p]; e < end; ++e) ENTRY(e, U)              \
        }                                                                     \
    }
for (int s = 0; s < segments_in.shape[0]; ++s) {
    const int* seg = segments_in.data + s * 8;
    const int first = seg[0], last = seg[1], parallel = seg[2], barrier = seg[3];
    const int row_width = seg[4], row_start = seg[5], pair_width = seg[6], pair_start = seg[7];
    const int entry_first = entry_ptr[first], entry_last = entry_ptr[last];
    if (pair_width <= 1) { WALK(1) }
    else if (pair_width <= 2) { WALK(2) }
    else if (pair_width <= 4) { WALK(4) }
    else { WALK(8) }
    if (barrier) SYNC();
}
"""
)

# Forward and backward solve by tables, unknowns in the output array.
SOLVE = (
    r"""
#define PER_TILE factor_in
"""
    + THREADS
    + DOT
    + r"""
const int n = rhs_in.shape[1];
SCALAR* F = BASE(factor_in);
SCALAR* D_inv = F + (factor_in.shape[1] - n) * STRIDE;
OPAQUE(F);
const SCALAR* __restrict__ rhs = BASE(rhs_in);
SCALAR* x = BASE(x_out);
OPAQUE(x);
#define FROM_RHS(u) AT_CONST(rhs, u)
#define FROM_PIVOT(u) (AT(x, u) * AT(D_inv, u))
#define WALK(U, START)                                                        \
    for (int p = parallel ? first + warp : first; p < last; p += parallel ? warps : 1) { \
        const Pair* list = table + start + (p - first) * width;               \
        const int u = node[p];                                                \
        Pack acc = START(u);                                                  \
        DOT_CHUNKS(U, acc, list, width, F, x)                                 \
        AT(x, u) = acc;                                                       \
    }
#define SWEEP(segments, table_in, node_in, START)                             \
    {                                                                         \
        const Pair* __restrict__ table = (const Pair*)(table_in).data;        \
        const int* __restrict__ node = (node_in).data;                        \
        for (int s = 0; s < (segments).shape[0]; ++s) {                       \
            const int* seg = (segments).data + s * 6;                         \
            const int first = seg[0], last = seg[1], parallel = seg[2];       \
            const int barrier = seg[3], width = seg[4], start = seg[5];       \
            if (parallel || warp == 0) {                                      \
                if (width <= 1) { WALK(1, START) }                            \
                else if (width <= 4) { WALK(2, START) }                       \
                else { WALK(8, START) }                                       \
            }                                                                 \
            if (barrier) SYNC();                                              \
        }                                                                     \
    }
SWEEP(forward_segments_in, forward_table_in, forward_node_in, FROM_RHS)
SWEEP(backward_segments_in, backward_table_in, backward_node_in, FROM_PIVOT)
"""
)


def specialise(template: str, dtype: str, *, tiled: bool, **constants: int) -> str:
    """Binds the source of a kernel to a dtype, a layout and further constants."""
    lanes = 32 if tiled else 1
    values = {"WIDTH": lanes, "STRIDE": lanes, "INDEX(row)": "(row)", **constants}
    head = "".join(f"#define {name} {value}\n" for name, value in values.items())
    return head + TYPES[dtype] + template


@cache
def factor_kernel(dtype: str, *, tiled: bool, registers: int) -> KernelSource:
    """Kernel that factorises the problems of the tiles marked in `todo_in`; see `FACTOR`.

    Batch-first problems are factorised whatever the marks are.
    """
    real = "real" if tiled else "matrix"
    return KernelSource(
        name="factor",
        title="Factorisation LDL' by tables.",
        dtype=dtype,
        inputs=[
            Argument("K_in", real),
            Argument("todo_in", "table"),
            Argument("scale_in", "vector"),
            *arguments("records", "segments_in", "columns_in", "entries_in"),
            Argument("entry_ptr_in", "table"),
            *arguments("records", "rows_in", "pairs_in"),
            Argument("warps", "number"),
        ],
        outputs=[Argument("factor_io", real)],
        head="",
        merged=32 if tiled else 1,
        body=specialise(FACTOR, dtype, tiled=tiled),
        registers=registers,
    )


@cache
def solve_kernel(dtype: str, *, tiled: bool, registers: int) -> KernelSource:
    """Kernel that solves by tables, unknowns in device memory; see `SOLVE`."""
    real = "real" if tiled else "matrix"
    return KernelSource(
        name="solve",
        title="Forward and backward solve by tables.",
        dtype=dtype,
        inputs=[
            *arguments(real, "factor_in", "rhs_in"),
            Argument("forward_segments_in", "records"),
            Argument("forward_node_in", "table"),
            *arguments("records", "forward_table_in", "backward_segments_in"),
            Argument("backward_node_in", "table"),
            Argument("backward_table_in", "records"),
            Argument("warps", "number"),
        ],
        outputs=[Argument("x_out", real)],
        head="",
        merged=32 if tiled else 1,
        body=specialise(SOLVE, dtype, tiled=tiled),
        registers=registers,
    )
