"""One step of a closed loop, and the scan over all steps as one program on the device.

Reads: a solver and functions of the caller.  Produces: the arrays of a `Rollout`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.mpc.types import MPCWarmStart
from warpmpc.sim.types import Controller

Function = Callable[..., Any]
_NEEDS_VALUES = (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)
SCALARS = ("status", "iterations", "cost", "violation", "theta", "step_length", "accepted")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LoopState:
    """The data that one step hands to the next one, batch-first.

    Attributes:
        x: States.
        warm_start: Warm start of the next solve.
        fresh: Whether an instance has no past, so that it starts from the guess of the problem.
    """

    x: jax.Array
    warm_start: MPCWarmStart
    fresh: jax.Array


@dataclass(frozen=True)
class ClosedLoop:
    """The fixed parts of a closed loop; equal ones share their compiled program.

    Attributes:
        solver: Solver that computes the inputs.
        simulate: Function from states and inputs to the next states.
        method: "solve" or "step".
        shift: Whether warm starts move by one node.
        params: Function from the number of the step to the parameters of the solver, or None if
            they are data.
        disturbance: Function whose result is added to the next states.
        resets: Function that says which instances begin anew, and at which states.
        record: Attributes of the solutions that are kept beside `SCALARS`.
    """

    solver: Controller
    simulate: Function
    method: str
    shift: bool
    params: Function | None
    disturbance: Function | None
    resets: Function | None
    record: tuple[str, ...]

    def parameters(self, given: Any, x: jax.Array, t: jax.Array) -> Any:
        """Parameters of the solver at a step."""
        return given if self.params is None else call(self.params, t, x=x)

    def guess(self, given: Any, x: jax.Array, t: jax.Array) -> MPCWarmStart:
        """Warm starts of instances without a past."""
        return self.solver.cold_start(self.solver.z_guess(x, self.parameters(given, x, t)))

    def step(self, data: Any, state: LoopState, t: jax.Array) -> tuple[LoopState, dict[str, Any]]:
        """Solves, simulates, disturbs and resets.

        Args:
            data: Parameters of the solver, parameters of the simulator, and the random key.
            state: State of the instances.
            t: Number of the step.
        """
        given, plant, key = data
        keys = [None] * 3 if key is None else jax.random.split(jax.random.fold_in(key, t), 3)
        x = state.x
        params = self.parameters(given, x, t)
        solution = self._solve(x, params, self._start(state, self.guess(given, x, t)))
        u = solution.u[:, 0]
        after = call(self.simulate, x, u, t=t, key=keys[0], plant=plant)
        _check_like(after, x, "simulate")
        if self.disturbance is not None:
            push = call(self.disturbance, x=x, u=u, t=t, key=keys[1])
            _check_like(push, x, "disturbance")
            after = after + push
        after, fresh = self._reset(after, t, keys[2])
        seen = {"u": u, "x": after, "reset": fresh}
        seen |= {name: getattr(solution, name) for name in SCALARS}
        seen["recorded"] = {name: _attribute(solution, name) for name in self.record}
        warm = solution.warm_start
        return LoopState(after, self.solver.shift(warm) if self.shift else warm, fresh), seen

    def _start(self, state: LoopState, guess: MPCWarmStart) -> MPCWarmStart:
        """Warm starts, with the guess for instances whose past does not exist or is not finite."""
        leaves = jax.tree.leaves(state.warm_start)
        finite = jnp.stack([jnp.isfinite(leaf).all(axis=1) for leaf in leaves]).all(axis=0)
        fresh = (state.fresh | ~finite)[:, None]
        return jax.tree.map(partial(jnp.where, fresh), guess, state.warm_start)

    def _solve(self, x: jax.Array, params: Any, start: MPCWarmStart) -> Any:
        if self.method == "step":
            return self.solver.step(start.z, params, start.qp, x0=x)[0]
        return self.solver.solve(x, params, start)

    def _reset(self, x: jax.Array, t: jax.Array, key: Any) -> tuple[jax.Array, jax.Array]:
        if self.resets is None:
            return x, jnp.zeros(x.shape[0], dtype=bool)
        found = call(self.resets, x, t=t, key=key)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ProblemError(
                "resets must return two things: which instances begin anew, and new states."
            )
        mask, new = found
        if jnp.shape(mask) != x.shape[:1] or jnp.result_type(mask) != np.dtype(bool):
            raise ProblemError(
                f"resets must return a boolean per instance, shape {x.shape[:1]}, and new states; "
                f"got shape {jnp.shape(mask)}, dtype {jnp.result_type(mask)}."
            )
        _check_like(new, x, "resets")
        return jnp.where(mask[:, None], new, x), mask


@partial(jax.jit, static_argnums=(0, 1))
def run(
    loop: ClosedLoop, steps: int, state: LoopState, data: Any, start: jax.Array
) -> tuple[LoopState, dict[str, Any]]:
    """Scans over steps; results are batch-first."""
    times = start + jnp.arange(steps, dtype=jnp.int32)
    state, seen = jax.lax.scan(partial(loop.step, data), state, times)
    return state, jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), seen)


@jax.jit
def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the results of consecutive runs."""
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), *parts)


def call(function: Function, *positional: Any, **offered: Any) -> Any:
    """Calls a function with those of the offered arguments that its signature names."""
    try:
        return function(*positional, **{name: offered[name] for name in taken(function, offered)})
    except _NEEDS_VALUES as reason:
        name = getattr(function, "__name__", type(function).__name__)
        raise ProblemError(
            f"{name} needs the values of arrays, but a closed loop is compiled as a whole: write "
            "it with jax.numpy and jax.lax (jnp.sin, jnp.where, lax.cond), or, for NumPy code and "
            "other simulators, call it through jax.pure_callback."
        ) from reason


def taken(function: Function, offered: Iterable[str]) -> list[str]:
    """The offered arguments that the signature of a function names."""
    parameters = inspect.signature(function).parameters
    return [name for name in offered if name in parameters]


def _check_like(array: Any, x: jax.Array, name: str) -> None:
    """Refuses states of another shape or dtype, which the scan cannot carry."""
    if not hasattr(array, "dtype") or (array.shape, array.dtype) != (x.shape, x.dtype):
        found = f"a {type(array).__name__}"
        if not isinstance(array, tuple | list | dict | None):
            kind = getattr(array, "dtype", type(array).__name__)
            found = f"{kind}{list(jnp.shape(array))}"
        raise ProblemError(
            f"{name} must return states like x, {x.dtype}{list(x.shape)}, got {found}; it gets "
            "whole batches, and Python numbers keep the dtype of x where NumPy arrays do not."
        )


def _attribute(solution: Any, name: str) -> jax.Array:
    value = getattr(solution, name, None)
    if not isinstance(value, jax.Array):
        raise ProblemError(
            f"record names {name!r}, which is no array of a solution; choose of z, y, x, u, "
            "qp_iterations, primal_residual, dual_residual and kkt_residual."
        )
    return value
