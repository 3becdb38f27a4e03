"""Derivatives of solutions with respect to all data, against central differences in float64."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qp_cases import (
    ARGUMENTS,
    SPOILED,
    QPBatch,
    fixed,
    quadcopter,
    ring,
    solver_for,
    spoiled_ring,
    stack,
)

from warpmpc import ADMMSettings, ProblemError, QPSolver, SettingsError, Status

TIGHT = ADMMSettings(eps_abs=1e-11, eps_rel=1e-11, max_iter=4000)
BATCH, STEP, MAX_ERROR = 33, 1e-4, 1e-5
MARGIN = 0.02  # multipliers and slacks beyond it count as far from zero


def outputs(solver: QPSolver, *args):
    solution = solver.solve(*args)
    return solution.x, solution.y, solution.objective


@cache
def pullback(engine: str = "sparse"):
    """Solution and gradients from the data and the cotangents of (x, y, objective)."""
    solver = solver_for(ring(BATCH), TIGHT, engine)

    @jax.jit
    def run(args, bars):
        result, back = jax.vjp(lambda *data: outputs(solver, *data), *args)
        return result, back(bars)

    return run


def cotangents(seed: int = 0, x: float = 1.0, y: float = 1.0, objective: float = 0.0):
    """Random cotangents, each part with its own weight."""
    rng = np.random.default_rng([seed, 3])
    return (
        x * rng.normal(size=(BATCH, 8)),
        y * rng.normal(size=(BATCH, 12)),
        objective * rng.normal(size=BATCH),
    )


def values(given: QPBatch, bars) -> np.ndarray:
    """The functional of each instance that the cotangents stand for."""
    solver = solver_for(ring(BATCH), TIGHT)
    solution = solver.solve(*given.args)
    np.testing.assert_array_equal(solution.status, Status.SOLVED)
    x, y, objective = (np.asarray(v) for v in (solution.x, solution.y, solution.objective))
    return (x * bars[0]).sum(1) + (y * bars[1]).sum(1) + objective * bars[2]


def moved(given: QPBatch, b: int, name: str, entry: int, step: float) -> list[np.ndarray]:
    """Data of an instance after a change of one entry; both bounds of an equality move."""
    args = {n: getattr(given, n)[b].copy() for n in ARGUMENTS}
    equality = name in ("lower", "upper") and args["lower"][entry] == args["upper"][entry]
    for n in ("lower", "upper") if equality else (name,):
        args[n][entry] += step
    return list(args.values())


def differences(given: QPBatch, b: int, name: str, bars) -> np.ndarray:
    """Central differences of the functional of instance b for all entries of an argument."""
    size = getattr(given, name).shape[1]
    jobs = [moved(given, b, name, e, sign * STEP) for e in range(size) for sign in (1, -1)]
    one = tuple(np.repeat(bar[b : b + 1], BATCH, axis=0) for bar in bars)
    found: list[float] = []
    for first in range(0, len(jobs), BATCH):
        chunk = jobs[first : first + BATCH]
        chunk += [chunk[0]] * (BATCH - len(chunk))
        batch = [np.stack(parts) for parts in zip(*chunk, strict=True)]
        found += values(QPBatch(given.P, given.A, *batch), one).tolist()
    pairs = np.array(found[: len(jobs)]).reshape(-1, 2)
    return (pairs[:, 0] - pairs[:, 1]) / (2 * STEP)


def analytic(given: QPBatch, gradients, b: int, name: str) -> np.ndarray:
    """The gradient in the convention of `differences`: equalities move with both bounds."""
    by_name = dict(zip(ARGUMENTS, (np.asarray(g[b]) for g in gradients), strict=True))
    if name not in ("lower", "upper"):
        return by_name[name]
    equal = given.lower[b] == given.upper[b]
    return np.where(equal, by_name["lower"] + by_name["upper"], by_name[name])


@cache
def regular() -> tuple[int, ...]:
    """Instances far from degeneracy: every row clearly active or clearly inactive."""
    given = ring(BATCH)
    solution = solver_for(given, TIGHT).solve(*given.args)
    found = []
    for b, qp in enumerate(given.instances):
        Ax, y = qp.A @ np.asarray(solution.x[b]), np.abs(solution.y[b])
        slack = np.minimum(Ax - qp.lower, qp.upper - Ax)
        clear = (y > MARGIN) | (slack > MARGIN) | (qp.lower == qp.upper)
        if clear.all() and (y > MARGIN).sum() < 8:
            found.append(b)
    return tuple(found)


def check_gradient(given: QPBatch, gradients, b: int, bars) -> None:
    for name in ARGUMENTS:
        wanted, got = differences(given, b, name, bars), analytic(given, gradients, b, name)
        error = np.linalg.norm(got - wanted) / max(np.linalg.norm(wanted), 1e-3)
        assert error < MAX_ERROR, (name, b, error)


class TestAgainstDifferences:
    def test_enough_instances_are_regular(self):
        y = np.asarray(solver_for(ring(BATCH), TIGHT).solve(*ring(BATCH).args).y)
        assert len(regular()) > 15
        assert (y[list(regular())[:4]] > MARGIN).any()
        assert (y[list(regular())[:4]] < -MARGIN).any()

    def test_functional_of_x_and_y(self):
        given, bars = ring(BATCH), cotangents()
        _, gradients = pullback()(given.args, bars)
        for b in regular()[:4]:
            check_gradient(given, gradients, b, bars)

    def test_dense_engine(self):
        given, bars = ring(BATCH), cotangents(2, objective=1.0)
        _, gradients = pullback("dense")(given.args, bars)
        check_gradient(given, gradients, regular()[5], bars)
        rows = list(regular())
        for got, wanted in zip(gradients, pullback()(given.args, bars)[1], strict=True):
            np.testing.assert_allclose(got[rows, :], wanted[rows, :], rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize(("x", "y", "objective"), [(0, 1, 0), (0, 0, 1), (1, -2, 0.5)])
    def test_other_functionals(self, x, y, objective):
        """Multipliers of either sign alone, the objective alone, everything."""
        given, bars = ring(BATCH), cotangents(1, x, y, objective)
        _, gradients = pullback()(given.args, bars)
        check_gradient(given, gradients, regular()[4], bars)

    def test_absent_and_inactive_bounds_have_no_gradient(self):
        given, bars = ring(BATCH), cotangents()
        result, gradients = pullback()(given.args, bars)
        y, equal = np.asarray(result[1]), given.lower == given.upper
        assert (np.asarray(gradients[3])[(y >= 0) & ~equal] == 0).all()
        assert (np.asarray(gradients[4])[(y <= 0) & ~equal] == 0).all()
        assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_forward_mode_agrees_with_reverse_mode():
    given, bars = ring(BATCH), cotangents(4, objective=1.0)
    rng = np.random.default_rng(8)
    tangents = tuple(rng.normal(size=array.shape) for array in given.args)
    solver = solver_for(given, TIGHT)
    function = jax.jit(lambda args, t: jax.jvp(lambda *a: outputs(solver, *a), args, t)[1])
    changes = function(given.args, tangents)
    _, gradients = pullback()(given.args, bars)
    rows = list(regular())
    forward = sum(inner(*pair) for pair in zip(changes, bars, strict=True))
    reverse = sum(inner(*pair) for pair in zip(gradients, tangents, strict=True))
    np.testing.assert_allclose(forward[rows], reverse[rows], rtol=1e-8, atol=1e-8)


def inner(a, b) -> np.ndarray:
    return (np.asarray(a) * b).reshape(BATCH, -1).sum(axis=1)


class TestWithoutSolution:
    def test_gradients_are_zero_and_neighbours_keep_every_bit(self):
        good, spoiled, bars = ring(BATCH), spoiled_ring(), cotangents(5, objective=1.0)
        (_, _, objective), gradients = pullback()(spoiled.args, bars)
        _, wanted = pullback()(good.args, bars)
        bad = sorted(SPOILED)
        assert np.isnan(np.asarray(objective)[bad]).any()
        for got, other in zip(gradients, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(got)[bad], 0)
            np.testing.assert_array_equal(
                np.delete(got, bad, axis=0), np.delete(other, bad, axis=0)
            )

    def test_cotangents_that_are_not_finite(self):
        """A loss of a NaN solution sends NaN back; it stays where it came from."""
        spoiled, bars = spoiled_ring(), cotangents(5, objective=1.0)
        _, wanted = pullback()(spoiled.args, bars)
        for bar in bars:
            bar[sorted(SPOILED)] = np.nan
        _, gradients = pullback()(spoiled.args, bars)
        for got, other in zip(gradients, wanted, strict=True):
            np.testing.assert_array_equal(got, other)


class TestSpecialPoints:
    def test_equality_with_multiplier_zero(self):
        """At the origin, with no cost: all multipliers are exactly 0, the derivative is not."""
        given, bars = ring(BATCH).copy(), cotangents(6)
        equal = given.lower == given.upper
        given.q[:] = 0
        given.lower[:] = np.where(equal, 0.0, np.where(np.isinf(given.lower), -np.inf, -1.0))
        given.upper[:] = np.where(equal, 0.0, np.where(np.isinf(given.upper), np.inf, 1.0))
        (x, y, _), gradients = pullback()(given.args, bars)
        np.testing.assert_array_equal(x, 0)
        np.testing.assert_array_equal(y, 0)
        for b in (0, 1):
            check_gradient(given, gradients, b, bars)
            both = np.asarray(gradients[3][b] + gradients[4][b])[equal[b]]
            assert (np.abs(both) > 1e-2).any()

    def test_dependent_active_rows(self):
        """The same row twice: multipliers are not unique, x is, and so are its derivatives."""
        given = ring(BATCH).copy()
        row = given.A.indices
        given.A_vals[:, row == 4] = given.A_vals[:, row == 0]
        given.lower[:, 4], given.upper[:, 4] = given.lower[:, 0], given.upper[:, 0]
        bars = cotangents(7, y=0.0)
        (_, y, _), gradients = pullback()(given.args, bars)
        twice = np.flatnonzero((np.abs(np.asarray(y)[:, [0, 4]]) > MARGIN).all(axis=1))
        assert len(twice) > 4
        for gradient in gradients:
            assert np.isfinite(gradient).all()
        clear = [b for b in twice if b in regular()][:2]
        assert clear
        for b in clear:
            wanted = differences(given, b, "q", bars)
            np.testing.assert_allclose(gradients[1][b], wanted, rtol=1e-4, atol=1e-5)
        _, with_y = pullback()(given.args, cotangents(7))
        assert all(np.isfinite(gradient).all() for gradient in with_y)


def test_full_pattern_of_P():
    """Values below the diagonal are never read; the others have the upper pattern's gradients."""
    given, bars = ring(BATCH), cotangents(9, objective=1.0)
    (x, *_), upper_gradients = pullback()(given.args, bars)
    full = given.instance(0).full_P
    full.sort_indices()
    solver = QPSolver(full, given.A, settings=TIGHT, dtype="float64")
    cols = np.repeat(np.arange(8), np.diff(full.indptr))
    below = full.indices > cols
    P_vals = np.stack([qp.full_P.tocsc().sorted_indices().data for qp in given.instances])
    np.testing.assert_array_equal(P_vals[:, ~below], given.P_vals)
    P_vals[:, below] = 1e3

    @jax.jit
    def run(P_vals):
        result, back = jax.vjp(lambda *data: outputs(solver, *data), P_vals, *given.args[1:])
        return result, back(bars)

    result, gradients = run(P_vals)
    np.testing.assert_allclose(result[0], x, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(np.asarray(gradients[0])[:, below], 0)
    rows = list(regular())
    np.testing.assert_allclose(
        np.asarray(gradients[0])[rows][:, ~below], upper_gradients[0][rows, :], rtol=1e-6, atol=1e-6
    )


def test_vmap_of_grad_with_respect_to_one_argument():
    given, bars = ring(BATCH), cotangents(10)
    solver = solver_for(given, TIGHT)

    def loss(P_vals, q, A_vals, lower, upper, x_bar, y_bar):
        solution = solver.solve(P_vals, q, A_vals, lower, upper)
        return solution.x @ x_bar + solution.y @ y_bar

    got = jax.jit(jax.vmap(jax.grad(loss, argnums=1)))(*given.args, *bars[:2])
    _, gradients = pullback()(given.args, bars)
    np.testing.assert_allclose(got, gradients[1], rtol=1e-9, atol=1e-11)


def test_linear_mpc_at_its_equilibrium():
    """Nothing to do, all multipliers 0: the first input's derivative is the feedback gain."""
    horizon, n_x, n_u = 2, 12, 4
    qp = quadcopter(horizon, np.zeros(n_x))
    given = stack([replace(qp, q=np.zeros_like(qp.q))])
    solver = solver_for(given, fixed(25))
    first = (horizon + 1) * n_x

    @jax.jit
    def gain(x_init):
        def first_input(x_init, weight):
            lower = jnp.asarray(given.lower[0]).at[:n_x].set(-x_init)
            upper = jnp.asarray(given.upper[0]).at[:n_x].set(-x_init)
            others = (array[0] for array in given.args[:3])
            return solver.solve(*others, lower, upper).x[first : first + n_u] @ weight

        return jax.vmap(jax.grad(first_input), in_axes=(None, 0))(x_init, jnp.eye(n_u))

    equalities = qp.A[: (horizon + 1) * n_x].toarray()
    P, m = qp.full_P.toarray(), equalities.shape[0]
    K = np.block([[P, equalities.T], [equalities, np.zeros((m, m))]])
    wanted = -np.linalg.solve(K, np.eye(K.shape[0])[:, P.shape[0] : P.shape[0] + n_x])
    np.testing.assert_allclose(
        gain(np.zeros(n_x)), wanted[first : first + n_u], rtol=1e-6, atol=1e-6
    )


def test_fixed_iterations_are_differentiated_wherever_they_end():
    """There is no tolerance to miss, so the last iterate counts as the solution."""
    given = ring(BATCH)
    solver = solver_for(given, fixed(4000, eps_abs=0.0, eps_rel=0.0))

    def total(q):
        solution = solver.solve(given.P_vals, q, *given.args[2:])
        return solution.x.sum(), (solution.status, solution.primal_residual)

    got, (status, residual) = jax.jit(jax.grad(total, has_aux=True))(given.q)
    np.testing.assert_array_equal(status, Status.MAX_ITER)
    bars = (np.ones((BATCH, 8)), np.zeros((BATCH, 12)), np.zeros(BATCH))
    rows = [b for b in regular() if residual[b] < 1e-6]  # their active set is the final one
    assert len(rows) > 10
    wanted = pullback()(given.args, bars)[1][1]
    np.testing.assert_allclose(got[rows, :], wanted[rows, :], rtol=1e-6, atol=1e-6)


def test_single_precision():
    given, bars = ring(BATCH), cotangents(11)
    # Without pivoting, float32 does not bear much smaller tolerances.
    solver = solver_for(given, ADMMSettings(eps_abs=5e-4, eps_rel=5e-4), dtype="float32")
    args, narrow = jax.tree.map(lambda a: jnp.asarray(a, dtype="float32"), (given.args, bars))

    @jax.jit
    def run(args):
        return jax.vjp(lambda *data: outputs(solver, *data), *args)[1](narrow)

    rows = list(regular())
    for got, wanted in zip(run(args), pullback()(given.args, bars)[1], strict=True):
        assert got.dtype == "float32"
        scale = np.abs(wanted[rows, :]).max()
        np.testing.assert_allclose(got[rows, :], wanted[rows, :], rtol=0, atol=5e-3 * scale)


def test_inexact_engine_is_refused():
    given = ring(BATCH)
    solver = solver_for(given, engine="pcg")
    with pytest.raises(SettingsError, match='"pcg" is too inexact for sensitivities'):
        jax.grad(lambda q: solver.solve(given.P_vals, q, *given.args[2:]).x.sum())(given.q)


def test_second_derivatives_are_refused():
    given = ring(BATCH)
    solver = solver_for(given, TIGHT)
    P_vals, q, *rest = (jnp.asarray(array[0]) for array in given.args)
    with pytest.raises(ProblemError, match="first derivatives only"):
        jax.hessian(lambda q: solver.solve(P_vals, q, *rest).objective)(q)
