"""Straight-line native text of a check whether a QP is solved, or has no solution.

Reads: a `LaneMemory`.  Produces: statements for `engines.onchip.check_source`, which defines the
names of the maxima.  Residuals and certificates are those of `qp.termination`.

Native text of a QP that ends at a tolerance: the lanes of its warp vote; see `onchip_native`.

Residuals and certificates are those of `qp.termination`, see `engines.onchip.check_source`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from warpmpc.codegen.emit_native import literal
from warpmpc.engines.onchip.lane_source import LaneSource
from warpmpc.engines.onchip.lanes import Node
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.residual_source import LaneResiduals
from warpmpc.engines.onchip.solve_template import PLAIN_LOOP


class LaneChecks:
    """The text of one problem."""

    def __init__(self, memory: LaneMemory, dtype: str):
        """Prepares the products.

        Args:
            memory: Where everything lies.
            dtype: "float32" or "float64".
        """
        self._m, self._lane = memory, LaneSource(memory, dtype)
        self._residuals = LaneResiduals(memory, dtype)

    def finite(self) -> list[str]:
        """Adds something that is not zero if P, q or A have numbers that are not finite."""
        rows = [f"W_ROWS + {row}" for row in range(self._m.dump)]
        rows += [f"Q_ROWS + {i}" for i, node in enumerate(self._m.nodes) if not node.is_row]
        return [f"OF_LANE(odd_of) += MEM({row}) - MEM({row});" for row in rows]

    def remember(self) -> list[str]:
        """Saves x and y before an iteration; s of the first one is no projection of v."""
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
        """Residuals, then certificates from what the last iteration changed."""
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
            ]
        return [
            f"{self._lane.projected(node)} OF_LANE(odd_of) += y_{i} - y_{i};",
            f"GROW(PRIMAL, SIZE(a_{i} - s)) GROW(PRIMAL_SCALE, MAX(SIZE(a_{i}), SIZE(s)))",
            f"GROW(WEIGHT, SIZE(y_{i}))",
        ]

    def _change(self, node: Node) -> list[str]:
        """Changes of y that a missing bound, or one that gives way, does not allow are none."""
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
            f"if (y_{i} > 0) OF_LANE(support_of) += hi * y_{i};",
            f"if (y_{i} < 0) OF_LANE(support_of) += lo * y_{i};",
            f"GROW(Y_CHANGE, SIZE(y_{i}))",
            # How far the change leaves what the bounds allow in every multiple.
            "bool stops_fall = lo > -INFINITE, stops_rise = hi < INFINITE;",
            *self._pays(node, 0, "stops_fall", f"-a_{i}"),
            *self._pays(node, 1, "stops_rise", f"a_{i}"),
            f"if (stops_rise) GROW(RISE, a_{i}) if (stops_fall) GROW(RISE, -a_{i})",
        ]

    def _pays(self, node: Node, side: int, stops: str, way: str) -> list[str]:
        """A linear penalty alone stops no direction, but every step along it costs its slope."""
        penalties = self._lane.penalties(node, side)
        if penalties is None:
            return []
        b, a = penalties
        return [
            f"if ({stops} && {b} < HARD && {a} >= 1) {{",
            f"OF_LANE(descent_of) += {b} * {self._lane.rho(node)} * MAX({way}, (SCALAR)0);",
            f"{stops} = false; }}",
        ]


# P, q or A with numbers that are not finite: nobody iterates on them.
FINITE = r"""
    {{
        Lanes odd_of = (Lanes)0;
        EACH_LANE {{
            {finite}
        }}
        if (!is_zero(odd_of)) status = NON_FINITE;
    }}"""

# The iterations up to a check keep their numbers in registers and leave before the last one of
# them: certificates compare what is before it and after it.
CHECKED_LOOP = r"""SCALAR checked_primal = 0, checked_dual = 0, checked_weight = 0;
    if (status == RUNNING) {{
        int t = 0;
        ROLLED while (status == RUNNING && t < n_admm) {{
            const int next = (t / CHECK_EVERY + 1) * CHECK_EVERY;
            const int due = next < n_admm ? next : n_admm;
            const bool first = t == 0, judged = t + 1 == due;
            const int end = first || judged ? t + 1 : due - 1;
            if (judged) EACH_LANE {{
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
            if (judged) {{
                {check}
            }}
        }}
        spent += t;
    }}"""

CHECK = r"""
                enum {{ PRIMAL, PRIMAL_SCALE, DUAL, DUAL_SCALE, FLAT, COMBINATION, RISE,
                       X_CHANGE, Y_CHANGE, WEIGHT, MAXIMA }};
                Lanes of[MAXIMA], descent_of = (Lanes)0, support_of = (Lanes)0;
                Lanes odd_of = (Lanes)0;
                UNROLL for (int i = 0; i < MAXIMA; ++i) of[i] = (Lanes)0;
                #define GROW(i, value) \
                    {{ const SCALAR size = value; OF_LANE(of[i]) = MAX(OF_LANE(of[i]), size); }}
                #define SIZE(value) LIBM(fabs)(value)
                {judged}
                checked_primal = largest(of[PRIMAL]);
                checked_dual = largest(of[DUAL]);
                checked_weight = largest(of[WEIGHT]);
                const SCALAR x_change = largest(of[X_CHANGE]), y_change = largest(of[Y_CHANGE]);
                const SCALAR limit = EPS_DUAL_INF * x_change;
                if (IS_DUAL_INFEASIBLE(x_change, summed(descent_of), largest(of[FLAT]),
                                       largest(of[RISE]), EPS_DUAL_INF, limit))
                    status = DUAL_INFEASIBLE;
                if (IS_PRIMAL_INFEASIBLE(y_change, summed(support_of), largest(of[COMBINATION]),
                                         EPS_PRIM_INF))
                    status = PRIMAL_INFEASIBLE;
                if (IS_SOLVED(checked_primal, largest(of[PRIMAL_SCALE]), checked_dual,
                              largest(of[DUAL_SCALE]), EPS_ABS, EPS_REL))
                    status = SOLVED;
                if (!is_zero(odd_of)) status = NON_FINITE;"""


# A report is of the last check: multipliers of a QP without solution are forgotten after it.
CHECKED_REPORT = r"""
primal = checked_primal; dual = checked_dual; weight = checked_weight;
"""


@dataclass(frozen=True)
class OnchipChecks:
    """When a QP ends; see `ADMMSettings`.

    Attributes:
        check_every: Iterations between checks, above zero.
        eps_abs: Tolerance of the residuals.
        eps_rel: Likewise.
        eps_prim_inf: Tolerance of certificates.
        eps_dual_inf: Likewise.
    """

    check_every: int
    eps_abs: float
    eps_rel: float
    eps_prim_inf: float
    eps_dual_inf: float

    def defines(self, dtype: str) -> list[str]:
        """The numbers of `CHECK`; HARD is what no linear coefficient of a soft side reaches."""
        values = {name.upper(): literal(value, dtype) for name, value in asdict(self).items()}
        values |= {"CHECK_EVERY": str(self.check_every), "HARD": "(SCALAR)1e37"}
        return [f"#define {name} {value}" for name, value in values.items()]


def qp_sources(
    loop: dict[str, str], text: LaneChecks, checks: OnchipChecks | None, *, doubts: bool
) -> dict[str, str]:
    """Parts of `onchip_native.SOLVE`: the ADMM iterations of a QP, and what is said of them.

    Args:
        loop: Parts of the loop.
        text: Of checks.
        checks: When a QP ends; None: after a fixed number of iterations.
        doubts: Whether QPs that are not finite are not even tried; with checks they never are.
    """
    finite = FINITE.format(finite="\n".join(text.finite())) if checks or doubts else ""
    if checks is None:
        return {"admm": PLAIN_LOOP.format(**loop), "finite": finite, "checked": ""}
    check = CHECK.format(judged="\n".join(text.check()))
    admm = CHECKED_LOOP.format(remember="\n".join(text.remember()), check=check, **loop)
    return {"admm": admm, "finite": finite, "checked": CHECKED_REPORT}
