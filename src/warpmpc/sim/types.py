"""The interface of a solver in a closed loop, and the result of a closed loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.mpc.types import MPCStatus, MPCWarmStart

Predicate = Callable[[jax.Array, jax.Array], Any]


@runtime_checkable
class Controller(Protocol):
    """The part of `MPCSolver` that a closed loop calls; all arrays are batch-first."""

    dtype: str

    def solve(self, x0: jax.Array, params: Any, warm_start: MPCWarmStart) -> Any:
        """Returns a solution with `u`, `warm_start`, `status`, `cost` and so on."""
        ...

    def step(self, z: jax.Array, params: Any, state: Any, *, x0: jax.Array) -> tuple[Any, Any]:
        """Does one iteration and returns a solution and the state for the next one."""
        ...

    def z_guess(self, x0: jax.Array, params: Any) -> jax.Array:
        """The trajectory at which an instance without a past starts."""
        ...

    def cold_start(self, z: jax.Array) -> MPCWarmStart:
        """A warm start from a trajectory."""
        ...

    def shift(self, warm_start: MPCWarmStart) -> MPCWarmStart:
        """A warm start one sampling instant later."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Rollout:
    """A batch of closed loops, ``[batch, steps]`` each unless said otherwise.

    Attributes:
        x: States ``[batch, steps + 1, n_x]``; after a reset the new ones.
        u: Inputs of the solver ``[batch, steps, n_u]``.
        status: `MPCStatus` of every solve.
        iterations: Number of SQP iterations.
        cost: Cost of the planned trajectory.
        violation: Largest violation of a row by the planned trajectory.
        theta: Violation measure of the line search.
        step_length: Last step length of the solve.
        accepted: Whether the line search accepted the last step length.
        reset: Whether the instance was reset after the step.
        recorded: Other attributes of the solutions, by name, ``[batch, steps, ...]``.
        warm_start: Warm start for the next step, ``[batch, ...]``.
    """

    x: jax.Array
    u: jax.Array
    status: jax.Array
    iterations: jax.Array
    cost: jax.Array
    violation: jax.Array
    theta: jax.Array
    step_length: jax.Array
    accepted: jax.Array
    reset: jax.Array
    recorded: dict[str, jax.Array]
    warm_start: MPCWarmStart

    @property
    def finite(self) -> jax.Array:
        """Whether all states and inputs of an instance are finite, ``[batch]``."""
        return jnp.isfinite(self.x).all(axis=(1, 2)) & jnp.isfinite(self.u).all(axis=(1, 2))

    @property
    def max_violation(self) -> jax.Array:
        """Largest violation of any plan, ``[batch]``; infinite if one of them is NaN."""
        return jnp.where(jnp.isnan(self.violation), jnp.inf, self.violation).max(axis=1)

    def success(self, predicate: Predicate) -> jax.Array:
        """Whether an instance is finite and satisfies a predicate, ``[batch]``.

        Args:
            predicate: ``predicate(x, u)`` returns one boolean for the states ``[steps + 1, n_x]``
                and inputs ``[steps, n_u]`` of one instance.
        """
        found = jax.vmap(predicate)(self.x, self.u)
        if jnp.result_type(found) != np.dtype(bool) or found.shape != self.status.shape[:1]:
            raise ProblemError(
                "predicate must return one boolean per instance, got "
                f"{jnp.result_type(found)}{list(found.shape[1:])}; compare, and reduce with "
                "jnp.all or jnp.any."
            )
        return found & self.finite

    def success_rate(self, predicate: Predicate) -> jax.Array:
        """Fraction of instances that are finite and satisfy a predicate."""
        return self.success(predicate).mean()

    def status_fractions(self) -> dict[str, float]:
        """Fraction of all solves per status; statuses that do not occur are left out."""
        values, counts = np.unique(np.asarray(self.status), return_counts=True)
        total = counts.sum()
        return {
            MPCStatus(value).name: float(count / total)
            for value, count in zip(values.tolist(), counts.tolist(), strict=True)
        }
