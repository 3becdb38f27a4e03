"""OSQP on the QPs that the SQP iteration solves, one after the other on one core."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpmpc import MPCSolver
from warpmpc.symbolic.derivatives.assembly import host_qp
from warpmpc_bench.common.baseline import Baseline, needs

MOST_INSTANCES = 32  # OSQP's time per QP does not depend on the batch


class SequentialOSQP:
    """The QPs of a batch at the guess; every solve factorises anew, as an SQP iteration does."""

    def __init__(self, solver: MPCSolver, x0: np.ndarray):
        """Evaluates the QPs on the host, which no timing counts.

        Args:
            solver: Whose QPs to solve.
            x0: Initial states ``[batch, n_x0]``.
        """
        import osqp

        x0 = x0[:MOST_INSTANCES]
        z, params = np.asarray(solver.z_guess(x0)), np.asarray(solver.pack(x0))
        self.batch, at = len(x0), solver.programs.assembly
        z, params = z.astype(np.float64), params.astype(np.float64)
        given = [host_qp(at, *pair) for pair in zip(z, params, strict=True)]
        P_pattern, entries = at.P_pattern.upper()
        self._numbers = [
            {"Px": qp.P[entries], "q": qp.q, "Ax": qp.A, "l": qp.lower, "u": qp.upper}
            for qp in given
        ]
        first, settings = given[0], solver.qp.settings
        P, A = P_pattern.to_scipy(first.P[entries]), at.A_pattern.to_scipy(first.A)
        self._solver: Any = osqp.OSQP()
        self._solver.setup(
            P, first.q, A, first.lower, first.upper,
            rho=settings.rho, sigma=settings.sigma, alpha=settings.relaxation,
            max_iter=settings.max_iter, scaling=0, adaptive_rho=0, check_termination=0,
            polishing=False, verbose=False, eps_prim_inf=1e-15, eps_dual_inf=1e-15,
        )  # fmt: skip
        self.x = np.zeros((self.batch, at.problem.n_vars))
        self._zeros = (np.zeros(at.problem.n_vars), np.zeros(at.problem.n_cons))

    def solve(self) -> None:
        """Solves all of them from zero."""
        for b, numbers in enumerate(self._numbers):
            self._solver.update(**numbers)
            self._solver.warm_start(x=self._zeros[0], y=self._zeros[1])
            self.x[b] = self._solver.solve(raise_error=False).x


def _never(*_: Any) -> Any:
    raise AssertionError("OSQP is measured in the rounds of every row")


BASELINES = {
    "osqp": Baseline(
        "OSQP, one core",
        _never,
        needs("osqp", "osqp"),
        {"cpu": 1, "gpu": 1},
        lambda _: 0,
        on_host=True,
    )
}
