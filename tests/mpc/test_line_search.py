"""The rules of the line search against a plain transcription of PROBLEMS.md, section A."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import LineSearchSettings, SQPSettings
from warpmpc.mpc.line_search import Trial, choose
from warpmpc.mpc.stage_evaluation import Evaluation

G_MAX, G_MIN, GAMMA, ARMIJO, SCALE = 1e-1, 1e-3, 1e-3, 1e-4, 0.1
LANES = 32


def fixed(**line_search) -> SQPSettings:
    """Settings with a fixed number of iterations: the rules as published."""
    return SQPSettings(mode="fixed", line_search=LineSearchSettings(**line_search))


def published_filter(c0, th0, m0, costs, thetas):
    """Index of the largest accepted step and the branch that took it; None if there is none."""
    for i, (c, th) in enumerate(zip(costs, thetas, strict=True)):
        if th > G_MAX:
            branch, accepted = 1, th < (1 - GAMMA) * th0
        elif th < G_MIN and th0 < G_MIN and m0 < 0:
            branch, accepted = 2, c < c0 + ARMIJO * m0
        else:
            branch, accepted = 3, c < c0 - GAMMA * th0 or th < (1 - GAMMA) * th0
        if accepted:
            return i, branch
    return None, 0


def draw(rng, steps, tiles=60):
    """Random values around all thresholds: costs, squared violations, slopes and multipliers."""
    shape = (steps, tiles, 1, LANES)
    least = rng.choice([-5, -1.5], shape[1:])  # half of the instances stay far from feasibility
    theta = 10.0 ** rng.uniform(least, 1, shape) * rng.choice([0, 1, 1, 1], shape)
    theta_0 = 10.0 ** rng.uniform(least, 1) * rng.choice([0, 1, 1], shape[1:])
    cost_0 = rng.normal(size=shape[1:])
    # Changes of the cost from far below to far above those that the rules can tell apart.
    change = rng.choice([-1, 1], shape) * 10.0 ** rng.uniform(-8, 0, shape)
    slope = rng.choice([-1, -1, 1], shape[1:]) * 10.0 ** rng.uniform(-3, 1, shape[1:])
    weight = rng.exponential(size=shape[1:])
    return cost_0, theta_0, slope, weight, cost_0 + change, theta


def trial_of(cost_0, theta_0, slope, weight, cost, theta):
    """These values as a `Trial`; sums of violations are those of a single row."""

    def evaluation(cost, theta):
        violation = theta / SCALE
        return Evaluation(*(jnp.asarray(a) for a in (cost, violation**2, violation, violation)))

    here = evaluation(cost_0[None], theta_0[None])
    return Trial(here, evaluation(cost, theta), jnp.asarray(slope[None]), jnp.asarray(weight[None]))


def columns(*arrays):
    """Values of one instance after another: scalars at the iterate, lists over the ladder."""
    flat = [a.reshape(*a.shape[:-3], -1) for a in arrays]
    return [[a[..., b] for a in flat] for b in range(flat[0].shape[-1])]


class TestLadder:
    @pytest.mark.parametrize(
        ("step_min", "length", "smallest"),
        [(0.1, 4, 0.125), (0.03, 6, 0.03125), (0.01, 7, 0.015625)],
    )
    def test_published_lengths(self, step_min, length, smallest):
        ladder = LineSearchSettings(step_min=step_min).ladder
        assert len(ladder) == length
        assert ladder == tuple(0.5**i for i in range(length))
        assert ladder[-1] == smallest

    @pytest.mark.parametrize(
        ("decay", "step_min", "length"), [(0.5, 0.125, 4), (0.5, 1.0, 1), (0.1, 0.5, 1)]
    )
    def test_a_step_as_small_as_the_smallest_is_tried(self, decay, step_min, length):
        assert len(LineSearchSettings(decay=decay, step_min=step_min).ladder) == length

    def test_full_has_one_step(self):
        assert LineSearchSettings(kind="full").ladder == (1.0,)


class TestFilter:
    def test_every_branch_of_the_published_rule(self):
        settings = fixed(step_min=0.1)
        given = draw(np.random.default_rng(0), 4)
        found = choose(trial_of(*given), settings)
        ladder = settings.line_search.ladder
        seen = set()
        for instance, alpha, index, accepted in zip(
            columns(*given),
            *(np.asarray(a).ravel() for a in (found.alpha, found.index, found.accepted)),
            strict=True,
        ):
            cost_0, theta_0, slope, _, costs, thetas = instance
            wanted, branch = published_filter(cost_0, theta_0, slope, costs, thetas)
            seen.add((branch, wanted))
            assert bool(accepted) == (wanted is not None)
            assert index == (3 if wanted is None else wanted)
            assert alpha == ladder[index]
        assert seen >= {(b, i) for b in (1, 2, 3) for i in range(4)} | {(0, None)}

    def test_strictly_smaller(self):
        """Equal to the limit is not below it, in every branch."""
        settings = fixed(step_min=1.0)
        one = np.ones((1, 1, 1, LANES))
        cases = [  # cost_0, theta_0, slope, cost, theta
            (0.0, 1.0, -1.0, -9.0, 1.0 - GAMMA),  # far away
            (0.0, 0.0, -1.0, -ARMIJO, 0.0),  # feasible
            (0.0, 0.0, 1.0, 0.0, 0.0),  # feasible, uphill
        ]
        for cost_0, theta_0, slope, cost, theta in cases:
            at = (cost_0 * one[0], theta_0 * one[0], slope * one[0], one[0])
            assert not choose(trial_of(*at, cost * one, theta * one), settings).accepted.any()
            lower = trial_of(*at, (cost - 1e-9) * one, (1 - 1e-9) * theta * one)
            assert choose(lower, settings).accepted.all()

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    @pytest.mark.parametrize("what", ["cost", "theta"])
    @pytest.mark.parametrize("kind", ["filter", "merit", "full"])
    def test_points_that_are_not_finite_are_never_accepted(self, bad, what, kind):
        """Not even where the violation falls; the next step of the ladder is."""
        settings = fixed(kind=kind, step_min=0.5)
        steps = len(settings.line_search.ladder)
        one = np.ones((steps, 1, 1, LANES))
        cost, theta = -one, 0.5 * one
        {"cost": cost, "theta": theta}[what][0] = bad
        given = trial_of(one[0], one[0], -one[0], one[0], cost, theta)
        found = choose(given, settings)
        assert np.all(found.accepted == (kind != "full"))
        assert np.all(found.index == steps - 1)

    def test_the_cost_here_is_nan(self):
        one = np.ones((2, 1, 1, LANES))
        given = trial_of(np.nan * one[0], 0 * one[0], -one[0], one[0], -one, 0 * one)
        assert not choose(given, fixed(step_min=0.5)).accepted.any()


class TestNothingAccepted:
    def trial(self, steps):
        one = np.ones((steps, 1, 1, LANES))
        return trial_of(one[0], one[0], -one[0], one[0], 9 * one, 9 * one)

    @pytest.mark.parametrize(
        ("mode", "fallback", "alpha"),
        [
            ("fixed", None, 0.125),
            ("fixed", "smallest", 0.125),
            ("fixed", "stay", 0.0),
            ("converge", None, 0.0),
            ("converge", "smallest", 0.125),
            ("converge", "stay", 0.0),
        ],
    )
    def test_smallest_or_none(self, mode, fallback, alpha):
        line_search = LineSearchSettings(step_min=0.1, fallback=fallback)
        found = choose(self.trial(4), SQPSettings(mode=mode, line_search=line_search))
        assert not found.accepted.any()
        assert np.all(found.alpha == alpha)


class TestMerit:
    def test_armijo_on_the_sum(self):
        settings = fixed(kind="merit", step_min=0.1, merit_margin=2.0, armijo=0.3)
        given = draw(np.random.default_rng(1), 4)
        found = choose(trial_of(*given), settings)
        index, accepted = np.asarray(found.index).ravel(), np.asarray(found.accepted).ravel()
        for b, (cost_0, theta_0, slope, weight, costs, thetas) in enumerate(columns(*given)):
            mu = 2.0 * weight
            merit_0, merits = cost_0 + mu * theta_0 / SCALE, costs + mu * thetas / SCALE
            expected = min(slope - mu * theta_0 / SCALE, 0)
            good = merits <= merit_0 + 0.3 * 0.5 ** np.arange(4) * expected
            assert accepted[b] == good.any()
            assert index[b] == (np.argmax(good) if good.any() else 3)
        assert set(index) == {0, 1, 2, 3}
        assert not accepted.all()

    def test_full_takes_everything_finite(self):
        given = draw(np.random.default_rng(2), 1)
        found = choose(trial_of(*given), fixed(kind="full"))
        assert found.accepted.all()
        assert np.all(found.alpha == 1)


class TestConvergentMode:
    def test_small_violations_must_fall_too(self):
        """Below the published threshold the cost alone would decide for ever."""
        one = np.ones((1, 1, 1, LANES))
        given = trial_of(one[0], 5e-4 * one[0], -one[0], 0 * one[0], 1.01 * one, 1e-5 * one)
        assert not choose(given, fixed(step_min=1.0)).accepted.any()
        settings = SQPSettings(line_search=LineSearchSettings(step_min=1.0))
        assert choose(given, settings).accepted.all()
        same = SQPSettings(line_search=LineSearchSettings(step_min=1.0, theta_min=1e-3))
        assert not choose(given, same).accepted.any()

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("kind", ["filter", "merit"])
    def test_rounding_is_no_increase(self, kind, dtype):
        eps = np.finfo(dtype).eps
        one = np.ones((1, 1, 1, LANES), dtype=dtype)
        zero, slope = 0 * one[0], -eps * one[0]
        line_search = LineSearchSettings(kind=kind, step_min=1.0)
        for increase, accepted in ((5, True), (15, False)):
            cost = (100 * (1 + increase * eps) * one).astype(dtype)
            given = trial_of(100 * one[0], zero, slope, zero, cost, 0 * one)
            found = choose(given, SQPSettings(line_search=line_search))
            assert np.all(found.accepted == accepted)
            assert found.alpha.dtype == dtype
            strict = LineSearchSettings(kind=kind, step_min=1.0, rounding=0)
            assert not choose(given, SQPSettings(line_search=strict)).accepted.any()
            assert not choose(given, fixed(kind=kind, step_min=1.0)).accepted.any()

    def test_far_from_feasibility_the_rule_is_the_published_one(self):
        settings = SQPSettings(line_search=LineSearchSettings(step_min=0.1, rounding=0))
        cost_0, theta_0, slope, weight, cost, theta = draw(np.random.default_rng(3), 4)
        theta_0, theta = 2e-3 + theta_0, theta + 2e-3
        found = choose(trial_of(cost_0, theta_0, slope, weight, cost, theta), settings)
        accepted = np.asarray(found.accepted).ravel()
        for b, (c0, th0, m0, c, th) in enumerate(columns(cost_0, theta_0, slope, cost, theta)):
            wanted, _ = published_filter(c0, th0, m0, c, th)
            assert accepted[b] == (wanted is not None)
