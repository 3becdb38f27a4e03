"""The problem of the humanoid's shape: published numbers, energy, iterations against SciPy."""

from __future__ import annotations

from dataclasses import replace

import casadi as ca
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from humanoid_oracle import admm, quadratic_program

from warpmpc import MPCSolver, MPCStatus, QPSolver
from warpmpc._errors import ProblemError
from warpmpc.codegen.emit_native import CHUNK_LENGTH, plan_chunks
from warpmpc.codegen.from_casadi import translate
from warpmpc.engines.panels.factor_launch import PanelLDL
from warpmpc.engines.panels.launch import PanelKernels
from warpmpc.engines.runtime.stage_kernels import StageCase, StageKernels
from warpmpc.engines.runtime.tiles import from_tiles, to_tiles
from warpmpc.problem.evaluation import initial_guess
from warpmpc.symbolic.derivatives.stage_model import HessianRule, StageModel
from warpmpc.systems import humanoid_shape, humanoid_tree

# Section 5.8 of PROBLEMS.md: q, dq and ddq of its test vector, and what they lead to.
AT = np.arange(24)
Q, DQ, DDQ = 0.1 * np.sin(AT + 1) + 0.6 * (AT == 2), 0.5 * np.cos(AT), np.sin(2 * AT)
POINTS = {
    "Rheel": (0.110676, 0.000975, -0.131996),
    "Lheel": (0.04459, 0.153058, -0.134399),
    "Rtoe": (0.257535, 0.002528, -0.101497),
    "Ltoe": (0.193828, 0.138918, -0.139697),
}
VELOCITIES = {"Rheel": (-0.526226, 0.23566, 0.04321), "Ltoe": (-0.937944, 0.340453, 0.106794)}
DISTANCES = """
    .038431 .034344 .033886 .080675 .096482 .078898 .094836 .098255 .137612 .035368 .127109 .033251
    .111038 .072935 .141458 .142844 .041251 .044631 .001182
"""
# Inverse dynamics of rigid links; without their inertia forces hardly change.
BASE_FORCE = (14.161459, 7.016117, 228.711833)
ACCURATE, CLOSE = 1e-8, 1e-3  # float64 against SciPy; float32, relative to the largest entry
EXACT = replace(humanoid_shape.settings().qp, scaling=0)


@pytest.fixture(scope="module")
def whole():
    return humanoid_shape.build()


def symbols():
    return (ca.SX.sym(name, 24) for name in ("q", "dq", "ddq"))


def test_points_move_as_published():
    q, dq, _ = symbols()
    moving = humanoid_tree.motion(q, dq)
    for method, table in ((moving.point, POINTS), (moving.point_velocity, VELOCITIES)):
        for name, wanted in table.items():
            point = ca.Function("f", [q, dq], [method(*humanoid_shape.POINTS[name])])
            np.testing.assert_allclose(np.array(point(Q, DQ)).ravel(), wanted, atol=2e-6)


def test_distances_as_published(whole):
    stage = whole.stages[5]
    z = np.concatenate([Q, DQ, np.zeros(12)])
    g = ca.Function("g", [stage.z, stage.z_next, stage.p], [stage.g])
    rows = np.array(g(z, np.zeros(60), np.zeros(8))).ravel()[30 + 36 : 30 + 36 + 19]
    np.testing.assert_allclose(rows, [float(d) for d in DISTANCES.split()], atol=2e-6)


def inverse_dynamics() -> ca.Function:
    q, dq, ddq = symbols()
    force = ca.SX.sym("force", 12)
    contacts = [
        humanoid_tree.Contact(*humanoid_shape.POINTS[name], f)
        for name, f in zip(humanoid_shape.CONTACTS, ca.vertsplit(force, 3), strict=True)
    ]
    loads = humanoid_tree.inverse_dynamics(humanoid_tree.motion(q, dq), dq, ddq, contacts)
    return ca.Function("f", [q, dq, ddq, force], [ca.vertcat(*loads)])


def test_force_on_the_base_is_nearly_that_of_rigid_links():
    found = np.array(inverse_dynamics()(Q, DQ, DDQ, 0)).ravel()
    np.testing.assert_allclose(found[3:6], BASE_FORCE, atol=3e-3)


def energy(q: np.ndarray, dq: np.ndarray) -> float:
    """Kinetic and potential energy, from velocities of the points alone."""
    q_, dq_, _ = symbols()
    moving, spin = humanoid_tree.motion(q_, dq_), dq_[:3]
    com = ca.SX(humanoid_tree.BASE_COM)
    masses = [(humanoid_tree.BASE_MASS, q_[:3] + moving.R @ com, dq_[3:6] + ca.cross(spin, com))]
    for i, joint in enumerate(humanoid_tree.JOINTS):
        masses.append((joint.mass, moving.point(i, joint.com), moving.point_velocity(i, joint.com)))
    total = 0.5 * ca.dot(ca.SX(humanoid_tree.BASE_INERTIA), spin**2)
    for mass, at, velocity in masses:
        total += mass * (0.5 * ca.sumsqr(velocity) + humanoid_tree.GRAVITY * at[2])
    return float(ca.Function("e", [q_, dq_], [total])(q, dq))


@pytest.mark.parametrize("pushed", [False, True])
def test_power_of_all_loads_changes_the_energy(pushed):
    """Base loads and torques work on the rates, contact forces on their points."""
    force = 20 * np.sin(np.arange(12)) if pushed else np.zeros(12)
    loads = np.array(inverse_dynamics()(Q, DQ, DDQ, force)).ravel()
    q, dq, _ = symbols()
    moving = humanoid_tree.motion(q, dq)
    speeds = [
        moving.point_velocity(*humanoid_shape.POINTS[name]) for name in humanoid_shape.CONTACTS
    ]
    speeds = np.array(ca.Function("v", [q, dq], [ca.vertcat(*speeds)])(Q, DQ)).ravel()
    R = np.array(ca.Function("R", [q], [moving.R])(Q))
    pitch, yaw = Q[4:6]
    world = R @ DQ[:3]
    # Angles of the base turn with its angular velocity in the world.
    about = (np.cos(yaw) * world[0] + np.sin(yaw) * world[1]) / np.cos(pitch)
    angles = [about, np.cos(yaw) * world[1] - np.sin(yaw) * world[0]]
    angles.append(np.sin(pitch) * about + world[2])
    q_dot = np.concatenate([R @ DQ[3:6], angles, DQ[6:]])
    h = 1e-5
    change = energy(Q + h * q_dot, DQ + h * DDQ) - energy(Q - h * q_dot, DQ - h * DDQ)
    assert loads @ DQ + force @ speeds == pytest.approx(change / (2 * h), rel=1e-6)


def test_shape_of_the_humanoid(whole):
    assert (whole.n_vars, whole.n_cons) == (1704, 3234)
    assert [len(group.ks) for group in whole.groups] == [1, 1, 24, 1, 1]
    entries = [1314, 1776, 1154, 1154, 510]  # as published, with entries that are always zero
    rule = HessianRule()
    for group, published in zip(whole.groups, entries, strict=True):
        model = StageModel.build(whole, group.stage, rule)
        assert 0.96 * published < model.jacobian.nnz() <= published
    assert whole.names["force"].shape == (27, 12)
    assert whole.names["torque"].shape == (2, 18)


def test_gait():
    gamma, height = humanoid_shape.gait(28)
    assert np.array_equal(gamma[0], np.ones(4))
    assert np.array_equal(gamma[5], [0, 1, 0, 1])  # right foot in the air
    assert np.array_equal(gamma[15], [1, 0, 1, 0])
    assert np.all((height > 0) <= (gamma == 0))
    assert 0.045 < height.max() <= humanoid_shape.LIFT


def test_samples_stand_near_the_origin():
    x = humanoid_shape.sample(50)
    assert x.shape == (50, 48)
    np.testing.assert_array_equal(x, humanoid_shape.sample(50))
    moved = np.abs(x[:, :24] - humanoid_shape.HOME)
    assert moved[:, [0, 1, 5]].max(axis=0) == pytest.approx([0.05, 0.05, 0.08], rel=0.2)
    assert not np.delete(moved, [0, 1, 5], axis=1).any()


def test_too_few_nodes():
    with pytest.raises(ProblemError, match="at least 4 nodes, got 3"):
        humanoid_shape.build(3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_panel_loop_on_a_qp_of_this_shape(dtype):
    """Runs by tables, with live values in shared memory; the QP is evaluated by CasADi."""
    short = humanoid_shape.build(8)
    qp = quadratic_program(short, *humanoid_shape.nominal(short))
    wanted, _ = admm(qp, EXACT)
    upper = sp.triu(qp.P, format="csc")
    stages = np.concatenate([short.var_stage, short.con_stage])
    solver = QPSolver(upper, qp.A, EXACT, dtype, engine="staged", stages=stages)
    kernels = solver.loop._kernels
    assert isinstance(kernels, PanelKernels)
    assert isinstance(kernels._ldl, PanelLDL)
    arrays = (upper.data, qp.q, qp.A.data, qp.lower, qp.upper)
    found = solver.solve(*(jnp.asarray(a, dtype=dtype) for a in arrays))
    error = ACCURATE if dtype == "float64" else CLOSE * np.abs(wanted).max()
    np.testing.assert_allclose(found.x, wanted, atol=error, rtol=0)


def test_derivative_program_in_chunks(whole):
    """The last stage, whose program is the shortest, against CasADi."""
    model = StageModel.build(whole, whole.stages[-1], HessianRule())
    function = model.linearize("linearize", ["q", "A", "lower"])
    program = translate(function)
    assert len(plan_chunks(program, CHUNK_LENGTH).chunks) > 5
    rows = [np.arange(size)[None] for size in (*program.input_sizes, *program.output_sizes)]
    case = StageCase(program, np.array([0]), tuple(rows[:2]), tuple(rows[2:]))
    sizes = dict(zip(("q", "A", "lower"), program.output_sizes, strict=True))
    kernels = StageKernels("humanoid", [case], ["z", "p"], sizes, "float64")
    rng = np.random.default_rng(0)
    z = np.concatenate([Q, DQ]) + 0.1 * rng.normal(size=(40, 48))
    p = rng.uniform(size=(40, program.input_sizes[1]))
    outputs = kernels(to_tiles(jnp.asarray(z)), to_tiles(jnp.asarray(p)))
    for j, output in enumerate(outputs):
        wanted = [function(z[b], p[b])[j].nonzeros() for b in range(40)]
        np.testing.assert_allclose(from_tiles(output, 40), wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_one_iteration_of_the_whole_problem(whole):
    settings = replace(humanoid_shape.settings(), qp=EXACT)
    solver = MPCSolver(whole, settings, dtype="float64", engine="staged")
    x0 = humanoid_shape.sample(3)
    found = solver.solve(x0)
    assert np.isfinite(found.cost).all()
    assert set(np.asarray(found.status).tolist()) == {MPCStatus.MAX_ITER}
    for b in range(len(x0)):
        params = whole.defaults.copy()
        params[:48] = x0[b]
        z = initial_guess(whole, params)
        d, y = admm(quadratic_program(whole, z, params), EXACT)
        step = float(found.step_length[b])
        np.testing.assert_allclose(found.z[b], z + step * d, atol=ACCURATE * np.abs(d).max())
        np.testing.assert_allclose(found.y[b], y, atol=10 * ACCURATE * np.abs(y).max())


@pytest.mark.slow
def test_float32_is_close(whole):
    """With the scaling of the benchmark: forces differ far more in size than positions."""
    x0 = humanoid_shape.sample(3).astype(np.float32)
    single, double = (
        MPCSolver(
            whole,
            humanoid_shape.settings(),
            dtype=dtype,
            engine="staged",
            nominal=humanoid_shape.nominal(whole),
        ).solve(jnp.asarray(x0, dtype=dtype))
        for dtype in ("float32", "float64")
    )
    np.testing.assert_array_equal(single.step_length, double.step_length)
    for rows in whole.names.values():
        wanted = np.asarray(double.z)[:, rows]
        error = 1e-4 * np.abs(wanted).max()
        np.testing.assert_allclose(np.asarray(single.z)[:, rows], wanted, atol=error, rtol=0)


@pytest.mark.slow
def test_engines_agree_on_a_short_horizon():
    """With the scaling of the benchmark; the dense engine factorises K as a whole."""
    problem = humanoid_shape.build(5)
    x0 = humanoid_shape.sample(2)
    z = [
        MPCSolver(
            problem,
            humanoid_shape.settings(),
            dtype="float64",
            engine=engine,
            nominal=humanoid_shape.nominal(problem),
        )
        .solve(x0)
        .z
        for engine in ("staged", "dense")
    ]
    np.testing.assert_allclose(z[0], z[1], atol=ACCURATE * np.abs(z[1]).max(), rtol=0)
