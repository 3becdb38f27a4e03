"""Branches of a program that leave large arrays where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


def when(wanted: jax.Array, change: Callable[[T], T], value: T) -> T:
    """The changed value where it is wanted, else the value itself.

    `jax.lax.cond` copies what a branch passes through.  A loop of at most one round keeps it in
    place.

    Args:
        wanted: One truth value.
        change: Makes the changed value.
        value: Any tree of arrays.
    """

    def body(carry: tuple[Any, T]) -> tuple[Any, T]:
        return jnp.zeros((), dtype=bool), change(carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], body, (wanted, value))[1]
