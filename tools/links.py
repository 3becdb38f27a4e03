"""Addresses of the project, all from one place: `[project.urls]` of pyproject.toml.

Reads `Repository` there, an address such as `https://github.com/owner/name`.  From it come the
links that open a notebook in Google Colab, the link to the repository on the site, and absolute
links in the description on a package index.  As long as the entry is missing nothing is linked:
`readme_for_index` then keeps the words of links and leaves pictures out, because a package index
shows neither relative links nor relative pictures.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLAB = "https://colab.research.google.com/github/"
PICTURES = re.compile(r"<!-- pictures -->.*?<!-- end of pictures -->", flags=re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def project() -> dict:
    """The table `[project]` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def repository() -> str | None:
    """The address of the repository, or None while there is none."""
    address = project().get("urls", {}).get("Repository")
    return address.rstrip("/") if address else None


def colab_link(path: str, address: str | None) -> str | None:
    """The link that opens a notebook of the repository in Colab, which knows GitHub."""
    if address is None or not address.startswith("https://github.com/"):
        return None
    return f"{COLAB}{address.removeprefix('https://github.com/')}/blob/main/{path}"


def readme_for_index(text: str, address: str | None, version: str) -> str:
    """The README with absolute links to a released version, or without relative links."""

    def replace(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        if re.match(r"https?:|#|mailto:", target):
            return match[0]
        if address is None:
            return "" if picture else words
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({address}/{kind}/v{version}/{target})"

    if address is None:
        text = PICTURES.sub("", text)
    return re.sub(r"\n{3,}", "\n\n", LINK.sub(replace, text))
