"""Integrators against scipy's and against their order of convergence."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from warpmpc.problem.integrators import INTEGRATORS, Interval

ORDER = {"euler": 1, "rk4": 4, "implicit_midpoint": 2, "gauss_legendre": 4}
IMPLICIT = ("implicit_midpoint", "gauss_legendre")
START, INPUT = np.array([1.0, -0.5]), 0.3
# Steps at which errors are far above rounding and follow the leading term.
STEPS = {"euler": 64, "rk4": 8, "implicit_midpoint": 16, "gauss_legendre": 8}


def van_der_pol(x, u):
    return [x[1], (1 - x[0] ** 2) * x[1] - x[0] + u]


def rotation(x, _):
    return [x[1], -x[0]]


class Step:
    """One interval of an integrator, solved for the end by Newton's method where it is implicit."""

    def __init__(self, name, motion=van_der_pol, substeps=1):
        self.x, self.u, self.dt = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("dt")
        x_next = ca.SX.sym("x_next", 2)
        self.made = INTEGRATORS[name](
            Interval(
                xdot=lambda x: ca.vertcat(*motion(ca.vertsplit(x), self.u)),
                x=self.x,
                x_next=x_next,
                dt=self.dt,
                substeps=substeps,
            )
        )
        self.unknown = ca.vertcat(x_next, *self.made.variables.values())
        rows = ca.vertcat(*self.made.rows.values())
        given = [self.x, self.u, self.dt]
        jacobian = ca.jacobian(rows, self.unknown)
        self._rows = ca.Function("rows", [self.unknown, *given], [rows, jacobian])
        guess = ca.vertcat(self.x, *self.made.guess.values())
        self._guess = ca.Function("guess", given, [guess])

    def solve(self, x, u, dt):
        unknown = np.array(self._guess(x, u, dt)).ravel()
        for _ in range(20):
            rows, jacobian = (np.array(part) for part in self._rows(unknown, x, u, dt))
            unknown = unknown - np.linalg.solve(jacobian, rows.ravel())
        assert np.abs(rows).max() < 1e-13
        return unknown

    def over(self, x, u, time, steps):
        for _ in range(steps):
            x = self.solve(x, u, time / steps)[:2]
        return x


def exact(motion, time):
    result = solve_ivp(
        lambda _, x: motion(x, INPUT), (0, time), START, rtol=1e-12, atol=1e-13, method="DOP853"
    )
    return result.y[:, -1]


def test_every_integrator_has_an_order():
    assert ORDER.keys() == INTEGRATORS.keys()


@pytest.mark.parametrize("name", INTEGRATORS)
def test_order_of_convergence(name):
    step, truth = Step(name), exact(van_der_pol, 1.0)
    errors = [
        np.abs(step.over(START, INPUT, 1.0, n) - truth).max()
        for n in (STEPS[name], 2 * STEPS[name])
    ]
    assert errors[1] > 1e-11
    assert np.log2(errors[0] / errors[1]) == pytest.approx(ORDER[name], abs=0.25)


@pytest.mark.parametrize("name", INTEGRATORS)
@pytest.mark.parametrize("substeps", [2, 3])
def test_substeps_are_shorter_steps(name, substeps):
    end = Step(name, substeps=substeps).solve(START, INPUT, 0.3)[:2]
    np.testing.assert_allclose(end, Step(name).over(START, INPUT, 0.3, substeps), rtol=1e-12)


@pytest.mark.parametrize("name", INTEGRATORS)
def test_one_step_is_near_the_truth(name):
    error = np.abs(Step(name).solve(START, INPUT, 0.01)[:2] - exact(van_der_pol, 0.01)).max()
    assert error < 10 * 0.01 ** (ORDER[name] + 1)


@pytest.mark.parametrize("name", IMPLICIT)
def test_symplectic_ones_keep_the_radius(name):
    end = Step(name, rotation).over(START, 0.0, 100.0, 100)
    np.testing.assert_allclose(end @ end, START @ START, rtol=1e-12)


@pytest.mark.parametrize("name", INTEGRATORS)
def test_stiff_motion(name):
    """Twenty times the explicit limit: A-stable methods stay bounded, the others do not."""
    end = Step(name, lambda x, _: [-200 * x[0], -x[1]]).over(START, 0.0, 2.0, 10)
    assert (np.abs(end).max() <= 1) == (name in IMPLICIT)


class TestVariables:
    @pytest.mark.parametrize("substeps", [1, 3])
    @pytest.mark.parametrize("name", ["euler", "rk4"])
    def test_explicit_ones_need_none(self, name, substeps):
        made = Step(name, substeps=substeps).made
        assert made.variables == made.guess == {}
        assert list(made.rows) == ["dynamics"]

    def test_midpoint(self):
        assert Step("implicit_midpoint").made.variables == {}
        made = Step("implicit_midpoint", substeps=3).made
        assert list(made.variables) == list(made.guess) == ["substep_1", "substep_2"]
        assert list(made.rows) == ["substep_1", "substep_2", "dynamics"]

    def test_midpoint_states_between(self):
        step = Step("implicit_midpoint", substeps=2)
        unknown = step.solve(START, INPUT, 0.2)
        middle = Step("implicit_midpoint").solve(START, INPUT, 0.1)
        np.testing.assert_allclose(unknown[2:], middle, rtol=1e-12)

    @pytest.mark.parametrize("substeps", [1, 2])
    def test_gauss_legendre(self, substeps):
        made = Step("gauss_legendre", substeps=substeps).made
        names = [f"xdot_{i}" for i in range(1, 2 * substeps + 1)]
        assert list(made.variables) == list(made.guess) == names
        assert list(made.rows) == [*names, "dynamics"]
        assert all(column.shape == (2, 1) for column in made.rows.values())

    def test_gauss_legendre_derivatives(self):
        """For xdot = t^2 (as a state) the derivatives are those at the Gauss points."""
        step = Step("gauss_legendre", lambda x, _: [1 + 0 * x[0], x[0] ** 2])
        unknown = step.solve(np.zeros(2), 0.0, 1.0)
        points = 0.5 + np.array([-1, 1]) * np.sqrt(3) / 6
        np.testing.assert_allclose(unknown[[3, 5]], points**2, rtol=1e-13)
        np.testing.assert_allclose(unknown[1], 1 / 3, rtol=1e-13)
