"""Dtype policy and per-instance status codes shared by all layers."""

from __future__ import annotations

from enum import IntEnum

import jax
import numpy as np

from warpmpc._errors import SettingsError

DTYPES = ("float32", "float64")


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
