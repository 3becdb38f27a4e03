"""Jacobians by elimination of vertices: the same numbers as CasADi's, in fewer operations."""

import casadi as ca
import numpy as np
import pytest

from warpmpc import robots
from warpmpc.symbolic.derivatives import vertex_elimination
from warpmpc.symbolic.derivatives.stage_model import sparse_jacobian
from warpmpc.symbolic.derivatives.vertex_elimination import jacobian

LINK = """
<body pos="0.2 0.1 0"><joint axis="{axis}" damping="1"/>
<geom size="0.1" fromto="0 0 0 0.2 0 0.1" type="capsule"/>{rest}</body>
"""


def arm(*axes):
    """MJCF of a chain of links."""
    rest = ""
    for axis in reversed(axes):
        rest = LINK.format(axis=axis, rest=rest)
    return f"<mujoco><worldbody>{rest}</worldbody></mujoco>"


@pytest.fixture(scope="module")
def interval(tmp_path_factory):
    """Rows of one interval of an arm with four joints, with its variables and parameters."""
    path = tmp_path_factory.mktemp("arm") / "arm.xml"
    path.write_text(arm("0 0 1", "0 1 0", "1 0 1", "0 1 0"))
    robot = robots.load(path)
    q, v = robot.symbols()
    x, tau, dt = ca.vertcat(q, v), ca.SX.sym("tau", 4), ca.SX.sym("dt")
    after = ca.SX.sym("x_next", 8)
    k = robot.xdot(q, v, tau)
    f = ca.Function("f", [x, tau], [k])
    k1 = f(x, tau)
    k2 = f(x + dt / 2 * k1, tau)
    k3 = f(x + dt / 2 * k2, tau)
    k4 = f(x + dt * k3, tau)
    rows = after - x - dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return rows, ca.vertcat(x, tau, after), dt


def values(expression, symbols, rng):
    """Values of an expression at random points."""
    function = ca.Function("f", symbols, [expression])
    points = [[0.3 * rng.normal(size=s.numel()) for s in symbols] for _ in range(5)]
    return np.array([np.array(ca.DM(function(*point))) for point in points])


def operations(expression, symbols):
    return ca.Function("f", symbols, [ca.cse(expression)]).n_instructions()


def test_the_jacobian_of_an_interval_is_casadis_in_half_the_operations(interval):
    rows, variables, dt = interval
    symbols, usual = [variables, dt], ca.jacobian(rows, variables)
    found = jacobian(rows, variables)
    assert found.sparsity() == usual.sparsity()
    expected = values(usual, symbols, np.random.default_rng(1))
    np.testing.assert_allclose(
        values(found, symbols, np.random.default_rng(1)), expected, rtol=0, atol=1e-11
    )
    assert operations(found, symbols) < 0.55 * operations(usual, symbols)


def test_rows_in_other_symbols_are_not_differentiated_again(interval):
    rows, variables, dt = interval
    jacobian(rows, variables)
    known = vertex_elimination._derivative.cache_info().misses
    others, step = ca.SX.sym("other", variables.numel() + 2), ca.SX.sym("step")
    again = ca.substitute(ca.vertcat(rows), ca.vertcat(variables, dt), ca.vertcat(others[2:], step))
    found = jacobian(ca.vertcat(others[0] - 1, again), others)
    assert vertex_elimination._derivative.cache_info().misses == known
    usual = ca.jacobian(ca.vertcat(others[0] - 1, again), others)
    assert found.sparsity() == usual.sparsity()
    np.testing.assert_allclose(
        values(found, [others, step], np.random.default_rng(2)),
        values(usual, [others, step], np.random.default_rng(2)),
        atol=1e-11,
    )


@pytest.fixture
def even_if_nothing_is_saved(monkeypatch):
    monkeypatch.setattr(vertex_elimination, "_WORTH", np.inf)
    vertex_elimination._derivative.cache_clear()
    yield
    vertex_elimination._derivative.cache_clear()


FUNCTIONS = {
    "sum": lambda x, y, p: x + y * p,
    "difference": lambda x, y, p: x - ca.sin(y) - x,
    "product": lambda x, y, p: x * y * x,
    "quotient": lambda x, y, p: (x + p) / (1.5 + y * y),
    "of a constant": lambda x, y, p: 1 / (1 + x * x) + p / (2 + y * y),
    "opposite": lambda x, y, p: -(-x * y),
    "square": lambda x, y, p: (x + y) ** 2,
    "twice": lambda x, y, p: 2 * (x * y),
    "root": lambda x, y, p: ca.sqrt(1 + x * x * y * y),
    "waves": lambda x, y, p: ca.sin(x * y) + ca.cos(x + p) * ca.tan(0.1 * ca.sin(y)),
    "exponentials": lambda x, y, p: ca.exp(0.3 * x) * ca.log(1 + y * y) + ca.tanh(x * y),
    "angle": lambda x, y, p: ca.atan2(x * x + 0.1, y * p),
    "power": lambda x, y, p: (1 + x * x) ** 1.7 + y,
    "choice": lambda x, y, p: ca.if_else(x > y, x * y, ca.sin(y)) * x,
    "largest": lambda x, y, p: ca.fmax(x * y, x) + ca.fabs(y) * x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.usefixtures("even_if_nothing_is_saved")
def test_every_operation_has_casadis_derivative(name):
    w, p = ca.SX.sym("w", 3), ca.SX.sym("p")
    x, y, z = ca.vertsplit(w)
    value = FUNCTIONS[name](x, y, p)
    # What is used twice, an output that is a variable, and rows without bends.
    rows = ca.vertcat(value * z, value + value, x, 3 * y, value, p)
    found, usual = jacobian(rows, w), ca.jacobian(rows, w)
    assert found.sparsity() == usual.sparsity()
    np.testing.assert_allclose(
        values(found, [w, p], np.random.default_rng(3)),
        values(usual, [w, p], np.random.default_rng(3)),
        rtol=1e-12,
        atol=1e-13,
    )


@pytest.mark.usefixtures("even_if_nothing_is_saved")
def test_the_slope_of_a_branch_that_is_not_taken_stays_out():
    x, y = ca.SX.sym("x"), ca.SX.sym("y")
    w = ca.vertcat(x, y)
    rows = ca.vertcat(ca.if_else(x > 0, ca.sqrt(x), x) * y, ca.sin(x) * y)
    function = ca.Function("f", [w], [jacobian(rows, w)])
    assert np.isfinite(np.array(ca.DM(function([0.0, 1.0])))).all()


def test_short_expressions_keep_casadis_jacobian():
    x = ca.SX.sym("x", 2)
    rows = ca.sin(x[0] * x[1]) * x
    assert str(sparse_jacobian(rows, x)) == str(ca.jacobian(rows, x))
