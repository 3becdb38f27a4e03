"""QPs with soft rows: a table of batches, and the same QPs with slack variables as oracle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import osqp
import scipy.sparse as sp
from qp_cases import INF, QP, QPBatch, ring

from warpmpc import ADMMSettings, QPSolver, StagedSettings

BATCH = 33
SOFT_ROWS = np.array([7, 1, 4, 9, 2])
# What the penalties of an instance are like; instance b has kind b % 6.
KINDS = ("linear", "quadratic", "both", "hard below", "hard above", "some rows hard")
# Engine of a solver and further arguments: a ring is one stage.
_ONE_STAGE = [0] * 20
ENGINES: dict[str, dict[str, Any]] = {
    "dense": {"engine": "dense"},
    "sparse": {"engine": "sparse"},
    "unrolled": {"engine": "staged", "stages": _ONE_STAGE, "staged": StagedSettings("unrolled")},
    "panels": {"engine": "staged", "stages": _ONE_STAGE, "staged": StagedSettings("panels")},
}


@dataclass(frozen=True, eq=False)
class SoftBatch:
    """A batch with penalties of its soft rows."""

    given: QPBatch
    penalties: np.ndarray

    @property
    def args(self) -> tuple[np.ndarray, ...]:
        return self.given.args

    def copy(self) -> SoftBatch:
        return SoftBatch(self.given.copy(), self.penalties.copy())

    def solve(self, solver: QPSolver, **more: Any):
        dtype = solver.dtype
        args = (array.astype(dtype) for array in self.args)
        return solver.solve(*args, penalties=self.penalties.astype(dtype), **more)

    def violations(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Penalties of the lower and upper bounds of the soft rows."""
        low, high = self.given.lower[:, SOFT_ROWS], self.given.upper[:, SOFT_ROWS]
        return np.maximum(low - s, 0), np.maximum(s - high, 0)


@cache
def soft_ring() -> SoftBatch:
    """Rings whose soft rows are violated, at a bound or inside; do not write to it."""
    given, rng = ring(BATCH).copy(), np.random.default_rng(5)
    given.q[:] *= 2
    penalties = rng.uniform(0.2, 2, (BATCH, 4, SOFT_ROWS.size))
    kind = np.array(KINDS)[np.arange(BATCH) % len(KINDS)]
    penalties[kind == "linear", 2:] = 0
    penalties[kind == "quadratic", :2] = 0
    penalties[kind == "hard below", 0] = INF
    penalties[kind == "hard above", 1] = INF
    penalties[kind == "some rows hard", :2, :2] = INF
    # Soft equalities, and soft rows of one side only.
    given.upper[::4, SOFT_ROWS[3]] = given.lower[::4, SOFT_ROWS[3]] = 0.5
    given.lower[1::4, SOFT_ROWS[4]], given.upper[1::4, SOFT_ROWS[4]] = -INF, -0.2
    return SoftBatch(given, penalties)


def with_slacks(qp: QP, rows: np.ndarray, penalties: np.ndarray) -> QP:
    """The same problem with hard rows only: x, then how far each soft row is below and above."""
    k, hard = rows.size, np.isinf(penalties[:2])
    weights = np.where(np.isinf(penalties), 0, penalties)
    give = sp.csc_matrix((np.ones(k), (rows, np.arange(k))), shape=(qp.A.shape[0], k))
    eye = sp.identity(k)
    A = sp.bmat([[qp.A, give, -give], [None, eye, None], [None, None, eye]], format="csc")
    P = sp.block_diag([qp.P, sp.diags(weights[2]), sp.diags(weights[3])], format="csc")
    q = np.concatenate([qp.q, weights[0], weights[1]])
    lower = np.concatenate([qp.lower, np.zeros(2 * k)])
    upper = np.concatenate([qp.upper, np.where(hard, 0, INF).ravel()])
    return QP(P, q, A, lower, upper)


@dataclass(frozen=True, eq=False)
class Exact:
    """What OSQP finds with slack variables, polished."""

    x: np.ndarray
    y: np.ndarray
    objective: float


@cache
def exact(b: int) -> Exact:
    """Solution of an instance of `soft_ring`."""
    batch = soft_ring()
    return solve_exactly(batch.given.instance(b), SOFT_ROWS, batch.penalties[b])


def solve_exactly(qp: QP, rows: np.ndarray, penalties: np.ndarray) -> Exact:
    big, solver = with_slacks(qp, rows, penalties), osqp.OSQP()
    options = {"eps_abs": 1e-10, "eps_rel": 1e-10, "max_iter": 200_000, "polishing": True}
    solver.setup(big.P, big.q, big.A, big.lower, big.upper, verbose=False, **options)
    result = solver.solve(raise_error=True)
    return Exact(result.x[: qp.q.size], result.y[: qp.lower.size], float(result.info.obj_val))


_SOLVERS: dict[tuple[Any, ...], QPSolver] = {}


def soft_solver(
    engine: str = "sparse", settings: ADMMSettings | None = None, dtype: str = "float64"
) -> QPSolver:
    """Solver of `soft_ring`, one per test process."""
    key = (engine, settings, dtype)
    if key not in _SOLVERS:
        given = soft_ring().given
        options = {"soft_rows": SOFT_ROWS, **ENGINES[engine]}
        _SOLVERS[key] = QPSolver(given.P, given.A, settings, dtype, **options)
    return _SOLVERS[key]


CART_ROWS = np.array([2, 6, 14, 18])


@cache
def carts() -> tuple[SoftBatch, np.ndarray]:
    """Carts over five stages that start anywhere, and the stage of each variable and row.

    Variables of a stage: position, speed, force.  Rows: position and speed (initial, or from the
    stage before), bounds of the position, bounds of the force.  Bounds of the position are soft;
    in the middle stage it has none and its row is not soft.
    """
    n_stages, dt, rng = 5, 0.3, np.random.default_rng(2)
    entries = []
    for k in range(n_stages):
        row, col = 4 * k, 3 * k
        entries += [(row, col, -1.0), (row + 1, col + 1, -1.0)]
        entries += [(row + 2, col, 1.0), (row + 3, col + 2, 1.0)]
        if k:
            entries += [(row, col - 3, 1.0), (row, col - 2, dt)]
            entries += [(row + 1, col - 2, 1.0), (row + 1, col - 1, dt)]
    rows, cols, values = (np.array(part) for part in zip(*entries, strict=True))
    A = sp.csc_matrix((values, (rows, cols)))
    P = sp.diags(np.tile([1.0, 0.1, 0.5], n_stages), format="csc")
    lower, upper = np.zeros((BATCH, A.shape[0])), np.zeros((BATCH, A.shape[0]))
    lower[:, 2::4], upper[:, 2::4] = -0.5, 0.6
    lower[:, 3::4], upper[:, 3::4] = -1.0, 1.0
    lower[:, 10], upper[:, 10] = -INF, INF
    lower[:, :2] = upper[:, :2] = rng.normal(size=(BATCH, 2))
    P_vals, A_vals = (np.tile(matrix.data, (BATCH, 1)) for matrix in (P, A))
    given = QPBatch(P, A, P_vals, rng.normal(size=(BATCH, P.shape[0])), A_vals, lower, upper)
    penalties = rng.uniform(0.5, 5, (BATCH, 4, CART_ROWS.size))
    penalties[::2, 2:] = 0
    stage = np.arange(n_stages)
    return SoftBatch(given, penalties), np.concatenate([np.repeat(stage, 3), np.repeat(stage, 4)])
