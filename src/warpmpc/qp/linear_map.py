"""A linear map as an operation of JAX whose two directions are traced only when they are needed.

Reads: the map and its transpose as functions of what they depend on.  Produces: an operation that
JAX can differentiate, transpose and map (`jax.vmap`) like its own.  Forward and reverse mode of a
solver need different kernels; `jax.lax.custom_linear_solve` would trace both directions at once,
and so build all kernels, whichever mode the caller wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from warpmpc._errors import ProblemError

Leaves = list[Any]


@dataclass(frozen=True, eq=False)
class Directions:
    """A linear map and its transpose on lists of arrays.

    Attributes:
        forward: From what the map depends on and its inputs to its outputs.
        reverse: From what the map depends on and cotangents of its outputs to those of its inputs.
    """

    forward: Callable[[Leaves, Leaves], Leaves]
    reverse: Callable[[Leaves, Leaves], Leaves]


def linear_map(
    directions: Directions, refusal: str, given: Any, inputs: Leaves, like: Leaves
) -> Leaves:
    """Applies the map.

    Args:
        directions: The map; `given` comes to it as a list of leaves.
        refusal: Message of the `ProblemError` that a second differentiation raises.
        given: Tree of arrays that the map depends on, without derivatives with respect to them.
        inputs: Arrays that the map is linear in.
        like: Arrays with the shapes and dtypes of the outputs.
    """
    leaves = _once(refusal, jax.tree.leaves(given))
    types = tuple(jax.typeof(array) for array in like)
    return _map.bind(
        *leaves, *inputs, directions=directions, n_given=len(leaves), output_types=types
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _once(refusal: str, leaves: Leaves) -> Leaves:
    del refusal
    return leaves


@_once.defjvp
def _refuse_second_derivatives(refusal: str, *_: Any) -> Any:
    raise ProblemError(refusal)


_map = Primitive("warpmpc_linear_map")
_map.multiple_results = True


def _apply(*args: Any, directions: Directions, n_given: int, output_types: Any) -> Leaves:
    del output_types
    return directions.forward(list(args[:n_given]), list(args[n_given:]))


def _types(*_: Any, output_types: Sequence[Any], **__: Any) -> list[Any]:
    return list(output_types)


def _jvp(primals: Any, tangents: Any, *, n_given: int, **params: Any) -> tuple[Leaves, Leaves]:
    given, inputs = primals[:n_given], primals[n_given:]
    # `_once` lets no tangent of what is given pass.
    changes = [
        jnp.zeros_like(array) if isinstance(change, ad.Zero) else change
        for array, change in zip(inputs, tangents[n_given:], strict=True)
    ]
    rest = {"n_given": n_given, **params}
    return _map.bind(*given, *inputs, **rest), _map.bind(*given, *changes, **rest)


def _transpose(
    bars: Any, *args: Any, directions: Directions, n_given: int, output_types: Any
) -> list[Any]:
    full = [
        jnp.zeros(kind.shape, dtype=kind.dtype) if isinstance(bar, ad.Zero) else bar
        for bar, kind in zip(bars, output_types, strict=True)
    ]
    found = directions.reverse(list(args[:n_given]), full)
    wanted = [
        bar if ad.is_undefined_primal(array) else None
        for array, bar in zip(args[n_given:], found, strict=True)
    ]
    return [None] * n_given + wanted


def _batch(
    args: Any, axes: Any, *, directions: Directions, n_given: int, output_types: Any
) -> tuple[Leaves, list[int]]:
    """All inputs and outputs get the new axis in front; what is given only where it has one."""
    size = next(a.shape[at] for a, at in zip(args, axes, strict=True) if at is not None)
    given = [
        array if at is None else jnp.moveaxis(array, at, 0)
        for array, at in zip(args[:n_given], axes[:n_given], strict=True)
    ]
    inputs = [
        jnp.broadcast_to(array, (size, *array.shape)) if at is None else jnp.moveaxis(array, at, 0)
        for array, at in zip(args[n_given:], axes[n_given:], strict=True)
    ]
    where = ([None if at is None else 0 for at in axes[:n_given]], 0)
    mapped = Directions(
        jax.vmap(directions.forward, in_axes=where), jax.vmap(directions.reverse, in_axes=where)
    )
    types = tuple(kind.update(shape=(size, *kind.shape)) for kind in output_types)
    found = _map.bind(*given, *inputs, directions=mapped, n_given=n_given, output_types=types)
    return found, [0] * len(found)


_map.def_impl(_apply)
_map.def_abstract_eval(_types)
mlir.register_lowering(_map, mlir.lower_fun(_apply, multiple_results=True))
ad.primitive_jvps[_map] = _jvp
ad.primitive_transposes[_map] = _transpose
batching.primitive_batchers[_map] = _batch
