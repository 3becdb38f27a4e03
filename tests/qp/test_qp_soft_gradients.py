"""Derivatives of QPs with soft rows with respect to all data, against central differences."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qp_cases import ARGUMENTS, INF
from qp_soft_cases import BATCH, SOFT_ROWS, SoftBatch, soft_ring, soft_solver

from warpmpc import ADMMSettings, Status
from warpmpc.qp.products import QPMatrices
from warpmpc.qp.scaling import QPData
from warpmpc.qp.sensitivity.row_state import Point, row_state
from warpmpc.qp.soft import SoftRows
from warpmpc.symbolic.pattern import SparsePattern

TIGHT = ADMMSettings(eps_abs=1e-11, eps_rel=1e-11)
LSQ = replace(TIGHT, sensitivity="lsq")
NAMES = (*ARGUMENTS, "penalties")
STEP, MAX_ERROR, MARGIN = 1e-4, 1e-5, 0.02
# What a row does: inside, at a bound, or beyond one.
INSIDE, HELD, BEYOND = 0, 1, 2


def outputs(settings: ADMMSettings, *args):
    solution = soft_solver("sparse", settings).solve(*args[:5], penalties=args[5])
    return solution.x, solution.y, solution.objective


@cache
def pullback(settings: ADMMSettings = TIGHT):
    """Solution and gradients from the data and the cotangents of (x, y, objective)."""

    @jax.jit
    def run(args, bars):
        result, back = jax.vjp(lambda *data: outputs(settings, *data), *args)
        return result, back(bars)

    return run


def cotangents(seed: int, x: float = 1.0, y: float = 1.0, objective: float = 1.0):
    """Random cotangents, each part with its own weight."""
    rng = np.random.default_rng([seed, 4])
    return (
        x * rng.normal(size=(BATCH, 8)),
        y * rng.normal(size=(BATCH, 12)),
        objective * rng.normal(size=BATCH),
    )


def arguments(batch: SoftBatch) -> tuple[np.ndarray, ...]:
    return (*batch.args, batch.penalties)


@cache
def solution():
    found = soft_ring().solve(soft_solver("sparse", TIGHT))
    np.testing.assert_array_equal(found.status, Status.SOLVED)
    return found


@cache
def states() -> tuple[np.ndarray, np.ndarray]:
    """What each soft row does, and whether it does so clearly."""
    batch = soft_ring()
    s, y = (np.asarray(v)[:, SOFT_ROWS] for v in (solution().warm_start.s, solution().y))
    low, high = batch.given.lower[:, SOFT_ROWS], batch.given.upper[:, SOFT_ROWS]
    distance = np.maximum(low - s, s - high)  # positive outside
    w = np.where(y > 0, batch.penalties[:, 1], batch.penalties[:, 0])
    state = np.where(distance > 1e-7, BEYOND, np.where(np.abs(y) > 1e-7, HELD, INSIDE))
    held = ((np.abs(y) > MARGIN) | (low == high)) & (np.abs(y) < w - MARGIN)
    clear = np.select(
        [state == BEYOND, state == HELD], [distance > MARGIN, held], distance < -MARGIN
    )
    return state, clear


@cache
def regular() -> tuple[int, ...]:
    """Instances in which every row does clearly what it does, and no two bounds depend."""
    batch, found = soft_ring(), []
    state, clear = states()
    hard = np.setdiff1d(np.arange(12), SOFT_ROWS)
    for b, qp in enumerate(batch.given.instances):
        Ax, y = qp.A @ np.asarray(solution().x[b]), np.abs(solution().y[b])
        slack = np.minimum(Ax - qp.lower, qp.upper - Ax)
        fine = ((y > MARGIN) | (slack > MARGIN) | (qp.lower == qp.upper))[hard]
        active = (y[hard] > MARGIN).sum() + (state[b] == HELD).sum()
        if fine.all() and clear[b].all() and active < 8:
            found.append(b)
    return tuple(found)


def test_regular_instances_have_rows_of_every_kind():
    state, _ = states()
    s, y = (np.asarray(v)[:, SOFT_ROWS] for v in (solution().warm_start.s, solution().y))
    some = np.isin(np.arange(BATCH), regular())[:, None]
    w = soft_ring().penalties
    beyond = some & (state == BEYOND)
    quadratic = np.where(y > 0, w[:, 3], w[:, 2])
    linear = np.where(y > 0, w[:, 1], w[:, 0])
    for side in (y > 0, y < 0):
        for what in (quadratic == 0, (linear == 0), (quadratic > 0) & (linear > 0)):
            assert (beyond & side & what).any()
        assert (some & (state == HELD) & side).any()
    assert (some & (state == INSIDE)).any()
    assert len(regular()) >= 10
    assert np.isfinite(s).all()


def differences(b: int, name: str, bars) -> np.ndarray:
    """Central differences of the functional of instance b for all entries of an argument."""
    one = dict(zip(NAMES, (array[b] for array in arguments(soft_ring())), strict=True))
    jobs = []
    for entry in np.ndindex(one[name].shape):
        for sign in (1, -1):
            moved = {n: array.copy() for n, array in one.items()}
            equality = name in ("lower", "upper") and one["lower"][entry] == one["upper"][entry]
            for n in ("lower", "upper") if equality else (name,):
                moved[n][entry] += sign * STEP
            # A penalty that is zero is moved up only.
            if name == "penalties" and one[name][entry] == 0 and sign < 0:
                moved[name][entry] = 0
            jobs.append(list(moved.values()))
    found: list[float] = []
    for first in range(0, len(jobs), BATCH):
        chunk = jobs[first : first + BATCH]
        padded = chunk + [chunk[0]] * (BATCH - len(chunk))
        args = [np.stack(parts) for parts in zip(*padded, strict=True)]
        x, y, objective = (np.asarray(v) for v in compiled()(*args))
        value = x @ bars[0][b] + y @ bars[1][b] + objective * bars[2][b]
        found += value[: len(chunk)].tolist()
    pairs = np.array(found).reshape(*one[name].shape, 2)
    step = np.full(one[name].shape, 2 * STEP)
    if name == "penalties":
        step[one[name] == 0] = STEP
    return (pairs[..., 0] - pairs[..., 1]) / step


@cache
def compiled():
    return jax.jit(lambda *args: outputs(TIGHT, *args))


def analytic(gradients, b: int, name: str) -> np.ndarray:
    """The gradient in the convention of `differences`: equalities move with both bounds."""
    by_name = dict(zip(NAMES, (np.asarray(g[b]) for g in gradients), strict=True))
    if name not in ("lower", "upper"):
        return by_name[name]
    given = soft_ring().given
    equal = given.lower[b] == given.upper[b]
    return np.where(equal, by_name["lower"] + by_name["upper"], by_name[name])


@pytest.mark.parametrize("settings", [TIGHT, LSQ], ids=["kkt", "lsq"])
def test_gradients_are_differences(settings):
    """One instance with every kind of penalty, with respect to all data."""
    bars = cotangents(0)
    _, gradients = pullback(settings)(arguments(soft_ring()), bars)
    chosen = [next(b for b in regular() if b % 6 == kind) for kind in range(6)]
    for b in chosen:
        for name in NAMES:
            wanted, got = differences(b, name, bars), analytic(gradients, b, name)
            one_sided = 20 if name == "penalties" else 1
            error = np.linalg.norm(got - wanted) / max(np.linalg.norm(wanted), 1e-2)
            assert error < one_sided * MAX_ERROR, (b, name, error)
        assert np.linalg.norm(analytic(gradients, b, "penalties")) > 1e-2


@pytest.mark.parametrize(("x", "y", "objective"), [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_other_functionals(x, y, objective):
    bars = cotangents(1, x, y, objective)
    _, gradients = pullback()(arguments(soft_ring()), bars)
    b = regular()[1]
    for name in ("q", "upper", "penalties"):
        wanted, got = differences(b, name, bars), analytic(gradients, b, name)
        error = np.linalg.norm(got - wanted) / max(np.linalg.norm(wanted), 1e-2)
        assert error < 20 * MAX_ERROR, (name, error)


def test_forward_mode_agrees_with_reverse_mode():
    args, bars, rng = arguments(soft_ring()), cotangents(2), np.random.default_rng(8)
    tangents = tuple(rng.normal(size=array.shape) for array in args)
    function = jax.jit(lambda a, t: jax.jvp(lambda *data: outputs(TIGHT, *data), a, t)[1])
    changes = function(args, tangents)
    _, gradients = pullback()(args, bars)
    forward = sum(inner(*pair) for pair in zip(changes, bars, strict=True))
    reverse = sum(inner(*pair) for pair in zip(gradients, tangents, strict=True))
    rows = list(regular())
    np.testing.assert_allclose(forward[rows], reverse[rows], rtol=1e-8, atol=1e-8)


def inner(a, b) -> np.ndarray:
    return (np.asarray(a) * b).reshape(BATCH, -1).sum(axis=1)


def test_inactive_and_infinite_penalties_have_no_gradient():
    batch = soft_ring().copy()
    batch.penalties[3, 0, 2] = np.nan
    _, gradients = pullback()(arguments(batch), cotangents(3))
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert all((np.asarray(gradient)[3] == 0).all() for gradient in gradients)
    of_penalties, (state, _) = np.asarray(gradients[5]), states()
    assert (of_penalties[batch.penalties == INF] == 0).all()
    held = np.broadcast_to((state != BEYOND)[:, None], of_penalties.shape)
    assert (of_penalties[held] == 0).all()
    assert (of_penalties[~held] != 0).any()


def test_what_a_row_does_follows_from_x_and_y():
    """An outer method need not know s."""
    batch, found = soft_ring(), solution()
    P, A = (SparsePattern.from_scipy(matrix) for matrix in (batch.given.P, batch.given.A))
    matrices, soft = QPMatrices(P, np.arange(P.nnz), A), SoftRows(SOFT_ROWS, 12)
    flat = [jnp.asarray(array.reshape(BATCH, -1))[..., None] for array in arguments(batch)]
    x, y, s = (array[..., None] for array in (found.x, found.y, found.warm_start.s))
    valid = jnp.ones((BATCH, 1, 1), dtype=bool)
    known, guessed = (
        row_state(Point(QPData(*flat), x, y, valid, rows), soft, matrices) for rows in (s, None)
    )
    assert known.beyond is not None
    assert guessed.beyond is not None
    np.testing.assert_array_equal(guessed.active, known.active)
    np.testing.assert_array_equal(guessed.beyond.violated, known.beyond.violated)
    np.testing.assert_allclose(guessed.beyond.above, known.beyond.above, atol=1e-9)
    np.testing.assert_allclose(guessed.beyond.below, known.beyond.below, atol=1e-9)
    wanted = states()[0] == BEYOND
    np.testing.assert_array_equal(np.asarray(known.beyond.violated)[:, SOFT_ROWS, 0], wanted)
