"""Data sets: what is in them, and that nothing but the settings decides about a single bit."""

import errno
import json
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import learn_cases
import numpy as np
import pyarrow.parquet
import pytest

import warpmpc as wm
from warpmpc import ProblemError, SettingsError
from warpmpc.learn import DataError, Dataset, DataSettings, LocalExecutor, synthesize
from warpmpc.learn.collect import make_shard
from warpmpc.learn.parquet import ShardFile
from warpmpc.learn.validity import Bounds, find_bounds, valid_samples


def files_of(folder):
    files = [*Path(folder).glob("shard-*"), *Path(folder).glob("_shard-*")]
    return {path.name: path.read_bytes() for path in files}


def test_labels_are_those_of_the_solver(data, task):
    """A new rollout's first step starts from the guess, as a plain solve does."""
    shard = data.shards[0].read()
    first = shard[shard["step"] == 0]
    assert len(first) > 10
    u = task.solver.solve(jnp.asarray(first["x"])).u[:, 0]
    np.testing.assert_allclose(first["u"], u, atol=1e-5)


def test_pairs_follow_the_plant_with_bounded_noise(data):
    shard = data.shards[0].read()
    one = shard[shard["rollout"] == shard["rollout"][0]]
    assert one["step"].tolist() == list(range(25))
    nominal = np.asarray(learn_cases.plant(jnp.asarray(one["x"]), jnp.asarray(one["u"])))
    error = np.abs(one["x"][1:] - nominal[:-1])
    limit = np.array([0.01, 0.02]) + 0.1 * learn_cases.B[:, 0]
    assert (error.max(axis=0) <= limit + 1e-6).all()
    assert (error.max(axis=0) > 0.3 * limit).all()


def test_manifest_says_how_the_data_were_made(data, task):
    manifest = data.manifests[0]
    assert manifest["problem"] == task.solver.problem.hash
    assert manifest["settings"]["seed"] == 0
    assert manifest["versions"]["warpmpc"] == wm.__version__
    assert data.pairs <= data.offered == 3 * 16 * 25
    assert len(manifest["bounds"]["low"]) == 2


def test_shards_are_columns_that_other_tools_read(data, task):
    """The whole folder by pyarrow alone, as pandas and polars do."""
    table = pyarrow.parquet.read_table(data.folders[0])
    assert table.column_names == ["x_position", "x_velocity", "u_force", "rollout", "step"]
    assert len(table) == data.pairs
    records = data.read(range(len(data.shards)))
    np.testing.assert_array_equal(table["x_velocity"].to_numpy(), records["x"][:, 1])
    np.testing.assert_array_equal(table["rollout"].to_numpy(), records["rollout"])
    np.testing.assert_array_equal(data.shards[2]["u"], data.read([2])["u"])


def test_a_column_is_read_without_the_others(data, tmp_path):
    """Pages of other columns are overwritten, and the one that is read does not notice."""
    path = tmp_path / "shard.parquet"
    content = bytearray((data.folders[0] / "shard-00000.parquet").read_bytes())
    described = pyarrow.parquet.ParquetFile(data.folders[0] / "shard-00000.parquet").metadata
    for i in range(3):
        column = described.row_group(0).column(i)
        assert (column.compression, column.total_compressed_size) >= ("UNCOMPRESSED", 4)
        begin = column.data_page_offset
        content[begin : begin + column.total_compressed_size] = b"\xff" * (
            column.total_compressed_size
        )
    path.write_bytes(content)
    shard = ShardFile(path, data.manifests[0])
    np.testing.assert_array_equal(shard["step"], data.shards[0]["step"])
    with pytest.raises(DataError, match="cannot be read"):
        shard["u"]


def test_files_do_not_follow_defaults_of_the_writer(data):
    """All that decides about the bytes but the version of pyarrow, which the manifest says."""
    file = pyarrow.parquet.ParquetFile(data.folders[0] / "shard-00000.parquet")
    assert file.metadata.created_by.endswith(data.manifests[0]["versions"]["pyarrow"])
    assert file.metadata.format_version == "2.6"
    column = file.metadata.row_group(0).column(0)
    assert column.compression == "UNCOMPRESSED"
    assert not column.is_stats_set
    assert not any(field.nullable for field in file.schema_arrow)


def test_without_pyarrow_it_is_said_before_anything_is_made(task, small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SettingsError, match="pip install pyarrow"):
        synthesize(task, folder=tmp_path / "data", settings=small)
    assert not (tmp_path / "data").exists()


class Killed(Exception):
    pass


class KilledExecutor:
    """Makes some shards, then dies."""

    def __init__(self, shards):
        self.shards = shards

    def run(self, make, indices):
        for i in indices[: self.shards]:
            yield make(i)
        raise Killed


def test_a_killed_synthesis_goes_on_bit_by_bit(data, task, small, tmp_path):
    with pytest.raises(Killed):
        synthesize(task, folder=tmp_path, settings=small, executor=KilledExecutor(1))
    assert len(list(tmp_path.glob("shard-*.parquet"))) == 1
    with pytest.raises(DataError, match="missing or damaged"):
        Dataset.open(tmp_path)
    (tmp_path / ".shard-00001.parquet.1.partial").write_bytes(b"half a shard")
    made = []
    synthesize(
        task,
        folder=tmp_path,
        settings=small,
        progress=lambda done, total: made.append((done, total)),
    )
    assert made == [(1, 3), (2, 3), (3, 3)]
    assert files_of(tmp_path) == files_of(data.folders[0])


def test_a_damaged_shard_is_found_and_made_again(data, task, small, tmp_path):
    synthesize(task, folder=tmp_path, settings=small)
    path = tmp_path / "shard-00001.parquet"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"shard-00001\.parquet is missing or damaged"):
        Dataset.open(tmp_path, verify=True)
    made = []

    class Counting(LocalExecutor):
        def run(self, make, indices):
            made.extend(indices)
            return super().run(make, indices)

    synthesize(task, folder=tmp_path, settings=small, executor=Counting())
    assert made == [1]
    assert files_of(tmp_path) == files_of(data.folders[0])


def test_a_full_disk_ends_clearly_and_can_go_on(data, task, small, tmp_path, monkeypatch):
    synced = []

    def full(descriptor):
        synced.append(descriptor)
        if len(synced) > 3:  # the manifest and both files of the first shard fit
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("warpmpc.learn.files.os.fsync", full)
    with pytest.raises(DataError, match=r"No space left on device.*run the same command again"):
        synthesize(task, folder=tmp_path, settings=small)
    assert not list(tmp_path.glob(".*partial"))
    monkeypatch.undo()
    synthesize(task, folder=tmp_path, settings=small)
    assert files_of(tmp_path) == files_of(data.folders[0])


def test_other_settings_do_not_mix(task, small, tmp_path):
    synthesize(task, folder=tmp_path, settings=small)
    with pytest.raises(DataError, match="settings differ"):
        synthesize(task, folder=tmp_path, settings=replace(small, seed=1))


def test_shards_differ_and_seeds_decide(task, small, data):
    bounds = Bounds.from_json(data.manifests[0]["bounds"])
    contents = [make_shard(task, small, bounds, None, i).content for i in (0, 0, 1)]
    other = make_shard(task, replace(small, seed=5), bounds, None, 0).content
    assert contents[0] == contents[1]
    assert len({contents[0], contents[2], other}) == 3


def test_keep_is_a_share(task, small, tmp_path, data):
    kept = synthesize(task, folder=tmp_path, settings=replace(small, keep=0.25))
    assert 0.15 < kept.pairs / data.pairs < 0.35


def test_failing_experts_never_enter_the_data(small, tmp_path):
    """Starts so far away that no box around good rollouts holds them, and some that are NaN."""

    def sampler(batch, seed):
        x = learn_cases.sampler(batch, seed)
        x[0], x[1] = 1e6, np.nan
        return x

    found = synthesize(learn_cases.task(sampler=sampler), folder=tmp_path, settings=small)
    for shard in found.shards:
        assert np.isfinite(shard["x"]).all()
        assert np.isfinite(shard["u"]).all()
        assert set(np.unique(shard["rollout"] % 16)).isdisjoint({0, 1})


def test_no_valid_pair_is_said(small, tmp_path):
    task = learn_cases.task(sampler=lambda batch, seed: np.full((batch, 2), np.nan))
    with pytest.raises(DataError, match="No valid pair"):
        _ = synthesize(task, folder=tmp_path, settings=small).shards


@pytest.mark.slow
def test_derivatives_are_the_gain_of_the_riccati_recursion(task, tmp_path):
    settings = DataSettings(rollouts=4, shards=1, bound_rollouts=8, derivatives=True, keep=0.3)
    shard = synthesize(task, folder=tmp_path, settings=settings).shards[0].read()
    inside = shard[np.abs(shard["u"][:, 0]) < 0.8 * learn_cases.LIMIT]
    assert len(inside) > 5
    # Without active limits the feedback of a linear system is one gain.
    Q, Q_end, R = np.diag([2.0, 0.5]), np.diag([20.0, 5.0]), np.array([[0.05]])
    A, B, P = learn_cases.A, learn_cases.B, Q_end
    gain = np.zeros((1, 2))
    for _ in range(learn_cases.HORIZON):
        gain = np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
        P = Q + A.T @ P @ (A - B @ gain)
    free = inside[np.linalg.norm(inside["x"], axis=1) < 0.05]
    assert len(free) > 3
    for slope in free["du_dx"]:
        np.testing.assert_allclose(slope, -gain, rtol=0.05)


def test_policy_drives_with_its_share(task, policy, tmp_path):
    settings = DataSettings(rollouts=8, shards=1, bound_rollouts=8, beta=0.5, round=1)
    mixed = synthesize(task, folder=tmp_path / "a", settings=settings, policy=policy)
    alone = synthesize(task, folder=tmp_path / "b", settings=replace(settings, beta=0.0))
    assert mixed.manifests[0]["policy"] == policy.fingerprint
    assert files_of(tmp_path / "a") != files_of(tmp_path / "b")
    shards = [found.shards[0] for found in (mixed, alone)]
    first = [shard["u"][shard["step"] == 0] for shard in shards]
    np.testing.assert_array_equal(first[0], first[1])  # labels are the expert's


def test_bounds_by_hand():
    x = np.zeros((10, 3, 1))
    x[:, :, 0] = np.arange(10)[:, None]
    cost = np.arange(10.0)
    cost[9] = 1e6
    bounds = find_bounds(x, cost)
    p90 = np.percentile(cost, 90)
    assert bounds.cost == pytest.approx(p90 + 0.25 + 2 * p90)
    kept = x[cost <= bounds.cost].ravel()
    low, high = np.percentile(kept, [10, 90])
    assert bounds.high[0] == pytest.approx(high + 0.25 + 2 * (high - low))
    assert Bounds.from_json(json.loads(json.dumps(bounds.to_json()))) == bounds


def test_each_filter_alone():
    good = {
        "label": np.zeros((1, 1, 1)),
        "expert_theta": np.zeros((1, 1, 1)),
        "expert_primal": np.zeros((1, 1, 1)),
        "expert_dual": np.zeros((1, 1, 1)),
        "expert_status": np.zeros((1, 1, 1), dtype=int),
    }
    bounds = Bounds((-1.0,), (1.0,), 5.0)

    def valid(x=0.0, cost=1.0, **changes):
        seen = {name: changes.get(name, 0) + array for name, array in good.items()}
        found = valid_samples(np.full((1, 1, 1), x), seen, np.array([cost]), bounds, (100.0, 1e4))
        return bool(found[0, 0])

    assert valid()
    assert not valid(x=1.1)
    assert not valid(x=np.nan)
    assert not valid(cost=5.1)
    assert not valid(cost=np.nan)
    assert not valid(label=np.inf)
    assert not valid(expert_theta=101)
    assert not valid(expert_primal=1e5)
    assert not valid(expert_dual=np.nan)
    assert not valid(expert_status=int(wm.MPCStatus.QP_INFEASIBLE))
    assert valid(expert_status=int(wm.MPCStatus.MAX_ITER))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollouts": 0}, "rollouts must be a positive integer"),
        ({"shards": 1.5}, "shards must be a positive integer"),
        ({"seed": -1}, "seed must not be negative"),
        ({"keep": 0.0}, "keep must be a share"),
        ({"beta": 1.5}, "beta must be a share"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises(SettingsError, match=message):
        DataSettings(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda task: {"solver": task.solver}, "needs a solver, a plant and a sampler"),
        (lambda task: {"solver": task, "plant": task.plant}, "A Task has its plant"),
        (
            lambda task: {"solver": task.solver, "plant": 1, "sampler": 1, "stepz": 2},
            r"does not know \['stepz'\]",
        ),
        (
            lambda task: {"solver": task.solver, "plant": 1, "sampler": 1},
            "needs steps",
        ),
        (lambda task: {"solver": task, "settings": DataSettings(beta=0.1)}, "needs a policy"),
        (lambda task: {"solver": task, "executor": "slurm"}, 'executor must be "local"'),
    ],
)
def test_wrong_calls(task, tmp_path, arguments, message):
    with pytest.raises(SettingsError, match=message):
        synthesize(**arguments(task), folder=tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be a positive integer"),
        ({"names": (("a",), ("b",))}, "names needs 2 entries"),
        ({"names": (("a", "a"), ("b",))}, "names must differ"),
        ({"noise": wm.learn.Noise(state=(1.0,))}, "noise.state needs 2 values"),
        ({"safe_input": (0.0, 0.0)}, "safe_input needs 1 values"),
    ],
)
def test_wrong_tasks(changes, message):
    with pytest.raises(ProblemError, match=message):
        learn_cases.task(**changes)


def test_a_wrong_sampler_is_named(small, tmp_path):
    task = learn_cases.task(sampler=lambda batch, seed: np.zeros((batch, 3)))
    with pytest.raises(ProblemError, match=r"must return states \[16, 2\]"):
        synthesize(task, folder=tmp_path, settings=small)


def test_parts_instead_of_a_task(task, small, tmp_path, data):
    found = synthesize(
        task.solver,
        task.plant,
        task.sampler,
        tmp_path,
        small,
        steps=25,
        control_dt=learn_cases.DT,
        noise=task.noise,
        cost=task.cost,
        names=task.names,
    )
    assert files_of(tmp_path) == files_of(data.folders[0])
    assert found.manifests[0]["task"] == "task"


def test_a_folder_without_data_is_said(tmp_path):
    with pytest.raises(DataError, match="holds no data set"):
        Dataset.open(tmp_path)
