"""Straight-line native text of a check whether a QP is solved, or has no solution.

Reads: a `LaneMemory`.  Produces: statements for `engines.onchip.check_template`, which defines the
names of the maxima.  Residuals and certificates are those of `qp.termination`.
"""

from __future__ import annotations

from warpmpc.engines.onchip.lane_source import LaneSource
from warpmpc.engines.onchip.lanes import Node
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.residual_source import LaneResiduals


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
                f"SAVE({i}, w, (v - (s + missing * (1 / OMEGA))) * {self._lane.rho(node)}) }}",
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
            f"const SCALAR y = (v - s) * {self._lane.rho(node)};",
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
