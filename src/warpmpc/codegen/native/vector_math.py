"""Sine, cosine, exponential function, tanh and inverse pivots of all lanes at once, on the CPU.

Reads: native source whose functions of libm run lane by lane (`codegen.native.preamble`).  Produces:
functions without branches to put in their place, so that the compiler makes vector instructions.

An argument is brought into a short interval, where a few terms of the Taylor series are exact to
rounding.  With float32 all of it is computed in float64, and only the result is rounded.  With
float64 the part of the argument that one number cannot hold is kept beside it.  Errors stay below
one unit in the last place, those of tanh below two and a half, which is what libm allows itself.
Angles beyond 1000 (float64) or a million (float32) are left to libm, lane by lane.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

# pi / 2 and ln 2 to 50 digits; numbers that are multiples of them need more than 53 bits.
_HALF_PI = Fraction("1.5707963267948966192313216916397514420985846996876")
_LN_2 = Fraction("0.69314718055994530941723212145817656807550013436026")
_SHORT = 33  # bits of a part whose products with whole numbers up to 2^20 are exact

_TYPES = r"""
typedef double Wide __attribute__((ext_vector_type(WIDTH), aligned(8)));
typedef long long Whole __attribute__((ext_vector_type(WIDTH), aligned(8)));
// To the nearest whole number: behind the last bit of a large number nothing is left.
static Wide nearest(Wide x) { return (x + 6755399441055744.0) - 6755399441055744.0; }
static Whole bits(Wide x) { union { Wide x; Whole bits; } both; both.x = x; return both.bits; }
static Wide number(Whole bits) { union { Whole bits; Wide x; } both; both.bits = bits; return both.x; }
static Wide sized(Wide size, Wide sign) {
    const Whole top = (Whole)(1ll << 63);
    return number((bits(size) & ~top) | (bits(sign) & top));
}
static Wide power_of_two(Wide exponent) {
    return number((bits(exponent + 6755399441055744.0 + 1023.0) & 0x7ff) << 52);
}
"""

# `r` and `low`: the angle without its multiple of pi / 2, in two parts; `turns`: the multiple.
_ANGLES = r"""
static Pack turned(Pack angle, int ahead) {{
    const Wide x = __builtin_convertvector(angle, Wide);
    const Wide times = nearest(x * {inverse_half_pi});
    const Whole turns = bits(times + 6755399441055744.0) + (Whole)(long long)ahead;
    {reduced}
    const Wide z = r * r;
    const Wide sine = {sine};
    const Wide cosine = {cosine};
    const Wide found = (turns & 1) != 0 ? cosine : sine;
    return __builtin_convertvector((turns & 2) != 0 ? -found : found, Pack);
}}
static bool is_far(Pack x) {{
    SCALAR most = 0;
    for (int l = 0; l < WIDTH; ++l) most = x[l] * x[l] > most ? x[l] * x[l] : most;
    return most > (SCALAR){far} * (SCALAR){far};
}}
"""

_EXACT_ANGLE = r"""const Wide most = x - times * {first}, product = times * {second};
    const Wide almost = most - product;
    const Wide rest = ((most - almost) - product) - times * {third};
    const Wide r = almost + rest;
    const Wide low = (almost - r) + rest;"""
_EXACT_COSINE = "(1 - 0.5 * z) + (((1 - (1 - 0.5 * z)) - 0.5 * z) + (z * z * ({series}) - r * low))"

_EXPONENTIALS = r"""
// exp(x) = 2^times * (1 + grown), and x lies where neither overflows.
static Wide grown(Wide x, Wide& times) {{
    times = nearest(x * {inverse_ln_2});
    const Wide most = x - times * {ln_2}, product = times * {ln_2_rest};
    const Wide r = most - product;
    const Wide low = (most - r) - product;
    return r + (low + r * r * ({exp}));
}}
static Wide limited(Wide x, double size) {{
    x = x > size ? (Wide)size : x;
    return x < -size ? (Wide)-size : x;
}}
"""

_EXP = r"""static WHOLE Pack exp(Pack argument) {
    Wide times;
    const Wide x = limited(__builtin_convertvector(argument, Wide), 800.0);
    const Wide found = 1 + grown(x, times), half = nearest(0.5 * times);
    // In two steps: 2^times itself may be too large or too small.
    return __builtin_convertvector(found * power_of_two(half) * power_of_two(times - half), Pack);
}"""
_TANH = r"""static WHOLE Pack tanh(Pack argument) {
    Wide times;
    const Wide x = __builtin_convertvector(argument, Wide);
    const Wide more = grown(limited(2 * sized(x, (Wide)1.0), 50.0), times);
    const Wide power = power_of_two(times), above = power * more + (power - 1);  // exp(2|x|) - 1
    return __builtin_convertvector(sized(above / (above + 2), x), Pack);
}"""
_SIGNED_ZERO = "\n    result = x == (Pack)0 ? x : result;"
# A lane that is far leaves the bits of the others as they are.
_OF_ANGLE = r"""static WHOLE Pack {name}(Pack x) {{
    Pack result = turned(x, {ahead});{zero}
    if (!is_far(x)) return result;
    for (int l = 0; l < WIDTH; ++l)
        if (x[l] * x[l] > (SCALAR){far} * (SCALAR){far}) result[l] = LIBM({name})(x[l]);
    return result;
}}"""

# See `codegen.native.preamble.INVERT_PIVOT` for the same of one lane.
INVERT_PIVOTS = r"""
auto invert_all = [](auto d) {
    const auto nothing = d - d, zero = nothing * 0;
    const auto inverse = 1 / d, size = d < 0 ? -d : d, of_inverse = inverse < 0 ? -inverse : inverse;
    auto found = of_inverse < TINY ? zero + (SCALAR)NAN : inverse;
    found = size < TINY ? zero : found;
    return nothing == 0 ? found : nothing;
};
"""


def _parts(value: Fraction, count: int) -> list[str]:
    """A number as a sum of short ones and a last one that is not."""
    found = []
    for i in range(count):
        part = float(value)
        if i + 1 < count:
            mantissa, exponent = math.frexp(part)
            part = math.ldexp(math.floor(mantissa * 2**_SHORT), exponent - _SHORT)
        found.append(part.hex())
        value -= Fraction(part)
    return found


def _series(variable: str, orders: range, *, alternates: bool = True) -> str:
    """Sum of x^i / n! over the orders n of a Taylor series, by Horner's rule.

    Args:
        variable: Name of x.
        orders: Orders of the terms.
        alternates: Whether signs are those of sine and cosine, else all are positive.
    """
    signs = [-1 if alternates and n // 2 % 2 else 1 for n in orders]
    terms = [sign / math.factorial(n) for sign, n in zip(signs, orders, strict=True)]
    text = terms[-1].hex()
    for term in reversed(terms[:-1]):
        text = f"({term.hex()} + {variable} * {text})"
    return text


def _functions(dtype: str) -> dict[str, str]:
    """Sources by name; the first one brings what the others need."""
    single = dtype == "float32"
    far = "1e6" if single else "1e3"
    if single:
        first, second = _parts(_HALF_PI, 2)
        reduced = f"const Wide r = (x - times * {first}) - times * {second};"
        sine = f"r + r * z * {_series('z', range(3, 12, 2))}"
        cosine = f"1 + z * {_series('z', range(2, 13, 2))}"
    else:
        first, second, third = _parts(_HALF_PI, 3)
        reduced = _EXACT_ANGLE.format(first=first, second=second, third=third)
        sine = f"r + (low * (1 - 0.5 * z) + r * z * {_series('z', range(3, 20, 2))})"
        cosine = _EXACT_COSINE.format(series=_series("z", range(4, 19, 2)))
    ln_2, ln_2_rest = _parts(_LN_2, 2)
    angles = _ANGLES.format(
        inverse_half_pi=float(1 / _HALF_PI).hex(),
        reduced=reduced,
        sine=sine,
        cosine=cosine,
        far=far,
    )
    exponentials = _EXPONENTIALS.format(
        inverse_ln_2=float(1 / _LN_2).hex(),
        ln_2=ln_2,
        ln_2_rest=ln_2_rest,
        exp=_series("r", range(2, 10 if single else 16), alternates=False),
    )
    return {
        "exp": _TYPES + angles + exponentials + _EXP,
        "sin": _OF_ANGLE.format(name="sin", ahead=0, far=far, zero=_SIGNED_ZERO),
        "cos": _OF_ANGLE.format(name="cos", ahead=1, far=far, zero=""),
        "tanh": _TANH,
    }


FUNCTIONS = {dtype: _functions(dtype) for dtype in ("float32", "float64")}
INVERSES_BY_LANE = (
    "#define INVERT(out, in) PACK_EACH(out, in, invert)",
    "#define INVERT(out, in) for (int _l = 0; _l < WIDTH; ++_l) (out)[_l] = invert((in)[_l])",
)
CONTENT = hashlib.sha256(f"{FUNCTIONS}{INVERT_PIVOTS}".encode()).hexdigest()
