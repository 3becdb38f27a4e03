"""Native text of a QP that ends at a tolerance: the lanes of its warp vote; see `onchip_native`.

Residuals and certificates are those of `qp.termination`.  They are looked at rarely, so their text
is short: loops over all nodes, by the tables of `symbolic.lane_products`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from warpmpc.codegen.emit_native import literal
from warpmpc.codegen.onchip_native import PLAIN_LOOP, REPORT, SOFT_SLOPE

# P, q or A with numbers that are not finite: nobody iterates on them.
FINITE = r"""
    {
        Lanes odd_of = (Lanes)0;
        ROLLED for (int row = 0; row < K_COUNT; ++row)
            odd_of += ROW_OF_LANES(W_ROWS + row) - ROW_OF_LANES(W_ROWS + row);
        ROLLED for (int i = 0; i < X_COUNT; ++i) EACH_LANE {
            const int at = READ(nodes, i * 32 + lane);
            const SCALAR q = at >= 0 && at < n_z ? MEM(Q_ROWS + i) : (SCALAR)0;
            OF_LANE(odd_of) += q - q;
        }
        if (!(summed(odd_of) == 0)) status = NON_FINITE;
    }"""

# The iterations up to a check keep their numbers in registers and leave before the last one of
# them: certificates compare what is before it and after it.
CHECKED_LOOP = r"""SCALAR checked_primal = 0, checked_dual = 0, checked_weight = 0;
    {rows}
    if (status == RUNNING) {{
        Lanes before[X_COUNT];
        int t = 0;
        ROLLED while (status == RUNNING && t < n_admm) {{
            const int next = (t / CHECK_EVERY + 1) * CHECK_EVERY;
            const int due = next < n_admm ? next : n_admm;
            const bool first = t == 0, judged = t + 1 == due;
            const int end = first || judged ? t + 1 : due - 1;
            if (judged) {{
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

# A row by the tables: its bounds, 1/rho, and s.
ROWS = r"""
    auto bounds_of = [&](int i, int lane, SCALAR& lo, SCALAR& hi) {
        const int up = READ(products_in.data, i * 8 + 3);
        const SCALAR q = MEM(Q_ROWS + i);
        hi = up >= 0 ? MEM(U_ROWS + up) : up == -2 ? (SCALAR)INFINITY : q;
        lo = up == -3 ? (SCALAR)-INFINITY : q;
    };
    auto inverse_rho = [&](int i, int lane) -> SCALAR {
        const int at = READ(products_in.data, i * 8 + 1);
        return at >= 0 ? MEM(RHO_ROWS + at) : at == -1 ? R_ROW : R_EQUAL;
    };
    auto projected = [&](int i, int lane, SCALAR v) -> SCALAR {
        SCALAR lo, hi;
        bounds_of(i, lane, lo, hi);
        const SCALAR clip = MIN(MAX(v, lo), hi);
        SCALAR s = clip;
        GIVE_WAY
        return s;
    };"""

# x and y before an iteration; s of the first one is no projection, see `OnchipText._row`.
REMEMBER = r"""
                ROLLED for (int i = 0; i < X_COUNT; ++i) EACH_LANE {
                    const SCALAR x = MEM(X_ROWS + i);
                    OF_LANE(before[i]) = x;
                    if (READ(nodes, i * 32 + lane) >= n_z) {
                        SCALAR s = projected(i, lane, x);
                        if (first) s += fetch(s_of, i, n_z, lane) / OMEGA;
                        OF_LANE(before[i]) = (x - s) / inverse_rho(i, lane);
                    }
                }"""

# R and X trade places: X keeps x and R gets y, where terms look for them; their changes are in R
# and X at the same distance from each other.
CHECK = r"""
                enum { PRIMAL, PRIMAL_SCALE, DUAL, DUAL_SCALE, FLAT, COMBINATION, RISE,
                       X_CHANGE, Y_CHANGE, WEIGHT, MAXIMA };
                Lanes of[MAXIMA], descent_of = (Lanes)0, support_of = (Lanes)0;
                Lanes odd_of = (Lanes)0;
                UNROLL for (int i = 0; i < MAXIMA; ++i) of[i] = (Lanes)0;
                #define GROW(i, value) \
                    { const SCALAR size = value; OF_LANE(of[i]) = MAX(OF_LANE(of[i]), size); }
                #define SIZE(value) LIBM(fabs)(value)
                ROLLED for (int i = 0; i < X_COUNT; ++i) EACH_LANE {
                    const SCALAR x = MEM(X_ROWS + i);
                    if (READ(nodes, i * 32 + lane) < n_z) {
                        const SCALAR change = x - OF_LANE(before[i]);
                        MEM(R_ROWS + i) = change;
                        OF_LANE(odd_of) += x - x;
                        OF_LANE(descent_of) += MEM(Q_ROWS + i) * change;
                        GROW(X_CHANGE, SIZE(change))
                    } else {
                        SCALAR lo, hi;
                        bounds_of(i, lane, lo, hi);
                        const SCALAR y = (x - projected(i, lane, x)) / inverse_rho(i, lane);
                        SCALAR change = y - OF_LANE(before[i]);
                        bool gives_up = hi > INFINITE, gives_down = lo < -INFINITE;
                        GIVES
                        change = gives_up ? MIN(change, (SCALAR)0) : change;
                        change = gives_down ? MAX(change, (SCALAR)0) : change;
                        OF_LANE(before[i]) = x;
                        MEM(R_ROWS + i) = y;
                        MEM(X_ROWS + i) = change;
                        OF_LANE(odd_of) += y - y;
                        if (change > 0) OF_LANE(support_of) += hi * change;
                        if (change < 0) OF_LANE(support_of) += lo * change;
                        GROW(Y_CHANGE, SIZE(change))
                        GROW(WEIGHT, SIZE(y))
                    }
                }
                SYNC
                ROLLED for (int i = 0; i < X_COUNT; ++i) EACH_LANE {
                    const int at = READ(nodes, i * 32 + lane);
                    if (at < 0) continue;
                    const int* __restrict__ node = products_in.data + i * 8;
                    const SCALAR* base = memory + lane;
                    SCALAR product = 0, moved = 0, product_A = 0, moved_A = 0;
                    ROLLED for (int k = node[0]; k < node[2]; ++k) {
                        const auto term = TERM(k);
                        if (lane + term.z < 0 || lane + term.z > 31) continue;
                        const int e = term.x;
                        const SCALAR entry = e < 0 ? READ(literals_in.data, -1 - e) : base[e];
                        const bool of_P = at < n_z && k < node[1], with_x = of_P || at >= n_z;
                        const int aside = (R_ROWS - X_ROWS) * 32 * (with_x ? 1 : -1);
                        const SCALAR now = entry * base[term.y];
                        const SCALAR change = entry * base[term.y + aside];
                        (of_P ? product : product_A) += now;
                        (of_P ? moved : moved_A) += change;
                    }
                    const SCALAR q = MEM(Q_ROWS + i);
                    if (at < n_z) {
                        GROW(DUAL, SIZE(product + q + product_A))
                        GROW(DUAL_SCALE, MAX(MAX(SIZE(product), SIZE(product_A)), SIZE(q)))
                        GROW(FLAT, SIZE(moved))
                        GROW(COMBINATION, SIZE(moved_A))
                    } else {
                        const SCALAR s = projected(i, lane, OF_LANE(before[i]));
                        SCALAR lo, hi;
                        bounds_of(i, lane, lo, hi);
                        GROW(PRIMAL, SIZE(product_A - s))
                        GROW(PRIMAL_SCALE, MAX(SIZE(product_A), SIZE(s)))
                        // How far the change leaves what the bounds allow in every multiple.
                        bool stops_rise = hi < INFINITE, stops_fall = lo > -INFINITE;
                        PAYS
                        if (stops_rise) GROW(RISE, moved_A)
                        if (stops_fall) GROW(RISE, -moved_A)
                    }
                }
                SYNC
                ROLLED for (int i = 0; i < X_COUNT; ++i) EACH_LANE {
                    if (READ(nodes, i * 32 + lane) < n_z) {
                        MEM(R_ROWS + i) = SIGMA * MEM(X_ROWS + i) - MEM(Q_ROWS + i);
                    } else {
                        const SCALAR v = OF_LANE(before[i]);
                        MEM(X_ROWS + i) = v;
                        MEM(R_ROWS + i) = 2 * projected(i, lane, v) - v;
                    }
                }
                checked_primal = largest(of[PRIMAL]);
                checked_dual = largest(of[DUAL]);
                checked_weight = largest(of[WEIGHT]);
                const SCALAR x_change = largest(of[X_CHANGE]), y_change = largest(of[Y_CHANGE]);
                const SCALAR limit = EPS_DUAL_INF * x_change;
                if (x_change > EPS_DUAL_INF && summed(descent_of) < 0
                    && largest(of[FLAT]) <= limit && largest(of[RISE]) <= limit)
                    status = DUAL_INFEASIBLE;
                if (y_change > EPS_PRIM_INF && summed(support_of) < 0
                    && largest(of[COMBINATION]) <= EPS_PRIM_INF * y_change)
                    status = PRIMAL_INFEASIBLE;
                if (checked_primal <= EPS_ABS + EPS_REL * largest(of[PRIMAL_SCALE])
                    && checked_dual <= EPS_ABS + EPS_REL * largest(of[DUAL_SCALE]))
                    status = SOLVED;
                if (!(summed(odd_of) == 0)) status = NON_FINITE;"""

# What soft rows change, each in the place of the name; coefficients of the proximal map, `qp.soft`.
SOFT_PARTS = {
    "GIVE_WAY": r"""
        UNROLL for (int side = 0; side < 2; ++side) {
            const int linear = READ(products_in.data, i * 8 + 4 + side);
            if (linear < 0) continue;
            const int quadratic = READ(products_in.data, i * 8 + 6 + side);
            const SCALAR beyond = side ? v - clip : clip - v;
            const SCALAR way = MEM(H_ROWS + quadratic) * beyond - MEM(H_ROWS + linear);
            s += side ? MAX(way, (SCALAR)0) : -MAX(way, (SCALAR)0);
        }""",
    # A soft side can always give way.
    "GIVES": r"""
                        UNROLL for (int side = 0; side < 2; ++side) {
                            const int linear = READ(products_in.data, i * 8 + 4 + side);
                            const bool soft = linear >= 0 && MEM(H_ROWS + linear) < HARD;
                            if (soft) (side ? gives_up : gives_down) = true;
                        }
""",
    # A linear penalty alone stops no direction, but every step along it costs its slope.
    "PAYS": r"""
                        UNROLL for (int side = 0; side < 2; ++side) {
                            bool& stops = side ? stops_rise : stops_fall;
                            const int linear = node[4 + side];
                            if (!stops || linear < 0 || MEM(H_ROWS + linear) >= HARD
                                || MEM(H_ROWS + node[6 + side]) < 1) continue;
                            const SCALAR slope = MEM(H_ROWS + linear) / inverse_rho(i, lane);
                            const SCALAR way = side ? moved_A : -moved_A;
                            OF_LANE(descent_of) += slope * MAX(way, (SCALAR)0);
                            stops = false;
                        }
""",
}


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


def qp_texts(
    loop: dict[str, str], checks: OnchipChecks | None, *, soft: bool, doubts: bool
) -> dict[str, str]:
    """Parts of `onchip_native.SOLVE`: the ADMM iterations of a QP, and what is said of them.

    Args:
        loop: Parts of the loop.
        checks: When a QP ends; None: after a fixed number of iterations.
        soft: Whether there are soft rows.
        doubts: Whether QPs that are not finite are not even tried; with checks they never are.
    """
    report = REPORT.replace("SOFT_SLOPE", SOFT_SLOPE if soft else "")
    finite = FINITE if checks or doubts else ""
    if checks is None:
        return {"admm": PLAIN_LOOP.format(**loop), "finite": finite, "report": report}
    text = CHECKED_LOOP.format(rows=ROWS, remember=REMEMBER, check=CHECK, **loop)
    for name, part in SOFT_PARTS.items():
        text = text.replace(f"{name}\n", part.lstrip() + "\n" if soft else "\n")
    return {"admm": text, "finite": finite, "report": report + CHECKED_REPORT}
