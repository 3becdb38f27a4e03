"""Native source that computes residuals and decides whether a QP is solved, as straight lines.

Reads: a `LaneMemory`.  Produces: statements for `engines.onchip.solve_source`.  The values of K are
saved before the reduction overwrites them.  The names are those of `engines.onchip.lane_source`, and

    SAVE(i, name, value), SAVED(i, name)    store and load a value that only this lane uses

In a block of products, x_3 and y_3 are the factors of node 3, p_3 is its entry of P x, and a_3 its
entry of A'y, or of A x where the node is a row.  A QP ends when it reaches a tolerance or has no
solution; all lanes of its warp decide together.  Residuals and certificates are those of
`qp.termination`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from warpmpc.codegen.emit_native import literal
from warpmpc.engines.onchip.lane_source import LaneSource
from warpmpc.engines.onchip.lanes import Node, Pair
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.reduction_source import block_of_lanes
from warpmpc.engines.onchip.solve_template import LOST, PLAIN_LOOP

NodeSource = Callable[[Node], list[str]]


class LaneResiduals:
    """Writes the residuals of one problem."""

    def __init__(self, memory: LaneMemory, dtype: str):
        """Finds the entries that have to be saved.

        Args:
            memory: Rows of the shared memory.
            dtype: "float32" or "float64".
        """
        self._m, self._dtype, self._lane = memory, dtype, LaneSource(memory, dtype)
        self._pairs = sorted({*memory.entries, *memory.literals})
        ahead = map(memory.layout.ahead, memory.layout.separators)
        self._next = {node: i for i, node in enumerate(ahead)}

    @property
    def counts(self) -> dict[str, int]:
        """Saved values: K, what corrects the first iteration, x and y before a check."""
        return {"k": len(self._m.entries), "c": len(self._m.rows), "w": len(self._m.nodes)}

    def save(self, *, couplings: bool) -> list[str]:
        """Saves K: the couplings with separators, which iterations also need, or all other entries."""
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
        """Starts products with what the previous lane contributes."""
        beside = i - self._m.n_interior
        names = ("a",) if self._m.nodes[i].is_row else ("p", "a")
        from_before = {"p": "b", "a": "before"}
        return [
            f"SCALAR {name}_{i} = "
            + (f"IF_BEFORE(KEEP({beside}, {from_before[name]}));" if beside >= 0 else "0;")
            for name in names
        ]

    def _terms(self, entry: Pair) -> list[str]:
        """Adds both products of an entry; for a node of the next lane, that lane adds the second one."""
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

    def report(self, *, unit: bool) -> list[str]:
        """Residuals of the QP and optimality conditions, see `engines.onchip.solve_template.REPORT`.

        Args:
            unit: Whether the roots of the diagonal of P are added up, for the unit of the cost.
        """
        return [*self.products(self.solution, self._reported), *(self._roots() if unit else [])]

    def _roots(self) -> list[str]:
        return block_of_lanes(
            self._on_diagonal(
                lambda row: f"OF_LANE(roots_of) += ROOT(MAX(SAVED({row}, k), (SCALAR)0));"
            )
        )

    def _on_diagonal(self, use: Callable[[int], str]) -> list[str]:
        """A statement per diagonal entry of P, given by its row within W.

        Variables that a lane does not have are left out: there is a one in K.
        """
        lines = []
        for word, diagonals in enumerate(self._m.diagonals):
            lines.append(f"const int lacking_{word} = LACKS({word});")
            lines += [
                f"if (!(lacking_{word} & {1 << bit}u)) {use(row)}"
                for bit, row in enumerate(diagonals)
            ]
        return lines

    def damp(self, name: str) -> list[str]:
        """Adds a scalar to the diagonal of P."""
        return block_of_lanes(self._on_diagonal(lambda row: f"MEM(W_ROWS + {row}) += {name};"))

    def norm_of_P(self, name: str) -> list[str]:
        """Puts the largest entry of P of each lane into a vector of lanes."""

        def larger(entry: str) -> str:
            return f"OF_LANE({name}) = MAX(OF_LANE({name}), LIBM(fabs)({entry}));"

        lines = [
            larger(found)
            for a, b in self._m.entries
            if not (a == b or a.is_row or b.is_row) and (found := self._lane.entry(a, b))
        ]
        entries = {row: entry for entry, row in self._m.entries.items()}
        lines += self._on_diagonal(lambda row: larger(str(self._lane.entry(*entries[row]))))
        return block_of_lanes(lines)

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
        """Adds the change of a soft row's penalty that the QP predicts.

        The penalties are recovered from the coefficients of the proximal map, see `qp.soft`.
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


class LaneChecks:
    """Writes the checks of one problem."""

    def __init__(self, memory: LaneMemory, dtype: str):
        """Prepares the products of residuals and certificates.

        Args:
            memory: Rows of the shared memory.
            dtype: "float32" or "float64".
        """
        self._m, self._lane = memory, LaneSource(memory, dtype)
        self._residuals = LaneResiduals(memory, dtype)

    def finite(self) -> list[str]:
        """Adds a value that is not zero if P, q or A contain values that are not finite."""
        rows = [f"W_ROWS + {row}" for row in range(self._m.dump)]
        rows += [f"Q_ROWS + {i}" for i, node in enumerate(self._m.nodes) if not node.is_row]
        return [f"OF_LANE(odd_of) += MEM({row}) - MEM({row});" for row in rows]

    def remember(self) -> list[str]:
        """Saves x and y before an iteration; in the first one, s is not the projection of v."""
        lines = []
        for node, i in self._m.place.items():
            if not node.is_row:
                lines.append(f"SAVE({i}, w, MEM(X_ROWS + {i}))")
                continue
            lines += [
                f"{{ {self._lane.projected(node)}",
                f"const SCALAR missing = first ? SAVED({self._m.row_number[node]}, c) : 0;",
                f"SAVE({i}, w, MULTIPLIER_BY_RHO(v, s + LACKING_S(missing), {self._lane.rho(node)})) }}",
            ]
        return lines

    def check(self) -> list[str]:
        """Computes residuals, then certificates from the change in the last iteration."""
        now = self._residuals.products(self._now, self._residual)
        return [*now, *self._residuals.products(self._change, self._certificate)]

    def _now(self, node: Node) -> list[str]:
        i = self._m.place[node]
        if not node.is_row:
            return self._residuals.solution(node)
        return [f"SCALAR y_{i};", "{", *self._row(node), f"y_{i} = y; }}"]

    def _row(self, node: Node) -> list[str]:
        """Declares ``s`` and ``y`` of a row after an iteration, and its bounds."""
        return [
            self._lane.projected(node, both_bounds=True),
            f"const SCALAR y = MULTIPLIER_BY_RHO(v, s, {self._lane.rho(node)});",
        ]

    def _residual(self, node: Node) -> list[str]:
        i = self._m.place[node]
        if not node.is_row:
            return [
                f"const SCALAR q = MEM(Q_ROWS + {i}); OF_LANE(odd_of) += x_{i} - x_{i};",
                f"GROW(DUAL, SIZE(p_{i} + q + a_{i}))",
                f"GROW(DUAL_SCALE, MAX(MAX(SIZE(p_{i}), SIZE(a_{i})), SIZE(q)))",
                f"OF_LANE(curved_of) += p_{i} * x_{i}; OF_LANE(linear_of) += q * x_{i};",
            ]
        return [
            f"{self._lane.projected(node)} OF_LANE(odd_of) += y_{i} - y_{i};",
            f"GROW(PRIMAL, SIZE(a_{i} - s)) GROW(PRIMAL_SCALE, MAX(SIZE(a_{i}), SIZE(s)))",
            f"GROW(WEIGHT, SIZE(y_{i})) OF_LANE(held_of) += y_{i} * s;",
        ]

    def _change(self, node: Node) -> list[str]:
        """Changes of x and y; a missing or soft bound limits the sign that a change of y may have."""
        i = self._m.place[node]
        if not node.is_row:
            return [f"const SCALAR x_{i} = MEM(X_ROWS + {i}) - SAVED({i}, w);"]
        penalties = [self._lane.penalties(node, side) for side in (0, 1)]
        gives = [f" || {found[0]} < HARD" if found else "" for found in penalties]
        return [
            f"SCALAR y_{i};",
            *("{", *self._row(node), f"y_{i} = y - SAVED({i}, w);"),
            f"if (hi > INFINITE{gives[1]}) y_{i} = MIN(y_{i}, (SCALAR)0);",
            f"if (lo < -INFINITE{gives[0]}) y_{i} = MAX(y_{i}, (SCALAR)0); }}",
        ]

    def _certificate(self, node: Node) -> list[str]:
        i = self._m.place[node]
        if not node.is_row:
            return [
                f"OF_LANE(descent_of) += MEM(Q_ROWS + {i}) * x_{i};",
                f"GROW(X_CHANGE, SIZE(x_{i})) GROW(FLAT, SIZE(p_{i}))",
                f"GROW(COMBINATION, SIZE(a_{i}))",
            ]
        return [
            self._lane.both_bounds(node),
            f"const SCALAR share = y_{i} > 0 ? hi * y_{i} : y_{i} < 0 ? lo * y_{i} : 0;",
            "OF_LANE(support_of) += share; OF_LANE(support_size_of) += SIZE(share);",
            f"GROW(Y_CHANGE, SIZE(y_{i}))",
            # How far the change leaves the recession cone of the bounds.
            "bool stops_fall = lo > -INFINITE, stops_rise = hi < INFINITE;",
            *self._pays(node, 0, "stops_fall", f"-a_{i}"),
            *self._pays(node, 1, "stops_rise", f"a_{i}"),
            f"if (stops_rise) GROW(RISE, a_{i}) if (stops_fall) GROW(RISE, -a_{i})",
        ]

    def _pays(self, node: Node, side: int, stops: str, way: str) -> list[str]:
        """Handles a linear penalty: it stops no direction, but adds its slope to the cost along it."""
        penalties = self._lane.penalties(node, side)
        if penalties is None:
            return []
        b, a = penalties
        return [
            f"if ({stops} && {b} < HARD && {a} >= 1) {{",
            f"OF_LANE(descent_of) += {b} * {self._lane.rho(node)} * MAX({way}, (SCALAR)0);",
            f"{stops} = false; }}",
        ]


# QPs whose P, q or A are not finite are not iterated on.
FINITE = r"""
    {{
        Lanes odd_of = (Lanes)0;
        EACH_LANE {{
            {finite}
        }}
        if (!is_zero(odd_of)) status = NON_FINITE;
    }}"""

# The iterations up to a check keep their values in registers.  Certificates compare the iterate of a
# check with that of an earlier check, or with the start.
CHECKED_LOOP = r"""SCALAR checked_primal = 0, checked_dual = 0, checked_weight = 0;
    if (status == RUNNING) {{
        int t = 0;
        ROLLED while (status == RUNNING && t < n_admm) {{
            const int next = (t / CHECK_EVERY + 1) * CHECK_EVERY;
            const int due = next < n_admm ? next : n_admm;
            const bool first = t == 0;
            const int end = first ? 1 : due;
            if (first || (t % CHECK_EVERY == 0 && IS_REFERENCE(t / CHECK_EVERY))) EACH_LANE {{
                {remember}
            }}
            {loaded}
            ROLLED for (; t < end; ++t) {{
                {iterate}
            }}
            FORGET
            if (first) EACH_LANE {{
                {correct}
            }}
            if (t == due) {{
                {check}
            }}
        }}
        spent += t;
    }}"""

CHECK = r"""
                enum {{ PRIMAL, PRIMAL_SCALE, DUAL, DUAL_SCALE, FLAT, COMBINATION, RISE,
                       X_CHANGE, Y_CHANGE, WEIGHT, MAXIMA }};
                Lanes of[MAXIMA], descent_of = (Lanes)0, support_of = (Lanes)0;
                Lanes support_size_of = (Lanes)0;
                Lanes odd_of = (Lanes)0;
                Lanes curved_of = (Lanes)0, linear_of = (Lanes)0, held_of = (Lanes)0;
                UNROLL for (int i = 0; i < MAXIMA; ++i) of[i] = (Lanes)0;
                #define GROW(i, value) \
                    {{ const SCALAR size = value; OF_LANE(of[i]) = MAX(OF_LANE(of[i]), size); }}
                #define SIZE(value) LIBM(fabs)(value)
                {judged}
                checked_primal = largest(of[PRIMAL]);
                checked_dual = largest(of[DUAL]);
                checked_weight = largest(of[WEIGHT]);
                const SCALAR x_change = largest(of[X_CHANGE]), y_change = largest(of[Y_CHANGE]);
                const SCALAR curved = summed(curved_of), linear = summed(linear_of);
                const SCALAR held = summed(held_of), limit = EPS_DUAL_INF * x_change;
                if (IS_DUAL_INFEASIBLE(x_change, summed(descent_of), largest(of[FLAT]),
                                       largest(of[RISE]), EPS_DUAL_INF, limit))
                    status = DUAL_INFEASIBLE;
                if (IS_PRIMAL_INFEASIBLE(y_change, summed(support_of), summed(support_size_of),
                                         largest(of[COMBINATION]), EPS_PRIM_INF))
                    status = PRIMAL_INFEASIBLE;
                if (IS_SOLVED(checked_primal, largest(of[PRIMAL_SCALE]), checked_dual,
                              largest(of[DUAL_SCALE]), EPS_ABS, EPS_REL)
                    && (!CHECK_DUALGAP || CLOSES_GAP(curved, linear, held, EPS_ABS, EPS_REL)))
                    status = SOLVED;
                if (!is_zero(odd_of)) status = LOST;"""


# Reports describe the last check, because multipliers of a QP without solution are cleared after it.
CHECKED_REPORT = r"""
primal = checked_primal; dual = checked_dual; weight = checked_weight;
"""


@dataclass(frozen=True)
class OnchipChecks:
    """When a QP ends; see `ADMMSettings`.

    Attributes:
        check_every: Iterations between checks, at least one.
        eps_abs: Absolute tolerance of the residuals.
        eps_rel: Relative tolerance of the residuals.
        eps_prim_inf: Tolerance of certificates of primal infeasibility.
        eps_dual_inf: Tolerance of certificates of dual infeasibility.
        check_dualgap: Whether the duality gap has to be within tolerance.
    """

    check_every: int
    eps_abs: float
    eps_rel: float
    eps_prim_inf: float
    eps_dual_inf: float
    check_dualgap: bool

    def defines(self, dtype: str) -> list[str]:
        """Constants of `CHECK`.  LOST is no status of a QP to others; no linear coefficient of a soft side reaches HARD."""
        flags = {"CHECK_EVERY": self.check_every, "CHECK_DUALGAP": int(self.check_dualgap)}
        values = {name.upper(): literal(value, dtype) for name, value in asdict(self).items()}
        values |= {name: str(flag) for name, flag in flags.items()} | {"HARD": "(SCALAR)1e37"}
        values["LOST"] = str(LOST)
        return [f"#define {name} {value}" for name, value in values.items()]


def qp_sources(
    loop: dict[str, str], text: LaneChecks, checks: OnchipChecks | None, *, doubts: bool
) -> dict[str, str]:
    """Parts of `engines.onchip.solve_template.SOLVE`: the ADMM iterations of a QP and their report.

    Args:
        loop: Parts of the loop.
        text: Writer of the checks.
        checks: When a QP ends; None: after a fixed number of iterations.
        doubts: Whether QPs with values that are not finite are skipped; with checks they always are.
    """
    finite = FINITE.format(finite="\n".join(text.finite())) if checks or doubts else ""
    if checks is None:
        return {"admm": PLAIN_LOOP.format(**loop), "finite": finite, "checked": ""}
    check = CHECK.format(judged="\n".join(text.check()))
    admm = CHECKED_LOOP.format(remember="\n".join(text.remember()), check=check, **loop)
    return {"admm": admm, "finite": finite, "checked": CHECKED_REPORT}
