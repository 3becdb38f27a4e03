"""Checks of settings and arrays that all layers share, and the dtypes that solvers work in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError, SettingsError

DTYPES = ("float32", "float64")
ArrayLike = jax.Array | np.ndarray


def check_real(settings: Any, name: str, what: str, fine: Callable[[float], bool]) -> None:
    """Refuses what is not a finite number in range; True and "0.1" are no numbers."""
    value = getattr(settings, name)
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not fine(float(value)):
        raise SettingsError(f"{name} must be {what}, got {value!r}.")
    # A NumPy float64 would turn the arithmetic of a float32 solver into float64.
    object.__setattr__(settings, name, float(value))


def check_count(settings: Any, name: str, least: int, or_else: str = "") -> None:
    """Refuses what is not an integer in range; True and 2.0 are no integers."""
    value = getattr(settings, name)
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise SettingsError(f"{name} must be an integer, at least {least}, got {value!r}{or_else}.")
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


def check_dtype(dtype: str | np.dtype | type) -> str:
    """Name of a supported dtype; refuses float64 while JAX would silently demote it."""
    try:
        name = np.dtype(dtype).name
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


def check_array(array: ArrayLike, name: str, size: int, dtype: str) -> jax.Array:
    """An argument of a solver as a JAX array; refuses what JAX would convert silently.

    Args:
        array: Array of the caller: any leading axes, then one of length `size`.
        name: Name of the argument, for messages.
        size: Number of values per instance.
        dtype: Name of the dtype that the solver works in.
    """
    if dtype != "float32":  # control loops call this in every step: float32 needs no check
        check_dtype(dtype)  # 64-bit mode may have been left since the solver was made
    given = getattr(array, "dtype", None)
    if given is None:
        raise ProblemError(f"{name} must be a NumPy or JAX array, got {type(array).__name__}.")
    if given != dtype:
        raise ProblemError(
            f"{name} has dtype {given} but the solver works in {dtype}; "
            f'cast it with `.astype("{dtype}")`.'
        )
    if array.ndim < 1 or array.shape[-1] != size:
        raise ProblemError(
            f"{name} has shape {tuple(array.shape)}; its last axis must have length {size}."
        )
    if 0 in array.shape[:-1]:
        raise ProblemError(
            f"{name} is empty: shape {tuple(array.shape)}; pass at least one instance."
        )
    return array if isinstance(array, jax.Array) else jnp.asarray(array)
