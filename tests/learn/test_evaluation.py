"""Closed loops of expert and policy: who succeeds, at what price, and where."""

import jax.numpy as jnp
import learn_cases
import numpy as np
import pytest

from warpmpc import ProblemError, SettingsError
from warpmpc.learn import Noise, evaluate, learn_policy, make_task
from warpmpc.learn.controllers import Expert
from warpmpc.learn.evaluation import judge
from warpmpc.learn.loops import ball, closed_loop
from warpmpc.learn.settings import BETAS, DataSettings, TrainSettings
from warpmpc.learn.tasks import quadrotor_metrics, quadrotor_plant, quadrotor_starts
from warpmpc.sim.rollout import rollout


def heavy(x, u):
    return learn_cases.plant(x, 0.9 * u)


@pytest.fixture(scope="module")
def found(policy):
    task = learn_cases.task(perturbed=heavy, evaluation_steps=50)
    return evaluate(task, policy, starts=64, expert_starts=32)


def test_policy_is_as_good_as_the_expert(found):
    expert, policy = found.row("noise-free", "expert"), found.row("noise-free", "policy")
    assert expert.success == policy.success == 1.0
    assert policy.cost_ratio < 1.15
    assert expert.cost_ratio == 1.0
    assert policy.violation["input_excess"] < learn_cases.LIMIT
    assert len(found.rows) == 6
    assert policy.outside < 0.2
    assert found.states["policy"].shape == (64, 51, 2)


def test_table_has_a_line_per_row(found):
    lines = found.table().splitlines()
    assert len(lines) == 7
    assert lines[0].split() == [
        "situation",
        "controller",
        "success",
        "cost",
        "ratio",
        *lines[0].split()[5:],
    ]
    assert "100.0%" in lines[1]
    assert found.to_json()["rows"][1]["success"] == 1.0
    with pytest.raises(ProblemError, match="no row"):
        found.row("windy", "expert")


def test_a_bad_policy_is_seen(policy):
    """Driving with the opposite sign fails, and its worst starts are failures."""
    from dataclasses import replace

    *rest, (weight, bias) = policy.weights
    opposite = replace(policy, weights=(*rest, (-weight, -bias)))
    found = evaluate(learn_cases.task(), opposite, starts=32, situations=("noise-free",))
    row = found.row("noise-free", "policy")
    assert row.success < 0.1
    assert row.outside > 0.3
    ok = judge(learn_cases.task(), found.states["policy"], found.inputs["policy"])["success"]
    assert not ok[list(row.worst[:3])].any()


def test_expert_in_a_loop_is_rollout_of_the_solver(task):
    x0 = task.starts(5, 3)
    found = closed_loop(task, Expert(task.solver), None, x0, steps=20)
    wanted = rollout(task.solver, task.plant, x0, 20)
    np.testing.assert_allclose(found.x, wanted.x, atol=1e-5)
    np.testing.assert_allclose(found.u, wanted.u, atol=1e-5)


def test_noise_is_uniform_in_the_ellipsoid():
    import jax

    points = ball(jax.random.key(0), jnp.zeros((20_000, 3)), jnp.array([1.0, 2.0, 0.5]))
    radius = np.linalg.norm(np.asarray(points) / [1.0, 2.0, 0.5], axis=1)
    assert radius.max() <= 1
    # Volume grows with the third power of the radius.
    np.testing.assert_allclose(
        np.quantile(radius, [0.1, 0.5, 0.9]) ** 3, [0.1, 0.5, 0.9], atol=0.02
    )
    np.testing.assert_allclose(np.asarray(points).mean(axis=0), 0, atol=0.02)


def test_a_task_without_judge_succeeds_where_it_is_finite():
    task = learn_cases.task(metrics=None)
    x = np.zeros((3, 4, 2))
    x[1, 2] = np.nan
    assert judge(task, x, np.zeros((3, 3, 1)))["success"].tolist() == [True, False, True]
    wrong = learn_cases.task(metrics=lambda x, u: {"success": True})
    with pytest.raises(ProblemError, match="one per instance"):
        judge(wrong, x, np.zeros((3, 3, 1)))


def test_situations_that_a_task_lacks_are_left_out(policy):
    task = learn_cases.task(noise=Noise())
    found = evaluate(task, policy, starts=4)
    assert {row.situation for row in found.rows} == {"noise-free"}
    with pytest.raises(ProblemError, match="situations must be of"):
        evaluate(task, policy, situations=("windy",))


def test_a_policy_of_another_task_is_refused(policy):
    with pytest.raises(ProblemError, match="The policy has 2 states and 1 inputs"):
        evaluate(make_task("quadrotor"), policy)


@pytest.mark.slow
def test_dagger_does_not_lower_success(tmp_path):
    task = learn_cases.task()
    data = DataSettings(rollouts=16, shards=1, bound_rollouts=16, keep=0.5)
    training = TrainSettings(hidden=(16,), epochs=40, minibatch=64)
    rates = {}
    for betas in (BETAS[:1], BETAS):  # the published schedule has ten rounds
        folder = tmp_path / str(len(betas))
        policy, found = learn_policy(task, folder, data, training, betas)
        rates[len(betas)] = evaluate(task, policy, starts=100).row("noise-free", "policy").success
    assert len(found.folders) == len(BETAS) == 10
    assert rates[10] >= rates[1] - 0.01
    assert rates[10] > 0.95


def test_dagger_begins_with_the_expert(task, tmp_path):
    with pytest.raises(SettingsError, match="begin with 0"):
        learn_policy(task, tmp_path, betas=(0.1,))


def test_quadrotor_hovers_and_is_judged():
    x = jnp.zeros((2, 12))
    np.testing.assert_allclose(quadrotor_plant(x, jnp.zeros((2, 4))), 0, atol=1e-9)
    heavier = np.asarray(quadrotor_plant(x, jnp.zeros((2, 4)), scale=1.1))
    # The same thrust accelerates a tenth more mass down by g (1 - 1 / 1.1), for 0.005 s.
    np.testing.assert_allclose(heavier[:, 8], -9.8066 * (1 - 1 / 1.1) * 0.005, rtol=1e-4)
    states = np.zeros((3, 4, 12))
    states[1, -1, 0], states[2, -1, 11] = 0.2, 3.0
    found = quadrotor_metrics(states, np.zeros((3, 3, 4)))
    assert found["success"].tolist() == [True, False, False]
    assert found["within_0.1_m"].tolist() == [True, False, True]


def test_quadrotor_starts_are_those_of_the_publication():
    x = quadrotor_starts(4000, 0)
    assert np.abs(x[:, :3]).max() <= 1
    assert np.abs(x[:, :3]).max() > 0.95
    assert 1.5 < np.abs(x[:, 5]).max() <= np.pi / 2
    rest = x[:, [3, 4, 6, 7, 8, 9, 10, 11]] / [0.1, 0.1, 0.5, 0.5, 0.5, 50, 50, 0.5]
    assert np.linalg.norm(rest, axis=1).max() <= 1


def test_unknown_tasks_are_named():
    with pytest.raises(ProblemError, match="choose one of"):
        make_task("submarine")
    with pytest.raises(ProblemError, match="cannot be imported"):
        make_task("learn_cases:nothing")
    with pytest.raises(ProblemError, match=r"must return a warpmpc\.learn\.Task"):
        make_task("learn_cases:solver")
    assert make_task("learn_cases:task").name == "integrator"
