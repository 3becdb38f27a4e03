"""Functions of all lanes at once: as exact as those of libm, to units in the last place."""

import math
from decimal import Decimal, localcontext
from functools import cache

import jax
import numpy as np
import pytest

from warpmpc.codegen.kernel_source import Argument, KernelSource, across_lanes
from warpmpc.codegen.native.preamble import INVERT_PIVOT, PREAMBLE
from warpmpc.engines.runtime.ffi import host

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="for the CPU")

# Largest error in units of the last place.  Those of libm (glibc) are up to 0.6, and 2.2 for tanh.
UNITS = {"sin": 1.0, "cos": 1.0, "exp": 1.0, "tanh": 2.5}
DTYPES = ("float32", "float64")
NAMES = (*UNITS, "together", "apart")
BODY = """
const int tile = thread / 32;
for (int lane = 0; lane < TILE; lane += WIDTH)
    for (int row = 0; row < x_in.shape[1]; ++row) {
        const Pack x = GET(x_in.data + tile * x_in.shape[1] * TILE + lane, row);
        Pack y = 0;
        switch (which) {
            case 0: y = Math::sin(x); break;
            case 1: y = Math::cos(x); break;
            case 2: y = Math::exp(x); break;
            case 3: y = Math::tanh(x); break;
            case 4: INVERT(y, x); break;
            case 5: for (int l = 0; l < WIDTH; ++l) y[l] = invert(x[l]); break;
        }
        AT(y_out.data + tile * y_out.shape[1] * TILE + lane, row) = y;
    }
"""


@cache
def kernel(dtype: str) -> KernelSource:
    inverse = f"{INVERT_PIVOT}#define INVERT(out, in) "
    inverse += "for (int _l = 0; _l < WIDTH; ++_l) (out)[_l] = invert((in)[_l])\n"
    return KernelSource(
        name="vectors",
        title="Functions of all lanes.",
        dtype=dtype,
        inputs=[Argument("x_in"), Argument("which", "number")],
        outputs=[Argument("y_out")],
        head=PREAMBLE[dtype] + inverse,
        body=BODY,
        merged=32,
        any_lanes=True,
    )


def computed(name: str, x: np.ndarray, lanes: int = 32) -> np.ndarray:
    """A function of all lanes."""
    running = host()
    assert running is not None
    rows = np.resize(x, -(-x.size // lanes) * lanes).reshape(1, -1, lanes)
    found = np.empty_like(rows)
    which = NAMES.index(name)
    running.launch_arrays(kernel(x.dtype.name), [np.ascontiguousarray(rows), which, found], 32)
    return found.ravel()[: x.size]


def samples(name: str, dtype: str) -> np.ndarray:
    random = np.random.default_rng(0)
    count = 500 if dtype == "float64" else 100_000
    if name in ("sin", "cos"):
        turns = np.arange(-600, 600, 3) * (math.pi / 2)  # as close to zeros as numbers can be
        x = [random.normal(size=count), random.uniform(-999, 999, count), turns]
        x += [turns + 1e-9 * random.normal(size=turns.size)]
    else:
        x = [random.normal(size=count), random.uniform(-30, 30, count)]
        x += [random.uniform(-100 if dtype == "float32" else -740, 88, count)]
    x += [random.choice([-1, 1], count) * 10.0 ** random.uniform(-30, 0, count), np.zeros(1)]
    return np.concatenate(x).astype(dtype)


def exactly(name: str, x: float) -> Decimal:
    """A function to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        value = Decimal(x)
        if name == "exp":
            return value.exp()
        if name == "tanh":
            if abs(value) < Decimal("1e-12"):
                return value - value**3 / 3
            power = (2 * value).exp()
            return (power - 1) / (power + 1)
        half_pi = Decimal("1.57079632679489661923132169163975144209858469968755291048747229615")
        times = (value / half_pi).to_integral_value()
        rest, ahead = value - times * half_pi, int(times) + (name == "cos")
        term = total = rest if ahead % 2 == 0 else Decimal(1)
        order = 1 if ahead % 2 == 0 else 0
        while abs(term) > Decimal("1e-58"):
            term = -term * rest * rest / ((order + 1) * (order + 2))
            order, total = order + 2, total + term
        if name == "cos" and ahead % 2 == 0:  # cos(r + k pi/2) of odd k is -sin(r) or sin(r)
            return total if ahead % 4 == 0 else -total
        return total if ahead % 4 in (0, 1) else -total


def wanted(name: str, x: np.ndarray) -> list:
    if x.dtype == np.float32:
        return list(getattr(np, name)(x.astype(np.float64)))
    return [exactly(name, value) for value in x.tolist()]


def error_in_units(found: np.ndarray, exact: list) -> float:
    """Largest difference in units of the last place of the exact value."""
    units = np.spacing(np.abs(np.array([float(e) for e in exact])).astype(found.dtype))
    if found.dtype == np.float32:
        return (np.abs(found - np.array(exact)) / units).max()
    pairs = zip(found.tolist(), exact, units.tolist(), strict=True)
    return max(float(abs(Decimal(f) - e)) / u for f, e, u in pairs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNITS)
def test_as_exact_as_libm(name, dtype):
    x = samples(name, dtype)
    exact = wanted(name, x)
    for lanes in (32, 1):
        found = computed(name, x, lanes)
        assert error_in_units(found, exact) <= UNITS[name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNITS)
def test_special_arguments(name, dtype):
    least = np.finfo(dtype).smallest_subnormal
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, least, -least, 1e30, -1e30, 1e5], dtype=dtype)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x)
    found = computed(name, x)
    np.testing.assert_allclose(found, exact, rtol=2 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(np.signbit(found[:2]), np.signbit(exact[:2]))
    assert np.isnan(found[4])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sin", "cos", "exp", "tanh"])
def test_a_lane_beyond_all_others_changes_no_bit_of_them(name, dtype):
    x = np.linspace(-3, 3, 32).astype(dtype)
    for value in (1e30, np.inf, np.nan):
        spoiled = np.where(np.arange(32) % 8 == 3, value, x)
        found = computed(name, spoiled.astype(dtype))
        others = np.arange(32) % 8 != 3
        np.testing.assert_array_equal(found[others], computed(name, x)[others])


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials_at_the_ends(dtype):
    info = np.finfo(dtype)
    ends = np.log([float(info.max), float(info.tiny)])
    x = np.concatenate([end + np.linspace(-3, 3, 61) for end in ends]).astype(dtype)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.longdouble)).astype(dtype)
    found = computed("exp", x)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(exact))
    finite = np.isfinite(exact)
    allowed = 2 * np.spacing(exact[finite])
    assert (np.abs(found[finite] - exact[finite]) <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_inverse_pivots_have_the_same_bits(dtype):
    info = np.finfo(dtype)
    edges = [0, info.tiny, info.smallest_subnormal, info.max, 0.26 / info.tiny, np.inf, np.nan, 3]
    random = np.random.default_rng(0)
    x = np.concatenate([edges, np.negative(edges), random.normal(size=500)]).astype(dtype)
    together, apart = computed("together", x), computed("apart", x)
    np.testing.assert_array_equal(together, apart)


def test_only_the_cpu_has_them():
    for dtype in DTYPES:
        assert "6755399441055744.0" not in PREAMBLE[dtype]
        text = across_lanes(PREAMBLE[dtype], dtype)
        assert "EACH(WHOLE, LIBM(sin), sin)" not in text
        assert "EACH(PART, LIBM(sin), sin)" in text  # CUDA keeps it
