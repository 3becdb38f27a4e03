"""Arguments and launch that all ADMM kernels share: their order, in-place changes, scratch memory.

Reads: the data and the state of an ADMM loop.  Produces: the arguments of a kernel, and its launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.engines.runtime.ffi import run
from warpmpc.engines.runtime.tiles import LANES
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
        tiles, n, _ = X.shape
        rows = 2 * n if check_every > 0 else 1
        report, reference = (jnp.zeros((tiles, k, LANES), dtype=X.dtype) for k in (5, rows))
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
    tiles, n, _ = state.X.shape
    numbers = (limits.check_every, limits.span, limits.max_iter, int(data.scaled))
    changed = (state.X, state.status, state.iterations, state.report, state.reference)
    found = run(
        kernel,
        {
            **given,
            **{a.name: number for a, number in zip(LOOP_LIMITS, numbers, strict=True)},
            **{a.name: array for a, array in zip(LOOP_OUTPUTS[:-1], changed, strict=True)},
        },
        {"W_out": (tiles, n, LANES)},
        threads=threads,
        block=block,
    )
    return LoopState(*(found[argument.name] for argument in LOOP_OUTPUTS[:-1]))
