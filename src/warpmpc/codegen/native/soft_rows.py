"""Native text of soft rows in the ADMM loop, and what stands in its place without them.

The text of the loop names what differs: `PROJECT(node, v, lo, hi)` is s of a row, `PROJECT_ITEM` the
same inside a sweep by panels, which knows a_lo, b_lo, a_hi and b_hi, `NO_UPPER` and so on the parts of
certificates.  Without soft rows these names are replaced by plain clips and comparisons.
With soft rows they are macros, R has four more rows for each soft row behind its n rows (a and b of
the lower, a and b of the upper side, see `qp.soft`; b is infinite where a side is hard), and
`nodes[i].is_row` of a soft row is two more than its place among them.
"""

_HARD = {
    "PROJECT(i, ": "CLIP(",
    "PROJECT(u, ": "CLIP(",
    "PROJECT_ITEM(": "CLIP(",
    "NO_UPPER": "hi > large",
    "NO_LOWER": "lo < -large",
    "STOPS_RISE": "hi < large",
    "STOPS_FALL": "lo > -large",
    "            PAY_SOFT\n": "",
}

_SETUP = r"""
#define H (R + (Offset)n * 32)
#define ROWS_H (R_in.shape[1] - n)
#define SOFT(place, part) GET(H, (Offset)(place) * 4 + (part))
// Beyond a soft bound, by how much s leaves it; c is v clipped to the bounds.
#define GIVE(v, c, a_lo, b_lo, a_hi, b_hi)                                    \
    (MAX((a_hi) * ((v) - (c)) - (b_hi), (Pack)0) - MAX((a_lo) * ((c) - (v)) - (b_lo), (Pack)0))
#define SOFTEN(v, c, soft, row)                                               \
    ((c) + GIVE(v, c, GET(soft, row), GET(soft, (row) + 1), GET(soft, (row) + 2), GET(soft, (row) + 3)))
#define OLD_SOFT_S(v, lo, hi, i, row)                                         \
    (first ? (Pack)GET(Sk, i) : (Pack)SOFTEN(v, CLIP(v, lo, hi), Hk, row))
#define PROJECT(i, v, lo, hi) project(nodes[i].is_row - 2, v, CLIP(v, lo, hi), R)
auto project = [&](int place, Pack v, Pack c, const SCALAR* R) -> Pack {
    return place < 0 ? c : (Pack)SOFTEN(v, c, H, (Offset)place * 4);
};
#define PROJECT_ITEM(v, lo, hi) soften_item(v, CLIP(v, lo, hi), a_lo, b_lo, a_hi, b_hi)
auto soften_item = [](SCALAR v, SCALAR c, SCALAR a_lo, SCALAR b_lo, SCALAR a_hi, SCALAR b_hi) {
    return c + MAX(a_hi * (v - c) - b_hi, (SCALAR)0) - MAX(a_lo * (c - v) - b_lo, (SCALAR)0);
};
// Certificates: a soft side is as good as absent for primal ones.  For dual ones, a side with a linear
// penalty only (a is 1) stops no direction, but every step along it costs w1 = b rho; a quadratic
// penalty stops it like a hard bound.
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


def with_projection(text: str, *, soft: bool) -> str:
    """The text of the loop for problems with or without soft rows; `SETUP` comes first in it."""
    if soft:
        return text.replace("SETUP", _SETUP + "SETUP")
    for name, plain in _HARD.items():
        text = text.replace(name, plain)
    return text
