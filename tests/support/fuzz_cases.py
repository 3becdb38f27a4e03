"""Random optimal control problems in random units, with the same problems in good units.

A `FuzzCase` is one structure: a chain of integrators with a sine, bounds, quadratic costs, perhaps
limits of a state and a curved row.  In good units all numbers are near one.  The solver gets the
same problem in units that are off by some decades; the oracles judge its results in good units.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import casadi as ca
import numpy as np
from mpc_cases import WholeProblem
from nlp_oracle import NonlinearProgram

import warpmpc as wm

# Largest decade of the units in each class of scaling.
CLASSES = {"good": 0, "fair": 2, "bad": 4}


@dataclass(frozen=True, eq=False)
class FuzzCase:
    """One structure with its starts.

    Attributes:
        ocp: The problem in bad units.
        program: The oracle of the same problem in good units.
        x0: Starts in bad units, ``[batch, n_x]``.
        params: Parameter vectors in good units.
        guess: Guesses in good units.
        z_unit: Size of a good unit of each variable in bad ones.
        y_unit: The same of each multiplier.
    """

    ocp: wm.OCP
    program: NonlinearProgram
    x0: np.ndarray
    params: np.ndarray
    guess: np.ndarray
    z_unit: np.ndarray
    y_unit: np.ndarray


@dataclass(frozen=True, eq=False)
class _Shape:
    """What is random about the structure, in good units."""

    n: int
    drift: float
    sine: float
    weights: np.ndarray
    terminal: np.ndarray
    effort: float
    torque: float
    limit: float | None
    radius: float | None
    horizon: int


def _shape(rng: np.random.Generator) -> _Shape:
    n = int(rng.integers(2, 4))
    return _Shape(
        n=n,
        drift=rng.uniform(-0.5, 0.5),
        sine=rng.uniform(-2, 2),
        weights=rng.uniform(0.1, 1, n),
        terminal=rng.uniform(1, 10, n),
        effort=rng.uniform(0.01, 0.3),
        torque=rng.uniform(1.5, 4),
        limit=rng.uniform(1.2, 2) if rng.random() < 0.5 else None,
        radius=rng.uniform(1.6, 2.5) if rng.random() < 0.3 else None,
        horizon=int(rng.integers(6, 11)),
    )


def _ocp(shape: _Shape, x_unit: np.ndarray, u_unit: float, row: float, cost: float) -> wm.OCP:
    """The problem in units of these sizes."""
    x, u = ca.SX.sym("x", shape.n), ca.SX.sym("u")
    good, push = x / ca.DM(x_unit), u / u_unit
    slope = [good[i + 1] for i in range(shape.n - 1)]
    slope.append(push + shape.drift * good[-1] + shape.sine * ca.sin(good[0]))
    ocp = wm.OCP(x, u, {}, horizon=shape.horizon, dt=0.15)
    ocp.set_dynamics(ca.DM(x_unit) * ca.vertcat(*slope), integrator="rk4")
    ocp.add_residual(x, weight=cost * shape.weights / x_unit**2)
    ocp.add_residual(u, weight=cost * shape.effort / u_unit**2)
    ocp.add_residual(x, weight=cost * shape.terminal / x_unit**2, at="terminal")
    ocp.subject_to(-shape.torque * u_unit, u, shape.torque * u_unit, name="torque")
    if shape.limit is not None:
        most = shape.limit * x_unit[-1]
        ocp.subject_to(-most, x[-1], most, name="limit")
    if shape.radius is not None:
        curved = row * (good[0] ** 2 + 0.5 * good[1] ** 2)
        ocp.subject_to(None, curved, row * shape.radius**2, name="radius")
    return ocp


def fuzz_case(seed: int, scaling: str, batch: int) -> FuzzCase:
    """One structure; a seed gives the same one in all classes of scaling.

    Args:
        seed: Seed of the structure, its units and its starts.
        scaling: Name in `CLASSES`.
        batch: Number of starts.
    """
    rng = np.random.default_rng(seed)
    shape, decade = _shape(rng), CLASSES[scaling]
    start = rng.uniform(-1.2, 1.2, (batch, shape.n))
    x_unit = 10 ** rng.uniform(-decade, decade, shape.n)
    u_unit, row, cost = 10 ** rng.uniform(-decade, decade, 3)
    ocp, good = _ocp(shape, x_unit, u_unit, row, cost), _ocp(shape, np.ones(shape.n), 1, 1, 1)
    problem = good.problem()
    variables = np.append(x_unit, u_unit)
    z_unit = np.concatenate([variables[: stage.n_z] for stage in problem.stages])
    of_row = {"torque[0]": u_unit, "limit[0]": x_unit[-1], "radius[0]": row}
    for i in range(shape.n):
        of_row |= {f"initial[x_{i}]": x_unit[i], f"dynamics[x_{i}]": x_unit[i]}
    rows = np.array([of_row[name] for name in problem.row_names])
    program, guess = NonlinearProgram(WholeProblem(problem)), np.zeros((batch, problem.n_vars))
    return FuzzCase(ocp, program, start * x_unit, start, guess, z_unit, cost / rows)


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
# keep units that are up to 64 times off, and their tolerance of violations, 1e-4 or 1e-6, is in
# these: rows may be violated by more in good units.
TOLERANCES = {"float32": (1e-2, 2e-3), "float64": (1e-5, 2e-5)}


def judge(case: FuzzCase, solution: wm.Solution, solved: np.ndarray, tally: Tally) -> None:
    """Adds the instances of a case to a tally.

    Args:
        case: The structure.
        solution: Results in bad units.
        solved: Instances that IPOPT solves.
        tally: What is added to.
    """
    z, y = (np.asarray(array, dtype=np.float64) for array in (solution.z, solution.y))
    status = np.asarray(solution.status)
    optimal, feasible = TOLERANCES[np.asarray(solution.z).dtype.name]
    converged = status == wm.MPCStatus.CONVERGED
    tally.statuses += Counter(wm.MPCStatus(int(value)).name for value in status)
    tally.solved += int(solved.sum())
    tally.converged += int((solved & converged).sum())
    for b in np.flatnonzero(converged):
        point = (z[b] / case.z_unit, y[b] / case.y_unit, case.params[b])
        found = case.program.optimality(*point)
        right = max(found.stationarity, found.complementarity) <= optimal
        tally.wrong += not (right and found.violation <= feasible)
