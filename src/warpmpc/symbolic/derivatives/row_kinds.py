"""What the bounds of a row tell before any number is known.

Reads: an `MPCProblem` and the nodes of a `StageElimination`.  Produces: a `RowKind` per row and per
node of a stage.  Kernels that know it read neither 1/rho nor a second bound from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import casadi as ca
import numpy as np

from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.symbolic.derivatives.stage_model import are_equal
from warpmpc.symbolic.stage_elimination import StageElimination, StageRun


class RowKind(Enum):
    """Which bounds a row has, in every instance."""

    UNKNOWN = "depends on the instance"
    EQUALITY = "two equal bounds"
    BOTH = "two bounds apart"
    LOWER = "a lower bound"
    UPPER = "an upper bound"


def row_kinds(problem: MPCProblem, apart: float) -> list[RowKind]:
    """Kind of each row of a problem.

    Args:
        problem: The stages.
        apart: Least distance of constant bounds that make no equality.
    """
    kinds = [RowKind.UNKNOWN] * problem.n_cons
    for group in problem.groups:
        stage = group.stage
        for i in range(stage.g.numel()):
            kind = _kind(stage.lower[i], stage.upper[i], apart)
            for k in group.ks:
                kinds[int(problem.g_offset[k]) + i] = kind
    return kinds


def _kind(lower: ca.SX, upper: ca.SX, apart: float) -> RowKind:
    below, above = (float(b) if b.is_constant() else None for b in (lower, upper))
    if (below == -np.inf) != (above == np.inf):
        return RowKind.UPPER if below == -np.inf else RowKind.LOWER
    if are_equal(lower, upper):
        return RowKind.EQUALITY
    if below is not None and above is not None and np.isfinite([below, above]).all():
        return RowKind.BOTH if above - below > 2 * apart else RowKind.UNKNOWN
    return RowKind.UNKNOWN


def stage_kinds(
    program: StageElimination, run: StageRun, kinds: Sequence[RowKind]
) -> list[RowKind]:
    """Kind of each node of a run's stages; `UNKNOWN` where they differ, and for variables.

    Args:
        program: The elimination.
        run: Stages with one template.
        kinds: Of the rows of the problem, or nothing.
    """
    size, n_vars = run.template.n_nodes, program.n_nodes - len(kinds)
    nodes = program.node_order[run.node : run.node + run.count * size].reshape(run.count, size)
    found = []
    for i in range(size):
        rows = nodes[:, i] - n_vars
        of_node = {kinds[row] for row in rows.tolist()} if kinds and rows.min() >= 0 else set()
        found.append(of_node.pop() if len(of_node) == 1 else RowKind.UNKNOWN)
    return found
