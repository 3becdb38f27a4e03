"""The release tool: what it looks for in a wheel, and which example it runs."""

import tarfile
import zipfile

import release


def test_missing_files_are_named(tmp_path):
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("warpmpc/py.typed", "")
        archive.writestr("warpmpc-1.dist-info/licenses/LICENSE", "")
    assert release.missing_files(wheel) == ["warpmpc_bench/py.typed"]
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("warpmpc_bench/py.typed", "")
    assert release.missing_files(wheel) == []


def test_missing_files_of_the_source_archive_are_named(tmp_path):
    (tmp_path / "LICENSE").write_text("")
    archive = tmp_path / "some.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        opened.add(tmp_path / "LICENSE", "some-1/LICENSE")
    assert release.missing_files(archive) == [one for one in release.IN_SOURCE if one != "/LICENSE"]


def test_the_example_of_the_readme_is_a_program():
    source = release.readme_example()
    compile(source, "example.py", "exec")
    assert "wm.MPCSolver(" in source
    assert ".solve(" in source
