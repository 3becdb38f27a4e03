"""The tool that writes and compares the sources of kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "tools" / "kernel_sources.py"


def tool(*arguments):
    """Runs the tool in a process of its own, since it replaces functions of Warp."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


def test_sources_are_written_and_differences_found(tmp_path):
    folder = tmp_path / "first"
    written = tool("write", folder, "--systems")
    assert written.returncode == 0, written.stderr
    cuda, cpu = sorted(folder.glob("*.cu")), sorted(folder.glob("*.cpp"))
    kernels = {path.stem.rpartition("_")[0] for path in cuda}
    assert kernels == {path.stem.rpartition("_")[0] for path in cpu} != set()
    assert all("__global__" in path.read_text() for path in cuda)
    sources = cuda + cpu

    second = tmp_path / "second"
    second.mkdir()
    for path in folder.iterdir():
        (second / path.name).write_text(path.read_text())
    same = tool("compare", folder, second)
    assert (same.returncode, same.stdout) == (0, f"{len(sources)} sources, 0 differences\n")

    index = second / "index.json"
    index.write_text(index.read_text().replace(sources[0].name, f"other_{sources[0].name}"))
    other = tool("compare", folder, second)
    assert other.returncode == 1
    assert f"only in NEW: other_{sources[0].name}" in other.stdout
