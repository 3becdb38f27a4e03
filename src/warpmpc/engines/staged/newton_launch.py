"""Launches of `NewtonSource`: factors of Newton systems with their inertia, and solves."""

from __future__ import annotations

from functools import cached_property

import jax
import jax.numpy as jnp

from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.runtime.ffi import run
from warpmpc.engines.staged.newton_source import NewtonSource
from warpmpc.symbolic.stage_elimination import StageElimination

_REGISTERS = 255
Factor = tuple[jax.Array, jax.Array]  # L and inverse pivots; the number of positive pivots or -1


class NewtonKernels:
    """Kernels of one elimination; the first call of each compiles it."""

    def __init__(self, program: StageElimination, source: NewtonSource, dtype: str):
        """Keeps the tables on the device.

        Args:
            program: The elimination.
            source: Its source.
            dtype: "float32" or "float64".
        """
        self._program, self._source, self._dtype = program, source, dtype
        with jax.ensure_compile_time_eval():
            self._values = jnp.asarray(source.value_rows)
            self._nodes = jnp.asarray(program.node_order, dtype=jnp.int32)

    @cached_property
    def factor_source(self) -> KernelSource:
        """Declaration of the factorisation."""
        return KernelSource(
            name="newton_factor",
            title="Factorisation of a Newton system stage by stage.",
            dtype=self._dtype,
            inputs=[
                *arguments("real", "P_in", "A_in", "G_in", "delta_in"),
                *arguments("table", "todo_in", "values_in"),
            ],
            outputs=[Argument("factor_io"), Argument("report_out")],
            body=self._source.factor_body(),
            registers=_REGISTERS,
            any_lanes=True,
        )

    @cached_property
    def solve_source(self) -> KernelSource:
        """Declaration of the solve."""
        return KernelSource(
            name="newton_solve",
            title="Solution of a Newton system stage by stage.",
            dtype=self._dtype,
            inputs=[*arguments("real", "factor_in", "rhs_in"), Argument("nodes_in", "table")],
            outputs=[Argument("x_out")],
            body=self._source.solve_body(),
            registers=_REGISTERS,
            any_lanes=True,
        )

    def factor(self, P: jax.Array, A: jax.Array, G: jax.Array, delta: jax.Array) -> Factor:
        """Factors of all tiles."""
        tiles, _, lanes = P.shape
        rows = self._program.n_L + self._program.n_nodes
        everything = jnp.ones(tiles, dtype=jnp.int32)
        outputs = {"factor_io": (tiles, rows, lanes), "report_out": (tiles, 1, lanes)}
        return self._factor(P, A, G, delta, {"todo_in": everything}, outputs)

    def refactor(
        self,
        factor: Factor,
        P: jax.Array,
        A: jax.Array,
        G: jax.Array,
        delta: jax.Array,
        todo: jax.Array,
    ) -> Factor:
        """New factors of the tiles marked in `todo`; others stay."""
        given = {"todo_in": todo, "factor_io": factor[0]}
        return self._factor(P, A, G, delta, given, {"report_out": factor[1].shape})

    def _factor(
        self,
        P: jax.Array,
        A: jax.Array,
        G: jax.Array,
        delta: jax.Array,
        more: dict[str, jax.Array],
        outputs: dict[str, tuple[int, ...]],
    ) -> Factor:
        given = {"P_in": P, "A_in": A, "G_in": G, "delta_in": delta, "values_in": self._values}
        threads = P.shape[0] * LANES
        found = run(self.factor_source, given | more, outputs, threads=threads, block=LANES)
        return found["factor_io"], found["report_out"]

    def solve(self, factor: Factor, rhs: jax.Array) -> jax.Array:
        """Solutions."""
        given = {"factor_in": factor[0], "rhs_in": rhs, "nodes_in": self._nodes}
        threads = rhs.shape[0] * LANES
        outputs = {"x_out": rhs.shape}
        return run(self.solve_source, given, outputs, threads=threads, block=LANES)["x_out"]
