"""The humanoid: model, gait and problem against the specification, iterations against its figures.

The specification is PROBLEMS.md, section 5; numbers below are from there unless said otherwise.
"""

from __future__ import annotations

import casadi as ca
import humanoid_published as published
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import MPCSolver, ProblemError, systems
from warpmpc.problem.evaluation import evaluate, initial_guess
from warpmpc.symbolic.derivatives.stage_model import HessianRule, RowKind, StageModel, row_kinds
from warpmpc.symbolic.stage_elimination import build_stage_elimination
from warpmpc.systems import humanoid
from warpmpc.systems.humanoid import gait, model, tables
from warpmpc.systems.humanoid.problem import WEIGHTS

pytest.importorskip("mujoco")

AT = np.arange(24)
Q, DQ, DDQ = 0.1 * np.sin(AT + 1) + 0.6 * (AT == 2), 0.5 * np.cos(AT), np.sin(2 * AT)
NEEDED = """
    1.431099 -1.305913 -.354058 14.161459 7.016117 228.711833 -.081333 .335443 -.416807 -.139164
    -.064534 -.176291 .739723 .155697 .1473 -.056802 -.414924 .045713 -.020169 .018562 -.02682
    -.126548 -.000725 .014396
"""
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
PRINTED = 6e-7  # six decimals are known
# Entries that are zero everywhere: positions of the base in distances, and the like.
VANISHING = {0: 23, 1: 153, 2: 151, 26: 151, 27: 130}
# Entries of the Jacobian that rounding makes: sums of constants that cancel up to the last bit.
ROUNDING = {0: 11, 1: 11, 2: 9, 26: 9, 27: 0}
# Step, theta before and after, cost before and after, of the loop of the benchmark from home.
CHECK_RUN = {
    0: ("60.03", "4.304", "145.8", "3.047"),
    1: ("20.24", "2.055", "18.74", "4.650"),
    2: ("17.09", ".2654", "16.33", "4.557"),
    3: (".3692", ".05491", "4.399", "5.726"),
    19: ("1.326", ".01838", "11.69", "12.94"),
}
PRIMAL, DUAL = ".08008", "2.86e-4"  # means over the loop
LAST_BASE = (-0.0051, -0.0397, 0.6115, -0.0121, 0.0012, -0.0048)


@pytest.fixture(scope="module")
def whole():
    return humanoid.build()


def numbers(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=float)


def function(*outputs):
    """A function of the test vector; outputs are functions of a motion and ddq."""
    q, dq, ddq = (ca.SX.sym(name, 24) for name in ("q", "dq", "ddq"))
    moving = model.Motion(q, dq)
    made = ca.Function("f", [q, dq, ddq], [output(moving, ddq) for output in outputs])
    return lambda *at: [np.array(value).squeeze() for value in made.call(list(at))]


class TestModel:
    def test_mass(self):
        assert abs(tables.MASS - 24.86855) < 1e-9
        assert model.robot().mass == pytest.approx(tables.MASS, rel=1e-12)

    def test_inverse_dynamics(self):
        (found,) = function(lambda m, ddq: m.needed(ddq, {}))(Q, DQ, DDQ)
        np.testing.assert_allclose(found, numbers(NEEDED), atol=PRINTED)

    def test_forces_act_by_the_transposed_jacobian(self):
        """The power of a contact force is that of its point."""
        force = np.array([3.0, -2.0, 50.0])
        pushed, alone, speed = function(
            lambda m, ddq: m.needed(ddq, {"Ltoe": ca.SX(force)}),
            lambda m, ddq: m.needed(ddq, {}),
            lambda m, _: m.velocity("Ltoe"),
        )(Q, DQ, DDQ)
        assert (alone - pushed) @ DQ == pytest.approx(force @ speed, rel=1e-10)

    def test_points(self):
        for name, wanted in POINTS.items():
            outputs = (lambda m, _, n=name: m.q[:3] + m.rotation @ m.at_base(n),)
            outputs += (lambda m, _, n=name: m.height(n),)
            place, height = function(*outputs)(Q, DQ, DDQ)
            np.testing.assert_allclose(place, wanted, atol=PRINTED)
            assert height == pytest.approx(wanted[2], abs=PRINTED)

    def test_velocities(self):
        for name, wanted in VELOCITIES.items():
            (speed,) = function(lambda m, _, n=name: m.velocity(n))(Q, DQ, DDQ)
            np.testing.assert_allclose(speed, wanted, atol=PRINTED)

    def test_small_motions(self):
        """The integrator moves a point as its velocity says, to first order."""
        step = 1e-6
        q = ca.SX.sym("q", 24)
        moving = model.Motion(q, ca.SX(DQ))
        moved = np.array(ca.Function("f", [q], [moving.moved(step * ca.SX(DQ))])(Q)).squeeze()
        place = (lambda m, _: m.q[:3] + m.rotation @ m.at_base("Lhand"),)
        (here,), (there,) = (function(*place)(at, DQ, DDQ) for at in (Q, moved))
        (speed,) = function(lambda m, _: m.velocity("Lhand"))(Q, DQ, DDQ)
        np.testing.assert_allclose((there - here) / step, speed, atol=1e-5)

    def test_states_of_the_robot(self):
        """There and back, and the same speed of a hand by the functions of `robots`."""
        x = np.stack([np.concatenate([Q, DQ]), np.concatenate([Q[::-1] / 2, DDQ])])
        there = model.to_robot(np, x)
        np.testing.assert_allclose(model.from_robot(np, there), x, atol=1e-12)
        q, v = model.robot().symbols()
        linear, _ = model.robot().velocity("Lhand", q, v)
        found = np.array(ca.Function("f", [q, v], [linear])(there[0, :24], there[0, 24:]))
        (speed,) = function(lambda m, _: m.velocity("Lhand"))(Q, DQ, DDQ)
        np.testing.assert_allclose(found.squeeze(), speed, atol=1e-12)

    def test_motors_and_joints_of_the_file(self):
        robot = model.robot()
        np.testing.assert_allclose(robot.torque_limits()[1][6:], tables.TORQUES)
        joints = robot.joints[1:]
        np.testing.assert_allclose([joint.lower for joint in joints], tables.LOWER)
        np.testing.assert_allclose([joint.upper for joint in joints], tables.UPPER)


class TestGait:
    def test_grid_of_the_example(self):
        found = gait.walking(np, 0.0)
        wanted = [0.01, *[0.03] * 11, 0.01, 0.01, *[0.03] * 11, 0.01, 0.01, 0.03]
        np.testing.assert_allclose(found.dt, wanted, atol=1e-12)

    def test_feet(self):
        found = gait.walking(np, 0.0)
        np.testing.assert_array_equal(found.gamma[0], np.ones(4))
        np.testing.assert_array_equal(found.gamma[5], [0, 1, 0, 1])  # the right foot in the air
        np.testing.assert_array_equal(found.gamma[16], [1, 0, 1, 0])
        assert np.all((found.height > 0) <= (found.gamma == 0))
        assert found.height.max() == pytest.approx(0.05, rel=0.02)

    def test_nodes_lie_on_switches(self):
        """From any time, some node is within a rounding error of each switch that is not near."""
        times = np.random.default_rng(0).uniform(0, 3, 200)
        dt = gait.walking(np, times).dt
        assert dt.min() > 0.007
        assert dt.max() <= 0.03 + 1e-12
        nodes = times[:, None] + np.cumsum(dt, axis=1)[:, :-1]
        for time, own in zip(times, nodes, strict=True):
            ahead = np.array([0.01, 0.35, 0.36, 0.70, 1.05, 1.06]) + 0.7 * np.floor(time / 0.7)
            inside = ahead[(ahead > time + 0.04) & (ahead < own[-1])]
            assert np.abs(own[:, None] - inside).min(axis=0).max() < 0.0071

    def test_references_by_a_loop(self):
        """One node after the other, as the specification says."""
        command, time = np.array([0.5, -0.1, 0.4, 0.63]), 0.13
        motion = gait.walking(np, time)
        x = np.concatenate([Q, DQ])
        found = gait.references(np, x, motion, command)
        (forward, sideways, turn, height), yaw, xy = command, Q[5], Q[:2].copy()
        for k in range(28):
            step = 0.002 if k == 0 else motion.dt[k - 1]
            yaw += turn * step
            turned = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
            xy = xy + turned @ [forward, sideways] * step
            wanted = [*xy, height, 0, 0, yaw, *tables.HOME[6:]]
            np.testing.assert_allclose(found["q_ref"][k], wanted, atol=1e-12)
            wanted = [0, 0, turn, forward, sideways, *[0] * 19]
            np.testing.assert_allclose(found["dq_ref"][k], wanted, atol=1e-12)
        forces = found["force_ref"].reshape(27, 4, 3)
        np.testing.assert_allclose(forces[..., 2], 121.980125 * motion.gamma[:-1], atol=1e-5)
        assert not forces[..., :2].any()

    def test_commands_are_clipped(self):
        x, motion = np.concatenate([Q, DQ]), gait.standing(np, 0.0)
        found = gait.references(np, x, motion, np.array([9.0, -9.0, 9.0, 0.1]))
        wanted = [1, 1, -0.2, 0.6]
        seen = [*found["dq_ref"][3, [2, 3, 4]], found["q_ref"][3, 2]]
        np.testing.assert_allclose(seen, wanted, atol=1e-12)

    @pytest.mark.parametrize("make", [gait.walking, gait.standing])
    def test_on_the_device(self, make):
        """In float32, for a batch of times on the grid of the control loop."""
        times = 0.01 * np.arange(75)
        x = np.tile(np.concatenate([Q, DQ]), (75, 1))
        command = [0.3, 0.1, -0.2, 0.62]
        wanted = gait.references(np, x, make(np, times), command)
        single = jnp.asarray(times, dtype="float32"), jnp.asarray(x, dtype="float32")
        program = jax.jit(lambda t, x: gait.references(jnp, x, make(jnp, t), command))
        found = program(*single)
        for name, value in wanted.items():
            assert found[name].dtype == "float32"
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=3e-5)


class TestRecipe:
    def test_one_step_of_the_benchmark(self):
        """The predicted node and the torques follow; no physics."""
        x, u = jnp.zeros((3, 66)), jnp.arange(3 * 84.0).reshape(3, 84)
        after = np.asarray(humanoid.simulate(x, u))
        np.testing.assert_array_equal(after[:, :48], u[:, 36:])
        np.testing.assert_array_equal(after[:, 48:], u[:, :18])

    def test_references_of_a_step(self):
        """With one number for all instances, or one for each."""
        x = jnp.asarray(humanoid.sample(3), dtype="float32")
        each = humanoid.references(jnp.array([0, 7, 19]), x)
        for b, t in enumerate((0, 7, 19)):
            one = humanoid.references(t, x)
            for name, value in one.items():
                np.testing.assert_allclose(each[name][b], value[b], atol=2e-6)

    def test_system(self):
        system = systems.make("humanoid", horizon=3)
        assert (system.n_x, system.n_u, system.steps) == (66, 84, 20)
        assert system.state_names[65] == "x[65]"
        z, params = system.nominal
        assert z.shape == (system.problem.n_vars,)
        assert np.isfinite(params).all()
        solver = system.solver()
        assert solver.qp.structure._nominal is not None
        assert system.params_at(0, jnp.zeros((1, 66)))["gamma"].shape == (1, 4, 4)

    def test_falls_are_no_success(self):
        x = np.tile(humanoid.sample(3)[:, None], (1, 5, 1))
        x[1, 3, 2], x[2, 2, 6] = 0.45, 0.7  # fallen; a hip beyond its limit
        found = humanoid.metrics(x, np.zeros((3, 4, 84)))
        assert found["success"].tolist() == [True, False, True]
        assert found["satisfied"].tolist() == [True, True, False]
        assert found["violation"][2] == pytest.approx(0.7 - np.radians(30) - 0.01)

    def test_wrong_plant(self):
        with pytest.raises(ProblemError, match=r"plant must be one of .*, got 'moon'"):
            systems.make("humanoid", plant="moon")


class TestProblem:
    def test_dimensions(self, whole):
        assert (whole.n_vars, whole.n_cons) == (1704, 3234)
        assert [len(group.ks) for group in whole.groups] == [1, 1, 24, 1, 1]
        kinds = row_kinds(whole, 1e-4)
        assert sum(kind is RowKind.EQUALITY for kind in kinds) == 1542
        assert whole.u_rows.shape == (1, humanoid.N_INPUT)

    def test_parameters(self, whole):
        """As published, but for weights: they are stored once, not at each node."""
        at_nodes = [whole.param_rows(k).size - 48 - 18 for k in range(28)]
        weights = dict.fromkeys(range(28), 24 + 24)
        for k in range(27):
            weights[k] += 18 + 12
        weights[0] += 18
        shared = sum(value.size for value in WEIGHTS.values())
        published = [at_nodes[k] - shared + weights[k] for k in range(28)]
        published[0] += 48 + 18
        assert published == [231, *[147] * 26, 105]
        assert sum(published) == 4158

    def test_published_pattern(self, whole):
        """Ours is the published one without entries that are zero everywhere."""
        total, stored, own = 0, 0, []
        for k, stage in enumerate(whole.stages):
            wanted = published.rows(k, 27)
            total += sum(map(len, wanted))
            if k not in VANISHING:
                stored += len(own)  # equal to the stage before
                continue
            jacobian = StageModel.build(whole, stage, HessianRule())
            names = published.columns(k, 27)
            own = [(r, names[c]) for r, c in zip(*jacobian.jacobian_positions, strict=True)]
            assert all(name in wanted[r] for r, name in own)
            vanishing = sum(map(len, wanted)) - len(own)
            assert vanishing == VANISHING[k] - ROUNDING[k]
            stored += len(own)
        assert (total, stored) == (32450, 28616)
        # The full Hessian: diagonals, and one coupling per joint and interval.
        hessian = 1704 + 2 * 18 * 27
        assert hessian + 2 * total + 3234 == 70810
        assert hessian + 2 * stored + 3234 == 63142

    def test_instructions(self, whole):
        """The published stage function has 113885, with cost and derivatives."""
        for group in whole.groups[1:3]:  # the longest program, and that of most nodes
            at = StageModel.build(whole, group.stage, HessianRule())
            program = at.linearize("f", ["P", "q", "A", "lower", "upper"])
            assert program.n_instructions() < 42_000
            assert at.evaluate("f").n_instructions() < 6_700

    def test_rows_of_a_stage(self, whole):
        """Node 1 at the test vector, with forces and torques, by numbers of the specification."""
        stage, dt = whole.stages[1], 0.03
        force, torque = 10 * np.sin(np.arange(12)), np.cos(np.arange(18))
        z = np.concatenate([Q, DQ, torque, force])
        after = np.concatenate([Q, DQ + dt * DDQ, np.zeros(12)])
        gamma, lift = np.array([1.0, 0, 1, 1]), np.array([0, 0.02, 0, 0])
        p = np.concatenate([gamma, lift, np.zeros(60), [dt]])
        shared = [np.zeros(66), np.zeros(96)]
        given = [stage.z, stage.z_next, whole.x0, whole.shared, stage.p]
        rows = ca.Function("rows", given, [stage.g, stage.lower, stage.upper])
        g, lower, upper = (np.array(v).ravel() for v in rows(z, after, *shared, p))
        assert g.size == 168
        pushed = function(lambda m, ddq: m.needed(ddq, contacts(force)))(Q, DQ, DDQ)[0]
        rates = DQ[6:]
        pushed[6:] += tables.DAMPING @ rates + tables.DRY_FRICTION @ np.tanh(2 * rates) - torque
        np.testing.assert_allclose(g[:24], pushed, atol=1e-9)
        assert not tables.DAMPING[10:].any()
        assert not tables.DRY_FRICTION[10:].any()
        np.testing.assert_allclose(g[30:48], -dt * DQ[6:] - dt**2 / 2 * DDQ[6:], atol=1e-12)
        np.testing.assert_array_equal(g[48:84], np.concatenate([Q[6:], DQ[6:]]))
        np.testing.assert_allclose(g[84:103], numbers(DISTANCES), atol=PRINTED)
        assert g[103] == pytest.approx(Q[11] - Q[6])
        heights = [POINTS[name][2] for name in tables.CONTACTS] - lift
        np.testing.assert_allclose(g[104:108], heights, atol=PRINTED)
        slips = [VELOCITIES["Rheel"], VELOCITIES["Ltoe"]]
        np.testing.assert_allclose(
            g[[108, 111, 112, 115]], np.array(slips).T[:2].ravel(), atol=PRINTED
        )
        cones = [np.sqrt(f[0] ** 2 + f[1] ** 2 + 1) - 0.7 * f[2] for f in force.reshape(4, 3)]
        np.testing.assert_allclose(g[116:120], 0.005 * gamma * cones, atol=1e-12)
        absent = ((1 - gamma)[:, None] * force.reshape(4, 3)).T.ravel()
        np.testing.assert_allclose(g[120:132], absent, atol=1e-12)
        np.testing.assert_array_equal(g[132:], np.concatenate([torque, torque]))
        np.testing.assert_allclose(upper[150:], tables.VOLTAGE - tables.SLOPE @ rates)
        np.testing.assert_allclose(lower[150:], -tables.VOLTAGE - tables.SLOPE @ rates)

    def test_guess(self, whole):
        """At home; forces of the older gait, where a phase of 0.7 up to rounding lifts a foot."""
        z, _ = humanoid.nominal(whole)
        np.testing.assert_array_equal(z[whole.names["q"]], np.tile(tables.HOME, (28, 1)))
        assert not z[whole.names["dq"]].any()
        carries = z[whole.names["force"]][:, 2::3] > 0
        np.testing.assert_array_equal(carries[14], [0, 1, 0, 1])
        np.testing.assert_array_equal(carries[24], [1, 0, 1, 0])
        np.testing.assert_array_equal(carries[4], [1, 1, 1, 1])
        assert carries.sum(axis=0).tolist() == [21, 19, 21, 19]

    def test_guess_keeps_the_measured_state(self, whole):
        params = whole.defaults.copy()
        params[:66] = humanoid.sample(1)[0]
        np.testing.assert_array_equal(initial_guess(whole, params)[:24], params[:24])

    def test_too_short(self):
        with pytest.raises(ProblemError, match="at least 3 intervals, got 2"):
            humanoid.build(2)

    def test_samples_stand_near_the_origin(self):
        x = humanoid.sample(50)
        assert x.shape == (50, 66)
        np.testing.assert_array_equal(x, humanoid.sample(50))
        moved = np.abs(x[:, :24] - tables.HOME)
        assert moved[:, [0, 1, 5]].max(axis=0) == pytest.approx([0.05, 0.05, 0.08], rel=0.2)
        assert not np.delete(moved, [0, 1, 5], axis=1).any()

    def test_fill(self, whole):
        """As shipped, by a trial at the nominal point; K is never assembled in full."""
        solver = MPCSolver(whole, humanoid.settings(), nominal=humanoid.nominal(whole))
        structure = solver.qp.structure
        stages = np.concatenate([whole.var_stage, whole.con_stage])
        hints = structure.light_variables, structure.representative
        program = build_stage_elimination(structure.kkt, stages, *hints)
        assert program.n_L <= 100_000
        assert structure.representative.error(program.elimination) < 2e-5


def contacts(force: np.ndarray) -> dict[str, ca.SX]:
    return dict(zip(tables.CONTACTS, ca.vertsplit(ca.SX(force), 3), strict=True))


def agrees(value: float, printed: str) -> bool:
    """Whether a number rounds to what is printed."""
    mantissa, _, exponent = printed.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(value - float(printed)) <= 0.51 * unit


def measured(problem, z, params):
    """Scaled violation and cost by CasADi."""
    found = evaluate(problem, z, params)
    below, above = found.lower - found.g, found.g - found.upper
    beyond = np.maximum(below, 0), np.maximum(above, 0)
    return 0.05 * np.sqrt(sum(np.sum(part**2) for part in beyond)), found.cost.sum()


def from_home(whole, dtype):
    """The loop of the benchmark from home: vectors of parameters, solutions, and the last state."""
    solver = MPCSolver(
        whole, humanoid.settings(), dtype=dtype, engine="staged", nominal=humanoid.nominal(whole)
    )
    x, warm_start, rows = np.concatenate([tables.HOME, np.zeros(42)])[None], None, []
    x = jnp.asarray(x, dtype=dtype)
    for t in range(20):
        params = humanoid.references(t, x)
        vector = np.asarray(solver.pack(x, params), dtype=float)[0]
        z = solver.z_guess(x, params) if warm_start is None else warm_start.z
        z = np.asarray(z, dtype=float)[0]
        found = solver.solve(x, params, warm_start)
        rows.append((vector, z, found))
        warm_start, x = found.warm_start, humanoid.simulate(x, found.u[:, 0])
    return rows, np.asarray(x)[0]


@pytest.fixture(scope="module")
def check_run(whole):
    return from_home(whole, "float64")


@pytest.mark.slow
class TestCheckRun:
    def test_printed_digits(self, whole, check_run):
        rows, x = check_run
        for t, printed in CHECK_RUN.items():
            vector, z, found = rows[t]
            theta, cost = measured(whole, z, vector)
            theta_after, cost_after = measured(whole, np.asarray(found.z)[0], vector)
            for value, wanted in zip((theta, theta_after, cost, cost_after), printed, strict=True):
                assert agrees(value, wanted), (t, value, wanted)
            assert float(found.theta[0]) == pytest.approx(theta_after, rel=1e-9)
            assert float(found.cost[0]) == pytest.approx(cost_after, rel=1e-9)
        assert all(float(found.step_length[0]) == 1 for _, _, found in rows)
        assert agrees(np.mean([found.primal_residual for *_, found in rows]), PRIMAL)
        assert agrees(np.mean([found.dual_residual for *_, found in rows]), DUAL)
        np.testing.assert_allclose(x[:6], LAST_BASE, atol=6e-5)

    def test_float32(self, whole, check_run):
        """Five digits after 20 steps, of each kind of variable, and of the costs on the way."""
        (double, _), (single, _) = check_run, from_home(whole, "float32")
        ends = [np.asarray(rows[-1][-1].z, dtype=float)[0] for rows in (single, double)]
        for at in whole.names.values():
            found, wanted = (z[at] for z in ends)
            assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
        costs = [[float(found.cost[0]) for *_, found in rows] for rows in (single, double)]
        np.testing.assert_allclose(*costs, rtol=2e-5)
