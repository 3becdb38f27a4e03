"""Integrators, which turn continuous dynamics over one interval into equality rows.

Reads: ``xdot`` as a function of the state.  Produces: a `Discretisation` with rows that are zero
and the variables that these rows need beyond states and inputs.  To add an integrator, write a
function of an `Interval` and enter it in `INTEGRATORS`; tests and the error for unknown names
follow this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import casadi as ca


@dataclass(frozen=True, eq=False)
class Interval:
    """The input of an integrator: dynamics over one interval.

    Attributes:
        xdot: Function from a state to its time derivative; inputs and parameters are constant over
            the interval.
        x: State at the beginning.
        x_next: State at the end.
        dt: Length of the interval.
        substeps: Number of steps of equal length.
    """

    xdot: Callable[[ca.SX], ca.SX]
    x: ca.SX
    x_next: ca.SX
    dt: ca.SX | float
    substeps: int

    @property
    def step(self) -> ca.SX | float:
        """Length of one substep."""
        return self.dt / self.substeps


@dataclass(frozen=True, eq=False)
class Discretisation:
    """The result of an integrator: rows and variables of one interval.

    Attributes:
        rows: Expressions that are zero, one per state, by name.
        variables: New symbols of this interval, by name.
        guess: Initial guesses of these variables by name: expressions in x, inputs and parameters.
    """

    rows: dict[str, ca.SX]
    variables: dict[str, ca.SX] = field(default_factory=dict)
    guess: dict[str, ca.SX] = field(default_factory=dict)


def euler(interval: Interval) -> Discretisation:
    """Explicit Euler, order 1."""
    x = interval.x
    for _ in range(interval.substeps):
        x = x + interval.step * interval.xdot(x)
    return Discretisation({"dynamics": interval.x_next - x})


def rk4(interval: Interval) -> Discretisation:
    """The classical Runge-Kutta method, order 4."""
    x, h, xdot = interval.x, interval.step, interval.xdot
    for _ in range(interval.substeps):
        k1 = xdot(x)
        k2 = xdot(x + h / 2 * k1)
        k3 = xdot(x + h / 2 * k2)
        k4 = xdot(x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return Discretisation({"dynamics": interval.x_next - x})


def implicit_midpoint(interval: Interval) -> Discretisation:
    """The implicit midpoint rule, order 2, A-stable and symplectic.

    One substep needs no variables.  Several substeps have the states between them as variables,
    "substep_1" and so on.
    """
    n_x, last = interval.x.numel(), interval.substeps
    between = {f"substep_{i}": ca.SX.sym(f"substep_{i}", n_x) for i in range(1, last)}
    states = [interval.x, *between.values(), interval.x_next]
    names = [*between, "dynamics"]
    rows: dict[str, ca.SX] = {}
    for name, x, after in zip(names, states[:-1], states[1:], strict=True):
        rows[name] = after - x - interval.step * interval.xdot((x + after) / 2)
    return Discretisation(rows, between, dict.fromkeys(between, interval.x))


def gauss_legendre(interval: Interval) -> Discretisation:
    """Collocation at the two Gauss-Legendre points, order 4, A-stable and symplectic.

    The derivatives at the points are variables: "xdot_1", "xdot_2", and two more for each further
    substep.  States between substeps are linear in them and need no variables.
    """
    h, n_x = interval.step, interval.x.numel()
    shift = math.sqrt(3) / 6
    rows: dict[str, ca.SX] = {}
    variables: dict[str, ca.SX] = {}
    x = interval.x
    for i in range(1, 2 * interval.substeps, 2):
        k1, k2 = (ca.SX.sym(f"xdot_{j}", n_x) for j in (i, i + 1))
        variables |= {f"xdot_{i}": k1, f"xdot_{i + 1}": k2}
        first = x + h * (k1 / 4 + (0.25 - shift) * k2)
        second = x + h * ((0.25 + shift) * k1 + k2 / 4)
        rows |= {f"xdot_{i}": k1 - interval.xdot(first)}
        rows |= {f"xdot_{i + 1}": k2 - interval.xdot(second)}
        x = x + h / 2 * (k1 + k2)
    rows["dynamics"] = interval.x_next - x
    return Discretisation(rows, variables, dict.fromkeys(variables, interval.xdot(interval.x)))


INTEGRATORS: dict[str, Callable[[Interval], Discretisation]] = {
    "euler": euler,
    "rk4": rk4,
    "implicit_midpoint": implicit_midpoint,
    "gauss_legendre": gauss_legendre,
}
