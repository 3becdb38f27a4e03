"""Shards made elsewhere are the same bit by bit."""

import os
import pickle
import signal
from dataclasses import replace

import learn_cases
import pytest

from warpmpc import SettingsError
from warpmpc.learn import DataError, synthesize
from warpmpc.learn.collect import ShardMaker, _task_of
from warpmpc.learn.validity import Bounds


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*"))}


def bounds_of(data):
    return Bounds.from_json(data.manifests[0]["bounds"])


def test_a_maker_survives_pickling(task, small, data, policy):
    maker = ShardMaker(task, replace(small, beta=0.0), bounds_of(data), policy)
    again = pickle.loads(pickle.dumps(maker))
    assert again.task is not task
    assert again.policy.fingerprint == policy.fingerprint
    plain = pickle.loads(pickle.dumps(ShardMaker(task, small, bounds_of(data), None)))
    assert plain(1).content == (data.folders[0] / "shard-00001.npy").read_bytes()


def test_a_task_without_factory_stays_here(small, data):
    maker = ShardMaker(learn_cases.task(factory=None), small, bounds_of(data), None)
    with pytest.raises(SettingsError, match="give it a factory"):
        pickle.dumps(maker)


def test_a_worker_with_another_problem_is_noticed(task, small, data, monkeypatch):
    content = pickle.dumps(ShardMaker(task, small, bounds_of(data), None))
    _task_of.cache_clear()

    class Other:
        class solver:
            class problem:
                hash = "another"

    monkeypatch.setattr("warpmpc.learn.collect.make_task", lambda name: Other)
    with pytest.raises(DataError, match="builds another problem"):
        pickle.loads(content)
    _task_of.cache_clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_with_a_killed_worker(small, data, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'warpmpc[ray]'")
    marker = tmp_path / "killed"
    monkeypatch.setenv("LEARN_CASES_KILL", str(marker))
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(learn_cases.__file__))
    task = learn_cases.task(factory="learn_cases:task_that_is_killed_once")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        synthesize(task, folder=tmp_path / "data", settings=small, executor="ray")
    finally:
        ray.shutdown()
    assert marker.read_text() == str(signal.SIGKILL.value)
    assert files_of(tmp_path / "data") == files_of(data.folders[0])
