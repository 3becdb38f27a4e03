"""Policies with random weights, and marks for tests of their C code."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from warpmpc.learn import Network, Policy
from warpmpc.learn.export.cortex_m4 import missing_tools
from warpmpc.learn.export.host import host_compiler

needs_compiler = pytest.mark.skipif(host_compiler() is None, reason="no C compiler on the path")
needs_cortex = pytest.mark.skipif(
    bool(missing_tools()), reason=f"not installed: {', '.join(missing_tools())}"
)


def random_policy(sizes=(12, 32, 32, 32, 4), activation="leaky_relu", seed=0):
    rng = np.random.default_rng(seed)
    f = np.float32
    weights = tuple(
        (rng.normal(0, (2 / a) ** 0.5, (b, a)).astype(f), rng.normal(0, 0.1, b).astype(f))
        for a, b in pairwise(sizes)
    )
    n_x, n_u = sizes[0], sizes[-1]
    mean, std = rng.normal(size=n_x).astype(f), rng.uniform(0.1, 10, n_x).astype(f)
    return Policy(
        network=Network(sizes, activation),
        weights=weights,
        x_mean=mean,
        x_std=std,
        u_mean=rng.normal(size=n_u).astype(f),
        u_std=rng.uniform(0.1, 3, n_u).astype(f),
        x_low=mean - 4 * std,
        x_high=mean + 4 * std,
        x_limit=4.0,
        safe=np.arange(n_u).astype(f),
        contract={"task": "random"},
    )
