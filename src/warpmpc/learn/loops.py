"""Closed loops of a task: one compiled program for all noises, plants and numbers of steps.

Reads: a task, a controller, starts.  Produces: states, inputs and what the controller recorded, as
NumPy arrays.  Noise is data, and long loops are several runs of one short program, because the
expert's program takes longer to compile than a small data set to make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.learn.task import Noise, Plant, Task
from warpmpc.sim.rollout import rollout


@dataclass(frozen=True)
class Loop:
    """Closed loops on the host.

    Attributes:
        x: States ``[batch, steps + 1, n_x]``.
        u: Inputs ``[batch, steps, n_u]``.
        recorded: What the controller's memory held, by name, ``[batch, steps, n]``.
    """

    x: np.ndarray
    u: np.ndarray
    recorded: dict[str, np.ndarray]


@dataclass(frozen=True)
class World:
    """The plants of a task with noise; equal ones share compiled programs."""

    plant: Plant
    perturbed: Plant | None

    def __call__(
        self, x: jax.Array, u: jax.Array, key: jax.Array, plant: dict[str, jax.Array]
    ) -> jax.Array:
        """The next states; `plant` has half axes of the noise and says which plant it is."""
        of_state, of_input = jax.random.split(key)
        u = u + ball(of_input, u, plant["input"])
        if self.perturbed is None:
            after = self.plant(x, u)
        else:
            after = jax.lax.cond(plant["perturbed"], self.perturbed, self.plant, x, u)
        return after + ball(of_state, x, plant["state"])


def closed_loop(task: Task, controller: Any, params: Any, x0: jax.Array, **more: Any) -> Loop:
    """Simulates a batch of closed loops; the arguments are those of `begin_loop`."""
    return begin_loop(task, controller, params, x0, **more)()


def begin_loop(  # noqa: PLR0913  (what varies between closed loops of one task)
    task: Task,
    controller: Any,
    params: Any,
    x0: jax.Array,
    *,
    seed: int = 0,
    steps: int | None = None,
    noise: Noise | None = None,
    perturbed: bool = False,
    record: tuple[str, ...] = (),
) -> Callable[[], Loop]:
    """Begins to simulate a batch of closed loops; what it returns waits for them.

    Until then the device works alone, so that other devices can be given work as well.

    Args:
        task: Plant and number of steps.
        controller: What drives it.
        params: Parameters of the controller.
        x0: Initial states.
        seed: Seed of the noise.
        steps: None: those of the task.
        noise: None: without.
        perturbed: Whether the plant is `task.perturbed`.
        record: Entries of the controller's memory to keep.
    """
    steps = task.steps if steps is None else steps
    length = part_length(task, steps)
    noise = noise or Noise()
    plant = {
        "state": half_axes(noise.state, task.n_x, task.dtype),
        "input": half_axes(noise.input, task.n_u, task.dtype),
        "perturbed": jnp.asarray(perturbed),
    }
    world, key = World(task.plant, task.perturbed), jax.random.key(seed)
    x, warm, parts = x0, None, []
    for start in range(0, steps, length):
        found = rollout(
            controller,
            world,
            x,
            length,
            params=params,
            plant=plant,
            key=key,
            warm_start=warm,
            start=start,
            record=record,
        )
        x, warm = found.x[:, -1], found.warm_start
        parts.append({"x": found.x[:, 1:], "u": found.u, **found.recorded})

    def fetched(name: str) -> list[np.ndarray]:
        return [np.asarray(part[name]) for part in parts]

    def wait() -> Loop:
        recorded = {name: np.concatenate(fetched(name), axis=1) for name in record}
        states = np.concatenate([np.asarray(x0)[:, None], *fetched("x")], axis=1)
        return Loop(states, np.concatenate(fetched("u"), axis=1), recorded)

    return wait


def part_length(task: Task, steps: int) -> int:
    """Steps of one run: divides those of data and evaluation, so that both share a program."""
    return gcd(steps, task.steps, task.evaluation_steps or task.steps)


def half_axes(values: tuple[float, ...], size: int, dtype: str) -> jax.Array:
    """Half axes of an ellipsoid; zeros where no noise is given."""
    return jnp.asarray(values or (0.0,) * size, dtype)


def ball(key: jax.Array, like: jax.Array, axes: jax.Array) -> jax.Array:
    """Points distributed uniformly in an ellipsoid; shape and dtype are those of `like`."""
    along, far = jax.random.split(key)
    direction = jax.random.normal(along, like.shape, like.dtype)
    direction = direction / jnp.linalg.norm(direction, axis=-1, keepdims=True)
    radius = jax.random.uniform(far, (*like.shape[:-1], 1), like.dtype) ** (1 / like.shape[-1])
    return radius * direction * axes.reshape((1,) * (like.ndim - 1) + (-1,))
