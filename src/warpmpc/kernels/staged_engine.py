"""The staged QP engine on tiles in program order: factorise, and the whole ADMM loop in one launch.

Reads: a `StageProgram`.  Produces: `StagedKernels`, callable under `jax.jit`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.staged_text import factor_text, iteration_text
from warpmpc.kernels.ffi import launch
from warpmpc.kernels.staged_kernels import staged_admm_kernel, staged_factor_kernel
from warpmpc.kernels.tiles import LANES
from warpmpc.symbolic.stage_program import StageProgram, product_terms

REPORT = ("primal", "primal_scale", "dual", "dual_scale", "objective")


@dataclass(frozen=True)
class StagedShape:
    """How a kernel of the staged engine is compiled and launched.

    Attributes:
        registers: Most registers per thread.
        block: Threads per block.
        prefetch: Whether a warp asks the L2 cache for the next stage ahead of time.
    """

    registers: int
    block: int
    prefetch: bool

    def threads(self, tiles: int) -> int:
        """Threads in all, a multiple of the block."""
        return -(-tiles * LANES // self.block) * self.block


@dataclass(frozen=True, eq=False)
class StagedData:
    """What an ADMM loop reads, in program order, ``[tiles, nodes, 32]`` each.

    Attributes:
        K: Values of K.
        Q: Linear cost of variables, lower bounds of rows.
        U: Upper bounds of rows.
        S: Start value of s of rows.
        size: Unscaled x or y over scaled ones; one row of anything if nothing is scaled.
        cost: Scale of the cost, ``[tiles, 1, 32]``; likewise.
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
    """When an ADMM loop checks and ends."""

    check_every: int
    span: int
    max_iter: int


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LoopState:
    """What an ADMM loop changes; X holds x and v, `report` the rows `REPORT`."""

    X: jax.Array
    status: jax.Array
    iterations: jax.Array
    report: jax.Array


class StagedKernels:
    """Kernels of one program."""

    def __init__(self, program: StageProgram, n_vars: int, dtype: str):
        """Generates the text; nothing is compiled before the first launch."""
        self.program, self.dtype = program, dtype
        self._factor_text, self._iteration_text = factor_text(program), iteration_text(program)
        with jax.ensure_compile_time_eval():
            self._nodes, self._terms = (jnp.asarray(t) for t in product_terms(program, n_vars))

    def factor(self, K: jax.Array, shape: StagedShape) -> jax.Array:
        """Factors of all tiles: L, then inverse pivots."""
        everything = jnp.ones(K.shape[0], dtype=jnp.int32)
        rows = self.program.n_L + self.program.n_nodes
        outputs = {"factor_io": (K.shape[0], rows, LANES)}
        return self._factor([K, everything, *self._static(shape)], outputs, (), shape)

    def refactor(
        self, factor: jax.Array, K: jax.Array, todo: jax.Array, shape: StagedShape
    ) -> jax.Array:
        """New factors of the tiles marked in `todo`; others stay."""
        inputs = [K, todo, *self._static(shape), factor]
        return self._factor(inputs, {}, ("factor_io",), shape)

    def _static(self, shape: StagedShape) -> list[int]:
        return [self.program.n_L, int(shape.prefetch)]

    def _factor(
        self,
        inputs: list[jax.Array | int],
        outputs: dict[str, tuple[int, ...]],
        in_out: tuple[str, ...],
        shape: StagedShape,
    ) -> jax.Array:
        kernel = staged_factor_kernel(self._factor_text, self.dtype, shape.registers)
        threads = shape.threads(inputs[0].shape[0])
        (factor,) = launch(
            kernel, inputs, outputs, threads=threads, block=shape.block, in_out=in_out
        )
        return factor

    def iterate(
        self,
        factor: jax.Array,
        R: jax.Array,
        data: StagedData,
        state: LoopState,
        numbers: np.ndarray,
        begin: jax.Array,
        limits: LoopLimits,
        shape: StagedShape,
    ) -> LoopState:
        """Iterates from iteration `begin` on; `R` is 1/rho of rows, `numbers` the tolerances."""
        kernel = staged_admm_kernel(self._iteration_text, self.dtype, shape.registers)
        arrays = [factor, data.K, data.Q, data.U, R, data.S, data.size, data.cost]
        tables = [self._nodes, self._terms, jnp.asarray(numbers, dtype=self.dtype), begin.reshape(1)]
        integers = [*self._static(shape), limits.check_every, limits.span]
        integers += [limits.max_iter, int(data.scaled)]
        changed = [state.X, state.status, state.iterations, state.report]
        tiles, n = state.X.shape[0], state.X.shape[1]
        remembered = n if limits.check_every else 1
        *changed, _, _ = launch(
            kernel,
            [*arrays, *tables, *integers, *changed],
            {"W_out": (tiles, n, LANES), "V_out": (tiles, remembered, LANES)},
            threads=shape.threads(tiles),
            block=shape.block,
            in_out=("X_io", "status_io", "iterations_io", "report_io"),
        )
        return LoopState(*changed)
