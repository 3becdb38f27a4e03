"""One shard of data: closed loops of the expert, or of a mixture, from a seed of its own.

Reads: a task, settings and the number of the shard.  Produces: its records, which depend on
nothing else, so that any process on any machine of the same kind makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.learn.controllers import RECORDED, Expert, Mixture
from warpmpc.learn.errors import DataError
from warpmpc.learn.loops import Loop, begin_loop, closed_loop
from warpmpc.learn.parquet import encode, record_type
from warpmpc.learn.policy import Policy
from warpmpc.learn.settings import DataSettings
from warpmpc.learn.task import Task
from warpmpc.learn.tasks import make_task
from warpmpc.learn.validity import Bounds, find_bounds, valid_samples
from warpmpc.mpc.solver import MPCSolver

# Packages whose version may decide about the bits of a shard.
PACKAGES = ("warpmpc", "jax", "jaxlib", "warp-lang", "casadi", "numpy", "pyarrow")
_BOUNDS_KEY, _DERIVATIVE_PART = 2**31 - 1, 256


@dataclass(frozen=True)
class Shard:
    """A shard as it goes to disk.

    Attributes:
        index: Its number.
        content: Content of its Parquet file.
        counts: What its description says beside the checksum.
    """

    index: int
    content: bytes
    counts: dict[str, Any]


class Make(Protocol):
    """Makes any shard of a data set."""

    def __call__(self, index: int) -> Shard:
        """The shard with this number."""
        ...

    def begin(self, index: int, device: Any = None) -> Callable[[], Shard]:
        """Gives a device (None: JAX's) its closed loops; what it returns waits for the shard."""
        ...


@dataclass(frozen=True, eq=False)
class ShardMaker:
    """Makes any shard of a data set, in this process or, by its task's factory, in another one.

    Attributes:
        task: What is imitated.
        settings: How much data, and the seed.
        bounds: Bounds of valid samples.
        policy: Drives with the share `settings.beta`; None: the expert drives alone.
    """

    task: Task
    settings: DataSettings
    bounds: Bounds
    policy: Policy | None

    def __call__(self, index: int) -> Shard:
        """The shard with this number."""
        return self.begin(index)()

    def begin(self, index: int, device: Any = None) -> Callable[[], Shard]:
        """Gives a device (None: JAX's) its closed loops; what it returns waits for the shard."""
        task, settings, seed = self.task, self.settings, seed_of(self.settings, index)
        x0 = task.starts(settings.rollouts, seed)
        x0 = x0 if device is None else jax.device_put(x0, device)
        loops = _begin_loops(task, settings, self.policy, x0, seed)
        return lambda: _shard(task, settings, self.bounds, (index, seed, self._drives), loops())

    @property
    def _drives(self) -> bool:
        """Whether the policy has a share in the inputs."""
        return self.policy is not None and self.settings.beta > 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the name of the factory instead of the task, which has compiled programs."""
        if self.task.factory is None:
            raise SettingsError(
                "Workers need to build the task themselves: give it a factory, "
                'Task(..., factory="module:function").'
            )
        expected = (self.task.factory, self.task.solver.problem.hash)
        return _rebuilt, (expected, versions(), self.settings, self.bounds, self.policy)


def versions() -> dict[str, str]:
    """Versions of `PACKAGES` in this process."""
    return {package: version(package) for package in PACKAGES}


def _rebuilt(
    expected: tuple[str, str],
    packages: dict[str, str],
    settings: DataSettings,
    bounds: Bounds,
    policy: Policy | None,
) -> ShardMaker:
    factory, wanted = expected
    if different := [f"{name} {v}" for name, v in versions().items() if packages[name] != v]:
        raise DataError(
            f"This worker has {', '.join(different)}, unlike where it was asked; shards would "
            "differ in bits.  Install the same versions."
        )
    task = _task_of(factory)
    if task.solver.problem.hash != wanted:
        raise DataError(f"{factory} builds another problem on this worker than where it was asked.")
    return ShardMaker(task, settings, bounds, policy)


@lru_cache(maxsize=2)
def _task_of(factory: str) -> Task:
    """A task, built once per process, so that its programs are compiled once."""
    return make_task(factory)


def seed_of(settings: DataSettings, index: int) -> int:
    """The seed of a shard, independent of all others."""
    sequence = np.random.SeedSequence(settings.seed, spawn_key=(settings.round, index))
    return int(sequence.generate_state(1)[0] >> 1)


def task_bounds(task: Task, settings: DataSettings) -> Bounds:
    """Bounds of valid samples, from noise-free closed loops of the expert."""
    x0 = task.starts(settings.bound_rollouts, seed_of(settings, _BOUNDS_KEY))
    expert = Expert(task.solver, task.shift)
    found = closed_loop(task, expert, task.params, x0, record=_recorded(settings))
    return find_bounds(found.x, _cost(task, found.x, found.u))


def make_shard(
    task: Task, settings: DataSettings, bounds: Bounds, policy: Policy | None, index: int
) -> Shard:
    """The records of one shard.

    Args:
        task: What is imitated.
        settings: How much data, and the seed.
        bounds: Bounds of valid samples.
        policy: Drives with the share `settings.beta`; None: the expert drives alone.
        index: Number of the shard.
    """
    return ShardMaker(task, settings, bounds, policy)(index)


def _shard(
    task: Task, settings: DataSettings, bounds: Bounds, about: tuple[int, int, bool], found: Loop
) -> Shard:
    """The valid pairs of closed loops; `about` is number, seed, and whether a policy drives."""
    index, seed, drives = about
    x, u, seen = found.x, found.u, found.recorded
    limits = (settings.theta_max, settings.residual_max)
    cost = None if drives else _cost(task, x, u)
    valid = valid_samples(x[:, :-1], seen, cost, bounds, limits)
    kept = valid & (np.random.default_rng(seed).random(valid.shape) < settings.keep)
    at = np.nonzero(kept)
    records = np.zeros(
        len(at[0]), record_type(task.n_x, task.n_u, derivatives=settings.derivatives)
    )
    records["x"], records["u"] = x[:, :-1][at], seen["label"][at]
    records["rollout"] = index * settings.rollouts + at[0]
    records["step"] = at[1]
    if settings.derivatives and len(records):
        plans = seen["plan"][at]
        slopes = expert_derivatives(task, x[:, :-1][at], plans)
        good = np.isfinite(slopes).all(axis=(1, 2))
        records["du_dx"] = slopes
        records = records[good]
    counts = {"pairs": len(records), "offered": int(valid.size), "valid": int(valid.sum())}
    return Shard(
        index, encode(records, task.known_names), {**counts, "seed": seed, "round": settings.round}
    )


def _begin_loops(
    task: Task, settings: DataSettings, policy: Policy | None, x0: jax.Array, seed: int
) -> Callable[[], Loop]:
    expert = Expert(task.solver, task.shift)
    controller: Any = expert
    params: Any = task.params
    if policy is not None:
        controller = Mixture(expert, policy.network)
        beta = jnp.asarray(settings.beta, task.dtype)
        params = {"expert": task.params, "policy": policy.data, "beta": beta}
    given = {"noise": task.noise, "record": _recorded(settings)}
    return begin_loop(task, controller, params, x0, seed=seed, **given)


def _recorded(settings: DataSettings) -> tuple[str, ...]:
    return (*RECORDED, "plan") if settings.derivatives else RECORDED


def expert_derivatives(task: Task, x: np.ndarray, plans: np.ndarray) -> np.ndarray:
    """The expert's du0/dx0 ``[pairs, n_u, n_x]`` at states, from the plans that it had there.

    One adjoint solve per input; parts of equal size share one program.
    """
    found = []
    size = min(_DERIVATIVE_PART, len(x))
    for begin in range(0, len(x), size):
        part = np.arange(begin, begin + size) % len(x)  # the last part is filled up
        given = (jnp.asarray(x[part]), jnp.asarray(plans[part]))
        found.append(np.asarray(_jacobian(task.solver, task.n_u, task.params, *given)))
    return np.concatenate(found)[: len(x)]


@partial(jax.jit, static_argnums=(0, 1))
def _jacobian(
    solver: MPCSolver, n_u: int, params: Any, x: jax.Array, plans: jax.Array
) -> jax.Array:
    """du0/dx0 of a batch: every state once per input, each with the cotangent of that input."""
    warm = solver.cold_start(jnp.repeat(plans, n_u, axis=0))

    def first_input(x: jax.Array) -> jax.Array:
        return solver.solve(x, params, warm).u[:, 0]

    _, pull_back = jax.vjp(first_input, jnp.repeat(x, n_u, axis=0))
    cotangents = jnp.tile(jnp.eye(n_u, dtype=x.dtype), (x.shape[0], 1))
    return pull_back(cotangents)[0].reshape(x.shape[0], n_u, x.shape[1])


def _cost(task: Task, x: np.ndarray, u: np.ndarray) -> np.ndarray | None:
    if task.cost is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(task.cost(x.astype(np.float64), u.astype(np.float64)))
