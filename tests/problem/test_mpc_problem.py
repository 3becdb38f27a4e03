"""Stages over a horizon: groups, offsets, names, defaults, hash; evaluation against NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import casadi as ca
import numpy as np
import pytest

from warpmpc.problem.evaluation import evaluate, initial_guess
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.stage import Soft, Stage


def oscillator(gain=1.0, n_next=3, **given):
    """(position, speed, force); the cost couples neighbours."""
    z, after, q = ca.SX.sym("z", 3), ca.SX.sym("after", n_next), ca.SX.sym("q")
    step = ca.vertcat(z[0] + z[1], z[1] - gain * z[0] + z[2])
    arguments = {
        "cost": q * ca.sumsqr(z) + (after[0] - z[0]) ** 2,
        "g": ca.vertcat(after[:2] - step, z[2]),
        "lower": [0, 0, -1],
        "upper": [0, 0, 1],
        "n_x": 2,
    }
    return Stage(z, after, q, **{**arguments, **given})


def end(n=3, **given):
    z = ca.SX.sym("z", n)
    return Stage(z, **{"cost": ca.sumsqr(z), "n_x": 2, **given})


class TestGroups:
    def test_one_object_many_times(self):
        middle = oscillator()
        problem = MPCProblem([*[middle] * 99, end()])
        assert [group.ks for group in problem.groups] == [tuple(range(99)), (99,)]
        assert problem.groups[0].stage is middle
        assert problem.group_of.tolist() == [0] * 99 + [1]
        assert problem.horizon == 99

    def test_equal_stages_with_symbols_of_their_own(self):
        problem = MPCProblem([*(oscillator() for _ in range(5)), end()])
        assert [group.ks for group in problem.groups] == [(0, 1, 2, 3, 4), (5,)]

    def test_groups_stand_in_the_order_of_their_first_node(self):
        a, b = oscillator(), oscillator(gain=2)
        problem = MPCProblem([b, a, oscillator(gain=2), a, end()])
        assert [group.ks for group in problem.groups] == [(0, 2), (1, 3), (4,)]
        assert [group.stage for group in problem.groups][:2] == [b, a]

    @pytest.mark.parametrize(
        "changed",
        [
            {"gain": 1.0000000001},
            {"cost": 0},
            {"lower": [0, 0, -2]},
            {"upper": [0, 0, np.inf]},
            {"residual": 1.0},
            {"residual": 1.0, "weight": 2.0},
            {"soft": {2: Soft(1)}},
            {"soft": {2: Soft(2)}},
            {"n_x": 1},
            {"n_u": 0},
            {"n_x": None},
        ],
    )
    def test_what_tells_stages_apart(self, changed):
        problem = MPCProblem([oscillator(), oscillator(**changed), end()])
        assert len(problem.groups) == 3

    def test_soft_row_not_only_penalty_counts(self):
        a = oscillator(soft={2: Soft(1)})
        b = oscillator(soft={1: Soft(1)})
        assert len(MPCProblem([a, b, end()]).groups) == 3

    def test_role_of_a_symbol_counts(self):
        """The same expression in a parameter of the node and in one of the problem."""
        z, after, own, shared = (ca.SX.sym(name) for name in ("z", "after", "own", "shared"))
        stages = [Stage(z, after, own, cost=p * z) for p in (own, shared)]
        assert len(MPCProblem([*stages, Stage(z)], shared=shared).groups) == 3

    def test_guess_and_row_names_do_not_count(self):
        names = ["a", "b", "c"]
        stages = [oscillator(), oscillator(guess=[1, 2, 3]), oscillator(row_names=names), end()]
        problem = MPCProblem(stages)
        assert len(problem.groups) == 2
        assert problem.row_names == ("g[0]", "g[1]", "g[2]") * 2 + ("a", "b", "c")
        guess = initial_guess(problem, np.zeros(problem.n_params))
        np.testing.assert_array_equal(guess, [0, 0, 0, 1, 2, 3] + [0] * 6)


class TestLayout:
    def test_different_sizes(self):
        sizes, rows, params = [2, 5, 1, 3], [0, 3, 1, 2], [2, 0, 4, 1]
        zs = [ca.SX.sym(f"z{k}", n) for k, n in enumerate(sizes)]
        stages = [
            Stage(z, after, ca.SX.sym("p", n_p), g=z[0] * np.ones(n_g), lower=0 if n_g else None)
            for (z, after), n_g, n_p in zip(pairwise([*zs, ca.SX(0, 1)]), rows, params, strict=True)
        ]
        x0, shared = ca.SX.sym("x0", 2), ca.SX.sym("shared", 3)
        problem = MPCProblem(stages, x0=x0, shared=shared)
        assert (problem.n_vars, problem.n_cons, problem.n_params) == (11, 6, 12)
        assert (problem.n_x0, problem.n_shared) == (2, 3)
        assert problem.z_offset.tolist() == [0, 2, 7, 8, 11]
        assert problem.g_offset.tolist() == [0, 0, 3, 4, 6]
        assert problem.p_offset.tolist() == [5, 7, 7, 11, 12]
        assert problem.param_rows(2).tolist() == [0, 1, 2, 3, 4, 7, 8, 9, 10]
        assert problem.var_stage.tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3]
        assert problem.con_stage.tolist() == [1, 1, 1, 2, 3, 3]
        assert problem.names == {}
        assert {name: rows.tolist() for name, rows in problem.param_names.items()} == {
            "shared": [2, 3, 4],
            "p_0": [5, 6],
            "p_2": [7, 8, 9, 10],
            "p_3": [11],
        }

    def test_names_from_states_and_inputs(self):
        problem = MPCProblem([oscillator(), oscillator(n_next=2), end(2)])
        assert problem.names["x"].tolist() == [[0, 1], [3, 4], [6, 7]]
        assert problem.names["u"].tolist() == [[2], [5]]
        assert problem.param_names["p"].tolist() == [[0], [1]]
        np.testing.assert_array_equal(problem.x_rows, problem.names["x"])
        np.testing.assert_array_equal(problem.u_rows, problem.names["u"])

    def test_uneven_states_have_no_rows(self):
        problem = MPCProblem([oscillator(n_x=1), oscillator(), end()])
        assert problem.x_rows is None
        assert problem.u_rows is None
        assert MPCProblem([end(n_x=None)]).x_rows is None

    def test_named_inputs_of_uneven_stages(self):
        """Where stages do not tell what inputs are, a name does."""
        problem = MPCProblem([oscillator(n_x=1), end()], names={"u": np.array([[2, 4]])})
        assert problem.u_rows.tolist() == [[2, 4]]
        even = MPCProblem([oscillator(), end()], names={"u": np.array([[2, 4]])})
        assert even.u_rows.tolist() == [[2], [5]]

    def test_what_is_neither_state_nor_input(self):
        problem = MPCProblem([oscillator(n_x=1, n_u=1), end(n_x=1, n_u=0)])
        assert problem.x_rows.tolist() == [[0], [3]]
        assert problem.u_rows.tolist() == [[1]]

    def test_a_single_stage_is_a_problem(self):
        problem = MPCProblem([end()])
        assert (problem.horizon, problem.n_vars, problem.n_cons) == (0, 3, 0)
        assert initial_guess(problem, np.zeros(0)).tolist() == [0, 0, 0]

    def test_given_names(self):
        problem = MPCProblem(
            [oscillator(), end()],
            names={"force": [[2], [5]]},
            param_names={"weight": np.array([0])},
            defaults={"weight": 3},
        )
        assert list(problem.names) == ["force"]
        assert problem.names["force"].dtype == np.int64
        assert problem.defaults.tolist() == [3]

    def test_full_diagonal(self):
        assert MPCProblem([end()]).full_diagonal is True
        assert MPCProblem([end()], full_diagonal=False).full_diagonal is False


class TestDefaults:
    @pytest.fixture
    def stages(self):
        z, after, p = ca.SX.sym("z"), ca.SX.sym("after"), ca.SX.sym("p", 2)
        return [Stage(z, after, p), Stage(z, after, p), Stage(z)]

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (1, [[1, 1], [1, 1]]),
            ([1, 2], [[1, 2], [1, 2]]),
            ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
            (np.inf, [[np.inf, np.inf]] * 2),
        ],
    )
    def test_by_name(self, stages, value, expected):
        shared = ca.SX.sym("shared", 3)
        problem = MPCProblem(stages, shared=shared, defaults={"p": value})
        np.testing.assert_array_equal(problem.defaults[problem.param_names["p"]], expected)
        assert np.isnan(problem.defaults[:3]).all()

    def test_none_and_arrays(self, stages):
        assert np.isnan(MPCProblem(stages).defaults).all()
        given = np.array([1, np.nan, 3, 4])
        problem = MPCProblem(stages, defaults=given)
        np.testing.assert_array_equal(problem.defaults, given)
        assert problem.defaults is not given


class TestHash:
    def build(self, **given):
        shared = ca.SX.sym("shared")
        return MPCProblem([oscillator(), end(cost=shared)], **{"shared": shared, **given})

    def test_equal_content(self):
        assert self.build().hash == self.build().hash
        assert len(self.build().hash) == 64

    def test_every_part_counts(self):
        hashes = [
            self.build().hash,
            self.build(full_diagonal=False).hash,
            self.build(defaults={"shared": 1}).hash,
            self.build(defaults={"shared": 2}).hash,
            self.build(names={"z": [[0]]}).hash,
            self.build(names={"y": [[0]]}).hash,
            self.build(param_names={"shared": [0]}).hash,
            MPCProblem([oscillator(), end()]).hash,
            MPCProblem([oscillator(gain=2), end()]).hash,
            MPCProblem([oscillator(guess=1), end()]).hash,
            MPCProblem([oscillator(row_names=["a", "b", "c"]), end()]).hash,
            MPCProblem([oscillator(), oscillator(), end()]).hash,
        ]
        assert len(set(hashes)) == len(hashes)

    def test_equal_in_another_process(self):
        """Neither addresses nor the seed of Python's hashes enter."""
        code = (
            "import casadi as ca\n"
            "from warpmpc.problem.mpc_problem import MPCProblem\n"
            "from warpmpc.problem.stage import Stage\n"
            "z, after = ca.SX.sym('z', 2), ca.SX.sym('after', 2)\n"
            "stage = Stage(z, after, cost=ca.sin(z[0]) * after[1] / 3)\n"
            "result = MPCProblem([stage, stage, Stage(z)]).hash\n"
        )
        here: dict[str, str] = {}
        exec(code, here)
        there = subprocess.run(
            [sys.executable, "-c", code + "print(result)"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": "1"},
        )
        assert there.stdout.strip() == here["result"]


def test_evaluation_against_numpy():
    """Different sizes, cross terms, residuals, parameters in bounds, soft rows."""
    z0, z1, z2 = ca.SX.sym("a", 2), ca.SX.sym("b", 3), ca.SX.sym("c", 1)
    x0, s, p0, p1 = ca.SX.sym("x0", 2), ca.SX.sym("s"), ca.SX.sym("p0"), ca.SX.sym("p1", 2)
    stages = [
        Stage(z0, z1, p0, cost=z0[0] * z1[2] * p0, g=z0 - x0, lower=0, upper=0),
        Stage(
            z1,
            z2,
            p1,
            residual=[z1[0] - z2, s * z1[1]],
            weight=p1,
            g=[z1[0] * z2, z1[2]],
            lower=[-s, -ca.inf],
            upper=[s, z1[0]],
            soft={0: Soft(linear=(2, 3), quadratic=p1[0])},
        ),
        Stage(z2, cost=ca.exp(z2)),
    ]
    problem = MPCProblem(stages, x0=x0, shared=s)
    a, b, c = np.array([1.0, 2.0]), np.array([3.0, -1.0, 0.5]), -2.0
    params = np.array([0.1, 0.2, 4.0, 7.0, 5.0, 6.0])
    found = evaluate(problem, np.concatenate([a, b, [c]]), params)
    cost = [1 * 0.5 * 7, 0.5 * (5 * (3 + 2) ** 2 + 6 * (4 * -1) ** 2), np.exp(-2)]
    np.testing.assert_allclose(found.cost, cost, rtol=1e-15)
    np.testing.assert_allclose(found.g, [0.9, 1.8, -6, 0.5], rtol=1e-15)
    np.testing.assert_array_equal(found.lower, [0, 0, -4, -np.inf])
    np.testing.assert_array_equal(found.upper, [0, 0, 4, 3])
    np.testing.assert_allclose(found.penalty, [0, 2 * 2 + 5 / 2 * 2**2, 0], rtol=1e-15)
    above = evaluate(problem, np.concatenate([a, b, [2.0]]), params)
    np.testing.assert_allclose(above.penalty, [0, 3 * 2 + 5 / 2 * 2**2, 0], rtol=1e-15)


def test_guess_depends_on_parameters_and_time():
    z, after, p = ca.SX.sym("z"), ca.SX.sym("after"), ca.SX.sym("p")
    x0, s, tau = ca.SX.sym("x0"), ca.SX.sym("s"), ca.SX.sym("t")
    stage = Stage(z, after, p, guess=(1 - tau) * x0 + s * p, tau=tau)
    problem = MPCProblem([stage] * 4 + [Stage(z, guess=tau, tau=tau)], x0=x0, shared=s)
    guess = initial_guess(problem, [8, 10, 0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(guess, [8 + 1, 6 + 2, 4 + 3, 2 + 4, 1], rtol=1e-15)
