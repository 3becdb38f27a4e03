"""`synthesize`: data sets of state-action pairs, resumable and the same wherever they are made."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from warpmpc._errors import SettingsError
from warpmpc.learn.collect import Make, Shard, ShardMaker, task_bounds, versions
from warpmpc.learn.dataset import (
    FORMAT,
    MANIFEST,
    Dataset,
    is_complete,
    write_shard,
)
from warpmpc.learn.errors import DataError
from warpmpc.learn.files import read_json, write_json
from warpmpc.learn.parquet import arrow
from warpmpc.learn.policy import Policy
from warpmpc.learn.settings import DataSettings
from warpmpc.learn.task import Plant, Sampler, Task
from warpmpc.learn.validity import Bounds
from warpmpc.mpc.solver import MPCSolver
from warpmpc.problem.mpc_problem import array_digest, digest
from warpmpc.sim.progress import ProgressBar, Report

_LOG = logging.getLogger(__name__)


class Executor(Protocol):
    """Where shards are made; they are independent, and may come back in any order."""

    def run(self, make: Make, indices: Sequence[int]) -> Iterator[Shard]:
        """The shards with these numbers."""
        ...


class LocalExecutor:
    """Makes the shards in this process, in order."""

    def __init__(self, mesh: Mesh | None = None):
        """Takes the devices of a mesh, of which each makes whole shards.

        A shard that devices shared would differ in its last bits.

        Args:
            mesh: The devices.  None: all that this process has, or the one that
                `jax.default_device` names.
        """
        self._devices = _usual_devices() if mesh is None else list(mesh.devices.flat)

    def run(self, make: Make, indices: Sequence[int]) -> Iterator[Shard]:
        """The shards in order; one is under way on each device."""
        running: deque[Callable[[], Shard]] = deque()
        for turn, index in enumerate(indices):
            device = self._devices[turn % len(self._devices)]
            if len(running) == len(self._devices):
                yield running.popleft()()
            running.append(make.begin(index, device))
        while running:
            yield running.popleft()()


def _usual_devices() -> list[Any]:
    devices = jax.local_devices()
    named = getattr(jax.config, "jax_default_device", None) is not None
    return [None] if named or len(devices) == 1 else [*devices]


def synthesize(
    solver: MPCSolver | Task,
    plant: Plant | None = None,
    sampler: Sampler | None = None,
    folder: str | Path = "data",
    settings: DataSettings | None = None,
    **more: Any,
) -> Dataset:
    """Makes a data set of pairs (state, the expert's input), or what is missing of one.

    ```python
    data = wm.learn.synthesize(solver, plant, sampler, "data", steps=100, noise=noise)
    ```

    Each shard is a batch of closed loops with noise; samples that fail the filters of `validity`
    never enter it.  Shards are written one by one: after a kill, the same call goes on with those
    that are missing or damaged, and the result is the same bit by bit on the same kind of machine.

    Args:
        solver: The expert; or a `Task`, instead of this and the next two.
        plant: ``plant(x, u)``: states one control step later, a JAX function of whole batches.
        sampler: ``sampler(batch, seed)``: initial states ``[batch, n_x]``.
        folder: Folder of the shards.
        settings: How much data, the seed, and filters.
        **more: `policy` (a `Policy` that drives with the share `settings.beta`), `executor`
            ("local", "ray", or an `Executor`), `progress` (True for a bar, or a function of shards
            done and all shards), and further attributes of `Task`, such as `steps` and `noise`.
    """
    options = {name: more.pop(name, None) for name in ("policy", "executor", "progress")}
    if isinstance(solver, Task):
        if plant is not None or sampler is not None or more:
            raise SettingsError("A Task has its plant and sampler; pass only folder and settings.")
        task = solver
    elif plant is None or sampler is None:
        raise SettingsError("synthesize needs a solver, a plant and a sampler; or a Task.")
    else:
        known = {field.name for field in dataclasses.fields(Task)}
        if not set(more) <= known:
            raise SettingsError(f"synthesize does not know {sorted(set(more) - known)}.")
        if "steps" not in more:
            raise SettingsError("synthesize needs steps, the length of a closed loop.")
        task = Task(solver, plant, sampler, **more)
    return _synthesize(task, Path(folder), settings or DataSettings(), **options)


def _synthesize(
    task: Task,
    folder: Path,
    settings: DataSettings,
    policy: Policy | None,
    executor: str | Executor | None,
    progress: bool | Report | None,
) -> Dataset:
    if settings.beta > 0 and policy is None:
        raise SettingsError(f"beta = {settings.beta} needs a policy that drives with this share.")
    arrow()  # without which nothing could be written
    runs = executor_of(executor)
    bounds = _begin(task, folder, settings, policy)
    missing = [i for i in range(settings.shards) if not is_complete(folder, i)]
    report: Any = ProgressBar() if progress is True else progress or (lambda done, total: None)
    done = settings.shards - len(missing)
    if done:
        _LOG.info("%d of %d shards in %s are complete", done, settings.shards, folder)
    make = ShardMaker(task, settings, bounds, policy)
    report(done, settings.shards)
    for shard in runs.run(make, missing):
        write_shard(folder, shard.index, shard.content, shard.counts)
        done += 1
        report(done, settings.shards)
    return Dataset.open(folder)


def executor_of(name: str | Executor | None) -> Executor:
    """An executor by name."""
    if name is None or name == "local":
        return LocalExecutor()
    if name == "ray":
        from warpmpc.learn.ray_executor import RayExecutor

        return RayExecutor()
    if isinstance(name, str):
        raise SettingsError(f'executor must be "local", "ray" or an Executor, got {name!r}.')
    return name


def _begin(task: Task, folder: Path, settings: DataSettings, policy: Policy | None) -> Bounds:
    """The bounds of valid samples: of the manifest in the folder, or new ones with a new one."""
    wanted = describe(task, settings, policy)
    found = read_json(folder / MANIFEST)
    if found is None:
        bounds = task_bounds(task, settings)
        write_json(folder / MANIFEST, {**wanted, "bounds": bounds.to_json()})
        return bounds
    different = [name for name in wanted if name != "versions" and found.get(name) != wanted[name]]
    if different:
        raise DataError(
            f"{folder} holds data that were made otherwise ({', '.join(different)} differ); choose "
            "another folder, or delete this one."
        )
    if found["versions"] != wanted["versions"]:
        _LOG.warning("%s was begun with other versions: %s", folder, found["versions"])
    return Bounds.from_json(found["bounds"])


def describe(task: Task, settings: DataSettings, policy: Policy | None) -> dict[str, Any]:
    """What decides about the content of a data set, for its manifest."""
    leaves = jax.tree.leaves(task.params)
    return {
        "format": FORMAT,
        "task": task.name,
        "problem": task.solver.problem.hash,
        "solver_settings": repr(task.solver.settings),
        "engine": task.solver.engine,
        "params": digest([array_digest(np.asarray(leaf)) for leaf in leaves]),
        "settings": dataclasses.asdict(settings),
        "noise": {
            "state": list(task.noise.state),
            "input": list(task.noise.input),
        },
        "steps": task.steps,
        "shift": task.shift,
        "control_dt": task.control_dt,
        "dtype": task.dtype,
        "device": jax.devices()[0].platform,
        "n_x": task.n_x,
        "n_u": task.n_u,
        "names": task.known_names,
        "derivatives": settings.derivatives,
        "shards": settings.shards,
        "policy": None if policy is None else policy.fingerprint,
        "versions": versions(),
    }
