"""Batches that are spread over devices: each device works on its own instances.

XLA cannot look inside a kernel and would gather all its operands on every device.  `jax.shard_map`
needs the sharding when a program is traced, but inside `jax.jit` it is known only when the program
is compiled; `custom_partitioning` provides it then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from warpmpc._errors import ProblemError, SettingsError


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
    """The same on a mesh without explicit axes."""
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
