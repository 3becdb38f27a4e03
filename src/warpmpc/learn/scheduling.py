"""The order in which shards are given to workers: some under way at once, taken as they end.

Reads: a pool of workers.  Produces: shards, in the order in which they are ready.  Results take
memory until they are fetched, so only a window of shards is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from warpmpc.learn.collect import Shard

PER_WORKER = 2  # shards under way per worker: one that is made, one that waits behind it


class Pool(Protocol):
    """Workers that make shards; it gives a shard to another worker if its worker is lost."""

    workers: int

    def submit(self, index: int) -> Any:
        """Asks for a shard; returns what stands for it until it is ready."""
        ...

    def first_ready(self, running: list[Any]) -> tuple[Shard, list[Any]]:
        """Waits for one of those under way; returns it, and the others."""
        ...


def scheduled(pool: Pool, indices: Sequence[int]) -> Iterator[Shard]:
    """The shards with these numbers as they become ready."""
    waiting, running = deque(indices), []
    window = max(PER_WORKER * pool.workers, 2)
    while waiting or running:
        while waiting and len(running) < window:
            running.append(pool.submit(waiting.popleft()))
        shard, running = pool.first_ready(running)
        yield shard
