"""Initial states of the benchmarks, and metrics on trajectories made by hand."""

import numpy as np
import pytest
import reference_models as models

from warpmpc import systems
from warpmpc.systems import quadrotor

SHORTEST = {"humanoid": 3}
MADE = {name: systems.make(name, horizon=SHORTEST.get(name, 1)) for name in systems.SYSTEMS}


def test_cartpole_draws():
    rng = np.random.default_rng(64)
    x = rng.uniform(-0.3, 0.3, 64)
    v = rng.normal(0, 0.15, 64)
    theta = rng.choice([-np.pi, np.pi], 64) + rng.uniform(-np.deg2rad(20), np.deg2rad(20), 64)
    omega = rng.normal(0, 0.5, 64)
    found = MADE["cartpole"].sample(64)
    np.testing.assert_allclose(found, np.stack([x, v, theta, omega], axis=1), rtol=1e-15)
    assert set(np.sign(found[:, 2])) == {-1, 1}
    assert np.abs(np.abs(found[:, 2]) - np.pi).max() <= np.deg2rad(20)


def test_quadrotor_draws():
    found = MADE["quadrotor"].sample(5)
    np.testing.assert_array_equal(found[:, :3], np.random.default_rng(5).uniform(-1, 1, (5, 3)))
    np.testing.assert_array_equal(found[:, 3:], 0)


def test_draws_among_cylinders():
    """Blocks of at least 64, rejected near cylinders; then heights, then yaw angles."""
    batch, rng, kept, blocks = 100, np.random.default_rng(0), [], 0
    while len(kept) < batch:
        block = rng.uniform(-1.15, 1.15, (max(64, 3 * (batch - len(kept))), 2))
        blocks += 1
        for point in block:
            distance = np.hypot(*(point - models.CYLINDERS[:, :2]).T)
            if (distance >= models.CYLINDERS[:, 2] + 0.14).all() and len(kept) < batch:
                kept.append(point)
    found = MADE["quadrotor_obstacles"].sample(batch)
    np.testing.assert_array_equal(found[:, :2], kept)
    np.testing.assert_array_equal(found[:, 2], rng.uniform(-0.35, 0.75, batch))
    np.testing.assert_array_equal(found[:, 5], rng.uniform(-np.pi, np.pi, batch))
    np.testing.assert_array_equal(found[:, [3, 4, 6, 7, 8, 9, 10, 11]], 0)
    assert blocks == 1


def test_rejection_draws_again_until_there_are_enough():
    """Cylinders that leave little room need several blocks."""
    wide = [[0.0, 0.0, 0.94]]
    found = systems.make("quadrotor_obstacles", horizon=1, cylinders=wide).sample(200)
    assert np.hypot(found[:, 0], found[:, 1]).min() >= 1.08
    rng = np.random.default_rng(0)
    first = rng.uniform(-1.15, 1.15, (600, 2))
    first = first[np.hypot(*first.T) >= 1.08]
    assert len(first) < 200
    np.testing.assert_array_equal(found[: len(first), :2], first)
    second = rng.uniform(-1.15, 1.15, (max(64, 3 * (200 - len(first))), 2))
    second = second[np.hypot(*second.T) >= 1.08]
    np.testing.assert_array_equal(found[len(first) :, :2], second[: 200 - len(first)])


def test_draws_of_the_demos_are_in_range():
    pendulum, car = MADE["pendulum"].sample(500), MADE["car"].sample(500)
    assert np.abs(pendulum[:, 0] - np.pi).max() <= 0.5
    assert np.abs(pendulum[:, 1]).max() <= 0.5
    assert (car.min(axis=0) >= [-14, -2, -0.3, 0]).all()
    assert (car.max(axis=0) <= [-12, 2, 0.3, 0]).all()


@pytest.mark.parametrize("name", sorted(systems.SYSTEMS))
def test_seeds(name):
    sample = MADE[name].sample
    np.testing.assert_array_equal(sample(7, seed=3), sample(7, seed=3))
    assert (sample(7, seed=3) != sample(7, seed=4)).any()
    default = {"quadrotor_obstacles": 0, "linear": 8}.get(name, 7)
    np.testing.assert_array_equal(sample(7), sample(7, seed=default))


def loops(name, batch, steps=5):
    system = MADE[name]
    return np.zeros((batch, steps + 1, system.n_x)), np.zeros((batch, steps, system.n_u))


def test_cartpole_metrics():
    x, u = loops("cartpole", 6)
    x[0, :, 2] = np.deg2rad([180, 100, 50, 20, 9.9, -9.9])  # upright for two samples
    x[1, :, 2] = np.deg2rad([180, 100, 50, 20, 10.1, 9.9])  # for one only
    x[2, :, 2] = np.deg2rad([0, 0, 0, 0, 0, 11])  # falls at the end
    x[3, 0, 0], x[3, 2, 0] = -0.36, 0.352  # leaves the rail, the first state counts
    x[4, 1, 1] = np.nan
    u[5, 3], x[5, -1] = -9.25, (0.1, 0.2, 0.0, -0.2)
    found = MADE["cartpole"].metrics(x, u)
    assert found["success"].tolist() == [True, False, False, True, False, True]
    assert found["satisfied"].tolist() == [True, True, True, False, False, True]
    np.testing.assert_allclose(found["violation"], [0, 0, 0, 0.01, np.inf, 0], atol=1e-15)
    np.testing.assert_allclose(found["input_excess"], [0, 0, 0, 0, np.inf, 0.25])
    assert found["final_error"][5] == pytest.approx(0.3)


def test_quadrotor_metrics():
    x, u = loops("quadrotor", 4)
    x[0, -1, :3], x[0, 0, :3] = (0.06, 0.0, 0.08), (1, 1, 1)
    x[1, -1, :3], x[1, -1, 11] = (0.06, 0.0, 0.081), 2.0
    x[2, 2, 4] = np.inf
    u[3, 1, 3] = 0.4  # all motors above their limit
    found = MADE["quadrotor"].metrics(x, u)
    assert found["success"].tolist() == [True, False, False, True]
    assert found["satisfied"].tolist() == [True, True, False, True]
    np.testing.assert_allclose(found["final_error"][:2], [0.1, np.hypot(0.06, 0.081)])
    assert found["final_state"][1] == pytest.approx(np.sqrt(0.06**2 + 0.081**2 + 4))
    cost = 0.5 * (0.06**2 + 0.5 * 0.081**2 + 0.05 * 4)
    assert found["final_cost"][1] == pytest.approx(cost)
    excess = (0.4 + 0.0402 * 9.8066) / 4 - 0.18
    np.testing.assert_allclose(found["input_excess"], [0, 0, np.inf, excess], rtol=1e-12)


def test_motor_excess_counts_both_sides():
    u = np.zeros((1, 3, 4))
    u[0, 1, 0] = 2.0  # 0.02 N m about x: two motors turn backwards
    thrust = models.quadrotor_motors(u)
    assert thrust.min() < 0
    expected = max(-thrust.min(), thrust.max() - 0.18)
    assert quadrotor.motor_excess(u).max() == pytest.approx(expected, rel=1e-12)


def test_penetration():
    x, u = loops("quadrotor_obstacles", 4)
    x[..., 2] = 5.0  # cylinders have no end
    x[:, -1] = 0
    x[0, 3, :2] = -0.62, 0.56 + 0.27  # 5 cm inside the inflated radius of 0.32
    x[1, 3, :2] = -0.62, 0.56 + 0.32 - 5e-7  # counts as outside
    x[2, -1, :3] = 0.0, 0.0, 0.11
    x[3, 1, 0] = np.nan
    found = MADE["quadrotor_obstacles"].metrics(x, u)
    np.testing.assert_allclose(found["violation"], [0.05, 5e-7, 0, np.inf], atol=1e-12)
    assert found["satisfied"].tolist() == [False, True, True, False]
    assert found["success"].tolist() == [True, True, False, False]


def test_linear_metrics():
    x, u = loops("linear", 3)
    x[:, -1, 2] = 1.0
    x[0, 2, 5], x[0, 1, 0] = -1.2, np.pi / 6 + 0.1  # the lower one, the steeper one
    x[1, -1, 3], u[1, 0, 2] = 0.2, 2.5084
    x[2, -1, 6], u[2, 0, 1] = 3.0, -1.1916  # a rate has no weight
    found = MADE["linear"].metrics(x, u)
    np.testing.assert_allclose(found["violation"], [0.2, 0, 0], atol=1e-15)
    np.testing.assert_allclose(found["input_excess"], [0, 0.1, 0.2], atol=1e-12)
    np.testing.assert_allclose(found["final_error"], [0, 0.2, 0])
    assert found["success"].tolist() == [True, False, True]


def test_metrics_of_the_demos():
    x, u = loops("pendulum", 2)
    x[1, -1], u[0, 0] = (0.12, 0.05), -6.5
    found = MADE["pendulum"].metrics(x, u)
    assert found["success"].tolist() == [True, False]
    np.testing.assert_allclose(found["final_error"], [0, 0.13])
    np.testing.assert_allclose(found["input_excess"], [0.5, 0])
    x, u = loops("car", 2)
    x[0, 2, :2], u[0, 2] = (-7.0, 1.5), (3.5, -0.7)
    x[1, -1, :2] = 0.3, 0.4
    found = MADE["car"].metrics(x, u)
    assert found["success"].tolist() == [True, False]
    assert found["satisfied"].tolist() == [False, True]
    np.testing.assert_allclose(found["violation"], [0.5, 0])
    np.testing.assert_allclose(found["input_excess"], [0.5, 0])
    np.testing.assert_allclose(found["final_error"], [0, 0.5])
