"""The maps of `build_kkt` put every number where the dense K has it."""

import re

import numpy as np
import pytest
from cases import PROPERTY, STRUCTURE_NAMES, kkt_of, pattern_of
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_pattern

from warpmpc._errors import PatternError
from warpmpc.symbolic.pattern import build_kkt


@PROPERTY
@given(
    st.integers(1, 12), st.integers(0, 12), st.sampled_from([0.0, 0.2, 1.0]), st.integers(0, 999)
)
def test_maps_assemble_the_dense_matrix(n_vars, n_cons, density, seed):
    rng = np.random.default_rng(seed)
    P = np.where(rng.random((n_vars, n_vars)) < density, rng.normal(size=(n_vars, n_vars)), 0)
    P = np.triu(P) + np.triu(P, 1).T
    A = np.where(rng.random((n_cons, n_vars)) < density, rng.normal(size=(n_cons, n_vars)), 0)
    sigma, rho = 0.1 + rng.random(), 0.1 + rng.random(n_cons)
    A_pattern, P_pattern = pattern_of(A), pattern_of(np.triu(P))
    kkt = build_kkt(P_pattern, A_pattern)

    K_vals = np.zeros(kkt.K_pattern.nnz)
    K_vals[kkt.P_to_K] += P[P_pattern.row_idx, P_pattern.col_idx]
    K_vals[kkt.A_to_K] += A[A_pattern.row_idx, A_pattern.col_idx]
    K_vals[kkt.sigma_to_K] += sigma
    K_vals[kkt.rho_to_K] -= 1 / rho
    expected = np.block([[P + sigma * np.eye(n_vars), A.T], [A, -np.diag(1 / rho)]])
    np.testing.assert_array_equal(kkt.K_pattern.to_scipy(K_vals).toarray(), np.triu(expected))
    structural = np.triu(expected != 0)
    np.testing.assert_array_equal(dense_pattern(kkt.K_pattern), structural)
    assert (kkt.n_vars, kkt.n_cons) == (n_vars, n_cons)


def test_only_the_upper_triangle_of_P_is_read():
    full = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]])
    A_pattern = pattern_of(np.ones((1, 3)))
    from_full, from_upper = (build_kkt(pattern_of(P), A_pattern) for P in (full, np.triu(full)))
    assert from_full.K_pattern.digest() == from_upper.K_pattern.digest()
    np.testing.assert_array_equal(from_full.P_to_K, from_upper.P_to_K)


@pytest.mark.parametrize("name", STRUCTURE_NAMES)
def test_maps_cover_every_position(name):
    _, kkt = kkt_of(name)
    off_diagonal = kkt.P_to_K[~np.isin(kkt.P_to_K, kkt.sigma_to_K)]
    parts = [off_diagonal, kkt.A_to_K, kkt.sigma_to_K, kkt.rho_to_K]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(kkt.K_pattern.nnz))


def test_P_must_be_square():
    with pytest.raises(PatternError, match=re.escape("P must be square, got shape (2, 3).")):
        build_kkt(pattern_of(np.ones((2, 3))), pattern_of(np.ones((1, 3))))


def test_A_must_fit_P():
    with pytest.raises(PatternError, match="A has 3 columns but P has 2; they must match"):
        build_kkt(pattern_of(np.eye(2)), pattern_of(np.ones((1, 3))))
