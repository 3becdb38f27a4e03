"""One warp per problem on a CUDA device: accuracy, isolation, determinism, the choice of auto."""

from dataclasses import replace

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpc_cases import mixed_stages, pendulum
from onchip_cases import apart, as_problem, crane, limits, uneven
from sqp_cases import points, soft_arm
from trouble_cases import BATCH as TROUBLED
from trouble_cases import gate, healthy, in_order, troubled

import warpmpc as wm
from warpmpc.engines.onchip.launch import problems_held, shared_bytes
from warpmpc.engines.onchip.solve_source import STATIC_SHARED
from warpmpc.engines.runtime.ffi import multiprocessors
from warpmpc.mpc.sqp.onchip import lane_memory
from warpmpc.systems import car, cartpole, quadrotor
from warpmpc.systems import pendulum as pendulum_system

pytestmark = pytest.mark.gpu

QP = wm.ADMMSettings(max_iter=50, check_every=0, adaptive_rho_every=0, scaling=0)
LADDER = wm.LineSearchSettings(step_min=0.1)
FIXED = wm.SQPSettings(mode="fixed", max_iter=3, qp=QP, line_search=LADDER, convexify="gershgorin")
LIMITS = {"float32": 5e-3, "float64": 1e-8}
BATCH = 1000
# Problem, settings, size of the points.
CASES = {
    "pendulum_1": (lambda: pendulum(1), FIXED, 0.3),
    "pendulum_31": (lambda: pendulum(31), FIXED, 0.3),
    "pendulum_33": (lambda: pendulum(33), FIXED, 0.3),
    "pendulum_70": (lambda: pendulum(70), FIXED, 0.3),
    "cartpole": (lambda: cartpole.build(40), FIXED, 0.3),
    "car": (lambda: car.build(20), FIXED, 0.3),
    "soft": (soft_arm, FIXED, 0.3),
    "crane": (lambda: crane(40), FIXED, 0.3),
    "uneven": (uneven, FIXED, 0.3),
    "apart": (apart, FIXED, 0.3),
    "exact_merit": (
        mixed_stages,
        replace(FIXED, hessian="exact", line_search=replace(LADDER, kind="merit"), record=True),
        0.5,
    ),
}
# Parameters of these mean something: they keep their defaults.
WITH_DEFAULTS = ("cartpole", "car")


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", CASES)
def test_iterates_are_those_of_the_staged_engine_in_float64(name, dtype):
    make, settings, spread = CASES[name]
    problem = as_problem(make())
    z, p = points(problem, 33, spread)
    params = None if name in WITH_DEFAULTS else p[:, problem.n_x0 :]
    wanted = wm.MPCSolver(problem, settings, "float64", "staged").solve(
        p[:, : problem.n_x0], params, z
    )
    given = [None if a is None else a.astype(dtype) for a in (p[:, : problem.n_x0], params, z)]
    found = wm.MPCSolver(problem, settings, dtype, "onchip").solve(*given)
    assert {device.platform for device in found.z.devices()} == {"gpu"}
    limit = LIMITS[dtype]
    close = np.abs(np.asarray(found.z) - np.asarray(wanted.z)).max(axis=1) < limit
    # In float32 rounding may decide whether a step is accepted.
    assert close.mean() >= (1.0 if dtype == "float64" else 0.9)
    size = 1 + np.abs(wanted.y).max()
    np.testing.assert_allclose(found.y[close] / size, wanted.y[close] / size, atol=limit)
    np.testing.assert_allclose(found.cost[close], wanted.cost[close], rtol=10 * limit, atol=limit)
    if dtype == "float64":
        for key in ("status", "primal_residual", "dual_residual", "kkt_residual", "theta"):
            ours, theirs = np.asarray(getattr(found, key)), np.asarray(getattr(wanted, key))
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=limit, err_msg=key)


def starts(dtype="float32"):
    return np.random.default_rng(0).uniform(-0.3, 0.3, (BATCH, 2)).astype(dtype)


@pytest.fixture(scope="module")
def solver():
    return wm.MPCSolver(pendulum(40), FIXED, "float32", "onchip")


def leaves(solution):
    found, _ = jax.tree_util.tree_flatten_with_path(solution)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in found}


def test_bits_repeat_and_nothing_leaves_the_device(solver):
    x0 = jnp.asarray(starts())
    first = leaves(solver.solve(x0))
    for _ in range(3):
        with jax.transfer_guard("disallow"):
            again = jax.block_until_ready(solver.solve(x0))
        for key, value in leaves(again).items():
            np.testing.assert_array_equal(value, first[key], err_msg=key)


@pytest.mark.parametrize("batch", [1, 31, 33])
def test_neighbours_make_no_difference(solver, batch):
    alone, among = leaves(solver.solve(starts()[:batch])), leaves(solver.solve(starts()))
    for key, value in alone.items():
        np.testing.assert_array_equal(value, among[key][:batch], err_msg=key)


def test_permuting_the_batch_permutes_the_result(solver):
    order = np.random.default_rng(1).permutation(BATCH)
    here, there = leaves(solver.solve(starts()[order])), leaves(solver.solve(starts()))
    for key, value in there.items():
        np.testing.assert_array_equal(here[key], value[order], err_msg=key)


def test_bad_instances_change_no_bit_of_others(solver):
    x0 = starts()
    z = np.array(solver.z_guess(x0))
    plain = leaves(solver.solve(x0, warm_start=z))
    x0[45, 1], z[700, 7] = np.nan, np.inf
    spoiled = leaves(solver.solve(x0, warm_start=z))
    assert spoiled[".status"][[45, 700]].tolist() == [wm.MPCStatus.NON_FINITE] * 2
    good = np.delete(np.arange(BATCH), [45, 700])
    for key, value in plain.items():
        np.testing.assert_array_equal(spoiled[key][good], value[good], err_msg=key)


def test_blocks_of_several_problems():
    """A batch that fills the device; its last block is not full, and one problem is bad."""
    made = car.make(horizon=50, sqp_iter=2, admm_iter=25)
    solver = wm.MPCSolver(made.problem, made.settings, "float32", "onchip")
    batch = 16 * multiprocessors() + 3
    x0 = made.sample(batch, 0).astype("float32")
    among = leaves(solver.solve(x0))
    kernel = next(iter(solver._iterations.values())).kernel
    held = problems_held(lane_memory(solver.programs), "float32")
    assert [kernel.together(count, ends=False) for count in (batch, 100)] == [held // 2, 1]
    for rows in (slice(0, 100), slice(batch - 100, batch)):
        for key, value in leaves(solver.solve(x0[rows])).items():
            np.testing.assert_array_equal(value, among[key][rows], err_msg=key)
    start = solver.solve(x0).warm_start
    among = leaves(solver.solve(x0, warm_start=start))
    x0[41], y = np.nan, np.array(start.qp.y)
    y[86] = 1e38  # it takes part, and goes astray
    start = replace(start, qp=replace(start.qp, y=jnp.asarray(y)))
    spoiled = leaves(solver.solve(x0, warm_start=start))
    others = np.delete(np.arange(batch), [41, 86])
    assert spoiled[".status"][41] == wm.MPCStatus.NON_FINITE
    assert not np.array_equal(spoiled[".z"][86], among[".z"][86])
    for key, value in among.items():
        np.testing.assert_array_equal(spoiled[key][others], value[others], err_msg=key)


def test_crossed_and_absent_bounds():
    bounds = np.array([[-0.1, 0.1], [-np.inf, np.inf], [0.05, 0.05], [0.2, -0.2], [np.nan, 1.0]])
    x0 = np.random.default_rng(0).uniform(-0.3, 0.3, (5, 2))
    found, wanted = (
        wm.MPCSolver(limits(34), FIXED, "float64", engine).solve(x0, {"limit": bounds})
        for engine in ("onchip", "staged")
    )
    np.testing.assert_array_equal(found.status, wanted.status)
    np.testing.assert_allclose(found.z, wanted.z, atol=LIMITS["float64"])


CHECKED = replace(QP, max_iter=1000, check_every=10, eps_abs=1e-7, eps_rel=1e-7)


@pytest.mark.parametrize("mode", ["fixed", "converge"])
def test_ends_are_those_of_the_staged_engine(mode):
    """QPs that end at a tolerance, with all kinds of trouble; others keep every bit."""
    settings = replace(FIXED, mode=mode, max_iter=8, qp=CHECKED, fused=None)
    solver = wm.MPCSolver(gate(), settings, "float64", "onchip")
    found = solver.solve(*in_order())
    wanted = wm.MPCSolver(gate(), settings, "float64", "staged").solve(*in_order())
    np.testing.assert_array_equal(found.status, wanted.status)
    np.testing.assert_allclose(found.z, wanted.z, atol=LIMITS["float64"])
    if mode == "converge":
        np.testing.assert_array_equal(found.iterations, wanted.iterations)
        np.testing.assert_array_equal(found.qp_iterations, wanted.qp_iterations)
    x0, params, where = troubled(1)
    others = np.setdiff1d(np.arange(TROUBLED), list(where.values()))
    spoiled = leaves(solver.solve(x0, params))
    for key, value in leaves(solver.solve(*healthy())).items():
        np.testing.assert_array_equal(spoiled[key][others], value[others], err_msg=key)


def test_checks_above_48_kilobytes():
    """A cartpole with a longer horizon: dynamic shared memory."""
    made = cartpole.make(horizon=160)
    qp = replace(made.settings.qp, max_iter=200, check_every=25)
    settings = replace(made.settings, qp=qp)
    x0 = made.sample(100, 0)
    solver = wm.MPCSolver(made.problem, settings, "float32", "onchip")
    assert shared_bytes(lane_memory(solver.programs), "float32") > STATIC_SHARED
    found = solver.solve(x0.astype("float32"))
    wanted = wm.MPCSolver(made.problem, settings, "float64", "staged").solve(x0)
    assert len(np.unique(found.qp_iterations)) > 1
    near = np.asarray(found.qp_iterations) == np.asarray(wanted.qp_iterations)
    assert near.mean() > 0.5
    off = np.abs(np.asarray(found.u)[:, 0] - np.asarray(wanted.u)[:, 0])[near]
    assert np.median(off) < 1e-3


def test_gradient(solver):
    staged = wm.MPCSolver(pendulum(40), FIXED, "float64", "staged")
    found = jax.grad(lambda x: solver.solve(x).u[:, 0].sum())(jnp.asarray(starts()[:40]))
    wanted = jax.grad(lambda x: staged.solve(x).u[:, 0].sum())(jnp.asarray(starts("float64")[:40]))
    size = np.abs(wanted).max()
    close = np.abs(np.asarray(found) - np.asarray(wanted)).max(axis=1) < 0.05 * size
    assert close.mean() > 0.9  # an instance at the edge of its active set may fall to either side


def test_closed_loop(solver):
    def plant(x, u):
        return x + 0.1 * jnp.stack([x[:, 1], 9.81 * jnp.sin(x[:, 0]) + u[:, 0]], axis=1)

    loop = wm.rollout(solver, plant, jnp.asarray(starts()), 30)
    assert np.abs(np.asarray(loop.x)[:, -1, 0]).max() < 0.05


SYSTEMS = {"pendulum": pendulum_system, "cartpole": cartpole, "car": car, "quadrotor": quadrotor}


@pytest.mark.parametrize("name", SYSTEMS)
def test_auto(name):
    made = SYSTEMS[name].make()
    solver = wm.MPCSolver(made.problem, made.settings, "float32")
    assert solver.engine == ("staged" if name == "quadrotor" else "onchip")


def angles():
    """Small, ordinary and large ones, near multiples of pi / 2 and where others take over."""
    near = np.pi / 2 * np.array([1, 2, 3, 4, 7, 100, 1001, 60_000])
    plain = np.linspace(-20, 20, 41)
    far = np.array([0.0, 1e-30, 1e-4, 0.7853981, 99_999.0, 1e5, 100_001.0, 2e5, 1e6, 3e7])
    return np.concatenate([plain, near, -near, far, -far]).astype("float32")


FUNCTIONS = {
    "sin": (ca.sin, np.sin),
    "cos": (ca.cos, np.cos),
    "tan": (ca.tan, np.tan),
    "divided": (lambda a: a / (1 + a**2), lambda a: a / (1 + a**2)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_in_float32(name):
    """The own functions of the engine are right to some units in the last place for any angle."""
    symbolic, exact = FUNCTIONS[name]
    x, u, a = ca.SX.sym("x"), ca.SX.sym("u"), ca.SX.sym("a")
    ocp = wm.OCP(x, u, {"a": a}, horizon=1, dt=0.1)
    ocp.set_dynamics(u, integrator="euler")
    ocp.add_cost(x**2 + u**2)
    ocp.add_cost(x**2 + symbolic(a), at="terminal")
    given = angles()
    solver = wm.MPCSolver(ocp, replace(FIXED, max_iter=1), "float32", "onchip")
    found = np.asarray(
        solver.solve(np.zeros((given.size, 1), "float32"), {"a": given[:, None]}).cost
    )
    np.testing.assert_allclose(found, exact(given.astype("float64")), rtol=1e-6, atol=3e-7)
