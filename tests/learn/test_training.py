"""Training: the split, the optimiser against plain NumPy, checkpoints, and what is learned."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from warpmpc import ProblemError, SettingsError
from warpmpc.learn import DataError, Network, Policy, TrainSettings, train
from warpmpc.learn.batches import Parts, is_validation
from warpmpc.learn.dataset import FORMAT, MANIFEST, Dataset, write_shard
from warpmpc.learn.files import write_json
from warpmpc.learn.parquet import encode, record_type
from warpmpc.learn.training import Programs

QUICK = TrainSettings(hidden=(8,), epochs=4, minibatch=64, checkpoint_every=1)


def linear_data(folder, *, derivatives=True, rollouts=200, n_shards=2):
    """u = K x + 1 with its derivative, in shards of rollouts of 5 pairs."""
    rng, gain = np.random.default_rng(0), np.array([[1.0, -2.0]])
    names = {"state": ["a", "b"], "input": ["u"]}
    for i in range(n_shards):
        records = np.zeros(rollouts * 5, record_type(2, 1, derivatives=derivatives))
        records["x"] = rng.normal(size=(rollouts * 5, 2)) * [1.0, 3.0]
        records["u"] = records["x"] @ gain.T + 1
        records["rollout"] = i * rollouts + np.repeat(np.arange(rollouts), 5)
        if derivatives:
            records["du_dx"] = gain
        counts = {"pairs": len(records), "offered": len(records)}
        write_shard(folder, i, encode(records, names), counts)
    manifest = {
        "format": FORMAT,
        "task": "linear",
        "problem": "none",
        "policy": None,
        "settings": {"round": 0},
        "names": names,
        "control_dt": 1.0,
        "n_x": 2,
        "n_u": 1,
        "derivatives": derivatives,
        "shards": n_shards,
    }
    write_json(folder / MANIFEST, manifest)
    return Dataset.open(folder)


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    return linear_data(tmp_path_factory.mktemp("linear"))


def test_policy_imitates_the_expert(policy, data):
    x, u = data.read([0])["x"], data.read([0])["u"]
    error = np.asarray(policy(x)) - u
    assert np.sqrt((error**2).mean()) < 0.2 * u.std()
    assert policy.history["validation"][-1] < 0.02
    assert policy.contract["names"]["state"] == ["position", "velocity"]
    assert policy.contract["units"]["input"] == ["N"]


def test_the_split_keeps_rollouts_together_and_has_the_share():
    settings = TrainSettings(validation=0.2)
    numbers = np.arange(20_000)
    chosen = is_validation(numbers, settings)
    assert abs(chosen.mean() - 0.2) < 0.01
    assert (is_validation(np.repeat(numbers, 3), settings) == np.repeat(chosen, 3)).all()
    assert (is_validation(numbers, replace(settings, seed=1)) != chosen).any()


def test_statistics_are_those_of_the_training_pairs(linear):
    parts = Parts(linear, QUICK)
    records = linear.read([0, 1])
    chosen = records[~is_validation(records["rollout"], QUICK)]
    found = parts.statistics
    np.testing.assert_allclose(found.x_mean, chosen["x"].mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(found.x_std, chosen["x"].std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(found.u_std, chosen["u"].std(axis=0), rtol=1e-4)
    np.testing.assert_array_equal(found.x_low, chosen["x"].min(axis=0))
    arrays = parts.training(0)
    np.testing.assert_allclose(arrays["x"].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(arrays["u"].std(axis=0), 1, atol=1e-5)


def test_data_larger_than_the_device_come_in_parts(linear):
    row = linear.shards[0].dtype.itemsize
    parts = Parts(linear, replace(QUICK, device_bytes=1200 * row))
    assert len(parts) == 2
    shapes = {parts.training(i)["x"].shape for i in range(2)}
    assert len(shapes) == 1  # so that both share a program
    whole = Parts(linear, QUICK)
    assert shapes.pop()[0] * 2 >= whole.training(0)["x"].shape[0]
    np.testing.assert_allclose(parts.statistics.x_std, whole.statistics.x_std, rtol=1e-5)
    found = train(linear, replace(QUICK, device_bytes=1200 * row, epochs=60, learning_rate=0.01))
    assert found.history["validation"][-1] < 0.05


def test_one_epoch_is_adamw(linear):
    """One full batch, against optax on a loss written down in NumPy."""
    settings = replace(QUICK, hidden=(3,), minibatch=10**6, schedule="constant")
    network = Network((2, 3, 1), "tanh")
    weights = network.init(jax.random.key(1))
    before = network.layers(weights)
    part = jax.tree.map(jnp.asarray, Parts(linear, settings).training(0))
    programs = Programs(network, settings, 1)
    optimiser = optax.adamw(settings.learning_rate, weight_decay=settings.weight_decay)
    found, _, loss = programs.epoch(weights, optimiser.init(weights), part, jax.random.key(0))
    x, u = (np.asarray(part[name], dtype=np.float64) for name in ("x", "u"))
    (w0, b0), (w1, b1) = [[np.asarray(a, dtype=np.float64) for a in pair] for pair in before]
    hidden = np.tanh(x @ w0.T + b0)
    error = hidden @ w1.T + b1 - u
    assert float(loss) == pytest.approx((error**2).mean(), rel=1e-5)
    bar = 2 * error / error.size
    slope_w1, slope_b1 = bar.T @ hidden, bar.sum(axis=0)
    back = (bar @ w1) * (1 - hidden**2)
    slopes = ((back.T @ x, back.sum(axis=0)), (slope_w1, slope_b1))
    # The first step of Adam has the size of the learning rate along the sign of the gradient.
    rate = settings.learning_rate
    for pair, start, slope in zip(network.layers(found), before, slopes, strict=True):
        for new, old, s in zip(pair, start, slope, strict=True):
            step = -rate * (s / (np.abs(s) + 1e-8) + settings.weight_decay * np.asarray(old))
            np.testing.assert_allclose(
                np.asarray(new) - np.asarray(old), step, rtol=1e-3, atol=1e-7
            )


def test_sobolev_term_is_the_error_of_the_derivative(linear):
    """A linear network is its own derivative; the mean over directions is close to exact."""
    settings = replace(QUICK, hidden=(), sobolev=1.0)
    network = Network((2, 1))
    weights = network.parameters([(jnp.array([[0.5, 0.25]]), jnp.zeros(1))])
    part = jax.tree.map(jnp.asarray, Parts(linear, settings).training(0))
    programs = Programs(network, settings, 1)
    keys = jax.random.split(jax.random.key(0), 50)
    both = np.mean([float(programs._loss(weights, part, key)) for key in keys])
    plain = float(programs._plain_loss(weights, part))
    wanted = ((np.array([[0.5, 0.25]]) - np.asarray(part["du_dx"][0])) ** 2).sum()
    assert both - plain == pytest.approx(wanted, rel=0.02)
    # The best epoch is chosen by the same loss, with directions that do not change.
    assert float(programs.loss(weights, part)) == float(programs.loss(weights, part))
    assert float(programs.loss(weights, part)) - plain == pytest.approx(wanted, rel=0.2)


def test_sobolev_learns_the_gain(linear):
    settings = replace(QUICK, hidden=(), sobolev=1.0, epochs=200, learning_rate=0.02)
    found = train(linear, settings)
    weight = found.weights[0][0] * found.u_std[:, None] / found.x_std
    np.testing.assert_allclose(weight, [[1.0, -2.0]], atol=0.05)


def test_sobolev_needs_derivatives(data):
    with pytest.raises(SettingsError, match="synthesize with derivatives=True"):
        train(data, replace(QUICK, sobolev=1.0))


def test_a_stopped_training_goes_on_bit_by_bit(linear, tmp_path):
    whole = train(linear, QUICK)

    class Stopped(Exception):
        pass

    def stop(epoch, epochs, losses):
        if epoch == 2:
            raise Stopped

    path = tmp_path / "checkpoint.npz"
    with pytest.raises(Stopped):
        train(linear, QUICK, checkpoint=path, progress=stop)
    epochs = []
    found = train(
        linear, QUICK, checkpoint=path, progress=lambda epoch, of, losses: epochs.append(epoch)
    )
    assert epochs == [3, 4]
    assert found.fingerprint == whole.fingerprint
    assert found.history == whole.history
    again = train(linear, QUICK, checkpoint=path)
    assert again.fingerprint == whole.fingerprint


def test_checkpoints_of_other_settings_are_refused(linear, tmp_path):
    path = tmp_path / "checkpoint.npz"
    train(linear, QUICK, checkpoint=path)
    with pytest.raises(DataError, match="other settings or data"):
        train(linear, replace(QUICK, learning_rate=0.1), checkpoint=path)
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match="delete it"):
        train(linear, QUICK, checkpoint=path)


def test_early_stopping_keeps_the_best(linear):
    settings = replace(QUICK, epochs=200, patience=3, learning_rate=1.0, schedule="constant")
    found = train(linear, settings)
    losses = found.history["validation"]
    assert len(losses) < 200
    assert len(losses) - 1 - int(np.argmin(losses)) == 3
    records = linear.read([0, 1])
    held = records[is_validation(records["rollout"], settings)]
    error = (np.asarray(found(held["x"])) - held["u"]) / found.u_std
    assert (error**2).mean() == pytest.approx(min(losses), rel=0.05)


def test_too_few_rollouts_are_said(tmp_path):
    with pytest.raises(DataError, match="too few to be split"):
        train(linear_data(tmp_path, rollouts=1, n_shards=1), QUICK)


def test_saved_policies_are_the_same(policy, tmp_path):
    again = Policy.load(policy.save(tmp_path / "policy.npz"))
    assert again.fingerprint == policy.fingerprint
    x = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    np.testing.assert_array_equal(again(x), policy(x))
    (tmp_path / "policy.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="is no policy"):
        Policy.load(tmp_path / "policy.npz")


def test_policy_by_hand(policy):
    """Normalisation, limits and safe output, in NumPy."""
    x = np.array([[0.1, -0.2], [1e9, -1e9], [np.nan, 0.0], [0.0, np.inf]], dtype=np.float32)
    normal = np.clip((x[:2] - policy.x_mean) / policy.x_std, -policy.x_limit, policy.x_limit)
    for i, (weight, bias) in enumerate(policy.weights):
        normal = normal @ weight.T + bias
        if i + 1 < len(policy.weights):
            normal = np.where(normal >= 0, normal, 0.01 * normal)
    u = policy.u_mean + policy.u_std * np.clip(normal, -8, 8)
    found = np.asarray(policy(x))
    np.testing.assert_allclose(found[:2], u, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found[2:], 0)
    with pytest.raises(ProblemError, match="needs states"):
        policy(np.zeros(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be a positive integer"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"schedule": "linear"}, "schedule must be"),
        ({"validation": 1.0}, "validation must be a share"),
        ({"sobolev": -1.0}, "sobolev must not be negative"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises(SettingsError, match=message):
        TrainSettings(**changes)


def test_initial_weights_follow_the_rule_of_he():
    network = Network((50, 400, 3))
    (first, offset), (last, _) = network.layers(network.init(jax.random.key(0)))
    assert first.shape == (400, 50)
    assert last.shape == (3, 400)
    assert first.dtype == np.float32
    assert first.std() == pytest.approx((2 / 50) ** 0.5, rel=0.05)
    assert not offset.any()
    again = network.layers(network.parameters([(first, offset), (last, np.ones(3, np.float32))]))
    np.testing.assert_array_equal(again[0][0], first)
    np.testing.assert_array_equal(again[1][1], 1)


def test_the_missing_package_is_said(monkeypatch):
    monkeypatch.delitem(sys.modules, "warpmpc.learn.perceptron", raising=False)
    monkeypatch.setitem(sys.modules, "flax.linen", None)
    with pytest.raises(SettingsError, match="pip install flax"):
        Network((7, 5, 3)).init(jax.random.key(0))


def test_wrong_networks():
    with pytest.raises(SettingsError, match="activation must be one of"):
        Network((2, 1), "gelu")
    with pytest.raises(SettingsError, match="at least two positive sizes"):
        Network((2,))
    assert Network((12, 32, 32, 32, 4)).n_weights == 2660
