"""Stage functions of all stages and problems in one launch.

Reads: `StageCase`s and arrays ``[tiles, rows, 32]``.  Produces: `StageKernels`, callable under
`jax.jit` on CPU and CUDA.

Several long programs are a kernel each: a compiler works on one kernel with one core, so that
kernels are compiled at the same time.  The first kernel then makes the output arrays, and every
other one writes its own rows of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from keyword import iskeyword

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import CodegenError, ProblemError
from warpmpc.codegen.kernel_source import KernelSource
from warpmpc.codegen.sharing import LONG
from warpmpc.codegen.stage_functions import (
    StageCase,
    StagePlan,
    merged_cases,
    plan_stages,
    shared_cases,
    stage_source,
)
from warpmpc.engines.runtime.batching import LANES, WIDTHS
from warpmpc.engines.runtime.ffi import host, load_all, run

__all__ = ["StageCase", "StageKernels"]

_BLOCK = 128
_MOST_THREADS = 2**31 - 1
_TAKEN = ("BODY", "wp")  # names of the generated module


@dataclass(frozen=True, eq=False)
class _Part:
    """One of the kernels: its plan, its table on the device, and its declaration."""

    plan: StagePlan
    table: jax.Array
    source: KernelSource


class StageKernels:
    """Evaluates programs at their stages, every output row exactly once."""

    def __init__(
        self,
        name: str,
        cases: Sequence[StageCase],
        inputs: Sequence[str],
        outputs: Mapping[str, int],
        dtype: str,
        title: str = "",
        long: int = LONG,
    ):
        """Checks the rows and plans the launches; the source is generated at the first call.

        Args:
            name: Name of the kernel, an identifier.
            cases: Programs with the stages they belong to.
            inputs: Name of each input array.
            outputs: Name of each output array and how many rows it has.
            dtype: "float32" or "float64".
            title: One line for readers of the generated file.
            long: Operations from which on a program has a kernel of its own, if there are several.
        """
        self.name, self.dtype, self._title = name, dtype, title
        self._inputs, self._outputs = tuple(inputs), dict(outputs)
        _check_names(name, self._inputs, tuple(self._outputs))
        _check_cases(name, cases, len(self._inputs), tuple(self._outputs.items()))
        self.plans = [
            plan_stages(some) for some in _divided(merged_cases(shared_cases(cases)), long)
        ]
        self._rows_read = [
            max(int(np.max(case.in_rows[i], initial=-1)) + 1 for case in cases)
            for i in range(len(self._inputs))
        ]

    @cached_property
    def _parts(self) -> list[_Part]:
        """The kernels, the one with the longest program first."""
        arrays = (self._inputs, tuple(self._outputs))
        with jax.ensure_compile_time_eval():
            tables = [jnp.asarray(plan.table) for plan in self.plans]
        sources = [
            stage_source(
                f"{self.name}_{i}" if i else self.name,
                plan,
                arrays,
                self.dtype,
                self._title,
                changes=i > 0,
            )
            for i, plan in enumerate(self.plans)
        ]
        return [_Part(*part) for part in zip(self.plans, tables, sources, strict=True)]

    @property
    def sources(self) -> list[KernelSource]:
        """Declarations of the kernels; their text is generated when a form of it is asked for."""
        return [part.source for part in self._parts]

    def to_load(self) -> list[tuple[KernelSource, int]]:
        """The kernels with their threads per block, for `load_all`."""
        return [(source, _BLOCK) for source in self.sources]

    def build(self) -> None:
        """Compiles the kernels, or loads them from Warp's cache; otherwise the first call does."""
        load_all(self.to_load())

    def __call__(self, *tiles: jax.Array) -> tuple[jax.Array, ...]:
        """Outputs ``[T, rows_j, lanes]`` of inputs ``[t_i, rows_i, lanes]``; T is the largest t_i.

        Input i of tile t is read from tile ``t % t_i``.
        """
        if len(tiles) != len(self._inputs):
            raise CodegenError(
                f"{self.name} takes {len(self._inputs)} arrays {self._inputs}, got {len(tiles)}."
            )
        width = tiles[0].shape[-1]
        lanes = width if width in WIDTHS and host() is not None else LANES
        for name, tile, n_rows in zip(self._inputs, tiles, self._rows_read, strict=True):
            fits = tile.ndim == 3 and tile.shape[1] >= n_rows and tile.shape[2] == lanes
            if not fits or tile.dtype != self.dtype:
                raise CodegenError(
                    f"{self.name}: {name} is {tile.dtype}{list(tile.shape)}; expected "
                    f"{self.dtype}[tiles, at least {n_rows} rows, {lanes}]."
                )
        n_tiles = max(tile.shape[0] for tile in tiles)
        n_items = max(plan.n_items for plan in self.plans)
        if n_tiles * n_items * LANES > _MOST_THREADS:
            raise ProblemError(
                f"{self.name}: {n_tiles} tiles times {n_items} stages are too many for one launch; "
                "split the batch."
            )
        given = {f"{name}_in": tile for name, tile in zip(self._inputs, tiles, strict=True)}
        shapes = {f"{name}_out": (n_tiles, rows, lanes) for name, rows in self._outputs.items()}
        changed: dict[str, jax.Array] = {}
        for part in self._parts:
            n_items = part.plan.n_items
            found = run(
                part.source,
                {**given, **changed, "table_in": part.table, "n_items": n_items},
                {} if changed else shapes,
                threads=n_tiles * n_items * LANES,
                block=_BLOCK,
            )
            changed = dict(zip((f"{n}_io" for n in self._outputs), found.values(), strict=True))
        return tuple(changed.values())


def _divided(cases: Sequence[StageCase], long: int) -> list[list[StageCase]]:
    """Cases of each kernel, the longest program first; short programs share the last kernel."""
    alone = sorted((c for c in cases if c.program.n_ops >= long), key=lambda c: -c.program.n_ops)
    if len(alone) < 2:
        return [list(cases)]
    rest = [case for case in cases if case.program.n_ops < long]
    return [[case] for case in alone] + ([rest] if rest else [])


def _check_names(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    for given in (name, *inputs, *outputs):
        if not given.isidentifier() or iskeyword(given) or given in _TAKEN:
            raise CodegenError(
                f"{given!r} is no name for generated code; use an identifier, no keyword and none "
                f"of {', '.join(_TAKEN)}."
            )
    if len({*inputs}) != len(inputs) or not inputs or not outputs:
        raise CodegenError(f"{name} needs inputs with different names, and an output.")


def _check_cases(
    name: str, cases: Sequence[StageCase], n_inputs: int, outputs: tuple[tuple[str, int], ...]
) -> None:
    """Every program fits the arrays, and every output row is written exactly once."""
    if not cases or not all(len(case.stages) for case in cases):
        raise CodegenError(f"{name} needs at least one program, and every program a stage.")
    for case in cases:
        given = (len(case.in_rows), len(case.out_rows))
        sizes = (case.program.input_sizes, case.program.output_sizes)
        if given != (n_inputs, len(outputs)) or given != tuple(len(size) for size in sizes):
            raise CodegenError(
                f"{name}: program {case.program.name!r} needs one input per input array and one "
                "output per output array."
            )
        for rows, size in zip((*case.in_rows, *case.out_rows), (*sizes[0], *sizes[1]), strict=True):
            if rows.shape != (len(case.stages), size):
                raise CodegenError(
                    f"{name}: rows of program {case.program.name!r} have shape {rows.shape}; "
                    f"expected {(len(case.stages), size)}, one row per stage and element."
                )
            if np.min(rows, initial=0) < 0:
                raise CodegenError(f"{name}: program {case.program.name!r} has a negative row.")
    for j, (output, n_rows) in enumerate(outputs):
        written = [np.asarray(case.out_rows[j], dtype=np.int64).ravel() for case in cases]
        if not np.array_equal(np.sort(np.concatenate(written)), np.arange(n_rows)):
            raise CodegenError(
                f"{name}: the {n_rows} rows of output {output!r} must be written exactly once each."
            )
