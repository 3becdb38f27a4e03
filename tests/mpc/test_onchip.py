"""One warp per problem: the same iterates as other engines, for problems of all shapes."""

from dataclasses import replace

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpc_cases import mixed_stages, pendulum
from onchip_cases import (
    LIMIT,
    apart,
    as_problem,
    check_equal,
    crane,
    instances,
    leaves,
    limits,
    masses,
    same_bits,
    uneven,
)
from sqp_cases import FIXED, FIXED_QP, DenseSQP, arm, soft_arm

from warpmpc import OCP, LineSearchSettings, MPCSolver, MPCStatus, Soft
from warpmpc.engines.onchip import lane_source as lane_text
from warpmpc.engines.runtime.ffi import has_gpu
from warpmpc.mpc.sqp import onchip as module
from warpmpc.systems import car, cartpole

TEN = replace(FIXED, max_iter=10, convexify="gershgorin")
LADDER = LineSearchSettings(step_min=0.1)
MERIT = replace(LADDER, kind="merit")
BATCH = 33
# At an optimum rounding decides which steps are accepted; they are compared before it is reached.
DECISIONS = (".step_length", ".accepted", ".history.step_length", ".history.accepted")


# Problem, settings, size of the points.  Short ones first: those run everywhere.
COMPARED = {
    "two_stages_per_lane": (lambda: pendulum(33, integrator="euler"), TEN, 0.5),
    "exact_merit": (
        mixed_stages,
        replace(
            TEN,
            max_iter=4,
            hessian="exact",
            line_search=MERIT,
            qp_start="multipliers",
            regularization=0.01,
            record=True,
        ),
        1.0,
    ),
    "soft": (
        lambda: arm(3, soft=Soft(linear=(0.5, np.inf), quadratic=2.0)),
        replace(TEN, max_iter=4, record=True),
        0.5,
    ),
}
SLOW = {
    **{f"pendulum_{n}": (lambda n=n: pendulum(n), TEN, 0.5) for n in (1, 31, 32, 33, 70)},
    "cartpole": (lambda: cartpole.build(12), TEN, 0.5),
    "car": (lambda: car.build(8), replace(TEN, line_search=MERIT, record=True), 0.5),
    "all_penalties": (soft_arm, replace(TEN, record=True), 0.5),
    "all_penalties_merit": (soft_arm, replace(TEN, line_search=MERIT), 0.5),
    "constants": (masses, replace(TEN, max_iter=2), 0.5),
    "constants_and_empty_lanes": (lambda: masses(50), replace(TEN, max_iter=2), 0.5),
    "apart": (apart, replace(TEN, max_iter=2), 0.5),
    "uneven": (uneven, replace(TEN, max_iter=5), 0.3),
    "crane": (lambda: crane(40), TEN, 0.3),
    "full_steps": (
        lambda: crane(33),
        replace(TEN, hessian="exact", line_search=replace(LADDER, kind="full"), record=True),
        0.3,
    ),
    "staying": (
        mixed_stages,
        replace(TEN, line_search=replace(LADDER, fallback="stay", rounding=10.0)),
        3.0,
    ),
    "restarting": (lambda: pendulum(5), replace(TEN, qp_start="multipliers", record=True), 0.5),
    "regularized": (lambda: crane(5), replace(TEN, regularization=0.1), 0.5),
}


# Parameters of these mean something: they keep their defaults.
WITH_DEFAULTS = ("cartpole", "car")


def compare(name, engine):
    make, settings, spread = {**COMPARED, **SLOW}[name]
    problem = as_problem(make())
    x0, params, z = instances(problem, 5, spread)
    if name in WITH_DEFAULTS:
        params = None
    onchip, other = (MPCSolver(problem, settings, "float64", e) for e in ("onchip", engine))
    assert onchip.engine == "onchip"
    wanted = other.solve(x0, params, z)
    assert np.isfinite(wanted.z).all()
    assert not set(wanted.status.tolist()) & {MPCStatus.QP_INFEASIBLE, MPCStatus.NON_FINITE}
    assert np.abs(np.asarray(wanted.z) - z).max() > 0.1
    check_equal(onchip.solve(x0, params, z), wanted, but=DECISIONS)


@pytest.mark.parametrize("name", COMPARED)
def test_equals_the_staged_engine(name):
    compare(name, "staged")


@pytest.mark.parametrize(
    "name", ["exact_merit", *(pytest.param(n, marks=pytest.mark.slow) for n in ("soft", "crane"))]
)
def test_long_loops_are_folded(name, monkeypatch):
    """One loop for both solves of an iteration, and for all levels of the reduction."""
    monkeypatch.setattr(lane_text, "_LONGEST_LOOP", 0)
    compare(name, "staged")


@pytest.mark.parametrize("count", [3, None])
@pytest.mark.parametrize(
    "name", ["exact_merit", *(pytest.param(n, marks=pytest.mark.slow) for n in ("crane", "car"))]
)
def test_blocks_in_registers(name, count, monkeypatch):
    """Some or all blocks of the reduction in registers; other tests cover none."""
    laid_out = module.lane_memory

    def kept(programs):
        memory = laid_out(programs)
        return memory.keeping(count or memory.n_blocks)

    monkeypatch.setattr(module, "lane_memory", kept)
    compare(name, "staged")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["staged", "dense"])
@pytest.mark.parametrize("name", SLOW)
def test_equals_other_engines(name, engine):
    compare(name, engine)


def test_equals_dense_numpy():
    """Cost and rows couple inputs of neighbours; also what the line search decides."""
    problem, settings = crane(5), replace(FIXED, max_iter=3)
    x0, _, z = instances(problem, 4, 0.6)
    found = MPCSolver(problem, settings, "float64", "onchip").solve(x0, None, z)
    oracle = DenseSQP(problem, settings)
    for b in range(4):
        now = oracle.start(z[b])
        for _ in range(settings.max_iter):
            now = oracle.step(now, x0[b])
        np.testing.assert_allclose(found.z[b], now.z, atol=LIMIT)
        np.testing.assert_allclose(found.y[b], now.state[2], atol=LIMIT)
        ours = (found.cost, found.theta, found.step_length, found.primal_residual)
        wanted = (now.cost, now.theta, now.alpha, now.primal)
        np.testing.assert_allclose([float(value[b]) for value in ours], wanted, atol=LIMIT)
        np.testing.assert_allclose(found.dual_residual[b], now.dual, atol=LIMIT)


@pytest.fixture(scope="module")
def solver():
    return MPCSolver(pendulum(4), FIXED, "float64", "onchip")


@pytest.fixture(scope="module")
def staged():
    return MPCSolver(pendulum(4), FIXED, "float64", "staged")


@pytest.fixture(scope="module")
def x0():
    return np.random.default_rng(0).uniform(-1, 1, (BATCH, 2))


class TestBatches:
    def test_permuting_permutes_the_result(self, solver, x0):
        order = np.random.default_rng(1).permutation(BATCH)
        same_bits(solver.solve(x0[order]), solver.solve(x0), order)

    @pytest.mark.parametrize("batch", [1, 31, 32])
    def test_neighbours_make_no_difference(self, solver, x0, batch):
        same_bits(solver.solve(x0[:batch]), solver.solve(x0), slice(batch))

    def test_a_single_problem(self, solver, x0):
        same_bits(solver.solve(x0[3]), solver.solve(x0), 3)

    def test_leading_axes_and_vmap(self, solver, x0):
        whole, shaped = solver.solve(x0[:6]), solver.solve(x0[:6].reshape(2, 3, 2))
        np.testing.assert_array_equal(np.asarray(shaped.z).reshape(6, -1), whole.z)
        mapped = jax.vmap(lambda x: solver.solve(x).z)(jnp.asarray(x0[:6]))
        np.testing.assert_array_equal(mapped, whole.z)

    def test_large_ones_are_solved_in_parts(self):
        settings = replace(FIXED, qp=replace(FIXED_QP, max_batch=32))
        x0 = np.random.default_rng(0).uniform(-1, 1, (70, 2))
        parts = MPCSolver(pendulum(4), settings, "float64", "onchip").solve(x0)
        same_bits(parts, MPCSolver(pendulum(4), FIXED, "float64", "onchip").solve(x0))

    def test_one_launch(self, solver, x0):
        text = jax.jit(solver.solve).lower(x0).as_text()
        assert text.count("onchip_solve") == text.count("custom_call @") >= 1
        assert "stablehlo.while" not in text


class TestSteps:
    def test_are_the_iterations_of_a_solve(self, solver, x0):
        wanted = solver.solve(x0)
        z, state = solver.z_guess(x0), None
        for _ in range(FIXED.max_iter):
            result, state = solver.step(z, state=state, x0=x0)
            z = result.z
        for key in ("z", "y", "cost", "kkt_residual", "theta", "step_length"):
            found = np.asarray(getattr(result, key))
            np.testing.assert_allclose(found, getattr(wanted, key), rtol=1e-12, atol=1e-12)

    def test_two_solves_are_one_twice_as_long(self, solver, x0):
        """What a warm start carries is all that matters."""
        first = solver.solve(x0)
        before = jax.tree.map(np.array, first.warm_start)
        again = solver.solve(x0, warm_start=first.warm_start)
        jax.tree.map(np.testing.assert_array_equal, before, first.warm_start)
        long = MPCSolver(pendulum(4), replace(FIXED, max_iter=6), "float64", "onchip").solve(x0)
        np.testing.assert_allclose(again.z, long.z, atol=1e-12)
        np.testing.assert_allclose(again.y, long.y, atol=1e-12)

    def test_donated_warm_start(self, solver, x0):
        first = solver.solve(x0)
        kept = jax.tree.map(jnp.array, first.warm_start)
        same_bits(
            solver.solve(x0, warm_start=first.warm_start, donate=True),
            solver.solve(x0, warm_start=kept),
        )

    def test_shifted_warm_start(self, solver, staged, x0):
        first = staged.solve(x0)
        given = {"warm_start": first.warm_start, "shift": True}
        check_equal(solver.solve(x0 + 0.1, **given), staged.solve(x0 + 0.1, **given))


def test_common_parameters_are_as_good_as_own_ones(solver, x0):
    w = np.array([2.0, 0.3, 0.05])
    own = {"w": np.broadcast_to(w, (BATCH, 3)), "length": np.full((BATCH, 1), 1.2)}
    common = {"w": w, "length": np.array([1.2])}
    found, wanted = solver.solve(x0, common), solver.solve(x0, own)
    check_equal(found, wanted)
    assert np.abs(np.asarray(wanted.z) - np.asarray(solver.solve(x0).z)).max() > 1e-3


def windy():
    """A pendulum with more parameters than lanes."""
    x, u, wind = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("wind", 70)
    ocp = OCP(x, u, {"wind": wind}, horizon=3, dt=0.1)
    ocp.set_dynamics(ca.vertcat(x[1], ca.sin(x[0]) + u), integrator="euler")
    ocp.add_cost(x[0] ** 2 + ca.dot(wind, ca.DM(np.cos(np.arange(70)))) * x[1] + u**2)
    return ocp


@pytest.mark.parametrize("common", [True, False])
def test_copies_of_parameters_change_no_bit(common, x0, monkeypatch):
    """On chip where there is room, else from memory with each use."""
    wind = np.random.default_rng(1).uniform(-1, 1, (BATCH, 70))
    found = []
    for most in (8, 2):
        monkeypatch.setattr(module, "_MOST_HELD", most)
        made = MPCSolver(windy(), FIXED, "float64", "onchip")
        assert bool(module.lane_memory(made.programs).held) == (most == 8)
        found.append(made.solve(x0, {"wind": wind[0] if common else wind}))
    same_bits(*found)
    exact = MPCSolver(windy(), FIXED, "float64", "staged")
    check_equal(found[0], exact.solve(x0, {"wind": wind[0] if common else wind}))


def test_no_clock_on_the_cpu(solver, x0):
    """Cycles are zero, also for instances that take no part, whose status nothing else writes."""
    start = solver.cold_start(solver.z_guess(x0))
    start = replace(start, z=start.z.at[3].set(np.nan))
    assert has_gpu() or set(solver.phase_cycles(x0, start).values()) == {0.0}


class TestBadInstances:
    def test_change_no_bit_of_others(self, solver, x0):
        z = np.array(solver.z_guess(x0))
        plain = solver.solve(x0, warm_start=z)
        x0, bad = x0.copy(), [4, 7, 9]
        x0[4, 0], x0[7, 1] = np.nan, np.inf
        z[9, 2] = np.nan
        spoiled = solver.solve(x0, warm_start=z)
        statuses = np.asarray(spoiled.status)
        assert statuses[[4, 9]].tolist() == [MPCStatus.NON_FINITE] * 2
        assert statuses[7] in (MPCStatus.NON_FINITE, MPCStatus.QP_INFEASIBLE)
        good = np.delete(np.arange(BATCH), bad)
        for key, value in leaves(plain).items():
            np.testing.assert_array_equal(leaves(spoiled)[key][good], value[good], err_msg=key)

    def test_odd_multipliers_are_forgotten(self, solver, staged, x0):
        """A warm start of a problem without solution is none."""
        start = staged.solve(x0).warm_start
        y = np.array(start.qp.y)
        y[2, 1] = np.nan
        start = replace(start, qp=replace(start.qp, y=y))
        found = solver.solve(x0, warm_start=start)
        assert np.isfinite(found.z).all()
        check_equal(found, staged.solve(x0, warm_start=start))

    def test_bounds_by_parameter(self):
        """Apart, absent, equal, crossed, NaN, infinite on the wrong side."""
        bounds = [[-0.1, 0.1], [-np.inf, np.inf], [-0.1, np.inf], [0.05, 0.05], [0.2, -0.2]]
        bounds += [[np.nan, 1.0], [np.inf, np.inf], [-np.inf, -np.inf], [-0.4, 0.4]]
        x0 = np.random.default_rng(0).uniform(-1, 1, (9, 2))
        x0[8, 1] = np.nan
        settings = replace(FIXED, qp=replace(FIXED_QP, max_iter=60), record=True)
        found, wanted = (
            MPCSolver(limits(3), settings, "float64", engine).solve(x0, {"limit": np.array(bounds)})
            for engine in ("onchip", "staged")
        )
        check_equal(found, wanted)
        infeasible, non_finite = MPCStatus.QP_INFEASIBLE, MPCStatus.NON_FINITE
        assert np.asarray(found.status)[[4, 6, 7]].tolist() == [infeasible] * 3
        assert np.asarray(found.status)[[5, 8]].tolist() == [non_finite] * 2
        np.testing.assert_allclose(found.u[3, :, 0], 0.05, atol=1e-4)


def test_gradient_is_that_of_the_staged_engine(solver, staged, x0):
    x, w = jnp.asarray(x0[:4]), jnp.array([1.0, 0.1, 0.01])

    def loss(mpc):
        return lambda x, w: jnp.sum(mpc.solve(x, {"w": w}).u[:, 0] ** 2)

    found, wanted = (jax.grad(loss(mpc), argnums=(0, 1))(x, w) for mpc in (solver, staged))
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)
        assert np.abs(theirs).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("line_search", [LADDER, MERIT], ids=["filter", "merit"])
def test_soft_bounds_by_parameter(line_search):
    """Soft rows are no equalities, even where a parameter makes their bounds equal."""
    bounds = [[-0.1, 0.1], [-np.inf, np.inf], [-0.1, np.inf], [0.05, 0.05]]
    x0 = np.random.default_rng(0).uniform(-1, 1, (4, 2))
    settings = replace(TEN, line_search=line_search, record=True)
    ocp = limits(4, soft=Soft(linear=0.3, quadratic=(0.2, 0.0)))
    found, wanted = (
        MPCSolver(ocp, settings, "float64", engine).solve(x0, {"limit": np.array(bounds)})
        for engine in ("onchip", "staged")
    )
    check_equal(found, wanted, but=DECISIONS)


@pytest.mark.slow
def test_float32_is_near_float64(x0):
    near, exact = (MPCSolver(pendulum(33), FIXED, d, "onchip") for d in ("float32", "float64"))
    np.testing.assert_allclose(near.solve(x0.astype("float32")).z, exact.solve(x0).z, atol=5e-3)
