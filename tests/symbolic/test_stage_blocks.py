"""Repeating stages and the frontier between them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from cases import PROPERTY, STRUCTURE_NAMES, KCase, eliminated, kkt_of, pattern_of, random_cases
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_pattern

from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.pattern import SparsePattern
from warpmpc.symbolic.stage_elimination import StageBlocks, find_stage_blocks
from warpmpc.systems import patterns


def blocks_of(given_structure: patterns.KKTStructure, ordering: str = "stage") -> StageBlocks:
    pattern = SparsePattern.from_scipy(given_structure.K)
    perm = order(pattern, ordering, given_structure.stages)
    return find_stage_blocks(eliminate(pattern, perm), given_structure.stages)


def with_entry(
    given_structure: patterns.KKTStructure, row: int, col: int, present: bool
) -> patterns.KKTStructure:
    A = sp.lil_matrix(given_structure.A)
    assert bool(A[row, col]) != present
    A[row, col] = float(present)
    A = sp.csc_matrix(A)
    A.eliminate_zeros()
    return replace(given_structure, A=A)


@pytest.mark.parametrize(
    ("name", "last_middle", "frontier"),
    [
        ("cartpole", 99, 4),
        ("quadrotor", 39, 12),
        ("quadrotor_obstacles", 39, 12),
        ("linear", 39, 12),
        ("ldl_benchmark", 23, 12),
    ],
)
def test_all_middle_stages_repeat(name, last_middle, frontier):
    given_structure, _ = kkt_of(name)
    blocks = find_stage_blocks(eliminated(name, "stage"), given_structure.stages)
    assert blocks.runs == [(0, 1), (1, last_middle + 1), (last_middle + 1, last_middle + 2)]
    assert blocks.longest_run == (1, last_middle + 1)
    assert [columns.size for columns in blocks.frontiers] == [frontier] * (last_middle + 1)
    np.testing.assert_array_equal(blocks.labels, np.arange(last_middle + 2))
    sizes = np.bincount(given_structure.stages)
    np.testing.assert_array_equal(np.diff(blocks.first), sizes)


@pytest.mark.parametrize("name", STRUCTURE_NAMES)
def test_amd_does_not_repeat(name):
    given_structure, _ = kkt_of(name)
    blocks = find_stage_blocks(eliminated(name, "amd"), given_structure.stages)
    assert blocks.runs == []
    assert blocks.frontiers == []
    assert blocks.first.size == 0
    assert blocks.longest_run == (0, 0)


@pytest.mark.parametrize("name", ["cartpole", "quadrotor", "ldl_benchmark"])
def test_columns_of_a_run_are_equal_up_to_a_shift(name):
    given_structure, _ = kkt_of(name)
    elimination = eliminated(name, "stage")
    blocks = find_stage_blocks(elimination, given_structure.stages)
    L, first = dense_pattern(elimination.L_pattern), blocks.first
    begin, end = blocks.longest_run
    # The last stage of the run sees the terminal stage, whose nodes have another order.
    for k, after in pairwise(range(begin, end - 1)):
        here = L[first[k] : first[k + 2], first[k] : first[k + 1]]
        there = L[first[after] : first[after + 2], first[after] : first[after + 1]]
        np.testing.assert_array_equal(here, there)
        assert not L[first[k + 2] :, first[k] : first[k + 1]].any()
        np.testing.assert_array_equal(
            blocks.frontiers[k - 1] - first[k], blocks.frontiers[after - 1] - first[after]
        )


class TestOddStage:
    """One middle stage (of 0..12) differs from its neighbours."""

    horizon, odd = 12, 6

    def first_motor_row(self) -> int:
        return 12 + 16 * self.odd + 12

    def test_additional_entry(self):
        given_structure = patterns.quadrotor(self.horizon)
        row, col = self.first_motor_row(), 16 * self.odd
        blocks = blocks_of(with_entry(given_structure, row, col, present=True))
        assert blocks.runs == [(0, 1), (1, 6), (6, 7), (7, 12), (12, 13)]

    def test_missing_entry_that_is_fill(self):
        given_structure = patterns.quadrotor(self.horizon)
        row, col = self.first_motor_row(), 16 * self.odd + 12
        blocks = blocks_of(with_entry(given_structure, row, col, present=False))
        assert blocks.runs[0] == (0, 1)
        assert (1, 6) in blocks.runs
        assert (7, 12) in blocks.runs
        assert (6, 7) in blocks.runs

    def test_additional_row(self):
        given_structure = patterns.cartpole(self.horizon)
        extra = sp.csc_matrix(([1.0], ([0], [5 * self.odd + 1])), shape=(1, 5 * 13))
        changed = replace(
            given_structure,
            A=sp.csc_matrix(sp.vstack([given_structure.A, extra])),
            con_stage=np.append(given_structure.con_stage, self.odd),
        )
        assert blocks_of(changed).runs == [(0, 1), (1, 6), (6, 7), (7, 12), (12, 13)]

    def test_coupling_over_two_stages(self):
        given_structure = patterns.cartpole(self.horizon)
        row, col = 4 + 6 * self.odd, 5 * (self.odd + 2)
        blocks = blocks_of(with_entry(given_structure, row, col, present=True))
        assert blocks.runs[:2] == [(0, 1), (1, 6)]
        assert blocks.runs[-2:] == [(8, 12), (12, 13)]
        sizes = [columns.size for columns in blocks.frontiers]
        assert sizes == [4] * 6 + [5] + [4] * 5


def natural_runs(full: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Runs of a matrix whose stages are consecutive blocks of equal size, in natural order."""
    n = full.shape[0]
    pattern = pattern_of(np.triu(full | full.T) | np.eye(n, dtype=bool))
    return find_stage_blocks(eliminate(pattern, np.arange(n)), np.arange(n) // size).runs


class TestSmallDifferences:
    """Stages in natural order that differ in one respect only."""

    def test_entry_of_K_or_fill(self):
        blocks = np.abs(np.arange(18)[:, None] // 3 - np.arange(18) // 3) <= 1
        assert natural_runs(blocks, 3) == [(0, 1), (1, 5), (5, 6)]
        blocks[9, 10] = blocks[10, 9] = False  # stage 3: filled by the stage before
        assert natural_runs(blocks, 3) == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]

    def test_same_rows_in_another_column(self):
        full = np.zeros((12, 12), dtype=bool)
        full[[0, 3, 7, 9], [2, 5, 8, 11]] = True
        assert natural_runs(full, 3) == [(0, 2), (2, 3), (3, 4)]

    @pytest.mark.parametrize("entry", [(1, 1), (1, 2)], ids=["nothing", "another_node"])
    def test_what_enters(self, entry):
        full = np.zeros((10, 10), dtype=bool)
        full[np.arange(0, 10, 2), np.arange(1, 10, 2)] = True
        full[[3, 5, 7], [5, 7, 9]] = True
        full[entry] = True  # what enters stage 1; its own columns look like those of stage 2
        assert natural_runs(full, 2) == [(0, 1), (1, 2), (2, 4), (4, 5)]


@PROPERTY
@given(random_cases(max_n=40), st.integers(1, 5), st.integers(0, 999))
def test_frontier_by_definition(case: KCase, n_stages, seed):
    stages = np.sort(np.random.default_rng(seed).integers(0, n_stages, case.n))
    elimination = eliminate(case.pattern, order(case.pattern, "stage", stages))
    blocks = find_stage_blocks(elimination, stages)
    L = dense_pattern(elimination.L_pattern)
    np.testing.assert_array_equal(blocks.labels, np.unique(stages))
    assert len(blocks.frontiers) == blocks.labels.size - 1
    for boundary, frontier in zip(blocks.first[1:-1], blocks.frontiers, strict=True):
        touched = [i for i in range(boundary, case.n) if L[i, :boundary].any()]
        np.testing.assert_array_equal(frontier, touched)
    # Runs are a partition of the stages.
    covered = [k for begin, end in blocks.runs for k in range(begin, end)]
    assert covered == list(range(blocks.labels.size))


def test_one_stage():
    blocks = blocks_of(replace(patterns.cartpole(0), con_stage=np.zeros(6, dtype=int)))
    assert blocks.runs == [(0, 1)]
    assert blocks.frontiers == []


def test_labels_need_not_be_consecutive():
    given_structure = patterns.cartpole(8)
    stretched = replace(
        given_structure,
        var_stage=10 * given_structure.var_stage - 7,
        con_stage=10 * given_structure.con_stage - 7,
    )
    blocks = blocks_of(stretched)
    assert blocks.runs == [(0, 1), (1, 8), (8, 9)]
    np.testing.assert_array_equal(blocks.labels, 10 * np.arange(9) - 7)


def test_stages_out_of_order():
    given_structure = patterns.cartpole(4)
    assert blocks_of(given_structure, "natural").runs == []
