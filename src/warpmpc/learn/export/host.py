"""Exported C on this machine: compiled by its compiler, called through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

from warpmpc.learn.errors import DataError

FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffp-contract=off")


def host_compiler() -> str | None:
    """A C compiler of this machine, if any."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


class HostPolicy:
    """The function `policy` of a folder with policy.c and policy.h."""

    def __init__(self, source: Path, build: Path, sizes: tuple[int, int]):
        """Compiles and loads it.

        Args:
            source: A policy.c with its policy.h beside it.
            build: Folder for the library.
            sizes: Number of states and of inputs.
        """
        compiler = host_compiler()
        if compiler is None:
            raise DataError("No C compiler (cc, gcc or clang) is on the path of this machine.")
        build.mkdir(parents=True, exist_ok=True)
        library = build / "policy.so"
        command = [compiler, *FLAGS, "-shared", "-fPIC", str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DataError(f"{source} cannot be compiled: {done.stderr.strip()}")
        pointer = ctypes.POINTER(ctypes.c_float)
        self._function = ctypes.CDLL(str(library.resolve())).policy
        self._function.argtypes, self._function.restype = [pointer, pointer], None
        self._pointer, self._sizes = pointer, sizes

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Inputs ``[n, n_u]`` at states ``[n, n_x]``."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        if x.ndim != 2 or x.shape[1] != self._sizes[0]:
            raise DataError(f"The function takes {self._sizes[0]} states, got {list(x.shape)}.")
        u = np.zeros((len(x), self._sizes[1]), dtype=np.float32)
        for i in range(len(x)):
            self._function(x[i].ctypes.data_as(self._pointer), u[i].ctypes.data_as(self._pointer))
        return u
