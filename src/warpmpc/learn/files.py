"""Files that are either whole or absent: written beside their place, then moved there."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from warpmpc.learn.errors import DataError


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file so that a kill at any time leaves the old one, or the whole new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise DataError(
            f"{path} cannot be written ({error.strerror or error}).  What is complete stays as it "
            "is: make room or choose another folder, and run the same command again to go on."
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Writes JSON whole or not at all."""
    write_bytes(path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> Any:
    """Content of a JSON file; None if there is none or it is damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def checksum(path: Path) -> str | None:
    """SHA-256 of a file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
