"""Shards are given to workers in a window, and simulated clusters lose time but no shard."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from warpmpc.learn.collect import Shard
from warpmpc.learn.scheduling import PER_WORKER, scheduled

FILE = Path(__file__).parents[2] / "benchmarks" / "plan_cluster.py"


class Backwards:
    """Finishes the shard last that was begun first."""

    workers = 3

    def __init__(self):
        self.most = 0

    def submit(self, index):
        return index

    def first_ready(self, running):
        self.most = max(self.most, len(running))
        return Shard(running[-1], b"", {}), running[:-1]


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 40])
def test_each_shard_comes_once_and_few_are_under_way(count):
    pool = Backwards()
    found = [shard.index for shard in scheduled(pool, range(10, 10 + count))]
    assert sorted(found) == list(range(10, 10 + count))
    assert pool.most == min(count, PER_WORKER * pool.workers)


@pytest.fixture(scope="module")
def plan():
    spec = importlib.util.spec_from_file_location("plan_cluster", FILE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cluster(plan, **changes):
    given = {"workers": 50, "shard_s": 10.0, "start_s": 20.0, "replace_s": 5.0, "write_s": 0.0}
    return plan.Cluster(**{**given, "life_s": np.inf, **changes})


def test_without_losses_time_is_pairs_over_rate(plan):
    found = plan.simulate(cluster(plan), 500, 1000, kill=False)
    assert found["complete"]
    assert found["ideal_s"] == 120
    assert 120 <= found["time_s"] < 150  # the last shards do not end together
    assert found["shards_repeated"] == found["workers_lost"] == 0


def test_losses_cost_what_was_under_way(plan):
    found = plan.simulate(cluster(plan, life_s=300.0), 500, 1000, kill=False)
    assert found["complete"]
    assert found["workers_lost"] > 5
    assert found["shards_repeated"] == found["workers_lost"]
    # On average a lost worker loses half a shard.
    wasted = found["wasted_share"] * 5000 / found["workers_lost"]
    assert 2 < wasted < 9
    assert found["time_s"] < 300


def test_a_kill_costs_the_window_and_one_writer_is_a_limit(plan):
    found = plan.simulate(cluster(plan, write_s=1.0), 500, 1000, kill=True)
    assert found["complete"]
    assert 500 < found["time_s"] < 700
    assert 0 < found["shards_repeated"] <= PER_WORKER * 50
