"""The factorisation benchmark has the numbers of PROBLEMS.md, and its batches the right spread."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from warpmpc._errors import ProblemError
from warpmpc.symbolic.pattern import SparsePattern
from warpmpc.systems import ldl_benchmark, patterns

N, M = 396, 684


def dynamics_by_the_text() -> np.ndarray:
    """The dynamics rows entry by entry, as the problem is written down."""
    A, rng = np.zeros((288, N)), np.random.default_rng(1)
    for t in range(24):
        for s in range(12):
            row = 12 * t + s
            A[row, 12 * (t + 1) + s] = 1
            A[row, 12 * t + s] = -1
            if s > 0:
                A[row, 12 * t + s - 1] = 0.05
            if s < 11:
                A[row, 12 * t + s + 1] = -0.03
            for u in range(4):
                if (s + u) % 3 == 0 or u == s % 4:
                    A[row, 300 + 4 * t + u] = -0.1 * (1 + 0.05 * rng.standard_normal())
    return A


def ratios(K_vals) -> tuple[np.ndarray, np.ndarray]:
    """Factors on the nominal values: off the diagonal, and on it."""
    K = ldl_benchmark.nominal()
    diagonal = K.indices == np.repeat(np.arange(N + M), np.diff(K.indptr))
    factors = np.asarray(K_vals, dtype=np.float64) / K.data
    return factors[:, ~diagonal], factors[:, diagonal]


def assert_spread(K_vals, rhs) -> None:
    off, on = ratios(K_vals)
    assert off.mean() == pytest.approx(1, abs=0.01)
    assert off.std() == pytest.approx(0.25, abs=0.01)
    assert 0.7499 < on.min() < 0.76
    assert 1.24 < on.max() < 1.2501
    assert on.mean() == pytest.approx(1, abs=0.01)
    assert np.std(rhs) == pytest.approx(1, abs=0.02)
    assert np.unique(np.asarray(K_vals)[:, 0]).size == K_vals.shape[0]  # every matrix different


def test_pattern_is_that_of_the_structure():
    given = SparsePattern.from_scipy(ldl_benchmark.nominal())
    assert given.digest() == SparsePattern.from_scipy(patterns.ldl_benchmark().K).digest()
    assert (given.n_cols, given.nnz) == (1080, 3156)


def test_nominal_values():
    K = ldl_benchmark.nominal().toarray()
    np.testing.assert_allclose(K[:N, N : N + 288].T, dynamics_by_the_text(), atol=1e-15)
    np.testing.assert_array_equal(K[:N, N + 288 :], np.eye(N))
    weights = np.concatenate([np.ones(288), np.full(12, 5.0), np.full(96, 0.1)])
    np.testing.assert_allclose(np.diag(K), np.concatenate([weights + 1e-6, np.full(M, -10.0)]))


def test_samples_are_quasi_definite():
    K_vals, _ = ldl_benchmark.sample(2, dtype="float64")
    pattern = SparsePattern.from_scipy(ldl_benchmark.nominal())
    for values in K_vals:
        upper = pattern.to_scipy(values).toarray()
        eigenvalues = np.linalg.eigvalsh(upper, UPLO="U")
        assert ((eigenvalues > 0).sum(), (eigenvalues < 0).sum()) == (N, M)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sample_on_host(dtype):
    K_vals, rhs = ldl_benchmark.sample(100, dtype=dtype)
    assert (K_vals.shape, rhs.shape) == ((100, 3156), (100, 1080))
    assert K_vals.dtype == rhs.dtype == np.dtype(dtype)
    assert_spread(K_vals, rhs)


def test_seeds_are_those_of_the_problem():
    K_vals, rhs = ldl_benchmark.sample(3)
    drawn = np.random.default_rng(1004).standard_normal((3, 1080), dtype="float32")
    np.testing.assert_array_equal(rhs, drawn)
    off, _ = ratios(K_vals)
    normal = np.random.default_rng(4).standard_normal((3, 2076), dtype="float32")
    np.testing.assert_allclose(off, 1 + 0.25 * normal, rtol=0, atol=1e-6)
    assert not np.array_equal(ldl_benchmark.sample(3, seed=5)[0], K_vals)


def test_dtypes_get_the_same_batch():
    single, double = ldl_benchmark.sample(2), ldl_benchmark.sample(2, dtype="float64")
    for low, high in zip(single, double, strict=True):
        np.testing.assert_allclose(low, high, rtol=1e-5, atol=1e-6)


def test_chunks_do_not_matter(monkeypatch):
    whole = ldl_benchmark.sample(7)
    monkeypatch.setattr(ldl_benchmark, "_CHUNK", 3)
    for one, other in zip(whole, ldl_benchmark.sample(7), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sample_on_device(dtype):
    K_vals, rhs = ldl_benchmark.sample_on_device(jax.random.key(0), 100, dtype)
    assert str(K_vals.dtype) == str(rhs.dtype) == dtype
    assert (K_vals.shape, rhs.shape) == ((100, 3156), (100, 1080))
    assert_spread(K_vals, rhs)
    other, _ = ldl_benchmark.sample_on_device(jax.random.key(1), 100, dtype)
    assert not np.array_equal(K_vals, other)


def test_empty_batch_is_refused():
    with pytest.raises(ProblemError, match="at least one instance, got 0"):
        ldl_benchmark.sample(0)
    with pytest.raises(ProblemError, match="at least one instance, got -1"):
        ldl_benchmark.sample_on_device(jax.random.key(0), -1, "float32")
