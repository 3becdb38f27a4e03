"""Functions that evaluate the KKT matrix stage by stage, in the order of the elimination.

Reads: a `StageElimination` and the stage functions of an MPC problem.  Produces: `KKTStep`s.  Each
has a function that returns all values of K, the linear cost and the bounds of one stage of the
elimination, so that a kernel can eliminate the stage without having K in memory.

A column of K may have contributions of two neighbouring stages, because the rows and the cost of
stage k may depend on z_{k+1}.  Such contributions are added symbolically.  Elimination stages that
are made of the same contributions share a function and differ only in the rows that its inputs
come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.pattern import IntArray, KKTPattern
from warpmpc.symbolic.stage_elimination import StageElimination, StageTemplate

Tables = Mapping[str, Sequence[Any]]
Entry = tuple[tuple[int, int, str, int], ...]  # (stage, group, output, element) to be added up


@dataclass(frozen=True)
class Source:
    """One contribution to a value of K, of the linear cost or of the bounds.

    Attributes:
        ahead: Stage that contributes, relative to the elimination stage.
        group: Group of that stage.
        output: Output of its stage function.
        element: Element of the output.
    """

    ahead: int
    group: int
    output: str
    element: int


@dataclass(frozen=True, eq=False)
class KKTStep:
    """Elimination stages that share one function.

    Attributes:
        template: Template of their elimination.
        function: Maps the inputs at the point to (K, Q, U).  K holds the values of the KKT matrix
            in stored order, without sigma and with zeros on the diagonals of rows.  Q holds the
            linear cost of variables and the lower bounds of rows in the order of the nodes, U the
            upper bounds of rows and zeros for variables.
        positions: Place of each stage in the elimination.
        in_rows: Rows of the elements of each input, ``[stages, n]``.
        nodes: First node of each stage.
        L: First entry of L of each stage.
        K: First value of K of each stage.
    """

    template: StageTemplate
    function: ca.Function
    positions: IntArray
    in_rows: tuple[IntArray, ...]
    nodes: IntArray
    L: IntArray
    K: IntArray


class StageSymbols:
    """Symbols for the inputs of neighbouring stages, in which every row occurs once."""

    def __init__(self, assembly: Assembly, inputs: Tables):
        """Remembers which rows each stage reads.

        Args:
            assembly: Index tables of the problem, which know the group of each stage.
            inputs: Rows of each input array, per group.
        """
        self.inputs = inputs
        self.home = {
            int(k): (group, a)
            for group, ks in enumerate(assembly.stages)
            for a, k in enumerate(ks.tolist())
        }

    def rows(self, ks: Sequence[int]) -> tuple[list[IntArray], tuple[Any, ...]]:
        """Rows of each input that the stages `ks` read, and the places of each stage in them."""
        found, shape = [], []
        for tables in self.inputs.values():
            parts = [np.asarray(tables[self.home[k][0]][self.home[k][1]]) for k in ks]
            # Rows are numbered by first use, so that their places in memory make no difference.
            place = {}
            shape.append(
                tuple(tuple(place.setdefault(r, len(place)) for r in p.tolist()) for p in parts)
            )
            found.append(np.array(list(place), dtype=np.int32))
        return found, tuple(shape)

    def symbols(self, rows: Sequence[IntArray]) -> list[ca.SX]:
        """One vector of symbols per input."""
        return [ca.SX.sym(name, r.size) for name, r in zip(self.inputs, rows, strict=True)]


def part_of(vector: ca.SX, places: Sequence[int]) -> ca.SX:
    """Selected elements of a vector as a column, which may be empty."""
    return ca.vertcat(ca.SX(0, 1), *(vector[place] for place in places))


@dataclass(frozen=True, eq=False)
class StageFunctions:
    """The linearisations of all groups of a problem.

    Attributes:
        functions: One function of the inputs at a point per group.
        outputs: Names of the outputs: "P", "q", "A", "lower", "upper" in some order.
        inputs: Rows of each input, per group.
    """

    functions: Sequence[ca.Function]
    outputs: Sequence[str]
    inputs: Tables

    def call(self, group: int, given: Sequence[ca.SX]) -> dict[str, ca.SX]:
        """Contributions of one stage to the QP as expressions, by name."""
        results = self.functions[group].call(list(given))
        return dict(zip(self.outputs, results, strict=True))


def kkt_steps(
    program: StageElimination,
    kkt: KKTPattern,
    assembly: Assembly,
    stages: StageFunctions,
) -> list[KKTStep]:
    """Builds the functions of all stages of an elimination.

    Args:
        program: The stage elimination.
        kkt: Pattern of K.
        assembly: Index tables of the problem.
        stages: Linearisations of the groups.
    """
    sources, symbols = _Sources(program, kkt, assembly), StageSymbols(assembly, stages.inputs)
    kinds: dict[Any, list[tuple[Any, ...]]] = {}
    for place in _places(program):
        wanted = sources.of(place)
        aheads = sorted({s.ahead for entry in _flat(wanted) for s in entry})
        label = sources.label(place)
        rows, shape = symbols.rows([label + ahead for ahead in aheads])
        key = (place.template, wanted, tuple(aheads), shape)
        kinds.setdefault(key, []).append((place, rows))
    steps = []
    for number, ((template, wanted, aheads, shape), members) in enumerate(kinds.items()):
        places, rows = [place for place, _ in members], [row for _, row in members]
        given = symbols.symbols(rows[0])
        values = _call(stages, wanted, (aheads, shape), given)
        function = ca.Function(f"kkt_{number}", given, ca.cse(values))
        steps.append(
            KKTStep(
                template,
                function,
                positions=np.array([p.position for p in places], dtype=np.int32),
                in_rows=tuple(np.stack(of_input) for of_input in zip(*rows, strict=True)),
                nodes=np.array([p.node for p in places], dtype=np.int32),
                L=np.array([p.L for p in places], dtype=np.int32),
                K=np.array([p.K for p in places], dtype=np.int32),
            )
        )
    return steps


@dataclass(frozen=True)
class _Place:
    """One stage of an elimination: where its nodes, entries of L and values of K begin."""

    position: int
    template: StageTemplate
    node: int
    L: int
    K: int


def _places(program: StageElimination) -> list[_Place]:
    found = []
    for run in program.runs:
        t = run.template
        for i in range(run.count):
            starts = (run.node + i * t.n_nodes, run.L + i * t.n_L, run.K + i * t.n_K)
            found.append(_Place(len(found), t, *starts))
    return found


def _flat(wanted: tuple[tuple[tuple[Source, ...], ...], ...]) -> list[tuple[Source, ...]]:
    return [entry for part in wanted for entry in part]


class _Sources:
    """The contributions that make up each value of K, of the linear cost and of the bounds."""

    def __init__(self, program: StageElimination, kkt: KKTPattern, assembly: Assembly):
        problem = assembly.problem
        self._program, self._kkt = program, kkt
        self._stage = np.concatenate([problem.var_stage, problem.con_stage])
        self._q = contributors(assembly, assembly.q_places, "q", problem.n_vars)
        self._row = contributors(assembly, assembly.g_rows, "lower", problem.n_cons)
        P = contributors(assembly, assembly.P_places, "P", assembly.P_pattern.nnz)
        A = contributors(assembly, assembly.A_rows, "A", assembly.A_pattern.nnz)
        self._K: dict[int, Entry] = {}
        for to_K, found in ((kkt.P_to_K, P), (kkt.A_to_K, A)):
            self._K.update(zip(to_K.tolist(), found, strict=True))

    def label(self, place: _Place) -> int:
        """Stage of the problem that an elimination stage belongs to."""
        return int(self._stage[self._program.node_order[place.node]])

    def of(self, place: _Place) -> tuple[tuple[tuple[Source, ...], ...], ...]:
        """Contributions to the values of K, to Q and to U of one elimination stage."""
        program, label, size = self._program, self.label(place), place.template.n_nodes
        values = program.K_order[place.K : place.K + place.template.n_K].tolist()
        nodes = program.node_order[place.node : place.node + size].tolist()
        n = self._kkt.n_vars
        Q = [self._q[i] if i < n else self._row[i - n] for i in nodes]
        U = [() if i < n else _renamed(self._row[i - n]) for i in nodes]
        parts = ([self._K.get(value, ()) for value in values], Q, U)
        return tuple(tuple(_relative(entry, label) for entry in part) for part in parts)


def _renamed(entry: Entry) -> Entry:
    return tuple((k, group, "upper", element) for k, group, _, element in entry)


def _relative(entry: Entry, label: int) -> tuple[Source, ...]:
    return tuple(Source(k - label, group, output, element) for k, group, output, element in entry)


def contributors(assembly: Assembly, tables: Sequence[Any], output: str, size: int) -> list[Entry]:
    """The stages, groups and elements that are added up in each of `size` entries."""
    found: list[list[tuple[int, int, str, int]]] = [[] for _ in range(size)]
    for group, (ks, table) in enumerate(zip(assembly.stages, tables, strict=True)):
        for k, row in zip(ks.tolist(), np.asarray(table).tolist(), strict=True):
            for element, entry in enumerate(row):
                found[entry].append((k, group, output, element))
    return [tuple(sorted(entry)) for entry in found]


def _call(
    stages: StageFunctions,
    wanted: tuple[tuple[tuple[Source, ...], ...], ...],
    layout: tuple[Any, Any],
    given: Sequence[ca.SX],
) -> list[ca.SX]:
    """The wanted vectors as expressions of the given symbols."""
    aheads, shape = layout
    group_of = {s.ahead: s.group for entry in _flat(wanted) for s in entry}
    found = {}
    for at, ahead in enumerate(aheads):
        own = [part_of(vector, places[at]) for vector, places in zip(given, shape, strict=True)]
        found[ahead] = stages.call(group_of[ahead], own)
    vectors = []
    for part in wanted:
        sums = [sum((found[s.ahead][s.output][s.element] for s in e), ca.SX(0)) for e in part]
        vectors.append(ca.densify(ca.vertcat(*sums)))
    return vectors
