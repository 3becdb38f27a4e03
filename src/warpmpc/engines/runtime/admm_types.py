"""What goes into and comes out of the kernels that run a whole ADMM loop."""

from __future__ import annotations

from dataclasses import dataclass

import jax

UNCHECKED = -1


@dataclass(frozen=True, eq=False)
class LoopData:
    """What an ADMM loop reads, in program order, ``[tiles, nodes, 32]`` each.

    What depends on rho is handed over beside it, as R: 1/rho of rows, then four numbers for each
    soft row, in the order of the kernels' `soft_nodes`: a and b of the lower, a and b of the upper
    side (`qp.soft`).

    Attributes:
        K: Values of K.
        Q: Linear cost of variables, lower bounds of rows.
        U: Upper bounds of rows.
        S: Start value of s of rows.
        size: Unscaled x or y over scaled ones; one row of anything if nothing is scaled.
        cost: Scale of the cost, ``[tiles, 1, 32]``; likewise.
        scaled: Whether something is scaled.
    """

    K: jax.Array
    Q: jax.Array
    U: jax.Array
    S: jax.Array
    size: jax.Array
    cost: jax.Array
    scaled: bool


@dataclass(frozen=True)
class LoopLimits:
    """When an ADMM loop checks and ends.

    `check_every` may be 0: residuals are known at the end only; or `UNCHECKED`: never, and status,
    iterations and report stay as they are.
    """

    check_every: int
    span: int
    max_iter: int


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LoopState:
    """What an ADMM loop changes.

    X holds x and v, `report` primal residual and its scale, dual residual and its scale, objective.
    """

    X: jax.Array
    status: jax.Array
    iterations: jax.Array
    report: jax.Array
