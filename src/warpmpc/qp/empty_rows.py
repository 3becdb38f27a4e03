"""QPs whose A has no entry get a free row: XLA loses kernels beside arrays of size zero."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import PatternError
from warpmpc.symbolic.pattern import SparsePattern


def with_entries(A: SparsePattern) -> SparsePattern:
    """A; without any entry also a free row."""
    if not A.n_cols:
        raise PatternError("A QP needs at least one variable; P and A have no columns.")
    if A.nnz:
        return A
    return SparsePattern.from_coo(np.array([A.n_rows]), np.array([0]), (A.n_rows + 1, A.n_cols))


def with_spare(n_cons: int, *arrays: jax.Array) -> list[jax.Array]:
    """The data of QPs, and a start if there is one, with the free row of `with_entries`.

    Args:
        n_cons: Rows of the caller.
        arrays: P, q, A, lower, upper; x, s and y of a start.
    """
    P, q, A, lower, upper, *start = arrays
    one = jnp.ones((q.shape[0], 1), dtype=q.dtype)
    # What is unknown of a start stays unknown in all rows.
    x, *rows = start or [q]
    unknown = (jnp.isnan(r).all(axis=1, keepdims=True) & (n_cons > 0) for r in rows)
    spare = [0 * one, -jnp.inf * one, jnp.inf * one]
    spare += [jnp.where(missing, jnp.nan, 0 * one) for missing in unknown]
    found = [
        jnp.concatenate(pair, axis=1) for pair in zip((A, lower, upper, *rows), spare, strict=True)
    ]
    return [P, q, *found[:3], *([x] if start else []), *found[3:]]
