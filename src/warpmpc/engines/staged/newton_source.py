"""Native source of Newton systems stage by stage: one factorisation with its inertia, and one solve.

Reads: a `StageElimination` of ``K = [[P + delta I, A'], [A, -G]]`` with G diagonal, and where the
values of K come from.  Produces: bodies for `codegen.kernel_source`.

P, A, G and delta are arrays of their own, in the order of the problem, and so are right-hand sides
and solutions: tables say where the nodes and values of a stage are.  The working values of a stage
are local variables, as in the ADMM loop of this engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from warpmpc._errors import PatternError
from warpmpc.engines.staged.stage_source import (
    eliminate_stage,
    entering,
    incoming,
    outgoing,
    positions,
)
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.stage_elimination import StageElimination, StageRun, StageTemplate

_INVERT = r"""
const Pack none = 0, one = 1;
// A pivot that cannot be divided by leaves 0 or NaN, as `INVERT_PIVOT` of the preamble does.
#define IS_TINY(a) (((a) < (Pack)TINY) & ((a) > (Pack)-TINY))
#define INVERT(out, in)                                                                 \
    {                                                                                   \
        const Pack rest = (in) - (in), inverse = one / (in);                            \
        const Pack usable = IS_TINY(inverse) ? (Pack)(SCALAR)NAN : inverse;             \
        const Pack number = IS_TINY(in) ? none : usable;                                \
        out = rest == none ? number : rest;                                             \
    }
"""

_FACTOR = r"""
if (tile >= report_out.shape[0]) return;
BEGIN_TILE
const SCALAR* __restrict__ P = BASE(P_in);
const SCALAR* __restrict__ A = BASE(A_in);
const SCALAR* __restrict__ G = BASE(G_in);
const Pack delta = GET(BASE(delta_in), 0);
SCALAR* __restrict__ L = BASE(factor_io);
SCALAR* __restrict__ D = L + (Offset){n_L} * TILE;
if (todo_in.data[tile]) {{
{stages}
}}
// The number of positive pivots, or -1.
Pack positive = 0, broken = 0;
for (int i = 0; i < {n_nodes}; ++i) {{
    const Pack pivot = GET(D, i);
    positive += pivot > none ? one : none;
    broken = ((pivot == none) | (pivot != pivot)) ? one : broken;
}}
AT(BASE(report_out), 0) = broken > none ? -one : positive;
END_TILE
"""

_SOLVE = r"""
if (tile >= x_out.shape[0]) return;
BEGIN_TILE
const SCALAR* __restrict__ rhs = BASE(rhs_in);
const SCALAR* __restrict__ L = BASE(factor_in);
const SCALAR* __restrict__ D = L + (Offset){n_L} * TILE;
SCALAR* __restrict__ x = BASE(x_out);
{stages}
END_TILE
"""


@dataclass(frozen=True, eq=False)
class ValuePlaces:
    """Where the values of K come from.

    Attributes:
        n_P: Number of values of P, which come first.
        n_A: Number of values of A, which come next; then delta alone, then G.
        source: Place of each value of the upper triangle of K among these.
    """

    n_P: int
    n_A: int
    source: IntArray

    def kind(self, value: int) -> str:
        """The array that a value comes from: "P", "A", "delta" or "G"."""
        if value < self.n_P:
            return "P"
        if value < self.n_P + self.n_A:
            return "A"
        return "delta" if value == self.n_P + self.n_A else "G"

    def row(self, value: int) -> int:
        """Its row in that array."""
        first = {"P": 0, "A": self.n_P, "delta": value, "G": self.n_P + self.n_A + 1}
        return value - first[self.kind(value)]


class NewtonSource:
    """Source for one elimination by stages."""

    def __init__(self, program: StageElimination, places: ValuePlaces):
        """Finds the array of each value of each stage.

        Args:
            program: The elimination, in one chain.
            places: Where values come from.

        Raises:
            PatternError: Stages that share their code read different arrays.
        """
        self._program = program
        values = [int(v) for v in places.source[program.K_order]]
        self.value_rows = np.array([places.row(v) for v in values], dtype=np.int32)
        kinds = [places.kind(v) for v in values]
        self._run_kinds = [self._kinds(run, kinds) for run in program.runs]

    @staticmethod
    def _kinds(run: StageRun, kinds: list[str]) -> list[str]:
        """Arrays of the values of each stage of a run, whose stages share their code."""
        size = run.template.n_K
        stages = [kinds[run.K + k * size : run.K + (k + 1) * size] for k in range(run.count)]
        if any(stage != stages[0] for stage in stages):
            raise PatternError("Equal stages have weights on different variables.")
        return stages[0]

    def factor_body(self) -> str:
        """Factorisation of tiles that are marked, and the number of positive pivots of all."""
        program = self._program
        stages = [_zeros([f"c{a}_{b}" for a, b in program.carried_pairs])]
        for run, kinds in zip(program.runs, self._run_kinds, strict=True):
            source = self._value(run.template, kinds)
            lines = [
                f"const int* __restrict__ from = values_in.data + {run.K} + k * {run.template.n_K};",
                f"SCALAR* __restrict__ Lk = L + (Offset)({run.L} + k * {run.template.n_L}) * TILE;",
                f"SCALAR* __restrict__ Dk = D + (Offset){_node(run)} * TILE;",
                *eliminate_stage(run.template, program, source),
            ]
            stages += _looped(run, lines)
        body = _FACTOR.format(n_L=program.n_L, n_nodes=program.n_nodes, stages="\n".join(stages))
        return _INVERT + body

    @staticmethod
    def _value(template: StageTemplate, kinds: list[str]) -> Callable[[int], str]:
        diagonals, at = set[int](), 0
        for column in template.in_K:
            diagonals.add(at)
            at += 1 + sum(column)

        def text(position: int) -> str:
            kind = kinds[position]
            if kind == "delta":
                return "delta"
            value = f"GET({kind}, from[{position}])"
            if kind == "G":
                return f"-{value}"
            of_variable = kind == "P" and position in diagonals
            return f"({value} + delta)" if of_variable else value

        return text

    def solve_body(self) -> str:
        """Forward and backward solve."""
        program = self._program
        carried = [f"f{slot}" for slot in program.carried]
        forward = [_looped(run, self._forward(run)) for run in program.runs]
        backward = [
            _looped(run, self._backward(run), backward=True) for run in reversed(program.runs)
        ]
        lines = [_zeros(carried), *(line for part in (*forward, *backward) for line in part)]
        return _SOLVE.format(n_L=program.n_L, stages="\n".join(lines))

    @staticmethod
    def _arrays(run: StageRun) -> list[str]:
        return [
            f"const int* __restrict__ node = nodes_in.data + {_node(run)};",
            f"const SCALAR* __restrict__ Lk = L + (Offset)({run.L} + k * {run.template.n_L}) * TILE;",
            f"const SCALAR* __restrict__ Dk = D + (Offset){_node(run)} * TILE;",
        ]

    def _forward(self, run: StageRun) -> list[str]:
        """Forward solve of one stage; the result over its pivots waits in x."""
        template, lines = run.template, self._arrays(run)
        into, out = incoming(template), outgoing(template)
        for i in range(template.n_nodes):
            start = f"GET(rhs, node[{i}]){entering(template, self._program, i)}"
            lines.append(f"Pack w{i} = {start};")
            lines += [f"w{i} -= GET(Lk, {entry}) * w{j};" for j, entry in into[i]]
            lines.append(f"AT(x, node[{i}]) = w{i} * GET(Dk, {i});")
        for slot in self._program.carried:
            lines.append(f"f{slot} = (Pack)0;")
            lines += [f"f{slot} -= GET(Lk, {entry}) * w{j};" for j, entry in out.get(slot, [])]
        return lines

    def _backward(self, run: StageRun) -> list[str]:
        """Solution of one stage."""
        template, lines = run.template, self._arrays(run)
        first = positions(template)
        for i in reversed(range(template.n_nodes)):
            lines.append(f"Pack w{i} = AT(x, node[{i}]);")
            for entry, target in enumerate(template.columns[i], start=first[i]):
                value = f"w{target}" if target >= 0 else f"f{~target}"
                lines.append(f"w{i} -= GET(Lk, {entry}) * {value};")
            lines.append(f"AT(x, node[{i}]) = w{i};")
        node_of = {slot: i for i, slot in enumerate(template.slots) if slot >= 0}
        for slot in self._program.carried:
            lines.append(f"f{slot} = {f'w{node_of[slot]}' if slot in node_of else '(Pack)0'};")
        return lines


def _node(run: StageRun) -> str:
    return f"({run.node} + k * {run.template.n_nodes})"


def _zeros(names: list[str]) -> str:
    return f"Pack {', '.join(f'{name} = 0' for name in names)};" if names else ""


def _looped(run: StageRun, lines: list[str], *, backward: bool = False) -> list[str]:
    step = (
        f"int k = {run.count} - 1; k >= 0; --k" if backward else f"int k = 0; k < {run.count}; ++k"
    )
    return ["#pragma unroll 1", f"for ({step}) {{", *lines, "}"]
