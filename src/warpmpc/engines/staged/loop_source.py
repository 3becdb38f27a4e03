"""Native source of the kernels of a QP: threads, and the ADMM loop.

The linear solves are either generated stages (`engines.staged.stage_source`) or the sweeps by panels
of `engines.panels.loop_source`; both end with the update of the ADMM iteration.

On CUDA there is one thread per problem, and a warp may prefetch the next stage into the L2 cache.  On
the CPU one thread handles a tile, a `Pack` holds one value per problem, and masks preserve the values
of problems that are done.

A program with two chains has two threads per problem: a block is one tile, its first warp walks the
first chain and its second warp the second one.  Both change only nodes of their own chain, and
synchronise where one reads what the other wrote.  On the CPU one thread walks both.
"""

from __future__ import annotations

from functools import cache

from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.codegen.native.admm import FORMULAS, HARD_ROWS, SOFT_ROWS
from warpmpc.codegen.native.preamble import INVERT_PIVOT
from warpmpc.codegen.native.status import DEFINE_INFINITE
from warpmpc.codegen.native.termination import CHECK, GATHER, GATHERED
from warpmpc.engines.ldl.source import SCALARS
from warpmpc.engines.runtime.admm_launch import LOOP_ARRAYS, LOOP_LIMITS, LOOP_OUTPUTS
from warpmpc.engines.staged.stage_source import SideLayout

_PREAMBLE = r"""
typedef long long Offset;
// Inlined even if long: as a separate function it would read all shared variables from memory.
#define ALWAYS_INLINE __attribute__((always_inline))
#if defined(__CUDA_ARCH__)
typedef SCALAR Pack;
#define PACK_EACH(out, in, f) (out) = f(in)
#define GET(base, row) __ldg((base) + (row) * 32)
#define LANES_HERE 1
#define LANE(pack) (pack)
#define MIN(a, b) fmin(a, b)
#define MAX(a, b) fmax(a, b)
const size_t tile = thread / THREADS;
const int lane = (int)(thread & 31);
if (tile >= (size_t)PER_TILE.shape[0]) return;
// A zero and a one that are opaque to the compiler.  With known values it would merge stages and sweeps
// and keep hundreds of values alive from one to the next, for which only local memory has room.
Offset nothing = 0;
int once = 1;
asm volatile("" : "+l"(nothing), "+r"(once));
#define FORGET asm volatile("" : "+l"(nothing));
#define ONCE once
// One thread prefetches what its warp reads next, without waiting for it.
#if __CUDA_ARCH__ >= 900
#define AHEAD(name, row, rows)                                                \
    if (prefetch && lane == 0) {                                              \
        const int from = (row) > 0 ? (row) : 0, last = ROWS_##name;           \
        const int count = from + (rows) < last ? (rows) : last - from;        \
        if (count > 0)                                                        \
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::      \
                "l"(name + (Offset)from * 32), "r"(count * 32 * (int)sizeof(SCALAR))); \
    }
#else
#define AHEAD(name, row, rows)
#endif
#else
typedef SCALAR Pack __attribute__((ext_vector_type(32), aligned(sizeof(SCALAR))));
#define PACK_EACH(out, in, f) for (int _l = 0; _l < 32; ++_l) (out)[_l] = f((in)[_l])
#define GET(base, row) (*(const Pack*)((base) + (row) * 32))
#define LANES_HERE 32
#define LANE(pack) (pack)[l]
#define MIN(a, b) ((b) < (a) ? (b) : (a))
#define MAX(a, b) ((a) < (b) ? (b) : (a))
const int lane = 0;
const size_t tile = thread / THREADS;
if (tile >= (size_t)PER_TILE.shape[0] || thread % THREADS) return;
const Offset nothing = 0;
#define FORGET
#define ONCE 1
#define AHEAD(name, row, rows)
#endif
#define BASE(array) ((array).data + tile * (array).shape[1] * 32 + lane)
#define AT(base, row) (*(Pack*)((base) + (row) * 32))
#define AT_STAGE(name, row) auto* name##k = name + (Offset)(row) * 32 + nothing;
#define ABS(a) MAX(a, -(a))
#if SIDES == 2 && defined(__CUDA_ARCH__)
const int side = (int)(thread >> 5) & 1;
__shared__ SCALAR mailbox[MAILBOX * 32];
#define ON_SIDE(which) if (side == (which))
#define MEET __syncthreads();
#define SEND(i, value) mailbox[(i) * 32 + lane] = (value);
#define RECEIVED(i) mailbox[(i) * 32 + lane]
#define MY_FIRST_NODE (side ? SPLIT : 0)
#define MY_LAST_NODE (side ? n : SPLIT)
#else
#define ON_SIDE(which)
#define MEET
#define SEND(i, value) mailbox[i] = (value);
#define RECEIVED(i) mailbox[i]
#define MY_FIRST_NODE 0
#define MY_LAST_NODE n
#if SIDES == 2
Pack mailbox[MAILBOX];
#endif
#endif
"""

_FACTOR = (
    INVERT_PIVOT
    + r"""
#define INVERT(out, in) PACK_EACH(out, in, invert)
if (!todo_in.data[tile]) return;
#define ROWS_K K_in.shape[1]
#define ROWS_L n_L
#define ROWS_D (factor_io.shape[1] - n_L)
auto eliminate = [&](const SCALAR* __restrict__ K, SCALAR* __restrict__ L,
                     SCALAR* __restrict__ D) ALWAYS_INLINE {
    GENERATED
};
SCALAR* factor = BASE(factor_io);
eliminate(BASE(K_in), factor, factor + (Offset)n_L * 32);
"""
)

_ADMM = (
    r"""
#define ADD(a, b) ((a) + (b))
#define OLD_S(v, lo, hi, i) (first ? (Pack)GET(Sk, i) : (Pack)CLIP(v, lo, hi))
// Problems that are done keep their x and v.  Threads that work alone leave; lanes that work together
// stay until the last one is done.
#if defined(__CUDA_ARCH__) && !TOGETHER
#define PUT(base, row, value) AT(base, row) = value
#define MARK_DONE
#define ANYONE(flag) (flag)
#elif defined(__CUDA_ARCH__)
bool done = false;
#define PUT(base, row, value) if (!done) AT(base, row) = value
#define MARK_DONE done = status[0] != 1;
#define ANYONE(flag) __any_sync(0xffffffffu, flag)
#else
decltype(Pack() < Pack()) done;
#define PUT(base, row, value) AT(base, row) = done ? AT(base, row) : (Pack)(value)
#define MARK_DONE for (int l = 0; l < 32; ++l) done[l] = status[l] == 1 ? 0 : -1;
#define ANYONE(flag) (flag)
#endif
#define ROWS_L n_L
#define ROWS_D n
#define ROWS_X n
#define ROWS_W n
#define ROWS_Q n
#define ROWS_U n
#define ROWS_R n
struct Node { int begin, split, end, is_row; };
struct Term { int entry, node; };
const Node* __restrict__ nodes = (const Node*)nodes_in.data;
const Term* __restrict__ terms = (const Term*)terms_in.data;
const int n = X_io.shape[1];
const SCALAR SIGMA = numbers_in.data[0], OMEGA = numbers_in.data[1];
const SCALAR eps_abs = numbers_in.data[2], eps_rel = numbers_in.data[3];
const SCALAR eps_prim_inf = numbers_in.data[4], eps_dual_inf = numbers_in.data[5];
const SCALAR R_ROW = numbers_in.data[6], R_EQUAL = numbers_in.data[7];
const bool check_gap = numbers_in.data[8] != 0;
const bool certify = check_every > 0;
const int begin = begin_in.data[0];
const int end = begin + span < max_iter ? begin + span : max_iter;
int* status = BASE(status_io);
int* iterations = BASE(iterations_io);
SCALAR* report = BASE(report_io);
int todo = 0;
for (int l = 0; l < LANES_HERE; ++l) todo += status[l] == 1;
if (!ANYONE(todo)) return;
MARK_DONE
SETUP
const Pack cost = scaled ? GET(BASE(cost_in), 0) : (Pack)1;

auto run = [&](const SCALAR* __restrict__ L, const SCALAR* __restrict__ D,
               const SCALAR* __restrict__ K, const SCALAR* __restrict__ Q,
               const SCALAR* __restrict__ U, const SCALAR* __restrict__ R,
               const SCALAR* __restrict__ S, const SCALAR* __restrict__ Z,
               SCALAR* __restrict__ X, SCALAR* __restrict__ W,
               SCALAR* __restrict__ V) ALWAYS_INLINE {
bool first = begin == 0;
SCALAR* __restrict__ C = certify ? V + (Offset)n * 32 : nullptr;
for (int i = MY_FIRST_NODE; i < MY_LAST_NODE; ++i)
    if (nodes[i].is_row) {
        const Pack v = AT(X, i);
        const Pack s = first ? (Pack)GET(S, i) : (Pack)PROJECT(i, v, GET(Q, i), GET(U, i));
        AT(W, i) = RHS_OF_V(v, s);
        if (certify && first) AT(V, i) = MULTIPLIER(v, s, GET(R, i));
    } else {
        AT(W, i) = RHS_OF_X(AT(X, i), GET(Q, i));
        if (certify && first) AT(V, i) = AT(X, i);
    }
for (int t = begin; t < end; ++t) {
    // A negative value: residuals are not needed, and there need not be a K.
    const bool judged = check_every >= 0
        && (t + 1 == end || (certify && (t + 1) % check_every == 0));
    GENERATED
    first = false;
    if (!judged) continue;
"""
    + CHECK
    + r"""
}
};
const SCALAR* factor = BASE(factor_in);
run(factor, factor + (Offset)n_L * 32, BASE(K_in), BASE(Q_in), BASE(U_in), BASE(R_in),
    BASE(S_in), scaled ? BASE(size_in) : nullptr, BASE(X_io), BASE(W_out),
    certify ? BASE(V_io) : nullptr);
"""
)


ON_DEVICE = "\n#if defined(__CUDA_ARCH__)\n{}\n#else\n{}\n#endif\n"


def kernel_source(per_tile: str, body: str, dtype: str, **more: str | int) -> str:
    """A body after the preamble; `THREADS` threads work on a tile."""
    defines = {**SCALARS[dtype], "PER_TILE": per_tile, "SIDES": 1}
    defines |= {"THREADS": "(32 * SIDES)"} | more
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return head + DEFINE_INFINITE + _PREAMBLE + FORMULAS + body


def staged_factor_source(generated: str, dtype: str, layout: SideLayout) -> str:
    """Body of the factorisation kernel around the source of all stages."""
    return kernel_source("K_in", _FACTOR.replace("GENERATED", generated), dtype, **_sides(layout))


def _sides(layout: SideLayout) -> dict[str, int]:
    if layout.sides == 1:
        return {"SIDES": 1}
    mailbox = max(layout.exchanged, len(GATHERED))
    return {"SIDES": 2, "SPLIT": layout.split, "MAILBOX": mailbox}


def admm_body(setup: str, generated: str, gather: str, *, soft: bool) -> str:
    """The ADMM loop around the source of one iteration."""
    rows = SOFT_ROWS if soft else HARD_ROWS
    body = _ADMM.replace("SETUP", rows + setup)
    return body.replace("GENERATED", generated).replace("GATHER_SIDES", gather)


def staged_admm_source(
    generated: str, dtype: str, layout: SideLayout, *, soft: bool = False
) -> str:
    """Body of the ADMM kernel around the source of one iteration."""
    gather = ON_DEVICE.format(GATHER, "") if layout.sides == 2 else ""
    body = admm_body("", generated, gather, soft=soft)
    # Lanes of two warps have to leave at the same time.
    return kernel_source("X_io", body, dtype, TOGETHER=int(layout.sides == 2), **_sides(layout))


@cache
def staged_factor_kernel(
    generated: str, dtype: str, registers: int, layout: SideLayout
) -> KernelSource:
    """Kernel that eliminates the tiles marked in `todo`; other tiles keep their factors.

    Args:
        generated: Source from `engines.staged.stage_source.factor_source`.
        dtype: "float32" or "float64".
        registers: Most registers per thread.
        layout: Layout of the chains.
    """
    return KernelSource(
        name="staged_factor",
        title="Factorisation of a KKT matrix stage by stage.",
        dtype=dtype,
        inputs=[
            Argument("K_in"),
            Argument("todo_in", "table"),
            *arguments("number", "n_L", "prefetch"),
        ],
        outputs=[Argument("factor_io")],
        head="",
        merged=32,
        body=staged_factor_source(generated, dtype, layout),
        registers=registers,
    )


@cache
def staged_admm_kernel(
    generated: str, dtype: str, registers: int, layout: SideLayout, soft: bool = False
) -> KernelSource:
    """Kernel of the ADMM loop with its termination check.

    Args:
        generated: Source of one iteration, from `engines.staged.stage_source.iteration_source`.
        dtype: "float32" or "float64".
        registers: Most registers per thread.
        layout: Layout of the chains.
        soft: Whether there are soft rows.
    """
    return KernelSource(
        name="staged_admm",
        title="ADMM iterations of a QP stage by stage.",
        dtype=dtype,
        inputs=[*LOOP_ARRAYS, *arguments("number", "n_L", "prefetch"), *LOOP_LIMITS],
        outputs=LOOP_OUTPUTS,
        head="",
        merged=32,
        body=staged_admm_source(generated, dtype, layout, soft=soft),
        registers=registers,
    )
