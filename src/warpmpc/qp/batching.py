"""How functions of tiles meet batches: layout, `jax.vmap`, devices, batches larger than memory.

A batch that is too large is worked on in parts, one after the other, so that the temporaries of
only one part exist at a time.  On the CPU a part is what all threads hold in their caches together:
its temporaries stay there, and the system does not hand out new pages for every part.  No instance
changes a bit by it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc.engines.runtime.ffi import fold_vmap
from warpmpc.engines.runtime.host import core_cache, host, usable_cores
from warpmpc.engines.runtime.loading import keep_program
from warpmpc.engines.runtime.sharding import on_every_device
from warpmpc.engines.runtime.tiles import LANES, from_tiles, tile_count, to_tiles

_LOG = logging.getLogger(__name__)
# Share of the memory that is free beside results; the rest is for the caller's program.
_SHARE = 0.75
# Share of a host's memory, which other programs need, too.
_HOST_SHARE = 0.5
# Data of one core over the size of its own cache: the next level is slower, but there, too.
_CACHES = 2


def on_batches(
    function: Callable[..., Any], lanes: int, part_size: Callable[[int], int]
) -> Callable[..., Any]:
    """A function of arrays in an engine's layout as one of batch-first arrays ``[batch, rows]``.

    `jax.vmap` folds its axis into the batch, so that tiles stay full and no loop or branch of the
    function is ever mapped.  Of a batch that is spread over devices, each device works on its own
    part.  What all instances share comes as the keyword `shared`, ``[1, rows]``; the function gets
    it as a keyword, too.

    Args:
        function: Maps instances to instances, each independently of the others.
        lanes: Instances per group of the engine's layout ``[groups, rows, lanes]``.
        part_size: How many instances of a batch of a given size are worked on at once.
    """

    def into(array: jax.Array) -> jax.Array:
        return array[..., None] if lanes == 1 else to_tiles(array)

    def together(shared: jax.Array | None, *args: Any) -> Any:
        batch = _batch_size(args)
        common = {} if shared is None else {"shared": into(shared)}
        result = function(*jax.tree.map(into, args), **common)
        return jax.tree.map(lambda a: from_tiles(a, batch) if lanes > 1 else a[..., 0], result)

    def in_parts(shared: jax.Array | None, *args: Any) -> Any:
        if host() is not None:
            keep_program()  # which is being traced
        return _in_parts(together, shared, args, part_size(_batch_size(args)))

    folded = fold_vmap(on_every_device(in_parts), n_shared=1)

    def call(*args: Any, shared: jax.Array | None = None) -> Any:
        return folded(shared, *args)

    return call


def _batch_size(args: Any) -> int:
    return jax.tree.leaves(args)[0].shape[0]


def _in_parts(function: Callable[..., Any], shared: Any, args: Any, part: int) -> Any:
    """The function of all instances, `part` at a time.

    The last part begins early enough to be full: some instances are worked on twice, with the same
    result, and neither data nor results are padded.
    """
    batch = _batch_size(args)
    if part >= batch:
        return function(shared, *args)

    def rows(array: jax.Array, start: Any) -> jax.Array:
        if array.shape[0] != batch:  # shared by all instances
            return array
        return jax.lax.dynamic_slice_in_dim(array, start, part)

    def some(start: Any) -> Any:
        return function(*jax.tree.map(lambda a: rows(a, start), (shared, *args)))

    def step(i: int, whole: Any) -> Any:
        start = jnp.minimum(i * part, batch - part)
        return jax.tree.map(
            lambda all_rows, new: jax.lax.dynamic_update_slice_in_dim(all_rows, new, start, 0),
            whole,
            some(start),
        )

    shapes = jax.eval_shape(lambda: some(0))
    whole = jax.tree.map(lambda a: jnp.zeros((batch, *a.shape[1:]), dtype=a.dtype), shapes)
    return jax.lax.fori_loop(0, -(-batch // part), step, whole)


def part_size(
    batch: int, max_batch: int | None, bytes_per_instance: int, bytes_per_result: int = 0
) -> int:
    """Instances worked on at once: the batch, or parts of equal size that are whole tiles.

    Args:
        batch: Instances in all.
        max_batch: Most of them at once; None: as many as fit into the free memory, and on the CPU
            into the caches of its cores.
        bytes_per_instance: Memory that one of them needs, for that case.
        bytes_per_result: Memory of its results; those of all instances are kept.
    """
    most = max_batch
    if most is None:
        room = _SHARE * (free_memory() - batch * bytes_per_result)
        most = max(int(room / max(bytes_per_instance, 1)), 0)
        most = min(most, cached_instances(bytes_per_instance, most))
    if batch <= most:
        return batch
    tiles = max(most // LANES, 1)
    n_parts = -(-tile_count(batch) // tiles)
    part = min(-(-tile_count(batch) // n_parts) * LANES, batch)
    _LOG.info("batch of %d instances is worked on %d at a time", batch, part)
    return part


def cached_instances(bytes_per_instance: int, otherwise: int) -> int:
    """Instances in the caches of a CPU: whole tiles, at least one per core.

    Args:
        bytes_per_instance: Memory that one of them needs.
        otherwise: The number where the CPU does not count, because there is a GPU.
    """
    if jax.default_backend() != "cpu":
        return otherwise
    tiles = _CACHES * core_cache() // max(LANES * bytes_per_instance, 1)
    return usable_cores() * max(tiles, 1) * LANES


def free_memory() -> int:
    """Free bytes of JAX's first device; of a host, a share of all it has."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is None or "bytes_limit" not in stats:
        return int(_HOST_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return stats["bytes_limit"] - stats["bytes_in_use"]
