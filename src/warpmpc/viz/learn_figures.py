"""Figures of learning: losses of a training, and closed loops of expert and policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from warpmpc.learn.evaluation import Evaluation
from warpmpc.learn.policy import Policy
from warpmpc.viz import style

DRAWN = 20  # closed loops per controller


def plot_history(policy: Policy, path: str | Path) -> Path:
    """Draws training and validation losses over epochs into a file."""
    style.require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes: Any = figure.subplots()
    for name, losses in policy.history.items():
        axes.semilogy(range(1, len(losses) + 1), losses, label=name)
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean squared error (standardised)")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return Path(path)


def plot_evaluation(found: Evaluation, control_dt: float, path: str | Path) -> Path:
    """Draws the first states and inputs of expert and policy, and all success rates.

    Args:
        found: Closed loops.
        control_dt: Time of a step [s].
        path: File to write.
    """
    style.require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.5), layout="constrained")
    states, inputs, rates = figure.subplots(1, 3)
    for who, color in (("expert", "tab:blue"), ("policy", "tab:orange")):
        x, u = found.states[who][:DRAWN], found.inputs[who][:DRAWN]
        time = np.arange(x.shape[1]) * control_dt
        lines = states.plot(time, x[:, :, 0].T, color=color, lw=0.7)
        inputs.plot(time[:-1], u[:, :, 0].T, color=color, lw=0.7)
        lines[0].set_label(who)
    states.set_ylabel("first state")
    inputs.set_ylabel("first input")
    for axes in (states, inputs):
        axes.set_xlabel("time [s]")
    states.legend(frameon=False)
    labels = [f"{row.situation}\n{row.controller}" for row in found.rows]
    colors = ["tab:blue" if row.controller == "expert" else "tab:orange" for row in found.rows]
    rates.barh(labels, [100 * row.success for row in found.rows], color=colors)
    rates.set_xlabel("success [%]")
    rates.invert_yaxis()
    figure.savefig(path, dpi=150)
    return Path(path)
