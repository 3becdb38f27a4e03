"""Levels, phases and padded tables; the tables are executed by a NumPy interpreter."""

from itertools import pairwise

import numpy as np
import pytest
from cases import (
    FEW,
    PATTERNS,
    PROPERTY,
    STRUCTURE_FACTS,
    STRUCTURE_NAMES,
    KCase,
    eliminated,
    quasi_definite,
    random_cases,
)
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    dense_pattern,
    dense_symmetric,
    launch_groups,
    naive_levels,
    run_factor,
    run_solve,
    run_updates,
)

from warpmpc._errors import SettingsError
from warpmpc.engines.ldl.schedule import (
    FactorSchedule,
    LDLSchedule,
    Padded,
    SolveSchedule,
    build_phases,
    build_schedule,
    dependency_levels,
    transposed_levels,
)
from warpmpc.symbolic.elimination import Elimination, eliminate
from warpmpc.symbolic.ordering import order

SOLVE_RESIDUAL = 1e-12
NARROW = [(0, 0), (2, 0), (1, 3), (10**6, 10**6)]  # (narrow_solve, narrow_factor)
EXECUTED = [
    "one_column",
    "diagonal",
    "arrow_first",
    "arrow_last",
    "dense",
    "random_33",
    "random_120",
    "block_banded",
    "cartpole_6",
    "quadrotor_4",
]


def eliminated_case(case: KCase, ordering: str = "amd") -> Elimination:
    return eliminate(case.pattern, order(case.pattern, ordering, case.stages))


class TestLevels:
    @PROPERTY
    @given(random_cases(max_n=60), st.sampled_from(["amd", "natural"]))
    def test_naive_definition(self, case: KCase, ordering):
        L_pattern = eliminated_case(case, ordering).L_pattern
        forward, backward = naive_levels(dense_pattern(L_pattern))
        np.testing.assert_array_equal(dependency_levels(L_pattern), forward)
        np.testing.assert_array_equal(transposed_levels(L_pattern), backward)

    @pytest.mark.parametrize("name", STRUCTURE_NAMES)
    def test_both_directions_have_equally_many(self, name):
        elimination = eliminated(name, "amd")
        schedule = build_schedule(elimination, 16, level_scheduling=True)
        depth = dependency_levels(elimination.L_pattern).max() + 1
        assert depth == transposed_levels(elimination.L_pattern).max() + 1
        assert schedule.forward.levels == schedule.backward.levels == depth


@st.composite
def level_sets(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Levels without gaps, in shuffled order, and a width per item."""
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    levels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    return levels, rng.integers(0, 5, levels.size)


class TestPhases:
    @PROPERTY
    @given(level_sets(), st.integers(0, 7))
    def test_order_and_fusion(self, level_set, narrow):
        levels, widths = level_set
        phases = build_phases(levels, widths, narrow)
        items = np.concatenate([phase.items for phase in phases])
        np.testing.assert_array_equal(np.sort(items), np.arange(levels.size))
        assert np.all(np.diff(levels[items]) >= 0)
        counts = np.bincount(levels)
        for phase in phases:
            inside = np.unique(levels[phase.items])
            if phase.parallel:
                assert inside.size == 1
                assert counts[inside[0]] > narrow
                assert np.all(np.diff(widths[phase.items]) <= 0)
            else:
                assert np.all(counts[inside] <= narrow)
        for before, after in pairwise(phases):
            assert set(levels[before.items]).isdisjoint(levels[after.items])
            assert before.parallel or after.parallel, "two narrow runs side by side"

    def test_narrow_tail_is_one_phase(self):
        levels = np.array([0, 0, 0, 1, 1, 2, 3, 4])
        phases = build_phases(levels, np.zeros(8, dtype=int), narrow=2)
        assert [(phase.parallel, phase.items.size) for phase in phases] == [(True, 3), (False, 5)]

    @pytest.mark.parametrize("name", STRUCTURE_NAMES)
    def test_tail_of_the_benchmark_systems_is_fused(self, name):
        L_pattern = eliminated(name, "amd").L_pattern
        levels = dependency_levels(L_pattern)
        phases = build_phases(levels, L_pattern.row_counts, narrow=2)
        assert not phases[-1].parallel
        wide = np.flatnonzero(np.bincount(levels) > 2)
        assert len(phases) <= 2 * wide.size + 1
        assert len(phases) < STRUCTURE_FACTS[name].levels


def check_padding(padded: Padded, operands: list[np.ndarray]) -> None:
    """Each item has exactly its operands, each segment the width of its widest item."""
    assert padded.bounds[0] == 0
    assert padded.bounds[-1] == len(operands)
    assert np.all(np.diff(padded.bounds) >= 0)
    slots = 0
    for s in range(padded.widths.size):
        rows = padded.segment(s)
        inside = operands[padded.bounds[s] : padded.bounds[s + 1]]
        assert padded.starts[s] == slots
        assert padded.widths[s] == max((len(pairs) for pairs in inside), default=0)
        assert rows.shape == (len(inside), padded.widths[s], 2)
        for row, pairs in zip(rows, inside, strict=True):
            np.testing.assert_array_equal(row[: len(pairs)], pairs)
            assert np.all(row[len(pairs) :] == -1)
        slots += rows.shape[0] * rows.shape[1]
    assert padded.table.shape == (slots, 2)
    assert padded.table.dtype == np.int32


def check_dependencies(plan: FactorSchedule | SolveSchedule, bounds, waits) -> None:
    """`waits` lists (item, item it waits for): the latter is in an earlier group or position."""
    group, at = np.empty(plan.items.size, dtype=int), np.empty(plan.items.size, dtype=int)
    at[plan.items] = np.arange(plan.items.size)
    parallel = []
    for g, (is_parallel, segments) in enumerate(launch_groups(plan)):
        group[plan.items[bounds[segments[0]] : bounds[segments[-1] + 1]]] = g
        parallel.append(is_parallel)
    later, earlier = waits
    same = group[later] == group[earlier]
    assert np.all(group[earlier] <= group[later])
    assert not np.any(same & np.array(parallel)[group[later]])
    assert np.all(at[earlier] < at[later])


def check_tables(schedule: LDLSchedule, segments: int) -> None:
    elimination = schedule.elimination
    L, updates = elimination.L_pattern, elimination.updates
    by_row, position = elimination.L_rows
    span = [slice(a, b) for a, b in pairwise(by_row.col_ptr)]
    rows = [np.stack([position[s], by_row.row_idx[s]], axis=1) for s in span]
    span = [slice(a, b) for a, b in pairwise(L.col_ptr)]
    columns = [np.stack([np.arange(L.nnz)[s], L.row_idx[s]], axis=1) for s in span]
    pairs = np.stack([updates.left, updates.right], axis=1)
    factor, forward, backward = schedule.factor, schedule.forward, schedule.backward

    for plan in (factor, forward, backward):
        np.testing.assert_array_equal(np.sort(plan.items), np.arange(elimination.n))
        assert plan.barrier.sum() + segments - 1 >= plan.barrier.size, "over budget"
    check_padding(forward.padded, [rows[i] for i in forward.items])
    check_padding(backward.padded, [columns[i] for i in backward.items])
    check_padding(factor.rows, [rows[i] for i in factor.items])
    entries = [columns[j][:, 0] for j in factor.items]
    np.testing.assert_array_equal(factor.entries, np.concatenate(entries))
    np.testing.assert_array_equal(np.diff(factor.entry_ptr), [e.size for e in entries])
    check_padding(
        factor.pairs, [pairs[updates.ptr[t] : updates.ptr[t + 1]] for t in factor.entries]
    )
    np.testing.assert_array_equal(factor.pairs.bounds, factor.entry_ptr[factor.rows.bounds])
    waits = (L.row_idx, L.col_idx)
    check_dependencies(factor, factor.rows.bounds, waits)
    check_dependencies(forward, forward.padded.bounds, waits)
    check_dependencies(backward, backward.padded.bounds, waits[::-1])


def check_execution(schedule: LDLSchedule, case: KCase, seed: int = 0) -> None:
    K, values = quasi_definite(case, seed)
    L, D = run_factor(schedule, values[0])
    expected_L, expected_D = run_updates(schedule.elimination, values[0])
    np.testing.assert_allclose(L, expected_L, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(D, expected_D, rtol=1e-12)
    rhs = np.random.default_rng(seed).normal(size=case.n)
    solution = run_solve(schedule, L, D, rhs)
    residual = dense_symmetric(K, values)[0] @ solution - rhs
    assert np.linalg.norm(residual) < SOLVE_RESIDUAL * np.linalg.norm(rhs)


class TestTables:
    @pytest.mark.parametrize("segments", [1, 4, 16])
    @pytest.mark.parametrize("name", EXECUTED)
    def test_level_scheduling(self, name, segments):
        case = PATTERNS[name]()
        elimination = eliminated_case(case)
        for narrow_solve, narrow_factor in NARROW:
            schedule = build_schedule(
                elimination,
                segments,
                level_scheduling=True,
                narrow_solve=narrow_solve,
                narrow_factor=narrow_factor,
            )
            check_tables(schedule, segments)
            check_execution(schedule, case)

    @pytest.mark.parametrize("segments", [1, 4, 16])
    @pytest.mark.parametrize("name", EXECUTED)
    def test_one_column_after_the_other(self, name, segments):
        case = PATTERNS[name]()
        schedule = build_schedule(eliminated_case(case), segments, level_scheduling=False)
        check_tables(schedule, segments)
        check_execution(schedule, case)
        ascending = np.arange(case.n)
        np.testing.assert_array_equal(schedule.factor.items, ascending)
        np.testing.assert_array_equal(schedule.forward.items, ascending)
        np.testing.assert_array_equal(schedule.backward.items, ascending[::-1])
        for plan in (schedule.factor, schedule.forward, schedule.backward):
            assert not plan.parallel.any()
            assert len(launch_groups(plan)) == 1
            assert plan.parallel.size <= segments

    @pytest.mark.parametrize("ordering", ["natural", "stage"])
    @pytest.mark.parametrize("name", ["cartpole_6", "block_banded"])
    def test_other_orderings(self, name, ordering):
        case = PATTERNS[name]()
        schedule = build_schedule(eliminated_case(case, ordering), 8, level_scheduling=True)
        check_tables(schedule, 8)
        check_execution(schedule, case)

    @FEW
    @given(
        random_cases(max_n=80, max_entries=2000),
        st.sampled_from([1, 4, 16]),
        st.booleans(),
        st.integers(0, 4),
        st.integers(0, 4),
    )
    def test_random_patterns(self, case: KCase, segments, level_scheduling, solve, factor):
        schedule = build_schedule(
            eliminated_case(case),
            segments,
            level_scheduling=level_scheduling,
            narrow_solve=solve,
            narrow_factor=factor,
        )
        check_tables(schedule, segments)
        check_execution(schedule, case, seed=segments)

    @pytest.mark.parametrize("level_scheduling", [False, True])
    @pytest.mark.parametrize("name", STRUCTURE_NAMES)
    def test_benchmark_systems(self, name, level_scheduling):
        schedule = build_schedule(eliminated(name, "amd"), 16, level_scheduling=level_scheduling)
        check_tables(schedule, 16)

    def test_no_padding_with_enough_segments(self):
        elimination = eliminated("cartpole", "amd")
        wide = build_schedule(elimination, elimination.n, level_scheduling=False)
        assert wide.forward.padded.table.min() >= 0
        assert wide.backward.padded.table.min() >= 0

    @pytest.mark.parametrize("level_scheduling", [False, True])
    def test_more_segments_pad_less(self, level_scheduling):
        elimination = eliminated("quadrotor", "amd")
        schedules = [
            build_schedule(elimination, segments, level_scheduling=level_scheduling)
            for segments in (1, 4, 16, 64)
        ]
        for read in (
            lambda s: s.forward.padded.table.shape[0],
            lambda s: s.backward.padded.table.shape[0],
        ):
            slots = [read(schedule) for schedule in schedules]
            assert slots == sorted(slots, reverse=True)
            assert slots[-1] >= elimination.nnz_L
        assert schedules[-1].padded_share() < schedules[0].padded_share()

    def test_padded_share(self):
        schedule = build_schedule(eliminated("cartpole", "amd"), 2, level_scheduling=False)
        tables = [
            schedule.factor.rows.table,
            schedule.factor.pairs.table,
            schedule.forward.padded.table,
            schedule.backward.padded.table,
        ]
        padding = sum(int((table[:, 0] < 0).sum()) for table in tables)
        assert schedule.padded_share() == pytest.approx(padding / sum(map(len, tables)))
        alone = eliminated_case(PATTERNS["diagonal"]())
        assert build_schedule(alone, 4, level_scheduling=True).padded_share() == 0.0

    def test_budget_must_be_positive(self):
        elimination = eliminated_case(PATTERNS["random_10"]())
        with pytest.raises(SettingsError, match="budget must be at least 1, got 0"):
            build_schedule(elimination, 0, level_scheduling=True)
