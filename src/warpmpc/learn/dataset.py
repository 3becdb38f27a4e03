"""State-action pairs on disk: shards of records, and a manifest that says how they were made.

A folder holds `_manifest.json` (task, settings, seeds, versions, bounds of valid samples), and for
each shard `shard-00000.parquet` (records, read by memory map) with `_shard-00000.json` (checksum
and counts, written last: a shard without it does not count).  Readers of folders of Parquet files
leave out names that begin with an underscore.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from warpmpc.learn.errors import DataError
from warpmpc.learn.files import checksum, read_json, write_bytes, write_json
from warpmpc.learn.parquet import ShardFile

MANIFEST, FORMAT = "_manifest.json", 2


def shard_path(folder: Path, index: int) -> Path:
    """Where a shard lies."""
    return folder / f"shard-{index:05d}.parquet"


def description_path(folder: Path, index: int) -> Path:
    """Where the checksum and the counts of a shard lie."""
    return folder / f"_shard-{index:05d}.json"


def write_shard(folder: Path, index: int, content: bytes, counts: dict[str, Any]) -> None:
    """Writes the records, then the description that makes them count."""
    write_bytes(shard_path(folder, index), content)
    described = {**counts, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    write_json(description_path(folder, index), described)


def is_complete(folder: Path, index: int) -> bool:
    """Whether a shard is there and has the checksum that its description promises."""
    described = read_json(description_path(folder, index))
    wanted = described.get("sha256") if isinstance(described, dict) else None
    return wanted is not None and wanted == checksum(shard_path(folder, index))


@dataclass(frozen=True)
class Dataset:
    """Pairs of one or more folders, read by memory map.

    Attributes:
        folders: Folders of the shards.
    """

    folders: tuple[Path, ...]

    @classmethod
    def open(cls, *folders: str | Path, verify: bool = False) -> Dataset:
        """Opens complete data sets.

        Args:
            *folders: What `synthesize` wrote.
            verify: Whether all checksums are compared, which reads all data once.
        """
        found = cls(tuple(Path(folder) for folder in folders))
        if not folders:
            raise DataError("A data set needs at least one folder.")
        sizes = {(m["n_x"], m["n_u"], m["derivatives"]) for m in found.manifests}
        if len(sizes) > 1:
            raise DataError(f"Folders with different records cannot be joined: {sorted(sizes)}.")
        for folder, manifest in zip(found.folders, found.manifests, strict=True):
            for i in range(manifest["shards"]):
                present = description_path(folder, i).exists()
                if not present or (verify and not is_complete(folder, i)):
                    raise DataError(
                        f"{shard_path(folder, i)} is missing or damaged; run synthesize again with "
                        "the same arguments: it makes what is not complete."
                    )
        return found

    @cached_property
    def manifests(self) -> list[dict[str, Any]]:
        """How each folder was made."""
        return [read_manifest(folder) for folder in self.folders]

    @cached_property
    def shards(self) -> list[ShardFile]:
        """Records of each shard, mapped into memory; those without any are left out."""
        found = []
        for folder, manifest in zip(self.folders, self.manifests, strict=True):
            paths = [shard_path(folder, i) for i in range(manifest["shards"])]
            files = [ShardFile(path, manifest) for path in paths]
            found += [file for file in files if len(file)]
        if not found:
            raise DataError(
                f"No valid pair in {', '.join(map(str, self.folders))}: the expert failed in all "
                "closed loops, or the filters refuse everything.  Look at the counts in the "
                "shards' _shard-*.json files."
            )
        return found

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return sum(len(shard) for shard in self.shards)

    @property
    def offered(self) -> int:
        """Number of pairs before filters."""
        descriptions = [
            read_json(description_path(folder, i))
            for folder, manifest in zip(self.folders, self.manifests, strict=True)
            for i in range(manifest["shards"])
        ]
        return sum(described["offered"] for described in descriptions)

    @property
    def has_derivatives(self) -> bool:
        """Whether the expert's du/dx is there."""
        return bool(self.manifests[0]["derivatives"])

    def read(self, shards: Sequence[int]) -> np.ndarray:
        """Records of some shards in memory."""
        return np.concatenate([self.shards[i].read() for i in shards])


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder."""
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{folder} has no {MANIFEST} of format {FORMAT}; it holds no data set.")
    return manifest
