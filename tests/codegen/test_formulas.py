"""Each formula of the ADMM iteration has two homes, native macros and JAX, which agree."""

from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp

from warpmpc import ADMMSettings
from warpmpc.codegen.native.admm import FORMULAS
from warpmpc.codegen.native.status import DEFINE_INFINITE
from warpmpc.engines.runtime.loading import start_warp
from warpmpc.qp.loops.general import ADMM
from warpmpc.qp.scaling import (
    Projection,
    QPData,
    Residuals,
    ScaledQP,
    Scaling,
    rho_rows,
    row_factors,
)
from warpmpc.qp.soft import Penalties, Side, SoftRows
from warpmpc.qp.termination import (
    DualityGap,
    duality_gap,
    is_dual_infeasible,
    is_primal_infeasible,
    is_reference,
    is_solved,
)

SETTINGS = ADMMSettings(relaxation=1.6, sigma=1e-2)
N_ARGUMENTS = 8
TOLERANCE = {"float32": 1e-5, "float64": 1e-14}
HARD = 1e30  # a penalty beyond it is none
EDGES = (-np.inf, -1e20, -3.0, -0.0, 0.0, 1.0, 1e-30, 1e20, np.inf, np.nan)

# Formulas of a0, a1, ... as kernels write them.
NATIVE = {
    "clip": "CLIP(a0, a1, a2)",
    "next_x": "NEXT_X(a0, a1)",
    "next_v": "NEXT_V(a0, a1, (a2 * a3))",
    "lacking_v": "LACKING_V(a0, a1)",
    "lacking_s": "LACKING_S(a0)",
    "rhs_of_x": "RHS_OF_X(a0, a1)",
    "rhs_of_v": "RHS_OF_V(a0, a1)",
    "multiplier": "MULTIPLIER(a0, a1, a2)",
    "multiplier_by_rho": "MULTIPLIER_BY_RHO(a0, a1, a2)",
    "v_of": "V_OF(a0, a1, a2)",
    "is_equality": "IS_EQUALITY(a0, a1, a2)",
    "is_free": "IS_FREE(a0, a1, a2)",
    "proximal_a": "PROXIMAL_A(IS_HARD(a0, a1), a1, 1 / a2, a2 + (IS_HARD(a0, a1) ? 0 : a1))",
    "proximal_b": "PROXIMAL_B(IS_HARD(a0, a1), a0, a2 + (IS_HARD(a0, a1) ? 0 : a1))",
    "soft_s": "CLIP(a0, a1, a2) + GIVE(SCALAR, a0, CLIP(a0, a1, a2), a3, a4, a5, a6)",
    "is_solved": "IS_SOLVED(a0, a1, a2, a3, a4, a5)",
    "is_dual_infeasible": "IS_DUAL_INFEASIBLE(a0, a1, a2, a3, a4, a4 * a0)",
    "is_primal_infeasible": "IS_PRIMAL_INFEASIBLE(a0, a1, a2, a3, a4)",
    "closes_gap": "CLOSES_GAP(a0, a1, a2, a3, a4)",
    "is_reference": "IS_REFERENCE((int)a0)",
}
BODY = (
    "#define OMEGA (SCALAR)1.6\n#define SIGMA (SCALAR)1e-2\n"
    "#define MIN(a, b) ((b) < (a) ? (b) : (a))\n#define MAX(a, b) ((a) < (b) ? (b) : (a))\n"
    "#define DIVIDED(a, b) ((a) / (b))\n"
    + DEFINE_INFINITE
    + FORMULAS
    + "const int n = arguments.shape[1];\n"
    + "".join(
        f"const SCALAR a{i} = arguments.data[{i} * n + thread];\n" for i in range(N_ARGUMENTS)
    )
    + "".join(
        f"found.data[{i} * n + thread] = (SCALAR)({formula});\n"
        for i, formula in enumerate(NATIVE.values())
    )
)


@cache
def kernel(dtype):
    """All formulas, compiled for the CPU."""
    start_warp()
    scalar = {"float32": wp.float32, "float64": wp.float64}[dtype]
    real = wp.array2d(dtype=scalar)
    name = {"float32": "float", "float64": "double"}[dtype]

    @wp.func_native(f"#define SCALAR {name}\n{BODY}")
    def evaluate(arguments: real, thread: int, found: real): ...

    @wp.kernel(module="unique", enable_backward=False)
    def formulas(arguments: real, found: real):
        thread = wp.tid()
        evaluate(arguments, thread, found)

    return formulas


def native(name, *arguments):
    """A formula for each entry of its arguments, which have one dtype."""
    dtype, n = arguments[0].dtype, arguments[0].size
    given = np.zeros((N_ARGUMENTS, n), dtype)
    given[: len(arguments)] = [np.broadcast_to(a, n) for a in arguments]
    found = wp.zeros((len(NATIVE), n), dtype=wp.dtype_from_numpy(dtype), device="cpu")
    compiled = kernel(dtype.name)
    wp.launch(compiled, n, [wp.array(given, device="cpu")], [found], device="cpu")
    return found.numpy()[list(NATIVE).index(name)]


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


def values(dtype, *edges, n_random=200):
    """All combinations of edge values, and random ones of many sizes: one array per argument."""
    rng = np.random.default_rng(0)
    combined = np.array(list(product(*edges)), dtype=dtype)
    size = 10.0 ** rng.uniform(-3, 3, (n_random, len(edges)))
    drawn = (rng.normal(size=size.shape) * size).astype(dtype)
    return list(np.concatenate([combined, drawn]).T)


def rows(array):
    """One group, one row per value, one lane."""
    return jnp.asarray(array)[None, :, None]


def flat(array):
    return np.asarray(array)[0, :, 0]


def assert_same(found, expected, *terms):
    """Equal to rounding; a sum of `terms` is as exact as their sizes."""
    with no_warning():
        size = sum((np.abs(term) for term in terms), np.abs(expected))
        close = np.abs(found - expected) <= TOLERANCE[found.dtype.name] * size
    alike = np.where(np.isfinite(size), close, (found == expected) | np.isnan(found + expected))
    assert alike.all(), np.flatnonzero(~alike)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


class GivenSolution:
    """A KKT engine that keeps its right-hand side and returns a solution that it was given."""

    def __init__(self, solution):
        self.solution, self.rhs = solution, None

    def solve(self, _, rhs, __):
        self.rhs = rhs
        return self.solution


def jax_iteration(x, q, v, s, rho, solution):
    """Next x and v, and the right-hand sides: of variables, of rows."""
    engine = GivenSolution(jnp.concatenate([rows(part) for part in solution], axis=1))
    admm = ADMM(engine, None, SETTINGS, SimpleNamespace(scaled=SimpleNamespace(q=rows(q))))
    found = admm.update(None, rows(rho), rows(x), rows(s), rows(v) - rows(s))
    return [flat(part) for part in (*found, *jnp.split(engine.rhs, [x.size], axis=1))]


def no_warning():
    return np.errstate(invalid="ignore", divide="ignore", over="ignore")


def test_update_of_x(dtype):
    x, solution = values(dtype, EDGES, EDGES)
    zero = np.zeros_like(x)
    expected, *_ = jax_iteration(x, zero, zero, zero, zero + 1, (solution, zero))
    assert_same(native("next_x", x, solution), expected, x, solution)


def test_update_of_v(dtype):
    v, s, nu, rho = values(dtype, EDGES, (-1.0, 0.0, 2.0), (-1.0, 0.0, np.nan), (0.0, 1e-6, 1e6))
    rho = np.abs(rho)
    with no_warning():
        inverse = 1 / rho
    zero = np.zeros_like(v)
    _, expected, *_ = jax_iteration(zero, zero, v, s, rho, (zero, nu))
    with no_warning():
        change = inverse * nu
    assert_same(native("next_v", v, s, inverse, nu), expected, v, s, change)


def test_right_hand_sides(dtype):
    x, q, v, s = values(dtype, (0.0, -1e20, np.nan), (1.0, np.inf), EDGES, (0.0, -2.0, 1e20))
    zero = np.zeros_like(x)
    _, _, of_x, of_v = jax_iteration(x, q, v, s, zero + 1, (zero, zero))
    for name, arguments, expected in (("rhs_of_x", (x, q), of_x), ("rhs_of_v", (v, s), of_v)):
        assert_same(native(name, *arguments), expected, *arguments)


def test_first_iteration_lacks_what_s_is_off(dtype):
    v, s, projected = values(dtype, (-1.0, 5.0), (0.0, 2.0), (-1.0, 2.0))
    zero = np.zeros_like(v)
    _, right, *_ = jax_iteration(zero, zero, v, s, zero + 1, (zero, zero))
    _, wrong, *_ = jax_iteration(zero, zero, v, projected, zero + 1, (zero, zero))
    lacking = native("lacking_v", s, projected)
    assert_same(lacking, right - wrong, v, s, projected, right, wrong)
    assert_same(native("lacking_s", lacking), s - projected, s, projected)


def test_projection_of_hard_rows(dtype):
    v, lower, upper = values(dtype, EDGES, (-np.inf, -2.0, 1.0), (1.0, 7.0, np.inf))
    lower, upper = np.minimum(lower, upper), np.maximum(lower, upper)
    expected = flat(Projection(rows(lower), rows(upper))(rows(v)))
    np.testing.assert_array_equal(native("clip", v, lower, upper), expected)


def test_projection_of_soft_rows(dtype):
    a, b = (0.0, 0.3, 1.0), (0.0, 0.5, np.inf)
    bounds = ((-np.inf, -2.0), (-2.0, 1.0, np.inf))
    v, lower, upper, a_lo, b_lo, a_hi, b_hi = values(
        dtype, (-9.0, -2.0, 0.0, 4.0), *bounds, a, b, a, b
    )
    lower, upper = np.minimum(lower, upper), np.maximum(lower, upper)
    a_lo, a_hi = (np.clip(np.abs(x), 0, 1) for x in (a_lo, a_hi))
    b_lo, b_hi = np.abs(b_lo), np.abs(b_hi)
    proximal = Penalties(Side(rows(b_lo), rows(a_lo)), Side(rows(b_hi), rows(a_hi)))
    expected = flat(Projection(rows(lower), rows(upper), proximal)(rows(v)))
    found = native("soft_s", v, lower, upper, a_lo, b_lo, a_hi, b_hi)
    assert (found != native("clip", v, lower, upper)).any()
    assert_same(found, expected, v, native("clip", v, lower, upper))


def test_coefficients_of_the_proximal_map(dtype):
    penalty = (0.0, 1e-3, 10.0, HARD, np.inf)
    linear, quadratic, rho = (np.abs(a) for a in values(dtype, penalty, penalty, (1e-6, 0.1, 1e3)))
    n = linear.size
    given = jnp.concatenate([rows(a) for a in (linear, linear, quadratic, quadratic)], axis=1)
    side = SoftRows(np.arange(n), n).penalties(given).proximal(rows(rho)).upper
    assert_same(native("proximal_b", linear, quadratic, rho), flat(side.linear))
    assert_same(native("proximal_a", linear, quadratic, rho), flat(side.quadratic))
    alone = (quadratic == 0) & (linear < HARD)
    assert alone.any()
    assert np.all(native("proximal_a", linear, quadratic, rho)[alone] == 1)


def test_classes_of_rows(dtype):
    apart = (0.0, 5e-5, 1e-3, np.inf)
    lower, distance = values(dtype, (-np.inf, -1e20, -1e15, 0.0, 1.0), apart)
    with no_warning():
        upper = lower + np.abs(distance)
    upper = np.where(np.isnan(upper), np.inf, upper).astype(dtype)
    one = rows(np.ones_like(lower))
    scaled = QPData(one, one, one, rows(lower), rows(upper))
    factors, free = row_factors(scaled, SETTINGS)
    rho = flat(rho_rows(SETTINGS.rho, factors, free))
    same, absent = np.array(1e-4, dtype), np.array(1e16, dtype)
    equal = native("is_equality", lower, upper, same) != 0
    found_free = native("is_free", lower, upper, absent) != 0
    assert equal.any()
    assert found_free.any()
    assert not (equal & found_free).any()
    classes = [found_free, equal]
    expected = np.select(classes, [1e-6, SETTINGS.rho * SETTINGS.rho_equality], SETTINGS.rho)
    np.testing.assert_allclose(rho, expected, rtol=1e-6)


def hard_qp(lower, upper, rho):
    """A QP that is not scaled, with this rho of its rows."""
    one = jnp.ones_like(lower)
    data = QPData(one, one, one, lower, upper)
    return ScaledQP(data, data, Scaling(one, one, one), rho, jnp.zeros_like(one, bool), True)


def test_multipliers(dtype):
    v, lower, upper, rho = values(dtype, EDGES, (-np.inf, -2.0), (1.0, np.inf), (1e-6, 0.1, 1e3))
    lower, upper, rho = np.minimum(lower, upper), np.maximum(lower, upper), np.abs(rho)
    s = native("clip", v, lower, upper)
    qp = hard_qp(rows(lower), rows(upper), rows(rho))
    _, _, y = qp.unscaled(rows(v), rows(v), jnp.ones((1, 1, 1), dtype))
    # If v is not finite, y is not finite in either of them.
    expected, known = flat(y), np.isfinite(v)
    with no_warning():
        inverse = (1 / rho).astype(dtype)
    for found in (native("multiplier", v, s, inverse), native("multiplier_by_rho", v, s, rho)):
        assert_same(found[known], expected[known])
        assert np.array_equal(np.isfinite(found), np.isfinite(expected))


def test_v_holds_s_and_the_multiplier(dtype):
    y, upper, rho = (np.abs(a) for a in values(dtype, (0.5, 1.0, 1e3), (0.0, 2.0), (1e-3, 1e3)))
    v = native("v_of", upper, y, (1 / rho).astype(dtype))
    qp = hard_qp(rows(np.full_like(upper, -np.inf)), rows(upper), rows(rho))
    _, s, found = qp.unscaled(rows(v), rows(v), jnp.ones((1, 1, 1), dtype))
    np.testing.assert_array_equal(flat(s), upper)
    assert_same(flat(found), y, rho * upper)


@pytest.mark.parametrize(("eps_abs", "eps_rel"), [(1e-3, 0.0), (0.0, 1e-2), (1e-4, 1e-3)])
def test_verdict_solved(dtype, eps_abs, eps_rel):
    sizes = (0.0, 1e-4, 1e-3, 1.0, np.inf, np.nan)
    of_qp = [np.abs(a) for a in values(dtype, sizes, sizes, sizes, sizes, n_random=2000)]
    settings = replace(SETTINGS, eps_abs=eps_abs, eps_rel=eps_rel)
    expected = flat(is_solved(Residuals(*map(rows, of_qp)), None, settings))
    limits = np.array(eps_abs, dtype), np.array(eps_rel, dtype)
    found = native("is_solved", *of_qp, *limits) != 0
    np.testing.assert_array_equal(found, expected)
    assert 0 < found.sum() < found.size


@pytest.mark.parametrize(("eps_abs", "eps_rel"), [(1e-3, 0.0), (0.0, 1e-2), (1e-4, 1e-3)])
def test_verdict_gap(dtype, eps_abs, eps_rel):
    sizes = (0.0, -1e-4, 1e-3, 1.0, -1.0, -1.0001, 1e8, np.inf, np.nan)
    terms = values(dtype, sizes, sizes, sizes, n_random=2000)
    settings = replace(SETTINGS, eps_abs=eps_abs, eps_rel=eps_rel)
    expected = flat(DualityGap(*map(rows, terms)).is_closed(settings))
    limits = np.array(eps_abs, dtype), np.array(eps_rel, dtype)
    with no_warning():
        found = native("closes_gap", *terms, *limits) != 0
    np.testing.assert_array_equal(found, expected)
    assert 0 < found.sum() < found.size


def test_gap_of_soft_rows_is_that_of_fenchel():
    """With y a slope of the penalty g at s, y's is g(s) and its conjugate at y together."""
    rng = np.random.default_rng(0)
    v, linear, quadratic, rho = 4 * rng.normal(size=50), *rng.uniform(0.1, 2, (3, 50))
    lower, upper = -rng.uniform(0.1, 1, 50), rng.uniform(0.1, 1, 50)
    side = Side(rows(linear), rows(quadratic))
    bounds = Projection(rows(lower), rows(upper), Penalties(side, side).proximal(rows(rho)))
    s = flat(bounds(rows(v)))
    y = rho * (v - s)
    excess = np.maximum(s - upper, 0) + np.maximum(lower - s, 0)
    cost = linear * excess + quadratic / 2 * excess**2
    trial = np.linspace(-60, 60, 200_001)[:, None]
    beyond = np.maximum(trial - upper, 0) + np.maximum(lower - trial, 0)
    conjugate = (y * trial - linear * beyond - quadratic / 2 * beyond**2).max(axis=0)
    one = jnp.zeros((1, 1, 1))
    data = QPData(one, one, one, rows(lower), rows(upper))
    gap = duality_gap(data, scalar_products("float64"), one, rows(s), rows(y))
    np.testing.assert_allclose(gap.held.item(), (cost + conjugate).sum(), rtol=1e-4)
    assert (excess > 0).any()
    assert (excess == 0).any()


def scalar_products(dtype):
    """Products with P and A of a QP with one variable and one row."""
    product = SimpleNamespace(product=lambda values, x: values * x, row_norms=jnp.abs)
    return SimpleNamespace(P=product, A=product, AT=product)


def each_alone(array):
    """One instance per value."""
    return jnp.asarray(array)[:, None, None]


def test_verdict_dual_infeasible(dtype):
    given = (-1.0, 0.0, 1.0)
    dx, P, q, A, upper = values(dtype, given, (0.0, 1e-9, 1.0), given, given, (1.0, np.inf))
    data = QPData(*map(each_alone, (P, q, A, np.full_like(P, -np.inf), upper)))
    expected = np.ravel(is_dual_infeasible(data, scalar_products(dtype), each_alone(dx), SETTINGS))
    rise = np.where((upper < 1e20) & (A != 0), np.maximum(np.sign(A) * dx, 0), 0).astype(dtype)
    eps = np.array(SETTINGS.eps_dual_inf, dtype)
    found = native("is_dual_infeasible", np.abs(dx), q * dx, np.abs(P * dx), rise, eps) != 0
    np.testing.assert_array_equal(found, expected)
    assert 0 < found.sum() < found.size


def test_verdict_primal_infeasible(dtype):
    dy, A, lower, apart = values(dtype, (-1.0, 0.0, 1.0), (0.0, 1.0, 1e-9), (-1.0, 1.0), (0.0, 2.0))
    upper = lower + np.abs(apart)
    one = np.ones_like(dy)
    data = QPData(*map(each_alone, (one, one, A, lower, upper)))
    products = scalar_products(dtype)
    expected = np.ravel(is_primal_infeasible(data, products, each_alone(dy), SETTINGS))
    support = upper * np.maximum(dy, 0) + lower * np.minimum(dy, 0)
    eps = np.array(SETTINGS.eps_prim_inf, dtype)
    # However small the only entry of a column is, it is the size of that column.
    sums = np.abs(dy), support, np.abs(support), np.where(A != 0, np.abs(dy), 0).astype(dtype)
    found = native("is_primal_infeasible", *sums, eps) != 0
    np.testing.assert_array_equal(found, expected)
    assert 0 < found.sum() < found.size


def test_support_that_is_rounding_certifies_nothing(dtype):
    """Two rows with the same normal, whose bounds differ by what the sums round."""
    step = np.finfo(dtype).eps
    beyond = np.array([0, 1, 2, 4, 30, 100, 1e4], dtype)
    upper = jnp.stack([jnp.asarray(1 - beyond * step, dtype), jnp.full(7, np.inf, dtype)], axis=1)
    lower = jnp.stack([jnp.full(7, -np.inf, dtype), jnp.ones(7, dtype)], axis=1)
    dy = jnp.tile(jnp.asarray([1.0, -1.0], dtype)[None, :, None], (7, 1, 1))
    data = QPData(dy, dy, dy, lower[..., None], upper[..., None])
    products = SimpleNamespace(
        AT=SimpleNamespace(
            product=lambda _, y: y.sum(axis=1, keepdims=True),
            row_norms=lambda values: jnp.abs(values).max(axis=1, keepdims=True),
        )
    )
    expected = np.ravel(is_primal_infeasible(data, products, dy, SETTINGS))
    support = (np.asarray(upper[:, 0]) - 1).astype(dtype)
    one = np.ones_like(support)
    eps = np.array(SETTINGS.eps_prim_inf, dtype)
    found = native("is_primal_infeasible", one, support, one + one, 0 * one, eps) != 0
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, beyond > 20)


def test_references_of_certificates(dtype):
    checks = np.arange(1, 500)
    expected = np.asarray(is_reference(checks))
    np.testing.assert_array_equal(native("is_reference", checks.astype(dtype)) != 0, expected)
    assert checks[expected].tolist()[:9] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
