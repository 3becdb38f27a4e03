"""Weights of variables, against values derived by hand; which variables are light."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

from warpmpc import OCP
from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.derivatives.representative_kkt import (
    Weights,
    find_light_variables,
    variable_weights,
)
from warpmpc.symbolic.derivatives.stage_model import HessianRule, StageModel

RHO = (0.1, 100.0)
SIGMA = 1e-6


def assembled(add, rule=None):
    """Two states and an input over three intervals; `add` gives them costs and rows."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = OCP(x, u, horizon=3, dt=0.1)
    ocp.set_dynamics(x_next=ca.vertcat(x[0] + 0.1 * x[1], x[1] + 0.1 * u))
    add(ocp, x, u)
    problem = ocp.problem()
    rule = rule or HessianRule()
    models = [StageModel.build(problem, group.stage, rule) for group in problem.groups]
    return Assembly(problem, models)


def weights(*args):
    at = assembled(*args)
    return variable_weights(at, at.problem.defaults, RHO)


def of_stage(found: Weights, k=1):
    return found.least[3 * k : 3 * k + 3]


def quadratic(ocp, x, u):
    ocp.add_residual(ca.vertcat(x, u), [0.1, 0.2, 0.3])
    ocp.add_residual(x, [0.1, 0.2], at="terminal")


def with_obstacle(ocp, x, u):
    quadratic(ocp, x, u)
    ocp.subject_to(0.0, x[0] ** 2 - 1, None, at=range(1, 4), soft=100.0)


EXACT = HessianRule("exact")


class TestLeast:
    @pytest.mark.parametrize("rule", [HessianRule(), EXACT])
    def test_constants(self, rule):
        assert of_stage(weights(quadratic, rule)) == pytest.approx([0.1, 0.2, 0.3])

    @pytest.mark.parametrize("convexify", ["project", "gershgorin"])
    def test_curvature_of_an_obstacle(self, convexify):
        """The multiplier of a row may take the weight of its variable, and of no other."""
        found = weights(with_obstacle, HessianRule("exact", convexify))
        assert of_stage(found) == pytest.approx([0, 0.2, 0.3])
        assert of_stage(found, 0) == pytest.approx([0.1, 0.2, 0.3])

    def test_gauss_newton_ignores_rows(self):
        assert of_stage(weights(with_obstacle)) == pytest.approx([0.1, 0.2, 0.3])

    @pytest.mark.parametrize("rule", [HessianRule(), EXACT])
    def test_cost_that_is_not_convex_everywhere(self, rule):
        """At the representative point its curvature is 0.95."""

        def add(ocp, x, u):
            ocp.add_cost(1 - ca.cos(x[0]) + 0.1 * x[1] ** 2 + u**2)

        assert of_stage(weights(add, rule)) == pytest.approx([0, 0.2, 2])

    def test_what_is_certain_stays(self):
        def add(ocp, x, u):
            quadratic(ocp, x, u)
            ocp.add_cost(1 - ca.cos(x[0]))

        assert of_stage(weights(add)) == pytest.approx([0.1, 0.2, 0.3])

    def test_damping_stays(self):
        found = weights(with_obstacle, HessianRule("exact", damping=0.05))
        assert of_stage(found) == pytest.approx([0.05, 0.25, 0.35])

    def test_blocks_may_be_singular(self):
        def add(ocp, x, u):
            quadratic(ocp, x, u)
            ocp.add_cost(ca.sin(x[0] * u))

        assert of_stage(weights(add)) == pytest.approx([0, 0.2, 0])

    def test_points_without_a_value(self):
        """They are left out; a weight that is known nowhere does not let a variable wait."""

        def add(ocp, x, u):
            ocp.add_residual(ca.vertcat(x[0], ca.sqrt(x[1]), ca.sqrt(-1 - u**2)), np.ones(3))

        least = of_stage(weights(add))
        assert least[0] == 1
        assert 0 < least[1] < np.inf
        assert least[2] == np.inf


class TestWeakVariables:
    def test_coupling(self):
        """Rho a^2 of rows with several entries: those of the dynamics."""
        found = weights(with_obstacle)
        assert found.coupling[3:6] == pytest.approx([100, 100, 1])

    def test_obstacle_makes_positions_wait(self):
        """All stages of a group are alike; other variables have enough weight."""
        at = assembled(with_obstacle, EXACT)
        sets = find_light_variables(at, variable_weights(at, at.problem.defaults, RHO), SIGMA)
        assert [some.tolist() for some in sets] == [[3, 6, 9], []]
        at = assembled(quadratic, EXACT)
        sets = find_light_variables(at, variable_weights(at, at.problem.defaults, RHO), SIGMA)
        assert [some.tolist() for some in sets] == [[]]
