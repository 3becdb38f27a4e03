"""Orderings: valid permutations, the fill and levels of the paper, stage by stage where asked."""

import re
from typing import Any

import numpy as np
import pytest
from cases import (
    PATTERN_NAMES,
    PATTERNS,
    PROPERTY,
    STRUCTURE_FACTS,
    STRUCTURE_NAMES,
    KCase,
    eliminated,
    kkt_of,
    random_cases,
)
from hypothesis import given
from hypothesis import strategies as st
from oracles import permuted_full

from warpmpc._errors import PatternError, SettingsError
from warpmpc.engines.ldl.schedule import dependency_levels
from warpmpc.symbolic.elimination import eliminate, postorder
from warpmpc.symbolic.ordering import ORDERINGS, order
from warpmpc.symbolic.pattern import SparsePattern

TOLERANCE = 1.05  # the table of PROBLEMS.md, or fewer


@pytest.mark.parametrize("ordering", sorted(ORDERINGS))
@pytest.mark.parametrize("name", PATTERN_NAMES)
def test_orderings_are_permutations(name, ordering):
    case = PATTERNS[name]()
    stages = case.stages if case.stages is not None else np.arange(case.n) // 4
    perm = order(case.pattern, ordering, stages)
    assert perm.dtype == np.int32
    np.testing.assert_array_equal(np.sort(perm), np.arange(case.n))


def test_natural_order():
    pattern = PATTERNS["random_10"]().pattern
    np.testing.assert_array_equal(order(pattern, "natural"), np.arange(10))


class TestAMD:
    @pytest.mark.parametrize("name", STRUCTURE_NAMES)
    def test_fill_of_the_table(self, name):
        elimination = eliminated(name, "amd")
        assert elimination.nnz_L <= TOLERANCE * STRUCTURE_FACTS[name].nnz_L
        assert elimination.nnz_L <= eliminated(name, "natural").nnz_L

    @pytest.mark.parametrize("name", STRUCTURE_NAMES)
    def test_levels_of_the_table(self, name):
        levels = dependency_levels(eliminated(name, "amd").L_pattern)
        assert levels.max() + 1 <= TOLERANCE * STRUCTURE_FACTS[name].levels

    @PROPERTY
    @given(random_cases(max_n=60))
    def test_order_is_a_postorder(self, case: KCase):
        elimination = eliminate(case.pattern, order(case.pattern, "amd"))
        np.testing.assert_array_equal(postorder(elimination.parent), np.arange(case.n))

    @pytest.mark.parametrize("name", ["arrow_first", "arrow_last", "diagonal"])
    def test_trees_have_no_fill(self, name):
        pattern = PATTERNS[name]().pattern
        elimination = eliminate(pattern, order(pattern, "amd"))
        assert elimination.nnz_L == pattern.nnz - pattern.n_cols

    def test_same_answer_every_time(self):
        pattern = PATTERNS["random_300"]().pattern
        np.testing.assert_array_equal(order(pattern, "amd"), order(pattern, "amd"))


def minimum_degree(full: np.ndarray, stages: np.ndarray) -> np.ndarray:
    """Stage after stage: rows of simple bounds, then fewest neighbours, later positions first."""
    graph, perm = full & ~np.eye(full.shape[0], dtype=bool), []
    for label in np.unique(stages):
        nodes = np.flatnonzero(stages == label)
        bounds = [i for i in nodes if graph[i].sum() == 1 and graph[i].argmax() < i]
        todo = set(nodes.tolist())
        while todo:
            pivot = min(todo, key=lambda i: (i not in bounds, graph[i].sum(), -i))
            todo.remove(pivot)
            perm.append(pivot)
            around = np.flatnonzero(graph[pivot])
            graph[np.ix_(around, around)] = True
            graph[around, around] = False
            graph[pivot] = graph[:, pivot] = False
    return np.array(perm)


class TestStagewise:
    @pytest.mark.parametrize("name", STRUCTURE_NAMES)
    def test_stages_are_contiguous_and_ascending(self, name):
        given_structure, _ = kkt_of(name)
        labels = given_structure.stages[eliminated(name, "stage").perm]
        assert np.all(np.diff(labels) >= 0)

    @pytest.mark.parametrize("name", [n for n in STRUCTURE_NAMES if n != "linear_adjoint"])
    def test_simple_bounds_go_first(self, name):
        given_structure, _ = kkt_of(name)
        n_vars = given_structure.var_stage.size
        entries = np.diff(given_structure.A.tocsr().indptr)
        is_bound = np.concatenate([np.zeros(n_vars, dtype=bool), entries == 1])
        assert is_bound.any()
        perm = eliminated(name, "stage").perm
        for label in np.unique(given_structure.stages):
            in_stage = is_bound[perm[given_structure.stages[perm] == label]]
            assert not np.any(np.diff(in_stage.astype(int)) > 0), f"stage {label}"

    @PROPERTY
    @given(random_cases(max_n=40), st.integers(1, 6), st.integers(0, 999))
    def test_minimum_degree_inside_a_stage(self, case: KCase, n_stages, seed):
        stages = np.random.default_rng(seed).integers(-2, n_stages - 2, size=case.n)
        expected = minimum_degree(permuted_full(case.pattern, np.arange(case.n)), stages)
        np.testing.assert_array_equal(order(case.pattern, "stage", stages), expected)

    def test_equal_stages_are_ordered_equally(self):
        case = PATTERNS["block_banded"]()
        assert case.stages is not None
        perm = order(case.pattern, "stage", case.stages).reshape(12, 5)
        local = perm - 5 * np.arange(12)[:, None]
        assert np.all(local[:-1] == local[0])

    def test_needs_stages(self):
        pattern = PATTERNS["random_10"]().pattern
        with pytest.raises(SettingsError, match='ordering="stage" needs `stages`: one integer'):
            order(pattern, "stage")

    @pytest.mark.parametrize(
        ("stages", "got"),
        [
            (np.zeros(9, dtype=int), "got shape (9,), dtype int64"),
            (np.zeros((10, 1), dtype=int), "got shape (10, 1), dtype int64"),
            (np.zeros(10), "got shape (10,), dtype float64"),
        ],
        ids=["short", "two_dimensional", "float"],
    )
    def test_wrong_stages(self, stages, got):
        pattern = PATTERNS["random_10"]().pattern
        message = f"must hold one integer label per row of K, shape (10,); {got}."
        with pytest.raises(PatternError, match=re.escape(message)):
            order(pattern, "stage", stages)


class TestExplicitOrder:
    def test_is_passed_through(self):
        perm = np.array([2, 0, 1], dtype=np.int64)
        found = order(PATTERNS["random_3"]().pattern, perm)
        np.testing.assert_array_equal(found, perm)
        assert found.dtype == np.int32

    @pytest.mark.parametrize(
        "perm",
        [[0, 1], [0, 1, 1], [1, 2, 3], [-1, 0, 1], [[0, 1, 2]]],
        ids=["short", "twice", "too_large", "negative", "two_dimensional"],
    )
    def test_not_a_permutation(self, perm: Any):
        message = "must be a permutation of 0..2 with perm[new] = old."
        with pytest.raises(PatternError, match=re.escape(message)):
            order(PATTERNS["random_3"]().pattern, np.array(perm))

    def test_unknown_name(self):
        message = "Unknown ordering 'metis'; choose one of ['amd', 'natural', 'stage']"
        with pytest.raises(SettingsError, match=re.escape(message)):
            order(SparsePattern.from_coo(np.arange(2), np.arange(2), (2, 2)), "metis")
