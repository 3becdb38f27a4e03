"""Launches of the interior-point method between linear systems.

Reads: arrays of the iterate, by name, in tiles.  Produces: `RowKernels`, callable under `jax.jit`.
Kernels depend on the kinds of rows and on the dtype alone, so all problems share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import jax

from warpmpc.codegen.kernel_source import KernelSource, arguments
from warpmpc.engines.interior_point.source import RowsSource
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.runtime.ffi import load_all, run

_BLOCK = LANES
Arrays = Mapping[str, jax.Array]

# What each kernel reads besides the sides, and the length of its report.  `barrier` holds mu and
# tau, `steps` the primal step, the dual step and whether the instance moves.
_READS = {
    "errors": (("q", "slope_of_L", "duals", "slacks", "rows", "target", "some"), 7),
    "eliminated": (
        ("cost", "duals", "slacks", "rows", "target", "some", "fixed", "barrier", "restoring"),
        3,
    ),
    "step": (("q", "x", "duals", "slacks", "barrier", "restoring"), 4),
    "trial": (("z", "x", "slacks", "moves", "alpha", "barrier"), 2),
    "measured": (
        ("cost", "barrier_cost", "slacks", "rows", "target", "some", "restoring"),
        4,
    ),
    "taken": (
        (
            *("z", "slacks", "duals", "duals_before", "x", "moves", "x_taken", "moves_taken"),
            *("fixed", "barrier", "steps"),
        ),
        1,
    ),
}
# What each kernel writes besides its report: name, and the array whose shape it has.
_WRITES = {
    "errors": {},
    "eliminated": {"G": "duals", "low": "duals"},
    "step": {"ds": "slacks"},
    "trial": {"z": "z", "s": "slacks"},
    "measured": {},
    "taken": {"z": "z", "s": "slacks", "y": "duals"},
}


class RowKernels:
    """All kernels for problems with the same kinds of rows."""

    def __init__(self, rows: RowsSource):
        """Declares the kernels; the first call of each compiles it.

        Args:
            rows: Their source.
        """
        self._rows = rows

    def load(self) -> None:
        """Compiles or loads all kernels at the same time."""
        load_all([(source, _BLOCK) for source in self.sources.values()])

    @cached_property
    def sources(self) -> dict[str, KernelSource]:
        """Declarations of all kernels."""
        return {name: self._source(name) for name in _READS}

    def errors(self, arrays: Arrays) -> jax.Array:
        """Stationarity, violation, slack, largest and smallest product, scale, largest multiplier.

        Args:
            arrays: By name, those of sides included.
        """
        return self._run("errors", arrays)["report_out"]

    def eliminated(self, arrays: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Diagonal of the rows in K, their right-hand side, and (theta, phi, sum of violations)."""
        found = self._run("eliminated", arrays)
        return found["G_out"], found["low_out"], found["report_out"]

    def step(self, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
        """Steps of slacks; longest steps, slope, and 0 where the multipliers are numbers."""
        found = self._run("step", arrays)
        return found["ds_out"], found["report_out"]

    def trial(self, arrays: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Variables, slacks, and the barrier there, with 0 where the variables are numbers."""
        found = self._run("trial", arrays)
        return found["z_out"], found["s_out"], found["report_out"]

    def measured(self, arrays: Arrays) -> jax.Array:
        """(theta, phi, sum of violations, 0 where the trial point is finite)."""
        return self._run("measured", arrays)["report_out"]

    def taken(self, arrays: Arrays) -> dict[str, jax.Array]:
        """The next iterate: z, s, y, and multipliers and elastic variables of sides."""
        found = self._run("taken", arrays)
        return {name.removesuffix("_out"): array for name, array in found.items()}

    def _run(self, name: str, arrays: Arrays) -> dict[str, jax.Array]:
        reads, n_report = _READS[name]
        names = [*reads, *self._rows.side_arrays]
        tiles, _, lanes = arrays["slacks"].shape
        outputs = {f"{new}_out": arrays[like].shape for new, like in self._written(name).items()}
        return run(
            self.sources[name],
            {f"{each}_in": arrays[each] for each in names},
            {**outputs, "report_out": (tiles, n_report, lanes)},
            threads=tiles * LANES,
            block=_BLOCK,
        )

    def _written(self, name: str) -> dict[str, str]:
        written = dict(_WRITES[name])
        if name == "taken":
            for side in self._rows.sides:
                for kind in ("z", "e", "w") if side.elastic else ("z",):
                    written[f"{kind}{side.number}"] = f"{kind}{side.number}"
        return written

    def _source(self, name: str) -> KernelSource:
        reads, _ = _READS[name]
        names = [*reads, *self._rows.side_arrays]
        return KernelSource(
            name=f"interior_point_{name}",
            title=f"Interior-point method, rows of a tile: {name}.",
            dtype=self._rows.dtype,
            inputs=arguments("real", *(f"{each}_in" for each in names)),
            outputs=arguments("real", *(f"{new}_out" for new in self._written(name)), "report_out"),
            body=self._rows.body(name, names),
            any_lanes=True,
        )
