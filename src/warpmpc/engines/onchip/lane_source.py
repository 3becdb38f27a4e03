"""Native source of a lane as straight lines: its elimination, and one ADMM iteration.

Reads: a `LaneMemory`.  Produces: statements for `engines.onchip.solve_source`, which defines the
names:

    EACH_LANE              executes the next block for every lane; on the CPU it is a loop
    MEM(section + row)     a value of the lane; sections are Z_ROWS, X_ROWS, ...
    KEEP(i, name)          value i that a lane keeps under a name, see `KEPT`
    SAVE_NOW, SAVE_LATE(i, name, value), LOAD(i, name)    the same through memory, where registers
                           are needed for other values; stored at once on CUDA, and at the end of a
                           block on the CPU, because a compiler takes long to prove that stores in
                           between change nothing else
    LOAD_AS(i, name, j, saved)    loads value j that was saved under another name
    FROM_BEFORE(i, to, name, h), FROM_BEHIND(...)    receives it from the lane h before or behind
    FROM_ACROSS(i, to, name, h)    from behind in lanes whose bit h is zero, otherwise from before
    IF_BEFORE(x), IF_BEHIND(x)    x, but zero in the first, or in the last lane
    OF_LANE(x)             the entry of this lane in a vector over all lanes
    SIGMA, OMEGA, R_ROW, R_EQUAL

Local variables: ``r3`` is node 3 in a solve, ``k...`` an entry that is being eliminated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from warpmpc.codegen.emit_native import literal
from warpmpc.engines.onchip.lanes import Node, Pair, pair
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.reduction_source import block_of_lanes, kept, reduction
from warpmpc.symbolic.derivatives.stage_model import RowKind


class LaneEntries:
    """Entries while the interior is eliminated; each is declared where it is first needed."""

    def __init__(self, start: Callable[[Pair], str | None], beyond: Collection[Node]):
        """Starts without any declared entry.

        Args:
            start: Expression of an entry's value in K, None where it has none.
            beyond: Nodes of the next lane; this lane contributes nothing to K between them.
        """
        self.lines: list[str] = []
        self._start, self._beyond = start, set(beyond)
        self._declared: dict[Pair, str] = {}

    @staticmethod
    def label(node: Node) -> str:
        """Part of a variable's name."""
        return f"{node.stage}{'g' if node.is_row else 'z'}{node.index}"

    def _name(self, key: Pair) -> str:
        return f"k{self.label(key[0])}_{self.label(key[1])}"

    def need(self, a: Node, b: Node) -> str:
        """Declares an entry with its value in K."""
        key = pair(a, b)
        if key not in self._declared:
            self._declared[key] = self._name(key)
            self.lines.append(f"SCALAR {self._name(key)} = {self._start(key) or '(SCALAR)0'};")
        return self._declared[key]

    def subtract(self, a: Node, b: Node, product: str) -> None:
        """Subtracts a product from an entry; entries of the next lane start at zero."""
        key = pair(a, b)
        beyond = self._beyond.issuperset(key)
        start = None if beyond else self._start(key)
        if key in self._declared or start is not None:
            self.lines.append(f"{self.need(a, b)} -= {product};")
        else:
            self._declared[key] = self._name(key)
            self.lines.append(f"SCALAR {self._name(key)} = -({product});")

    def value(self, a: Node, b: Node, *, given: bool = True) -> str:
        """Expression of an entry between separators; `given` tells whether K has a value there."""
        key = pair(a, b)
        if key in self._declared:
            return self._declared[key]
        return (self._start(key) if given else None) or "(SCALAR)0"


_LONGEST_LOOP = 1000  # multiply-adds; on an H200, up to 700 are faster unfolded
_MOST_KEPT = 150  # registers; a cartpole needs 144 and has none left
# What lanes keep between blocks: entries of L, inverse pivots, couplings with separators, the
# right-hand side of separators, the same reduced, what goes to the next lane, the solution, what
# comes from both sides, and blocks of the reduction.
KEPT = ("l", "i", "e", "g", "s", "b", "y", "before", "behind", "u")


def registers_of(dtype: str) -> int:
    """Registers that a value takes."""
    return {"float32": 1, "float64": 2}[dtype]


class LaneSource:
    """Writes the elimination and the ADMM iteration of one problem."""

    def __init__(self, memory: LaneMemory, dtype: str):
        """Finds which values of the factorisation have to be kept.

        Args:
            memory: Rows of the shared memory.
            dtype: "float32" or "float64".
        """
        self._m, self._dtype = memory, dtype
        self._own = list(memory.layout.separators)
        self._next = [memory.layout.ahead(node) for node in self._own]
        order = memory.elimination.order
        inside = set(order)
        pairs = [
            (j, t)
            for j, column in zip(order, memory.elimination.columns, strict=True)
            for t in column
            if t in inside
        ]
        self._l = {entry: i for i, entry in enumerate(pairs)}
        self._touched = {t for _, t in pairs}
        self._couplings = [
            (node, beyond)
            for node in order
            for beyond in (*self._own, *self._next)
            if pair(node, beyond) in memory.layout.edges
        ]

    # --- values of K ---

    def entry(self, a: Node, b: Node) -> str | None:
        """Expression of an entry of P or A, None where there is none."""
        key, m = pair(a, b), self._m
        if key in m.literals:
            return literal(m.literals[key], self._dtype)
        terms = [f"MEM(W_ROWS + {m.entries[key]})"] if key in m.entries else []
        if key in m.incoming:
            terms.append(f"MEM(W_ROWS + {m.incoming[key]})")
        return f"({' + '.join(terms)})" if terms else None

    def inverse_rho(self, node: Node) -> str:
        """Expression of 1/rho of a row."""
        m = self._m
        if node in m.rho:
            return f"MEM(RHO_ROWS + {m.rho[node]})"
        slot = m.layout.row_slot(node)
        # A soft row is no equality, whatever its bounds: see `qp.scaling`.
        return "R_EQUAL" if slot.kind is RowKind.EQUALITY and not slot.soft else "R_ROW"

    def rho(self, node: Node) -> str:
        """Expression of rho of a row."""
        known = node not in self._m.rho  # the compiler then divides
        inverse = self.inverse_rho(node)
        return f"(1 / {inverse})" if known else f"DIVIDED((SCALAR)1, {inverse})"

    def _diagonal(self, node: Node) -> str:
        if node.is_row:
            return f"-{self.inverse_rho(node)}"
        entry = self.entry(node, node)
        return f"SIGMA + {entry}" if entry else "SIGMA"

    def _start(self, key: Pair) -> str | None:
        """Expression of an entry of K, None where there is none."""
        a, b = key
        return self._diagonal(a) if a == b else self.entry(a, b)

    # --- elimination ---

    @property
    def counts(self) -> dict[str, int]:
        """Number of values that a lane keeps under each name of `KEPT`."""
        m = self._m
        couplings = {"e": len(self._couplings)}
        factor = {"l": len(self._l), "i": m.n_interior, **couplings}
        blocks = {"u": m.kept_blocks * m.n_separators**2}
        return factor | dict.fromkeys(KEPT[3:-1], m.n_separators) | blocks

    def elimination(self) -> list[str]:
        """Eliminates the interior.

        Keeps L, inverse pivots and the coupling with separators; what remains between separators is
        in ``diag``, ``above`` and ``ahead``.
        """
        work = LaneEntries(self._start, self._next)
        m, keep = self._m, []
        for j, column in zip(m.elimination.order, m.elimination.columns, strict=True):
            d, number = work.need(j, j), m.place[j]
            pivot = f"p{number}"
            inverse = self._pivot(j) if self._has_known_pivot(j) else f"invert({d})"
            work.lines.append(f"const SCALAR {pivot} = {inverse};")
            if not self._has_known_pivot(j):
                keep.append(f"({number}, i, {pivot})")
                work.lines.append(f"SAVE_NOW{keep[-1]}")
            names = []
            for target in column:
                value, name = work.need(j, target), f"t{number}_{work.label(target)}"
                work.lines.append(f"const SCALAR {name} = {value} * {pivot};")
                if (j, target) in self._l:
                    keep.append(f"({self._l[j, target]}, l, {name})")
                    work.lines.append(f"SAVE_NOW{keep[-1]}")
                names.append((target, name, value))
            for at, (row, factor, _) in enumerate(names):
                for col, _, value in names[: at + 1]:
                    work.subtract(row, col, f"{factor} * {value}")
        lines = [*work.lines, *self._remaining(work)]
        for i, (a, b) in enumerate(self._couplings):
            if not self._is_literal(a, b):
                keep.append(f"({i}, e, {self.entry(a, b)})")
        return block_of_lanes([*lines, *(f"SAVE_LATE{what}" for what in keep)])

    def _has_known_pivot(self, node: Node) -> bool:
        """Whether a pivot is -1/rho of a row, and rho is known."""
        return node.is_row and node not in self._m.rho and node not in self._touched

    def _pivot(self, node: Node) -> str:
        """Expression of an inverse pivot."""
        if self._has_known_pivot(node):
            return f"(-{self.rho(node)})"
        return kept("i", self._m.place[node])

    def loaded(self) -> list[str]:
        """Loads what the elimination saved."""
        pivots = [
            self._m.place[node]
            for node in self._m.elimination.order
            if not self._has_known_pivot(node)
        ]
        numbers = {"l": range(len(self._l)), "i": pivots}
        lines = [f"LOAD({i}, {name})" for name, of_name in numbers.items() for i in of_name]
        lines += [f"LOAD_AS({i}, u, {i}, u)" for i in range(self.counts["u"])]
        return lines + [
            f"LOAD_AS({i}, e, {self._m.entries[pair(*nodes)]}, k)"
            for i, nodes in enumerate(self._couplings)
            if not self._is_literal(*nodes)
        ]

    @property
    def keeps_factor(self) -> bool:
        """Whether L fits into registers beside the blocks of the reduction while these are prepared."""
        return (len(self._l) + self._m.n_interior) * registers_of(self._dtype) <= _MOST_KEPT

    def _remaining(self, work: LaneEntries) -> list[str]:
        """Stores what the elimination leaves between separators."""
        lines = []
        for i, row in enumerate(self._own):
            for j, col in enumerate(self._own[: i + 1]):
                lines.append(f"OF_LANE(diag[{i}][{j}]) = {work.value(row, col)};")
            for j, col in enumerate(self._next):
                lines.append(f"OF_LANE(above[{i}][{j}]) = {work.value(row, col)};")
        for i, row in enumerate(self._next):
            for j, col in enumerate(self._next[: i + 1]):
                value = work.value(row, col, given=False)
                lines.append(f"OF_LANE(ahead[{i}][{j}]) = {value};")
        return lines

    @property
    def couplings(self) -> set[Pair]:
        """Entries of K between the interior and separators."""
        return {pair(a, b) for a, b in self._couplings}

    def _is_literal(self, a: Node, b: Node) -> bool:
        return pair(a, b) in self._m.literals

    def _coupling(self, node: Node, beyond: Node) -> str:
        if self._is_literal(node, beyond):
            return literal(self._m.literals[pair(node, beyond)], self._dtype)
        return kept("e", self._couplings.index((node, beyond)))

    # --- one iteration ---

    def _solve(self) -> list[str]:
        """Solves for the interior alone, in place of the right-hand side."""
        m, lines = self._m, []
        order, columns = m.elimination.order, m.elimination.columns
        for j, column in zip(order, columns, strict=True):
            lines += [
                f"r{m.place[t]} -= {kept('l', self._l[j, t])} * r{m.place[j]};"
                for t in column
                if (j, t) in self._l
            ]
        for j, column in zip(reversed(order), reversed(columns), strict=True):
            r = f"r{m.place[j]}"
            lines.append(f"{r} *= {self._pivot(j)};")
            lines += [
                f"{r} -= {kept('l', self._l[j, t])} * r{m.place[t]};"
                for t in column
                if (j, t) in self._l
            ]
        return lines

    def _right_hand_side(self) -> list[str]:
        return [f"SCALAR r{i} = MEM(R_ROWS + {i});" for i in range(self._m.n_interior)]

    @property
    def folds(self) -> bool:
        """Whether both solves of an iteration, and all levels of the reduction, share one loop.

        A loop that does not fit into a scheduler's instruction cache runs at half the speed; a short
        one is faster without branches.  A loop over levels leaves no registers for blocks.
        """
        return self.counted_operations() > _LONGEST_LOOP and not self._m.kept_blocks

    def iteration(self) -> list[str]:
        """One ADMM iteration: R and g hold the right-hand sides before and after it."""
        update = [line for node in self._m.elimination.order for line in self._update(node)]
        update += self._update_separators()
        between = self._between()
        if not self.folds:
            first = [*self._right_hand_side(), *self._solve(), *self._outwards()]
            second = [*self._right_hand_side(), *self._inwards(), *self._solve(), *update]
            return [*block_of_lanes(first), *between, *block_of_lanes(second)]
        both = [
            *self._right_hand_side(),
            *("if (half) {", *self._inwards(), "}"),
            *self._solve(),
            *("if (half) {", *update, "} else {", *self._outwards(), "}"),
        ]
        loop = "ROLLED for (int half = 0; half < 2; ++half) {"
        return [loop, *block_of_lanes(both), "if (!half) {", *between, "}", "}"]

    def _between(self) -> list[str]:
        """Solves for the separators."""
        separators = range(self._m.n_separators)
        if not separators:
            return []
        taken = [f"{kept('s', i)} -= IF_BEFORE({kept('before', i)});" for i in separators]
        return [
            *(f"FROM_BEFORE({i}, before, b, 1)" for i in separators),
            *block_of_lanes(taken),
            *reduction(self._m, folds=self.folds),
            *(f"FROM_BEHIND({i}, behind, y, 1)" for i in separators),
        ]

    def _outwards(self) -> list[str]:
        """Right-hand sides of the lane's separators, and what the next lane's ones lose."""
        lines = [
            f"{kept('s', i)} = {kept('g', i)}; {kept('b', i)} = 0;"
            for i in range(self._m.n_separators)
        ]
        for node, beyond in self._couplings:
            product = f"{self._coupling(node, beyond)} * r{self._m.place[node]};"
            if beyond in self._own:
                lines.append(f"{kept('s', self._own.index(beyond))} -= {product}")
            else:
                lines.append(f"{kept('b', self._next.index(beyond))} += {product}")
        return lines

    def _inwards(self) -> list[str]:
        """Subtracts the separators from the right-hand side of the interior."""
        lines = [
            f"const SCALAR m{i} = IF_BEHIND({kept('behind', i)});"
            for i in range(self._m.n_separators)
        ]
        for node, beyond in self._couplings:
            own = beyond in self._own
            at = kept("y", self._own.index(beyond)) if own else f"m{self._next.index(beyond)}"
            lines.append(f"r{self._m.place[node]} -= {self._coupling(node, beyond)} * {at};")
        return lines

    def _update_separators(self) -> list[str]:
        n, lines = self._m.n_interior, []
        for i in range(self._m.n_separators):
            x, y = f"MEM(X_ROWS + {n + i})", kept("y", i)
            lines.append(f"{{ const SCALAR x = NEXT_X({x}, {y}); {x} = x;")
            lines.append(f"{kept('g', i)} = RHS_OF_X(x, MEM(Q_ROWS + {n + i})); }}")
        return lines

    def _update(self, node: Node) -> list[str]:
        """The ADMM update of an interior node."""
        i = self._m.place[node]
        x = f"MEM(X_ROWS + {i})"
        if not node.is_row:
            return [
                f"{{ const SCALAR x = NEXT_X({x}, r{i}); {x} = x;",
                f"MEM(R_ROWS + {i}) = RHS_OF_X(x, MEM(Q_ROWS + {i})); }}",
            ]
        return [
            f"{{ SCALAR v = {x}; {self.bounds(node)}",
            f"const SCALAR s = {self.project(node)};",
            f"v = NEXT_V(v, s, {self.inverse_rho(node)} * r{i});",
            f"{x} = v;",
            f"MEM(R_ROWS + {i}) = RHS_OF_V(v, {self.project(node)}); }}",
        ]

    def bounds(self, node: Node) -> str:
        """Declares ``lo`` and ``hi`` as far as the row has them."""
        m, kind = self._m, self._m.layout.row_slot(node).kind
        stored = f"MEM(Q_ROWS + {m.place[node]})"
        if node in m.upper:
            return f"const SCALAR lo = {stored}, hi = MEM(U_ROWS + {m.upper[node]});"
        return f"const SCALAR {'hi' if kind is RowKind.UPPER else 'lo'} = {stored};"

    def both_bounds(self, node: Node) -> str:
        """Declares ``lo`` and ``hi``, also where the row has none."""
        kind = self._m.layout.row_slot(node).kind
        other = {
            RowKind.EQUALITY: " const SCALAR hi = lo;",
            RowKind.LOWER: " const SCALAR hi = INFINITY;",
            RowKind.UPPER: " const SCALAR lo = -INFINITY;",
        }
        return self.bounds(node) + other.get(kind, "")

    def projected(self, node: Node, *, both_bounds: bool = False) -> str:
        """Declares ``v`` of a row, its bounds, and ``s``."""
        bounds = self.both_bounds(node) if both_bounds else self.bounds(node)
        v = f"const SCALAR v = MEM(X_ROWS + {self._m.place[node]});"
        return f"{v} {bounds}\nconst SCALAR s = {self.project(node)};"

    def penalties(self, node: Node, side: int) -> tuple[str, str] | None:
        """Linear and quadratic coefficient of a soft side as expressions, None if it is hard."""
        soft = self._m.soft
        if (node, side) not in soft:
            return None
        return f"MEM(H_ROWS + {soft[node, side]})", f"MEM(H_ROWS + {soft[node, side + 2]})"

    def project(self, node: Node) -> str:
        """Expression of s, from ``v`` and the bounds."""
        slot = self._m.layout.row_slot(node)
        clip = {
            RowKind.EQUALITY: "lo",
            RowKind.LOWER: "MAX(v, lo)",
            RowKind.UPPER: "MIN(v, hi)",
        }.get(slot.kind, "CLIP(v, lo, hi)")
        if not slot.soft:
            return clip
        # s gives way beyond a soft bound; see `qp.soft`.
        gives = []
        for side, sign, beyond in ((0, "-", f"{clip} - v"), (1, "+", f"v - {clip}")):
            found = self.penalties(node, side)
            if found is not None:
                b, a = found
                gives.append(f" {sign} EXCESS(SCALAR, {a}, {b}, {beyond})")
        return f"({clip}{''.join(gives)})"

    def counted_values(self) -> dict[str, int]:
        """Values of a lane that are in registers during the iteration."""
        m = self._m
        varying = sum(not self._is_literal(a, b) for a, b in self._couplings)
        constant = sum(map(self._has_known_pivot, m.elimination.order))
        return {
            "factor": len(self._l) + m.n_interior - constant,
            "couplings": varying,
            "working": m.n_interior + 2 * m.n_separators,
            "reduction": self.counts["u"],
        }

    def counted_operations(self) -> int:
        """Multiply-adds of one iteration and lane, without the update."""
        m = self._m
        solves = 2 * (2 * len(self._l) + m.n_interior) + 2 * len(self._couplings)
        return solves + m.n_blocks * m.n_separators**2
