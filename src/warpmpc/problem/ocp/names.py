"""Names in an optimal control problem: which entries of a vector a name stands for.

Reads: SX columns or dicts of them.  Produces: `Named` columns and tables name -> rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex


@dataclass(frozen=True, eq=False)
class Named:
    """A column of symbols and the names of its parts.

    Attributes:
        symbols: The column.
        parts: Name -> entries: those of a dict, or the whole column under its role ("x", "u", ...).
        scalars: Name -> entry: symbols by their own name; empty for a dict.
        labels: One distinct text per entry, for names of rows.
    """

    symbols: ca.SX
    parts: dict[str, np.ndarray]
    scalars: dict[str, np.ndarray]
    labels: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of symbols."""
        return self.symbols.numel()


def named(given: Any, role: str) -> Named:
    """What a user passes for x, u, p or p_stage.

    Args:
        given: Column of symbols, dict name -> column of symbols, or None.
        role: The name of the argument, and of the whole column if it is not a dict.
    """
    if isinstance(given, Mapping):
        return _from_dict(given, role)
    column = ex.symbols(given, role)
    names = ex.symbol_names(column)
    distinct = len(set(names)) == len(names)
    return Named(
        symbols=column,
        parts={role: np.arange(len(names))} if names else {},
        scalars={name: np.array([i]) for i, name in enumerate(names) if names.count(name) == 1},
        labels=tuple(names) if distinct else tuple(f"{role}_{i}" for i in range(len(names))),
    )


def _from_dict(given: Mapping[Any, Any], role: str) -> Named:
    parts: dict[str, np.ndarray] = {}
    columns: list[ca.SX] = []
    labels: list[str] = []
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise ProblemError(f"Names in {role} must be strings, got {name!r}.")
        column = ex.symbols(value, f"{role}[{name!r}]")
        n = column.numel()
        if not n:
            raise ProblemError(f"{role}[{name!r}] is empty; leave the name out.")
        parts[name] = len(labels) + np.arange(n)
        labels += [name] if n == 1 else [f"{name}_{i}" for i in range(n)]
        columns.append(column)
    whole = ex.symbols(ca.vertcat(ca.SX(0, 1), *columns), role)
    if len(set(labels)) < len(labels):
        labels = [f"{role}_{i}" for i in range(len(labels))]
    return Named(whole, parts, {}, tuple(labels))


@dataclass(frozen=True, eq=False)
class Block:
    """A named column and where it stands in a long vector.

    Attributes:
        named: The column.
        offsets: Where it begins, one number per node; or a single number.
    """

    named: Named
    offsets: np.ndarray | int


def table_of_names(blocks: Iterable[Block]) -> dict[str, np.ndarray]:
    """Name -> rows, ``[nodes, size]`` or ``[size]``.

    Names of parts must be distinct.  A scalar's own name is entered where nothing else has it.
    """
    blocks = list(blocks)
    table: dict[str, np.ndarray] = {}
    for block in blocks:
        for name, entries in block.named.parts.items():
            if name in table:
                raise ProblemError(f"The name {name!r} is given twice; names must be distinct.")
            table[name] = _rows(block, entries)
    scalars = [(name, block) for block in blocks for name in block.named.scalars]
    names = [name for name, _ in scalars]
    for name, block in scalars:
        if name not in table and names.count(name) == 1:
            table[name] = _rows(block, block.named.scalars[name])
    return table


def _rows(block: Block, entries: np.ndarray) -> np.ndarray:
    return np.asarray(block.offsets)[..., None] + entries
