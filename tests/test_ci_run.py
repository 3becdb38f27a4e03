"""The script of continuous integration: it installs the emulator, or says why it is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"
NEEDED = ("bash", "dirname", "env")  # besides what each case has
EMULATOR = {"arm-none-eabi-gcc": "exit 0", "qemu-system-arm": "exit 0"}
ROOT, USER = {"id": "echo 0"}, {"id": "echo 1000"}
APT = 'echo "$@" >> "$LOG"; [ "$LEFT" = 0 ]'


def run(folder, programs, left=0):
    """Output of the script, and the calls of apt-get, with these programs on the path alone."""
    if not SCRIPT.exists():
        pytest.skip("no .ci folder beside these tests")
    for name in NEEDED:
        (folder / name).symlink_to(shutil.which(name))
    for name, body in {"make": 'echo "make $*"', **programs}.items():
        (folder / name).write_text(f"#!{shutil.which('bash')}\n{body}\n")
        (folder / name).chmod(0o755)
    log = folder / "log"
    environment = {"PATH": str(folder), "LOG": str(log), "LEFT": str(left)}
    command = [shutil.which("bash"), str(SCRIPT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "make test"
    return done.stdout, log.read_text().splitlines() if log.exists() else []


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
@pytest.mark.parametrize(
    ("programs", "line"),
    [
        ({}, "ci: no apt-get here, tests on the emulated Cortex-M4F will be skipped"),
        ({"apt-get": APT, "sudo": "exit 1", **USER}, "ci: neither root nor sudo"),
        (EMULATOR, None),
    ],
)
def test_nothing_is_installed_where_it_cannot_or_need_not(tmp_path, programs, line):
    text, calls = run(tmp_path, programs)
    assert calls == []
    assert (line in text) if line else text == "make test\n"


def test_the_emulator_is_installed_without_what_it_recommends(tmp_path):
    text, calls = run(tmp_path, {"apt-get": APT, "timeout": 'shift; exec "$@"', **ROOT})
    assert text == "make test\n"
    assert len(calls) == 1
    assert "--no-install-recommends gcc-arm-none-eabi" in calls[0]
    assert calls[0].endswith("qemu-system-arm")


def test_a_failure_is_said_and_tests_run_all_the_same(tmp_path):
    text, calls = run(tmp_path, {"apt-get": APT, "timeout": 'shift; exec "$@"', **ROOT}, left=1)
    assert "ci: apt-get failed, tests on the emulated Cortex-M4F will be skipped" in text
    assert [call.split()[3] for call in calls] == ["install", "update", "install"]
