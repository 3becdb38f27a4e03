"""Forward mode of `solve` and `step`: against reverse mode, central differences, and its limits."""

from __future__ import annotations

from dataclasses import replace

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sqp_cases import FIXED_QP, TIGHT, arm, soft_arm

from warpmpc import OCP, MPCSolver, ProblemError, SQPSettings

STARTS = np.array([[0.3, 0.0], [-0.5, 0.1], [0.4, -0.2]])


def everything(solution):
    """A value per instance of everything that has a derivative."""
    values = jnp.sin(solution.z).sum(axis=-1) + jnp.cos(solution.warm_start.z).sum(axis=-1)
    return values + solution.cost + 0.1 * (solution.y**2).sum(axis=-1)


def along(function, point, direction, step=1e-5):
    """Central difference."""
    return (function(point + step * direction) - function(point - step * direction)) / (2 * step)


def losses_of(solver):
    n = solver.problem.n_x0
    return lambda p: everything(solver.solve(p[..., :n], p[..., n:]))


@pytest.fixture(scope="module")
def limited():
    """An arm whose torque and speed reach their bounds."""
    return MPCSolver(arm(3, hard=True), TIGHT, "float64", "dense")


@pytest.fixture(scope="module")
def points(limited):
    return limited.pack(STARTS)


@pytest.fixture(scope="module")
def direction(points):
    return jnp.asarray(np.random.default_rng(0).standard_normal(points.shape))


def test_reverse_mode_builds_no_kernels_of_forward_mode(limited, points, direction):
    """And forward mode agrees with reverse mode and with differences."""
    losses = losses_of(limited)
    gradient = jax.grad(lambda p: losses(p).sum())(points)
    exact = limited._solve._sensitivity._exact[0]
    assert "_pull_back_params" in vars(exact)
    assert "_push_forward_params" not in vars(exact)
    value, change = jax.jvp(losses, (points,), (direction,))
    assert "_push_forward_params" in vars(exact)
    np.testing.assert_array_equal(value, losses(points))
    np.testing.assert_allclose(change, (gradient * direction).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(change, along(losses, points, direction), rtol=1e-5)


def test_all_ways_to_ask(limited, points, direction):
    """`linearize`, `jacfwd`, `vmap` and `jit` in combination."""
    losses = losses_of(limited)
    _, wanted = jax.jvp(losses, (points,), (direction,))
    value, linear = jax.linearize(losses, points)
    np.testing.assert_array_equal(value, losses(points))
    np.testing.assert_allclose(linear(direction), wanted, rtol=1e-9)
    (back,) = jax.linear_transpose(linear, points)(jnp.ones(len(STARTS)))
    np.testing.assert_allclose((back * direction).sum(), wanted.sum(), rtol=1e-9)
    jacobians = jax.jit(jax.vmap(jax.jacfwd(losses)))(points)
    np.testing.assert_allclose(jacobians, back, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_parameters_that_all_instances_share(limited):
    """Their Jacobian has one column per entry, and moves every instance."""

    def each(w):
        return everything(limited.solve(STARTS, {"w": w}))

    w = jnp.array([1.0, 0.1, 0.1])
    found = jax.jacfwd(each)(w)
    wanted = np.stack([along(each, w, row, 1e-6) for row in np.eye(3)], axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jacrev(each)(w), found, rtol=1e-9)


@pytest.mark.slow
def test_instances_without_solution_do_not_move(limited, points, direction):
    """Zero there, and the others as before."""
    losses = jax.jit(
        lambda p, d: jax.jvp(lambda q: limited.solve(q[:, :2], q[:, 2:]).z, (p,), (d,))
    )
    _, wanted = losses(points, direction)
    _, found = losses(points.at[1, 0].set(jnp.nan), direction)
    np.testing.assert_array_equal(found[1], 0)
    np.testing.assert_array_equal(found[::2], wanted[::2])


@pytest.mark.parametrize(
    "twice",
    [
        lambda f: jax.jacrev(jax.jacrev(f)),
        pytest.param(jax.hessian, marks=pytest.mark.slow),
        pytest.param(lambda f: jax.jit(jax.hessian(f)), marks=pytest.mark.slow),
    ],
)
def test_second_derivatives_are_refused(limited, points, twice):
    with pytest.raises(ProblemError, match=r"first derivatives only: jax\.hessian"):
        twice(losses_of(limited))(points[0])


def coupled() -> OCP:
    """A cost whose Hessian has a block that is indefinite somewhere."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = OCP(x, u, {"w": ca.SX.sym("w", 1)}, horizon=2, dt=0.3)
    ocp.set_dynamics(ca.vertcat(x[1], ca.sin(x[0]) + u), integrator="euler")
    ocp.add_cost(0.5 * u**2 + ca.cos(x[0] * x[1]) + x[0] ** 2 * (1 + x[1] ** 2))
    return ocp


@pytest.mark.slow
@pytest.mark.parametrize("make", [soft_arm, lambda: arm(3, hard=True), coupled])
def test_steps(make):
    """Covers soft rows and projected blocks as well; also along the start."""
    settings = SQPSettings(mode="fixed", qp=replace(FIXED_QP, max_iter=4000))
    solver = MPCSolver(make(), settings, "float64", "sparse")
    packed = np.asarray(solver.pack(STARTS, np.full(solver.problem.n_params - 2, 0.7)))
    z = np.asarray(solver.z_guess(STARTS, packed[:, 2:])) + 0.1
    sizes = packed.shape[1]

    def losses(both):
        p, z = both[:, :sizes], both[:, sizes:]
        result, state = solver.step(z, p[:, 2:], x0=p[:, :2])
        result, _ = solver.step(result.z, p[:, 2:], state, x0=p[:, :2])
        return everything(result)

    point = jnp.concatenate([packed, z], axis=1)
    direction = jnp.asarray(np.random.default_rng(1).standard_normal(point.shape))
    _, found = jax.jit(lambda p, d: jax.jvp(losses, (p,), (d,)))(point, direction)
    gradient = jax.jit(jax.grad(lambda p: losses(p).sum()))(point)
    assert np.all(np.abs(found) > 1e-3)
    np.testing.assert_allclose(found, (gradient * direction).sum(axis=1), rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["staged", "sparse"])
def test_soft_rows_of_a_solve(engine):
    """Against differences, with penalties as parameters."""
    solver = MPCSolver(soft_arm(), TIGHT, "float64", engine)
    rng = np.random.default_rng(0)
    x0 = np.stack([rng.uniform(-0.9, 0.9, 8), rng.uniform(-0.3, 0.3, 8)], axis=1)
    p = jnp.asarray(np.concatenate([x0, 10.0 ** rng.uniform(-1.5, 1.5, (8, 2))], axis=1))
    direction = jnp.asarray(rng.standard_normal(p.shape))
    losses = jax.jit(losses_of(solver))
    _, found = jax.jvp(losses, (p,), (direction,))
    np.testing.assert_allclose(found, along(losses, p, direction), rtol=1e-4, atol=1e-5)
