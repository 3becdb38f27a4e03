"""Add this commit to the versions of the site, which mike keeps on the branch gh-pages.

    python tools/deploy_site.py [--push]

A commit that is tagged v1.2.3 becomes the version 1.2 and the alias `latest`; any other one renews
the version `main`.  Readers who come without a version see `latest`, or `main` before there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def names_of(tags: list[str]) -> list[str]:
    """The version of a commit with these tags, and its aliases."""
    for tag in tags:
        if found := re.fullmatch(r"v(\d+\.\d+)\.\d+", tag):
            return [found[1], "latest"]
    return ["main"]


def default_of(versions: list[dict]) -> str:
    """What readers see who come without a version."""
    aliases = [alias for version in versions for alias in version["aliases"]]
    return "latest" if "latest" in aliases else "main"


def mike(*arguments: str) -> str:
    """Runs mike with a site that lets readers choose a version; returns what it prints."""
    command = [str(Path(sys.executable).with_name("mike")), *arguments]
    settings = os.environ | {"DOCS_VERSIONS": "mike", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=settings, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def main(arguments: list[str] | None = None) -> int:
    """Deploys the site of this commit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--push", action="store_true", help="push gh-pages as well")
    push = ["--push"] if parser.parse_args(arguments).push else []
    tags = subprocess.run(
        ["git", "tag", "--points-at", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    names = names_of(tags.stdout.decode().split())
    mike("deploy", *push, "--update-aliases", *names)
    default = default_of(json.loads(mike("list", "--json")))
    mike("set-default", *push, default)
    sys.stdout.write(f"The site has the version {names[0]}; its default is {default}.\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
