"""Batches of instances that need very different numbers of iterations.

A few tiles are worked on at a time.  Whenever enough of their lanes have finished, the results are
put aside and waiting instances take the lanes over, so that the time of a batch is set by the mean
number of iterations and not by the slowest instance.  No lane looks at another one, so that results
do not depend on neighbours or order.  On a CPU one tile is worked on at a time, whatever the batch:
the program, and with it every bit, is the same for all batches.  Such a tile has as many lanes as a
vector register has values, because all lanes pay for what one of them needs: another trial point,
another factorisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.runtime.ffi import has_gpu
from warpmpc.mpc.interior_point.control import when
from warpmpc.mpc.interior_point.iteration import RUNNING, State
from warpmpc.mpc.parameters import Parameters

_TILES = {False: 1, True: 1024}  # worked on at a time, without and with a GPU
_IDLE = 8  # lanes are exchanged once one in so many has finished


def pool_tiles(tiles: int) -> int:
    """Tiles that are worked on at a time."""
    return min(tiles, _TILES[has_gpu()])


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Job:
    """What an instance starts from, and later what is left of it: rows of instances."""

    z: jax.Array
    y: jax.Array
    usable: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class _Carry:
    """The tiles that are worked on.

    `who` is the instance of each lane, the number of instances if there is none; `waiting` the
    first instance that has not begun.
    """

    state: State
    own: jax.Array
    who: jax.Array
    waiting: jax.Array
    results: Any


class Pool:
    """Runs an iteration until every instance has a status."""

    def __init__(
        self,
        begin: Callable[[Job, Parameters], State],
        iterate: Callable[[State, Parameters], State],
        read: Callable[[State], Any],
        lanes: int = LANES,
    ):
        """Keeps the parts, all of which work on tiles.

        Args:
            begin: Makes the first state from the start of instances and their parameters.
            iterate: One iteration.
            read: What is kept of a state.
            lanes: Lanes of the tiles that are worked on.
        """
        self._begin, self._iterate, self._read = begin, iterate, read
        self._lanes = lanes

    def run(self, jobs: Job, p: Parameters) -> Any:
        """Results of all instances, in tiles.

        Args:
            jobs: Starts, in tiles.
            p: Parameters, in tiles.
        """
        tiles, _, lanes_outside = p.own.shape
        batch = tiles * lanes_outside
        width = pool_tiles(-(-batch // self._lanes))
        at_once = width * self._lanes
        jobs, own = jax.tree.map(_rows, (jobs, p.own))
        if p.common is not None:  # all lanes hold the same
            shape = *p.common.shape[:2], self._lanes
            p = replace(p, common=jnp.broadcast_to(p.common[:, :, :1], shape))

        def begun(who: jax.Array) -> tuple[State, jax.Array]:
            """First states of some instances, and their parameters."""
            at = jnp.minimum(who, batch - 1)
            mine = jax.tree.map(lambda rows: self._tiles(rows[at]), (jobs, own))
            return self._begin(mine[0], replace(p, own=mine[1])), mine[1]

        def exchanged(carry: _Carry) -> _Carry:
            """Finished lanes taken over by waiting instances."""
            idle = (carry.state.status != RUNNING).reshape(-1)
            results = self._kept(carry, idle)
            place = carry.waiting + jnp.cumsum(idle, dtype=jnp.int32) - 1
            who = jnp.where(idle, jnp.minimum(place, batch), carry.who)
            fresh, fresh_own = begun(who)
            # Lanes without an instance stay as they are.
            new = (idle & (who < batch)).reshape(width, 1, self._lanes)
            state, mine = jax.tree.map(
                lambda a, b: jnp.where(new, a, b), (fresh, fresh_own), (carry.state, carry.own)
            )
            waiting = jnp.minimum(carry.waiting + idle.sum(dtype=jnp.int32), batch)
            return _Carry(state, mine, who, waiting, results)

        def body(carry: _Carry) -> _Carry:
            running = (carry.state.status == RUNNING).sum(dtype=jnp.int32)
            few = running <= at_once - at_once // _IDLE
            carry = when((carry.waiting < batch) & few, exchanged, carry)
            return replace(carry, state=self._iterate(carry.state, replace(p, own=carry.own)))

        first = jnp.arange(at_once, dtype=jnp.int32)
        state, mine = begun(first)
        shapes = jax.eval_shape(lambda s: jax.tree.map(_rows, self._read(s)), state)
        results = jax.tree.map(lambda a: jnp.zeros((batch, *a.shape[1:]), a.dtype), shapes)
        waiting = jnp.asarray(min(at_once, batch), dtype=jnp.int32)
        carry = _Carry(state, mine, first, waiting, results)
        end = jax.lax.while_loop(
            lambda c: (c.state.status == RUNNING).any() | (c.waiting < batch), body, carry
        )
        found = self._kept(end, jnp.ones(at_once, dtype=bool))
        return jax.tree.map(lambda rows: _tiles(rows, lanes_outside), found)

    def _tiles(self, rows: jax.Array) -> jax.Array:
        return _tiles(rows, self._lanes)

    def _kept(self, carry: _Carry, which: jax.Array) -> Any:
        """Results with those of some lanes."""
        size = jax.tree.leaves(carry.results)[0].shape[0]
        at = jnp.where(which, carry.who, size)
        found = jax.tree.map(_rows, self._read(carry.state))
        return jax.tree.map(lambda all_, new: all_.at[at].set(new, mode="drop"),
                            carry.results, found)  # fmt: skip


def _rows(tiles: jax.Array) -> jax.Array:
    """Tiles to rows of instances."""
    count, rows, lanes = tiles.shape
    return tiles.transpose(0, 2, 1).reshape(count * lanes, rows)


def _tiles(rows: jax.Array, lanes: int) -> jax.Array:
    """Rows of instances to tiles."""
    return rows.reshape(rows.shape[0] // lanes, lanes, rows.shape[1]).transpose(0, 2, 1)
