"""Least traffic of one SQP iteration that streams its factor from memory.

Reads: a solver.  Produces: bytes by phase: the yardstick that `floor_fraction` refers to.
"""

from __future__ import annotations

import numpy as np

from warpmpc.mpc.solver import MPCSolver
from warpmpc.qp.loops.kernels import KernelLoop
from warpmpc.qp.scaling import EQUALITY_TOLERANCE
from warpmpc.symbolic.derivatives.stage_model import RowKind, row_kinds
from warpmpc.symbolic.elimination import StoredElimination


def counted_bytes(solver: MPCSolver) -> dict[str, int]:
    """Bytes that one instance must move in one SQP iteration, if nothing but a stage stays on chip.

    With n variables, m rows, N = n + m nodes, and `leaves` rows that are eliminated before anything
    has changed them (their part of the solution follows from their right-hand side):

    - "linearize_factor": z and x0 are read; L, the inverse pivots but for leaves, q and both
      bounds are written.
      Parameters that all instances share are not counted, nor K and A: they need not exist.
    - "admm", per iteration.  Forward: L, the pivots but for leaves, x and q of the variables and
      the right-hand side of the rows are read, the solution but for leaves is written.  Backward: L
      again, that solution, x and v of all nodes and the bounds are read; x, v and the right-hand
      side of the rows are written.  Equalities have one bound.  The reciprocal of rho is a
      setting, and not counted.
    - "line_search": z, the direction and x0 are read, z is written.  Cost and violation of all step
      lengths need no more.

    Returns:
        Bytes of these phases, and their sum "total".
    """
    problem, program = solver.problem, program_of(solver)
    n, m = problem.n_vars, problem.n_cons
    nodes, L = program.n_nodes, program.n_L
    kept = nodes - n_leaves(program, solver.qp.n_vars)
    forward = L + kept + 2 * n + m + kept
    backward = L + kept + nodes + n_bounds(solver) + nodes + m
    counts = {
        "linearize_factor": (n + problem.n_x0) + (L + kept + n + 2 * m),
        "admm": solver.qp.settings.max_iter * (forward + backward),
        "line_search": (2 * n + problem.n_x0) + n,
    }
    counts = {name: np.dtype(solver.dtype).itemsize * count for name, count in counts.items()}
    return {**counts, "total": sum(counts.values())}


def onchip_bytes(solver: MPCSolver) -> dict[str, int]:
    """Bytes where a solve is one launch: trajectories and QP states are read and written once.

    Returns:
        Bytes of one SQP iteration, as "onchip" and "total".
    """
    problem, iterations = solver.problem, solver.settings.max_iter
    values = 4 * (problem.n_vars + problem.n_cons) + problem.n_x0
    count = -(-np.dtype(solver.dtype).itemsize * values // iterations)
    return {"onchip": count, "total": count}


def n_bounds(solver: MPCSolver) -> int:
    """Values that determine the bounds of all rows."""
    one = (RowKind.EQUALITY, RowKind.LOWER, RowKind.UPPER)
    kinds = row_kinds(solver.problem, EQUALITY_TOLERANCE)
    return sum(1 if kind in one else 2 for kind in kinds)


def program_of(solver: MPCSolver) -> StoredElimination:
    """The elimination that the kernels of a solver run."""
    if not isinstance(solver.qp.loop, KernelLoop):
        raise TypeError(f"Engine {solver.engine!r} does not stream a factor.")
    return solver.qp.loop.program


def n_leaves(program: StoredElimination, n_vars: int) -> int:
    """Rows of A that nothing has changed when their turn comes: their row of L is empty."""
    elimination = program.elimination
    untouched = np.setdiff1d(np.arange(elimination.n), elimination.L_pattern.row_idx)
    return int(np.count_nonzero(np.asarray(elimination.perm)[untouched] >= n_vars))
