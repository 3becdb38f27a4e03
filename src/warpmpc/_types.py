"""Dtype policy, checks of arrays and per-instance status codes shared by all layers."""

from __future__ import annotations

from enum import IntEnum

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError, SettingsError

DTYPES = ("float32", "float64")
ArrayLike = jax.Array | np.ndarray


class FactorStatus(IntEnum):
    """Outcome of one factorisation, per instance."""

    OK = 0
    ZERO_PIVOT = 1
    NON_FINITE = 2


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
    """An argument of a solver as a JAX array; refuses it before JAX converts anything silently.

    Args:
        array: What the caller passed, any leading axes and then one of length `size`.
        name: What the caller knows it by.
        size: Values per instance.
        dtype: What the solver works in.
    """
    if dtype != "float32":  # this runs in every call of control loops: what can be left out is
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
