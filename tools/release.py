"""Build the wheel and the source archive, check them, and try the wheel in a clean environment.

    python tools/release.py [--out dist]

The wheel must contain the licence and `py.typed`, `twine check` must pass, and the first Python
example of the README must run from another folder with nothing but the wheel installed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IN_WHEEL = ("warpmpc/py.typed", "warpmpc_bench/py.typed", "licenses/LICENSE")


def run(*command: str, cwd: Path = ROOT) -> None:
    """Runs a command; a failure ends the release."""
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    subprocess.run(command, cwd=cwd, check=True)


def build(out: Path) -> Path:
    """Builds both archives and returns the path of the wheel."""
    shutil.rmtree(out, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(out), str(ROOT))
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(out.iterdir())))
    (wheel,) = out.glob("*.whl")
    return wheel


def missing_files(wheel: Path) -> list[str]:
    """Files that the wheel should contain and does not."""
    names = zipfile.ZipFile(wheel).namelist()
    return [wanted for wanted in IN_WHEEL if not any(name.endswith(wanted) for name in names)]


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
    wheel = build(parser.parse_args().out.resolve())
    if missing := missing_files(wheel):
        sys.stderr.write(f"{wheel.name} lacks {', '.join(missing)}\n")
        return 1
    try_wheel(wheel)
    sys.stdout.write(f"{wheel.name} is ready.\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
