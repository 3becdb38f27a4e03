"""Checks of settings that frozen dataclasses share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

from warpmpc._errors import SettingsError


def check_real(settings: Any, name: str, what: str, fine: Callable[[float], bool]) -> None:
    """A finite number that is fine; True and "0.1" are no real numbers."""
    value = getattr(settings, name)
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not fine(float(value)):
        raise SettingsError(f"{name} must be {what}, got {value!r}.")
    # A NumPy float64 would turn the arithmetic of a float32 solver into float64.
    object.__setattr__(settings, name, float(value))


def check_count(settings: Any, name: str, least: int, or_else: str = "") -> None:
    """An integer; True and 2.0 are none."""
    value = getattr(settings, name)
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise SettingsError(f"{name} must be an integer, at least {least}, got {value!r}{or_else}.")
    object.__setattr__(settings, name, int(value))


def check_choice(settings: Any, name: str, choices: Sequence[str]) -> None:
    """One of a few words."""
    value = getattr(settings, name)
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices[:-1]) + f' or "{choices[-1]}"'
        raise SettingsError(f"{name} must be {listed}, got {value!r}.")


def check_flag(settings: Any, name: str) -> None:
    """True or False."""
    value = getattr(settings, name)
    if not isinstance(value, bool):
        raise SettingsError(f"{name} must be True or False, got {value!r}.")


def check_kind(name: str, given: Any, kind: type) -> None:
    """Refuses what is neither None nor of this type."""
    if given is not None and not isinstance(given, kind):
        raise SettingsError(f"{name} must be {kind.__name__}, got {type(given).__name__}.")
