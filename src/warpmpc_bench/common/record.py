"""One measurement as one line of JSON, with everything needed to repeat it.

Reads: git, nvidia-smi, installed package metadata.  Produces: dictionaries and JSONL files.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from warpmpc._errors import ProblemError

COMMIT_VARIABLE = "WARPMPC_COMMIT"
DIRTY_SUFFIX = "-dirty"
PACKAGES = {"jax": "jax", "jaxlib": "jaxlib", "warp-lang": "warp", "warpmpc": "warpmpc",
            "numpy": "numpy", "scipy": "scipy", "osqp": "osqp", "qdldl": "qdldl",
            "jaxopt": "jaxopt", "mpax": "mpax", "qpax": "qpax"}  # fmt: skip
Row = dict[str, Any]


def machine() -> Row:
    """Code, device and versions of this process; the same in all rows of a run."""
    commit, dirty = source_state()
    device = jax.devices()[0]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "device": device.device_kind,
        "platform": device.platform,
        "cores": len(os.sched_getaffinity(0)),
        "driver": _driver() if device.platform == "gpu" else None,
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name, module) for name, module in PACKAGES.items()},
        },
    }


def source_state() -> tuple[str | None, bool | None]:
    """Commit of the source tree and whether tracked files differ from it; None if unknown.

    The variable WARPMPC_COMMIT (a hash, with "-dirty" appended if so) wins: a copy of the tree
    without its history cannot know.
    """
    given = os.environ.get(COMMIT_VARIABLE)
    if given:
        return given.removesuffix(DIRTY_SUFFIX), given.endswith(DIRTY_SUFFIX)
    package = Path(__file__).resolve().parents[1]
    root = package.parents[1]
    top = _output(["git", "-C", str(root), "rev-parse", "--show-toplevel"])
    if top is None or Path(top).resolve() != root or package.parent.name != "src":
        return None, None  # installed, possibly inside another repository
    commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
    changes = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return commit, None if changes is None else bool(changes)


def append_row(path: str | Path, row: Row) -> None:
    """Adds one line to a JSONL file, as a whole; refuses numbers that JSON does not have."""
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # One call of the system: neither Ctrl-C nor another process gets in between.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a JSONL file."""
    path = Path(path)
    if not path.is_file():
        raise ProblemError(f"There is no file {path}; `warpmpc bench` writes one.")
    rows: list[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise ProblemError(f"{path}, line {number} is not JSON: {error}.") from None
    return rows


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    found = _output(query)
    return found.splitlines()[0].strip() if found else None


def _version(package: str, module: str) -> str | None:
    """Version by metadata, else by the loaded module: a tree on the path has no metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return getattr(sys.modules.get(module), "__version__", None)


def _output(command: Sequence[str]) -> str | None:
    """Output of a program without surrounding blanks; None if it is missing or fails."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()
