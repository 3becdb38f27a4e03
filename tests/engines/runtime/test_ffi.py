"""Warp kernels as JAX calls: launches, batching by folding, device limits."""

import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp

from warpmpc._errors import CodegenError
from warpmpc.codegen.kernel_source import Argument, KernelSource
from warpmpc.engines.runtime import ffi
from warpmpc.engines.runtime.batching import fold_vmap
from warpmpc.engines.runtime.ffi import launch, run, shared_memory_limit


@wp.kernel(module="unique", enable_backward=False)
def scale_and_shift(
    # In:
    x_in: wp.array1d(dtype=wp.float64),
    factor: wp.int32,
    # Out:
    scaled_out: wp.array1d(dtype=wp.float64),
    shifted_out: wp.array1d(dtype=wp.float64),
):
    i = wp.tid()
    if i < x_in.shape[0]:
        scaled_out[i] = x_in[i] * wp.float64(factor)
        shifted_out[i] = x_in[i] + wp.float64(factor)


def run_kernel(x: jax.Array, factor: int) -> tuple[jax.Array, ...]:
    outputs = {"scaled_out": x.shape, "shifted_out": x.shape}
    return launch(scale_and_shift, [x, factor], outputs, threads=64, block=64)


class TestLaunch:
    @pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
    def test_values(self, wrap):
        x = jnp.arange(50, dtype="float64")
        scaled, shifted = wrap(lambda x: run_kernel(x, 3))(x)
        np.testing.assert_array_equal(scaled, 3 * np.arange(50))
        np.testing.assert_array_equal(shifted, np.arange(50) + 3)

    def test_one_wrapper_per_kernel_and_geometry(self):
        wrapper = ffi._jax_kernel(scale_and_shift, 2, 64, ())
        assert wrapper is ffi._jax_kernel(scale_and_shift, 2, 64, ())
        assert wrapper is not ffi._jax_kernel(scale_and_shift, 2, 32, ())


DECLARED = KernelSource(
    name="scale_and_count",
    title="Scales values and counts calls.",
    dtype="float64",
    inputs=[Argument("x_in", "vector"), Argument("factor", "number")],
    outputs=[Argument("count_io", "table"), Argument("scaled_out", "vector")],
    head="",
    body="scaled_out.data[thread] = x_in.data[thread] * factor; count_io.data[thread] += 1;",
)


class TestRun:
    def test_arguments_go_by_name(self):
        x = jnp.arange(50, dtype="float64")
        given = {"factor": 3, "count_io": jnp.arange(50, dtype="int32"), "x_in": x}
        found = run(DECLARED, given, {"scaled_out": x.shape}, threads=50, block=1)
        assert list(found) == ["count_io", "scaled_out"]
        np.testing.assert_array_equal(found["scaled_out"], 3 * np.arange(50))
        np.testing.assert_array_equal(found["count_io"], np.arange(50) + 1)

    @pytest.mark.parametrize(
        "given", [{"factor": 3}, {"x_in": 0, "factor": 3, "count_io": 0, "other": 1}]
    )
    def test_other_arguments_than_declared_are_refused(self, given):
        with pytest.raises(CodegenError, match="scale_and_count takes x_in, factor, count_io, sca"):
            run(DECLARED, given, {"scaled_out": (1,)}, threads=1, block=1)


def weighted(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Something that acts on each instance of the leading axis: ``[batch, 3]``, ``[batch, 2]``."""
    assert a.ndim == b.ndim == 2
    assert a.shape[0] == b.shape[0], "the batch must be folded into one axis"
    return jnp.cumsum(a, axis=1), a[:, :1] * b


def arguments(*leading: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(*leading, 4, 3)), rng.normal(size=(*leading, 4, 2))


def expected(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum(a, axis=-1), a[..., :1] * b


def check(results, a, b) -> None:
    for result, wanted in zip(results, expected(a, b), strict=True):
        assert result.shape == wanted.shape
        np.testing.assert_allclose(result, wanted, rtol=1e-15)


class TestFoldVmap:
    def test_without_vmap(self):
        a, b = arguments()
        check(fold_vmap(weighted)(a, b), a, b)

    @pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
    def test_vmap(self, wrap):
        a, b = arguments(5)
        check(wrap(jax.vmap(fold_vmap(weighted)))(a, b), a, b)

    def test_nested_vmap(self):
        a, b = arguments(2, 5)
        check(jax.vmap(jax.vmap(fold_vmap(weighted)))(a, b), a, b)

    def test_vmap_of_one(self):
        a, b = arguments(1)
        check(jax.vmap(fold_vmap(weighted))(a, b), a, b)

    def test_first_argument_unbatched(self):
        a, b = arguments(5)
        results = jax.vmap(fold_vmap(weighted), in_axes=(None, 0))(a[0], b)
        check(results, np.broadcast_to(a[0], a.shape), b)

    def test_second_argument_unbatched(self):
        a, b = arguments(5)
        results = jax.vmap(fold_vmap(weighted), in_axes=(0, None))(a, b[1])
        check(results, a, np.broadcast_to(b[1], b.shape))

    def test_nested_with_different_arguments(self):
        a, b = arguments(5)
        inner = jax.vmap(fold_vmap(weighted), in_axes=(None, 0))
        results = jax.vmap(inner, in_axes=(0, None))(a, b)
        shape = (5, 5, 4)
        check(
            results,
            np.broadcast_to(a[:, None], (*shape, 3)),
            np.broadcast_to(b[None], (*shape, 2)),
        )

    def test_other_axes(self):
        a, b = arguments(5)
        mapped = jax.vmap(fold_vmap(weighted), in_axes=(1, 2), out_axes=(2, 0))
        cumulated, product = mapped(a.swapaxes(0, 1), np.moveaxis(b, 0, 2))
        check((np.moveaxis(np.asarray(cumulated), 2, 0), product), a, b)

    def test_inside_scan(self):
        a, b = arguments(5)

        def step(total, pair):
            cumulated, product = jax.vmap(fold_vmap(weighted))(*pair)
            return total + product.sum(), cumulated

        total, cumulated = jax.lax.scan(step, 0.0, (a[:, None], b[:, None]))
        np.testing.assert_allclose(total, expected(a, b)[1].sum())
        np.testing.assert_allclose(cumulated[:, 0], expected(a, b)[0])

    def test_branch_on_a_mapped_predicate(self):
        """It maps even constants such as the tables of a kernel."""
        table = jnp.arange(3.0)

        def one(flag, a):
            return jax.lax.cond(flag, fold_vmap(lambda a: a * table[None]), jnp.negative, a)

        a, _ = arguments(5)
        flags = np.arange(5) % 2 == 0
        wanted = np.where(flags[:, None, None], a * np.arange(3), -a)
        np.testing.assert_array_equal(jax.vmap(one)(flags, a), wanted)


class TestSharedMemoryLimit:
    def test_without_a_gpu_that_of_hopper(self, monkeypatch):
        monkeypatch.setattr(ffi.jax, "default_backend", lambda: "cpu")
        assert shared_memory_limit() == 232_448

    def test_with_a_gpu_that_of_the_device(self, monkeypatch):
        asked = []

        def device(place: jax.Device) -> SimpleNamespace:
            asked.append(place)
            return SimpleNamespace(max_shared_memory_per_block=101_376)

        monkeypatch.setattr(ffi.jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(ffi.wp, "device_from_jax", device)
        assert shared_memory_limit() == 101_376
        assert asked == [jax.local_devices()[0]]


SCRIPT = """
import warpmpc as wm
from warpmpc import systems

system = systems.make("pendulum", horizon=20)
solver = wm.MPCSolver(system.problem, system.settings)
loop = wm.rollout(solver, system.simulate, system.sample(4000).astype("float32"), 40)
print("end", loop.u.is_ready())
"""


FORGETFUL = """
import warpmpc as wm
from warpmpc.systems import pendulum
system = pendulum.make()
solver = wm.MPCSolver(system.problem, system.settings)
solver.solve(system.sample(2000).astype("float32"))  # nobody looks at it
print("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("script", "said"), [(SCRIPT, ["end", "False"]), (FORGETFUL, ["end"])])
def test_a_script_ends_while_kernels_run(script, said):
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert found.stdout.split() == said
