"""Arguments that no solver can use are refused in its words; arrays of other dtypes are cast."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sqp_cases import arm, fixed_solver

from warpmpc import (
    ADMMSettings,
    LineSearchSettings,
    MPCSolver,
    MPCWarmStart,
    ProblemError,
    QPState,
    SettingsError,
    SQPSettings,
    diagnose,
    rollout,
)

X0 = np.array([[0.3, 0.0], [-0.5, 0.1]])


@pytest.fixture(scope="module")
def solver():
    """Nothing that is refused is compiled."""
    return fixed_solver("pendulum", "sparse")


@pytest.fixture(scope="module")
def solution(solver):
    return solver.solve(X0)


class TestStarts:
    @pytest.mark.parametrize("z", [None, 3, [0.0], "z", np.zeros(3), np.zeros(17) > 0])
    def test_cold_start(self, solver, z):
        with pytest.raises(ProblemError, match=r"z (must be a NumPy or JAX array|has shape|has d)"):
            solver.cold_start(z)

    def test_cold_start_of_numpy_arrays(self, solver):
        z = np.linspace(0, 1, solver.problem.n_vars)
        start = solver.cold_start(z)
        np.testing.assert_array_equal(start.z, z)
        assert isinstance(start.z, jax.Array)

    def test_shift(self, solver, solution):
        for given in (None, solution.z, np.zeros(17), MPCWarmStart(solution.z, None)):
            with pytest.raises(ProblemError, match=r"A warm start is MPCWarmStart\(z, QPState"):
                solver.shift(given)
        with pytest.raises(ProblemError, match=r"warm_start\.z has shape \(3,\)"):
            solver.shift(MPCWarmStart(jnp.zeros(3), solution.warm_start.qp))

    def test_solutions_are_no_starts(self, solver, solution):
        message = "warm_start is a Solution; pass its `warm_start` instead"
        with pytest.raises(ProblemError, match=message):
            solver.solve(X0, warm_start=solution)
        with pytest.raises(ProblemError, match=message):
            rollout(solver, lambda x, u: x, X0, 2, warm_start=solution)

    @pytest.mark.parametrize("qp", [None, 3, np.zeros(3)])
    def test_parts(self, solver, solution, qp):
        with pytest.raises(ProblemError, match=f"A warm start is .*; got {type(qp).__name__}"):
            solver.solve(X0, warm_start=MPCWarmStart(solution.z, qp))
        nothing = MPCWarmStart(solution.z, QPState(None, None, None))
        with pytest.raises(ProblemError, match=r"warm_start\.d must be a NumPy or JAX array"):
            solver.solve(X0, warm_start=nothing)

    @pytest.mark.parametrize("name", ["shift", "donate"])
    def test_flags(self, solver, name):
        with pytest.raises(ProblemError, match=f"{name} must be True or False, got 'no'"):
            solver.solve(X0, **{name: "no"})

    def test_rollouts_need_an_object(self):
        for given, words in ((MPCSolver, "the class MPCSolver"), (None, "NoneType")):
            with pytest.raises(ProblemError, match=f"rollout needs an MPCSolver, .*; {words} is"):
                rollout(given, lambda x, u: x, X0, 2)


class TestGivenAway:
    """A start that was donated, and the solution that it belongs to, are gone."""

    @pytest.fixture
    def gone(self, solver):
        solution = solver.solve(X0)
        solver.solve(X0, warm_start=solution.warm_start, donate=True)
        return solution

    @pytest.mark.parametrize(
        "use",
        [
            lambda solver, gone: solver.solve(X0, warm_start=gone.warm_start),
            lambda solver, gone: solver.solve(X0, warm_start=gone.z),
            lambda solver, gone: solver.step(gone.z, x0=X0),
            lambda solver, gone: solver.shift(gone.warm_start),
            lambda solver, gone: solver.gradient_status(gone, X0),
            lambda solver, gone: rollout(solver, lambda x, u: x, X0, 2, warm_start=gone.warm_start),
            lambda solver, gone: diagnose(gone, X0),
            lambda solver, gone: gone.x,
            lambda solver, gone: gone.u,
            lambda solver, gone: gone["x"],
        ],
    )
    def test_use(self, solver, gone, use):
        message = "was given away by an earlier call with donate=True, so its memory is used again"
        with pytest.raises(ProblemError, match=message):
            use(solver, gone)


@pytest.fixture(scope="module")
def single():
    return MPCSolver(arm(3), SQPSettings.real_time(), engine="sparse")


class TestOtherDtypes:
    """As in JAX: cast, unless a number would become infinite."""

    def test_cast(self, single):
        wanted = single.solve(X0.astype("float32"), {"gravity": np.ones(1, "float32")})
        start = single.z_guess(X0)
        for array in (X0, jnp.asarray(X0)):
            found = single.solve(array, {"gravity": np.ones(1, "int64")}, np.asarray(start, float))
            assert found.z.dtype == np.float32
            np.testing.assert_array_equal(found.z, wanted.z)
        whole = single.solve(np.ones((2, 2), "int32"))
        np.testing.assert_array_equal(whole.z, single.solve(np.ones((2, 2), "float32")).z)

    @pytest.mark.parametrize("array", [np.full((2, 2), 1e39), jnp.full((2, 2), -1e300)])
    def test_overflow(self, single, array):
        with pytest.raises(ProblemError, match=r"x0 contains .*, which is infinite in float32"):
            single.solve(array)

    def test_absent_bounds_stay(self, single):
        """Infinite before and after."""
        found = single.pack(X0, {"gravity": np.array([np.inf])})
        assert np.isinf(found).any()

    def test_gradients_pass_a_cast(self, single):
        slope = jax.grad(lambda x: single.solve(x).cost.sum())(jnp.asarray(X0))
        assert slope.dtype == np.float64
        assert np.all(np.isfinite(slope))


class TestReading:
    @pytest.mark.parametrize("name", [3, None, ["x"], slice(1), "nope"])
    def test_names(self, solution, name):
        with pytest.raises(ProblemError, match="No variable is named"):
            solution[name]

    @pytest.mark.parametrize("worst", ["a", -1, 1.5, True])
    def test_worst(self, solution, worst):
        with pytest.raises(ProblemError, match="worst must be an integer, at least 0, got"):
            diagnose(solution, X0, worst=worst)

    def test_data(self, solution):
        with pytest.raises(ProblemError, match="x0 must be a NumPy or JAX array, got str"):
            diagnose(solution, "a")
        with pytest.raises(ProblemError, match=r"params\['R'\] must be a NumPy or JAX array"):
            diagnose(solution, X0, {"R": "a"})
        with pytest.raises(ProblemError, match="Names in params must be strings, got 3"):
            diagnose(solution, X0, {3: X0})


class TestSettings:
    @pytest.mark.parametrize("dtype", [None, "float16", 3])
    def test_dtypes(self, dtype):
        for method in ("tolerances", "qp_settings"):
            with pytest.raises(SettingsError, match="dtype must be one of"):
                getattr(SQPSettings(), method)(dtype)
        with pytest.raises(SettingsError, match="dtype must be one of"):
            MPCSolver(arm(3), dtype=dtype)

    def test_ladders(self):
        with pytest.raises(SettingsError, match="give 69077549 step lengths, all of which are ev"):
            LineSearchSettings(decay=0.9999999)

    def test_huge_integers(self):
        with pytest.raises(SettingsError, match="max_iter must be at most 2147483647, got 1000000"):
            ADMMSettings(max_iter=10**30)
        with pytest.raises(SettingsError, match=r"rho must be .*, got 1000000"):
            ADMMSettings(rho=10**400)
