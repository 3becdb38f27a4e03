"""How long data on many machines take, by the real scheduler with simulated work.

    python benchmarks/plan_cluster.py --out benchmarks/results/plan_cluster.jsonl

Reads: committed rates of the quadrotor.  Produces: one row per cluster.  The scheduler and the
files are those of `wm.learn.synthesize`; what is simulated is the time that workers take and their
losses, and a shard's content is a few bytes long.  Time is virtual: a shard takes its pairs divided
by the rate, give or take some; a worker that is lost is replaced after a while, starts anew, and
its shard is made again, as Ray does.  What the one process that writes needs per shard is measured
here, with whole shards, and added to its clock.  Half-way this process is killed and taken up.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from warpmpc.learn.collect import Shard
from warpmpc.learn.dataset import is_complete, shard_path, write_shard
from warpmpc.learn.parquet import encode, record_type
from warpmpc.learn.scheduling import scheduled
from warpmpc_bench.common.record import append_row, machine

RESULTS = Path(__file__).parent / "results"
PAIR_BYTES = record_type(12, 4, derivatives=False).itemsize
JITTER = 0.1  # standard deviation of the time of a shard, relative
STEPS = 200


@dataclass
class Cluster:
    """Workers in virtual time.

    Attributes:
        workers: Their number.
        shard_s: Mean time of a shard.
        start_s: Time from a worker's start to its first shard: imports and compilation.
        life_s: Mean time until a worker is lost; infinite: never.
        replace_s: Time until a lost worker is replaced.
        write_s: Time that the process needs which writes, per shard.
        seed: Seed of all random numbers.
    """

    workers: int
    shard_s: float
    start_s: float
    life_s: float
    replace_s: float
    write_s: float
    seed: int = 0
    now: float = 0.0
    lost: int = 0
    wasted_s: float = 0.0
    compute_s: float = 0.0
    made: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """All workers begin to start."""
        self._rng = np.random.default_rng(self.seed)
        self._free = [(self.start_s, worker) for worker in range(self.workers)]
        self._dies = [self._life() for _ in range(self.workers)]
        self._ends: list[tuple[float, int]] = []  # when shards are ready
        self._queue: deque[int] = deque()

    def _life(self) -> float:
        return self._rng.exponential(self.life_s) if np.isfinite(self.life_s) else np.inf

    def submit(self, index: int) -> int:
        """Gives a shard to the worker that is free first, and to others if that one is lost."""
        while True:
            free, worker = heapq.heappop(self._free)
            begin = max(free, self.now)
            end = begin + self.shard_s * max(0.2, 1 + JITTER * self._rng.normal())
            self.made[index] = self.made.get(index, 0) + 1
            if end <= self._dies[worker]:
                heapq.heappush(self._free, (end, worker))
                heapq.heappush(self._ends, (end, index))
                self.compute_s += end - begin
                return index
            back = max(self._dies[worker], begin) + self.replace_s
            self.wasted_s += max(self._dies[worker] - begin, 0.0)
            self.lost += 1
            heapq.heappush(self._free, (back + self.start_s, worker))
            self._dies[worker] = back + self._life()

    def first_ready(self, running: list[int]) -> tuple[Shard, list[int]]:
        """Waits, and counts the time for writing."""
        end, index = heapq.heappop(self._ends)
        self.now = max(self.now, end) + self.write_s
        running.remove(index)
        return Shard(index, content_of(index), {"pairs": 1, "offered": 1}), running


def content_of(index: int) -> bytes:
    """What a simulated worker sends: it follows from the number alone."""
    return np.random.default_rng(index).bytes(32)


def write_rate(pairs: int = 100_000, repeats: int = 15) -> float:
    """Bytes of whole shards that this machine checks and writes per second, the median."""
    names = {"state": [f"x{i}" for i in range(12)], "input": [f"u{i}" for i in range(4)]}
    content = encode(np.zeros(pairs, record_type(12, 4, derivatives=False)), names)
    rates = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(repeats):
            began = time.perf_counter()
            write_shard(Path(folder), i, content, {"pairs": pairs, "offered": pairs})
            rates.append(len(content) / (time.perf_counter() - began))
    return float(np.median(rates))


def shards_of(cluster: Cluster, shards: int, folder: Path, kill_after: int) -> Iterator[Shard]:
    """Runs the scheduler, kills the process that writes once, and takes up what is on disk."""
    for count, shard in enumerate(scheduled(cluster, range(shards))):
        if count == kill_after:
            break
        yield shard
    again = [i for i in range(shards) if not is_complete(folder, i)]
    begun = Cluster(**{name: getattr(cluster, name) for name in CONFIGURED})
    begun.now = cluster.now
    begun._free = [(cluster.now + cluster.start_s, w) for w in range(cluster.workers)]
    begun._dies = [cluster.now + begun._life() for _ in range(cluster.workers)]
    begun.made, begun.lost = cluster.made, cluster.lost
    begun.wasted_s, begun.compute_s = cluster.wasted_s, cluster.compute_s
    yield from scheduled(begun, again)
    cluster.__dict__ |= begun.__dict__


CONFIGURED = ("workers", "shard_s", "start_s", "life_s", "replace_s", "write_s", "seed")


def simulate(cluster: Cluster, shards: int, pairs: int, *, kill: bool) -> dict[str, Any]:
    """A whole data set; checks that no shard is missing, and that contents are right."""
    with tempfile.TemporaryDirectory(dir=memory_disk()) as name:
        folder = Path(name)
        begun = time.perf_counter()
        for shard in shards_of(cluster, shards, folder, shards // 2 if kill else -1):
            write_shard(folder, shard.index, shard.content, shard.counts)
        real = time.perf_counter() - begun
        complete = all(is_complete(folder, i) for i in range(shards))
        right = all(shard_path(folder, i).read_bytes() == content_of(i) for i in (0, 7))
    ideal = cluster.start_s + shards * cluster.shard_s / cluster.workers
    repeated = sum(count - 1 for count in cluster.made.values())
    sent = (shards + repeated) * pairs * PAIR_BYTES
    return {
        "workers": cluster.workers,
        "shards": shards,
        "pairs": shards * pairs,
        "complete": complete and right,
        "killed_and_resumed": kill,
        "time_s": round(cluster.now, 1),
        "ideal_s": round(ideal, 1),
        "writing_alone_s": round(shards * cluster.write_s, 1),
        "workers_lost": cluster.lost,
        "shards_repeated": repeated,
        "wasted_share": round(cluster.wasted_s / (cluster.wasted_s + cluster.compute_s), 5),
        "network_bytes_per_worker_s": round(sent / cluster.workers / cluster.now),
        "bytes_received": shards * pairs * PAIR_BYTES,
        "disk_bytes_per_worker": 0,  # workers write nothing; one process writes all
        "scheduler_real_s": round(real, 2),
    }


def memory_disk() -> str | None:
    """A folder in memory, where simulated shards cost no disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def rates() -> dict[str, float]:
    """SQP iterations per second, one per pair: of an H200 and of a CPU core, as committed."""
    gpu = [json.loads(line) for line in (RESULTS / "house_h200.jsonl").open()]
    h200 = next(
        row["sqp"]["per_s"]
        for row in gpu
        if row["system"]["name"] == "quadrotor" and row["batch"] == 10_000
    )
    cpu = [json.loads(line) for line in (RESULTS / "closed_loop_cpu.jsonl").open()]
    row = next(r for r in cpu if r["run"] == "quadrotor_1000" and r["engine"] == "staged")
    return {"H200": h200, "CPU core": row["sqp_iterations_per_s"] / row["cores"]}


def main() -> None:
    """Runs all clusters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file to add rows to")
    parser.add_argument("--hours", type=float, default=2.0, help="mean life of a worker")
    args = parser.parse_args()
    rate, about = rates(), {"benchmark": "plan_cluster", **machine()}
    written = write_rate()
    # Name, workers, what one is, closed loops per shard, pairs, start-up, mean life of a worker.
    plans = [
        ("64 GPUs", 64, "H200", 10_000, 1e9, 60.0, args.hours),
        ("10 000 cores", 10_000, "CPU core", 256, 1e9, 60.0, args.hours),
        # Folders with seeds of their own, each with its writer, are joined by `Dataset.open`.
        ("64 GPUs, one of 16 folders", 4, "H200", 10_000, 1e9 / 16, 60.0, args.hours),
        ("10 000 cores, one of 16 folders", 625, "CPU core", 256, 1e9 / 16, 60.0, args.hours),
        ("1 000 cores", 1_000, "CPU core", 256, 2e8, 60.0, args.hours),
        ("1 000 cores, one in ten lost per minute", 1_000, "CPU core", 256, 2e8, 60.0, 1 / 6),
        ("1 000 cores, none lost", 1_000, "CPU core", 256, 2e8, 60.0, np.inf),
    ]
    for name, workers, kind, rollouts, total, start, hours in plans:
        pairs = rollouts * STEPS
        cluster = Cluster(
            workers=workers,
            shard_s=pairs / rate[kind],
            start_s=start,
            life_s=3600 * hours,
            replace_s=30.0,
            write_s=pairs * PAIR_BYTES / written,
        )
        found = simulate(cluster, max(round(total / pairs), 1), pairs, kill=True)
        life = 3600 * hours if np.isfinite(hours) else None
        assumed = {"rate": round(rate[kind]), "shard_s": round(pairs / rate[kind], 2)}
        assumed |= {"start_s": start, "life_s": life, "write_bytes_per_s": round(written)}
        row = {**about, "name": name, **assumed, **found}
        line = {key: row[key] for key in ("name", *assumed, *found)}
        sys.stdout.write(json.dumps(line) + "\n")
        if args.out:
            append_row(args.out, row)


if __name__ == "__main__":
    main()
