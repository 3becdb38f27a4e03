"""From an optimal control problem to stages: one `Stage` per kind of node.

Reads: a `Formulation`, which an `OCP` has collected.  Produces: an `MPCProblem`.  Node k has the
variables (x, u, variables of the integrator); the last node has (x) or (x, u).  The rows of a node
are the initial state, the dynamics, and the constraints in the order in which they were added; the
last node begins with the rows u = 0 if it has inputs.

A `Named` column knows which of its entries each name stands for.  From these columns and their
offsets follow the tables of names of the problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex
from warpmpc.problem.integrators import Discretisation
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.stage import Soft, Stage


@dataclass(frozen=True, eq=False)
class Named:
    """A column of symbols and the names of its parts.

    Attributes:
        symbols: The column.
        parts: Entries by name: those of a dict, or the whole column under its role ("x", "u", ...).
        scalars: Single entries by the names of their symbols; empty for a dict.
        labels: One distinct label per entry, for names of rows.
    """

    symbols: ca.SX
    parts: dict[str, np.ndarray]
    scalars: dict[str, np.ndarray]
    labels: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of symbols."""
        return self.symbols.numel()


@dataclass(frozen=True, eq=False)
class Block:
    """A named column and its offsets in a long vector.

    Attributes:
        named: The column.
        offsets: First entry of the column, one per node or a single one.
    """

    named: Named
    offsets: np.ndarray | int


@dataclass(frozen=True, eq=False)
class Term:
    """A cost, residual or constraint, and the nodes at which it holds.

    Attributes:
        part: Expressions of the term, as a stage over (x, u).
        nodes: Nodes at which it holds.
        soft: Penalties of its soft rows.
    """

    part: Stage
    nodes: frozenset[int]
    soft: Mapping[int, Soft]


@dataclass(frozen=True, eq=False)
class Formulation:
    """A complete and checked optimal control problem.

    Attributes:
        horizon: Number of intervals.
        x: States.
        u: Inputs.
        x_next: Symbols of the states at the end of an interval.
        x0: Symbols of the initial state.
        shared: Symbols of the parameters of the problem.
        p_node: Symbols of the parameters of a node.
        dynamics: Rows that link a node with the next one, in x, u and x_next.
        terms: Costs, residuals and constraints in the order in which they were added.
        guess: Stage over (x, u) that holds their guess.
        terminal_input: Whether the last node has inputs, fixed to zero.
        fix_initial: Whether the first node has the rows x - x0 = 0.
        param_names: Rows of the parameter vector by name.
        defaults: Defaults of the parameter vector.
    """

    horizon: int
    x: Named
    u: Named
    x_next: ca.SX
    x0: ca.SX
    shared: ca.SX
    p_node: ca.SX
    dynamics: Discretisation
    terms: tuple[Term, ...]
    guess: Stage
    terminal_input: bool
    fix_initial: bool
    param_names: dict[str, np.ndarray]
    defaults: np.ndarray


def lower(ocp: Formulation) -> MPCProblem:
    """Builds the problem from its stages, with names and defaults."""
    made: dict[_Kind, Stage] = {}
    stages: list[Stage] = []
    for k in range(ocp.horizon + 1):
        kind = _kind_of(ocp, k)
        if kind not in made:
            made[kind] = _stage(ocp, kind)
        stages.append(made[kind])
    return MPCProblem(
        stages,
        x0=ocp.x0,
        shared=ocp.shared,
        names=_variable_names(ocp),
        param_names=ocp.param_names,
        defaults=ocp.defaults,
    )


def named(given: Any, role: str) -> Named:
    """Converts the argument x, u, p or p_stage of an `OCP` to a named column.

    Args:
        given: Column of symbols, dict from names to columns of symbols, or None.
        role: Name of the argument, and of the whole column if it is not a dict.
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


def table_of_names(blocks: Iterable[Block]) -> dict[str, np.ndarray]:
    """Rows by name, ``[nodes, size]`` or ``[size]``.

    Names of parts must be distinct.  The name of a symbol is entered if nothing else has it.
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


def _rows(block: Block, entries: np.ndarray) -> np.ndarray:
    return np.asarray(block.offsets)[..., None] + entries


@dataclass(frozen=True)
class _Kind:
    """The properties in which nodes differ; nodes of one kind share their `Stage`."""

    terms: tuple[int, ...]
    first: bool
    n_next: int


def _sizes(ocp: Formulation) -> tuple[int, int]:
    """Numbers of variables of a node before the last one, and of the last one."""
    n_extra = sum(column.numel() for column in ocp.dynamics.variables.values())
    n_last = ocp.x.size + (ocp.u.size if ocp.terminal_input else 0)
    return ocp.x.size + ocp.u.size + n_extra, n_last


def _kind_of(ocp: Formulation, k: int) -> _Kind:
    n_node, n_last = _sizes(ocp)
    n_next = {ocp.horizon - 1: n_last, ocp.horizon: 0}.get(k, n_node)
    active = tuple(i for i, term in enumerate(ocp.terms) if k in term.nodes)
    return _Kind(active, k == 0 and ocp.fix_initial, n_next)


def _stage(ocp: Formulation, kind: _Kind) -> Stage:
    terminal = kind.n_next == 0
    parts = [ocp.terms[i].part for i in kind.terms]
    equalities = dict(_equalities(ocp, kind))
    zeros = ca.DM.zeros(len(equalities))
    soft: dict[int, Soft] = {}
    begin = len(equalities)
    for i in kind.terms:
        soft |= {begin + row: penalty for row, penalty in ocp.terms[i].soft.items()}
        begin += ocp.terms[i].part.n_g
    return Stage(
        _variables(ocp, terminal),
        _next_variables(ocp, kind.n_next),
        ocp.p_node,
        sum((part.cost for part in parts), ca.SX(0)),
        ca.vertcat(*equalities.values(), *(part.g for part in parts)),
        ca.vertcat(zeros, *(part.lower for part in parts)),
        ca.vertcat(zeros, *(part.upper for part in parts)),
        residual=ca.vertcat(*(part.residual for part in parts)),
        weight=ca.vertcat(*(part.weight for part in parts)),
        soft=soft,
        n_x=ocp.x.size,
        n_u=0 if terminal and not ocp.terminal_input else ocp.u.size,
        guess=_guess(ocp, terminal),
        tau=ocp.guess.tau,
        row_names=[*equalities, *(name for part in parts for name in part.row_names)],
    )


def _equalities(ocp: Formulation, kind: _Kind) -> Iterator[tuple[str, ca.SX]]:
    """Names and expressions of the rows that are zero."""
    blocks: list[tuple[str, ca.SX, tuple[str, ...]]] = []
    if kind.first:
        blocks.append(("initial", ocp.x.symbols - ocp.x0, ocp.x.labels))
    if kind.n_next:
        blocks += [(name, rows, ocp.x.labels) for name, rows in ocp.dynamics.rows.items()]
    elif ocp.terminal_input:
        blocks.append(("terminal_input", ocp.u.symbols, ocp.u.labels))
    for name, rows, labels in blocks:
        yield from ((f"{name}[{label}]", rows[i]) for i, label in enumerate(labels))


def _variables(ocp: Formulation, terminal: bool) -> ca.SX:
    if not terminal:
        return ca.vertcat(ocp.x.symbols, ocp.u.symbols, *ocp.dynamics.variables.values())
    return ca.vertcat(ocp.x.symbols, ocp.u.symbols if ocp.terminal_input else ca.SX(0, 1))


def _next_variables(ocp: Formulation, n_next: int) -> ca.SX | None:
    """Variables of the next node: the symbols of its states, and unused ones for the rest."""
    if not n_next:
        return None
    return ca.vertcat(ocp.x_next, ca.SX.sym("next", n_next - ocp.x.size))


def _guess(ocp: Formulation, terminal: bool) -> ca.SX:
    guess = ocp.guess.guess
    x_guess = guess[: ocp.x.size]
    if terminal:
        return ca.vertcat(x_guess, ca.DM.zeros(ocp.u.size if ocp.terminal_input else 0))
    extra = ca.vertcat(ca.SX(0, 1), *ocp.dynamics.guess.values())
    return ca.vertcat(guess, ca.substitute(extra, ocp.guess.z, guess))


def _variable_names(ocp: Formulation) -> dict[str, np.ndarray]:
    n_node, _ = _sizes(ocp)
    offsets = np.arange(ocp.horizon + 1) * n_node
    with_u = offsets if ocp.terminal_input else offsets[:-1]
    blocks = [Block(ocp.x, offsets), Block(ocp.u, with_u + ocp.x.size)]
    begin = ocp.x.size + ocp.u.size
    if ocp.dynamics.variables:
        blocks.append(Block(named(ocp.dynamics.variables, "integrator"), offsets[:-1] + begin))
    return table_of_names(blocks)
