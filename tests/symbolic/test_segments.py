"""The segmentation is exactly optimal, and fast enough for the largest patterns."""

import time

import numpy as np
import pytest
from cases import PROPERTY, STRUCTURE_NAMES, eliminated
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import cheapest_cut_cost, cut_cost

from warpmpc._errors import SettingsError
from warpmpc.symbolic.segments import optimal_segments, padded_work

MANY = settings(PROPERTY, max_examples=300)
TYPICAL_SECONDS = 5.0
WORST_SECONDS = 30.0


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Widths, weights and breaks of a small problem."""
    n = draw(st.integers(1, 9))
    widths = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    weights = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    breaks = draw(st.lists(st.integers(0, n - 1), max_size=3))
    return widths, weights, breaks


def check_cut(bounds: np.ndarray, n: int, budget: int, breaks: list[int]) -> None:
    assert bounds.dtype == np.int32
    assert bounds[0] == 0
    assert bounds[-1] == n
    assert np.all(np.diff(bounds) > 0)
    assert set(breaks) <= set(bounds.tolist())
    assert bounds.size - 1 <= len(set(breaks) - {0}) + budget


@MANY
@given(problems(), st.integers(1, 10))
def test_brute_force(problem, budget):
    widths, weights, breaks = problem
    bounds = optimal_segments(
        np.array(widths), budget, np.array(weights), np.array(breaks, dtype=int)
    )
    check_cut(bounds, len(widths), budget, breaks)
    cost = cut_cost(widths, weights, tuple(bounds.tolist()))
    assert cost == cheapest_cut_cost(widths, budget, weights, breaks)
    assert cost == padded_work(np.array(widths), bounds, np.array(weights))


@PROPERTY
@given(st.lists(st.integers(0, 9), min_size=1, max_size=10), st.integers(1, 10))
def test_brute_force_without_weights_and_breaks(widths, budget):
    bounds = optimal_segments(np.array(widths), budget)
    check_cut(bounds, len(widths), budget, [])
    ones = [1] * len(widths)
    assert padded_work(np.array(widths), bounds) == cheapest_cut_cost(widths, budget, ones, [])


@MANY
@given(problems())
def test_more_segments_never_cost_more(problem):
    widths, weights, breaks = (np.array(part, dtype=int) for part in problem)
    costs = [
        padded_work(widths, optimal_segments(widths, budget, weights, breaks), weights)
        for budget in range(1, 11)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == int((widths * weights).sum())


def test_uses_no_more_segments_than_useful():
    np.testing.assert_array_equal(optimal_segments(np.array([3, 3, 3, 3]), 4), [0, 4])
    np.testing.assert_array_equal(optimal_segments(np.array([3, 3, 1, 1, 1]), 4), [0, 2, 5])
    np.testing.assert_array_equal(optimal_segments(np.zeros(5, dtype=int), 3), [0, 5])


def test_breaks_are_kept_where_the_width_does_not_change():
    bounds = optimal_segments(np.full(6, 2), 1, breaks=np.array([2, 4]))
    np.testing.assert_array_equal(bounds, [0, 2, 4, 6])


def test_breaks_are_kept_where_nothing_has_weight():
    bounds = optimal_segments(np.ones(3, int), 1, np.zeros(3, int), np.array([1]))
    np.testing.assert_array_equal(bounds, [0, 1, 3])


def test_nothing_to_cut():
    bounds = optimal_segments(np.array([], dtype=int), 4)
    np.testing.assert_array_equal(bounds, [0])
    assert padded_work(np.array([], dtype=int), bounds) == 0


def test_large_costs_do_not_overflow():
    widths, weights = np.array([10**9, 1, 10**9]), np.array([10**6, 10**6, 10**6])
    bounds = optimal_segments(widths, 3, weights)
    np.testing.assert_array_equal(bounds, [0, 1, 2, 3])
    assert padded_work(widths, bounds, weights) == 2 * 10**15 + 10**6


def test_just_at_the_limit_of_small_integers():
    for top in (2**28 // 40 - 1, 2**28 // 40, 2**28 // 40 + 1):
        widths = np.array([top, 0, 5, top, 7] * 8)
        bounds = optimal_segments(widths, 40)
        assert padded_work(widths, bounds) == widths.sum()


@pytest.mark.parametrize("budget", [0, -3])
def test_budget_must_be_positive(budget):
    with pytest.raises(SettingsError, match=f"budget must be at least 1, got {budget}"):
        optimal_segments(np.ones(3, dtype=int), budget)


def seconds_for(widths: np.ndarray, budget: int, breaks: np.ndarray | None = None) -> float:
    start = time.process_time()
    bounds = optimal_segments(widths, budget, breaks=breaks)
    elapsed = time.process_time() - start
    check_cut(bounds, widths.size, budget, [] if breaks is None else breaks.tolist())
    return elapsed


@pytest.mark.parametrize("kind", ["uniform", "geometric", "permutation", "many_breaks"])
def test_five_thousand_columns(kind):
    rng, n, breaks = np.random.default_rng(0), 5000, None
    widths = {
        "uniform": rng.integers(0, 60, n),
        "geometric": rng.geometric(0.05, n),
        "permutation": rng.permutation(n),
        "many_breaks": rng.geometric(0.05, n),
    }[kind]
    if kind == "many_breaks":
        breaks = np.unique(rng.integers(0, n, 500))
    assert seconds_for(widths, 400, breaks) < TYPICAL_SECONDS


@pytest.mark.parametrize("name", STRUCTURE_NAMES)
def test_benchmark_systems(name):
    counts = eliminated(name, "amd").L_pattern.col_counts
    assert seconds_for(counts, 400) < TYPICAL_SECONDS


@pytest.mark.slow
def test_five_thousand_rising_columns():
    # The worst case: every column is wider than all before it, so all starts are tried again.
    assert seconds_for(np.arange(5000), 400) < WORST_SECONDS
