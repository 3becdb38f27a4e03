"""Where compiled programs are kept."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from warpmpc.codegen.cache import cache_folder
from warpmpc.engines.runtime import loading


@pytest.fixture
def settings():
    """JAX's settings are as before afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)  # whatever the environment says
    yield jax.config
    for name, value in before.items():
        jax.config.update(name, value)
    loading.compilation_cache.reset_cache()


def test_programs_are_kept_beside_kernels_on_a_gpu(settings, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    loading.keep_programs()
    kept = str(cache_folder() / "xla")
    assert settings.jax_compilation_cache_dir == kept
    with loading.empty_caches():
        assert settings.jax_compilation_cache_dir is None
    assert settings.jax_compilation_cache_dir == kept


def test_the_callers_folder_stays(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    settings.update("jax_compilation_cache_dir", str(tmp_path))
    loading.keep_programs()
    assert settings.jax_compilation_cache_dir == str(tmp_path)


def test_programs_for_the_cpu_are_not_kept(settings):
    loading.keep_programs()
    assert settings.jax_compilation_cache_dir is None


SCRIPT = """
import sys
import jax
import numpy as np
from mpc_cases import pendulum
from sqp_cases import FIXED
from warpmpc import MPCSolver

if len(sys.argv) > 3:
    jax.config.update("jax_compilation_cache_dir", sys.argv[3])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
x0 = np.linspace(-1, 1, 6).reshape(3, 2).astype("float32")
np.save(sys.argv[2], MPCSolver(pendulum(4, integrator=sys.argv[1]), FIXED).solve(x0).z)
"""


@pytest.mark.slow
def test_kept_programs_run_the_kernels_of_their_process(tmp_path):
    """Programs of two problems may be equal but for what their kernels compute."""
    found = {}
    for integrator, kept in [("euler", True), ("rk4", True), ("euler", True), ("rk4", False)]:
        folder = [str(tmp_path / "kept")] if kept else []
        path = tmp_path / "z.npy"
        command = [sys.executable, "-c", SCRIPT, integrator, str(path), *folder]
        tests = str(Path(__file__).parents[2] / "support")
        subprocess.run(command, check=True, timeout=300, env=os.environ | {"PYTHONPATH": tests})
        z = np.load(path)
        np.testing.assert_array_equal(found.setdefault(integrator, z), z)
    assert list((tmp_path / "kept").iterdir())
    assert np.abs(found["euler"] - found["rk4"]).max() > 1e-4
