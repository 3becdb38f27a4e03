"""Status codes and limits of the solvers as native source, made from `warpmpc._conventions`."""

from __future__ import annotations

from collections.abc import Iterable

from warpmpc._conventions import INFINITY, Status

# Before its last iteration, what has reached none of the other outcomes is still running.
_NATIVE_NAMES = {Status.MAX_ITER: "RUNNING"}


def status_enum(codes: Iterable[Status] = tuple(Status)) -> str:
    """An unnamed C enum of status codes with the names of `Status`, except for `_NATIVE_NAMES`.

    Args:
        codes: The codes that a kernel uses, in ascending order.
    """
    names = []
    for place, code in enumerate(codes):
        name = _NATIVE_NAMES.get(code, code.name)
        names.append(name if code == place else f"{name} = {int(code)}")
    return f"enum {{ {', '.join(names)} }};"


STATUS_ENUM = status_enum()
# Bounds and penalties beyond it are absent.
DEFINE_INFINITE = "#define INFINITE (SCALAR)" + f"{INFINITY:.0e}\n".replace("+", "")
