"""Pickling and copying of objects that hold CasADi expressions.

CasADi pickles each expression for itself, so that a symbol in two of them would become two symbols.
Here all expressions of an object go through one serializer, and come back with common symbols.
Copies in the same process keep their symbols, so that what was written for the original can be
used with the copy.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import zlib
from typing import Any, Self

import casadi as ca


class HoldsExpressions:
    """A class whose instances can be pickled and copied although they hold SX expressions."""

    def __getstate__(self) -> dict[str, bytes]:
        """The state in two parts: all expressions, and everything else."""
        rest, expressions = _dumped(self.__dict__)
        serializer: Any = ca.StringSerializer()
        for expression in expressions:
            serializer.pack(expression)
        text = f"{len(expressions)} {serializer.encode()}"
        return {"rest": rest, "expressions": zlib.compress(text.encode("latin-1"))}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        """Makes the expressions first."""
        count, _, text = zlib.decompress(state["expressions"]).decode("latin-1").partition(" ")
        source: Any = ca.StringDeserializer(text)
        expressions = [source.unpack() for _ in range(int(count))]
        self.__dict__.update(_loaded(state["rest"], expressions))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with the same symbols that can be changed on its own."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(_loaded(*_dumped(self.__dict__)))
        return made

    def __copy__(self) -> Self:
        """A deep copy, because a copy that shares lists with its original would change with it."""
        return self.__deepcopy__({})


def _dumped(state: dict[str, Any]) -> tuple[bytes, list[ca.SX]]:
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dump(state)
    return file.getvalue(), pickler.expressions


def _loaded(rest: bytes, expressions: list[ca.SX]) -> dict[str, Any]:
    return _Unpickler(io.BytesIO(rest), expressions).load()


class _Pickler(pickle.Pickler):
    """Puts expressions aside, also those of objects inside that hold some."""

    def __init__(self, file: io.BytesIO, protocol: int):
        super().__init__(file, protocol=protocol)
        self.expressions: list[ca.SX] = []

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, ca.SX):
            return None
        self.expressions.append(obj)
        return len(self.expressions) - 1

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, HoldsExpressions):
            return NotImplemented
        return copyreg.__newobj__, (type(obj),), obj.__dict__, None, None, _set_plain_state  # pyright: ignore[reportAttributeAccessIssue]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, expressions: list[ca.SX]):
        super().__init__(file)
        self._expressions = expressions

    def persistent_load(self, pid: Any) -> ca.SX:
        return ca.SX(self._expressions[pid])


def _set_plain_state(made: Any, state: dict[str, Any]) -> None:
    made.__dict__.update(state)
