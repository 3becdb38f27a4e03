"""Kernels on the CPU: any number of threads, of callers and of processes, with the same results."""

import logging
import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import MPCSolver, SettingsError, cpu_threads, set_cpu_threads, systems
from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.engines.runtime import ffi
from warpmpc.engines.runtime.ffi import Host, core_cache, host, run, usable_cores

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="for the CPU")

TILES = 37
# Tiles take very different times; shared memory would mix them up if it were shared.
LOGISTIC = KernelSource(
    name="logistic",
    title="Iterates a chaotic map, in some tiles longer than in others.",
    dtype="float64",
    inputs=[Argument("x_in"), Argument("first", "number")],
    outputs=[Argument("y_out"), Argument("thread_out", "table")],
    head="",
    body="""
    const int tile = thread / 32;
    thread_out.data[tile] = thread;
    double* memory = scratch.data.ptr;
    for (int lane = 0; lane < 32; ++lane) memory[lane] = x_in.data[tile * 32 + lane];
    for (int i = 0; i < first + 40 * (tile % 7) * (tile % 7); ++i)
        for (int lane = 0; lane < 32; ++lane)
            memory[lane] = 3.9 * memory[lane] * (1 - memory[lane]);
    for (int lane = 0; lane < 32; ++lane) y_out.data[tile * 32 + lane] = memory[lane];
    """,
    scratch=64,
    merged=32,
)


@pytest.fixture(autouse=True)
def as_before():
    yield
    set_cpu_threads(None)


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((TILES, 1, 32))


def iterated(x: jax.Array, first: int = 200) -> dict[str, jax.Array]:
    shapes = {"y_out": x.shape, "thread_out": (x.shape[0],)}
    return run(LOGISTIC, {"x_in": x, "first": first}, shapes, threads=32 * TILES, block=32)


def expected(x: np.ndarray, first: int = 200) -> np.ndarray:
    y = x.copy()
    for tile in range(TILES):
        for _ in range(first + 40 * (tile % 7) ** 2):
            y[tile] = 3.9 * y[tile] * (1 - y[tile])
    return y


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_piece_runs_once_on_any_number_of_threads(count):
    set_cpu_threads(1)
    alone = iterated(jnp.asarray(values(0)))["y_out"]
    set_cpu_threads(count)
    for _ in range(20):
        found = iterated(jnp.asarray(values(0)))
        np.testing.assert_array_equal(found["y_out"], alone)
        np.testing.assert_array_equal(found["thread_out"], 32 * np.arange(TILES))
    np.testing.assert_allclose(
        iterated(jnp.asarray(values(0)), 5)["y_out"][7], expected(values(0), 5)[7]
    )


@pytest.mark.parametrize("engine", ["auto", "sparse"])
def test_solutions_have_the_same_bits_on_any_number_of_threads(engine):
    system = systems.make("pendulum", horizon=8, admm_iter=20)
    solver = MPCSolver(system.problem, system.settings, "float32", engine)
    x0 = system.sample(130, 0).astype("float32")
    found = {}
    for count in (1, 2, 4):
        set_cpu_threads(count)
        found[count] = jax.tree.leaves(solver.solve(x0))
    for count in (2, 4):
        for a, b in zip(found[1], found[count], strict=True):
            np.testing.assert_array_equal(a, b)


def test_callers_of_several_threads_share_the_helpers():
    set_cpu_threads(3)
    call = jax.jit(lambda x: iterated(x)["y_out"])
    want = [np.asarray(call(jnp.asarray(values(seed)))) for seed in range(6)]

    def repeated(seed: int) -> bool:
        x = jnp.asarray(values(seed))
        return all(np.array_equal(call(x), want[seed]) for _ in range(30))

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(repeated, range(6)))
    running = host()
    assert running is not None
    assert running.helpers <= 3


def test_helpers_end_and_come_back():
    running = host()
    assert running is not None
    set_cpu_threads(4)
    want = np.asarray(iterated(jnp.asarray(values(1)))["y_out"])
    assert running.helpers == 3
    running.stop()
    assert running.helpers == 0
    spent = running.seconds
    np.testing.assert_array_equal(iterated(jnp.asarray(values(1)))["y_out"], want)
    assert running.helpers == 3
    assert running.seconds > spent


def test_no_helper_is_started_for_one_thread():
    running = host()
    assert running is not None
    running.stop()
    set_cpu_threads(1)
    iterated(jnp.asarray(values(2)))
    assert running.helpers == 0


FORKED = """
import os, signal
import numpy as np
import jax.numpy as jnp
import test_host
from warpmpc import set_cpu_threads
from warpmpc.engines.runtime.ffi import host
set_cpu_threads(4)
x = test_host.values(0)
want = np.asarray(test_host.iterated(jnp.asarray(x))["y_out"])
assert host().helpers == 3
child = os.fork()
if child == 0:
    signal.alarm(60)
    found, threads = np.zeros_like(x), np.zeros(test_host.TILES, dtype=np.int32)
    host().launch_arrays(test_host.LOGISTIC, [x, 200, found, threads], 32 * test_host.TILES)
    os._exit(0 if np.array_equal(found, want) and host().helpers == 3 else 1)
assert os.waitpid(child, 0)[1] == 0
assert np.array_equal(test_host.iterated(jnp.asarray(x))["y_out"], want)
"""


def test_a_forked_process_gets_helpers_of_its_own():
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    environment = {**os.environ, "PYTHONPATH": path, "JAX_ENABLE_X64": "1"}
    subprocess.run(command, env=environment, check=True, timeout=200)


def test_ten_thousand_calls_leak_nothing():
    set_cpu_threads(2)
    call = jax.jit(lambda x: iterated(x, 0)["y_out"])
    x = jnp.asarray(values(3))
    for _ in range(1000):
        call(x)
    jax.block_until_ready(call(x))
    tasks, before = threading.active_count(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10_000):
        found = call(x)
    jax.block_until_ready(found)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB
    assert threading.active_count() == tasks


def known_target() -> str:
    running = host()
    assert running is not None
    return running.target(LOGISTIC)


def test_a_kernel_that_is_not_loaded_is_an_error():
    call = jax.ffi.ffi_call(known_target(), [jax.ShapeDtypeStruct((1,), "float32")])
    with pytest.raises(jax.errors.JaxRuntimeError, match="the kernel of this launch is not loaded"):
        jax.block_until_ready(call(plan=np.array([1, 32, 32, 0], dtype=np.int64)))


def test_a_launch_of_another_version_is_an_error():
    call = jax.ffi.ffi_call(known_target(), [jax.ShapeDtypeStruct((1,), "float32")])
    with pytest.raises(jax.errors.JaxRuntimeError, match="comes from another version"):
        jax.block_until_ready(call(plan=np.int64(1)))


class TestNumberOfThreads:
    def test_default_is_what_the_process_may_use(self, monkeypatch):
        monkeypatch.delenv("WARPMPC_THREADS", raising=False)
        assert cpu_threads() == usable_cores() == len(os.sched_getaffinity(0))

    def test_environment_then_argument(self, monkeypatch):
        monkeypatch.setenv("WARPMPC_THREADS", "3")
        assert cpu_threads() == 3
        set_cpu_threads(2)
        assert cpu_threads() == 2
        set_cpu_threads(None)
        assert cpu_threads() == 3

    @pytest.mark.parametrize("count", [0, -1, 1025, 1.5, "many", True])
    def test_refused(self, count):
        with pytest.raises(
            SettingsError, match="The number of CPU threads must be a number from 1"
        ):
            set_cpu_threads(count)

    def test_refused_in_the_environment(self, monkeypatch):
        monkeypatch.setenv("WARPMPC_THREADS", "all")
        with pytest.raises(SettingsError, match="WARPMPC_THREADS must be a number from 1 to 1024"):
            cpu_threads()


class TestWithoutDispatcher:
    @pytest.fixture
    def without(self, monkeypatch):
        def broken() -> None:
            raise RuntimeError("no threads here")

        monkeypatch.setattr(ffi, "_dispatcher_kernel", broken)
        host.cache_clear()
        yield
        host.cache_clear()

    @pytest.mark.usefixtures("without")
    def test_kernels_run_by_the_launch_of_warp(self, caplog):
        with caplog.at_level(logging.WARNING):
            found = iterated(jnp.asarray(values(0)), 5)["y_out"]
            iterated(jnp.asarray(values(0)))
        (line,) = [r.message for r in caplog.records if "Warp's own launch" in r.message]
        assert line.endswith("no threads here")
        set_cpu_threads(4)  # without effect, but no mistake
        np.testing.assert_allclose(found[7], expected(values(0), 5)[7])

    def test_the_first_dispatcher_stays(self):
        assert Host().helpers == Host().helpers


def test_size_of_the_cache(tmp_path, monkeypatch):
    assert core_cache() >= 128 * 1024
    monkeypatch.setattr(ffi, "_CACHES", tmp_path)
    assert core_cache.__wrapped__() == 2**20
    (tmp_path / "index2").mkdir()
    (tmp_path / "index2" / "level").write_text("2\n")
    (tmp_path / "index2" / "size").write_text("512K\n")
    assert core_cache.__wrapped__() == 512 * 1024


def test_arguments_have_the_order_of_the_declaration():
    source = KernelSource(
        name="mixed",
        title="Adds a number and an array to another one.",
        dtype="float32",
        inputs=[Argument("count", "number"), *arguments("vector", "a_in")],
        outputs=[*arguments("vector", "b_io", "c_out")],
        head="",
        body="b_io.data[thread] += count + a_in.data[thread]; c_out.data[thread] = a_in.shape[0];",
    )
    b = jnp.arange(5, dtype="float32")
    given = {"b_io": b, "a_in": jnp.full(5, 2, dtype="float32"), "count": 10}
    found = run(source, given, {"c_out": (5,)}, threads=5, block=1)
    np.testing.assert_array_equal(found["b_io"], b + 12)
    np.testing.assert_array_equal(found["c_out"], np.full(5, 5))
    np.testing.assert_array_equal(b, np.arange(5))  # the argument itself stays
