"""OCP lowers to the stages one would write by hand: nodes, rows, names, defaults, guesses."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

from warpmpc.problem.evaluation import evaluate, initial_guess
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.problem.stage import Soft

N = 5
INTEGRATED = [("euler", 1), ("rk4", 2), ("implicit_midpoint", 1)]


def double_integrator(**given):
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = OCP(x, u, **{"horizon": N, "dt": 0.5, **given})
    ocp.set_dynamics(x_next=ca.vertcat(x[0] + 0.5 * x[1], x[1] + 0.5 * u))
    return ocp


def costs(ocp, seed=0):
    """Cost of each node at random z, and z by node."""
    problem = ocp.problem()
    rng = np.random.default_rng(seed)
    z, params = rng.normal(size=problem.n_vars), rng.normal(size=problem.n_params)
    return evaluate(problem, z, params).cost, z, params


class TestNodes:
    @pytest.mark.parametrize(
        ("at", "nodes"),
        [
            ("path", range(N)),
            ("terminal", [N]),
            ("initial", [0]),
            ("all", range(N + 1)),
            (3, [3]),
            (np.int64(0), [0]),
            (range(1, 4), [1, 2, 3]),
            ([4, 0], [0, 4]),
            (np.array([2, 3]), [2, 3]),
            (np.array(2), [2]),
            ({2}, [2]),
        ],
    )
    def test_where_terms_hold(self, at, nodes):
        ocp = double_integrator()
        ocp.add_cost(1.0, at=at)
        ocp.add_residual(ocp.x, weight=0.0, at=at)
        ocp.subject_to(-1, ocp.x[0], 1, at=at, name="box")
        problem = ocp.problem()
        found = evaluate(problem, np.zeros(problem.n_vars), np.zeros(problem.n_params)).cost
        np.testing.assert_array_equal(found, np.isin(np.arange(N + 1), nodes))
        has = [stage.residual.numel() == 2 for stage in problem.stages]
        np.testing.assert_array_equal(np.flatnonzero(has), sorted(nodes))
        has = ["box[0]" in stage.row_names for stage in problem.stages]
        np.testing.assert_array_equal(np.flatnonzero(has), sorted(nodes))

    def test_default_is_the_path(self):
        ocp = double_integrator()
        ocp.add_cost(1.0)
        np.testing.assert_array_equal(costs(ocp)[0], [1] * N + [0])

    def test_only_stages_with_other_rows_differ(self):
        ocp = double_integrator(horizon=10, terminal_input=True)
        ocp.subject_to(-1, ocp.x[0], 1, at=range(3, 6))
        groups = [group.ks for group in ocp.problem().groups]
        assert groups == [(0,), (1, 2, 6, 7, 8, 9), (3, 4, 5), (10,)]

    def test_a_smaller_last_node_sets_the_one_before_it_apart(self):
        groups = [group.ks for group in double_integrator().problem().groups]
        assert groups == [(0,), (1, 2, 3), (4,), (5,)]

    def test_free_initial_state(self):
        ocp = double_integrator(fix_initial=False, terminal_input=True)
        problem = ocp.problem()
        assert [group.ks for group in problem.groups] == [(0, 1, 2, 3, 4), (5,)]
        assert problem.n_cons == 2 * N + 1
        assert problem.n_x0 == 2

    def test_horizon_of_one(self):
        problem = double_integrator(horizon=1).problem()
        assert (problem.n_vars, problem.n_cons) == (5, 4)


class TestRows:
    def test_order_and_values(self):
        ocp = double_integrator(terminal_input=True)
        ocp.subject_to(-1, ocp.u, None, name="force")
        ocp.subject_to([0, 1], ocp.x * 2, [3, 4], at="all")
        ocp.subject_to(0, ocp.x[1] - ocp.x0[1], 0, at="terminal", name="back")
        problem = ocp.problem()
        begin, end = problem.stages[0].row_names, problem.stages[N].row_names
        assert begin == (
            *("initial[x_0]", "initial[x_1]", "dynamics[x_0]", "dynamics[x_1]"),
            *("force[0]", "constraint_1[0]", "constraint_1[1]"),
        )
        assert problem.stages[1].row_names == begin[2:]
        assert end == ("terminal_input[u]", "constraint_1[0]", "constraint_1[1]", "back[0]")
        z = np.arange(3.0 * (N + 1))
        found = evaluate(problem, z, np.array([10.0, 20.0]))
        first, last = slice(*problem.g_offset[:2]), slice(*problem.g_offset[-2:])
        np.testing.assert_array_equal(found.g[first], [-10, -19, 2.5, 2, 2, 0, 2])
        np.testing.assert_array_equal(found.lower[first], [0, 0, 0, 0, -1, 0, 1])
        np.testing.assert_array_equal(found.upper[first], [0, 0, 0, 0, np.inf, 3, 4])
        np.testing.assert_array_equal(found.g[last], [17, 30, 32, -4])

    def test_soft_rows_count_from_the_beginning_of_the_node(self):
        ocp = double_integrator()
        ocp.subject_to(-1, ocp.u, 1)
        ocp.subject_to(-1, ocp.x, 1, at="all", soft={1: Soft(2, (3, 4))})
        ocp.subject_to(-1, ocp.x, 1, at=[0], soft=5)
        ocp.subject_to(None, ocp.x, 1, at=[0], soft=Soft(quadratic=6))
        problem = ocp.problem()
        assert problem.stages[0].soft_rows.tolist() == [6, 7, 8, 9, 10]
        assert problem.stages[1].soft_rows.tolist() == [4]
        assert problem.stages[N].soft_rows.tolist() == [1]
        penalties = np.array(ca.DM(problem.stages[0].penalties))
        expected = [[2, 2, 3, 4], [5, 5, 0, 0], [5, 5, 0, 0], [0, 0, 6, 6], [0, 0, 6, 6]]
        np.testing.assert_array_equal(penalties, expected)

    def test_penalties_may_be_parameters(self):
        weight = ca.SX.sym("weight")
        ocp = double_integrator(p=weight)
        ocp.subject_to(-1, ocp.x[0], 1, soft=weight, at="terminal")
        problem = ocp.problem()
        z = np.zeros(problem.n_vars)
        z[problem.names["x"][-1, 0]] = 3
        assert evaluate(problem, z, [0, 0, 7]).penalty.tolist() == [0] * N + [14]


class TestCost:
    def test_sum_of_terms(self):
        q, s = ca.SX.sym("q", 2), ca.SX.sym("s")
        ocp = double_integrator(p=q, p_stage=s)
        ocp.add_cost(s * ocp.u**2)
        ocp.add_cost(ocp.x[0] * q[1])
        ocp.add_residual(ocp.x, weight=q)
        ocp.add_residual([ocp.x[0] * ocp.x[1], 3], at="all")
        found, z, params = costs(ocp)
        q, s = params[2:4], params[4:]
        for k in range(N + 1):
            x = z[3 * k : 3 * k + 2]
            expected = 0.5 * ((x[0] * x[1]) ** 2 + 9)
            if k < N:
                expected += s[k] * z[3 * k + 2] ** 2 + x[0] * q[1] + 0.5 * q @ x**2
            np.testing.assert_allclose(found[k], expected, rtol=1e-13)

    def test_no_cost_is_allowed(self):
        assert costs(double_integrator())[0].tolist() == [0] * (N + 1)


class TestDynamics:
    @pytest.mark.parametrize(("integrator", "substeps"), INTEGRATED)
    @pytest.mark.parametrize("form", ["number", "array", "parameter"])
    def test_linear_motion(self, integrator, substeps, form):
        """On a decaying state rows vanish where x_next is what the integrator's formula says."""
        x, length = ca.SX.sym("x"), ca.SX.sym("length")
        dt = {"number": 0.2, "array": [0.2, 0.4], "parameter": length / 2}[form]
        ocp = OCP(x, None, length if form == "parameter" else None, horizon=2, dt=dt)
        ocp.set_dynamics(-x, integrator, substeps)
        problem = ocp.problem()
        steps = {"number": [0.2, 0.2], "array": [0.2, 0.4], "parameter": [0.2, 0.2]}[form]
        growth = {
            "euler": lambda h: 1 - h,
            "rk4": lambda h: 1 - h + h**2 / 2 - h**3 / 6 + h**4 / 24,
            "implicit_midpoint": lambda h: (1 - h / 2) / (1 + h / 2),
        }[integrator]
        factors = [growth(h / substeps) ** substeps for h in steps]
        z = 3 * np.cumprod([1, *factors])
        params = np.where(np.isnan(problem.defaults), 0.4, problem.defaults)
        params[0] = 3
        np.testing.assert_allclose(evaluate(problem, z, params).g, 0, atol=1e-15)

    def test_variables_of_the_integrator(self):
        x, u = {"pos": ca.SX.sym("a"), "vel": ca.SX.sym("b", 2)}, ca.SX.sym("u")
        ocp = OCP(x, {"force": u}, horizon=3, dt=0.1)
        ocp.set_dynamics([u, ocp.x[0], ca.sin(ocp.x[1])], "gauss_legendre")
        ocp.set_guess(x=[1, 2, 3], u=4)
        problem = ocp.problem()
        assert problem.stages[0].n_z == 3 + 1 + 6
        assert problem.stages[3].n_z == 3
        assert problem.names["xdot_1"].tolist() == [[4, 5, 6], [14, 15, 16], [24, 25, 26]]
        assert problem.names["xdot_2"].tolist() == [[7, 8, 9], [17, 18, 19], [27, 28, 29]]
        assert problem.names["vel"].tolist() == [[1, 2], [11, 12], [21, 22], [31, 32]]
        assert problem.names["force"].tolist() == [[3], [13], [23]]
        np.testing.assert_array_equal(problem.u_rows, problem.names["force"])
        np.testing.assert_array_equal(problem.x_rows[:, :1], problem.names["pos"])
        labels = ["pos", "vel_0", "vel_1"]
        rows = [f"{n}[{x}]" for n in ("initial", "xdot_1", "xdot_2", "dynamics") for x in labels]
        assert list(problem.stages[0].row_names) == rows
        guess = initial_guess(problem, np.zeros(problem.n_params))
        motion = [4, 1, np.sin(2)]
        np.testing.assert_allclose(guess[:10], [1, 2, 3, 4, *motion, *motion])
        np.testing.assert_allclose(guess[-3:], [1, 2, 3])

    def test_gauss_legendre_rows_vanish_on_the_solution(self):
        """xdot = u: both derivatives are u, the state is linear."""
        ocp = OCP(ca.SX.sym("x"), ca.SX.sym("u"), horizon=2, dt=[0.1, 0.3])
        ocp.set_dynamics(ocp.u, "gauss_legendre", substeps=2)
        problem = ocp.problem()
        z = [1, 2, 2, 2, 2, 2, 1.2, 3, 3, 3, 3, 3, 2.1]
        found = evaluate(problem, z, [1, 0.1, 0.3, 0.3])
        np.testing.assert_allclose(found.g, 0, atol=1e-15)

    def test_states_between_substeps_are_guessed_like_the_state(self):
        ocp = OCP(ca.SX.sym("x", 2), ca.SX.sym("u"), horizon=4, dt=0.1)
        ocp.set_dynamics(ocp.x * ocp.u, "implicit_midpoint", substeps=2)
        ocp.set_guess(x=(1 - ocp.tau) * ocp.x0)
        problem = ocp.problem()
        assert problem.names["substep_1"].shape == (4, 2)
        guess = initial_guess(problem, [4, 8])
        np.testing.assert_allclose(guess[:5], [4, 8, 0, 4, 8])
        np.testing.assert_allclose(guess[5:10], [3, 6, 0, 3, 6])

    def test_time_as_a_variable(self):
        """dt may be an expression in a state: free final time."""
        x, u, time = ca.SX.sym("x"), ca.SX.sym("u"), ca.SX.sym("time")
        ocp = OCP({"x": x, "time": time}, u, horizon=N, dt=time / N)
        ocp.set_dynamics([u, 0], "euler")
        problem = ocp.problem()
        z = np.array([0, 10, 3.0, 6, 10])
        row = evaluate(problem, np.concatenate([z, np.zeros(problem.n_vars - 5)]), [0, 10]).g[2]
        assert row == pytest.approx(0, abs=1e-15)


class TestNames:
    def test_plain_columns(self):
        x = ca.vertcat(ca.SX.sym("angle"), ca.SX.sym("rate"))
        q = ca.SX.sym("q", 2)
        ocp = OCP(x, ca.SX.sym("u"), q, p_stage=ca.SX.sym("s"), horizon=2, dt=1)
        ocp.set_dynamics(x)
        problem = ocp.problem()
        assert {name: rows.tolist() for name, rows in problem.names.items()} == {
            "x": [[0, 1], [3, 4], [6, 7]],
            "u": [[2], [5]],
            "angle": [[0], [3], [6]],
            "rate": [[1], [4], [7]],
        }
        assert {name: rows.tolist() for name, rows in problem.param_names.items()} == {
            "p": [2, 3],
            "p_stage": [[4], [5], [6]],
            "q_0": [2],
            "q_1": [3],
            "s": [[4], [5], [6]],
        }
        assert problem.stages[0].row_names[:2] == ("initial[angle]", "initial[rate]")

    def test_scalars_that_share_a_name_have_none(self):
        """The whole column keeps its name; labels of rows are numbered."""
        x = ca.vertcat(ca.SX.sym("x"), ca.SX.sym("y"), ca.SX.sym("y"))
        ocp = OCP(x, ca.vertcat(ca.SX.sym("v"), ca.SX.sym("w")), horizon=2, dt=1)
        ocp.set_dynamics(x)
        problem = ocp.problem()
        assert sorted(problem.names) == ["u", "v", "w", "x"]
        assert problem.names["x"].shape == (3, 3)
        assert problem.stages[0].row_names[:3] == ("initial[x_0]", "initial[x_1]", "initial[x_2]")

    def test_a_name_in_two_columns_is_not_a_scalar(self):
        ocp = OCP(ca.SX.sym("a", 2), ca.SX.sym("a", 2), horizon=2, dt=1)
        ocp.set_dynamics(ocp.x)
        assert sorted(ocp.problem().names) == ["u", "x"]

    def test_dicts(self):
        parts = {"x": ca.SX.sym("pos"), "u": ca.SX.sym("speed", 2)}
        ocp = OCP(parts, {"left": ca.SX.sym("l"), "right": ca.SX.sym("r")}, horizon=2, dt=1)
        ocp.set_dynamics(ocp.x)
        problem = ocp.problem()
        assert problem.names["x"].tolist() == [[0], [5], [10]]
        assert problem.names["u"].tolist() == [[1, 2], [6, 7], [11, 12]]
        assert problem.names["right"].tolist() == [[4], [9]]
        assert problem.x_rows.shape == (3, 3)
        assert problem.u_rows.tolist() == [[3, 4], [8, 9]]

    def test_labels_that_collide_are_numbered(self):
        ocp = OCP({"a": ca.SX.sym("a", 2), "a_0": ca.SX.sym("b")}, None, horizon=1, dt=1)
        ocp.set_dynamics(ocp.x)
        names = ocp.problem().stages[0].row_names
        assert names[:3] == ("initial[x_0]", "initial[x_1]", "initial[x_2]")

    def test_matrix_of_parameters(self):
        A = ca.SX.sym("A", 2, 2)
        ocp = OCP(ca.SX.sym("x", 2), None, {"A": ca.vec(A)}, horizon=1, dt=1)
        ocp.set_dynamics(x_next=A @ ocp.x)
        found = evaluate(ocp.problem(), [1, 2, 0, 0], [1, 2, 3, 4, 5, 6])
        np.testing.assert_array_equal(found.g[2:], [-(3 + 10), -(4 + 12)])


class TestDefaults:
    def test_values(self):
        s = {"s": ca.SX.sym("s"), "r": ca.SX.sym("r", 2)}
        ocp = double_integrator(p=ca.SX.sym("q", 2), p_stage=s, dt=[1] * N)
        ocp.set_default("p", [1, 2])
        ocp.set_default("q_1", 3)
        ocp.set_default("s", np.arange(6))
        ocp.set_default("r", [7, 8])
        problem = ocp.problem()
        rows = problem.param_names
        assert np.isnan(problem.defaults[:2]).all()
        assert problem.defaults[rows["p"]].tolist() == [1, 3]
        assert problem.defaults[rows["s"]].ravel().tolist() == [0, 1, 2, 3, 4, 5]
        assert problem.defaults[rows["r"]].tolist() == [[7, 8]] * 6
        assert problem.defaults[rows["dt"]].ravel().tolist() == [1] * 6

    def test_a_problem_does_not_change_afterwards(self):
        ocp = double_integrator(p=ca.SX.sym("q"))
        ocp.set_default("q", 1)
        problem = ocp.problem()
        ocp.set_default("q", 2)
        ocp.add_cost(1.0)
        assert problem.defaults[2] == 1
        assert ocp.problem().hash != problem.hash


class TestGuess:
    def test_initial_state_is_held(self):
        problem = double_integrator(terminal_input=True).problem()
        guess = initial_guess(problem, [3, 4]).reshape(N + 1, 3)
        np.testing.assert_array_equal(guess, [[3, 4, 0]] * (N + 1))

    def test_expressions(self):
        ocp = double_integrator(p=ca.SX.sym("goal", 2), terminal_input=True)
        ocp.set_guess(x=(1 - ocp.tau) * ocp.x0 + ocp.tau * ocp.p, u=2)
        guess = initial_guess(ocp.problem(), [0, 5, 10, 0]).reshape(N + 1, 3)
        np.testing.assert_allclose(guess[:, 0], np.linspace(0, 10, N + 1))
        np.testing.assert_allclose(guess[:, 1], np.linspace(5, 0, N + 1))
        np.testing.assert_array_equal(guess[:, 2], [2] * N + [0])


def test_equal_problems_have_equal_hashes():
    def build(bound):
        ocp = double_integrator()
        ocp.subject_to(-bound, ocp.u, bound)
        return ocp.problem()

    assert build(1).hash == build(1).hash != build(2).hash
