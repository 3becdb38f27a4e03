"""Kernels of a `StageElimination`: elimination, and the ADMM loop with its solves stage by stage.

One thread walks the stages of one problem (on the CPU: of a tile) and keeps the working values of a
stage in local variables.  If a program has two chains, one thread walks each of them; the values that
the first one hands over wait in memory that both share until the two meet.  `engines.runtime.admm_loop`
and the kernels of factorisation define these names:

    Pack            one row for one thread: a value, or one value per problem
    K, L, D, X, W, Q, U, R    arrays in program order; `GET` reads one that is never written
    AT_STAGE(L, row)          declares ``Lk``: the same array from that row on
    AHEAD(L, row, rows)       prefetches these rows
    ONCE                      1, but opaque to the compiler
    FORGET                    a sweep begins: values read before it should not stay in registers
    INVERT(out, in), CLIP(v, lower, upper), OLD_S(v, lower, upper, row), NEXT_V(v, s, step),
    PUT(array, row, value), OMEGA, SIGMA, R_ROW, R_EQUAL
    H, SOFTEN(v, clipped v, array, row), OLD_SOFT_S(v, lower, upper, row, row of H)
                              soft rows: four values of each, stage by stage
    ON_SIDE(0), MEET          code for the thread of one chain (without threads: for all chains),
                              and a barrier for both
    SEND(i, value), RECEIVED(i)    value i in the shared memory

Local variables: ``w3`` is node 3 of the stage, ``f2`` the value that crosses the boundary through
slot 2, ``d3`` and ``a3_5`` the diagonal and an entry of column 3 that is being eliminated, ``c4_2``
the value that crosses the boundary between slots 4 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.codegen.native.preamble import INVERT_PIVOT
from warpmpc.codegen.native.termination import GATHER, GATHERED
from warpmpc.engines.runtime.admm_loop import (
    LOOP_ARRAYS,
    LOOP_LIMITS,
    LOOP_OUTPUTS,
    ON_DEVICE,
    admm_body,
    kernel_source,
)
from warpmpc.symbolic.derivatives.stage_model import RowKind
from warpmpc.symbolic.stage_elimination import (
    StageElimination,
    StageRun,
    StageTemplate,
    stage_kinds,
)


def factor_source(program: StageElimination) -> str:
    """Elimination: reads K, writes L and D (inverse pivots)."""
    loops = {
        run.node: _loop(run, "KLD", eliminate_stage(run.template, program)) for run in program.runs
    }
    return elimination_source(program, loops)


def elimination_source(program: StageElimination, loops: Mapping[int, str]) -> str:
    """An elimination around given loops.

    Args:
        program: The elimination by stages.
        loops: Source of the loop over each run, made of `eliminate_stage`, by the run's first node.
    """
    carried = [f"c{a}_{b}" for a, b in program.carried_pairs]
    chains = [[loops[run.node] for run in chain] for chain in program.chains]
    parts = [_zeros(carried)]
    if program.sides == 1:
        return "\n".join([*parts, *chains[0]])
    (*ahead, join) = chains[1]
    parts += _on_side(0, [*chains[0], _send(carried)])
    parts += _on_side(1, [_clear(carried), *ahead])
    parts += ["MEET", *_on_side(1, [join])]
    return "\n".join(parts)


@dataclass(frozen=True)
class SideLayout:
    """Chains of a program, as a kernel needs them.

    Attributes:
        sides: How many chains there are.
        split: First node of the last chain.
        exchanged: Largest number of values that are at once in the memory shared by two chains.
    """

    sides: int
    split: int
    exchanged: int


def side_layout(program: StageElimination) -> SideLayout:
    """Layout of the chains."""
    exchanged = max(len(program.carried_pairs), len(program.carried))
    return SideLayout(program.sides, program.split, exchanged if program.sides > 1 else 0)


def softened_nodes(program: StageElimination, soft: Collection[int]) -> list[tuple[int, ...]]:
    """For each run the nodes of its template that are soft in some stage.

    All stages of a run share their code.  A stage whose row is hard, where that of another stage is
    soft, has coefficients that never give way.
    """
    found = []
    for run in program.runs:
        size = run.template.n_nodes
        inside = range(run.node, run.node + run.count * size)
        found.append(tuple(sorted({(node - run.node) % size for node in soft if node in inside})))
    return found


def soft_order(program: StageElimination, soft: Collection[int]) -> list[int]:
    """Nodes with coefficients in H, in the order of H."""
    return [
        run.node + k * run.template.n_nodes + i
        for run, nodes in zip(program.runs, softened_nodes(program, soft), strict=True)
        for k in range(run.count)
        for i in nodes
    ]


def iteration_source(
    program: StageElimination, soft: Collection[int] = (), kinds: Sequence[RowKind] = ()
) -> str:
    """One ADMM iteration: both solves, then the update of X and W inside the backward solve.

    Args:
        program: The elimination by stages.
        soft: Nodes that are soft rows.
        kinds: Kinds of all rows, if they are known: such rows need fewer values.
    """
    carried = [f"f{slot}" for slot in program.carried]
    forward = [
        [_loop(run, "LDXWQ", _forward_stage(run.template, program)) for run in chain]
        for chain in program.chains
    ]
    backward = _backward_loops(program, soft, kinds)
    parts = [_zeros(carried), "FORGET"]
    if program.sides == 1:
        return "\n".join([*parts, *forward[0], "FORGET", *backward[0]])
    (*ahead, join), (join_back, *behind) = forward[1], backward[1]
    parts += _on_side(0, [*forward[0], _send(carried)])
    parts += _on_side(1, [_clear(carried), *ahead])
    parts += ["MEET", *_on_side(1, [join, "FORGET", join_back])]
    parts += ["MEET", "FORGET", *_on_side(1, behind)]
    return "\n".join([*parts, *_on_side(0, [_receive(carried), *backward[0]])])


def _backward_loops(
    program: StageElimination, soft: Collection[int], kinds: Sequence[RowKind]
) -> list[list[str]]:
    """Loops of the backward solve of each chain, in the order in which they run."""
    loops, place = {}, 0
    for run, nodes in zip(program.runs, softened_nodes(program, soft), strict=True):
        stage = _backward_stage(run.template, program, nodes, stage_kinds(program, run, kinds))
        body = [*_at_soft_rows(run, nodes, place), *stage]
        loops[run.node] = _loop(run, "LXWQURS", body, backward=True)
        place += run.count * len(nodes)
    return [[loops[run.node] for run in reversed(chain)] for chain in program.chains]


def _on_side(side: int, text: list[str]) -> list[str]:
    return [f"ON_SIDE({side}) {{", *text, "}"]


def _send(names: list[str]) -> str:
    return "\n".join(f"SEND({i}, {name})" for i, name in enumerate(names))


def _receive(names: list[str]) -> str:
    return "\n".join(f"{name} = RECEIVED({i});" for i, name in enumerate(names))


def _clear(names: list[str]) -> str:
    return "".join(f"{name} = (Pack)0; " for name in names)


def _zeros(names: list[str]) -> str:
    return "Pack " + ", ".join(f"{name} = (Pack)0" for name in names) + ";" if names else ""


def _loop(run: StageRun, arrays: str, body: list[str], *, backward: bool = False) -> str:
    """A loop over the stages of a run; ``Lk`` is L from the stage's first entry on, and so on."""
    first = {"K": run.K, "L": run.L}
    stride = {"K": run.template.n_K, "L": run.template.n_L}
    lines = [f"// {run.count} stages of {run.template.n_nodes} nodes from node {run.node} on"]
    # A single stage is a loop, too, so that it is not merged with its neighbours: that would spill.
    count = "ONCE" if run.count == 1 else str(run.count)
    step = f"int k = {count} - 1; k >= 0; --k" if backward else f"int k = 0; k < {count}; ++k"
    lines += ["#pragma unroll 1", f"for ({step}) {{"]
    for name in arrays:
        start, width = first.get(name, run.node), stride.get(name, run.template.n_nodes)
        lines.append(f"AT_STAGE({name}, {start} + k * {width})")
        if name in "KLDXWQUR":
            ahead = f"{start} + (k {'-' if backward else '+'} 1) * {width}"
            lines.append(f"AHEAD({name}, {ahead}, {width})")
    return "\n".join([*lines, *body, "}"])


def _at_soft_rows(run: StageRun, nodes: tuple[int, ...], place: int) -> list[str]:
    """Declares ``Hk``, the coefficients of a stage's soft rows; the run's first one has `place`."""
    if not nodes:
        return []
    start, width = 4 * place, 4 * len(nodes)
    ahead = f"AHEAD(H, {start} + (k - 1) * {width}, {width})"
    return [f"AT_STAGE(H, {start} + k * {width})", ahead]


def positions(template: StageTemplate) -> list[int]:
    """First entry of L of each column."""
    ends = [0]
    for column in template.columns:
        ends.append(ends[-1] + len(column))
    return ends


class _Working:
    """The entries of a stage while it is eliminated; each is declared where it is first needed."""

    def __init__(
        self, template: StageTemplate, program: StageElimination, K_source: Callable[[int], str]
    ):
        self.lines: list[str] = []
        self._declared: set[str] = set()
        self._start: dict[str, list[str]] = {}
        at = 0
        for j, (column, in_K) in enumerate(zip(template.columns, template.in_K, strict=True)):
            self._start[f"d{j}"] = [K_source(at)]
            at += 1
            for target, present in zip(column, in_K, strict=True):
                self._start[self.name(j, target)] = [K_source(at)] if present else []
                at += present
        for place, (high, low) in enumerate(program.carried_pairs):  # from the stages before
            self._enter(template.slots, high, low, f"c{high}_{low}")
            self._enter(template.joins, high, low, f"RECEIVED({place})")

    def _enter(self, slots: tuple[int, ...], high: int, low: int, text: str) -> None:
        """Adds the value that a chain carries between two slots, where the stage has both."""
        if high in slots and low in slots:
            name = self.name(slots.index(high), slots.index(low))
            if name in self._start:
                self._start[name].append(text)

    def name(self, i: int, j: int) -> str:
        """Variable of an entry; i and j are nodes of the stage or ~slots of the next one."""
        if i < 0 and j < 0:
            high, low = max(~i, ~j), min(~i, ~j)
            return f"n{high}_{low}"
        if i == j:
            return f"d{i}"
        i, j = (j, i) if i < 0 or 0 <= j < i else (i, j)
        return f"a{i}_n{~j}" if j < 0 else f"a{i}_{j}"

    def subtract(self, name: str, product: str) -> None:
        """``name -= product``."""
        if name not in self._declared and not self._start.get(name):
            self._declared.add(name)
            self.lines.append(f"Pack {name} = -({product});")
        else:
            self.need(name)
            self.lines.append(f"{name} -= {product};")

    def need(self, name: str) -> None:
        """Declares an entry with its value in K and the carried values."""
        if name not in self._declared:
            self._declared.add(name)
            terms = self._start.get(name) or ["(Pack)0"]
            self.lines.append(f"Pack {name} = {' + '.join(terms)};")

    def has(self, name: str) -> bool:
        """Whether an entry was ever touched."""
        return name in self._declared


def read_K(position: int) -> str:
    """Expression of a value of K of the stage, by its position among them."""
    return f"GET(Kk, {position})"


def eliminate_stage(
    template: StageTemplate, program: StageElimination, K_source: Callable[[int], str] = read_K
) -> list[str]:
    """Right-looking elimination of one stage; every value of K is read once.

    Args:
        template: Template of the stage.
        program: Elimination that the stage belongs to.
        K_source: Expression of a value of K of the stage, by its position among them.
    """
    work = _Working(template, program, K_source)
    position = 0
    for j, column in enumerate(template.columns):
        work.need(f"d{j}")
        work.lines += [f"Pack i{j}; INVERT(i{j}, d{j}); AT(Dk, {j}) = i{j};"]
        for target in column:
            entry = work.name(j, target)
            work.need(entry)
            work.lines.append(f"const Pack l{position} = {entry} * i{j};")
            work.lines.append(f"AT(Lk, {position}) = l{position};")
            position += 1
        first = position - len(column)
        for s, row in enumerate(column):
            for col in column[: s + 1]:
                work.subtract(work.name(row, col), f"l{first + s} * {work.name(j, col)}")
    for high, low in program.carried_pairs:
        name = f"n{high}_{low}"
        work.lines.append(f"c{high}_{low} = {name if work.has(name) else '(Pack)0'};")
    return work.lines


def _forward_stage(template: StageTemplate, program: StageElimination) -> list[str]:
    """Forward solve of one stage; stores the results over their pivots in W, except for leaves."""
    lines, into, out = [], incoming(template), outgoing(template)
    for i in range(template.n_nodes):
        start = f"AT(Wk, {i})" if template.is_row[i] else f"RHS_OF_X(AT(Xk, {i}), GET(Qk, {i}))"
        lines.append(f"Pack w{i} = {start}{entering(template, program, i)};")
        lines += [f"w{i} -= GET(Lk, {entry}) * w{j};" for j, entry in into[i]]
    for slot in program.carried:
        lines.append(f"f{slot} = (Pack)0;")
        lines += [f"f{slot} -= GET(Lk, {entry}) * w{j};" for j, entry in out.get(slot, [])]
    lines += [
        f"AT(Wk, {i}) = w{i} * GET(Dk, {i});"
        for i in range(template.n_nodes)
        if not template.is_leaf(i)
    ]
    return lines


def entering(template: StageTemplate, program: StageElimination, node: int) -> str:
    """Terms that earlier stages add to the right-hand side of a node."""
    text = f" + f{template.slots[node]}" if template.slots[node] >= 0 else ""
    if template.joins and template.joins[node] >= 0:
        text += f" + RECEIVED({program.carried.index(template.joins[node])})"
    return text


def incoming(template: StageTemplate) -> list[list[tuple[int, int]]]:
    """Rows of L inside the stage: for each node the columns and entries that change it."""
    rows: list[list[tuple[int, int]]] = [[] for _ in range(template.n_nodes)]
    position = 0
    for j, column in enumerate(template.columns):
        for target in column:
            if target >= 0:
                rows[target].append((j, position))
            position += 1
    return rows


def outgoing(template: StageTemplate) -> dict[int, list[tuple[int, int]]]:
    """Rows of L that belong to the next stage, by slot."""
    rows: dict[int, list[tuple[int, int]]] = {}
    position = 0
    for j, column in enumerate(template.columns):
        for target in column:
            if target < 0:
                rows.setdefault(~target, []).append((j, position))
            position += 1
    return rows


def _backward_stage(
    template: StageTemplate, program: StageElimination, soft: tuple[int, ...], kinds: list[RowKind]
) -> list[str]:
    """Solution of one stage and the ADMM update of its nodes."""
    lines, position = [], positions(template)
    for i in reversed(range(template.n_nodes)):
        # The forward solve stores nothing for a leaf: its right-hand side follows from X.
        # The coefficients of a soft row are found by its place among those of the stage.
        lines.append(f"Pack w{i} = {'(Pack)0' if template.is_leaf(i) else f'AT(Wk, {i})'};")
        for entry, target in enumerate(template.columns[i], start=position[i]):
            value = f"w{target}" if target >= 0 else f"f{~target}"
            lines.append(f"w{i} -= GET(Lk, {entry}) * {value};")
        lines.append(_update(template, i, soft.index(i) if i in soft else None, kinds[i]))
    node_of = {slot: i for i, slot in enumerate(template.slots) if slot >= 0}
    for slot in program.carried:
        lines.append(f"f{slot} = {f'w{node_of[slot]}' if slot in node_of else '(Pack)0'};")
    lines += [
        f"SEND({place}, w{template.joins.index(slot)})"
        for place, slot in enumerate(program.carried)
        if slot in template.joins
    ]
    return lines


# Lower bound, upper bound and 1/rho of a row of each kind.
_READS = {
    RowKind.UNKNOWN: ("GET(Qk, {i})", "GET(Uk, {i})", "GET(Rk, {i})"),
    RowKind.EQUALITY: ("GET(Qk, {i})", "lo", "R_EQUAL"),
    RowKind.BOTH: ("GET(Qk, {i})", "GET(Uk, {i})", "R_ROW"),
    RowKind.LOWER: ("GET(Qk, {i})", "(Pack)INFINITY", "R_ROW"),
    RowKind.UPPER: ("(Pack)(-INFINITY)", "GET(Uk, {i})", "R_ROW"),
}


def _update(template: StageTemplate, i: int, place: int | None, kind: RowKind) -> str:
    """The v-form, see `qp.loops.general`.  A leaf's multiplier is -rho (rhs) minus the sum above."""
    if not template.is_row[i]:
        return f"PUT(Xk, {i}, NEXT_X(AT(Xk, {i}), w{i}));"
    lower, upper, inverse_rho = (text.format(i=i) for text in _READS[kind])
    step = f"{inverse_rho} * w{i}"
    if template.is_leaf(i):
        step += " + v - 2 * s"
    old_s, new_s = f"OLD_S(v, lo, hi, {i})", "CLIP(v_next, lo, hi)"
    if place is not None:
        old_s = f"OLD_SOFT_S(v, lo, hi, {i}, {4 * place})"
        new_s = f"SOFTEN(v_next, {new_s}, Hk, {4 * place})"
    return (
        f"{{ const Pack lo = {lower}, hi = {upper}, v = AT(Xk, {i}); "
        f"const Pack s = {old_s}; "
        f"const Pack v_next = NEXT_V(v, s, ({step})); "
        f"PUT(Xk, {i}, v_next); AT(Wk, {i}) = RHS_OF_V(v_next, {new_s}); }}"
    )


_FACTOR = (
    INVERT_PIVOT
    + r"""
#define INVERT(out, in) PACK_EACH(out, in, invert)
if (!todo_in.data[tile]) return;
#define ROWS_K K_in.shape[1]
#define ROWS_L n_L
#define ROWS_D (factor_io.shape[1] - n_L)
auto eliminate = [&](const SCALAR* __restrict__ K, SCALAR* __restrict__ L,
                     SCALAR* __restrict__ D) ALWAYS_INLINE {
    GENERATED
};
SCALAR* factor = BASE(factor_io);
eliminate(BASE(K_in), factor, factor + (Offset)n_L * TILE);
"""
)


def staged_factor_source(generated: str, dtype: str, layout: SideLayout) -> str:
    """Body of the factorisation kernel around the source of all stages."""
    return kernel_source("K_in", _FACTOR.replace("GENERATED", generated), dtype, **_sides(layout))


def _sides(layout: SideLayout) -> dict[str, int]:
    if layout.sides == 1:
        return {"SIDES": 1}
    mailbox = max(layout.exchanged, len(GATHERED))
    return {"SIDES": 2, "SPLIT": layout.split, "MAILBOX": mailbox}


def staged_admm_source(
    generated: str, dtype: str, layout: SideLayout, *, soft: bool = False
) -> str:
    """Body of the ADMM kernel around the source of one iteration."""
    gather = ON_DEVICE.format(GATHER, "") if layout.sides == 2 else ""
    body = admm_body("", generated, gather, soft=soft)
    # Lanes of two warps have to leave at the same time.
    return kernel_source("X_io", body, dtype, TOGETHER=int(layout.sides == 2), **_sides(layout))


@cache
def staged_factor_kernel(
    generated: str, dtype: str, registers: int, layout: SideLayout
) -> KernelSource:
    """Kernel that eliminates the tiles marked in `todo`; other tiles keep their factors.

    Args:
        generated: Source from `factor_source`.
        dtype: "float32" or "float64".
        registers: Most registers per thread.
        layout: Layout of the chains.
    """
    return KernelSource(
        name="staged_factor",
        title="Factorisation of a KKT matrix stage by stage.",
        dtype=dtype,
        inputs=[
            Argument("K_in"),
            Argument("todo_in", "table"),
            *arguments("number", "n_L", "prefetch"),
        ],
        outputs=[Argument("factor_io")],
        head="",
        merged=32,
        any_lanes=True,
        body=staged_factor_source(generated, dtype, layout),
        registers=registers,
    )


@cache
def staged_admm_kernel(
    generated: str, dtype: str, registers: int, layout: SideLayout, soft: bool = False
) -> KernelSource:
    """Kernel of the ADMM loop with its termination check.

    Args:
        generated: Source of one iteration, from `iteration_source`.
        dtype: "float32" or "float64".
        registers: Most registers per thread.
        layout: Layout of the chains.
        soft: Whether there are soft rows.
    """
    return KernelSource(
        name="staged_admm",
        title="ADMM iterations of a QP stage by stage.",
        dtype=dtype,
        inputs=[*LOOP_ARRAYS, *arguments("number", "n_L", "prefetch"), *LOOP_LIMITS],
        outputs=LOOP_OUTPUTS,
        head="",
        merged=32,
        any_lanes=True,
        body=staged_admm_source(generated, dtype, layout, soft=soft),
        registers=registers,
    )
