"""The panel engine: factorisation and the whole ADMM loop by tables, for stages of any size.

Reads: a `StoredElimination`.  Produces: `PanelKernels`, callable under `jax.jit`.  Working rows of
the factorisation and live values of the solves are in shared memory, K and L stream by.  Several
warps share a tile (`engines.panels.factor_plan`, `engines.panels.sweep_plan`); the iterates do not
depend on how many.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.kernel_source import Argument, KernelSource
from warpmpc.engines.ldl.launch import SEGMENTS, TableLDL, launch_shape
from warpmpc.engines.ldl.schedule import build_schedule
from warpmpc.engines.panels.factor_plan import PanelFactor, deal_factor, panel_factor
from warpmpc.engines.panels.factor_source import FACTOR_TABLES, panel_factor_kernel
from warpmpc.engines.panels.loop_source import SWEEP_TABLES, panel_admm_kernel
from warpmpc.engines.panels.shape import (
    PanelShape,
    factor_bytes,
    factor_fits,
    factor_registers,
    loop_bytes,
    panel_shape,
    register_limit,
    scratch_numbers,
    window_rows,
)
from warpmpc.engines.panels.sweep_plan import PanelNodes, deal, panel_items
from warpmpc.engines.runtime.admm_loop import (
    LoopData,
    LoopLimits,
    LoopState,
    launch_loop,
    loop_inputs,
    loop_tables,
)
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.runtime.ffi import has_async_copies, run
from warpmpc.symbolic.elimination import Elimination, StoredElimination


class PanelKernels:
    """Kernels of one program, driven by tables."""

    def __init__(
        self,
        program: StoredElimination,
        n_vars: int,
        dtype: str,
        soft: Collection[int] = (),
        shape: PanelShape | None = None,
    ):
        """Plans the work; tables are made when a number of warps is first used.

        Args:
            program: Elimination that fixes the order of nodes and values.
            n_vars: Number of variables.
            dtype: "float32" or "float64".
            soft: Nodes that are soft rows.
            shape: Shape of the kernels; None: the model chooses one.
        """
        self.soft_nodes = np.array(sorted(soft), dtype=np.int32)
        self.program, self.dtype, self._shape = program, dtype, shape
        elimination = program.in_program_order()
        self._ldl = _factorisation(program, elimination, dtype)
        self._sweeps = panel_items(elimination)
        self._zero = self._sweeps[0].zero
        place = np.full(program.n_nodes, -1)
        place[self.soft_nodes] = np.arange(self.soft_nodes.size)
        self._nodes = PanelNodes(program.n_L, program.node_order >= n_vars, place)
        self._tables = loop_tables(program, n_vars, self.soft_nodes)
        self._dealt: dict[int, dict[str, jax.Array]] = {}

    @property
    def n_slots(self) -> int:
        """Slots of the window: live values, a zero, and one for values that are not needed."""
        return self._zero + 2

    @property
    def fits(self) -> bool:
        """Whether the default device has the instructions and shared memory that the loop needs."""
        return has_async_copies() and panel_shape(self.n_slots, 1, self.dtype) is not None

    def shape(self, tiles: int) -> PanelShape:
        """Shape of the kernels for a number of tiles."""
        shape = self._shape or panel_shape(self.n_slots, tiles, self.dtype)
        assert shape is not None, "the caller checks that the window fits"
        return shape

    def factor(self, K: jax.Array) -> jax.Array:
        """Factors of all tiles: L, then inverse pivots."""
        if isinstance(self._ldl, TableLDL):
            return self._ldl.factor(K, launch_shape(K.shape[0], self.dtype))
        return self._ldl.factor(K, self.shape(K.shape[0]).factor_warps)

    def refactor(self, factor: jax.Array, K: jax.Array, todo: jax.Array) -> jax.Array:
        """New factors of the tiles marked in `todo`; other tiles keep theirs."""
        if isinstance(self._ldl, TableLDL):
            return self._ldl.refactor(factor, K, todo, launch_shape(K.shape[0], self.dtype))
        return self._ldl.refactor(factor, K, todo, self.shape(K.shape[0]).factor_warps)

    def to_load(self, tiles: int) -> list[tuple[KernelSource, int]]:
        """Kernels that are launched on a number of tiles, for `load_all`."""
        shape = self.shape(tiles)
        found = [(self._loop_kernel(shape, tiles), (shape.warps + 1) * LANES)]
        if isinstance(self._ldl, PanelLDL):
            found.append((self._ldl.kernel(shape.factor_warps), shape.factor_warps * LANES))
        return found

    def _loop_kernel(self, shape: PanelShape, tiles: int) -> KernelSource:
        warps = shape.warps + 1
        needed = loop_bytes(self.n_slots, shape.warps, shape.lead, self.dtype)
        return panel_admm_kernel(
            self.dtype,
            shape.warps,
            shape.lead,
            scratch_numbers(needed, warps, self.dtype),
            register_limit(needed, warps, tiles),
            self.soft_nodes.size > 0,
        )

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
        tiles = state.X.shape[0]
        shape = self.shape(tiles)
        warps = shape.warps + 1
        inputs = loop_inputs(factor, R, data, numbers, begin, self._tables)
        sizes = {
            "n_L": self.program.n_L,
            "zero": self._zero,
            "window_rows": window_rows(self.n_slots, shape.warps),
        }
        return launch_loop(
            self._loop_kernel(shape, tiles),
            {**inputs, **self._of_sweeps(shape.warps), **sizes},
            data,
            state,
            limits,
            tiles * warps * LANES,
            warps * LANES,
        )

    def _of_sweeps(self, warps: int) -> dict[str, jax.Array]:
        if warps not in self._dealt:
            dealt = [deal(sweep, self._nodes, warps) for sweep in self._sweeps]
            tables = [t for sweep in dealt for t in (sweep.records, sweep.begin, sweep.triangles)]
            self._dealt[warps] = on_device(SWEEP_TABLES, tables)
        return self._dealt[warps]


def _factorisation(
    program: StoredElimination, elimination: Elimination, dtype: str
) -> PanelLDL | TableLDL:
    """Factorises by panels, unless rows are so full that the working rows exceed shared memory."""
    longest = int(elimination.L_rows[0].col_counts.max(initial=0))
    if factor_fits(longest, dtype):
        plan = panel_factor(elimination)
        if factor_fits(plan.n_slots, dtype):
            return PanelLDL(program, plan, dtype)
    schedule = build_schedule(elimination, SEGMENTS, level_scheduling=True, unrolled=True)
    return TableLDL(schedule, dtype)


class PanelLDL:
    """Factorises with the tables of one plan, made when a number of warps is first used.

    Results do not depend on how many warps share a tile.
    """

    def __init__(self, program: StoredElimination, plan: PanelFactor, dtype: str):
        """Keeps the plan.

        Args:
            program: Elimination that fixes the order of nodes and values.
            plan: Plan of `program.in_program_order()`; its working rows must fit (`factor_fits`).
            dtype: "float32" or "float64".
        """
        self._plan, self._dtype = plan, dtype
        self._n_L, self._n_factor = program.n_L, program.n_L + program.n_nodes
        self._dealt: dict[int, dict[str, jax.Array]] = {}

    def factor(self, K: jax.Array, warps: int) -> jax.Array:
        """Factors of all tiles: L, then inverse pivots."""
        everything = jnp.ones(K.shape[0], dtype=jnp.int32)
        outputs = {"factor_io": (K.shape[0], self._n_factor, LANES)}
        return self._launch({"K_in": K, "todo_in": everything}, outputs, warps)

    def refactor(self, factor: jax.Array, K: jax.Array, todo: jax.Array, warps: int) -> jax.Array:
        """New factors of the tiles marked in `todo`; other tiles keep theirs."""
        return self._launch({"K_in": K, "todo_in": todo, "factor_io": factor}, {}, warps)

    def kernel(self, warps: int) -> KernelSource:
        """The kernel for a number of warps."""
        needed = factor_bytes(self._plan.n_slots, self._dtype)
        scratch = scratch_numbers(needed, warps, self._dtype)
        return panel_factor_kernel(
            self._dtype, warps, scratch, factor_registers(warps, self._dtype)
        )

    def _launch(
        self,
        arrays: dict[str, jax.Array],
        outputs: dict[str, tuple[int, ...]],
        warps: int,
    ) -> jax.Array:
        sizes = {"n_L": self._n_L, "n_working": self._plan.n_slots}
        found = run(
            self.kernel(warps),
            {**arrays, **self._tables(warps), **sizes},
            outputs,
            threads=arrays["K_in"].shape[0] * warps * LANES,
            block=warps * LANES,
        )
        return found["factor_io"]

    def _tables(self, warps: int) -> dict[str, jax.Array]:
        if warps not in self._dealt:
            plan = self._plan
            tables = [plan.panels, plan.leaves, plan.sources, plan.working]
            tables += deal_factor(plan, warps)
            self._dealt[warps] = on_device(FACTOR_TABLES, tables)
        return self._dealt[warps]


def on_device(arguments: Sequence[Argument], tables: Sequence[np.ndarray]) -> dict[str, jax.Array]:
    """Tables on the device, by the names of their arguments.

    They have at least one row: buffers of size zero are not portable across FFI versions.
    """
    filled = [t if len(t) else np.full((1, *t.shape[1:]), -1, dtype=np.int32) for t in tables]
    with jax.ensure_compile_time_eval():
        values = [jnp.asarray(table, dtype=jnp.int32) for table in filled]
    return {argument.name: value for argument, value in zip(arguments, values, strict=True)}
