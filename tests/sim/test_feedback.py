"""Controllers that are no solvers in `rollout`, against the same loops in NumPy."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import ProblemError
from warpmpc.sim.rollout import rollout

BATCH, STEPS = 4, 9
A, B = np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[0.005], [0.1]])
X0 = np.random.default_rng(3).normal(size=(BATCH, 2))


def simulate(x, u):
    return x @ A.T + u @ B.T


@dataclass(frozen=True)
class Static:
    """Feedback without a memory."""

    gain: tuple[float, float] = (1.5, 2.0)
    dtype = "float64"

    def start(self, x):
        return ()

    def act(self, x, memory):
        return -(x @ jnp.array(self.gain))[:, None], memory


@dataclass(frozen=True)
class Integrating:
    """Feedback with a memory, and a gain that is data."""

    dtype = "float64"

    def start(self, x, params):
        return {"total": params["offset"] + 0 * x[:, :1]}

    def act(self, x, memory, params):
        total = memory["total"] + x[:, :1]
        return -params["gain"] * x[:, :1] - 0.1 * total, {"total": total}


def test_feedback_without_memory():
    found = rollout(Static(), simulate, X0, STEPS)
    x = X0
    for k in range(STEPS):
        u = -(x @ np.array([1.5, 2.0]))[:, None]
        np.testing.assert_allclose(found.u[:, k], u, atol=1e-12)
        x = x @ A.T + u @ B.T
        np.testing.assert_allclose(found.x[:, k + 1], x, atol=1e-12)
    assert found.status_fractions() == {"CONVERGED": 1.0}


def test_memory_parameters_and_recording():
    params = {"gain": np.array(0.7), "offset": np.array(0.2)}
    found = rollout(Integrating(), simulate, X0, STEPS, params=params, record=("total",))
    x, total = X0, np.full((BATCH, 1), 0.2)
    for k in range(STEPS):
        total = total + x[:, :1]
        np.testing.assert_allclose(found.recorded["total"][:, k], total, atol=1e-12)
        x = x @ A.T + (-0.7 * x[:, :1] - 0.1 * total) @ B.T
    np.testing.assert_allclose(found.x[:, -1], x, atol=1e-12)


def test_a_second_rollout_goes_on_where_the_first_ended():
    params = {"gain": np.array(0.7), "offset": np.array(0.2)}
    whole = rollout(Integrating(), simulate, X0, STEPS, params=params)
    first = rollout(Integrating(), simulate, X0, 4, params=params)
    second = rollout(
        Integrating(),
        simulate,
        first.x[:, -1],
        STEPS - 4,
        params=params,
        warm_start=first.warm_start,
        start=4,
    )
    np.testing.assert_allclose(second.x, whole.x[:, 4:], atol=1e-12)


def test_resets_begin_with_a_new_memory():
    def resets(x, t):
        return jnp.full(x.shape[0], t == 3), jnp.ones_like(x)

    params = {"gain": np.array(0.7), "offset": np.array(0.2)}
    found = rollout(Integrating(), simulate, X0, STEPS, params=params, resets=resets)
    again = rollout(Integrating(), simulate, np.ones((BATCH, 2)), STEPS - 4, params=params)
    np.testing.assert_allclose(found.x[:, 4:], again.x, atol=1e-12)


def test_an_input_that_is_not_finite_stays_alone_with_it():
    x0 = X0.copy()
    x0[1] = np.nan
    found = rollout(Static(), simulate, x0, STEPS)
    assert found.finite.tolist() == [True, False, True, True]
    assert np.asarray(found.status)[1].tolist() == [4] * STEPS


class Wrong:
    dtype = "float64"

    def __init__(self, start, act):
        self.start, self.act = start, act


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        (object(), "is neither"),
        (Wrong(lambda x: x[0], lambda x, memory: (x, memory)), r"arrays \[batch, n\] only"),
        (Wrong(lambda x: (), lambda x, memory: x), "must return two things"),
        (Wrong(lambda x: (), lambda x, memory: (x[:, 0], memory)), r"inputs \[4, n_u\]"),
        (Wrong(lambda x: (), lambda x, memory: (x, {"a": x})), "structure that start gave"),
    ],
)
def test_wrong_controllers_are_refused(controller, message):
    with pytest.raises(ProblemError, match=message):
        rollout(controller, simulate, X0, STEPS)


def test_step_is_for_solvers():
    with pytest.raises(ProblemError, match='method="step" is for an MPCSolver'):
        rollout(Static(), simulate, X0, STEPS, method="step")
