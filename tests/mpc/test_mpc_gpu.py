"""MPC problems on a CUDA device: accuracy, isolation, determinism, gradients, no host transfers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpc_cases import pendulum

import warpmpc as wm

pytestmark = pytest.mark.gpu

FIXED = wm.SQPSettings(
    mode="fixed",
    max_iter=3,
    qp=wm.ADMMSettings(max_iter=50, check_every=0, adaptive_rho_every=0, scaling=0),
)
LIMITS = {"float32": 5e-3, "float64": 1e-8}
BATCH = 1000


def starts(dtype: str) -> np.ndarray:
    return np.random.default_rng(0).uniform(-0.3, 0.3, (BATCH, 2)).astype(dtype)


def solver(dtype: str, settings: wm.SQPSettings = FIXED, engine: str = "staged") -> wm.MPCSolver:
    return wm.MPCSolver(pendulum(10), settings, dtype=dtype, engine=engine)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("engine", ["staged", "sparse"])
def test_fixed_iterations_are_those_of_dense_float64(engine, dtype):
    found = solver(dtype, engine=engine).solve(starts(dtype))
    assert {device.platform for device in found.z.devices()} == {"gpu"}
    wanted = solver("float64", engine="dense").solve(starts("float64"))
    assert np.abs(np.asarray(found.z) - np.asarray(wanted.z)).max() < LIMITS[dtype]


@pytest.mark.parametrize("dtype", LIMITS)
def test_convergence_and_gradients(dtype):
    """Also the projection of Hessian blocks, and the adjoint with the exact Hessian."""
    mpc = solver(dtype, wm.SQPSettings())
    found = mpc.solve(starts(dtype))
    assert (np.asarray(found.status) == wm.MPCStatus.CONVERGED).mean() > 0.99
    gradient = jax.jit(jax.grad(lambda x0: mpc.solve(x0).u[:, 0].sum()))(jnp.asarray(starts(dtype)))
    oracle = solver("float64", wm.SQPSettings(), "dense")
    wanted = jax.grad(lambda x0: oracle.solve(x0).u[:, 0].sum())(jnp.asarray(starts("float64")))
    size = np.abs(wanted).max()
    close = (
        np.abs(np.asarray(gradient) - np.asarray(wanted)).max(axis=1) < 20 * LIMITS[dtype] * size
    )
    assert close.mean() > 0.98  # an instance at the edge of its active set may fall to either side


def test_one_bad_instance_changes_no_bit_of_the_others():
    mpc, x0 = solver("float32"), starts("float32")
    plain = mpc.solve(x0)
    x0[45, 1] = np.nan
    spoiled = mpc.solve(x0)
    assert spoiled.status[45] == wm.MPCStatus.NON_FINITE
    others = np.arange(BATCH) != 45
    np.testing.assert_array_equal(np.asarray(plain.z)[others], np.asarray(spoiled.z)[others])


def test_bits_repeat_and_nothing_leaves_the_device():
    mpc, x0 = solver("float32"), jnp.asarray(starts("float32"))
    first = mpc.solve(x0)
    with jax.transfer_guard("disallow"):
        again = mpc.solve(x0)
        jax.block_until_ready(again.z)
    np.testing.assert_array_equal(np.asarray(first.z), np.asarray(again.z))


def test_closed_loop():
    mpc = solver("float32")

    def plant(x, u):
        return x + 0.1 * jnp.stack([x[:, 1], 9.81 * jnp.sin(x[:, 0]) + u[:, 0]], axis=1)

    loop = wm.rollout(mpc, plant, jnp.asarray(starts("float32")), 30)
    assert np.abs(np.asarray(loop.x)[:, -1, 0]).max() < 0.05
