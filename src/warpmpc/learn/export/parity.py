"""`parity`: whether the exported policy computes what the network computes, on every target here.

Reads: an exported folder.  Produces: one row per target with the largest difference relative to
the range of the outputs, and on the Cortex-M4F flash, memory and instructions per call.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from warpmpc.learn.export.cortex_m4 import CortexReport, missing_tools, run_on_cortex_m4
from warpmpc.learn.export.export import SEED, extreme_states, output_range, typical_states
from warpmpc.learn.export.host import HostPolicy, host_compiler
from warpmpc.learn.export.quantize import BITS, quantize, run_quantized
from warpmpc.learn.policy import Policy

RANDOM, EXTREME, ON_CORTEX = 10_000, 100, 64
# Largest allowed differences, relative to the range of the outputs.
C_TOLERANCE, ONNX_TOLERANCE, CORTEX_TOLERANCE = 1e-5, 1e-6, 1e-6
# A tie that is rounded the other way moves an activation by one step of its quantisation.
QUANTIZED_TOLERANCE = 1e-4
VARIANTS = {32: "policy.c", 16: "int16/policy.c", 8: "int8/policy.c"}


@dataclass(frozen=True)
class ParityRow:
    """One target.

    Attributes:
        target: Where the policy ran.
        compared_with: What its outputs are compared with.
        error: Largest difference, relative to the range of the outputs; NaN if it did not run.
        tolerance: Largest one that is allowed.
        note: Sizes and instructions, or why it did not run.
        cortex: Measurements on the controller, if it ran there.
    """

    target: str
    compared_with: str
    error: float
    tolerance: float
    note: str = ""
    cortex: CortexReport | None = None

    @property
    def ran(self) -> bool:
        """Whether there is something to compare."""
        return not np.isnan(self.error)

    @property
    def agrees(self) -> bool:
        """Whether the target may be used; one that did not run is no objection."""
        return not self.ran or self.error <= self.tolerance


@dataclass(frozen=True)
class Parity:
    """All targets.

    Attributes:
        rows: One per target.
    """

    rows: tuple[ParityRow, ...]

    @property
    def agrees(self) -> bool:
        """Whether every target that ran agrees."""
        return all(row.agrees for row in self.rows)

    def row(self, target: str) -> ParityRow:
        """The row of a target."""
        return next(row for row in self.rows if row.target == target)

    def table(self) -> str:
        """The rows as text."""
        lines = []
        for row in self.rows:
            found = f"{row.error:.1e} (at most {row.tolerance:.0e})" if row.ran else "not run"
            mark = "ok" if row.agrees and row.ran else ("-" if row.agrees else "WRONG")
            note = f"  {row.note}" if row.note else ""
            lines.append(f"{mark:<6}{row.target:<20}{row.compared_with:<12}{found:<26}{note}")
        return "\n".join(line.rstrip() for line in lines)


def parity(policy: Policy, folder: str | Path, *, states: np.ndarray | None = None) -> Parity:
    """Compares all that `export` wrote with the policy in Python.

    Args:
        policy: What was exported.
        folder: Folder that the files are written to.
        states: The states that `export` was given.
    """
    folder = Path(folder)
    typical = typical_states(policy, RANDOM, SEED + 1)
    x = np.concatenate([typical, extreme_states(policy, EXTREME, SEED + 2)])
    exact = np.asarray(policy(x))
    calibration = typical_states(policy, RANDOM, SEED) if states is None else np.asarray(states)
    rows = [_onnx(policy, folder, x, exact)]
    with tempfile.TemporaryDirectory() as build:
        for bits, name in VARIANTS.items():
            wanted = exact
            if bits in BITS:
                wanted = run_quantized(policy, quantize(policy, bits, calibration), x)
            rows += _variant(policy, (bits, folder / name), Path(build), x, wanted)
    return Parity(tuple(rows))


def difference(policy: Policy, found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference relative to the range; infinite if something is not finite."""
    error = np.abs(found - wanted) / output_range(policy)
    return float(np.max(error)) if np.isfinite(error).all() else float("inf")


def _variant(
    policy: Policy, variant: tuple[int, Path], build: Path, x: np.ndarray, wanted: np.ndarray
) -> list[ParityRow]:
    """C of one precision on this machine and on the controller."""
    bits, source = variant
    label = "float32" if bits == 32 else f"int{bits}"
    tolerance = C_TOLERANCE if bits == 32 else QUANTIZED_TOLERANCE
    target, there = f"C {label}", f"Cortex-M4F {label}"
    if host_compiler() is None:
        return [ParityRow(target, "Python", np.nan, tolerance, "no C compiler on the path")]
    host = HostPolicy(source, build / label, (policy.n_x, policy.n_u))
    found = host(x)
    unsafe = _safety(policy, host)
    error = float("inf") if unsafe else difference(policy, found, wanted)
    rows = [ParityRow(target, "Python", error, tolerance, unsafe)]
    if missing := missing_tools():
        note = f"{', '.join(missing)} not installed"
        return [*rows, ParityRow(there, f"C {label}", np.nan, CORTEX_TOLERANCE, note)]
    some = np.concatenate([x[:ON_CORTEX], x[-ON_CORTEX:], [np.full(policy.n_x, np.nan)]])
    tolerance = CORTEX_TOLERANCE if bits == 32 else QUANTIZED_TOLERANCE
    report = run_on_cortex_m4(source, build / f"{label}-cortex", some, policy.n_u)
    error = difference(policy, report.u, host(some))
    note = (
        f"{report.instructions} instructions, {report.flash} bytes of flash, {report.ram} of RAM, "
        f"{report.stack} of stack"
    )
    return [*rows, ParityRow(there, f"C {label}", error, tolerance, note, report)]


def _safety(policy: Policy, host: HostPolicy) -> str:
    """What is wrong with the outputs at states that are not finite; empty if nothing."""
    for value in (np.nan, np.inf, -np.inf):
        x = np.tile(policy.x_mean, (policy.n_x, 1))
        np.fill_diagonal(x, value)
        if not (host(x) == policy.safe).all():
            return f"no safe output at {value}"
    return ""


def _onnx(policy: Policy, folder: Path, x: np.ndarray, exact: np.ndarray) -> ParityRow:
    path = folder / "policy.onnx"
    if not path.exists() or find_spec("onnxruntime") is None:
        note = "no policy.onnx" if not path.exists() else "onnxruntime is not installed"
        return ParityRow("ONNX Runtime", "Python", np.nan, ONNX_TOLERANCE, note)
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = np.asarray(session.run(None, {"x": x})[0])
    error = difference(policy, found, exact)
    return ParityRow("ONNX Runtime", "Python", error, ONNX_TOLERANCE)
