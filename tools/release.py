"""Build the wheel and the source archive, check them, and try the wheel in a clean environment.

    python tools/release.py [--out dist]

The wheel must contain the licence and `py.typed`, the source archive benchmarks and notebooks.
`twine check` must pass, and the first Python example of the README must run from another folder
with nothing but the wheel installed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IN_WHEEL = ("warpmpc/py.typed", "warpmpc_bench/py.typed", "licenses/LICENSE")
IN_SOURCE = (
    "/LICENSE",
    "/benchmarks/gpu_day.sh",
    "/notebooks/first_batch.ipynb",
    "/tests/conftest.py",
)


def run(*command: str, cwd: Path = ROOT) -> None:
    """Runs a command; a failure ends the release."""
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    subprocess.run(command, cwd=cwd, check=True)


def build(out: Path) -> tuple[Path, Path]:
    """Builds both archives and returns the paths of the wheel and of the source archive."""
    shutil.rmtree(out, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(out), str(ROOT))
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(out.iterdir())))
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


def missing_files(archive: Path) -> list[str]:
    """Files that a wheel or a source archive should contain and does not."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            names, wanted = opened.namelist(), IN_WHEEL
    else:
        with tarfile.open(archive) as opened:
            names, wanted = opened.getnames(), IN_SOURCE
    return [file for file in wanted if not any(name.endswith(file) for name in names)]


def readme_example() -> str:
    """The first Python block of the README, which needs no extra."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    if found is None:
        raise SystemExit("The README has no Python example.")
    return found[1]


def try_wheel(wheel: Path) -> None:
    """Installs the wheel into a new environment and runs the README's example elsewhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", str(folder / "venv"))
        python = str(folder / "venv" / "bin" / "python")
        run(python, "-m", "pip", "install", "--quiet", str(wheel))
        run(python, "-W", "error", "-c", "import warpmpc", cwd=folder)
        (folder / "example.py").write_text(readme_example())
        run(python, "example.py", cwd=folder)


def main() -> int:
    """Builds, checks and tries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    wheel, source = build(parser.parse_args().out.resolve())
    for archive in (wheel, source):
        if missing := missing_files(archive):
            sys.stderr.write(f"{archive.name} lacks {', '.join(missing)}\n")
            return 1
    try_wheel(wheel)
    sys.stdout.write(f"{wheel.name} is ready.\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
