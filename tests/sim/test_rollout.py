"""Closed loops around a small solver with the protocol of `MPCSolver`, against loops in NumPy."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import ProblemError, SettingsError
from warpmpc.mpc.types import MPCStatus, MPCWarmStart, QPState
from warpmpc.sim.progress import ProgressBar, chunk_length
from warpmpc.sim.rollout import rollout

BATCH, STEPS, N_X = 5, 12, 2
GAIN = np.array([1.5, 2.0])
X0 = np.random.default_rng(0).normal(size=(BATCH, N_X))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class FakeSolution:
    u: jax.Array
    warm_start: MPCWarmStart
    status: jax.Array
    iterations: jax.Array
    cost: jax.Array
    violation: jax.Array
    theta: jax.Array
    step_length: jax.Array
    accepted: jax.Array
    z: jax.Array


class FakeSolver:
    """Feedback u = -gain (x - goal).  z counts: solves, shifts, and iterations of `step`."""

    dtype = "float64"

    def z_guess(self, x0, params=None):
        return jnp.zeros((*x0.shape[:-1], 3)) + 0 * x0[..., :1]

    def cold_start(self, z):
        return MPCWarmStart(z, QPState(z, z, z))

    def shift(self, warm_start):
        return self.cold_start(warm_start.z + jnp.array([[0.0, 1.0, 0.0]]))

    def solve(self, x0, params=None, warm_start=None, kind=0):
        goal = 0.0 if params is None else params["goal"]
        u = -((x0 - goal) @ GAIN)[:, None]
        ones = jnp.ones((1, 3)).at[0, 1].set(0).at[0, 2].set(kind)
        start = self.cold_start(warm_start.z + ones + 0 * u)
        bad = ~jnp.isfinite(u[:, 0])
        return FakeSolution(
            u=jnp.stack([u, 0 * u], axis=1),
            warm_start=start,
            status=jnp.where(bad, MPCStatus.NON_FINITE, MPCStatus.CONVERGED),
            iterations=start.z[:, 0].astype(int),
            cost=(x0**2).sum(axis=-1),
            violation=jnp.abs(u[:, 0]),
            theta=u[:, 0],
            step_length=0 * u[:, 0] + 1,
            accepted=~bad,
            z=warm_start.z,
        )

    def step(self, z, params=None, state=None, *, x0=None):
        result = self.solve(x0, params, MPCWarmStart(z, state), kind=1)
        return result, result.warm_start.qp


A, B = np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[0.005], [0.1]])
SOLVER = FakeSolver()


def simulate(x, u):
    return x @ A.T + u @ B.T


def reference(x, steps=STEPS, goal=lambda k, x: 0.0, more=lambda k, x, u: 0.0):
    """The same loop, step by step in NumPy."""
    states, inputs = [x], []
    for k in range(steps):
        u = -((x - goal(k, x)) @ GAIN)[:, None]
        x = x @ A.T + u @ B.T + more(k, x, u)
        states.append(x)
        inputs.append(u)
    return np.stack(states, axis=1), np.stack(inputs, axis=1)


def close(result, expected):
    np.testing.assert_allclose(result.x, expected[0], atol=1e-12)
    np.testing.assert_allclose(result.u, expected[1], atol=1e-12)


class TestLoop:
    def test_matches_numpy(self):
        result = rollout(SOLVER, simulate, X0, STEPS)
        close(result, reference(X0))
        assert result.x.shape == (BATCH, STEPS + 1, N_X)
        assert result.u.shape == (BATCH, STEPS, 1)
        for name in ("status", "iterations", "cost", "violation", "theta", "step_length"):
            assert getattr(result, name).shape == (BATCH, STEPS)
        np.testing.assert_allclose(result.cost, (result.x[:, :-1] ** 2).sum(-1))
        assert result.accepted.all()
        assert not result.reset.any()

    def test_warm_starts_are_handed_on_and_shifted(self):
        result = rollout(SOLVER, simulate, X0, STEPS)
        np.testing.assert_array_equal(result.iterations, np.tile(np.arange(STEPS) + 1, (BATCH, 1)))
        np.testing.assert_array_equal(result.warm_start.z, [[STEPS, STEPS, 0]] * BATCH)
        result = rollout(SOLVER, simulate, X0, STEPS, shift=False)
        np.testing.assert_array_equal(result.warm_start.z, [[STEPS, 0, 0]] * BATCH)

    def test_single_iterations(self):
        result = rollout(SOLVER, simulate, X0, STEPS, method="step")
        close(result, reference(X0))
        np.testing.assert_array_equal(result.warm_start.z, [[STEPS, STEPS, STEPS]] * BATCH)

    @pytest.mark.parametrize("given", [np.full(3, 7.0), np.full((BATCH, 3), 7.0)])
    def test_first_warm_start(self, given):
        result = rollout(SOLVER, simulate, X0, STEPS, warm_start=given)
        np.testing.assert_array_equal(result.iterations[0], np.arange(STEPS) + 8)

    def test_goes_on_where_another_ended(self):
        def late(x, u, t):
            return simulate(x, u) + 0.1 * t

        whole = rollout(SOLVER, late, X0, STEPS)
        first = rollout(SOLVER, late, X0, 6)
        rest = rollout(SOLVER, late, first.x[:, -1], 6, warm_start=first.warm_start, start=6)
        np.testing.assert_array_equal(whole.x[:, 6:], rest.x)
        np.testing.assert_array_equal(whole.iterations[:, 6:], rest.iterations)
        np.testing.assert_array_equal(whole.warm_start.z, rest.warm_start.z)

    def test_records(self):
        result = rollout(SOLVER, simulate, X0, 3, record=["z"])
        np.testing.assert_array_equal(result.recorded["z"][1, :, 0], [0, 1, 2])
        assert rollout(SOLVER, simulate, X0, STEPS).recorded == {}

    def test_one_program_for_equal_calls(self):
        traces = []

        def counted(x, u):
            traces.append(1)
            return simulate(x, u)

        for _ in range(3):
            rollout(SOLVER, counted, X0, 4)
        assert len(traces) == 1

    def test_no_synchronisation(self):
        """Everything happens inside of one program, so it can be part of another."""
        traced = jax.jit(lambda x: rollout(SOLVER, simulate, x, STEPS, progress=True).x)(X0)
        np.testing.assert_allclose(traced, rollout(SOLVER, simulate, X0, STEPS).x, atol=1e-14)


class TestWorld:
    def test_parameters_plant_and_disturbance(self):
        goal = np.random.default_rng(1).normal(size=(BATCH, 1))
        mass = np.linspace(0.5, 2, BATCH)[:, None]

        def heavier(x, u, plant):
            return simulate(x, u / plant["mass"])

        def push(x, u, t):
            return 0.01 * t * x * u

        result = rollout(
            SOLVER,
            heavier,
            X0,
            STEPS,
            params={"goal": goal},
            plant={"mass": mass},
            disturbance=push,
        )
        expected = reference(
            X0,
            goal=lambda k, x: goal,
            more=lambda k, x, u: (u / mass - u) @ B.T + 0.01 * k * x * u,
        )
        close(result, expected)

    def test_parameters_that_change(self):
        close(
            rollout(SOLVER, simulate, X0, STEPS, params=lambda k: {"goal": jnp.sin(0.3 * k)}),
            reference(X0, goal=lambda k, x: np.sin(0.3 * k)),
        )
        close(
            rollout(SOLVER, simulate, X0, STEPS, params=lambda k, x: {"goal": 0.5 * x[:, :1] + k}),
            reference(X0, goal=lambda k, x: 0.5 * x[:, :1] + k),
        )

    def test_random_numbers(self):
        def noise(key, x):
            return jax.random.normal(key, x.shape)

        def shaken(x, u, key):
            return simulate(x, u) + noise(key, x)

        first, again = (
            rollout(SOLVER, simulate, X0, STEPS, disturbance=noise, key=jax.random.key(3))
            for _ in range(2)
        )
        np.testing.assert_array_equal(first.x, again.x)
        pushes = np.asarray(first.x[:, 1:] - simulate(first.x[:, :-1], first.u))
        assert len(np.unique(pushes)) == pushes.size, "every step and instance has its own"
        assert abs(pushes.std() - 1) < 0.2
        other = rollout(SOLVER, shaken, X0, STEPS, key=jax.random.key(3))
        assert not np.allclose(other.x, first.x), "functions have keys of their own"

    def test_resets(self):
        def resets(x, t):
            return (t == 3) & (jnp.arange(BATCH) == 1), jnp.full_like(x, 2.0)

        result = rollout(SOLVER, simulate, X0, STEPS, resets=resets)
        np.testing.assert_array_equal(np.argwhere(result.reset), [[1, 3]])
        before, after = reference(X0), reference(np.full((1, N_X), 2.0))
        others = np.arange(BATCH) != 1
        np.testing.assert_allclose(result.x[others], before[0][others], atol=1e-12)
        np.testing.assert_allclose(result.x[1, :4], before[0][1, :4], atol=1e-12)
        np.testing.assert_allclose(result.x[1, 4:], after[0][0, : STEPS - 3], atol=1e-12)
        np.testing.assert_array_equal(result.iterations[1], [1, 2, 3, 4, *range(1, STEPS - 3)])

    def test_resets_with_random_states(self):
        def resets(x, key):
            return x[:, 0] > 0.5, jax.random.uniform(key, x.shape)

        result = rollout(SOLVER, simulate, X0, STEPS, resets=resets, key=jax.random.key(0))
        landed = np.asarray(result.x[:, 1:][result.reset])
        assert len(landed) > 2
        assert ((landed >= 0) & (landed < 1)).all()

    def test_an_instance_that_fails_is_alone(self):
        def breaks(x, u, t):
            broken = (t == 4) & (jnp.arange(BATCH) == 2)
            return jnp.where(broken[:, None], jnp.nan, simulate(x, u))

        result = rollout(SOLVER, breaks, X0, STEPS)
        others = np.arange(BATCH) != 2
        np.testing.assert_allclose(result.x[others], reference(X0)[0][others], atol=1e-12)
        assert np.isnan(result.x[2, 5:]).all()
        np.testing.assert_array_equal(result.finite, others)
        np.testing.assert_array_equal(
            result.status[2], [MPCStatus.CONVERGED] * 5 + [MPCStatus.NON_FINITE] * (STEPS - 5)
        )

    def test_a_warm_start_that_is_not_finite_is_replaced(self):
        def breaks(x, u, t):
            return jnp.where(t == 4, jnp.nan, simulate(x, u))

        def back(x):
            return jnp.isnan(x[:, 0]), jnp.ones_like(x)

        result = rollout(SOLVER, breaks, X0, STEPS, resets=back)
        assert result.finite.all()
        bad = np.full((BATCH, 3), 5.0)
        bad[1, 2] = np.nan
        result = rollout(SOLVER, simulate, X0, STEPS, warm_start=bad)
        np.testing.assert_array_equal(result.iterations[:, 0], [6, 1, 6, 6, 6])


class TestGradients:
    def test_through_the_loop(self):
        def heavy(x, u, plant):
            return simulate(x, u / plant)

        def loss(x0, goal, mass):
            result = rollout(SOLVER, heavy, x0, STEPS, params={"goal": goal}, plant=mass)
            return (result.x[:, -1] ** 2).sum() + (result.u**2).sum()

        arguments = jnp.asarray(X0), jnp.asarray(0.3), jnp.asarray(1.2)
        found = jax.grad(loss, argnums=(0, 1, 2))(*arguments)
        for i, gradient in enumerate(found):
            direction = np.random.default_rng(2).normal(size=gradient.shape)
            more, less = (list(arguments) for _ in range(2))
            more[i], less[i] = more[i] + 1e-6 * direction, less[i] - 1e-6 * direction
            difference = (loss(*more) - loss(*less)) / 2e-6
            np.testing.assert_allclose((gradient * direction).sum(), difference, rtol=1e-6)

    def test_by_what_functions_close_over(self):
        def loss(slope):
            result = rollout(SOLVER, simulate, X0, 4, params=lambda k: {"goal": slope * k})
            return (result.x**2).sum()

        difference = (loss(0.1 + 1e-6) - loss(0.1 - 1e-6)) / 2e-6
        np.testing.assert_allclose(jax.grad(loss)(0.1), difference, rtol=1e-6)


class TestProgress:
    def test_parts_give_the_same(self):
        def noise(key, x):
            return jax.random.normal(key, x.shape)

        reports, options = [], {"disturbance": noise, "key": jax.random.key(0), "record": ("z",)}
        whole = rollout(SOLVER, simulate, X0, 40, **options)
        parts = rollout(SOLVER, simulate, X0, 40, progress=lambda *n: reports.append(n), **options)
        assert reports == [(done, 40) for done in range(2, 41, 2)]
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-12), parts, whole)

    @pytest.mark.parametrize(
        ("steps", "length"), [(1, 1), (7, 1), (40, 2), (97, 1), (100, 5), (1000, 50), (999, 37)]
    )
    def test_parts_are_equal(self, steps, length):
        assert chunk_length(steps) == length

    def test_bar(self, capsys):
        class Terminal:
            text = ""

            def isatty(self):
                return True

            def write(self, text):
                self.text += text

            def flush(self):
                pass

        terminal = Terminal()
        ProgressBar(terminal)(6, 12)
        assert terminal.text.endswith("[############............] 6/12 steps")
        ProgressBar(terminal)(12, 12)
        assert terminal.text.endswith("\r\033[K")
        rollout(SOLVER, simulate, X0, 2, progress=True)
        assert capsys.readouterr() == ("", "")


class TestMetrics:
    def test_success(self):
        result = rollout(SOLVER, simulate, X0, STEPS)
        found = result.success(lambda x, u: jnp.all(jnp.abs(x[-1]) < 0.5))
        expected = (np.abs(reference(X0)[0][:, -1]) < 0.5).all(axis=1)
        np.testing.assert_array_equal(found, expected)
        assert 0 < found.sum() < BATCH
        np.testing.assert_allclose(
            result.success_rate(lambda x, u: jnp.all(jnp.abs(x[-1]) < 0.5)), expected.mean()
        )
        np.testing.assert_array_equal(result.max_violation, np.abs(result.u).max(axis=(1, 2)))

    def test_what_is_not_finite_fails(self):
        x0 = X0.copy()
        x0[3] = np.nan
        result = rollout(SOLVER, simulate, x0, STEPS)
        everyone = result.success(lambda x, u: True)
        np.testing.assert_array_equal(everyone, np.arange(BATCH) != 3)
        assert np.isinf(result.max_violation[3])
        assert result.status_fractions() == {"CONVERGED": 0.8, "NON_FINITE": 0.2}

    @pytest.mark.parametrize(
        ("predicate", "found"),
        [(lambda x, u: x[-1] < 1, r"bool\[2\]"), (lambda x, u: x[-1, 0], r"float64\[\]")],
    )
    def test_predicates_are_booleans(self, predicate, found):
        result = rollout(SOLVER, simulate, X0, STEPS)
        with pytest.raises(ProblemError, match=f"one boolean per instance, got {found}; compare"):
            result.success(predicate)


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"x0": X0[0]}, r"x0 needs the shape \[batch, n_x\], got \[2\]; .* pass x0\[None\]"),
            ({"x0": X0 > 0}, "x0 has dtype bool but the solver works in float64"),
            ({"x0": [[1.0, 2.0]]}, r"x0 needs the shape \[batch, n_x\], got \[1, 2\]"),
            ({"steps": 0}, "steps must be an integer, at least 1, got 0"),
            ({"steps": 2.0}, r"steps must be an integer, at least 1, got 2\.0"),
            ({"steps": True}, "steps must be an integer, at least 1, got True"),
            ({"start": -1}, "start must be an integer, at least 0, got -1"),
            ({"simulate": 3}, "simulate must be a function, got int"),
            ({"simulate": lambda x: x}, r"simulate\(x\) cannot be called .* 2 arguments by posit"),
            ({"simulate": lambda x, u, k: x}, r"simulate\(x, u, k\) .*t, key, plant if it names"),
            ({"disturbance": lambda state: state}, r"disturbance\(state\) .*key, x, u, t if it na"),
            ({"disturbance": lambda x, key: x}, r"disturbance takes a random key; pass one to rol"),
            ({"resets": lambda x, key: x}, r"resets takes a random key; .*key=jax\.random\.key"),
            ({"params": lambda: {}}, r"params\(\) cannot be called"),
            ({"simulate": lambda x, u: x[:, :1]}, r"simulate must return states like x, float64"),
            ({"simulate": lambda x, u: x.astype("float32")}, r"got float32\[5, 2\]; it gets whole"),
            ({"disturbance": lambda x: 0.0}, r"disturbance must return states .*, got float\[\]"),
            ({"resets": lambda x: (True, x)}, r"resets must return a boolean per instance, shape"),
            ({"resets": lambda x: (x[:, 0], x)}, r"got shape \(5,\), dtype float64"),
            ({"resets": lambda x: (x[:, 0] > 0, x[0])}, "resets must return states like x"),
            ({"simulate": dict.update}, r"a readable signature \(.*\); wrap it into a function"),
            ({"record": "z"}, r"record must be a sequence of names; pass \['z'\]"),
            ({"record": ["lambda"]}, "record names 'lambda', which is no array of a solution"),
            ({"record": [3]}, r"record must be a sequence of names, got \[3\]"),
            ({"record": None}, "record must be a sequence of names, got None"),
            ({"shift": "no"}, "shift must be True or False, got 'no'"),
            ({"progress": "yes"}, "progress must be True or False, got 'yes'"),
            ({"key": 3}, r"key must be a random key such as jax\.random\.key\(0\), got int"),
            ({"key": X0}, r"key must be a random key such as .*, got ndarray"),
            ({"params": "weight"}, "params must be an array or a tree of arrays, .* contains 'wei"),
            ({"params": {"a": X0, 3: X0}}, "Names in a dict of arrays must be strings, all of"),
            ({"plant": {"mass": "heavy"}}, "plant must be an array or a tree .* contains 'heavy'"),
            ({"simulate": lambda x, u: (x, u)}, "must return states like x, .*, got a tuple"),
            (
                {"simulate": lambda x, u: None},
                "simulate must return states like x, .* got a NoneType",
            ),
            ({"resets": lambda x: x}, "resets must return two things: which instances begin"),
            (
                {"simulate": lambda x, u: np.asarray(x)},
                r"needs the values of arrays, .* jax\.pure_call",
            ),
            ({"simulate": lambda x, u: x if x[0, 0] > 0 else -x}, r"jnp\.where, lax\.cond\), or"),
            ({"simulate": lambda x, u: x * float(u[0, 0])}, "<lambda> needs the values of arrays"),
            ({"warm_start": np.zeros((4, 3))}, r"leading axes \[\[4\]\], x0 has 5 instances; pass"),
        ],
    )
    def test_refused(self, changes, message):
        given = {"simulate": simulate, "x0": X0, "steps": 2, **changes}
        with pytest.raises(ProblemError, match=message):
            rollout(SOLVER, **given)

    def test_functions_without_a_hash(self):
        class Plant:
            __hash__ = None

            def __call__(self, x, u):
                return x

        with pytest.raises(
            ProblemError, match=r"simulate needs a hash, .* wrap it into a function"
        ):
            rollout(SOLVER, Plant(), X0, 2)

    def test_method(self):
        with pytest.raises(SettingsError, match=r"method must be one of \('solve', 'step'\), got"):
            rollout(SOLVER, simulate, X0, 2, method="rti")
