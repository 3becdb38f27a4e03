"""Seals of compiled kernels: what Warp loads from its cache is what it has once written there.

Warp keeps each module in a folder of its own and loads what it finds, damaged or not.  So every
file that it loads gets a seal: an empty file beside it that is named after the hash of the content.
Seals are made and found in one step each, and a file may have several, so that processes that build
the same module at the same time need no lock.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from warpmpc.codegen.trust import distrusted_file

LOADED = (".o", ".cubin", ".ptx", ".meta")
SEAL = ".sealed"
YOUNG = 10.0  # seconds in which the process that wrote a file may still be about to seal it


@dataclass(frozen=True)
class Fault:
    """Why files of a module must not be loaded.

    Attributes:
        reason: The file and what is wrong with it.
        is_damage: Whether it has been right before; earlier versions have made no seals.
    """

    reason: str
    is_damage: bool


def seal_files(folder: Path) -> None:
    """Seals files of a module that have just been built.

    Raises:
        OSError: The folder cannot be written.
    """
    for path in loaded_files(folder):
        seal = _seal_of(path)
        if not seal.exists():
            seal.touch(mode=0o600)


def fault_of(folder: Path) -> Fault | None:
    """The first fault of the files of a module; None without one, or without files."""
    for path in loaded_files(folder):
        try:
            found = path.stat()
            writer = distrusted_file(found)
            if writer is not None:
                return Fault(f"{path.name} {writer}", is_damage=True)
            if _seal_of(path).exists():
                continue
        except OSError as error:
            return Fault(str(error), is_damage=True)
        if any(folder.glob(f"{path.name}.*{SEAL}")):
            return Fault(f"{path.name} is not what was written", is_damage=True)
        if time.time() - found.st_mtime > YOUNG:
            return Fault(f"{path.name} has no seal", is_damage=False)
    return None


def loaded_files(folder: Path) -> list[Path]:
    """Files of a module that Warp loads."""
    return sorted(path for path in folder.glob("*") if path.suffix in LOADED)


def _seal_of(path: Path) -> Path:
    """The seal that the present content of a file must have."""
    return path.with_name(f"{path.name}.{hashlib.sha256(path.read_bytes()).hexdigest()}{SEAL}")
