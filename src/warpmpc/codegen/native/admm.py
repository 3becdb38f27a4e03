"""Formulas of the ADMM iteration and its verdicts as macros: their only native home.

The readable form of the same formulas is JAX: `qp.loops.general`, `qp.soft`, `qp.scaling` and
`qp.termination`; tests/codegen/test_formulas.py runs both side by side.

Kernels define OMEGA (the relaxation), SIGMA, MIN, MAX, DIVIDED, and the types SCALAR and Pack.  The
iterate is x and, for each row, v = s + y / rho, where s is v projected onto the bounds of the row.
"""

from __future__ import annotations

FORMULAS = r"""
// The projection of a row without penalties.
#define CLIP(v, lo, hi) MIN(MAX(v, lo), hi)
// One iteration, given the solution of the KKT system: x of a variable, and nu of a row.  `change`
// is nu / rho; it is a product or stands in parentheses.  It is not multiplied out first, because
// OMEGA / rho may be a constant.
#define NEXT_X(x, solution) (OMEGA * (solution) + (1 - OMEGA) * (x))
#define NEXT_V(v, s, change) ((s) + (1 - OMEGA) * ((v) - (s)) + OMEGA * change)
// Corrections of an iteration that used the projection of v instead of s: of v, and of s.
#define LACKING_V(s, projected) (OMEGA * ((s) - (projected)))
#define LACKING_S(lacking_v) ((lacking_v) * (1 / OMEGA))
// The next right-hand side of the KKT system: of a variable with linear cost q, and of a row.
#define RHS_OF_X(x, q) (SIGMA * (x) - (q))
#define RHS_OF_V(v, s) (2 * (s) - (v))
// Multipliers of rows, with 1/rho or with rho, and v of a row that starts with s and y.
#define MULTIPLIER(v, s, inverse_rho) (((v) - (s)) / (inverse_rho))
#define MULTIPLIER_BY_RHO(v, s, rho) (((v) - (s)) * (rho))
#define V_OF(s, y, inverse_rho) ((s) + (inverse_rho) * (y))

// Which rho a row has: that of equalities, of free rows, or of all others.  A free row is none of
// the equalities.
#define IS_EQUALITY(lo, hi, same) ((hi) - (lo) < (same))
#define IS_FREE(lo, hi, absent) (((lo) < -(absent)) & ((hi) > (absent)))

// Soft rows: s gives way beyond a bound.  `whole` is rho plus the quadratic penalty, zero for hard
// sides; a and b are the coefficients of the proximal map.  The coefficient a of a linear penalty is
// exactly 1, because certificates recognise it by that.
#define IS_HARD(linear, quadratic) ((linear) > INFINITE || (quadratic) > INFINITE)
#define PROXIMAL_B(hard, linear, whole) ((hard) ? (SCALAR)INFINITY : DIVIDED(linear, whole))
#define PROXIMAL_A(hard, quadratic, inverse_rho, whole)                       \
    (((hard) || (quadratic) == 0) ? (SCALAR)1 : DIVIDED((SCALAR)1, (inverse_rho) * (whole)))
#define EXCESS(type, a, b, beyond) MAX((a) * (beyond) - (b), (type)0)
#define GIVE(type, v, clipped, a_lo, b_lo, a_hi, b_hi)                        \
    (EXCESS(type, a_hi, b_hi, (v) - (clipped)) - EXCESS(type, a_lo, b_lo, (clipped) - (v)))

// Verdicts on a QP.  IS_REFERENCE is asked of the number of checks so far.
#define LOWEST_BIT(number) ((number) & -(number))
#define IS_REFERENCE(checks) ((checks) == LOWEST_BIT(checks) || (checks) == 3 * LOWEST_BIT(checks))
#define IS_SOLVED(primal, primal_scale, dual, dual_scale, eps_abs, eps_rel)   \
    ((primal) <= (eps_abs) + (eps_rel) * (primal_scale)                       \
        && (dual) <= (eps_abs) + (eps_rel) * (dual_scale))
// x'Px + q'x + y's is what the cost and its dual bound differ by: y lies in the normal cone of the
// bounds at s, or is the slope of a penalty there, so y's is the support function of both.
#define AS_LARGE(a) MAX(a, -(a))
#define CLOSES_GAP(curved, linear, held, eps_abs, eps_rel)                    \
    (AS_LARGE((curved) + (linear) + (held)) <= (eps_abs)                      \
        + (eps_rel) * MAX(AS_LARGE(curved), MAX(AS_LARGE(linear), AS_LARGE(held))))
#define IS_DUAL_INFEASIBLE(x_change, descent, flat, rise, eps, limit)         \
    ((x_change) > (eps) && (descent) < 0 && (flat) <= -(eps) * (descent)      \
        && (flat) <= (limit) && (rise) <= (limit))
#define IS_PRIMAL_INFEASIBLE(y_change, support, support_size, combination, eps) \
    ((y_change) > (eps) && (support) < -ROUNDING * (support_size)             \
        && (combination) <= (eps) * (y_change))
// Sums whose terms cancel to this share of their sizes are as good as zero.
#define ROUNDING (SCALAR)(sizeof(SCALAR) == 4 ? 1e-6 : 1e-15)
"""

# The loop of the staged and panel engines names what soft rows change: `PROJECT` is s of a row,
# `PROJECT_ITEM` the same inside a sweep by panels, where a_lo, b_lo, a_hi and b_hi are defined;
# `OLD_S` and `NEW_S` are s before and after an update inside a stage; `NO_UPPER` and so on are parts
# certificates.  Those of hard rows:
HARD_ROWS = r"""
#define PROJECT(i, v, lo, hi) CLIP(v, lo, hi)
#define PROJECT_ITEM(v, lo, hi) CLIP(v, lo, hi)
#define NO_UPPER (hi > large)
#define NO_LOWER (lo < -large)
#define STOPS_RISE (hi < large)
#define STOPS_FALL (lo > -large)
#define PAY_SOFT
"""

# With soft rows, R has four more rows for each soft row behind its n rows: a and b of the lower, a
# and b of the upper side.  b is infinite where a side is hard.  `nodes[i].is_row` of a soft row is
# two more than its place among them.
SOFT_ROWS = r"""
#define H (R + (Offset)n * TILE)
#define ROWS_H (R_in.shape[1] - n)
#define SOFT(place, part) GET(H, (Offset)(place) * 4 + (part))
#define SOFTEN(v, c, soft, row)                                               \
    ((c) + GIVE(Pack, v, c, GET(soft, row), GET(soft, (row) + 1), GET(soft, (row) + 2), GET(soft, (row) + 3)))
#define OLD_SOFT_S(v, lo, hi, i, row)                                         \
    (first ? (Pack)GET(Sk, i) : (Pack)SOFTEN(v, CLIP(v, lo, hi), Hk, row))
#define PROJECT(i, v, lo, hi) project(nodes[i].is_row - 2, v, CLIP(v, lo, hi), R)
auto project = [&](int place, Pack v, Pack c, const SCALAR* R) -> Pack {
    return place < 0 ? c : (Pack)SOFTEN(v, c, H, (Offset)place * 4);
};
#define PROJECT_ITEM(v, lo, hi) soften_item(v, CLIP(v, lo, hi), a_lo, b_lo, a_hi, b_hi)
auto soften_item = [](SCALAR v, SCALAR c, SCALAR a_lo, SCALAR b_lo, SCALAR a_hi, SCALAR b_hi) {
    return c + EXCESS(SCALAR, a_hi, b_hi, v - c) - EXCESS(SCALAR, a_lo, b_lo, c - v);
};
// Certificates: a soft side is as good as absent for primal ones.  For dual ones, a side with a
// linear penalty only (a is 1) stops no direction, but every step along it costs w1 = b rho; a
// quadratic penalty stops it like a hard bound.
#define FINITE (SCALAR)1e37
auto part_of = [&](int node, int part, const SCALAR* R) -> Pack {
    const int place = nodes[node].is_row - 2;
    return place < 0 ? (Pack)(2 * FINITE) : (Pack)SOFT(place, part);
};
#define NO_UPPER ((hi > large) | (part_of(i, 3, R) < FINITE))
#define NO_LOWER ((lo < -large) | (part_of(i, 1, R) < FINITE))
#define STOPS_RISE ((hi < large) & ((part_of(i, 3, R) >= FINITE) | (part_of(i, 2, R) < (SCALAR)1)))
#define STOPS_FALL ((lo > -large) & ((part_of(i, 1, R) >= FINITE) | (part_of(i, 0, R) < (SCALAR)1)))
#define PAY_SOFT                                                              \
    if (node.is_row > 1) {                                                    \
        const Pack a_lo = part_of(i, 0, R), b_lo = part_of(i, 1, R);          \
        const Pack a_hi = part_of(i, 2, R), b_hi = part_of(i, 3, R), one = 1; \
        const Pack up = MAX(moved_A, none), down = MAX(-moved_A, none);       \
        const Pack w_hi = b_hi / GET(R, i), w_lo = b_lo / GET(R, i);          \
        descent += (((hi < large) & (b_hi < FINITE) & (a_hi >= one)) ? w_hi : none) * up; \
        descent += (((lo > -large) & (b_lo < FINITE) & (a_lo >= one)) ? w_lo : none) * down; \
    }
"""
