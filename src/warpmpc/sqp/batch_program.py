"""A function of tiles as a program of batches: differentiable, compiled per number of tiles.

Reads: what one solve or step does with tiles ``[tiles, rows, 32]``, and its sensitivity.  Produces:
`BatchProgram`, which takes batch-first arrays with any leading axes.  Batches are filled up to
whole tiles outside the compiled program, so that it serves all batches of as many tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.core import Tracer

from warpmpc.kernels.tiles import LANES, tile_count
from warpmpc.qp.batches import on_batches
from warpmpc.sqp.types import MPCWarmStart, Solution


class Sensitivity(Protocol):
    """The way back through a function of tiles."""

    def keeps(self, solution: Solution) -> Any:
        """What the way back needs of the result, rows of instances."""
        ...

    def takes(self, bars: Solution) -> Any:
        """Cotangents that are not zero, rows of instances."""
        ...

    def reverse(
        self, p: jax.Array, start: MPCWarmStart, kept: Any, bars: Any
    ) -> tuple[jax.Array, MPCWarmStart]:
        """Cotangents of parameters and start, on tiles."""
        ...


class BatchProgram:
    """One solve or step of a batch.

    Arrays that exist are filled up to whole tiles first, by copies of the last instance.  Under a
    transformation of the caller nothing is known of the batch that will be: `jax.vmap` folds its
    axis into it, and tiles are filled inside.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        sensitivity: Sensitivity,
        read: Callable[..., Solution],
        part_size: Callable[[int], int],
    ):
        """Nothing is compiled yet.

        Args:
            function: Of parameters and a start, in tiles.
            sensitivity: Its derivatives.
            read: Makes the solution from the function's results, as rows of instances.
            part_size: How many instances of a batch are worked on at once.
        """
        self._sensitivity, self._read = sensitivity, read
        self._forward = on_batches(function, LANES, part_size)
        self._reverse = on_batches(sensitivity.reverse, LANES, part_size)
        self.compiled = jax.jit(self._solutions, donate_argnums=1)
        self._traced = jax.jit(self._solutions)
        self._compiled_back = jax.jit(self._cotangents)
        self._differentiable = jax.custom_vjp(self._run)
        self._differentiable.defvjp(self._keep, self._back)

    def __call__(self, params: jax.Array, start: MPCWarmStart, *, donate: bool) -> Solution:
        """The solutions, with the leading axes of the arguments.

        Args:
            params: Parameter vectors.
            start: Where the iteration starts.
            donate: Whether the buffers of `start` may be overwritten; otherwise they are copied.
        """
        if _exist((params, start)):
            return self._run(params, start, donate=donate)
        return self._differentiable(params, start)

    def _solutions(self, params: jax.Array, start: MPCWarmStart) -> Solution:
        return self._read(*self._forward(params, start))

    def _cotangents(self, *args: Any) -> tuple[jax.Array, MPCWarmStart]:
        return self._reverse(*args)

    def _run(self, params: jax.Array, start: MPCWarmStart, *, donate: bool = False) -> Solution:
        leading = start.z.shape[:-1]
        if not _exist((params, start)):
            return _cut(self._traced(*_flat((params, start))), leading)
        if leading == (whole_tiles(leading),) or is_sharded((params, start)):
            return self.compiled(params, start if donate and _differ(start) else _copied(start))
        solution = self.compiled(*_filled((params, start)))
        if donate:
            release(start, solution)
        return _cut_program(solution, leading)

    def _keep(self, params: jax.Array, start: MPCWarmStart) -> tuple[Solution, Any]:
        solution = self._run(params, start)
        return solution, (params, start, self._sensitivity.keeps(solution))

    def _back(self, kept: Any, bars: Solution) -> tuple[jax.Array, MPCWarmStart]:
        args = (*kept, self._sensitivity.takes(bars))
        leading = kept[1].z.shape[:-1]
        if not _exist(args):
            return _cut(self._compiled_back(*_flat(args)), leading)
        if leading == (whole_tiles(leading),) or is_sharded(args):
            return self._compiled_back(*args)
        return _cut_program(self._compiled_back(*_filled(args)), leading)


def whole_tiles(leading: tuple[int, ...]) -> int:
    """Instances of the tiles that hold a batch."""
    return tile_count(math.prod(leading)) * LANES


def _exist(tree: Any) -> bool:
    """Whether all arrays have values: no transformation is under way."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def release(tree: Any, result: Any) -> None:
    """Frees arrays as soon as a result is computed from them.

    Where the result is part of a program that is being traced, they are constants of it: they stay.
    """
    if _exist((tree, result)):
        for leaf in jax.tree.leaves(tree):
            leaf.delete()


def is_sharded(tree: Any) -> bool:
    """Whether several devices have parts of the arrays; each fills the tiles of its own part."""
    return _exist(tree) and any(len(a.devices()) > 1 for a in jax.tree.leaves(tree))


def _differ(tree: Any) -> bool:
    """Whether no array occurs twice; a buffer can be given away once only."""
    leaves = jax.tree.leaves(tree)
    return len({id(leaf) for leaf in leaves}) == len(leaves)


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def _flat(args: Any) -> Any:
    """Leading axes as one; all arguments have the same."""
    return jax.tree.map(lambda a: a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), args)


@jax.jit
def _filled(args: Any) -> Any:
    """The same, filled up to whole tiles by copies of the last instance."""

    def fill(array: jax.Array) -> jax.Array:
        spare = whole_tiles(array.shape[:1]) - array.shape[0]
        return jnp.pad(array, ((0, spare), (0, 0)), mode="edge")

    return jax.tree.map(fill, _flat(args))


def _cut(tree: Any, leading: tuple[int, ...]) -> Any:
    """Without what was filled up, and with the leading axes of the arguments."""
    batch = math.prod(leading)
    return jax.tree.map(lambda a: a[:batch].reshape(*leading, *a.shape[1:]), tree)


_cut_program = partial(jax.jit, static_argnums=1)(_cut)
