"""The staged QP engine on tiles in program order: factorise, and the whole ADMM loop in one launch.

Reads: a `StageElimination`.  Produces: `StagedKernels`, callable under `jax.jit`, and
`StagedVariants`: these kernels for any number of tiles, with one side or two.  The caller may fix
fields of their `StagedShape`; the others are measured ones (`engines.staged.tuning`), or those of a
model of one wave of warps.

Measured on an H200 (docs/qp.md): the loop streams from memory, so its speed depends on the loads in
flight.  With few tiles each thread should have many registers, to hold many loads; with many tiles,
as many warps as possible should run at once.  Prefetching the next stage into the L2 cache helps as
long as the prefetched stages of all warps fit into it, and hurts otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import PatternError, SettingsError
from warpmpc.codegen.kernel_source import KernelSource, for_lanes
from warpmpc.engines.ldl.launch import MAX_REGISTERS, REGISTER_FILE
from warpmpc.engines.runtime.admm_loop import (
    LoopData,
    LoopLimits,
    LoopState,
    launch_loop,
    loop_inputs,
    loop_tables,
)
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.runtime.ffi import l2_bytes, load_all, multiprocessors, run
from warpmpc.engines.staged.stage_source import (
    SideLayout,
    factor_source,
    iteration_source,
    side_layout,
    soft_order,
    staged_admm_kernel,
    staged_admm_source,
    staged_factor_kernel,
    staged_factor_source,
)
from warpmpc.symbolic.derivatives.stage_model import RowKind
from warpmpc.symbolic.stage_elimination import StageElimination

if TYPE_CHECKING:  # it measures the kernels of this module
    from warpmpc.engines.staged.tuning import Measure, Measured, ShapeStore

_LOG = logging.getLogger(__name__)
_BLOCK = TWO_SIDED_BLOCK = 2 * LANES  # with two sides a block is one tile
_STEP = 8  # registers are allocated in multiples of eight
_SCHEDULERS = 4  # per multiprocessor, each with its own quarter of the registers
# With fewer registers than this, the values of a stage spill.
_LEAST = {"float32": 64, "float64": 128}
_FACTOR = {"float32": 168, "float64": 255}
_ITEM = {"float32": 4, "float64": 8}
_STATIC_SHARED_MEMORY = 48 * 1024  # available without a request


@dataclass(frozen=True)
class StagedShape:
    """How a kernel of the staged engine is compiled and launched.

    Attributes:
        registers: Most registers per thread.
        block: Threads per block.
        prefetch: Whether a warp prefetches the next stage into the L2 cache.
        sides: Threads per problem: one per chain of the program.
    """

    registers: int
    block: int
    prefetch: bool
    sides: int = 1

    @property
    def register_limit(self) -> int:
        """`registers`, or the largest number with which one block can start at all."""
        return min(self.registers, REGISTER_FILE // self.block)

    def threads(self, tiles: int) -> int:
        """Number of threads, a multiple of the block."""
        return -(-tiles * self.sides * LANES // self.block) * self.block


def loop_shape(program: StageElimination, tiles: int, dtype: str) -> StagedShape:
    """Shape of the ADMM loop: all warps in one wave if that leaves enough registers."""
    per_scheduler = -(-tiles * program.sides // (multiprocessors() * _SCHEDULERS))
    fitting = REGISTER_FILE // (_SCHEDULERS * LANES * per_scheduler) // _STEP * _STEP
    registers = min(max(fitting, _LEAST[dtype]), MAX_REGISTERS)
    return StagedShape(registers, _BLOCK, _prefetch(program, tiles, dtype), program.sides)


def factor_shape(program: StageElimination, tiles: int, dtype: str) -> StagedShape:
    """Shape of the factorisation."""
    return StagedShape(_FACTOR[dtype], _BLOCK, _prefetch(program, tiles, dtype), program.sides)


def sides_for(tiles: int) -> int:
    """Threads per problem: two as long as all of them run at once with all registers they can use.

    A walk over the stages takes the same time for few problems as for many.  Two threads halve it
    as long as memory and schedulers are not busy.
    """
    at_once = multiprocessors() * (REGISTER_FILE // (LANES * (MAX_REGISTERS + 1)))
    return 2 if 2 * tiles <= at_once else 1


def mailbox_fits(exchanged: int, dtype: str) -> bool:
    """Whether the exchanged values of a problem fit into the shared memory of every device."""
    return exchanged * LANES * _ITEM[dtype] <= _STATIC_SHARED_MEMORY


def _prefetch(program: StageElimination, tiles: int, dtype: str) -> bool:
    """Whether the prefetched stages of all warps fit into half of the L2 cache."""
    largest = max(run.template.n_L + 5 * run.template.n_nodes for run in program.runs)
    return tiles * largest * LANES * _ITEM[dtype] < l2_bytes() // 2


class StagedKernels:
    """Kernels of one program."""

    def __init__(
        self,
        program: StageElimination,
        n_vars: int,
        dtype: str,
        overrides: Mapping[str, int] | None = None,
        soft: Collection[int] = (),
    ):
        """Generates the source; nothing is compiled before the first launch.

        Args:
            program: The elimination by stages.
            n_vars: Number of variables.
            dtype: "float32" or "float64".
            overrides: Fields of `StagedShape` that the model does not choose.
            soft: Nodes that are soft rows.
        """
        self.program, self.dtype, self._overrides = program, dtype, dict(overrides or {})
        self.soft_nodes = np.array(soft_order(program, soft), dtype=np.int32)
        self._factor_source = factor_source(program)
        self._iteration_source = iteration_source(program, soft)
        self._layout = side_layout(program)
        self._tables = loop_tables(program, n_vars, self.soft_nodes)

    @property
    def layout(self) -> SideLayout:
        """Chains of the program, as the kernels need them."""
        return self._layout

    @property
    def content(self) -> str:
        """Everything that determines the kernels: equal source, equal kernels."""
        soft = self.soft_nodes.size > 0
        loop = staged_admm_source(self._iteration_source, self.dtype, self._layout, soft=soft)
        factor = staged_factor_source(self._factor_source, self.dtype, self._layout)
        return for_lanes(factor + loop)

    def shaped(self, overrides: Mapping[str, int]) -> StagedKernels:
        """The same kernels in another shape."""
        other = copy(self)
        other._overrides = dict(overrides)
        return other

    def with_kinds(self, kinds: Sequence[RowKind]) -> StagedKernels:
        """The same kernels for rows whose kinds are known as long as rho stays."""
        other = copy(self)
        other._iteration_source = iteration_source(self.program, self.soft_nodes.tolist(), kinds)
        return other

    def shape(self, tiles: int) -> StagedShape:
        """Shape of the ADMM loop."""
        return replace(loop_shape(self.program, tiles, self.dtype), **self._overrides)

    def factor(self, K: jax.Array) -> jax.Array:
        """Factors of all tiles: L, then inverse pivots."""
        everything = jnp.ones(K.shape[0], dtype=jnp.int32)
        rows = self.program.n_L + self.program.n_nodes
        outputs = {"factor_io": (K.shape[0], rows, K.shape[2])}
        return self._factor({"K_in": K, "todo_in": everything}, outputs)

    def refactor(self, factor: jax.Array, K: jax.Array, todo: jax.Array) -> jax.Array:
        """New factors of the tiles marked in `todo`; other tiles keep theirs."""
        return self._factor({"K_in": K, "todo_in": todo, "factor_io": factor}, {})

    def _factor(
        self, arrays: dict[str, jax.Array], outputs: dict[str, tuple[int, ...]]
    ) -> jax.Array:
        tiles = arrays["K_in"].shape[0]
        # The loop chooses its own number of registers; the other fields concern both kernels.
        given = {name: v for name, v in self._overrides.items() if name != "registers"}
        shape = replace(factor_shape(self.program, tiles, self.dtype), **given)
        kernel = staged_factor_kernel(
            self._factor_source, self.dtype, shape.register_limit, self._layout
        )
        found = run(
            kernel,
            {**arrays, **self._static(shape)},
            outputs,
            threads=shape.threads(tiles),
            block=shape.block,
        )
        return found["factor_io"]

    def _static(self, shape: StagedShape) -> dict[str, int]:
        return {"n_L": self.program.n_L, "prefetch": int(shape.prefetch)}

    def _loop_kernel(self, shape: StagedShape) -> KernelSource:
        return staged_admm_kernel(
            self._iteration_source,
            self.dtype,
            shape.register_limit,
            self._layout,
            self.soft_nodes.size > 0,
        )

    def to_load(self, tiles: int) -> list[tuple[KernelSource, int]]:
        """Kernels that `iterate` launches on a number of tiles, for `load_all`."""
        shape = self.shape(tiles)
        return [(self._loop_kernel(shape), shape.block)]

    def iterate(
        self,
        factor: jax.Array,
        R: jax.Array,
        data: LoopData,
        state: LoopState,
        numbers: np.ndarray,
        begin: jax.Array,
        limits: LoopLimits,
    ) -> LoopState:
        """Iterates from iteration `begin` on; see `LoopData` for `R`; `numbers`: the tolerances."""
        shape = self.shape(state.X.shape[0])
        kernel = self._loop_kernel(shape)
        inputs = loop_inputs(factor, R, data, numbers, begin, self._tables)
        return launch_loop(
            kernel,
            {**inputs, **self._static(shape)},
            data,
            state,
            limits,
            shape.threads(state.X.shape[0]),
            shape.block,
        )


# Two sides have twice the code; beyond this many multiply-adds it takes too long to compile.
_LARGEST_CODE = 20_000
_ITERATIONS = 25  # iterations of a measurement, if none are given


class StagedVariants:
    """Kernels of QPs with one pattern."""

    def __init__(
        self,
        build: Callable[[int], StagedKernels],
        given: Mapping[str, int],
        *,
        tune: bool | None = None,
        measure: Measure | None = None,
    ):
        """Builds the kernels that are needed in any case.

        Args:
            build: Makes kernels with a given number of sides.
            given: Fields of `StagedShape` that are fixed.
            tune: Whether to measure when a number of tiles first occurs without a measurement.
                None: use what was measured, but do not measure.  False: use only the model.
            measure: Measures kernels; by default on the device, in seconds.
        """
        self._given, self._tune, self._measure = dict(given), tune, measure
        self._kernels = cache(build)
        self.first = self._kernels(1)
        if given.get("sides") == 2:
            self._check_two_sides()
        if tune and not _on_gpu():
            _LOG.info("staged engine: tune=True has no effect on the CPU")

    def _check_two_sides(self) -> None:
        """Raises if two sides are impossible."""
        layout, dtype = self._kernels(2).layout, self.first.dtype
        if not mailbox_fits(layout.exchanged, dtype):
            raise PatternError(
                f"Two sides would share {layout.exchanged} numbers per problem, too many for the "
                "shared memory of a block; use sides=1."
            )

    @cached_property
    def _may_have_two(self) -> bool:
        """Whether two sides are possible, allowed, and not too much code."""
        fixed = self._given.get("sides")
        if fixed is not None or self._given.get("block", TWO_SIDED_BLOCK) != TWO_SIDED_BLOCK:
            return fixed == 2
        try:
            self._check_two_sides()
        except PatternError as reason:
            _LOG.info("staged engine: one side: %s", reason)
            return False
        return self._kernels(2).program.code_size <= _LARGEST_CODE

    @cached_property
    def _store(self) -> ShapeStore:
        from warpmpc.engines.staged.tuning import ShapeStore

        # Fixed fields limit what can be found.
        content = f"{self.first.content}\n{sorted(self._given.items())}"
        return ShapeStore(content, jax.devices()[0].device_kind)

    def at(self, tiles: int) -> StagedKernels:
        """Kernels for a number of tiles."""
        if self._tune is not False and (_on_gpu() or self._measure):
            stored = self._store.get(tiles)
            if stored is None and self._tune:
                stored = self.tune(tiles)[-1].shape
            if stored is not None:
                return self._shaped(stored)
        sides = self._given.get("sides") or self._model_sides(tiles)
        fixed = {name: value for name, value in self._given.items() if name != "sides"}
        return self._kernels(sides).shaped(fixed)

    def _model_sides(self, tiles: int) -> int:
        """On the CPU one thread would do both sides."""
        return sides_for(tiles) if _on_gpu() and self._may_have_two else 1

    def _shaped(self, shape: StagedShape) -> StagedKernels:
        fields = asdict(shape)
        return self._kernels(fields.pop("sides")).shaped(fields)

    def tune(
        self, tiles: int, iterations: int = _ITERATIONS, kinds: Sequence[RowKind] = ()
    ) -> list[Measured]:
        """Measures shapes for a number of tiles; the last one listed is the fastest, and is kept.

        Args:
            tiles: Number of tiles; the result is used up to the next power of two.
            iterations: Iterations of the ADMM loop.
            kinds: Kinds of the rows, where the loop that will run uses them.
        """
        # Most solves measure nothing.
        from warpmpc.engines.staged.tuning import LoopTimer, search

        measure = self._measure
        if measure is None:
            if not _on_gpu():
                raise SettingsError(
                    "Nothing to tune on the CPU: all shapes of the kernels run the same code there."
                )
            measure = LoopTimer(min(iterations, 2 * _ITERATIONS))
        sides = [self._given["sides"]] if "sides" in self._given else [1]
        if "sides" not in self._given and self._may_have_two:
            sides.append(2)
        fixed = {name: value for name, value in self._given.items() if name != "sides"}
        starts = [self._kernels(count).shaped(fixed).shape(tiles) for count in sides]

        def kernels(shape: StagedShape) -> StagedKernels:
            found = self._shaped(shape)
            return found.with_kinds(kinds) if kinds else found

        found = search(
            starts,
            self.first.dtype,
            self._given,
            lambda shape: measure(kernels(shape), tiles),
            lambda shapes: _load(map(kernels, shapes), tiles),
        )
        self._store.put(tiles, found[-1].shape)
        return found


def _load(kernels: Iterable[StagedKernels], tiles: int) -> None:
    """Compiles several loops at the same time."""
    load_all([one for some in kernels for one in some.to_load(tiles)])


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"
