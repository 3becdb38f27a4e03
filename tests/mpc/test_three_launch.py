"""Iterations in three launches: equal to those in many, and refused where they are impossible."""

import re
from dataclasses import replace

import casadi as ca
import jax
import numpy as np
import pytest
from mpc_cases import pendulum
from sqp_cases import FIXED, FIXED_QP, PROBLEMS, points, soft_arm

from warpmpc import (
    OCP,
    ADMMSettings,
    LineSearchSettings,
    MPCSolver,
    SettingsError,
    StagedSettings,
)
from warpmpc.mpc.sqp import three_launch as module
from warpmpc.mpc.sqp.choice import IterationChoice
from warpmpc.mpc.sqp.three_launch import ThreeLaunchIteration

BATCH = 33
LADDER = LineSearchSettings(step_min=0.1)
CHECKED = replace(FIXED_QP, max_iter=60, check_every=7, eps_abs=1e-3, eps_rel=1e-3)
PLAIN = replace(FIXED, convexify="gershgorin")
# Problem, settings, sides.  Together: all line searches, both starts of QPs, both fallbacks.
CASES = {
    "filter": ("pendulum", PLAIN, 1),
    "merit_with_checks": (
        "mixed",
        replace(PLAIN, line_search=replace(LADDER, kind="merit"), qp=CHECKED),
        1,
    ),
    "exact_full_recorded": (
        "mixed",
        replace(
            PLAIN,
            hessian="exact",
            line_search=replace(LADDER, kind="full"),
            qp_start="multipliers",
            record=True,
        ),
        1,
    ),
    "two_sides_staying": (
        "pendulum",
        replace(PLAIN, line_search=replace(LADDER, fallback="stay", rounding=10.0)),
        2,
    ),
}
SPREAD = {"pendulum": 1.0, "mixed": 3.0}


def solver(name, settings, sides, fused, dtype="float64"):
    staged = StagedSettings(sides=sides)
    settings = replace(settings, fused=fused)
    return MPCSolver(PROBLEMS[name](), settings, dtype, "staged", staged=staged)


def instances(problem, spread):
    """Random ones; one is not finite, of one the guess is not."""
    z, p = points(problem, BATCH, spread)
    p[3, 0] = np.nan
    z[5, 1] = np.inf
    return p[:, : problem.n_x0], p[:, problem.n_x0 :], z


def leaves(solution):
    found, _ = jax.tree_util.tree_flatten_with_path(solution)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in found}


@pytest.mark.parametrize("case", CASES)
def test_equals_plain_iterations(case):
    name, settings, sides = CASES[case]
    plain, fused = (solver(name, settings, sides, which) for which in (False, True))
    x0, params, z = instances(plain.problem, SPREAD[name])
    wanted, found = (leaves(s.solve(x0, params, z)) for s in (plain, fused))
    assert wanted.keys() == found.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-9, err_msg=key)
    assert np.isnan(found[".kkt_residual"][[3, 5]]).all()
    assert np.isfinite(np.delete(found[".z"], [3, 5], axis=0)).all()


@pytest.fixture(scope="module")
def small():
    return MPCSolver(pendulum(4), replace(FIXED, fused=True), "float32", "staged")


class TestLaunches:
    def test_three(self, small):
        """One loop over the iterations; inside, three calls of kernels."""
        x0 = np.zeros((40, 2), dtype="float32")
        text = jax.jit(small.solve).lower(x0).as_text()
        calls = re.findall(r"custom_call @(\S*?)\(", text)
        names = [re.sub(r"_\d+$", "", call).split("__")[-1] for call in calls]
        assert names == ["fused_linearize_factor", "staged_admm", "fused_line_search"]
        assert text.count("stablehlo.while") == 1

    def test_permuting_the_batch_permutes_the_result(self, small):
        rng = np.random.default_rng(0)
        x0 = rng.uniform(-1, 1, (100, 2)).astype("float32")
        order = rng.permutation(100)
        there, here = (leaves(small.solve(x0[i])) for i in (np.arange(100), order))
        for key, value in there.items():
            np.testing.assert_array_equal(here[key], value[order], err_msg=key)

    @pytest.mark.parametrize("batch", [1, 31])
    def test_single_bits(self, small, batch):
        """The neighbours of an instance make no difference."""
        x0 = np.random.default_rng(1).uniform(-1, 1, (64, 2)).astype("float32")
        alone, among = small.solve(x0[:batch]), small.solve(x0)
        np.testing.assert_array_equal(alone.z, among.z[:batch])
        np.testing.assert_array_equal(alone.status, among.status[:batch])


IMPOSSIBLE = {
    "the number of SQP iterations is not fixed": {"mode": "converge"},
    "QPs are scaled": {"qp": replace(FIXED_QP, scaling=2)},
    "rho is adapted": {"qp": ADMMSettings(scaling=0, check_every=5)},
    "QPs are polished": {"qp": replace(FIXED_QP, polish=True)},
    "Hessian blocks are projected": {"hessian": "exact"},
    "the ladder of steps is too long": {
        "line_search": LineSearchSettings(decay=0.9, step_min=1e-3),
        "convexify": "gershgorin",
    },
}


def kind_of(solver):
    """Name of the iteration that is chosen where the caller leaves it open."""
    given = (solver.programs, solver.qp, solver.settings)
    return IterationChoice("auto", *given, free=True).kind.name


class TestRefusals:
    @pytest.mark.parametrize("reason", IMPOSSIBLE)
    def test_settings(self, reason):
        settings = replace(FIXED, fused=True, **IMPOSSIBLE[reason])
        with pytest.raises(SettingsError, match=f"fused=True is not possible because {reason}"):
            MPCSolver(PROBLEMS["mixed"](), settings, "float64", "staged")
        free = MPCSolver(PROBLEMS["mixed"](), replace(settings, fused=None), "float64", "staged")
        assert kind_of(free) == "general"

    def test_soft_rows(self):
        with pytest.raises(SettingsError, match="because there are soft rows"):
            MPCSolver(soft_arm(), replace(FIXED, fused=True), "float64", "staged")

    def test_other_engines(self):
        with pytest.raises(SettingsError, match="because the QP engine has no unrolled stages"):
            MPCSolver(pendulum(3), replace(FIXED, fused=True), "float64", "sparse")

    def test_long_programs(self, monkeypatch):
        monkeypatch.setattr(module, "_LONGEST_PROGRAM", 20)
        with pytest.raises(SettingsError, match=r"because a stage has \d+ operations"):
            MPCSolver(pendulum(3), replace(FIXED, fused=True), "float64", "staged")

    def test_default(self):
        free = MPCSolver(pendulum(3), FIXED)
        assert kind_of(free) == "three_launch"


@pytest.mark.parametrize("engine", ["staged", "sparse"])
def test_infinite_parameters_switch_bounds_off(engine):
    """One instance has infinite bounds, the others finite ones."""
    x, u, limit = ca.SX.sym("x"), ca.SX.sym("u"), ca.SX.sym("limit", 2)
    ocp = OCP(x, u, {"limit": limit}, horizon=3, dt=0.5)
    ocp.set_dynamics(u, integrator="euler")
    ocp.add_cost(x**2 + 1e-3 * u**2)
    ocp.add_cost(x**2, at="terminal")
    ocp.subject_to(limit[0], u, limit[1])
    solver = MPCSolver(ocp, replace(FIXED, qp=replace(FIXED_QP, max_iter=200)), "float64", engine)
    limits = np.array([[-0.1, 0.1], [-np.inf, np.inf], [-0.1, np.inf]])
    u = np.asarray(solver.solve(np.ones((3, 1)), {"limit": limits}).u)[:, 0, 0]
    free = np.asarray(solver.solve(np.ones((1, 1)), {"limit": np.array([-50.0, 50.0])}).u)[0, 0, 0]
    np.testing.assert_allclose(u, [-0.1, free, -0.1], atol=1e-3)
    assert free < -1


def test_tuning_needs_a_device():
    solver = MPCSolver(pendulum(3), FIXED, "float32", "staged")
    with pytest.raises(SettingsError, match="Nothing to tune on the CPU"):
        solver.tune(100)


def test_text_is_readable_and_does_not_depend_on_the_horizon():
    found = []
    for horizon in (4, 9):
        solver = MPCSolver(pendulum(horizon), FIXED, "float32", "staged")
        iteration = ThreeLaunchIteration(solver.programs, solver.qp, solver.settings)
        kernels = iteration._at(1)._kernels
        found.append([kernels.factor_source, kernels.search_source])
    for short, long in zip(*found, strict=True):
        assert short.key == long.key
        head = long.module().split("BODY")[0]
        assert f"Kernel {long.name}, float32, content {long.key}." in head
        assert "stages from 1 to 8." in head
        compile(long.module(), "module", "exec")
