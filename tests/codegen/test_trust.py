"""Generated code that another user could have written is not run, but generated elsewhere."""

import os
import stat
from pathlib import Path

import pytest

from warpmpc.codegen import cache
from warpmpc.codegen.cache import (
    cache_folder,
    distrusted_file,
    distrusted_folder,
    load_module,
    make_private_folder,
)

KEY = "0123456789abcdef" * 4
ME = os.getuid()
OTHER, STRANGERS = ME + 4711, 4712


def status(mode: int, owner: int = ME, group: int = STRANGERS) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, owner, group, 0, 0, 0, 0))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("WARPMPC_CACHE_DIR", str(tmp_path / "cache"))
    return cache_folder()


class TestFiles:
    @pytest.mark.parametrize(
        ("found", "reason"),
        [
            (status(0o100600), None),
            (status(0o100644), None),
            (status(0o100644, owner=0), None),
            (status(0o100600, owner=OTHER), f"belongs to the user with number {OTHER}"),
            (status(0o100646), "can be written by every user"),
            (status(0o100664), f"can be written by the group with number {STRANGERS}"),
            (status(0o100664, group=0), None),
        ],
    )
    def test_owner_and_mode(self, found, reason):
        assert distrusted_file(found) == reason

    def test_a_private_group_is_the_user(self, monkeypatch):
        """The umask of many systems lets the group write, which is the user's own."""
        import grp
        import pwd

        user = pwd.struct_passwd(("ann", "", ME, 5000, "", "", ""))
        groups = {
            5000: grp.struct_group(("ann", "", 5000, [])),
            5001: grp.struct_group(("ann", "", 5001, ["ann"])),
            5002: grp.struct_group(("ann", "", 5002, ["ann", "bob"])),
            5003: grp.struct_group(("users", "", 5003, [])),
        }
        monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
        monkeypatch.setattr(grp, "getgrgid", groups.__getitem__)
        cache._is_private_group.cache_clear()
        try:
            found = {g: distrusted_file(status(0o100664, group=g)) for g in (*groups, 5004)}
        finally:
            cache._is_private_group.cache_clear()
        assert [group for group, reason in found.items() if reason is None] == [5000, 5001]


class TestFolders:
    def test_private(self, tmp_path):
        assert distrusted_folder(tmp_path) is None
        assert distrusted_folder(tmp_path / "not" / "there" / "yet") is None

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o722])
    def test_writable_by_all(self, tmp_path, mode):
        """Nor with the sticky bit: others could put their files there first."""
        tmp_path.chmod(mode)
        assert distrusted_folder(tmp_path) == f"{tmp_path} can be written by every user"

    def test_writable_above(self, tmp_path):
        below = tmp_path / "a" / "b"
        below.mkdir(parents=True)
        tmp_path.chmod(0o777)
        assert distrusted_folder(below) == f"{tmp_path} can be written by every user"
        tmp_path.chmod(0o1777)  # as /tmp: what is ours stays ours
        assert distrusted_folder(below) is None

    def test_links_are_followed(self, tmp_path):
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        (tmp_path / "link").symlink_to(tmp_path / "open")
        assert str(tmp_path / "open") in (distrusted_folder(tmp_path / "link") or "")

    def test_new_folders_are_private(self, tmp_path):
        before = os.umask(0)
        try:
            make_private_folder(tmp_path / "a" / "b")
        finally:
            os.umask(before)
        for folder in (tmp_path / "a", tmp_path / "a" / "b"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_a_faster_user(self, tmp_path, monkeypatch):
        """What others have put in place of a missing folder is not used."""
        (tmp_path / "a").mkdir(mode=0o777)
        (tmp_path / "a").chmod(0o777)
        with pytest.raises(PermissionError, match="can be written by every user"):
            make_private_folder(tmp_path / "a" / "b")


def planted(folder: Path) -> Path:
    """A sound module in the cache, which would be loaded."""
    load_module("example", KEY, lambda: "VALUE = 13\n")
    return folder / f"example_{KEY[:24]}.py"


class TestModules:
    def test_trusted_module_is_run(self, folder):
        planted(folder)
        assert load_module("example", KEY, lambda: "VALUE = 42\n").VALUE == 13

    def test_file_that_others_may_write(self, folder):
        path = planted(folder)
        path.chmod(0o666)
        with pytest.warns(RuntimeWarning, match=r"can be written by every user; its code is gener"):
            assert load_module("example", KEY, lambda: "VALUE = 42\n").VALUE == 42
        assert not path.stat().st_mode & 0o022
        assert load_module("example", KEY, str).VALUE == 42

    @pytest.mark.parametrize("depth", [0, 1])
    def test_folder_that_others_may_write(self, folder, depth):
        path = planted(folder)
        wide = [folder, *folder.parents][depth]
        wide.chmod(0o777)
        with pytest.warns(RuntimeWarning, match="is not run, because .* every user; gen") as warned:
            module = load_module("example", KEY, lambda: "VALUE = 42\n")
        assert module.VALUE == 42
        assert len(warned) == 1
        assert Path(module.__file__).parent not in (folder, path)
        assert path.read_text().startswith("VALUE = 13")
        assert distrusted_folder(Path(module.__file__).parent) is None

    def test_folder_of_another_user(self, folder, monkeypatch):
        planted(folder)
        reason = f"{folder} belongs to the user with number {OTHER}"
        monkeypatch.setattr(cache, "distrusted_folder", lambda _: reason)
        with pytest.warns(RuntimeWarning, match=f"belongs to the user with number {OTHER}; gen"):
            assert load_module("example", KEY, lambda: "VALUE = 42\n").VALUE == 42

    def test_new_files_belong_to_the_user_alone(self, folder):
        before = os.umask(0)
        try:
            path = planted(folder)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
