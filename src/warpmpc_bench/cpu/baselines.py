"""Other solvers on the problems and QPs of `warpmpc bench cpu`: one after the other on one core.

OSQP gets the QPs that an SQP iteration solves, with as many iterations; processes share them where
all cores may work.  IPOPT and fatrop (CasADi) solve the nonlinear problems until they converge.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import casadi as ca
import numpy as np

from warpmpc import MPCSolver
from warpmpc._errors import SettingsError
from warpmpc.symbolic.derivatives.assembly import host_qp
from warpmpc_bench.common.baseline import Baseline, needs
from warpmpc_bench.mpc.ipopt import joined, problem_soft_rows

MOST_INSTANCES = 32  # OSQP's time per QP does not depend on the batch
MOST_CONVERGED = 4
TOLERANCE, MOST_ITERATIONS = 1e-6, 500
_HPIPM = (
    "no package of HPIPM can be installed: pip knows neither hpipm nor hpipm_python, and acados "
    "is built from source"
)


class _OSQP:
    """OSQP on some QPs of one pattern; every solve factorises anew, as an SQP iteration does."""

    def __init__(self, first: tuple[Any, ...], settings: dict[str, Any], numbers: list[dict]):
        import osqp

        self._solver: Any = osqp.OSQP()
        self._solver.setup(*first, **settings)
        self._numbers, sizes = numbers, (first[0].shape[0], first[2].shape[0])
        self._zeros = tuple(map(np.zeros, sizes))
        self.x = np.zeros((len(numbers), sizes[0]))

    def solve(self) -> None:
        for b, numbers in enumerate(self._numbers):
            self._solver.update(**numbers)
            self._solver.warm_start(x=self._zeros[0], y=self._zeros[1])
            self.x[b] = self._solver.solve(raise_error=False).x


def _given(solver: MPCSolver, x0: np.ndarray) -> tuple[Any, ...]:
    """The QPs of a batch at the guess, evaluated on the host."""
    x0 = x0[:MOST_INSTANCES]
    z, params = np.asarray(solver.z_guess(x0)), np.asarray(solver.pack(x0))
    at = solver.programs.assembly
    z, params = z.astype(np.float64), params.astype(np.float64)
    given = [host_qp(at, *pair) for pair in zip(z, params, strict=True)]
    P_pattern, entries = at.P_pattern.upper()
    numbers = [
        {"Px": qp.P[entries], "q": qp.q, "Ax": qp.A, "l": qp.lower, "u": qp.upper} for qp in given
    ]
    first, settings = given[0], solver.qp.settings
    P, A = P_pattern.to_scipy(first.P[entries]), at.A_pattern.to_scipy(first.A)
    fixed = {
        "rho": settings.rho, "sigma": settings.sigma, "alpha": settings.relaxation,
        "max_iter": settings.max_iter, "scaling": 0, "adaptive_rho": 0, "check_termination": 0,
        "polishing": False, "verbose": False, "eps_prim_inf": 1e-15, "eps_dual_inf": 1e-15,
    }  # fmt: skip
    return (P, first.q, A, first.lower, first.upper), fixed, numbers


class SequentialOSQP:
    """The QPs of a batch at the guess, on one core."""

    def __init__(self, solver: MPCSolver, x0: np.ndarray):
        """Evaluates the QPs on the host, which no timing counts.

        Args:
            solver: Whose QPs to solve.
            x0: Initial states ``[batch, n_x0]``.
        """
        self._osqp = _OSQP(*_given(solver, x0))
        self.batch = len(self._osqp.x)

    @property
    def x(self) -> np.ndarray:
        """Solutions of the last call."""
        return self._osqp.x

    def solve(self) -> None:
        """Solves all of them from zero."""
        self._osqp.solve()


# Each process of `ParallelOSQP` keeps its solver here.
_mine: dict[str, _OSQP] = {}


def _start(*given: Any) -> None:
    _mine["osqp"] = _OSQP(*given)


def _solve_often(times: int) -> float:
    for _ in range(times):
        _mine["osqp"].solve()
    return float(np.abs(_mine["osqp"].x).sum())


class ParallelOSQP:
    """The same QPs in several processes, each of which solves all of them some times."""

    def __init__(self, solver: MPCSolver, x0: np.ndarray, processes: int, qps: int = 256):
        """Starts the processes.

        Args:
            solver: Whose QPs to solve.
            x0: Initial states ``[batch, n_x0]``.
            processes: Number of processes.
            qps: QPs of each process and call, about: what a call costs beside them is small.
        """
        given = _given(solver, x0)
        self._times = max(1, qps // len(given[2]))
        self.batch = processes * self._times * len(given[2])
        context = get_context("spawn")
        self._pool = ProcessPoolExecutor(processes, context, initializer=_start, initargs=given)
        self._processes = processes
        self.solve()

    def solve(self) -> float:
        """Has every process solve its QPs; returns a sum that tells whether they were the same."""
        found = list(self._pool.map(_solve_often, [self._times] * self._processes))
        return max(found) - min(found)

    def close(self) -> None:
        """Ends the processes."""
        self._pool.shutdown()


class ConvergedByCasADi:
    """A solver of CasADi on the problems themselves, from the guess until it converges."""

    def __init__(self, plugin: str, solver: MPCSolver, x0: np.ndarray):
        """Builds the program, which no timing counts.

        Args:
            plugin: "ipopt" or "fatrop".
            solver: Whose problems to solve.
            x0: Initial states ``[batch, n_x0]``.
        """
        x0, problem = x0[:MOST_CONVERGED], solver.problem
        if problem_soft_rows(problem).size:
            raise SettingsError(f"{plugin} is measured on problems without soft rows only.")
        z, p = ca.SX.sym("z", problem.n_vars), ca.SX.sym("p", problem.n_params)
        cost, rows, lower, upper, *_ = joined(problem, z, p)
        bounds = ca.Function("bounds", [p], [lower, upper])
        self._params = np.asarray(solver.pack(x0), dtype=np.float64)
        self._guesses = np.asarray(solver.z_guess(x0), dtype=np.float64)
        pairs = [bounds(row) for row in self._params]
        self._bounds = [tuple(np.array(side).ravel() for side in pair) for pair in pairs]
        options: dict[str, Any] = {"print_time": False, "expand": True, f"{plugin}.tol": TOLERANCE}
        options |= {f"{plugin}.max_iter": MOST_ITERATIONS, f"{plugin}.print_level": 0}
        if plugin == "ipopt":
            options["ipopt.sb"] = "yes"
        else:
            equal = np.logical_and.reduce([lower == upper for lower, upper in self._bounds])
            options |= {"structure_detection": "auto", "equality": equal.tolist()}
        self._solver = ca.nlpsol("solver", plugin, {"x": z, "p": p, "f": cost, "g": rows}, options)
        self.batch, self.solved, self.z = len(x0), 0, self._guesses.copy()

    def solve(self) -> None:
        """Solves all of them."""
        self.solved = 0
        given = zip(self._guesses, self._params, self._bounds, strict=True)
        for b, (guess, p, (lower, upper)) in enumerate(given):
            found = self._solver(x0=guess, p=p, lbg=lower, ubg=upper)
            self.z[b] = np.array(found["x"]).ravel()
            self.solved += bool(self._solver.stats()["success"])


def _never(*_: Any) -> Any:
    raise AssertionError("other solvers are measured in the rounds of every row")


def _plugin(name: str) -> Callable[[], str | None]:
    return lambda: None if ca.has_nlpsol(name) else f"CasADi has no plugin {name} here"


def _baseline(label: str, obstacle: Callable[[], str | None]) -> Baseline:
    return Baseline(label, _never, obstacle, {"cpu": 1, "gpu": 1}, lambda _: 0, on_host=True)


BASELINES = {
    "osqp": _baseline("OSQP, one core", needs("osqp", "osqp")),
    "osqp_all": _baseline("OSQP, all cores", needs("osqp", "osqp")),
    "ipopt": _baseline("IPOPT, converged", _plugin("ipopt")),
    "fatrop": _baseline("fatrop, converged", _plugin("fatrop")),
    "hpipm": _baseline("HPIPM", lambda: _HPIPM),
}
