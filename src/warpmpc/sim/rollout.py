"""`rollout`: a solver in closed loop with a simulated system, for a whole batch at once.

The arguments of the caller are checked first.  Then the steps run as one program or, with a
progress bar, in equal parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from numbers import Integral, Number
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from warpmpc._checks import ArrayLike, check_alive, check_argument_flag, check_array
from warpmpc._errors import ProblemError, SettingsError
from warpmpc.engines.runtime.announcing import ANNOUNCER
from warpmpc.engines.runtime.batching import in_auto_axes
from warpmpc.mpc.batching import is_sharded
from warpmpc.mpc.parameters import check_names
from warpmpc.mpc.types import MPCWarmStart, Solution
from warpmpc.sim.closed_loop import ClosedLoop, Function, LoopState, joined, run, taken
from warpmpc.sim.feedback import Feedback, FeedbackMemory, FeedbackSolver, as_solver
from warpmpc.sim.progress import ProgressBar, Report, chunk_length
from warpmpc.sim.types import Controller, Rollout

METHODS = ("solve", "step")
# For each function of the caller: the number of positional arguments, then those it may name.
ARGUMENTS = {
    "simulate": (2, ("t", "key", "plant")),
    "params": (1, ("x",)),
    "disturbance": (0, ("key", "x", "u", "t")),
    "resets": (1, ("t", "key")),
}


@in_auto_axes
def rollout(  # noqa: PLR0913  (one function, as users expect; most arguments are optional)
    solver: Controller | Feedback,
    simulate: Function,
    x0: ArrayLike,
    steps: int,
    *,
    params: Any = None,
    plant: Any = None,
    disturbance: Function | None = None,
    resets: Function | None = None,
    key: jax.Array | None = None,
    warm_start: MPCWarmStart | FeedbackMemory | ArrayLike | None = None,
    method: str = "solve",
    shift: bool = True,
    start: int = 0,
    record: Sequence[str] = (),
    progress: bool | Report = False,
) -> Rollout:
    """Simulates a solver in closed loop, all instances and steps on the device.

    ```python
    result = wm.rollout(solver, simulate, x0, 200, disturbance=wind, key=jax.random.key(0))
    result.success_rate(lambda x, u: jnp.abs(x[-1, 0]) < 0.1)
    ```

    Each step solves from the last solution, moved by one node, applies the first input, adds the
    disturbance, and resets instances.  The functions are JAX functions of whole batches
    (``[batch, n]``).  They get their arguments by the names below, where `t` is the number of the
    step and `key` a random key for this function and step.  A function may leave out arguments that
    it does not need, apart from x and u of `simulate`, t of `params` and x of `resets`.  Instances
    do not influence each other, even if the state of one is not finite.  The result is
    differentiable if the solver and the functions are; memory then grows with the number of steps.

    States that are spread over devices along the batch stay so, and so do all results.

    The program is compiled once for the same solver, functions and number of steps.  Therefore pass
    the same function objects again, and pass values that change as `params`, `plant` or `x0`.

    Args:
        solver: An `MPCSolver`, or any controller with the methods of `Feedback`.
        simulate: ``simulate(x, u, t, key, plant)``: the next states.
        x0: Initial states ``[batch, n_x]``.
        steps: Number of steps.
        params: Parameters of the solver, constant over time, or a function ``params(t, x)`` that
            returns them (references that change with time).
        plant: Parameters of the simulated system, any pytree of arrays; handed to `simulate`.
        disturbance: ``disturbance(key, x, u, t)``, whose result is added to the next states.
        resets: ``resets(x, t, key)`` returns which instances begin anew, ``[batch]``, and new
            states, ``[batch, n_x]``; the solver starts from its guess for them.
        key: Random key for the functions that take one.
        warm_start: Start of the first step, such as `Rollout.warm_start`; None stands for the
            guess.
        method: "solve", or "step" for one SQP iteration per step (real-time iteration).
        shift: Whether warm starts move by one node, as is right if a step simulates one interval
            of the horizon.
        start: Number of the first step; a rollout that continues another one begins later than 0.
        record: Attributes of the solutions to keep for every step, such as "z" or "kkt_residual".
        progress: True for a bar on a terminal, or a function of (steps done, steps); the host then
            waits a few times.  It has no effect inside `jax.jit` and `jax.grad`.
    """
    _check_steps(steps, "steps", 1)
    _check_steps(start, "start", 0)
    if method not in METHODS:
        raise SettingsError(f"method must be one of {METHODS}, got {method!r}.")
    if isinstance(record, str):
        raise ProblemError(f"record must be a sequence of names; pass [{record!r}].")
    if not isinstance(record, Sequence) or not all(isinstance(name, str) for name in record):
        raise ProblemError(f"record must be a sequence of names, got {record!r}.")
    check_argument_flag("shift", shift)
    if not callable(progress):
        check_argument_flag("progress", progress)
    varying = params if callable(params) else None
    _check_function("simulate", simulate, key)
    optional = {"params": varying, "disturbance": disturbance, "resets": resets}
    for name, function in optional.items():
        if function is not None:
            _check_function(name, function, key)
    asked = as_solver(solver, method)
    _check_arrays(None if varying else params, "params")
    _check_arrays(plant, "plant")
    _check_key(key)
    loop = ClosedLoop(asked, simulate, method, shift, varying, disturbance, resets, tuple(record))
    data = (None if varying else params, plant, key)
    state = _begin(loop, data, x0, warm_start, start)
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((state, data)))
    report = ProgressBar() if progress is True else progress
    if not report or traced:
        with ANNOUNCER.call():
            end, seen = run(loop, steps, state, data, jnp.int32(start))
    else:
        end, seen = _in_parts(loop, steps, state, data, start, report)
    x = jnp.concatenate([state.x[:, None], seen.pop("x")], axis=1)
    return Rollout(x=x, **seen, warm_start=end.warm_start)


def _in_parts(
    loop: ClosedLoop, steps: int, state: LoopState, data: Any, start: int, report: Report
) -> tuple[LoopState, dict[str, Any]]:
    length = chunk_length(steps)
    parts: list[dict[str, Any]] = []
    for done in range(0, steps, length):
        with ANNOUNCER.call():
            state, seen = run(loop, length, state, data, jnp.int32(start + done))
        jax.block_until_ready(state)
        parts.append(seen)
        report(done + length, steps)
    return state, joined(parts)


def _begin(loop: ClosedLoop, data: Any, x0: Any, warm_start: Any, start: int) -> LoopState:
    if getattr(x0, "ndim", None) != 2:
        raise ProblemError(
            f"x0 needs the shape [batch, n_x], got {list(np.shape(x0))}; for one instance pass "
            "x0[None]."
        )
    x = check_array(x0, "x0", x0.shape[1], loop.solver.dtype)
    if warm_start is None:
        # The first step replaces these zeros by the guess, which its program computes anyway.
        shapes = jax.eval_shape(loop.guess, data[0], x, jnp.int32(start))
        # If the states are spread over devices, the warm starts are as well.
        where: dict[str, Any] = {"device": x.sharding} if is_sharded(x) else {}
        warm = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype, **where), shapes)
        return LoopState(x, warm, jnp.ones(x.shape[0], dtype=bool))
    if isinstance(warm_start, Solution):
        raise ProblemError("warm_start is a Solution; pass its `warm_start` instead.")
    if not isinstance(warm_start, MPCWarmStart | FeedbackMemory):
        if isinstance(loop.solver, FeedbackSolver):
            raise ProblemError(
                "The warm start of a controller is `Rollout.warm_start` of an earlier rollout, got "
                f"{type(warm_start).__name__}."
            )
        warm_start = loop.solver.cold_start(warm_start)
    check_alive(warm_start, "warm_start")
    leading = {leaf.shape[:-1] for leaf in jax.tree.leaves(warm_start)}
    if not leading <= {(), x.shape[:1]}:
        raise ProblemError(
            f"warm_start has leading axes {sorted(map(list, leading))}, x0 has {x.shape[0]} "
            "instances; pass one warm start for each, or one for all."
        )
    warm = jax.tree.map(lambda a: jnp.broadcast_to(a, (x.shape[0], a.shape[-1])), warm_start)
    return LoopState(x, warm, jnp.zeros(x.shape[0], dtype=bool))


def _check_arrays(given: Any, name: str) -> None:
    """Refuses what is no tree of arrays and numbers; a dict has names of one type."""
    check_names(given)
    for leaf in jax.tree.leaves(given):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | Number):
            raise ProblemError(
                f"{name} must be an array or a tree of arrays, such as a dict; it contains "
                f"{leaf!r}."
            )


def _check_key(key: Any) -> None:
    """Refuses what is no random key of JAX, such as a seed."""
    if key is None:
        return
    if not isinstance(key, jax.Array) or not (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == np.uint32
    ):
        raise ProblemError(
            f"key must be a random key such as jax.random.key(0), got {type(key).__name__}."
        )


def _check_steps(value: Any, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ProblemError(f"{name} must be an integer, at least {least}, got {value!r}.")


def _check_function(name: str, function: Any, key: Any) -> None:
    """Refuses a function that cannot be called as documented or that has no hash."""
    if not callable(function):
        raise ProblemError(f"{name} must be a function, got {type(function).__name__}.")
    try:
        hash(function)
        signature = inspect.signature(function)
    except (TypeError, ValueError) as reason:
        raise ProblemError(
            f"{name} needs a hash, so that its program is found again, and a readable signature "
            f"({reason}); wrap it into a function."
        ) from None
    n_positional, offered = ARGUMENTS[name]
    names = taken(function, offered)
    try:
        signature.bind(*range(n_positional), **dict.fromkeys(names))
    except TypeError as reason:
        raise ProblemError(
            f"{name}{signature} cannot be called ({reason}): it gets {n_positional} arguments by "
            f"position, and {', '.join(offered)} if it names them so."
        ) from None
    if "key" in names and key is None:
        raise ProblemError(
            f"{name} takes a random key; pass one to rollout: key=jax.random.key(0)."
        )
