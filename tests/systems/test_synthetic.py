"""The synthetic functions of PROBLEMS.md, section 7."""

import numpy as np
import pytest

from warpmpc._errors import ProblemError
from warpmpc.systems.synthetic import SIZE, SPREAD, sample, synthetic_function


@pytest.mark.parametrize(
    ("target", "instructions"), [(100, 148), (200, 241), (500, 542), (1000, 1052), (5000, 5042)]
)
def test_instruction_counts(target, instructions):
    assert synthetic_function(target).n_instructions() == instructions


def test_check_values():
    x = np.linspace(-0.1, 0.1, SIZE)
    s = np.array(synthetic_function(100)(x, -x)).ravel()
    np.testing.assert_allclose(s[:4], [0.10640224, 0.13956454, 0.16781655, 0.20047742], atol=5e-9)
    np.testing.assert_array_equal(s[4:], x[4:])


def test_samples():
    x, u = sample(np.random.default_rng(0), 50)
    assert x.shape == u.shape == (50, SIZE)
    assert not np.array_equal(x, u)
    assert np.abs(np.stack([x, u])).max() <= SPREAD


def test_no_instructions():
    with pytest.raises(ProblemError, match="must be positive, got 0"):
        synthetic_function(0)
