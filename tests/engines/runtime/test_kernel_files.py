"""Compiled kernels in Warp's cache: damaged, foreign and old ones are built again."""

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp

from warpmpc._errors import CodegenError
from warpmpc.codegen.kernel_source import KernelSource, arguments
from warpmpc.engines.runtime import loading
from warpmpc.engines.runtime.ffi import form, run
from warpmpc.engines.runtime.loading import (
    SEAL,
    fault_of,
    load_kernel,
    loaded_files,
    seal_files,
    start_warp,
)

BODY = """
for (int i = 0; i < 32; ++i)
    y_out.data[i] = {factor} * x_in.data[i];
"""


def source(factor: int = 3) -> KernelSource:
    """Multiplies by a constant; small, so that it is built in a moment."""
    return KernelSource(
        "times",
        "Multiplies by a constant.",
        "float32",
        arguments("real", "x_in"),
        arguments("real", "y_out"),
        BODY.format(factor=factor),
        head="",
    )


def product(made: KernelSource) -> float:
    """What the kernel makes of 2."""
    x = jnp.full((1, 1, 32), 2, dtype="float32")
    return float(run(made, {"x_in": x}, {"y_out": x.shape}, threads=32, block=32)["y_out"][0, 0, 5])


def forget(made: KernelSource) -> None:
    """As in another process: nothing is loaded."""
    form(made).module.unload()
    load_kernel.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Empty caches of this test alone."""
    start_warp()
    monkeypatch.setenv("WARPMPC_CACHE_DIR", str(tmp_path / "modules"))
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path / "kernels"))
    (tmp_path / "kernels").mkdir()
    load_kernel.cache_clear()
    return tmp_path / "kernels"


@pytest.fixture
def built(cache) -> tuple[KernelSource, Path]:
    """A kernel that is built, and its folder."""
    made = source()
    forget(made)
    assert product(made) == 6
    (folder,) = cache.glob("wp_times_*")  # beside the dispatcher, in a process that is new
    forget(made)
    return made, folder


def binary_in(folder: Path) -> Path:
    (found,) = (path for path in loaded_files(folder) if path.suffix != ".meta")
    return found


def random_block(content: bytes) -> bytes:
    noise = np.random.default_rng(0).bytes(256)
    return content[:512] + noise + content[512 + len(noise) :]


DAMAGES = {
    "zeros": lambda content: bytes(len(content)),
    "zeroed block": lambda content: content[:256] + bytes(512) + content[768:],
    "random block": random_block,
    "cut": lambda content: content[: len(content) // 2],
    "one bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "empty": lambda _: b"",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_object_is_built_again(built, damage):
    made, folder = built
    path = binary_in(folder)
    size = path.stat().st_size
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match=r"is damaged \(.* is not what was written\); it is bu"):
        assert product(made) == 6
    assert path.stat().st_size == size
    forget(made)
    load_kernel(form(made), 32)  # and warns no more


def test_damaged_description_is_built_again(built):
    made, folder = built
    (meta,) = folder.glob("*.meta")
    meta.write_text("{}")
    with pytest.warns(RuntimeWarning, match="meta is not what was written"):
        assert product(made) == 6
    assert fault_of(folder) is None


def test_object_without_the_entry_point_is_built_again(built, cache):
    """A whole and sealed object of another kernel: only the search for the entry point tells."""
    made, folder = built
    other = source(5)
    forget(other)
    assert product(other) == 10
    (foreign,) = (path for path in cache.glob("wp_times_*") if path != folder)
    path, content = binary_in(folder), binary_in(foreign).read_bytes()
    (seal,) = foreign.glob(f"*.o.*{SEAL}")
    path.write_bytes(content)
    (folder / seal.name.replace(binary_in(foreign).name, path.name)).touch()
    assert fault_of(folder) is None
    forget(made)
    with pytest.warns(RuntimeWarning, match="has no entry point times"):
        assert product(made) == 6
    assert path.read_bytes() != content


def test_object_of_another_architecture_is_built_again(built):
    """A home folder that machines share: whole and sealed, but not for this processor."""
    made, folder = built
    path = binary_in(folder)
    content = bytearray(path.read_bytes())
    assert content[:4] == b"\x7fELF"
    of_arm, of_intel, machine = 183, 62, int.from_bytes(content[18:20], "little")
    content[18:20] = (of_intel if machine == of_arm else of_arm).to_bytes(2, "little")
    for seal in folder.glob(f"*{SEAL}"):
        seal.unlink()
    path.write_bytes(content)
    seal_files(folder)
    assert fault_of(folder) is None
    with pytest.warns(RuntimeWarning, match="has no entry point times"):
        assert product(made) == 6


def test_nothing_helps(built, monkeypatch):
    made, _ = built
    monkeypatch.setattr(loading, "fault_of", lambda _: None)
    monkeypatch.setattr(type(form(made).module), "load", broken)
    with (
        pytest.warns(RuntimeWarning, match="is damaged"),
        pytest.raises(CodegenError, match="Kernel times could not be built: no such symbol"),
    ):
        load_kernel(form(made), 32)


def broken(*_):
    raise RuntimeError("no such symbol")


def test_objects_without_seals_are_built_again_in_silence(built):
    """Earlier versions have made none, and may have left a damaged one."""
    made, folder = built
    for seal in folder.glob(f"*{SEAL}"):
        seal.unlink()
    path = binary_in(folder)
    long_ago = time.time() - 1000
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, (long_ago, long_ago))
    assert product(made) == 6
    assert fault_of(folder) is None
    assert path.stat().st_mtime > long_ago + 900


def test_an_object_that_another_process_is_about_to_seal_is_loaded(built):
    made, folder = built
    for seal in folder.glob(f"*{SEAL}"):
        seal.unlink()
    before = binary_in(folder).stat().st_mtime_ns
    assert product(made) == 6
    assert binary_in(folder).stat().st_mtime_ns == before
    assert len(list(folder.glob(f"*{SEAL}"))) == 2


def test_object_that_others_may_write_is_built_again(built):
    made, folder = built
    binary_in(folder).chmod(0o666)
    with pytest.warns(RuntimeWarning, match=r"can be written by every user\); it is built again"):
        assert product(made) == 6
    assert not binary_in(folder).stat().st_mode & 0o002


def test_cache_that_others_may_write_is_left_for_another(built, cache):
    made, folder = built
    cache.chmod(0o777)
    before = binary_in(folder).stat().st_mtime_ns
    with pytest.warns(RuntimeWarning, match="kernel cache is not used, because .* every user; com"):
        assert product(made) == 6
    assert Path(wp.config.kernel_cache_dir) != cache
    assert loaded_files(Path(wp.config.kernel_cache_dir) / folder.name)
    assert binary_in(folder).stat().st_mtime_ns == before


def test_damaged_object_that_cannot_be_removed(built, cache, monkeypatch):
    made, folder = built
    path = binary_in(folder)
    path.write_bytes(bytes(path.stat().st_size))
    monkeypatch.setattr(loading.shutil, "rmtree", lambda *_, **__: None)
    with pytest.warns(RuntimeWarning) as warned:
        assert product(made) == 6
    said = " ".join(str(warning.message) for warning in warned)
    assert "is not what was written" in said
    assert "has files that cannot be removed; compiled kernels go to" in said
    assert Path(wp.config.kernel_cache_dir) != cache


# Builds, damages and removes the same kernel over and over, as another process does.
WORKER = """
import shutil
import sys
from pathlib import Path
import numpy as np
import warp as wp
from test_kernel_files import binary_in, forget, product, source
from warpmpc.engines.runtime.ffi import form
from warpmpc.engines.runtime.loading import start_warp
start_warp()
rng, made = np.random.default_rng(int(sys.argv[1])), source()
for _ in range(6):
    assert product(made) == 6
    forget(made)
    folder = Path(wp.config.kernel_cache_dir) / form(made).module.get_module_identifier(1)
    try:
        if rng.random() < 0.5:
            path = binary_in(folder)
            other = path.with_name(f"{sys.argv[1]}.tmp")
            other.write_bytes(bytes(path.stat().st_size))
            other.replace(path)
        elif rng.random() < 0.5:
            shutil.rmtree(folder)
    except (OSError, ValueError):
        pass  # the other process was faster
"""


@pytest.mark.slow
def test_processes_do_not_collide(tmp_path):
    folders = {name: str(tmp_path / name) for name in ("WARPMPC_CACHE_DIR", "WARP_CACHE_PATH")}
    there = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | folders | {"PYTHONPATH": there}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(number)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [worker.communicate(timeout=200)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said


def test_a_loaded_kernel_says_nothing(built):
    made, _ = built
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert product(made) == 6
