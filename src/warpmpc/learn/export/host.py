"""Exported C on this machine: compiled by its compiler, called through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from warpmpc.learn.errors import DataError

FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffp-contract=off")


def host_compiler() -> str | None:
    """A C compiler of this machine, if any."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


# Calls from Python take longer than a small network, so the loop over states is in C.
BATCH = """\
void {function}(const float *x, float *u);
void many(int count, const float *x, float *u);

void many(int count, const float *x, float *u) {{
  for (int i = 0; i < count; ++i) {function}(x + i * {n_x}, u + i * {n_u});
}}
"""


class HostPolicy:
    """A function from states to inputs, in C."""

    def __init__(
        self,
        source: Path | Sequence[Path],
        build: Path,
        sizes: tuple[int, int],
        function: str = "policy",
    ):
        """Compiles and loads it.

        Args:
            source: A policy.c with its policy.h beside it; or all C files.
            build: Folder for the library.
            sizes: Number of states and of inputs.
            function: What is called.
        """
        compiler = host_compiler()
        if compiler is None:
            raise DataError("No C compiler (cc, gcc or clang) is on the path of this machine.")
        build.mkdir(parents=True, exist_ok=True)
        library, loop = build / "policy.so", build / "many.c"
        loop.write_text(BATCH.format(function=function, n_x=sizes[0], n_u=sizes[1]))
        sources = [source] if isinstance(source, Path) else list(source)
        files = [*map(str, sources), str(loop), *include_flags(sources)]
        command = [compiler, *FLAGS, "-shared", "-fPIC", *files, "-lm", "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            names = ", ".join(map(str, sources))
            raise DataError(f"{names} cannot be compiled: {done.stderr.strip()}")
        pointer = ctypes.POINTER(ctypes.c_float)
        self._function = ctypes.CDLL(str(library.resolve())).many
        self._function.argtypes, self._function.restype = [ctypes.c_int, pointer, pointer], None
        self._pointer, self._sizes = pointer, sizes

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Inputs ``[n, n_u]`` at states ``[n, n_x]``."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        if x.ndim != 2 or x.shape[1] != self._sizes[0]:
            raise DataError(f"The function takes {self._sizes[0]} states, got {list(x.shape)}.")
        u = np.zeros((len(x), self._sizes[1]), dtype=np.float32)
        x_at, u_at = (array.ctypes.data_as(self._pointer) for array in (x, u))
        self._function(len(x), x_at, u_at)
        return u


def include_flags(sources: Sequence[Path]) -> list[str]:
    """Where headers of some C files lie: beside each of them."""
    return [f"-I{folder}" for folder in dict.fromkeys(str(path.parent) for path in sources)]
