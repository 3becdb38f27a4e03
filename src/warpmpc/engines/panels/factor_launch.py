"""Factorisation by panels on tiles in program order; see `engines.panels.factor_plan`.

Produces: `PanelLDL`, whose results do not depend on how many warps share a tile.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.kernel_source import Argument, KernelSource
from warpmpc.engines.panels.factor_plan import PanelFactor, deal_factor
from warpmpc.engines.panels.factor_source import FACTOR_TABLES, panel_factor_kernel
from warpmpc.engines.panels.shape import factor_bytes, factor_registers, scratch_numbers
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.runtime.ffi import run
from warpmpc.symbolic.elimination import StoredElimination


class PanelLDL:
    """Factorises with the tables of one plan, made when a number of warps is first used."""

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
