"""The release tool: what it looks for in a wheel, and which example it runs."""

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


def test_the_example_of_the_readme_is_a_program():
    source = release.readme_example()
    compile(source, "example.py", "exec")
    assert "wm.MPCSolver(" in source
    assert ".solve(" in source
