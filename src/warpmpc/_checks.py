"""Checks of settings and arrays that all layers share, and the dtypes that solvers work in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from warpmpc._errors import ProblemError, SettingsError

MOST_COUNTED = 2**31 - 1  # kernels count in 32 bits
DTYPES = ("float32", "float64")
ArrayLike = jax.Array | np.ndarray


def check_real(settings: Any, name: str, what: str, fine: Callable[[float], bool]) -> None:
    """Refuses what is not a finite number in range; True and "0.1" are no numbers."""
    value = getattr(settings, name)
    real = isinstance(value, Real) and not isinstance(value, bool) and _is_finite(value)
    if not real or not fine(float(value)):
        raise SettingsError(f"{name} must be {what}, got {value!r}.")
    # A NumPy float64 would turn the arithmetic of a float32 solver into float64.
    object.__setattr__(settings, name, float(value))


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def check_count(settings: Any, name: str, least: int, or_else: str = "") -> None:
    """Refuses what is not an integer in range; True and 2.0 are no integers."""
    value = getattr(settings, name)
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise SettingsError(f"{name} must be an integer, at least {least}, got {value!r}{or_else}.")
    if int(value) > MOST_COUNTED:
        raise SettingsError(f"{name} must be at most {MOST_COUNTED}, got {value!r}.")
    object.__setattr__(settings, name, int(value))


def check_choice(settings: Any, name: str, choices: Sequence[str]) -> None:
    """Refuses every word that is not one of the choices."""
    value = getattr(settings, name)
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices[:-1]) + f' or "{choices[-1]}"'
        raise SettingsError(f"{name} must be {listed}, got {value!r}.")


def check_flag(settings: Any, name: str) -> None:
    """Refuses everything but True and False."""
    value = getattr(settings, name)
    if not isinstance(value, bool):
        raise SettingsError(f"{name} must be True or False, got {value!r}.")


def check_kind(name: str, given: Any, kind: type) -> None:
    """Refuses what is neither None nor of this type."""
    if given is not None and not isinstance(given, kind):
        raise SettingsError(f"{name} must be {kind.__name__}, got {type(given).__name__}.")


def check_argument_flag(name: str, given: Any) -> None:
    """Refuses an argument that is neither True nor False; "no" would count as True."""
    if not isinstance(given, bool | np.bool_):
        raise ProblemError(f"{name} must be True or False, got {given!r}.")


def check_alive(tree: Any, name: str) -> None:
    """Refuses arrays whose memory has been given away.

    Args:
        tree: Arrays; what has no memory is not looked at.
        name: What they belong to, for messages.
    """
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted():
            raise ProblemError(
                f"{name} was given away by an earlier call with donate=True, so its memory is used "
                "again; use the result of that call, or leave donate out."
            )


def check_dtype(dtype: str | np.dtype | type) -> str:
    """Name of a supported dtype; refuses float64 while JAX would silently demote it."""
    try:
        name = "None" if dtype is None else np.dtype(dtype).name  # NumPy takes None for float64
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise SettingsError(f"dtype must be one of {DTYPES}, got {name!r}.")
    if name == "float64" and not jax.config.read("jax_enable_x64"):
        raise SettingsError(
            'dtype "float64" needs 64-bit mode in JAX: call '
            '`jax.config.update("jax_enable_x64", True)` before creating the solver.'
        )
    return name


def check_array(array: Any, name: str, size: int, dtype: str) -> jax.Array:
    """An argument of a solver as a JAX array of its dtype; see `check_values`."""
    found = check_values(array, name, size, dtype)
    return found if isinstance(found, jax.Array) else jnp.asarray(found)


def check_values(array: Any, name: str, size: int, dtype: str) -> Any:
    """An argument of a solver, in its dtype, wherever it lies; compiled programs take both kinds.

    Arrays of other real dtypes are cast, as JAX does it, unless a number would become infinite.

    Args:
        array: Array of the caller: any leading axes, then one of length `size`.
        name: Name of the argument, for messages.
        size: Number of values per instance.
        dtype: Name of the dtype that the solver works in.
    """
    if dtype != "float32":  # control loops call this in every step: float32 needs no check
        check_dtype(dtype)  # 64-bit mode may have been left since the solver was made
    given = getattr(array, "dtype", None)
    if not isinstance(array, jax.Array | np.ndarray | np.generic):
        raise ProblemError(f"{name} must be a NumPy or JAX array, got {type(array).__name__}.")
    if isinstance(array, np.ma.MaskedArray):
        raise ProblemError(f"{name} is a masked array, whose mask would be lost; fill it first.")
    shape: tuple[int, ...] = array.shape
    if isinstance(array, jax.Array):
        check_alive(array, name)
    if not shape or shape[-1] != size:
        raise ProblemError(f"{name} has shape {shape}; its last axis must have length {size}.")
    if 0 in shape[:-1]:
        raise ProblemError(f"{name} is empty: shape {shape}; pass at least one instance.")
    if given != dtype:
        array = _cast(array, name, dtype)
    return array


def _cast(array: Any, name: str, dtype: str) -> ArrayLike:
    """An array in another dtype; refuses what is no array of real numbers, and overflow."""
    given = array.dtype
    if not (jnp.issubdtype(given, jnp.floating) or jnp.issubdtype(given, jnp.integer)):
        raise ProblemError(
            f"{name} has dtype {given} but the solver works in {dtype}; pass an array of real "
            "numbers."
        )
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if np.dtype(given).itemsize > np.dtype(dtype).itemsize:
        _refuse_overflow(array, cast, name, dtype)
    return cast


def _refuse_overflow(array: Any, cast: Any, name: str, dtype: str) -> None:
    """Refuses numbers that are finite before a cast only; those that are traced are not known."""
    if isinstance(array, Tracer):
        return
    lost = np.isfinite(np.asarray(array)) & ~np.isfinite(np.asarray(cast))
    if lost.any():
        worst = np.asarray(array)[lost].ravel()[0]
        raise ProblemError(
            f"{name} contains {worst:g}, which is infinite in {dtype}; scale the problem, use "
            'dtype="float64", or pass np.inf if there is no bound.'
        )
