"""Straight-line native text of residuals: products of a lane's P and A with its x and y.

Reads: a `LaneMemory`.  Produces: statements for `engines.onchip.solve_source`.  K is saved before the
reduction takes its place; names are those of `engines.onchip.lane_source`, and

    SAVE(i, name, value), SAVED(i, name)    through memory that only the lane sees

In a block of products x_3, y_3 are the factors of node 3; p_3 is its part of P x, a_3 that of A'y,
or of A x where it is a row.
"""

from __future__ import annotations

from collections.abc import Callable

from warpmpc.codegen.emit_native import literal
from warpmpc.engines.onchip.lane_source import LaneSource
from warpmpc.engines.onchip.lanes import Node, Pair
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.reduction_source import block_of_lanes

NodeSource = Callable[[Node], list[str]]


class LaneResiduals:
    """The text of one problem."""

    def __init__(self, memory: LaneMemory, dtype: str):
        """Finds the entries that have to be saved.

        Args:
            memory: Where everything lies.
            dtype: "float32" or "float64".
        """
        self._m, self._dtype, self._lane = memory, dtype, LaneSource(memory, dtype)
        self._pairs = sorted({*memory.entries, *memory.literals})
        ahead = map(memory.layout.ahead, memory.layout.separators)
        self._next = {node: i for i, node in enumerate(ahead)}

    @property
    def counts(self) -> dict[str, int]:
        """Numbers that are saved: K, what corrects the first iteration, x and y before a check."""
        return {"k": len(self._m.entries), "c": len(self._m.rows), "w": len(self._m.nodes)}

    def save(self, *, couplings: bool) -> list[str]:
        """Saves K: the coupling with separators, which iterations need, too, or all the rest."""
        return [
            f"SAVE({i}, k, {self._lane.entry(*entry)})"
            for entry, i in self._m.entries.items()
            if (entry in self._lane.couplings) == couplings
        ]

    def _entry(self, entry: Pair) -> str:
        if entry in self._m.literals:
            return literal(self._m.literals[entry], self._dtype)
        return f"SAVED({self._m.entries[entry]}, k)"

    def products(self, factors: NodeSource, use: NodeSource) -> list[str]:
        """Declares all products and uses them, node by node.

        Args:
            factors: Statements that declare the factor of a node.
            use: Statements that follow for a node.
        """
        m = self._m
        crossing = [(a, b) for a, b in self._pairs if b in self._next]
        sent = dict.fromkeys([a for a, _ in crossing] + list(m.layout.separators))
        out = [line for node in sent for line in factors(node)]
        for i, node in enumerate(m.layout.separators):
            out.append(f"KEEP({i}, y) = x_{m.place[node]}; KEEP({i}, b) = 0; KEEP({i}, s) = 0;")
        for a, b in crossing:
            kept, factor = ("b", "y") if a.is_row else ("s", "x")
            product = f"{self._entry((a, b))} * {factor}_{m.place[a]}"
            out.append(f"KEEP({self._next[b]}, {kept}) += {product};")
        every = range(m.n_separators)
        exchanged = [f"FROM_BEHIND({i}, behind, y, 1)" for i in every]
        exchanged += [f"FROM_BEFORE({i}, before, b, 1) FROM_BEFORE({i}, b, s, 1)" for i in every]
        inside = [line for node in m.nodes for line in factors(node)]
        inside += [f"const SCALAR m_{i} = IF_BEHIND(KEEP({i}, behind));" for i in every]
        inside += [line for i in range(len(m.nodes)) for line in self._begin(i)]
        inside += [line for pair in self._pairs for line in self._terms(pair)]
        inside += [line for node in m.nodes for line in ("{", *use(node), "}")]
        return [*block_of_lanes(out), *exchanged, *block_of_lanes(inside)]

    def _begin(self, i: int) -> list[str]:
        """Products begin with what comes from the lane before."""
        beside = i - self._m.n_interior
        names = ("a",) if self._m.nodes[i].is_row else ("p", "a")
        from_before = {"p": "b", "a": "before"}
        return [
            f"SCALAR {name}_{i} = "
            + (f"IF_BEFORE(KEEP({beside}, {from_before[name]}));" if beside >= 0 else "0;")
            for name in names
        ]

    def _terms(self, entry: Pair) -> list[str]:
        """Both products of an entry; the second one of a node of the next lane is its own."""
        place, (a, b) = self._m.place, entry
        if not a.is_row and b.is_row:
            a, b = b, a
        e, there = self._entry(entry), a in place and b in place
        x = [f"x_{place[n]}" if n in place else f"m_{self._next[n]}" for n in (a, b)]
        if a.is_row:
            lines = [f"a_{place[a]} += e * {x[1]};"]
            lines += [f"a_{place[b]} += e * y_{place[a]};"] if there else []
        else:
            lines = [f"p_{place[a]} += e * {x[1]};"]
            lines += [f"p_{place[b]} += e * {x[0]};"] if there and a != b else []
        return [f"{{ const SCALAR e = {e}; {' '.join(lines)} }}"]

    # --- rows ---

    def solution(self, node: Node) -> list[str]:
        """Declares a node's factor between QPs: x, or y that has been put into R."""
        i = self._m.place[node]
        name, rows = ("y", "R_ROWS") if node.is_row else ("x", "X_ROWS")
        return [f"const SCALAR {name}_{i} = MEM({rows} + {i});"]

    def report(self) -> list[str]:
        """Residuals of QP and optimality conditions, see `onchip_native.REPORT`."""
        return self.products(self.solution, self._reported)

    def _reported(self, node: Node) -> list[str]:
        i = self._m.place[node]
        if not node.is_row:
            return [
                f"const SCALAR q = MEM(Q_ROWS + {i}); OF_LANE(slope_of) += q * x_{i};",
                f"LARGEST(0, q + a_{i}) LARGEST(1, q) LARGEST(2, q + a_{i} + p_{i})",
                f"LARGEST(6, x_{i}) LARGEST(7, MEM(Z_ROWS + {self._m.row_of('Z', node)}))",
            ]
        lines = [f"LARGEST(3, a_{i} - MEM(X_ROWS + {i})) LARGEST(5, y_{i})"]
        lines.append(self._lane.both_bounds(node))
        if self._m.layout.row_slot(node).soft:
            return [*lines, *self._soft_slope(node)]
        return [
            *lines,
            f"const SCALAR bound = y_{i} > 0 ? hi : y_{i} < 0 ? lo : (SCALAR)0;",
            f"if (bound - bound == 0) LARGEST(4, y_{i} * bound)",
        ]

    def _soft_slope(self, node: Node) -> list[str]:
        """What the QP expects the penalties of a soft row to change by.

        Penalties come from the coefficients of the proximal map, see `qp.soft`.
        """
        lines, end = [], f"a_{self._m.place[node]}"
        for side, way, at_zero in ((0, f"lo - {end}", "lo"), (1, f"{end} - hi", "-hi")):
            penalties = self._lane.penalties(node, side)
            if penalties is None:
                continue
            b, a = penalties
            lines += [
                f"{{ const SCALAR stiff = {self._lane.rho(node)}, whole = DIVIDED(stiff, {a});",
                f"const SCALAR linear = {b} * whole, quadratic = whole - stiff;",
                f"const SCALAR after = MAX({way}, (SCALAR)0);",
                f"const SCALAR before = MAX({at_zero}, (SCALAR)0);",
                "if (linear <= INFINITE && quadratic <= INFINITE)",
                "    OF_LANE(slope_of) += linear * (after - before)",
                "        + (SCALAR)0.5 * quadratic * (after * after - before * before); }",
            ]
        return lines
