"""The closed loop that is measured, and what is kept of it.

Reads: a solver with its system, initial states.  Produces: `MeasuredLoop`, which also holds where
some instances were before some steps, so that single solves can be repeated in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.mpc.types import MPCWarmStart
from warpmpc.sim.types import Rollout
from warpmpc_bench.mpc.variants import Built

RESIDUALS = ("primal_residual", "dual_residual")
# What is kept of every solve, and its dtype; None: that of the solver, which holds all of them.
KEPT = {
    **dict.fromkeys(("cost", "violation", "theta", "step_length", *RESIDUALS)),
    "status": "int32",
    "iterations": "int32",
    "accepted": "bool",
}
MOST_PARTS = 5


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MeasuredLoop:
    """A closed loop.

    Attributes:
        rollout: Closed loops of the whole batch, with the residuals of its QPs.
        starts: States and warm starts of some instances before the steps `checked_steps`,
            ``[instances, steps, ...]`` each.
    """

    rollout: Rollout
    starts: tuple[jax.Array, MPCWarmStart]


def n_parts(steps: int) -> int:
    """Equal parts that the steps of a loop are cut into."""
    return max(parts for parts in range(1, min(steps, MOST_PARTS) + 1) if steps % parts == 0)


def checked_steps(steps: int) -> np.ndarray:
    """Steps whose solves are compared with float64: those that begin a part."""
    return np.arange(0, steps, steps // n_parts(steps))


def closed_loop(built: Built, steps: int, where: np.ndarray, x0: jax.Array) -> MeasuredLoop:
    """The closed loop of a benchmark: plant of the system, warm starts as they are.

    Args:
        built: The solver.
        steps: Solves.
        where: Instances whose starts are kept.
        x0: Initial states ``[batch, n_x]``.
    """
    parts = n_parts(steps)

    def part(state: tuple[jax.Array, MPCWarmStart], number: Any) -> tuple[Any, Any]:
        first = 0 if number is None else number * (steps // parts)
        loop = _steps(built, steps // parts, first, *state)
        end = (loop.x[:, -1], loop.warm_start)
        kept = jax.tree.map(lambda a: a[where], end)
        # Warm starts of all parts would be more than all else together.
        return end, (replace(loop, x=loop.x[:, 1:], warm_start=None), kept)  # pyright: ignore[reportArgumentType]

    numbers = _numbers(built, parts)
    (_, warm_start), (loops, ends) = jax.lax.scan(part, _begin(built, x0), numbers, length=parts)
    joined = jax.tree.map(_joined, loops)
    x = jnp.concatenate([x0[:, None], joined.x], axis=1)
    # A part starts where the one before has ended.  Reading that start itself, and not a second one
    # of a few instances, would cost a copy of it: solves overwrite where they start.
    starts = jax.tree.map(
        lambda first, after: jnp.moveaxis(jnp.concatenate([first[None], after[:-1]]), 0, 1),
        _begin(built, x0[where]),
        ends,
    )
    return MeasuredLoop(replace(joined, x=x, warm_start=warm_start), starts)


def _begin(built: Built, x0: jax.Array) -> tuple[jax.Array, MPCWarmStart]:
    return x0, built.solver.cold_start(built.solver.z_guess(x0))


def _joined(array: jax.Array) -> jax.Array:
    """``[parts, batch, steps of a part, ...]`` to ``[batch, steps, ...]``."""
    parts, batch, steps, *rest = array.shape
    return jnp.moveaxis(array, 0, 1).reshape(batch, parts * steps, *rest)


def halfway(built: Built, steps: int, x0: jax.Array) -> Any:
    """State and warm start after the first half of a closed loop."""
    return continued(built, steps // 2, 0, *_begin(built, x0))


def continued(built: Built, steps: int, first: int, x: jax.Array, warm_start: MPCWarmStart) -> Any:
    """More steps of a closed loop, from the step `first` on; returns its end."""
    loop = _steps(built, steps, first, x, warm_start)
    return loop.x[:, -1], loop.warm_start


def _numbers(built: Built, count: int) -> jax.Array | None:
    """Numbers of steps or parts, where the parameters of a solve depend on them."""
    return None if built.system.references is None else jnp.arange(count)


def _steps(built: Built, steps: int, first: Any, x: jax.Array, warm_start: MPCWarmStart) -> Rollout:
    """Solve, apply, simulate: the steps of `rollout` without its search for instances without past.

    That search makes new arrays of all warm starts and a dozen small kernels in every step, which
    a batch of one would notice.  An instance that is not finite stays so, and fails the row.  The
    published loops do not move warm starts along the horizon.

    Args:
        built: The solver.
        steps: Solves.
        first: Number of the first step.
        x: States.
        warm_start: Where the first solve begins.
    """
    solver, system = built.solver, built.system
    rows = solver.problem.u_rows
    assert rows is not None  # all systems have inputs

    def step(state: tuple[jax.Array, MPCWarmStart], number: Any) -> tuple[Any, jax.Array]:
        params = None if number is None else system.params_at(first + number, state[0])
        solution = solver.solve(state[0], params, state[1])
        u = solution.z[:, rows[0]]
        after = system.simulate(state[0], u)
        numbers = [getattr(solution, name)[:, None].astype(u.dtype) for name in KEPT]
        # Kept as one array: each one of them would be another kernel in every step.
        return (after, solution.warm_start), jnp.concatenate([after, u, *numbers], axis=1)

    numbers = _numbers(built, steps)
    (_, end), kept = jax.lax.scan(step, (x, warm_start), numbers, length=steps)
    return _unpacked(kept, x, rows.shape[1], end)


def _unpacked(kept: jax.Array, x: jax.Array, n_u: int, warm_start: MPCWarmStart) -> Rollout:
    """A closed loop from rows ``[steps, batch, values]`` of states, inputs and `KEPT`."""
    rows, n_x = jnp.moveaxis(kept, 0, 1), x.shape[1]
    after, u = rows[..., :n_x], rows[..., n_x : n_x + n_u]
    seen = {
        name: rows[..., n_x + n_u + i].astype(KEPT[name] or kept.dtype)
        for i, name in enumerate(KEPT)
    }
    recorded = {name: seen.pop(name) for name in RESIDUALS}
    return Rollout(
        x=jnp.concatenate([x[:, None], after], axis=1),
        u=u,
        **seen,
        reset=jnp.zeros_like(seen["accepted"]),
        recorded=recorded,
        warm_start=warm_start,
    )
