"""Native source of the work of the interior-point method on rows and sides.

Reads: which sides there are.  Produces: bodies for `codegen.kernel_source`, the same ones for all
problems with such sides: sizes are read from the shapes of arrays.

One warp works on a tile, one lane per instance, and walks over the rows.  Rows with slacks come in
groups: soft ones first, then hard ones; each group has a lower and an upper side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from warpmpc.codegen.emit_native import literal
from warpmpc.codegen.native.interior_point import HELPERS, LARGE, SideSource


@dataclass(frozen=True)
class Constants:
    """Numbers of the method that kernels need.

    Attributes:
        delta_c: Regularisation of equality rows.
        free: Regularisation of rows without bounds.
        kappa_sigma: Multipliers stay within this factor of the central path.
    """

    delta_c: float
    free: float
    kappa_sigma: float


@dataclass(frozen=True)
class RowsSource:
    """Source for problems with some groups of rows.

    Attributes:
        soft: Whether there are soft rows.
        hard: Whether there are hard rows with slacks.
        dtype: "float32" or "float64".
        constants: Numbers of the method.
    """

    soft: bool
    hard: bool
    dtype: str
    constants: Constants

    @property
    def groups(self) -> list[tuple[SideSource, SideSource]]:
        """Lower and upper side of each group of rows."""
        elastic = [kind for kind, there in ((True, self.soft), (False, self.hard)) if there]
        return [
            (SideSource(2 * at, False, kind), SideSource(2 * at + 1, True, kind))
            for at, kind in enumerate(elastic)
        ]

    @property
    def sides(self) -> list[SideSource]:
        """All sides."""
        return [side for group in self.groups for side in group]

    @property
    def side_arrays(self) -> list[str]:
        """Names of the arrays of all sides."""
        return [name for side in self.sides for name in side.arrays]

    def body(self, name: str, arrays: Sequence[str]) -> str:
        """Source of one kernel.

        Args:
            name: One of `BODIES`.
            arrays: Names of the arrays that it reads.
        """
        defines = {
            "LARGE": f"{literal(2.0 ** LARGE[self.dtype], self.dtype)}",
            "LOG_LARGE": f"({LARGE[self.dtype]} * 0.69314718055994530942)",
            "DELTA_C": literal(self.constants.delta_c, self.dtype),
            "FREE": literal(self.constants.free, self.dtype),
            "KAPPA_SIGMA": literal(self.constants.kappa_sigma, self.dtype),
        }
        lines = [f"#define {key} {value}" for key, value in defines.items()]
        lines += ["if (tile >= report_out.shape[0]) return;", HELPERS, "BEGIN_TILE"]
        lines += [f"const SCALAR* __restrict__ {a} = BASE({a}_in);" for a in arrays]
        lines += ["SCALAR* __restrict__ report = BASE(report_out);", *BODIES[name](self)]
        return "\n".join([*lines, "END_TILE", ""])

    def over_slacks(self, *each: Callable[[SideSource], str | list[str]] | str) -> list[str]:
        """Source that visits all rows with slacks, group by group.

        Args:
            *each: Statements for each row, or what makes those for each of its sides.
        """
        lines = ["int first_row = 0;"] if self.groups else []
        for group in self.groups:
            lines += [
                f"for (int side_row = 0; side_row < bound{group[0].number}_in.shape[1]; "
                "++side_row) {",
                "const int row = first_row + side_row;",
            ]
            for part in each:
                if isinstance(part, str):
                    lines.append(part)
                    continue
                for side in group:
                    made = part(side)
                    lines += [made] if isinstance(made, str) else made
            lines += ["}", f"first_row += bound{group[0].number}_in.shape[1];"]
        return lines


_LOADED = (
    "const Pack s = GET(slacks, row);",
    SideSource.loaded,
)
# The violation of a row with a slack, and of an equality.
_OF_SLACK = "const Pack violation = OR_NONE(GET(some, row), GET(rows, row) - s);"
_OF_EQUALITY = """
for (int i = 0; i < target_in.shape[1]; ++i) {{
    const Pack violation = GET(rows, slacks_in.shape[1] + i) - GET(target, i);
    {}
}}"""
_ELIMINATED = (
    SideSource.newton,
    "Pack pull = GET(duals, row), stiff = 0;",
    SideSource.eliminated,
    "const Pack give = OR_NONE(stiff, FEWER(one / OR_ONE(stiff, stiff), (Pack)(SCALAR)FREE));",
    "pull = OR_NONE(stiff, pull);",
)
_FEWER = "#define FEWER(a, b) ((b) < (a) ? (b) : (a))"


def _errors(rows: RowsSource) -> list[str]:
    """Largest errors of the optimality conditions."""
    worst = "worst = KEEP_MAX(worst, ABS(violation));"
    return [
        "Pack gradient = 1, stationarity = 0, worst = 0, slack = 0, largest = 0, size = 0;",
        "Pack smallest = (SCALAR)INFINITY;",
        "for (int i = 0; i < q_in.shape[1]; ++i) {",
        "const Pack one_q = GET(q, i), one_slope = GET(slope_of_L, i);",
        "gradient = KEEP_MAX(gradient, ABS(one_q));",
        "stationarity = KEEP_MAX(stationarity, ABS(one_slope)); }",
        "for (int i = 0; i < duals_in.shape[1]; ++i) {",
        "const Pack one_y = GET(duals, i); size = KEEP_MAX(size, ABS(one_y)); }",
        *rows.over_slacks(
            *_LOADED,
            "const Pack y = GET(duals, row), g = GET(rows, row);",
            SideSource.errors,
            _OF_SLACK,
            worst,
        ),
        _OF_EQUALITY.format(worst),
        *_reported("stationarity / gradient", "worst", "slack / gradient", "largest", "smallest"),
        "AT(report, 5) = gradient; AT(report, 6) = size;",
    ]


def _eliminated(rows: RowsSource) -> list[str]:
    """Diagonal and right-hand side of the rows, violation and barrier cost."""
    measured = "theta += ABS(violation); squares += violation * violation;"
    of_equality = [
        measured,
        "AT(G, slacks_in.shape[1] + i) = (Pack)(SCALAR)DELTA_C + weight;",
        "AT(low, slacks_in.shape[1] + i) = weight > none ? none : -violation;",
    ]
    return [
        _FEWER,
        "SCALAR* __restrict__ G = BASE(G_out);",
        "SCALAR* __restrict__ low = BASE(low_out);",
        "const Pack mu = GET(barrier, 0), weight = GET(restoring, 0);",
        "Pack theta = 0, squares = 0, price = 0; LOGS",
        *rows.over_slacks(
            *_LOADED,
            *_ELIMINATED,
            _OF_SLACK,
            measured,
            "const Pack regular = GET(fixed, row) > none ? (Pack)(SCALAR)DELTA_C"
            " : (Pack)(SCALAR)FREE;",
            "AT(G, row) = (stiff > none ? give : regular) + weight;",
            "AT(low, row) = pull * give - (weight > none ? none : violation);",
            lambda side: side.cost(f"room_{side.number}", f"e_{side.number}"),
        ),
        _OF_EQUALITY.format("\n    ".join(of_equality)),
        "const Pack cost_here = weight > none ? (SCALAR)0.5 * squares : (Pack)GET(cost, 0);",
        *_reported("OR_NONE(one - weight, theta)", "cost_here + price - mu * SUM_OF_LOGS", "theta"),
    ]


def _step(rows: RowsSource) -> list[str]:
    """Steps of slacks, longest steps, directional derivative of the barrier cost."""
    return [
        _FEWER,
        "SCALAR* __restrict__ steps = BASE(ds_out);",
        "const Pack mu = GET(barrier, 0), tau = GET(barrier, 1), weight = GET(restoring, 0);",
        "const int n_z = q_in.shape[1];",
        "Pack longest = 1, longest_dual = 1, slope = 0, poison = 0;",
        "for (int i = 0; i < n_z; ++i) slope += GET(q, i) * GET(x, i);",
        "for (int i = 0; i < duals_in.shape[1]; ++i) {",
        "const Pack dy = GET(x, n_z + i); poison += dy - dy; }",
        *rows.over_slacks(
            *_LOADED,
            *_ELIMINATED,
            "const Pack ds = (GET(x, n_z + row) + pull) * give;",
            "AT(steps, row) = ds;",
            SideSource.step,
            SideSource.limits,
            SideSource.slope,
            "slope -= OR_NONE(weight, GET(duals, row) * ds);",
        ),
        *_reported("longest", "longest_dual", "slope", "poison"),
    ]


def _trial(rows: RowsSource) -> list[str]:
    """Variables and slacks after a step, and the barrier there."""
    return [
        "SCALAR* __restrict__ z_new = BASE(z_out);",
        "SCALAR* __restrict__ s_new = BASE(s_out);",
        "const Pack mu = GET(barrier, 0), step = GET(alpha, 0);",
        "Pack price = 0, poison = 0; LOGS",
        "for (int i = 0; i < z_in.shape[1]; ++i) {",
        "const Pack there = GET(z, i) + step * GET(x, i);",
        "AT(z_new, i) = there; poison += there - there; }",
        *rows.over_slacks(
            *_LOADED,
            SideSource.newton,
            "const Pack ds = GET(moves, row), s_there = s + step * ds;",
            "AT(s_new, row) = s_there;",
            SideSource.step,
            lambda side: side.cost(*_there(side)),
        ),
        *_reported("price - mu * SUM_OF_LOGS", "poison"),
    ]


def _there(side: SideSource, mark: str = "") -> tuple[str, str]:
    """Room and elastic variable after a step."""
    i = side.number
    e = f"(e_{i} + step * {mark}de_{i})"
    return side.room("s_there", e), e


def _measured(rows: RowsSource) -> list[str]:
    """Violation and barrier cost of a trial point."""
    measured = "theta += ABS(violation); squares += violation * violation;"
    measured += " poison += violation - violation;"
    return [
        "const Pack weight = GET(restoring, 0), cost_of_z = GET(cost, 0);",
        "Pack theta = 0, squares = 0, poison = GET(barrier_cost, 1) + (cost_of_z - cost_of_z);",
        "for (int row = 0; row < slacks_in.shape[1]; ++row) {",
        "const Pack s = GET(slacks, row), g = GET(rows, row); poison += g - g;",
        _OF_SLACK,
        measured,
        "}",
        _OF_EQUALITY.format(measured),
        "const Pack cost_there = weight > none ? (SCALAR)0.5 * squares : cost_of_z;",
        *_reported(
            "OR_NONE(one - weight, theta)", "cost_there + GET(barrier_cost, 0)", "theta", "poison"
        ),
    ]


def _taken(rows: RowsSource) -> list[str]:
    """The next iterate of the instances that move."""
    outputs = [f"SCALAR* __restrict__ {n}_new = BASE({n}_out);" for n in ("z", "s", "y")]
    for side in rows.sides:
        names = ("z", "e", "w") if side.elastic else ("z",)
        outputs += [
            f"SCALAR* __restrict__ {n}{side.number}_new = BASE({n}{side.number}_out);"
            for n in names
        ]
    return [
        *outputs,
        "const Pack mu = GET(barrier, 0), step = GET(steps, 0), dual = GET(steps, 1);",
        "const Pack goes = GET(steps, 2);",
        "const int n_z = z_in.shape[1], n_slack = slacks_in.shape[1];",
        "for (int i = 0; i < n_z; ++i) {",
        "const Pack old = GET(z, i);",
        "AT(z_new, i) = goes > none ? old + step * GET(x_taken, i) : old; }",
        *rows.over_slacks(
            *_LOADED,
            SideSource.newton,
            "const Pack ds = GET(moves, row), ds_taken = GET(moves_taken, row);",
            "const Pack s_there = s + step * ds_taken;",
            "AT(s_new, row) = goes > none ? s_there : s;",
            "Pack held = 0, bounds = 0;",
            SideSource.step,
            lambda side: side.step("ds_taken", "taken_"),
            _side_taken,
            "const Pack y_moved = GET(duals, row) + step * GET(x, n_z + row);",
            "const Pack own = OR_NONE(GET(fixed, row), y_moved);",
            "const Pack y_there = bounds > none ? held : own;",
            "AT(y_new, row) = goes > none ? y_there : (Pack)GET(duals_before, row);",
        ),
        "for (int i = n_slack; i < duals_in.shape[1]; ++i) {",
        "const Pack there = GET(duals, i) + step * GET(x, n_z + i);",
        "AT(y_new, i) = goes > none ? there : (Pack)GET(duals_before, i); }",
        *_reported("goes"),
    ]


def _side_taken(side: SideSource) -> list[str]:
    """Multiplier and elastic variable of a side after the step."""
    i, sign = side.number, "+" if side.upper else "-"
    room, e = _there(side, "taken_")
    lines = [
        f"const Pack far_{i} = {room};",
        f"const Pack z_there_{i} = OR_NONE(has_{i}, NEAR_PATH(z_{i} + dual * dz_{i}, far_{i}));",
        f"AT(z{i}_new, side_row) = goes > none ? z_there_{i} : z_{i};",
        f"held {sign}= z_there_{i}; bounds += has_{i};",
    ]
    if side.elastic:
        lines += [
            f"const Pack e_there_{i} = {e};",
            f"const Pack safe_{i} = OR_ONE(soft_{i}, e_there_{i});",
            f"const Pack w_there_{i} = OR_ONE(soft_{i}, "
            f"NEAR_PATH(w_{i} + dual * dw_{i}, safe_{i}));",
            f"AT(e{i}_new, side_row) = goes > none ? e_there_{i} : e_{i};",
            f"AT(w{i}_new, side_row) = goes > none ? w_there_{i} : w_{i};",
        ]
    return lines


def _reported(*values: str) -> list[str]:
    return [f"AT(report, {i}) = {value};" for i, value in enumerate(values)]


BODIES: dict[str, Callable[[RowsSource], list[str]]] = {
    "errors": _errors,
    "eliminated": _eliminated,
    "step": _step,
    "trial": _trial,
    "measured": _measured,
    "taken": _taken,
}
