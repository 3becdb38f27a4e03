"""Generated modules on disk: found again, checked, replaced, written elsewhere if need be."""

import subprocess
import sys
from pathlib import Path

import pytest

from warpmpc.codegen import cache
from warpmpc.codegen.cache import cache_folder, load_module

KEY = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("WARPMPC_CACHE_DIR", str(tmp_path / "cache"))
    return cache_folder()


class Text:
    """Counts how often the source of a module is requested."""

    def __init__(self, text: str = "VALUE = 42\n"):
        self.text, self.calls = text, 0

    def __call__(self) -> str:
        self.calls += 1
        return self.text


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_generated_once(folder):
    text = Text()
    for _ in range(2):
        module = load_module("example", KEY, text)
        assert module.VALUE == 42
    assert text.calls == 1
    assert files(folder) == [f"example_{KEY[:24]}.py"]
    assert Path(module.__file__) == folder / files(folder)[0]


def test_another_key_is_another_module(folder):
    load_module("example", KEY, Text())
    assert load_module("example", KEY[::-1], Text("VALUE = 1\n")).VALUE == 1
    assert len(files(folder)) == 2


def test_nothing_is_left_among_the_modules_of_python():
    before = set(sys.modules)
    load_module("example", KEY, Text())
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:10],
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: content.replace(b"42", b"43"),
        lambda content: b"\xff\xfe" + content,
        lambda content: content + b"VALUE = 43\n",
    ],
    ids=["cut", "last byte", "empty", "changed", "no text", "appended"],
)
def test_damaged_file_is_replaced(folder, damage):
    load_module("example", KEY, Text())
    path = folder / files(folder)[0]
    content = path.read_bytes()
    path.write_bytes(damage(content))
    text = Text()
    with pytest.warns(RuntimeWarning, match="generated again"):
        assert load_module("example", KEY, text).VALUE == 42
    assert text.calls == 1
    assert path.read_bytes() == content
    load_module("example", KEY, text)
    assert text.calls == 1


def test_folder_in_place_of_the_file(folder):
    (folder / f"example_{KEY[:24]}.py").mkdir(parents=True)
    with pytest.warns(RuntimeWarning) as warned:
        assert load_module("example", KEY, Text()).VALUE == 42
    said = [str(warning.message) for warning in warned]
    assert "cannot be read" in said[0]
    assert "not writable" in said[1]


def test_unwritable_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("WARPMPC_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="Set WARPMPC_CACHE_DIR to a folder") as warned:
        module = load_module("example", KEY, Text())
    assert module.VALUE == 42
    assert str(Path(module.__file__).parent) in str(warned[-1].message)
    assert Path(module.__file__).exists()


def test_failed_write_leaves_nothing_behind(folder, monkeypatch):
    def refuse(source: str, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(cache.os, "replace", refuse)
    with pytest.warns(RuntimeWarning, match="disk full"), pytest.raises(OSError, match="disk full"):
        load_module("example", KEY, Text())
    assert files(folder) == []


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("WARPMPC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().parent == tmp_path / "warpmpc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder().parent == tmp_path / ".cache" / "warpmpc"


# Writes, reads and deletes the same file over and over; a half-written one would warn.
WORKER = """
from warpmpc.codegen.cache import cache_folder, load_module
path = cache_folder() / ("example_" + KEY[:24] + ".py")
for _ in range(100):
    assert load_module("example", KEY, lambda: "VALUE = " + repr("x" * 200_000)  + "\\n").VALUE
    path.unlink(missing_ok=True)
"""


def test_processes_do_not_collide(folder):
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", f"KEY = {KEY!r}\n{WORKER}"]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [worker.communicate(timeout=100)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert files(folder) == []
