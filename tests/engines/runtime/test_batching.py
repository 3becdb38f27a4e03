"""Batch-first to tiles of 32 and back."""

import jax
import numpy as np
import pytest

from warpmpc.engines.runtime.batching import LANES, from_tiles, tile_count, to_tiles

BATCHES = [1, 31, 32, 33, 100]


def batch_first(batch: int, rows: int = 5) -> np.ndarray:
    return np.arange(batch * rows, dtype=np.float64).reshape(batch, rows)


@pytest.mark.parametrize(("batch", "tiles"), [(1, 1), (31, 1), (32, 1), (33, 2), (100, 4)])
def test_tile_count(batch, tiles):
    assert tile_count(batch) == tiles


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("batch", BATCHES)
def test_round_trip(batch, dtype):
    array = batch_first(batch).astype(dtype)
    back = from_tiles(to_tiles(array), batch)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("batch", BATCHES)
def test_layout(batch):
    array = batch_first(batch)
    tiles = np.asarray(to_tiles(array))
    assert tiles.shape == (tile_count(batch), 5, LANES)
    for b in range(tiles.shape[0] * LANES):
        given = array[min(b, batch - 1)]  # spare lanes repeat the last problem
        np.testing.assert_array_equal(tiles[b // LANES, :, b % LANES], given)


@pytest.mark.parametrize("batch", BATCHES)
def test_under_jit(batch):
    array = batch_first(batch)
    there = jax.jit(to_tiles)(array)
    np.testing.assert_array_equal(there, to_tiles(array))
    back = jax.jit(from_tiles, static_argnums=1)(there, batch)
    np.testing.assert_array_equal(back, array)


def test_one_row():
    np.testing.assert_array_equal(from_tiles(to_tiles(batch_first(33, 1)), 33), batch_first(33, 1))
