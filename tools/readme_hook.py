"""Let hatchling put a README into the archives whose links work on a package index."""

from __future__ import annotations

import sys
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).parent))  # hatchling runs this file alone

import links


class ReadmeHook(MetadataHookInterface):
    """Sets the field `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict) -> None:
        """Rewrites the links of README.md."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get("Repository")
        text = links.readme_for_index(text, address, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
