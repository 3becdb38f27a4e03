"""Long scalar programs on disk, so that later processes need not differentiate and translate again.

Reads: a key, which says everything that decides about the program.  Produces: the program, or
nothing.  Short programs are made faster than they are found.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from warpmpc._errors import CodegenError
from warpmpc.codegen import from_casadi, ir
from warpmpc.codegen.cache import load_text, store_text
from warpmpc.codegen.ir import ScalarProgram
from warpmpc.symbolic.derivatives import stage_model

KIND, LOST = "program", "the program is derived again"
LONG = 5_000  # operations from which on a program is kept
_TYPES = {"constants": "<f8", "ops": "u1", "left": "<i4", "right": "<i4"}
_NAMES = ("name", "input_names", "input_sizes", "output_names")


@cache
def derivation() -> str:
    """Hash of what derives and translates: a changed one finds no old programs."""
    total = hashlib.sha256(version("casadi").encode())
    for module in (stage_model, from_casadi, ir):
        total.update(Path(str(module.__file__)).read_bytes())
    return total.hexdigest()


def kept_program(key: str, make: Callable[[], ScalarProgram]) -> ScalarProgram:
    """The program with this key, from disk or, if it is not there or damaged, made anew."""
    text = load_text(KIND, key, LOST)
    if text is not None:
        try:
            return decoded(text)
        except (ValueError, KeyError, TypeError, zlib.error, CodegenError):
            pass  # of another version: it is replaced below
    program = make()
    if program.n_ops >= LONG:
        store_text(KIND, key, encoded(program))
    return program


def encoded(program: ScalarProgram) -> str:
    """A program as text."""
    arrays = {name: getattr(program, name) for name in _TYPES}
    arrays |= {f"output_{j}": values for j, values in enumerate(program.outputs)}
    content: dict[str, Any] = {name: getattr(program, name) for name in _NAMES}
    for name, array in arrays.items():
        raw = array.astype(_TYPES.get(name, "<i4")).tobytes()
        content[name] = base64.b64encode(zlib.compress(raw, 1)).decode()
    return json.dumps(content) + "\n"


def decoded(text: str) -> ScalarProgram:
    """What `encoded` wrote."""
    content = json.loads(text)

    def array(name: str) -> np.ndarray:
        raw = zlib.decompress(base64.b64decode(content[name]))
        return np.frombuffer(raw, dtype=_TYPES.get(name, "<i4"))

    return ScalarProgram(
        name=content["name"],
        input_names=tuple(content["input_names"]),
        input_sizes=tuple(content["input_sizes"]),
        output_names=tuple(content["output_names"]),
        constants=array("constants"),
        ops=array("ops"),
        left=array("left"),
        right=array("right"),
        outputs=tuple(array(f"output_{j}") for j in range(len(content["output_names"]))),
    )
