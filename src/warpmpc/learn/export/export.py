"""`export`: everything that a robot's firmware needs of a policy, in one folder."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from warpmpc.learn.export.c_source import float_source, header, quantized_source
from warpmpc.learn.export.onnx_file import onnx_bytes
from warpmpc.learn.export.quantize import BITS, quantize, run_quantized
from warpmpc.learn.files import write_bytes, write_json
from warpmpc.learn.policy import U_LIMIT, Policy

_LOG = logging.getLogger(__name__)
CONTRACT, FORMAT = "contract.json", 1
VECTORS, SAMPLES, SEED = 64, 10_000, 2026


@dataclass(frozen=True)
class Exported:
    """What `export` wrote.

    Attributes:
        folder: Folder of the export.
        files: The files in it.
        losses: What quantisation loses, by bits: root mean square and largest change of an input,
            relative to the range of the labels' 8 standard deviations to both sides.
        weight_bytes: Bytes of weights, scales and biases, by bits; 32 is the float network.
    """

    folder: Path
    files: tuple[Path, ...]
    losses: dict[int, dict[str, float]]
    weight_bytes: dict[int, int]


def export(policy: Policy, folder: str | Path, *, states: np.ndarray | None = None) -> Exported:
    """Writes C99 in three precisions, ONNX and the contract.

    ``policy.c`` is single precision; ``int16/policy.c`` and ``int8/policy.c`` have the same
    function with integer weights.  All share ``policy.h``.

    Args:
        policy: What to export.
        folder: Folder that the files are written to.
        states: States ``[n, n_x]`` that occur in closed loop; they calibrate the quantised variants
            and say what they lose.  None: normally distributed ones, held to the training box.
    """
    folder = Path(folder)
    seen = typical_states(policy, SAMPLES, SEED) if states is None else np.asarray(states)
    sources = {folder / "policy.h": header(policy), folder / "policy.c": float_source(policy)}
    losses: dict[int, dict[str, float]] = {}
    sizes = {32: 4 * policy.network.n_weights}
    exact = np.asarray(policy(seen))
    for bits in BITS:
        quantized = quantize(policy, bits, seen)
        change = (run_quantized(policy, quantized, seen) - exact) / output_range(policy)
        losses[bits] = {
            "rms": float(np.sqrt((change**2).mean())),
            "largest": float(np.abs(change).max()),
        }
        sizes[bits] = quantized.weight_bytes
        inside = folder / f"int{bits}"
        sources |= {inside / "policy.c": quantized_source(policy, quantized)}
        sources |= {inside / "policy.h": header(policy)}
    for path, source in sources.items():
        write_bytes(path, source.encode())
    files = list(sources)
    if find_spec("onnx") is not None:
        write_bytes(folder / "policy.onnx", onnx_bytes(policy))
        files.append(folder / "policy.onnx")
    else:
        _LOG.warning("no policy.onnx: the package onnx is not installed")
    files.append(policy.save(folder / "policy.npz"))
    write_json(folder / CONTRACT, {**contract(policy), "quantisation": _named(losses, sizes)})
    return Exported(folder, (*files, folder / CONTRACT), losses, sizes)


def contract(policy: Policy) -> dict[str, Any]:
    """What a user of the exported function must know, and vectors to test it with."""
    about = policy.contract
    x = typical_states(policy, VECTORS, SEED)
    names = about.get("names", {})
    units = about.get("units", {})
    return {
        "format": FORMAT,
        "function": "void policy(const float x[POLICY_NX], float u[POLICY_NU])",
        "task": about.get("task"),
        "problem": about.get("problem"),
        "control_dt": about.get("control_dt"),
        "fingerprint": policy.fingerprint,
        "network": {"sizes": policy.network.sizes, "activation": policy.network.activation},
        "states": _entries(names.get("state"), units.get("state"), policy.x_low, policy.x_high),
        "inputs": _entries(
            names.get("input"),
            units.get("input"),
            policy.u_mean - U_LIMIT * policy.u_std,
            policy.u_mean + U_LIMIT * policy.u_std,
        ),
        "notes": [
            *about.get("notes", []),
            "low and high of a state are the extremes of the training data; states beyond "
            f"{policy.x_limit:g} standard deviations of them are held there.",
            "low and high of an input are limits that the function keeps.",
            "A state that is not finite gives the safe input.",
        ],
        "safe_input": policy.safe.tolist(),
        "vectors": {"x": x.tolist(), "u": np.asarray(policy(x)).tolist(), "tolerance": 1e-4},
    }


def output_range(policy: Policy) -> np.ndarray:
    """Width of the interval that each input is limited to."""
    return 2 * U_LIMIT * policy.u_std


def typical_states(policy: Policy, count: int, seed: int) -> np.ndarray:
    """Random states with the moments of the training data, inside of its box."""
    x = np.random.default_rng(seed).normal(policy.x_mean, policy.x_std, (count, policy.n_x))
    return np.clip(x, policy.x_low, policy.x_high).astype(np.float32)


def extreme_states(policy: Policy, count: int, seed: int) -> np.ndarray:
    """Corners of the training box, far outside of it, huge, tiny, zero."""
    rng = np.random.default_rng(seed)
    width = policy.x_high - policy.x_low
    signs = rng.choice([-1.0, 0.0, 1.0], (count, policy.n_x))
    scales = np.resize([0.5, 1.0, 3.0, 1e3, 1e10, 1e30, 1e-30], count)[:, None]
    x = policy.x_mean + signs * scales * width
    return np.clip(x, -3e38, 3e38).astype(np.float32)


def _entries(names: Any, units: Any, low: np.ndarray, high: np.ndarray) -> list[dict[str, Any]]:
    size = len(low)
    names = names or [str(i) for i in range(size)]
    units = units or [""] * size
    return [
        {"name": name, "unit": unit, "low": float(a), "high": float(b)}
        for name, unit, a, b in zip(names, units, low, high, strict=True)
    ]


def _named(losses: dict[int, dict[str, float]], sizes: dict[int, int]) -> dict[str, Any]:
    named: dict[str, Any] = {
        f"int{bits}": {**loss, "weight_bytes": sizes[bits]} for bits, loss in losses.items()
    }
    return json.loads(json.dumps({**named, "float32": {"weight_bytes": sizes[32]}}))
