"""Formulas of the interior-point method for one row and its sides: their only native home.

The readable form of the same formulas is JAX: `mpc.interior_point.sides`, `errors`, `newton` and
`search`; tests/codegen/test_interior_point_formulas.py runs both side by side.

A side is one bound of a row with a slack s.  Sides are numbered; the source of side i defines, from
the arrays ``z<i>``, ``has<i>``, ``bound<i>`` and, where it may be soft, ``e<i>``, ``w<i>``,
``linear<i>``, ``quadratic<i>`` and ``soft<i>``:

    room_i                  what the barrier is of; 1 where there is no bound
    r_i, S_i                the step of its multiplier is r - S d(gap)
    residual_i              stationarity of its elastic variable
    pull_i, give_i          the step of its elastic variable is pull + give dz

Maxima and minima keep a NaN, so that no error hides behind one.
"""

from __future__ import annotations

from dataclasses import dataclass

HELPERS = r"""
const Pack none = 0, one = 1;
#define KEEP_MAX(a, b) ((((b) > (a)) | ((b) != (b))) ? (b) : (a))
#define KEEP_MIN(a, b) ((((b) < (a)) | ((b) != (b))) ? (b) : (a))
#define OR_NONE(mask, a) ((mask) > none ? (Pack)(a) : none)
#define OR_ONE(mask, a) ((mask) > none ? (Pack)(a) : one)
// Largest step after which a share 1 - tau of a positive variable is left.
#define LIMIT(v, dv) ((dv) < none ? (Pack)(-tau * (v) / ((dv) < none ? (Pack)(dv) : -one)) : one)
// Multipliers not too far from the central path.
#define NEAR_PATH(multiplier, room)                                                     \
    KEEP_MIN(KAPPA_SIGMA * (mu / (room)), KEEP_MAX(mu / (room) / KAPPA_SIGMA, multiplier))
// The sum of many logarithms is that of a product, whose powers of two are counted apart.  A factor
// that is not positive leaves NaN.
#define LOGS Pack product = 1, powers = 0;
#define ADD_LOG(room)                                                                   \
    product *= (room) > none ? (Pack)(room) : (Pack)NAN;                                \
    powers += product > (Pack)LARGE ? one : product < (Pack)(1 / LARGE) ? -one : none;  \
    product *= product > (Pack)LARGE ? (Pack)(1 / LARGE)                                \
        : product < (Pack)(1 / LARGE) ? (Pack)LARGE : one;
#define SUM_OF_LOGS (Math::log(product) + powers * (Pack)(SCALAR)LOG_LARGE)
"""
# Exponent of LARGE: a power of two, so that products with it are exact.
LARGE = {"float32": 40, "float64": 300}
_NAMES = ("z", "has", "bound")
_ELASTIC_NAMES = ("e", "w", "linear", "quadratic", "soft")


@dataclass(frozen=True)
class SideSource:
    """Native source of one side.

    Attributes:
        number: Its number.
        upper: Whether it is the upper bound.
        elastic: Whether it may be soft.
    """

    number: int
    upper: bool
    elastic: bool

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of its arrays."""
        return tuple(f"{name}{self.number}" for name in self._names)

    def gap(self, s: str) -> str:
        """Distance of a slack from the bound."""
        i = self.number
        return f"(bound_{i} - {s})" if self.upper else f"({s} - bound_{i})"

    def room(self, s: str, e: str) -> str:
        """What the barrier is of, for a slack and an elastic variable."""
        more = f" + {e}" if self.elastic else ""
        return f"OR_ONE(has_{self.number}, {self.gap(s)}{more})"

    def loaded(self) -> list[str]:
        """Loads the side at ``side_row``, of slack ``s``, and defines its room."""
        i = self.number
        lines = [f"const Pack {name}_{i} = GET({name}{i}, side_row);" for name in self._names]
        if self.elastic:
            lines += [
                f"const Pack safe_e_{i} = OR_ONE(soft_{i}, e_{i});",
                f"const Pack residual_{i} = OR_NONE(soft_{i}, "
                f"linear_{i} + quadratic_{i} * e_{i} - z_{i} - w_{i});",
            ]
        return [*lines, f"const Pack room_{i} = {self.room('s', f'e_{i}')};"]

    def newton(self) -> list[str]:
        """Defines r, S and what the elastic variable does."""
        i, lines, more, wider = self.number, list[str](), "", ""
        if self.elastic:
            lines = [
                f"const Pack stiff_{i} = OR_ONE(soft_{i}, w_{i} + e_{i} * quadratic_{i});",
                f"const Pack give_{i} = OR_NONE(soft_{i}, e_{i} / stiff_{i});",
                f"const Pack pull_{i} = OR_NONE(soft_{i}, "
                f"(mu - e_{i} * w_{i} - e_{i} * residual_{i}) / stiff_{i});",
            ]
            more, wider = f" - z_{i} * pull_{i}", f" + z_{i} * give_{i}"
        return [
            *lines,
            f"const Pack size_{i} = room_{i}{wider};",
            f"const Pack r_{i} = OR_NONE(has_{i}, (mu - z_{i} * room_{i}{more}) / size_{i});",
            f"const Pack S_{i} = OR_NONE(has_{i}, z_{i} / size_{i});",
        ]

    def eliminated(self) -> str:
        """Adds the force and the stiffness of the side to those of the row."""
        i, sign = self.number, "-" if self.upper else "+"
        return f"pull {sign}= r_{i} + z_{i}; stiff += S_{i};"

    def step(self, ds: str = "ds", mark: str = "") -> list[str]:
        """Defines the steps dz, de and dw for the step of a slack.

        Args:
            ds: Name of the step.
            mark: What the names of the results begin with.
        """
        i, sign = self.number, "-" if self.upper else ""
        lines = [
            f"const Pack {mark}d_gap_{i} = {sign}{ds};",
            f"const Pack {mark}dz_{i} = r_{i} - S_{i} * {mark}d_gap_{i};",
        ]
        if self.elastic:
            lines += [
                f"const Pack {mark}de_{i} = pull_{i} + give_{i} * {mark}dz_{i};",
                f"const Pack {mark}dw_{i} = OR_NONE(soft_{i}, "
                f"quadratic_{i} * {mark}de_{i} - {mark}dz_{i} + residual_{i});",
            ]
        return lines

    def errors(self) -> list[str]:
        """Complementarity, and stationarity of the elastic variable."""
        i, sense = self.number, ">" if self.upper else "<"
        lines = _complementarity(f"has_{i}", f"z_{i} * room_{i}")
        mine = f"(has_{i} > none) & (y {sense} none)"
        if self.elastic:
            lines += _complementarity(f"soft_{i}", f"e_{i} * w_{i}")
            lines.append(f"stationarity = KEEP_MAX(stationarity, ABS(residual_{i}));")
            mine += f" & (soft_{i} <= none)"
        return [
            *lines,
            f"{{ const Pack off = y * (bound_{i} - g);",
            f"slack = KEEP_MAX(slack, ({mine}) ? (Pack)ABS(off) : none); }}",
        ]

    def cost(self, room: str, e: str) -> list[str]:
        """Adds penalties and barrier.

        Args:
            room: The room.
            e: The elastic variable.
        """
        i, lines = self.number, [f"{{ const Pack far = {room}; ADD_LOG(far) }}"]
        if self.elastic:
            lines += [
                f"{{ const Pack e = {e}, safe = OR_ONE(soft_{i}, e); ADD_LOG(safe)",
                f"price += OR_NONE(soft_{i}, "
                f"linear_{i} * e + (SCALAR)0.5 * quadratic_{i} * e * e); }}",
            ]
        return lines

    def slope(self) -> list[str]:
        """Adds to the directional derivative of penalties and barrier."""
        i = self.number
        lines = [f"slope -= mu * {self._move} / room_{i};"]
        if self.elastic:
            price = f"linear_{i} + quadratic_{i} * e_{i} - mu / safe_e_{i}"
            lines.append(f"slope += OR_NONE(soft_{i}, ({price}) * de_{i});")
        return lines

    def limits(self) -> list[str]:
        """Lowers the longest steps, of primal and of dual variables."""
        i = self.number
        lines = [
            f"{{ const Pack move = {self._move};",
            f"longest = KEEP_MIN(longest, LIMIT(room_{i}, move)); }}",
            f"{{ const Pack safe = OR_ONE(has_{i}, z_{i});",
            f"longest_dual = KEEP_MIN(longest_dual, LIMIT(safe, dz_{i})); }}",
        ]
        if self.elastic:
            lines += [
                f"longest = KEEP_MIN(longest, LIMIT(safe_e_{i}, de_{i}));",
                f"longest_dual = KEEP_MIN(longest_dual, LIMIT(w_{i}, dw_{i}));",
            ]
        return lines

    @property
    def _names(self) -> tuple[str, ...]:
        return _NAMES + _ELASTIC_NAMES if self.elastic else _NAMES

    @property
    def _move(self) -> str:
        """Step of the room."""
        i = self.number
        more = f" + de_{i}" if self.elastic else ""
        return f"OR_NONE(has_{i}, d_gap_{i}{more})"


def _complementarity(mask: str, product: str) -> list[str]:
    return [
        f"{{ const Pack pair = {product};",
        f"largest = KEEP_MAX(largest, OR_NONE({mask}, ABS(pair)));",
        f"smallest = KEEP_MIN(smallest, {mask} > none ? pair : (Pack)(SCALAR)INFINITY); }}",
    ]
