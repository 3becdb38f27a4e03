"""Stages keep what they are given, as dense columns, with every default filled in."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

from warpmpc.codegen.ir import Op
from warpmpc.problem import expressions as ex
from warpmpc.problem.stage import Soft, Stage


def numbers(expression):
    return np.array(ca.DM(expression)).ravel(order="F")


class TestColumns:
    @pytest.mark.parametrize(
        "given",
        [
            [1.0, 2.0],
            (1, 2),
            np.array([1, 2]),
            np.array([[1.0], [2.0]]),
            ca.DM([1, 2]),
            ca.SX([1, 2]),
        ],
    )
    def test_what_counts_as_a_column(self, given):
        column = ex.column(given, "g")
        assert isinstance(column, ca.SX)
        assert column.is_dense()
        np.testing.assert_array_equal(numbers(column), [1, 2])

    def test_lists_mix_numbers_and_expressions(self):
        x = ca.SX.sym("x", 2)
        for given in ([1.0, x, x[0] * 2], np.array([1.0, x[0], x[1], x[0] * 2], dtype=object)):
            column = ex.column(given, "g")
            value = ca.Function("f", [x], [column])([3, 4])
            np.testing.assert_array_equal(numbers(value), [1, 3, 4, 6])

    @pytest.mark.parametrize("empty", [None, [], (), np.zeros(0), ca.SX(0, 1), ca.SX(1, 0)])
    def test_empty_columns_have_one_shape(self, empty):
        assert ex.column(empty, "g").shape == (0, 1)

    def test_structural_zeros_become_entries(self):
        column = ex.column(ca.SX(3, 1), "g")
        assert (column.nnz(), column.numel()) == (3, 3)


def test_what_is_allowed_is_what_can_be_translated():
    kept = {ca.OP_INPUT, ca.OP_OUTPUT, ca.OP_CONST, ca.OP_CONSTPOW, ca.OP_ASSIGN, ca.OP_LIFT}
    operations = {getattr(ca, f"OP_{op.name}") for op in Op}
    assert operations | kept == ex.TRANSLATED


class TestStage:
    def test_defaults(self):
        z = ca.SX.sym("z", 3)
        stage = Stage(z)
        assert (stage.n_z, stage.n_g, stage.n_x, stage.n_u) == (3, 0, None, None)
        for name in ("z_next", "p", "residual", "weight", "g", "lower", "upper"):
            assert getattr(stage, name).shape == (0, 1), name
        assert (stage.cost.shape, float(stage.cost)) == ((1, 1), 0)
        np.testing.assert_array_equal(numbers(stage.guess), np.zeros(3))
        assert stage.tau.is_symbolic()
        assert stage.penalties.shape == (0, 4)
        assert stage.soft_rows.size == 0
        assert stage.row_names == ()

    def test_scalars_are_repeated(self):
        z, q = ca.SX.sym("z", 2), ca.SX.sym("q")
        stage = Stage(z, p=q, g=z, lower=-1, upper=q, residual=z, weight=q, guess=2)
        np.testing.assert_array_equal(numbers(stage.lower), [-1, -1])
        np.testing.assert_array_equal(numbers(stage.guess), [2, 2])
        assert [str(e) for e in ex.entries(stage.upper)] == ["q", "q"]
        assert [str(e) for e in ex.entries(stage.weight)] == ["q", "q"]
        assert stage.row_names == ("g[0]", "g[1]")

    @pytest.mark.parametrize(
        ("given", "lower", "upper"),
        [({"upper": 3}, -np.inf, 3), ({"lower": 3}, 3, np.inf), ({"lower": [3], "upper": 3}, 3, 3)],
    )
    def test_absent_bounds_are_infinite(self, given, lower, upper):
        z = ca.SX.sym("z")
        stage = Stage(z, g=z, **given)
        assert (float(stage.lower), float(stage.upper)) == (lower, upper)

    def test_weight_is_one_by_default(self):
        z = ca.SX.sym("z", 2)
        np.testing.assert_array_equal(numbers(Stage(z, residual=z).weight), [1, 1])

    def test_bounds_may_depend_on_variables(self):
        """As data: nothing here differentiates them."""
        z, after = ca.SX.sym("z", 2), ca.SX.sym("after", 2)
        stage = Stage(z, after, g=z[0], lower=-(z[1] ** 2), upper=after[0])
        assert set(ex.used_symbols(stage.lower).values()) == {"z_1"}

    @pytest.mark.parametrize(
        ("n_x", "n_u", "expected"),
        [(None, None, (None, None)), (1, None, (1, 2)), (3, None, (3, 0)), (1, 1, (1, 1))],
    )
    def test_states_and_inputs(self, n_x, n_u, expected):
        stage = Stage(ca.SX.sym("z", 3), n_x=n_x, n_u=n_u)
        assert (stage.n_x, stage.n_u) == expected

    @pytest.mark.parametrize("kind", [int, np.int32, np.int64, np.uint8])
    def test_integers_of_numpy_count(self, kind):
        assert Stage(ca.SX.sym("z", 3), n_x=kind(2)).n_x == 2

    def test_operations_that_are_not_smooth_are_fine(self):
        z = ca.SX.sym("z", 2)
        kinks = [
            ca.fabs(z[0]),
            ca.fmax(z[0], z[1]),
            ca.floor(z[0]),
            ca.sign(z[1]),
            ca.fmod(z[0], 2),
        ]
        chosen = ca.if_else(z[0] > 0, z[1], ca.atan2(z[0], z[1]))
        stage = Stage(z, cost=ca.sum1(ca.vertcat(*kinks)), g=chosen, lower=0)
        assert stage.n_g == 1

    def test_infinity_in_expressions_is_fine(self):
        z = ca.SX.sym("z")
        assert Stage(z, cost=ca.fmin(z, ca.inf)).n_z == 1


class TestSoft:
    def test_one_value_is_for_both_sides(self):
        np.testing.assert_array_equal(numbers(Soft(3, 4).columns()), [3, 3, 4, 4])
        np.testing.assert_array_equal(numbers(Soft((1, 2), (3, 4)).columns()), [1, 2, 3, 4])
        np.testing.assert_array_equal(
            numbers(Soft(linear=[np.inf, 2]).columns()), [np.inf, 2, 0, 0]
        )

    def test_rows_are_sorted_and_have_four_columns(self):
        z, w = ca.SX.sym("z", 3), ca.SX.sym("w")
        soft = {2: Soft((1, 2), (3, 4)), np.int64(0): Soft(w)}
        stage = Stage(z, p=w, g=z, lower=0, upper=1, soft=soft)
        assert stage.soft_rows.tolist() == [0, 2]
        values = ca.Function("f", [w], [stage.penalties])(7)
        np.testing.assert_array_equal(np.array(values), [[7, 7, 0, 0], [1, 2, 3, 4]])

    def test_soft_equality_is_penalised_in_both_directions(self):
        z = ca.SX.sym("z")
        stage = Stage(z, g=z, lower=0, upper=0, soft={0: Soft(linear=5)})
        np.testing.assert_array_equal(numbers(stage.penalties), [5, 5, 0, 0])

    def test_side_without_bound_needs_no_penalty(self):
        z = ca.SX.sym("z")
        stage = Stage(z, g=z, upper=1, soft={0: Soft(linear=(0, 5))})
        assert stage.soft_rows.tolist() == [0]
