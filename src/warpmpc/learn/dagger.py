"""`learn_policy`: data and training, in rounds where the policy helps to drive (DAgger)."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from warpmpc._errors import SettingsError
from warpmpc.learn.dataset import Dataset
from warpmpc.learn.policy import Policy
from warpmpc.learn.settings import BETAS, DataSettings, TrainSettings
from warpmpc.learn.synthesis import synthesize
from warpmpc.learn.task import Task
from warpmpc.learn.training import train

_LOG = logging.getLogger(__name__)


def learn_policy(
    task: Task,
    folder: str | Path,
    data: DataSettings | None = None,
    training: TrainSettings | None = None,
    betas: tuple[float, ...] = (0.0,),
    **more: Any,
) -> tuple[Policy, Dataset]:
    """Makes data and trains, once per entry of `betas`; returns the last policy and all data.

    Everything is kept in the folder and taken up again after a kill: data in `data/round-00`, the
    policy of a round in `round-00.npz`.

    Args:
        task: What is imitated.
        folder: Folder of data, checkpoints and policies.
        data: Settings of each round's data.
        training: Settings of each round's training, which starts anew on all data so far.
        betas: Share of the last policy in the input, round by round; the first must be 0, because
            there is no policy yet.  `BETAS` is the published schedule.
        **more: `executor` and `progress` of `synthesize`, `losses` for `train`'s progress.
    """
    if not betas or betas[0] != 0:
        raise SettingsError(f"betas must begin with 0, since no policy exists yet, got {betas}.")
    data, training = data or DataSettings(), training or TrainSettings()
    losses = more.pop("losses", None)
    folder, folders = Path(folder), []
    policy: Policy | None = None
    for i, beta in enumerate(betas):
        made = folder / "data" / f"round-{i:02d}"
        settings = replace(data, round=i, beta=beta)
        synthesize(task, folder=made, settings=settings, policy=policy, **more)
        folders.append(made)
        checkpoint = folder / f"round-{i:02d}.checkpoint.npz"
        everything = Dataset.open(*folders)
        _LOG.info("round %d: %d pairs", i, everything.pairs)
        policy = train(everything, training, task=task, checkpoint=checkpoint, progress=losses)
        policy.save(folder / f"round-{i:02d}.npz")
    assert policy is not None  # betas is not empty
    return policy, Dataset.open(*folders)


__all__ = ["BETAS", "learn_policy"]
