"""Projection of Hessian blocks onto semidefinite matrices, online.

Most Hessians are semidefinite by form (`symbolic.derivatives.hessian`); what is left are small
dense blocks whose eigenvalues depend on the point.  Negative eigenvalues become zero; a block
without any keeps its bits.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.symbolic.derivatives.assembly import Assembly


class BlockProjection:
    """Adds the projected blocks of a problem to P."""

    def __init__(self, assembly: Assembly):
        """Keeps the tables."""
        self._sets = assembly.block_sets

    def __call__(self, P: jax.Array, raw: jax.Array) -> jax.Array:
        """P with the projections of the raw blocks added, both in tiles."""
        for blocks in self._sets:
            dense = jnp.moveaxis(raw[:, blocks.values], -1, 1)  # [tiles, lanes, blocks, size, size]
            i, j = np.tril_indices(blocks.values.shape[-1])
            values = jnp.moveaxis(_projected(dense)[..., i, j], 1, -1)
            for parity in (0, 1):  # neighbours share entries; every other stage shares none
                mine = blocks.parity == parity
                if mine.any():
                    rows = values[:, mine].reshape(P.shape[0], -1, P.shape[2])
                    P = P.at[:, blocks.upper[mine].ravel()].add(rows, unique_indices=True)
        return P

    def raw_bars(self, P_bar: jax.Array, size: int) -> jax.Array:
        """Cotangents of the raw blocks: the projection counts as a constant shift.

        The derivative of a projection does not exist where an eigenvalue is zero or double.
        """
        source = np.zeros(size, dtype=np.int32)
        for blocks in self._sets:
            i, j = np.tril_indices(blocks.values.shape[-1])
            source[blocks.values[:, i, j]] = blocks.upper
        return P_bar[:, source]


def _projected(blocks: jax.Array) -> jax.Array:
    """Nearest semidefinite matrices; blocks that are not finite stay so and do not stop others."""
    finite = jnp.isfinite(blocks).all(axis=(-2, -1), keepdims=True)
    eigenvalues, vectors = jnp.linalg.eigh(jnp.where(finite, blocks, 0))
    positive = (vectors * jnp.maximum(eigenvalues, 0)[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)
    convex = (eigenvalues[..., :1, None] >= 0) | ~finite
    return jnp.where(convex, blocks, positive)
