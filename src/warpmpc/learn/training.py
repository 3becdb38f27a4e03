"""`train`: a network that imitates the expert, from data on disk.

Reads: a data set.  Produces: a `Policy` with the losses of its training.  One epoch is one program
on the device; permutations follow from the seed and the number of the epoch, so that a training
that was stopped goes on exactly where it was.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.learn.batches import Parts
from warpmpc.learn.dataset import Dataset
from warpmpc.learn.errors import DataError
from warpmpc.learn.files import write_bytes
from warpmpc.learn.network import Network
from warpmpc.learn.policy import Policy
from warpmpc.learn.settings import TrainSettings
from warpmpc.learn.task import Task

Losses = Callable[[int, int, dict[str, float]], None]
_PERMUTE, _DIRECTIONS = 0, 1  # random keys of an epoch


@dataclass(frozen=True)
class TrainState:
    """Everything that a training needs to go on.

    Attributes:
        weights: At the end of the last epoch, as flax holds them.
        optimiser: State of AdamW.
        best: Weights with the least validation loss so far.
        history: "train" and "validation" losses of all epochs, with the derivative's term.
    """

    weights: Any
    optimiser: Any
    best: Any
    history: dict[str, list[float]]

    @property
    def epoch(self) -> int:
        """Number of epochs done."""
        return len(self.history["train"])


def train(
    data: Dataset,
    settings: TrainSettings | None = None,
    *,
    task: Task | None = None,
    checkpoint: str | Path | None = None,
    progress: Losses | None = None,
) -> Policy:
    """Trains a network on a data set.

    Args:
        data: Pairs.
        settings: Settings of the network and the optimiser.
        task: Whose names and safe input the policy carries; None: those of the data's manifest.
        checkpoint: File that the training is saved to and resumed from; None: neither.
        progress: Function of (epochs done, epochs, losses of the last one).
    """
    settings = settings or TrainSettings()
    if settings.sobolev and not data.has_derivatives:
        raise SettingsError(
            "sobolev needs the expert's derivatives: synthesize with derivatives=True."
        )
    parts = Parts(data, settings)
    manifest = data.manifests[0]
    network = Network((manifest["n_x"], *settings.hidden, manifest["n_u"]), settings.activation)
    path = None if checkpoint is None else Path(checkpoint)
    state = _begin(network, settings, parts, data)
    identity = _identity(settings, data)
    if path is not None and path.exists():
        state = load_checkpoint(path, state, identity)
    state = _epochs(network, settings, parts, state, (path, identity, progress))
    return _policy(network, parts, state, (manifest, task))


def _epochs(
    network: Network,
    settings: TrainSettings,
    parts: Parts,
    state: TrainState,
    outputs: tuple[Path | None, str, Losses | None],
) -> TrainState:
    path, identity, progress = outputs
    validation = jax.tree.map(jnp.asarray, parts.validation)
    held = jax.tree.map(jnp.asarray, parts.training(0)) if len(parts) == 1 else None
    steps = max(parts.rows // settings.minibatch, 1) * len(parts) * settings.epochs
    programs = Programs(network, settings, steps)
    while state.epoch < settings.epochs and not _stops(state.history["validation"], settings):
        epoch = state.epoch
        key = jax.random.fold_in(jax.random.key(settings.seed), epoch)
        order = np.random.default_rng((settings.seed, epoch)).permutation(len(parts))
        weights, optimiser, losses = state.weights, state.optimiser, []
        for i, group in enumerate(order):
            part = held or jax.tree.map(jnp.asarray, parts.training(int(group)))
            part_key = jax.random.fold_in(key, i)
            weights, optimiser, loss = programs.epoch(weights, optimiser, part, part_key)
            losses.append(float(loss))
        history = {
            "train": [*state.history["train"], float(np.mean(losses))],
            "validation": [*state.history["validation"], float(programs.loss(weights, validation))],
        }
        found = history["validation"]
        best = weights if found[-1] <= min(found) else state.best
        state = TrainState(weights, optimiser, best, history)
        last = state.epoch == settings.epochs or _stops(found, settings)
        if path is not None and (last or state.epoch % settings.checkpoint_every == 0):
            save_checkpoint(path, state, identity)
        if progress is not None:
            progress(
                state.epoch, settings.epochs, {name: kept[-1] for name, kept in history.items()}
            )
    return state


def _stops(losses: list[float], settings: TrainSettings) -> bool:
    """Whether the validation loss has not improved for too long, or is NaN."""
    if losses and not np.isfinite(losses[-1]):
        return True
    return (
        bool(settings.patience)
        and len(losses) - 1 - int(np.argmin(losses) if losses else 0) >= settings.patience
    )


def _optimiser(settings: TrainSettings, steps: int) -> Any:
    try:
        import optax
    except ImportError as error:
        raise SettingsError(
            "Training needs optax: pip install 'warpmpc[learn]', or pip install optax."
        ) from error
    rate: Any = settings.learning_rate
    if settings.schedule == "cosine":
        rate = optax.cosine_decay_schedule(rate, steps, alpha=0.01)
    return optax.adamw(rate, weight_decay=settings.weight_decay)


class Programs:
    """The compiled parts of a training."""

    def __init__(self, network: Network, settings: TrainSettings, steps: int):
        """Builds the optimiser for a number of steps in all; compiles with the first call."""
        self._network, self._settings = network, settings
        self._optimiser = _optimiser(settings, steps)
        self.epoch = jax.jit(self._epoch, donate_argnums=1)
        self.loss = jax.jit(self._validation_loss)

    def _epoch(
        self, weights: Any, optimiser: Any, part: dict[str, jax.Array], key: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        """One pass through a part in random order; returns the mean loss."""
        rows = part["x"].shape[0]
        size = min(self._settings.minibatch, rows)
        count = rows // size
        order = jax.random.permutation(jax.random.fold_in(key, _PERMUTE), rows)
        order = order[: count * size].reshape(count, size)
        keys = jax.random.split(jax.random.fold_in(key, _DIRECTIONS), count)
        step = partial(self._step, part)
        (weights, optimiser), losses = jax.lax.scan(step, (weights, optimiser), (order, keys))
        return weights, optimiser, losses.mean()

    def _step(self, part: dict[str, jax.Array], state: Any, batch: Any) -> tuple[Any, jax.Array]:
        weights, optimiser = state
        rows, key = batch
        chosen = {name: array[rows] for name, array in part.items()}
        loss, slope = jax.value_and_grad(self._loss)(weights, chosen, key)
        change, optimiser = self._optimiser.update(slope, optimiser, weights)
        weights = jax.tree.map(lambda w, d: w + d.astype(w.dtype), weights, change)
        return (weights, optimiser), loss

    def _validation_loss(self, weights: Any, part: dict[str, jax.Array]) -> jax.Array:
        """The loss that is minimised, with the same directions of the derivative in all epochs.

        Weights with the least error of labels alone may have wrong derivatives.
        """
        return self._loss(weights, part, jax.random.key(self._settings.seed))

    def _plain_loss(self, weights: Any, part: dict[str, jax.Array]) -> jax.Array:
        return ((self._network.apply(weights, part["x"]) - part["u"]) ** 2).mean()

    def _loss(self, weights: Any, part: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        """Mean squared error, and that of the derivative in one random direction per pair.

        The mean over random directions of the squared error of J v is that of J itself.
        """
        if not self._settings.sobolev:
            return self._plain_loss(weights, part)
        x = part["x"]
        along = jax.random.rademacher(key, x.shape, dtype=x.dtype)
        y, slope = jax.jvp(partial(self._network.apply, weights), (x,), (along,))
        wanted = (part["du_dx"] * along[:, None, :]).sum(axis=-1)
        plain = ((y - part["u"]) ** 2).mean()
        return plain + self._settings.sobolev * ((slope - wanted) ** 2).mean()


def _begin(network: Network, settings: TrainSettings, parts: Parts, data: Dataset) -> TrainState:
    weights = network.init(jax.random.key(settings.seed))
    optimiser = _optimiser(settings, 1).init(weights)
    return TrainState(weights, optimiser, weights, {"train": [], "validation": []})


def _identity(settings: TrainSettings, data: Dataset) -> str:
    """What a checkpoint must have been made from to be resumed; the memory limit may change."""
    fixed = dataclasses.asdict(settings)
    fixed.pop("checkpoint_every")
    made = [(m["problem"], m["settings"], m["policy"]) for m in data.manifests]
    return json.dumps([fixed, made], sort_keys=True)


def save_checkpoint(path: Path, state: TrainState, identity: str) -> None:
    """Writes a training to one file, whole or not at all."""
    leaves = jax.tree.leaves((state.weights, state.optimiser, state.best))
    arrays: dict[str, Any] = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    about = json.dumps({"identity": identity, "history": state.history})
    buffer = io.BytesIO()
    np.savez(buffer, about=np.array(about), **arrays)
    write_bytes(path, buffer.getvalue())


def load_checkpoint(path: Path, like: TrainState, identity: str) -> TrainState:
    """Reads a training; `like` has its structure."""
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            tree = (like.weights, like.optimiser, like.best)
            leaves, structure = jax.tree.flatten(tree)
            found = [jnp.asarray(file[f"leaf_{i}"]) for i in range(len(leaves))]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(
            f"{path} is no checkpoint that can be read ({error}); delete it."
        ) from error
    if about["identity"] != identity:
        raise DataError(
            f"{path} belongs to a training with other settings or data; delete it, or choose "
            "another checkpoint."
        )
    weights, optimiser, best = jax.tree.unflatten(structure, found)
    return TrainState(weights, optimiser, best, about["history"])


def _policy(
    network: Network, parts: Parts, state: TrainState, origin: tuple[dict[str, Any], Task | None]
) -> Policy:
    manifest, task = origin
    s = parts.statistics
    reach = np.abs((np.stack([s.x_low, s.x_high]) - s.x_mean) / s.x_std).max()
    safe = np.zeros(manifest["n_u"], np.float32)
    if task is not None and task.safe_input is not None:
        safe = np.asarray(task.safe_input, np.float32)
    contract = {name: manifest[name] for name in ("task", "problem", "names", "control_dt")}
    units, notes = (task.units, task.notes) if task is not None else (((), ()), ())
    contract |= {"units": {"state": list(units[0]), "input": list(units[1])}}
    contract |= {"notes": list(notes)}
    return Policy(
        network=network,
        weights=network.layers(state.best),
        **dataclasses.asdict(s),
        x_limit=float(np.ceil(reach)),
        safe=safe,
        contract=contract,
        history=state.history,
    )
