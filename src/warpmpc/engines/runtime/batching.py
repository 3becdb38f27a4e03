"""Batches and tiles: the layout of arrays, `jax.vmap`, devices, batches larger than memory.

Arrays are batch-first outside and in tiles inside.  A tiled array has shape ``[tiles, rows, 32]``;
problem b is lane ``b % 32`` of tile ``b // 32``.  For one row the problems of a warp are one
128-byte line, and all that a warp reads is contiguous.  On the CPU tiles may have fewer lanes: a
thread works on a tile, so that lanes without an instance are work for nothing, a few wide tiles
leave cores without work, and data of a wide tile may not fit into the cache of a core.  On the
other hand tiles with few lanes do not fill vector registers.

A batch that is too large is worked on in parts, one after the other, so that the temporaries of
only one part exist at a time.  On the CPU a part is what all threads hold in their caches together:
its temporaries stay there, and the system does not hand out new pages for every part.  No instance
changes a bit by it.

Of a batch that is spread over devices, each device works on its own instances.  XLA cannot look
inside a kernel and would gather all its operands on every device.  `jax.shard_map` needs the
sharding when a program is traced, but inside `jax.jit` it is known only when the program is
compiled; `custom_partitioning` provides it then.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from warpmpc._errors import ProblemError, SettingsError
from warpmpc.codegen.kernel_source import LANES
from warpmpc.engines.runtime.ffi import core_cache, host, usable_cores
from warpmpc.engines.runtime.loading import keep_program

WIDTHS = (1, 8, 16, LANES)
_VECTOR = 64  # bytes that one instruction works on; narrower tiles take nearly as long
_NARROW = WIDTHS[1:-1]  # between a single problem and a whole tile
# Time of a tile over that of one with a full vector: without arithmetic, and per vector.
_FIXED, _PER_VECTOR = 0.3, 0.7
_LOG = logging.getLogger(__name__)
# Share of the memory that is free beside results; the rest is for the caller's program.
_SHARE = 0.75
# Share of a host's memory, which other programs need, too.
_HOST_SHARE = 0.5
# Data of one core over the size of its own cache: the next level is slower, but there, too.
_CACHES = 2


def tile_count(batch: int) -> int:
    """Tiles needed for a batch."""
    return -(-batch // LANES)


def to_tiles(array: jax.Array, lanes: int = LANES) -> jax.Array:
    """``[batch, rows]`` to ``[tiles, rows, lanes]``; spare lanes repeat the last problem.

    A copy of a real problem is harmless: it causes nothing that the problem itself does not cause.
    """
    batch, rows = array.shape
    spare = -batch % lanes
    padded = jnp.pad(array, ((0, spare), (0, 0)), mode="edge") if spare else array
    return padded.reshape((batch + spare) // lanes, lanes, rows).transpose(0, 2, 1)


def from_tiles(tiles: jax.Array, batch: int) -> jax.Array:
    """``[tiles, rows, lanes]`` back to ``[batch, rows]``; spare lanes are dropped."""
    n_tiles, rows, lanes = tiles.shape
    return tiles.transpose(0, 2, 1).reshape(n_tiles * lanes, rows)[:batch]


def vector_lanes(dtype: str) -> int:
    """Lanes of the narrowest tile that fills a vector register of the CPU; 32 on a GPU."""
    return LANES if host() is None else _VECTOR // np.dtype(dtype).itemsize


class Widths:
    """Lanes by batch for functions of ``[groups, rows, lanes]``.

    Attributes:
        has_tiles: Whether there are tiles at all; otherwise groups have one instance.
        fixed: Lanes whatever the batch, for measurements and tests; None: by batch.
    """

    def __init__(self, *, has_tiles: bool = True):
        """Tiles of 32, or none."""
        self.has_tiles = has_tiles
        self.fixed: int | None = None

    def lanes(self, batch: int) -> int:
        """Lanes of the tiles of so many instances, which are worked on at once."""
        del batch
        return LANES if self.has_tiles else 1

    def filled(self, batch: int) -> int:
        """Instances of a compiled program that serves a batch: the rest are copies."""
        return tile_count(batch) * LANES


TILES = Widths()


class HostWidths(Widths):
    """Fewer lanes on the CPU where that is faster; on a GPU the same as `TILES`."""

    def __init__(self, item: int, values: Callable[[], int | None]):
        """Counts nothing yet.

        Args:
            item: Bytes of a value.
            values: Number of values that an instance needs while it is solved; None: the kernels
                know tiles of 32 only.
        """
        super().__init__()
        self._item, self._count = item, values

    @cached_property
    def _values(self) -> int | None:
        return None if host() is None else self._count()

    def _most(self, values: int) -> int:
        """The widest tile whose data fit into the cache of a core, or one full vector."""
        fitting = [w for w in WIDTHS[1:] if w * values * self._item <= core_cache()]
        return max([_VECTOR // self._item, *fitting])

    def lanes(self, batch: int) -> int:
        """The width that takes the least time; of equal ones the widest."""
        if self._values is None or batch == 1 or self.fixed:
            return LANES if self._values is None else self.fixed or 1
        widths = [w for w in WIDTHS[1:] if w <= self._most(self._values)]
        return min(reversed(widths), key=lambda width: self._time(width, batch))

    def _time(self, width: int, batch: int) -> float:
        """Time of a batch on all cores, in that of a tile with one full vector."""
        rounds = -(-batch // (width * usable_cores()))
        return rounds * (_FIXED + _PER_VECTOR * max(width * self._item / _VECTOR, 0.5))

    def filled(self, batch: int) -> int:
        """One, a narrow tile, or whole tiles of 32."""
        small = [width for width in (1, *_NARROW) if width >= batch]
        return small[0] if small and self._values is not None else super().filled(batch)


def on_batches(
    function: Callable[..., Any],
    lanes: int | Callable[[int], int],
    part_size: Callable[[int], int],
) -> Callable[..., Any]:
    """A function of arrays in an engine's layout as one of batch-first arrays ``[batch, rows]``.

    `jax.vmap` folds its axis into the batch, so that tiles stay full and no loop or branch of the
    function is ever mapped.  Of a batch that is spread over devices, each device works on its own
    part.  What all instances share comes as the keyword `shared`, ``[1, rows]``; the function gets
    it as a keyword, too.

    Args:
        function: Maps instances to instances, each independently of the others.
        lanes: Instances per group of the engine's layout ``[groups, rows, lanes]``, or what decides
            it by the number of instances that are worked on at once.
        part_size: How many instances of a batch of a given size are worked on at once.
    """

    def together(shared: jax.Array | None, *args: Any) -> Any:
        batch = _batch_size(args)
        width = lanes if isinstance(lanes, int) else lanes(batch)

        def into(array: jax.Array) -> jax.Array:
            return array[..., None] if width == 1 else to_tiles(array, width)

        common = {} if shared is None else {"shared": into(shared)}
        result = function(*jax.tree.map(into, args), **common)
        return jax.tree.map(lambda a: from_tiles(a, batch) if width > 1 else a[..., 0], result)

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


def fold_vmap(function: Callable[..., Any], n_shared: int = 0) -> Callable[..., Any]:
    """A function of batches that `jax.vmap` calls with one larger batch.

    Arguments and results are arrays, or trees of arrays, with the batch first.  Warp's own batching
    would also replicate the index tables inside a kernel call and read them wrongly.

    Args:
        function: A function of batches.
        n_shared: How many of its first arguments may have a batch of one that all instances share;
            unless they are mapped it stays one.
    """

    def folded(*args: Any) -> Any:
        # A branch on a mapped predicate maps even constants, and `custom_vmap` cannot have its own
        # mapped: they become arguments, which the rule leaves out because it traces anew.
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)

        @custom_vmap
        def call(constants: list[Any], *args: Any) -> Any:
            closed = ClosedJaxpr(program.jaxpr, constants)
            return jax.tree.unflatten(
                jax.tree.structure(shapes), jaxpr_as_fun(closed)(*jax.tree.leaves(args))
            )

        @call.def_vmap
        def rule(size: int, mapped: list[Any], _: list[Any], *args: Any) -> tuple[Any, Any]:
            pairs = list(zip(args, mapped[1:], strict=True))
            batch = _unfolded_size(*pairs[n_shared])
            shared = [_fold_shared(*pair, size, batch) for pair in pairs[:n_shared]]
            result = folded(*shared, *(_fold(*pair, size) for pair in pairs[n_shared:]))
            result = jax.tree.map(
                lambda a: a.reshape(size, a.shape[0] // size, *a.shape[1:]), result
            )
            return result, jax.tree.map(lambda _: True, result)

        return call(program.consts, *args)

    return folded


def _unfolded_size(tree: Any, mapped: Any) -> int:
    """Instances before the axis of `jax.vmap` is folded in."""
    return jax.tree.leaves(tree)[0].shape[1 if jax.tree.leaves(mapped)[0] else 0]


def _fold(tree: Any, mapped: Any, size: int) -> Any:
    """Arrays ``[size, batch, ...]``, or ``[batch, ...]`` if not mapped, as one batch."""

    def fold(array: jax.Array, mapped: bool) -> jax.Array:
        full = array if mapped else jnp.broadcast_to(array, (size, *array.shape))
        return full.reshape(size * full.shape[1], *full.shape[2:])

    return jax.tree.map(fold, tree, mapped)


def _fold_shared(tree: Any, mapped: Any, size: int, batch: int) -> Any:
    """What all instances share as one batch; one copy for each of them if it is mapped."""

    def fold(array: jax.Array, mapped: bool) -> jax.Array:
        if not mapped and array.shape[0] == 1:
            return array
        before = (size,) if mapped else ()
        of_all = (*before, batch, *array.shape[len(before) + 1 :])
        return _fold(jnp.broadcast_to(array, of_all), mapped, size)

    return jax.tree.map(fold, tree, mapped)


def on_every_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of batches that XLA may split along the batch.

    Args:
        function: A function from trees of arrays ``[batch, rows]``, or ``[1, rows]`` for values
            that all instances share, to trees of arrays ``[batch, rows]``, which treats instances
            independently.
    """

    def call(*args: Any) -> Any:
        if jax.device_count() == 1:
            return function(*args)
        # Experimental in JAX: not needed, and not looked for, where there is one device.
        from jax.experimental.custom_partitioning import custom_partitioning

        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        leaves, tree = jax.tree.flatten(args)
        whole = _Whole(program.jaxpr)
        parts = _Parts(function, tree, max(leaf.shape[0] for leaf in leaves))
        operation = custom_partitioning(whole)
        operation.def_partition(partition=parts.partition, sharding_rule=parts.rule)
        # Constants of a program would be lost: they become operands that every device has.
        results = operation(program.consts, *leaves)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return call


def in_auto_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of batches that also takes arrays of a mesh whose axes are explicit.

    There JAX checks the sharding of every operation while it traces; inside of the function it
    finds shardings itself, as with other meshes.  Results are spread like the first batch that is.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            leaves, tree = jax.tree.flatten((args, kwargs))
        except ValueError as reason:  # JAX sorts the names of a dict
            raise ProblemError(
                "Names in a dict of arrays must be strings, all of them."
            ) from reason
        found = sorted(
            filter(None, map(_explicit_sharding, leaves)), key=lambda s: s.spec[0] is None
        )
        if not found:
            return function(*args, **kwargs)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def run(*arrays: jax.Array) -> Any:
            for place, array in zip(places, arrays, strict=True):
                leaves[place] = array
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return function(*args, **kwargs)

        arrays = [leaves[place] for place in places]
        return jax.sharding.auto_axes(run, out_sharding=found[0])(*arrays)

    return call


def _explicit_sharding(leaf: Any) -> NamedSharding | None:
    """How the first axis of an array is spread over a mesh with explicit axes."""
    if not isinstance(leaf, jax.Array):
        return None
    sharding = jax.typeof(leaf).sharding if isinstance(leaf, Tracer) else leaf.sharding
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*(*sharding.spec, None)[:1]))


def with_auto_axes(sharding: NamedSharding) -> NamedSharding:
    """The same sharding on a mesh without explicit axes."""
    mesh = sharding.mesh
    if AxisType.Explicit not in mesh.axis_types:
        return sharding
    devices = np.asarray(mesh.devices)
    automatic = Mesh(devices, mesh.axis_names, axis_types=(AxisType.Auto,) * devices.ndim)
    return NamedSharding(automatic, sharding.spec)


def check_divisible(leading: tuple[int, ...], sharding: NamedSharding) -> None:
    """Refuses a batch that cannot be spread evenly, and one without an axis to spread.

    Args:
        leading: Axes of the batch.
        sharding: How it is to be spread; its first axis counts.
    """
    names = sharding.spec[0] if sharding.spec else None
    names = (names,) if isinstance(names, str) else names or ()
    parts = math.prod(sharding.mesh.shape[name] for name in names)
    if parts > 1 and (not leading or leading[0] % parts):
        have = f"A batch of {leading[0]}" if leading else "A problem without batch axis"
        raise ProblemError(
            f"{have} cannot be spread evenly over {parts} devices; fill it up to a multiple of "
            f"{parts} with copies of an instance, or solve it on one device."
        )


def everywhere(place: Any) -> Any:
    """Devices of the instances of a batch: all of a sharding, or the one device."""
    if isinstance(place, NamedSharding):
        return NamedSharding(place.mesh, PartitionSpec())
    return place


def place_of(device: Any) -> tuple[str, int] | None:
    """A device in terms that another process understands: platform, and number of the device."""
    if device is None:
        return None
    if isinstance(device, NamedSharding):
        raise ProblemError(
            "A solver that spreads batches over a mesh cannot be pickled, because the mesh belongs "
            "to this process; make the solver in the other process."
        )
    return device.platform, jax.devices(device.platform).index(device)


def device_at(place: tuple[str, int] | None) -> Any:
    """The device of this process for one of another; the first one where there are fewer."""
    if place is None:
        return None
    platform, number = place
    try:
        found = jax.devices(platform)
    except RuntimeError as reason:
        raise ProblemError(
            f'The solver was made for a device of the platform "{platform}", of which this process '
            "has none; make it with another `device`."
        ) from reason
    return found[number if number < len(found) else 0]


def as_device(device: Any) -> Any:
    """A JAX device, a `NamedSharding`, or None."""
    if isinstance(device, NamedSharding):
        return with_auto_axes(device)
    if device is None or isinstance(device, jax.Device):
        return device
    try:
        return jax.devices(device)[0]
    except (RuntimeError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"device must be a JAX device or one of its platforms, got {device!r}; there are "
            f"{jax.devices()}.  A NamedSharding spreads batches over several."
        ) from error


class _Whole:
    """The function on the whole batch, where nothing is split."""

    def __init__(self, jaxpr: Any):
        self._jaxpr = jaxpr

    def __call__(self, constants: Sequence[jax.Array], *leaves: jax.Array) -> list[jax.Array]:
        return jaxpr_as_fun(ClosedJaxpr(self._jaxpr, constants))(*leaves)


class _Parts:
    """Splitting of the function: the first axis of every batch alike, nothing else."""

    def __init__(self, function: Callable[..., Any], tree: Any, batch: int):
        self._function, self._tree, self._batch = function, tree, batch

    def rule(self, _: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        """The axes of all arrays, for the propagation of shardings through a program."""
        from jax.experimental.custom_partitioning import SdyShardingRule

        whole: list[str] = []

        def axes(value: Any, *, is_batch: bool) -> tuple[str, ...]:
            names = ["batch"] if is_batch else []
            while len(names) < len(value.shape):
                whole.append(f"rows{len(whole)}")
                names.append(whole[-1])
            return tuple(names)

        n_leaves = self._tree.num_leaves
        first = len(operands) - n_leaves
        given = [
            axes(value, is_batch=i >= first and value.shape[0] == self._batch)
            for i, value in enumerate(operands)
        ]
        found = [axes(value, is_batch=True) for value in results]
        mappings: tuple[Any, Any] = (tuple(given), tuple(found))
        return SdyShardingRule(*mappings, need_replication_factors=tuple(whole))

    def partition(self, mesh: Any, given: Any, found: Any) -> Any:
        """The function of one device, and the shardings that it needs."""
        constants, *leaves = given
        split = next(
            (s for s in map(_batch_sharding, (*leaves, *found)) if s is not None),
            NamedSharding(mesh, PartitionSpec()),
        )
        nothing = NamedSharding(mesh, PartitionSpec())
        of_leaves = [split if leaf.shape[0] == self._batch else nothing for leaf in leaves]
        shardings = ([nothing for _ in constants], *of_leaves)
        return mesh, self._part, [split for _ in found], shardings

    def _part(self, _: Sequence[jax.Array], *leaves: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(self._function(*jax.tree.unflatten(self._tree, leaves)))


def _batch_sharding(array: Any) -> NamedSharding | None:
    """The sharding of the first axis, if there is one."""
    spec = array.sharding.spec
    if not spec or spec[0] is None:
        return None
    return NamedSharding(array.sharding.mesh, PartitionSpec(spec[0]))
