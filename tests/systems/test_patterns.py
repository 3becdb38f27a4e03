"""The benchmark structures have exactly the dimensions and counts of PROBLEMS.md."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from cases import STRUCTURE_FACTS, STRUCTURE_NAMES, kkt_of

from warpmpc._errors import ProblemError
from warpmpc.symbolic.pattern import SparsePattern
from warpmpc.systems import patterns


def test_every_structure_has_facts():
    assert sorted(patterns.STRUCTURES) == STRUCTURE_NAMES


@pytest.mark.parametrize("name", STRUCTURE_NAMES)
def test_counts_of_the_table(name):
    given_structure, kkt = kkt_of(name)
    facts = STRUCTURE_FACTS[name]
    assert given_structure.name == name
    assert given_structure.P.shape == (facts.n_vars, facts.n_vars)
    assert given_structure.A.shape == (facts.n_cons, facts.n_vars)
    assert given_structure.P.nnz == facts.nnz_P
    assert given_structure.A.nnz == facts.nnz_A
    assert 2 * kkt.K_pattern.nnz - kkt.K_pattern.n_cols == facts.nnz_K


def test_linear_counts_of_the_paper():
    facts = STRUCTURE_FACTS["linear"]
    assert facts.nnz_P + 2 * facts.nnz_A + facts.n_cons == 9799
    assert STRUCTURE_FACTS["linear_adjoint"].nnz_K == 2 * 12264 - 3338


@pytest.mark.parametrize("name", STRUCTURE_NAMES)
def test_K_is_the_assembled_pattern(name):
    given_structure, kkt = kkt_of(name)
    assert SparsePattern.from_scipy(given_structure.K).digest() == kkt.K_pattern.digest()


@pytest.mark.parametrize("name", STRUCTURE_NAMES)
def test_matrices_are_clean(name):
    given_structure, _ = kkt_of(name)
    for matrix in (given_structure.P, given_structure.A):
        assert matrix.has_canonical_format
        assert np.all(matrix.data != 0)
    assert (sp.tril(given_structure.P, -1)).nnz == 0


@pytest.mark.parametrize("name", STRUCTURE_NAMES)
def test_rows_couple_at_most_two_consecutive_stages(name):
    given_structure, _ = kkt_of(name)
    assert given_structure.stages.size == given_structure.K.indptr.size - 1
    A = given_structure.A.tocoo()
    ahead = given_structure.var_stage[A.col] - given_structure.con_stage[A.row]
    assert set(ahead) <= ({0, 1} if name != "linear_adjoint" else {-1, 0, 1})


@pytest.mark.parametrize(
    ("name", "first", "middle", "last"),
    [
        ("cartpole", (10, 22), (6, 18), (2, 2)),
        ("quadrotor", (28, 84), (16, 72), (4, 4)),
        ("quadrotor_obstacles", (32, 92), (20, 80), (8, 12)),
    ],
)
def test_rows_and_nonzeros_per_stage(name, first, middle, last):
    given_structure, _ = kkt_of(name)
    n_nodes = given_structure.var_stage.max() + 1
    rows = np.bincount(given_structure.con_stage)
    nonzeros = np.bincount(
        given_structure.con_stage, np.diff(given_structure.A.tocsr().indptr)
    ).astype(int)
    expected = [first] + [middle] * (n_nodes - 2) + [last]
    assert list(zip(rows.tolist(), nonzeros.tolist(), strict=True)) == expected


def test_ldl_benchmark_has_24_input_entries_per_stage():
    given_structure, _ = kkt_of("ldl_benchmark")
    inputs = given_structure.A[:288, 300:]
    assert inputs.nnz == 24 * 24
    np.testing.assert_array_equal(np.diff(inputs.tocsr().indptr).reshape(24, 12).sum(axis=1), 24)


def test_linear_blocks():
    given_structure, _ = kkt_of("linear")
    A = given_structure.A.tocsr()
    assert A[:12].nnz == 12
    assert A[12:24, :12].nnz == 26
    assert A[12:24, 492:496].nnz == 48
    np.testing.assert_array_equal(A[492:].toarray() != 0, np.eye(652, dtype=bool))


@pytest.mark.parametrize("horizon", [1, 2, 7])
@pytest.mark.parametrize("name", STRUCTURE_NAMES)
def test_other_horizons(name, horizon):
    given_structure = patterns.STRUCTURES[name](horizon)  # pyright: ignore[reportCallIssue]
    assert set(given_structure.stages) == set(range(horizon + 1))


def test_unknown_name():
    message = f"Unknown pattern 'rocket'; choose one of {STRUCTURE_NAMES}."
    with pytest.raises(ProblemError, match=re.escape(message)):
        patterns.structure("rocket")
