"""Factorisation by panels on tiles in program order; see `engines.panels.factor_plan`.

Produces: `PanelLDL`, whose results do not depend on how many warps share a tile.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.engines.panels.factor_plan import PanelFactor, deal_factor
from warpmpc.engines.panels.kernels import panel_factor_kernel
from warpmpc.engines.panels.shape import factor_bytes, factor_registers, scratch_numbers
from warpmpc.engines.runtime.ffi import launch
from warpmpc.engines.runtime.tiles import LANES
from warpmpc.symbolic.elimination import StoredElimination


class PanelLDL:
    """Factorises with the tables of one plan, made when a number of warps is first used."""

    def __init__(self, program: StoredElimination, plan: PanelFactor, dtype: str):
        """Keeps the plan.

        Args:
            program: Which order nodes and values are in.
            plan: Of `program.in_program_order()`; its working rows must fit (`factor_fits`).
            dtype: "float32" or "float64".
        """
        self._plan, self._dtype = plan, dtype
        self._n_L, self._n_factor = program.n_L, program.n_L + program.n_nodes
        self._dealt: dict[int, list[jax.Array]] = {}

    def factor(self, K: jax.Array, warps: int) -> jax.Array:
        """Factors of all tiles: L, then inverse pivots."""
        everything = jnp.ones(K.shape[0], dtype=jnp.int32)
        outputs = {"factor_io": (K.shape[0], self._n_factor, LANES)}
        return self._launch(K, everything, [], outputs, warps)

    def refactor(self, factor: jax.Array, K: jax.Array, todo: jax.Array, warps: int) -> jax.Array:
        """New factors of the tiles marked in `todo`; others stay."""
        return self._launch(K, todo, [factor], {}, warps)

    def _launch(
        self,
        K: jax.Array,
        todo: jax.Array,
        factor: list[jax.Array],
        outputs: dict[str, tuple[int, ...]],
        warps: int,
    ) -> jax.Array:
        n_working = self._plan.n_slots
        scratch = scratch_numbers(factor_bytes(n_working, self._dtype), warps, self._dtype)
        registers = factor_registers(warps, self._dtype)
        (new,) = launch(
            panel_factor_kernel(self._dtype, warps, scratch, registers),
            [K, todo, *self._tables(warps), self._n_L, n_working, *factor],
            outputs,
            threads=K.shape[0] * warps * LANES,
            block=warps * LANES,
            in_out=("factor_io",) if factor else (),
        )
        return new

    def _tables(self, warps: int) -> list[jax.Array]:
        if warps not in self._dealt:
            plan = self._plan
            tables = [plan.panels, plan.leaves, plan.sources, plan.working]
            self._dealt[warps] = on_device([*tables, *deal_factor(plan, warps)])
        return self._dealt[warps]


def on_device(tables: list[np.ndarray]) -> list[jax.Array]:
    """Tables of at least one row: buffers of size zero are not portable across FFI versions."""
    filled = [t if len(t) else np.full((1, *t.shape[1:]), -1, dtype=np.int32) for t in tables]
    with jax.ensure_compile_time_eval():
        return [jnp.asarray(table, dtype=jnp.int32) for table in filled]
