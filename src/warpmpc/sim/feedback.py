"""Controllers with a state of their own in closed loop: networks, mixtures, or wrapped solvers.

Reads: a controller with `act(x, memory)`.  Produces: the interface of a solver that `ClosedLoop`
calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from warpmpc._errors import ProblemError
from warpmpc.mpc.types import MPCStatus
from warpmpc.sim.closed_loop import call
from warpmpc.sim.types import Controller


@runtime_checkable
class Feedback(Protocol):
    """The interface of a controller that `rollout` takes in place of an `MPCSolver`.

    `memory` is any pytree of arrays ``[batch, n]``, an empty tuple included.  If it is a dict,
    ``rollout(..., record=("label",))`` records its entry "label".  Names of attributes of a
    `Rollout`, such as "theta", are not available for such entries.

    Both methods may have one more argument `params`, which gets the argument `params` of `rollout`.
    With it, new weights of a network do not compile a new program.
    """

    dtype: str

    def start(self, x: jax.Array) -> Any:
        """Memory of instances without a past; x is ``[batch, n_x]``."""
        ...

    def act(self, x: jax.Array, memory: Any) -> tuple[jax.Array, Any]:
        """Inputs ``[batch, n_u]`` at the states x, and the memory for the next step."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class FeedbackMemory:
    """Memory of a controller, with an empty array that tells the size of the batch."""

    own: Any
    batch: jax.Array


@dataclass(frozen=True, eq=False)
class Answer:
    """The result of one call of a controller, with the attributes of a `Solution` in a loop."""

    u: jax.Array
    warm_start: FeedbackMemory
    status: jax.Array
    iterations: jax.Array
    cost: jax.Array
    violation: jax.Array
    theta: jax.Array
    step_length: jax.Array
    accepted: jax.Array

    def __getattr__(self, name: str) -> Any:
        """An entry of the controller's memory."""
        own = self.warm_start.own
        if isinstance(own, Mapping) and name in own:
            return own[name]
        raise AttributeError(name)


@dataclass(frozen=True)
class FeedbackSolver:
    """A controller with the methods of a solver; equal ones share their compiled program."""

    controller: Feedback

    @property
    def dtype(self) -> str:
        """Type of states and inputs."""
        return self.controller.dtype

    def z_guess(self, x0: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        """The initial states and parameters, on which the first memory depends."""
        return x0, params

    def cold_start(self, z: tuple[jax.Array, Any]) -> FeedbackMemory:
        """The memory of instances without a past."""
        x, params = z
        own = call(self.controller.start, x, params=params)
        for leaf in jax.tree.leaves(own):
            if jnp.ndim(leaf) != 2 or jnp.shape(leaf)[0] != x.shape[0]:
                raise ProblemError(
                    f"The memory of a controller has arrays [batch, n] only, here [{x.shape[0]}, "
                    f"n]; start returned one of shape {list(jnp.shape(leaf))}."
                )
        return FeedbackMemory(own, x[:, :0])

    def shift(self, warm_start: FeedbackMemory) -> FeedbackMemory:
        """Controllers move their memory themselves."""
        return warm_start

    def solve(self, x0: jax.Array, params: Any, warm_start: FeedbackMemory) -> Answer:
        """Calls the controller once."""
        answer = call(self.controller.act, x0, warm_start.own, params=params)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ProblemError("act must return two things: inputs [batch, n_u] and the memory.")
        u, own = answer
        if jnp.ndim(u) != 2 or jnp.shape(u)[0] != x0.shape[0]:
            raise ProblemError(
                f"act must return inputs [{x0.shape[0]}, n_u], got shape {list(jnp.shape(u))}."
            )
        if jax.tree.structure(own) != jax.tree.structure(warm_start.own):
            raise ProblemError(
                "act must return a memory with the structure that start gave it, got "
                f"{jax.tree.structure(own)} instead of {jax.tree.structure(warm_start.own)}."
            )
        finite = jnp.isfinite(u).all(axis=1)
        nothing = jnp.zeros_like(x0[:, 0])
        return Answer(
            u=u[:, None],
            warm_start=FeedbackMemory(own, warm_start.batch),
            status=jnp.where(finite, int(MPCStatus.CONVERGED), int(MPCStatus.NON_FINITE)),
            iterations=jnp.zeros(x0.shape[0], dtype=jnp.int32),
            cost=nothing,
            violation=nothing,
            theta=nothing,
            step_length=nothing,
            accepted=finite,
        )


def as_solver(solver: Any, method: str = "solve") -> Any:
    """Wraps a controller as a solver; a solver is returned unchanged."""
    if not isinstance(solver, type) and isinstance(solver, Controller):
        return solver
    if not isinstance(solver, type) and isinstance(solver, Feedback):
        if method == "solve":
            return FeedbackSolver(solver)
        raise ProblemError(f'method="{method}" is for an MPCSolver; other controllers have none.')
    name = f"the class {solver.__name__}" if isinstance(solver, type) else type(solver).__name__
    raise ProblemError(
        "rollout needs an MPCSolver, or a controller with `dtype`, `start(x)` and `act(x, memory)`"
        f"; {name} is neither."
    )
