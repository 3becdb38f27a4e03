"""One batch of the linear MPC on the device, and the check of its solutions and gradients.

Reads: `systems.linear_mpc`.  Produces: device arrays in which every instance has its own copy of P
and A, and deviations of a sample of instances from `warpmpc_bench.qp.oracle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from warpmpc.qp.types import ADMMSettings, Status
from warpmpc.systems import linear_mpc
from warpmpc_bench.common.checking import finite_max, rows_of, spread
from warpmpc_bench.qp import oracle as qp_oracle
from warpmpc_bench.qp.oracle import Instance

ITERATIONS = 25
SETTINGS = ADMMSettings(max_iter=ITERATIONS, check_every=0, adaptive_rho_every=0, scaling=0)
CHECKED = 32  # instances whose iterates are compared
COMPARED = 4  # instances whose gradients or exact solutions are compared
LIMITS = {"float32": 1e-3, "float64": 1e-9}
# Gradients at the point the solver found: relative deviation of each of the five arrays.
GRADIENT_LIMITS = {
    "kkt": {"float32": 1e-4, "float64": 1e-9},
    "lsq": {"float32": 0.5, "float64": 1e-6},  # float32 cannot refine its regularisation away
}


@dataclass(frozen=True)
class QPAccuracy:
    """How well a batch was solved.

    Attributes:
        against: Name of the reference.
        differences: Largest deviation of the checked instances, by what is compared; None if one
            is not finite.  x, y and gradients are relative to the largest entry of the reference.
        limits: Largest allowed deviations; one without a limit is reported but decides nothing.
        checked: Number of instances checked, first and last among them.
        failed: Instances of the whole batch without a finite solution.
    """

    against: str
    differences: dict[str, float | None]
    limits: dict[str, float]
    checked: int
    failed: int

    @property
    def correct(self) -> bool:
        """Whether everything that was compared is within its limit."""
        judged = [(self.differences[name], limit) for name, limit in self.limits.items()]
        within = all(found is not None and found <= limit for found, limit in judged)
        return self.failed == 0 and self.checked > 0 and within


class QPCase:
    """A batch with its values on the device, or on the host for solvers that run there."""

    def __init__(
        self,
        batch: int,
        dtype: str,
        horizon: int = linear_mpc.HORIZON,
        *,
        gradient: bool = False,
        on_host: bool = False,
    ):
        """Draws initial states and fills the batch.

        Args:
            batch: Number of instances.
            dtype: "float32" or "float64".
            horizon: Horizon of the MPC.
            gradient: Whether the batch is that of the gradient benchmark (another seed).
            on_host: NumPy arrays instead of device arrays.
        """
        self.batch, self.dtype, self.horizon = batch, dtype, horizon
        self.problem = linear_mpc.build(horizon)
        seed = linear_mpc.gradient_seed(batch) if gradient else 1 + batch
        self.generator = f"numpy.random.default_rng({seed})"
        self._xp: Any = np if on_host else jnp
        x_init = self._xp.asarray(linear_mpc.sample(batch, seed), dtype=dtype)
        shared = (self.problem.P.data, self.problem.q, self.problem.A.data)
        P, q, A = (self._filled(values) for values in shared)
        self.args = jax.block_until_ready((P, q, A, *self.problem.bounds(x_init)))

    def _filled(self, values: np.ndarray) -> Any:
        """A copy of the values for each instance."""
        row = self._xp.asarray(values, dtype=self.dtype)[None]
        return self._xp.repeat(row, self.batch, axis=0)

    @cached_property
    def cotangents(self) -> tuple[Any, Any]:
        """Cotangents of x and y, for gradients."""
        x_bar, y_bar = linear_mpc.sample_cotangents(self.batch, self.horizon)
        return tuple(self._xp.asarray(bar, dtype=self.dtype) for bar in (x_bar, y_bar))  # pyright: ignore[reportReturnType]

    @cached_property
    def chosen(self) -> np.ndarray:
        """Checked instances, spread over the batch."""
        return spread(self.batch, CHECKED)

    @cached_property
    def instances(self) -> list[Instance]:
        """The checked instances in float64, from the values on the device."""
        rows = (rows_of(array, self.chosen) for array in self.args)
        P, A = self.problem.P, self.problem.A
        return [
            Instance(_matrix(P, P_vals), q, _matrix(A, A_vals), lower, upper)
            for P_vals, q, A_vals, lower, upper in zip(*rows, strict=True)
        ]

    @cached_property
    def _reference(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [qp_oracle.iterates(qp, SETTINGS) for qp in self.instances]

    @cached_property
    def _optima(self) -> list[tuple[int, np.ndarray]]:
        """Some of the checked instances with their exact solutions, where there is one."""
        found = ((at, qp_oracle.optimum(self.instances[at])) for at in self._few())
        return [(at, x) for at, x in found if x is not None]

    def _few(self) -> list[int]:
        return spread(self.chosen.size, COMPARED).tolist()

    def iterates(
        self, x: Any, y: Any, status: Any | None = None, limit: float | None = None
    ) -> QPAccuracy:
        """Compares x and y ``[batch, ...]`` with those of the same iterations by the oracle.

        Args:
            x: Minimisers found.
            y: Multipliers found.
            status: `Status` per instance, if the solver tells.
            limit: Largest relative deviation; by the dtype if None.
        """
        found = zip(rows_of(x, self.chosen), rows_of(y, self.chosen), strict=True)
        pairs = [
            [_relative(a, b) for a, b in zip(mine, theirs, strict=True)]
            for mine, theirs in zip(found, self._reference, strict=True)
        ]
        differences = dict(zip("xy", map(finite_max, zip(*pairs, strict=True)), strict=True))
        limit = LIMITS[self.dtype] if limit is None else limit
        failed = 0 if status is None else int((jnp.asarray(status) >= Status.NON_FINITE).sum())
        against = f"{ITERATIONS} iterations in float64 with sparse LU"
        limits = dict.fromkeys(differences, limit)
        return QPAccuracy(against, differences, limits, self.chosen.size, failed)

    def gradients(
        self, forward: QPAccuracy, x: Any, y: Any, found: Sequence[Any], method: str
    ) -> QPAccuracy:
        """Adds the deviation of gradients, at the solver's own x and y, to that of the iterates."""
        worst: list[float] = []
        few = self.chosen[self._few()]
        points = zip(rows_of(x, few), rows_of(y, few), strict=True)
        bars = zip(*(rows_of(bar, few) for bar in self.cotangents), strict=True)
        mine = zip(*(rows_of(array, few) for array in found), strict=True)
        for at, point, bar, arrays in zip(self._few(), points, bars, mine, strict=True):
            wanted = qp_oracle.gradient(self.instances[at], point, bar, method)
            worst += [_relative(a, b) for a, b in zip(arrays, wanted, strict=True)]
        limits = {**forward.limits, "gradient": GRADIENT_LIMITS[method][self.dtype]}
        differences = {**forward.differences, "gradient": finite_max(worst)}
        against = f"{forward.against}; gradients at the same point in float64"
        return QPAccuracy(against, differences, limits, forward.checked, forward.failed)

    def optimality(self, x: Any, limit: float) -> QPAccuracy:
        """Compares solutions to a tolerance with exact ones: objective, bounds, and x itself."""
        found = rows_of(x, self.chosen)
        gaps: dict[str, list[float]] = {"objective": [], "violation": [], "x": []}
        for at, best in self._optima:
            qp = self.instances[at]
            value = qp.objective(best)
            gaps["objective"].append(abs(qp.objective(found[at]) - value) / max(abs(value), 1))
            gaps["violation"].append(qp.violation(found[at]))
            gaps["x"].append(_relative(found[at], best))
        # No limit on x: the objective is flat in some of its directions.
        limits = {"objective": limit, "violation": limit}
        differences = {name: finite_max(numbers) for name, numbers in gaps.items()}
        return QPAccuracy("exact solutions", differences, limits, len(self._optima), 0)


def _relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), np.finfo(float).tiny))


def _matrix(pattern: sp.csc_matrix, values: np.ndarray) -> sp.csc_matrix:
    return sp.csc_matrix((values, pattern.indices, pattern.indptr), shape=pattern.shape)
