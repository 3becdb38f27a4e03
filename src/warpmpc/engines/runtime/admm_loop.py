"""The ADMM loop kernel that engines share: its source, its arguments and its launch.

Reads: the source of one iteration, and the data and the state of a loop.  Produces: the body of a
kernel (`admm_body`, `kernel_source`), the arguments of all such kernels (`LOOP_ARRAYS`,
`LOOP_LIMITS`, `LOOP_OUTPUTS`), and a launch with in-place changes and scratch memory
(`launch_loop`).  The linear solves are either generated stages (`engines.staged.stage_source`) or
the sweeps by panels of `engines.panels.loop_source`; both end with the update of the iteration.

On CUDA there is one thread per problem, and a warp may prefetch the next stage into the L2 cache.
On the CPU one thread handles a tile, a `Pack` holds one value per problem, and masks preserve the
values of problems that are done.

A program with two chains has two threads per problem: a block is one tile, its first warp walks the
first chain and its second warp the second one.  Both change only nodes of their own chain, and
synchronise where one reads what the other wrote.  On the CPU one thread walks both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.codegen.native.admm import FORMULAS, HARD_ROWS, SOFT_ROWS
from warpmpc.codegen.native.preamble import EXTREMA, TYPES
from warpmpc.codegen.native.termination import CHECK
from warpmpc.engines.runtime.ffi import run
from warpmpc.symbolic.elimination import StoredElimination, product_terms

UNCHECKED = -1


@dataclass(frozen=True, eq=False)
class LoopData:
    """Data of an ADMM loop, in program order, ``[tiles, nodes, 32]`` each.

    Data that depend on rho are passed beside it, as R: 1/rho of rows, then four values for each
    soft row, in the order of the kernels' `soft_nodes`: a and b of the lower, a and b of the upper
    side (`qp.soft`).

    Attributes:
        K: Values of K.
        Q: Linear cost of variables, lower bounds of rows.
        U: Upper bounds of rows.
        S: Start value of s of rows.
        size: Unscaled x or y over scaled ones; any single row if nothing is scaled.
        cost: Scale of the cost, ``[tiles, 1, 32]``; any single row if nothing is scaled.
        scaled: Whether something is scaled.
    """

    K: jax.Array
    Q: jax.Array
    U: jax.Array
    S: jax.Array
    size: jax.Array
    cost: jax.Array
    scaled: bool


@dataclass(frozen=True)
class LoopLimits:
    """When an ADMM loop checks and ends.

    `check_every` may be 0: residuals are known at the end only; or `UNCHECKED`: never, and status,
    iterations and report stay as they are.
    """

    check_every: int
    span: int
    max_iter: int


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LoopState:
    """What an ADMM loop changes.

    X holds x and v, `report` primal residual and its scale, dual residual and its scale, objective,
    `reference` x and y that certificates compare with (`qp.termination.is_reference`), then the
    changes since.
    """

    X: jax.Array
    status: jax.Array
    iterations: jax.Array
    report: jax.Array
    reference: jax.Array

    @classmethod
    def before(cls, X: jax.Array, status: jax.Array, check_every: int) -> LoopState:
        """A state before the first iteration.

        Args:
            X: x and v, ``[tiles, nodes, 32]``.
            status: Status, ``[tiles, 1, 32]``; what is not MAX_ITER is left alone.
            check_every: As in `LoopLimits`; without certificates nothing is compared.
        """
        tiles, n, lanes = X.shape
        rows = 2 * n if check_every > 0 else 1
        report, reference = (jnp.zeros((tiles, k, lanes), dtype=X.dtype) for k in (5, rows))
        return cls(X, status, jnp.zeros_like(status), report, reference)


def loop_tables(program: StoredElimination, n_vars: int, soft: np.ndarray) -> list[jax.Array]:
    """Tables of products; a soft row is marked by two more than its place in `soft`."""
    nodes, terms = product_terms(program, n_vars)
    nodes[soft, 3] = 2 + np.arange(soft.size)
    with jax.ensure_compile_time_eval():
        return [jnp.asarray(table) for table in (nodes, terms)]


# What every ADMM kernel reads and changes; engines put their own arguments between.
LOOP_ARRAYS = (
    *arguments("real", "factor_in", "K_in", "Q_in", "U_in", "R_in", "S_in", "size_in", "cost_in"),
    *arguments("records", "nodes_in", "terms_in"),
    Argument("numbers_in", "vector"),
    Argument("begin_in", "table"),
)
LOOP_LIMITS = arguments("number", "check_every", "span", "max_iter", "scaled")
LOOP_OUTPUTS = (
    Argument("X_io"),
    *arguments("whole", "status_io", "iterations_io"),
    *arguments("real", "report_io", "V_io", "W_out"),
)


def loop_inputs(
    factor: jax.Array,
    R: jax.Array,
    data: LoopData,
    numbers: np.ndarray,
    begin: jax.Array,
    tables: list[jax.Array],
) -> dict[str, jax.Array]:
    """The values of `LOOP_ARRAYS`."""
    arrays = [factor, data.K, data.Q, data.U, R, data.S, data.size, data.cost, *tables]
    values = [*arrays, jnp.asarray(numbers, dtype=factor.dtype), begin.reshape(1)]
    return {a.name: value for a, value in zip(LOOP_ARRAYS, values, strict=True)}


def launch_loop(
    kernel: KernelSource,
    given: Mapping[str, jax.Array | int],
    data: LoopData,
    state: LoopState,
    limits: LoopLimits,
    threads: int,
    block: int,
) -> LoopState:
    """Runs a kernel that changes the state in place.

    Args:
        kernel: The kernel.
        given: The values of `LOOP_ARRAYS` and of the engine's own arguments.
        data: The data behind these values.
        state: State before the launch.
        limits: When the loop checks and ends.
        threads: Number of threads.
        block: Threads per block on CUDA.
    """
    numbers = (limits.check_every, limits.span, limits.max_iter, int(data.scaled))
    changed = (state.X, state.status, state.iterations, state.report, state.reference)
    found = run(
        kernel,
        {
            **given,
            **{a.name: number for a, number in zip(LOOP_LIMITS, numbers, strict=True)},
            **{a.name: array for a, array in zip(LOOP_OUTPUTS[:-1], changed, strict=True)},
        },
        {"W_out": state.X.shape},
        threads=threads,
        block=block,
    )
    return LoopState(*(found[argument.name] for argument in LOOP_OUTPUTS[:-1]))


_THREADS = r"""
// Inlined even if long: as a separate function it would read all shared variables from memory.
#define ALWAYS_INLINE __attribute__((always_inline))
#if defined(__CUDA_ARCH__)
const size_t tile = thread / THREADS;
const int lane = (int)(thread & 31);
if (tile >= (size_t)PER_TILE.shape[0]) return;
// A zero and a one that are opaque to the compiler.  With known values it would merge stages and
// sweeps and keep hundreds of values alive from one to the next, for which only local memory has
// room.
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
const int lane = 0;
const size_t tile = thread / THREADS;
if (tile >= (size_t)PER_TILE.shape[0] || thread % THREADS) return;
const Offset nothing = 0;
#define FORGET
#define ONCE 1
#define AHEAD(name, row, rows)
#endif
#define BASE(array) ((array).data + tile * (array).shape[1] * TILE + lane)
#define AT_STAGE(name, row) auto* name##k = name + (Offset)(row) * TILE + nothing;
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

_ADMM = (
    r"""
#define ADD(a, b) ((a) + (b))
#define OLD_S(v, lo, hi, i) (first ? (Pack)GET(Sk, i) : (Pack)CLIP(v, lo, hi))
// Problems that are done keep their x and v.  Threads that work alone leave; lanes that work
// together stay until the last one is done.
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
#define MARK_DONE for (int l = 0; l < TILE; ++l) done[l] = status[l] == 1 ? 0 : -1;
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
SCALAR* __restrict__ C = certify ? V + (Offset)n * TILE : nullptr;
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
run(factor, factor + (Offset)n_L * TILE, BASE(K_in), BASE(Q_in), BASE(U_in), BASE(R_in),
    BASE(S_in), scaled ? BASE(size_in) : nullptr, BASE(X_io), BASE(W_out),
    certify ? BASE(V_io) : nullptr);
"""
)

ON_DEVICE = "\n#if defined(__CUDA_ARCH__)\n{}\n#else\n{}\n#endif\n"


def kernel_source(per_tile: str, body: str, dtype: str, **more: str | int) -> str:
    """A body after the preamble; `THREADS` threads work on a tile."""
    # A pack is a tile on the CPU.  Places of rows are small numbers, which cost fewer registers.
    defines = {"WIDTH": "TILE", "INDEX(row)": "(row)", "PER_TILE": per_tile, "SIDES": 1}
    defines |= {"THREADS": "(32 * SIDES)"} | more
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return head + TYPES[dtype] + EXTREMA + _THREADS + FORMULAS + body


def admm_body(setup: str, generated: str, gather: str, *, soft: bool) -> str:
    """The ADMM loop around the source of one iteration."""
    rows = SOFT_ROWS if soft else HARD_ROWS
    body = _ADMM.replace("SETUP", rows + setup)
    return body.replace("GENERATED", generated).replace("GATHER_SIDES", gather)
