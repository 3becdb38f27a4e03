"""Each formula of the interior-point method has two homes, native source and JAX, which agree."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc.mpc.interior_point.point import Point, Rows
from warpmpc.mpc.interior_point.problem_functions import NewtonData
from warpmpc.mpc.interior_point.restoration import Restoration
from warpmpc.mpc.interior_point.row_work import GeneralRows, Here, NativeRows, Taken
from warpmpc.mpc.interior_point.sides import Elastic, Side

TILES, LANES, N_VARS, N_EQUAL = 2, 32, 7, 4
TOLERANCE = {"float32": 3e-4, "float64": 1e-11}
KINDS = {"soft and hard": (3, 5), "soft": (4, 0), "hard": (0, 6), "equalities": (0, 0)}


def example(kinds, dtype, seed=0):
    """A random iterate: absent bounds, fixed rows, soft and hard sides, lanes in restoration."""
    rng = np.random.default_rng(seed)
    n_soft, n_hard = KINDS[kinds]
    n_slack = n_soft + n_hard

    def array(rows, low=-1.0, high=1.0):
        return jnp.asarray(rng.uniform(low, high, (TILES, rows, LANES)), dtype=dtype)

    def mask(rows, share):
        return jnp.asarray(rng.random((TILES, rows, LANES)) < share, dtype=dtype)

    s, sides = array(n_slack), []
    fixed = mask(n_slack, 0.1) * (np.arange(n_slack)[None, :, None] >= n_soft)
    bounded = jnp.zeros((TILES, n_slack, LANES), dtype=dtype)
    for first, last in ((0, n_soft), (n_soft, n_slack)):
        for upper in (False, True) if last > first else ():
            rows = last - first
            has = mask(rows, 0.7) * (1 - fixed[:, first:last])
            gap, own = array(rows, 0.01, 2), s[:, first:last]
            soft = mask(rows, 0.6) * has
            elastic = None
            if first < n_soft:
                gap = jnp.where(soft > 0, gap - 0.5, gap)
                e = jnp.where(soft > 0, jnp.maximum(-gap, 0) + 0.1, 0)
                w = jnp.where(soft > 0, array(rows, 0.1, 3), 1)
                prices = (jnp.where(soft > 0, array(rows, 0, 5), 0) for _ in range(2))
                elastic = Elastic(e, w, *prices, soft)
            bound = jnp.where(has > 0, own + gap if upper else own - gap, 0)
            z = jnp.where(has > 0, array(rows, 0.01, 3), 0)
            sides.append(Side(z, has, bound, elastic, first, last, upper))
            bounded = bounded.at[:, first:last].add(has)
    some = ((bounded > 0) | (fixed > 0)).astype(dtype)
    rows = Rows(array(N_EQUAL), fixed, some, jnp.zeros((TILES, 1, LANES), dtype=bool))
    point = Point(
        z=array(N_VARS),
        s=s,
        y=array(n_slack + N_EQUAL),
        sides=tuple(sides),
        cost=array(1),
        g=array(n_slack + N_EQUAL),
        mu=array(1, 1e-4, 0.1),
        theta_max=array(1, 1, 2),
    )
    restoration = replace(Restoration.none(point.cost), on=mask(1, 0.3).astype(jnp.int32))
    here = Here(point, rows, restoration, array(N_VARS), point.mu, jnp.full_like(point.mu, 0.99))
    data = NewtonData(array(3), here.q, array(3), array(N_VARS))
    x = array(N_VARS + n_slack + N_EQUAL)
    return SimpleNamespace(here=here, data=data, x=x, array=array, mask=mask, n_slack=n_slack)


def works(given):
    order = SimpleNamespace(
        n_soft=sum(side.last for side in given.here.point.sides[:1] if side.elastic),
        n_slack=given.n_slack,
    )
    return GeneralRows(), NativeRows(order, str(given.x.dtype))


def assert_equal(found, wanted, dtype):
    """All arrays agree; entries that are not finite are so in both."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    for mine, theirs in pairs:
        np.testing.assert_allclose(
            np.asarray(mine, dtype="float64"),
            np.asarray(theirs, dtype="float64"),
            rtol=TOLERANCE[dtype],
            atol=TOLERANCE[dtype],
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kinds", KINDS)
def test_an_iteration_is_the_same(kinds, dtype):
    given = example(kinds, dtype)
    here, (general, native) = given.here, works(given)
    wanted = general.errors(here.point, here.rows, given.data)
    assert_equal(native.errors(here.point, here.rows, given.data), wanted, dtype)
    assert_equal(native.eliminated(here), general.eliminated(here), dtype)
    step, other = general.step(here, given.x), general.step(here, 0.5 * given.x)
    assert_equal(native.step(here, given.x), step, dtype)
    # A step that no side hinders, so that barriers are finite.
    alpha = 0.9 * step.longest
    trial = general.trial(here, step, alpha)
    assert_equal(native.trial(here, step, alpha), trial, dtype)
    cost, g = given.array(1), given.array(given.n_slack + N_EQUAL)
    measured = general.measured(here, trial, cost, g)
    assert_equal(native.measured(here, trial, cost, g), measured, dtype)
    before = replace(here.point, y=given.array(given.n_slack + N_EQUAL))
    taken = Taken(step, other, 0.5 * alpha, cost, g, given.mask(1, 0.7) > 0)
    assert_equal(native.taken(here, before, taken), general.taken(here, before, taken), dtype)


@pytest.mark.parametrize("name", ["z", "s", "y", "g"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_seen_in_its_lane_alone(name, value):
    """An error must not hide behind a maximum that forgets NaN."""
    given = example("soft and hard", "float64")
    point = given.here.point
    spoiled = replace(point, **{name: getattr(point, name).at[1, -1, 5].set(value)})
    here = replace(given.here, point=spoiled)
    general, native = works(given)
    wanted = general.errors(spoiled, here.rows, given.data)
    assert_equal(native.errors(spoiled, here.rows, given.data), wanted, "float64")
    step = general.step(here, given.x)
    trial, other = (work.trial(here, step, step.longest) for work in (general, native))
    assert_equal(other.is_finite, trial.is_finite, "float64")
    measures = [work.measured(here, trial, point.cost, spoiled.g) for work in (general, native)]
    np.testing.assert_array_equal(measures[0].is_finite, measures[1].is_finite)
    lane = np.zeros((TILES, LANES), dtype=bool)
    lane[1, 5] = True
    for mine, theirs in zip(*(jax.tree.leaves(m.measures) for m in measures), strict=True):
        np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(theirs))
        assert np.isfinite(np.asarray(mine)[:, 0][~lane]).all()


def test_a_point_beyond_a_bound_has_no_barrier():
    """Two rooms of the wrong sign must not pass for a product that is positive."""
    given = example("hard", "float64")
    here, (general, native) = given.here, works(given)
    side = here.point.sides[0]
    both = side.has.at[:, :2].set(1)
    bound = side.bound.at[:, :2].set(here.point.s[:, :2] + 1)  # above the slacks
    point = replace(here.point, sides=(replace(side, has=both, bound=bound), here.point.sides[1]))
    here = replace(here, point=point)
    for work in (general, native):
        assert np.isnan(np.asarray(work.eliminated(here).measures.phi)).all()
