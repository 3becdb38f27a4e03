"""Random optimal control problems in random units, with the same problems in good units.

A `FuzzCase` is one structure: a chain of integrators with a sine, bounds, quadratic costs, perhaps
limits of a state and a curved row.  Its numbers are parameters, so that every instance is a problem
of its own and one compilation serves many.  In good units all numbers are near one.  The solver
gets the same problems in units that are off by some decades; the oracles judge its results in good
units.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import product

import casadi as ca
import numpy as np
from mpc_cases import WholeProblem
from nlp_oracle import NonlinearProgram

import warpmpc as wm

# Largest decade of the units in each class of scaling.
CLASSES = {"good": 0, "fair": 2, "bad": 4}
# Number of states, whether one is limited, whether there is a curved row.
STRUCTURES = tuple(product((2, 3), (False, True), (False, True)))


@dataclass(frozen=True, eq=False)
class FuzzCase:
    """One structure with its instances.

    Attributes:
        ocp: The problem in bad units.
        program: The oracle of the same problem in good units.
        x0: Starts in bad units, ``[batch, n_x]``.
        values: Parameters by name, which have no units.
        params: Parameter vectors in good units.
        guess: Guesses in good units.
        z_unit: Size of a good unit of each variable in bad ones.
        y_unit: The same of each multiplier.
        row_unit: The same of each row.
    """

    ocp: wm.OCP
    program: NonlinearProgram
    x0: np.ndarray
    values: dict[str, np.ndarray]
    params: np.ndarray
    guess: np.ndarray
    z_unit: np.ndarray
    y_unit: np.ndarray
    row_unit: np.ndarray


@dataclass(frozen=True)
class _Shape:
    """What all instances of a structure share."""

    n: int
    limited: bool
    curved: bool
    horizon: int


def _values(rng: np.random.Generator, shape: _Shape, batch: int) -> dict[str, np.ndarray]:
    """The numbers of each instance, in good units."""
    ranges = {
        "drift": (-0.5, 0.5, 1),
        "sine": (-2, 2, 1),
        "weights": (0.1, 1, shape.n),
        "terminal": (1, 10, shape.n),
        "effort": (0.01, 0.3, 1),
        "torque": (1.5, 4, 1),
        **({"limit": (1.2, 2, 1)} if shape.limited else {}),
        **({"radius": (1.6, 2.5, 1)} if shape.curved else {}),
    }
    return {
        name: rng.uniform(low, high, (batch, size)) for name, (low, high, size) in ranges.items()
    }


def _ocp(
    shape: _Shape, typical: dict[str, np.ndarray], x_unit: np.ndarray, units: tuple[float, ...]
) -> wm.OCP:
    """The problem in units of these sizes: of the states, then of the input, a row and the cost."""
    u_unit, row, cost = units
    x, u = ca.SX.sym("x", shape.n), ca.SX.sym("u")
    p = {name: ca.SX.sym(name, value.size) for name, value in typical.items()}
    good, push = x / ca.DM(x_unit), u / u_unit
    slope = [good[i + 1] for i in range(shape.n - 1)]
    slope.append(push + p["drift"] * good[-1] + p["sine"] * ca.sin(good[0]))
    ocp = wm.OCP(x, u, p, horizon=shape.horizon, dt=0.15)
    ocp.set_dynamics(ca.DM(x_unit) * ca.vertcat(*slope), integrator="rk4")
    ocp.add_residual(x, weight=cost * p["weights"] / ca.DM(x_unit**2))
    ocp.add_residual(u, weight=cost * p["effort"] / u_unit**2)
    ocp.add_residual(x, weight=cost * p["terminal"] / ca.DM(x_unit**2), at="terminal")
    ocp.subject_to(-p["torque"] * u_unit, u, p["torque"] * u_unit, name="torque")
    if shape.limited:
        most = p["limit"] * float(x_unit[-1])
        ocp.subject_to(-most, x[-1], most, name="limit")
    if shape.curved:
        curved = row * (good[0] ** 2 + 0.5 * good[1] ** 2)
        ocp.subject_to(None, curved, row * p["radius"] ** 2, name="radius")
    for name, value in typical.items():
        ocp.set_default(name, value)
    return ocp


def fuzz_case(seed: int, scaling: str, batch: int) -> FuzzCase:
    """One structure; a seed gives the same problems in all classes of scaling.

    Args:
        seed: Seed of the structure, its units and its instances.
        scaling: Name in `CLASSES`.
        batch: Number of instances.
    """
    rng = np.random.default_rng(seed)
    shape = _Shape(*STRUCTURES[seed % len(STRUCTURES)], int(rng.integers(6, 11)))
    values, decade = _values(rng, shape, batch), CLASSES[scaling]
    start = rng.uniform(-1.2, 1.2, (batch, shape.n))
    x_unit = 10 ** rng.uniform(-decade, decade, shape.n)
    u_unit, row, cost = (float(unit) for unit in 10 ** rng.uniform(-decade, decade, 3))
    typical = {name: value.mean(axis=0) for name, value in values.items()}
    ocp = _ocp(shape, typical, x_unit, (u_unit, row, cost))
    problem = _ocp(shape, typical, np.ones(shape.n), (1.0, 1.0, 1.0)).problem()
    variables = np.append(x_unit, u_unit)
    z_unit = np.concatenate([variables[: stage.n_z] for stage in problem.stages])
    of_row = {"torque[0]": u_unit, "limit[0]": x_unit[-1], "radius[0]": row}
    for i in range(shape.n):
        of_row |= {f"initial[x_{i}]": x_unit[i], f"dynamics[x_{i}]": x_unit[i]}
    rows = np.array([of_row[name] for name in problem.row_names])
    program, guess = NonlinearProgram(WholeProblem(problem)), np.zeros((batch, problem.n_vars))
    params = np.concatenate([start, *values.values()], axis=1)
    x0 = start * x_unit
    return FuzzCase(ocp, program, x0, values, params, guess, z_unit, cost / rows, rows)


@dataclass
class Tally:
    """What became of instances.

    Attributes:
        solved: Instances that IPOPT solves.
        converged: Those of them that are CONVERGED.
        wrong: CONVERGED instances that do not satisfy the optimality conditions.
        statuses: Number of instances of each status.
    """

    solved: int = 0
    converged: int = 0
    wrong: int = 0
    statuses: Counter = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Share of IPOPT's instances that converge."""
        return self.converged / max(1, self.solved)


# Conditions in good units: stationarity and complementarity over the gradient, violations.  Solvers
# keep units that are not far off, and their tolerance of violations, 1e-4 or 1e-6, is in these: a
# violation counts in the units in which it is smaller.
TOLERANCES = {"float32": (1e-2, 2e-3), "float64": (1e-5, 2e-5)}
ABSOLUTE = {"float32": 1e-4, "float64": 1e-6}


def judge(
    case: FuzzCase, solution: wm.Solution, solved: np.ndarray, tally: Tally, *, kept: bool
) -> None:
    """Adds the instances of a case to a tally.

    Args:
        case: The structure.
        solution: Results in bad units.
        solved: Instances that IPOPT solves.
        tally: What is added to.
        kept: Whether the solver kept the units.
    """
    z, y = (np.asarray(array, dtype=np.float64) for array in (solution.z, solution.y))
    status, dtype = np.asarray(solution.status), np.asarray(solution.z).dtype.name
    optimal, feasible = TOLERANCES[dtype]
    converged = status == wm.MPCStatus.CONVERGED
    tally.statuses += Counter(wm.MPCStatus(int(value)).name for value in status)
    tally.solved += int(solved.sum())
    tally.converged += int((solved & converged).sum())
    for b in np.flatnonzero(converged):
        point = (z[b] / case.z_unit, y[b] / case.y_unit, case.params[b])
        found = case.program.optimality(*point)
        right = max(found.stationarity, found.complementarity) <= optimal
        within = found.violation <= feasible
        if kept:
            beyond = case.program.violations(point[0], point[2]) * case.row_unit
            within |= beyond.max() <= 1.2 * ABSOLUTE[dtype]
        tally.wrong += not (right and within)
