"""Shards on the workers of a Ray cluster: lost workers are replaced, and nothing else changes.

A worker rebuilds the task from its factory, makes a shard, and sends its bytes back; the process
that called `synthesize` writes them.  Workers need the library and the module of the factory, but
no common file system.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from warpmpc._errors import SettingsError
from warpmpc.learn.collect import Make, Shard

_LOG = logging.getLogger(__name__)


class RayExecutor:
    """Makes shards as tasks of Ray."""

    def __init__(self, address: str | None = None, retries: int = 10, cpus: float = 1.0):
        """Connects to a cluster when the first shard is requested, or starts one on this machine.

        Args:
            address: Address of the cluster; None: the one that is connected already, or a new local
                one.
            retries: How often a shard whose worker was lost is given to another one.
            cpus: Processor cores that one shard occupies in Ray's accounts.
        """
        self._address, self._retries, self._cpus = address, retries, cpus

    def run(self, make: Make, indices: Sequence[int]) -> Iterator[Shard]:
        """The shards as they become ready."""
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise SettingsError(
                "executor=\"ray\" needs the package ray: pip install 'warpmpc[ray]'."
            ) from error
        if not indices:
            return
        if not ray.is_initialized():
            ray.init(address=self._address, log_to_driver=False)
        remote = ray.remote(_made).options(max_retries=self._retries, num_cpus=self._cpus)
        shared = ray.put(make)  # pickled once
        waiting = list(indices)
        # Results take memory until they are fetched: only some shards are under way at once.
        window = max(2 * int(ray.cluster_resources().get("CPU", 1) / self._cpus), 2)
        _LOG.info("%d shards, %d at a time", len(waiting), window)
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < window:
                running.append(remote.remote(shared, waiting.pop(0)))
            ready, running = ray.wait(running, num_returns=1)
            yield ray.get(ready[0])


def _made(make: Make, index: int) -> Shard:
    return make(index)
