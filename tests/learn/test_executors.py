"""Shards made elsewhere are the same bit by bit."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import learn_cases
import pytest

import warpmpc
from warpmpc import SettingsError
from warpmpc.learn import DataError, synthesize
from warpmpc.learn.collect import ShardMaker, _task_of
from warpmpc.learn.validity import Bounds


def files_of(folder):
    files = [*folder.glob("shard-*"), *folder.glob("_shard-*")]
    return {path.name: path.read_bytes() for path in files}


def bounds_of(data):
    return Bounds.from_json(data.manifests[0]["bounds"])


def test_a_maker_survives_pickling(task, small, data, policy):
    maker = ShardMaker(task, replace(small, beta=0.0), bounds_of(data), policy)
    again = pickle.loads(pickle.dumps(maker))
    assert again.task is not task
    assert again.policy.fingerprint == policy.fingerprint
    plain = pickle.loads(pickle.dumps(ShardMaker(task, small, bounds_of(data), None)))
    assert plain(1).content == (data.folders[0] / "shard-00001.parquet").read_bytes()


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


def test_a_worker_with_other_versions_is_noticed(task, small, data, monkeypatch):
    content = pickle.dumps(ShardMaker(task, small, bounds_of(data), None))
    monkeypatch.setattr("warpmpc.learn.collect.version", lambda name: "0.0")
    with pytest.raises(DataError, match=r"has warpmpc 0\.0, jax 0\.0.*Install the same versions"):
        pickle.loads(content)


MESH = """
import sys
import jax, learn_cases, numpy
from jax.sharding import Mesh
from warpmpc.learn import DataSettings, LocalExecutor, loops, synthesize

plain, used = loops.rollout, []

def watched(controller, world, x, *rest, **more):
    found = plain(controller, world, x, *rest, **more)
    used.append(*[device.id for device in found.x.devices()])
    return found

loops.rollout = watched
settings = DataSettings(rollouts=16, shards=3, bound_rollouts=16)
mesh = Mesh(numpy.array(jax.devices()).reshape(2, 1), ("a", "b"))
task = learn_cases.task()
with jax.default_device(jax.devices()[0]):
    synthesize(task, folder=sys.argv[1], settings=settings)
synthesize(task, folder=sys.argv[2], settings=settings, executor=LocalExecutor(mesh))
synthesize(task, folder=sys.argv[3], settings=settings)
print(used)
"""


def test_all_devices_of_a_mesh_make_the_same_shards(tmp_path):
    """Two virtual devices: the bounds on the first one, then shards in turn, also by default."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    changes = {"PYTHONPATH": paths(), "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    one, both, usual = (tmp_path / name for name in ("one", "both", "usual"))
    command = [sys.executable, "-c", MESH, str(one), str(both), str(usual)]
    environment = {**os.environ, **changes}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    expected = [[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0]]
    assert done.stdout.splitlines()[-1:] == list(map(str, expected)), done.stderr
    assert files_of(both) == files_of(usual) == files_of(one)


COMMAND = """
import sys
from warpmpc.cli.main import main
sys.exit(main(["learn", "data", "learn_cases:task", *sys.argv[1:]]))
"""
SIZES = ("--rollouts", "16", "--shards", "8")


def paths():
    """Where other processes find the library and the modules of these tests."""
    support, source = (Path(module.__file__).parent for module in (learn_cases, warpmpc))
    return os.pathsep.join([str(support), str(source.parent)])


def start(*arguments):
    """The command in a process of its own."""
    command = [sys.executable, "-c", COMMAND, *SIZES, *arguments]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths()})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_times_the_files_are_the_same(tmp_path):
    whole, killed, rng = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    assert start("--out", str(whole)).wait(timeout=400) == 0
    kills, data = 0, killed / "data" / "round-00"
    for shards in (1, 3):
        process = start("--out", str(killed))
        try:
            while process.poll() is None and len(list(data.glob("_shard-*.json"))) < shards:
                time.sleep(0.001)
            time.sleep(rng.random() * 0.02)
        finally:
            process.kill()
        kills += process.wait() == -signal.SIGKILL
    assert kills == 2
    assert start("--out", str(killed)).wait(timeout=400) == 0
    expected = files_of(whole / "data" / "round-00")
    assert len(expected) == 16
    assert files_of(killed / "data" / "round-00") == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_the_command_uses_a_cluster_by_its_address(tmp_path, monkeypatch, capfd):
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'warpmpc[ray]'")
    monkeypatch.setenv("PYTHONPATH", paths())
    here, there = tmp_path / "here", tmp_path / "there"
    assert start("--out", str(here)).wait(timeout=400) == 0
    about = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        address = about.address_info["gcs_address"]
        done = start("--out", str(there), "--ray", address)
        assert done.wait(timeout=400) == 0
        assert f"existing Ray cluster at address: {address}" in capfd.readouterr().err
    finally:
        ray.shutdown()
    assert files_of(there / "data" / "round-00") == files_of(here / "data" / "round-00")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_with_a_killed_worker(small, data, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'warpmpc[ray]'")
    marker = tmp_path / "killed"
    monkeypatch.setenv("LEARN_CASES_KILL", str(marker))
    monkeypatch.setenv("PYTHONPATH", paths())
    task = learn_cases.task(factory="learn_cases:task_that_is_killed_once")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        synthesize(task, folder=tmp_path / "data", settings=small, executor="ray")
    finally:
        ray.shutdown()
    assert marker.read_text() == str(signal.SIGKILL.value)
    assert files_of(tmp_path / "data") == files_of(data.folders[0])
