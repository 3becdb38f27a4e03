"""Layout of batched arrays: batch-first outside, tiles of 32 problems inside.

A tiled array has shape ``[tiles, rows, 32]``; problem b is lane ``b % 32`` of tile ``b // 32``.
For one row the problems of a warp are one 128-byte line, and all that a warp reads is contiguous.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

LANES = 32


def tile_count(batch: int) -> int:
    """Tiles needed for a batch."""
    return -(-batch // LANES)


def to_tiles(array: jax.Array) -> jax.Array:
    """``[batch, rows]`` to ``[tiles, rows, 32]``; spare lanes repeat the last problem.

    A copy of a real problem is harmless: it causes nothing that the problem itself does not cause.
    """
    batch, rows = array.shape
    spare = tile_count(batch) * LANES - batch
    padded = jnp.pad(array, ((0, spare), (0, 0)), mode="edge") if spare else array
    return padded.reshape(tile_count(batch), LANES, rows).transpose(0, 2, 1)


def from_tiles(tiles: jax.Array, batch: int) -> jax.Array:
    """``[tiles, rows, 32]`` back to ``[batch, rows]``; spare lanes are dropped."""
    n_tiles, rows, lanes = tiles.shape
    return tiles.transpose(0, 2, 1).reshape(n_tiles * lanes, rows)[:batch]
