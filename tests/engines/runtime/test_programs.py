"""Programs that XLA compiled for the CPU are found by later processes, without harm to others."""

import shutil
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax._src import monitoring

from warpmpc.codegen.cache import CACHE_VARIABLE, cache_folder
from warpmpc.engines.runtime import loading
from warpmpc.engines.runtime.announcing import ANNOUNCER
from warpmpc.engines.runtime.ffi import host

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu" or host() is None, reason="nothing is kept there"
)
HITS = "/jax/compilation_cache/cache_hits"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, for programs of any length."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)  # whatever the environment says
    tmp_path.chmod(0o700)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    name = "jax_persistent_cache_min_compile_time_secs"
    monkeypatch.setitem(loading._SETTINGS, name, 0.0)
    loading._programs.cache_clear()
    yield tmp_path
    loading._programs.cache_clear()
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def hits():
    """Names of what JAX has found in its cache."""
    found = []

    def listen(event, **_):
        if event == HITS:
            found.append(event)

    jax.monitoring.register_event_listener(listen)
    yield found
    monitoring.unregister_event_listener(listen)


def compiled(factor=3.0):
    """Compiles a program as a solver does, in a process that has compiled nothing so far."""

    def function(x):
        loading.keep_program()
        return jnp.sin(x) * factor

    with ANNOUNCER.call():
        return float(jax.jit(function)(jnp.float32(0.5)))


def kept(folder):
    return sorted(folder.rglob(f"*{loading._KEPT}"))


def as_a_new_process():
    loading._programs.cache_clear()


def test_a_later_process_finds_the_program(folder, hits):
    value = compiled()
    assert not hits
    assert any("function" in path.name for path in kept(folder))
    as_a_new_process()
    assert compiled() == value
    assert hits


def test_settings_of_the_caller_are_as_before(folder):
    names = list(loading._SETTINGS)
    before = [jax.config.values[name] for name in names]
    compiled()
    assert [jax.config.values[name] for name in names] == before


def test_a_folder_of_the_caller_is_left_to_the_caller(folder, tmp_path_factory):
    theirs = tmp_path_factory.mktemp("theirs")
    jax.config.update("jax_compilation_cache_dir", str(theirs))
    compiled()
    assert not kept(folder)
    assert jax.config.jax_compilation_cache_dir == str(theirs)


def test_programs_of_the_caller_are_not_kept(folder):
    jax.jit(lambda x: loading.keep_program() or x + 1)(1.0)  # not in a call of ours
    assert not kept(folder)


def test_a_damaged_program_costs_nothing_but_time(folder, hits):
    value = compiled()
    for path in kept(folder):
        path.write_bytes(path.read_bytes()[:-7])
    as_a_new_process()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled() == value
    assert not hits
    as_a_new_process()
    assert compiled() == value
    assert hits


def test_programs_that_others_could_have_written_are_not_run(folder, hits):
    value = compiled()
    for path in kept(folder):
        path.chmod(0o666)
    as_a_new_process()
    assert compiled() == value
    assert not hits


def test_the_oldest_programs_are_forgotten(folder, monkeypatch):
    monkeypatch.setattr(loading, "MOST", 1)
    for factor in (2.0, 3.0, 4.0):
        compiled(factor)
    assert len(kept(folder)) >= 3
    as_a_new_process()
    compiled(5.0)
    functions = [path for path in kept(folder) if "function" in path.name]
    assert len(functions) <= 2


def test_a_process_goes_on_when_its_temporary_files_are_gone(folder):
    compiled()
    programs = loading._programs(cache_folder() / "xla" / loading._processor())
    shutil.rmtree(programs._mine)
    before = len(kept(folder))
    assert compiled(2.0) == pytest.approx(2 * 0.479426, rel=1e-5)
    assert len(kept(folder)) > before


def test_without_a_folder_nothing_is_kept(folder, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    assert compiled() == pytest.approx(3 * 0.479426, rel=1e-5)
