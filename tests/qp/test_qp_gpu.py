"""QP solvers on a CUDA device: accuracy of every loop, isolation, determinism, gradients."""

import jax
import numpy as np
import pytest

from warpmpc import ADMMSettings, QPSolver, StagedSettings, Status
from warpmpc.systems import linear_mpc

pytestmark = pytest.mark.gpu

ENGINES = {
    "unrolled": {"staged": StagedSettings(code="unrolled", prefetch=False, sides=1)},
    "prefetched": {"staged": StagedSettings(code="unrolled", prefetch=True, sides=1)},
    "two_sided": {"staged": StagedSettings(code="unrolled", sides=2)},
    "panels": {"staged": StagedSettings(code="panels")},
    "sparse": {"engine": "sparse"},
}
LIMITS = {"float32": 2e-3, "float64": 1e-8}
FIXED = ADMMSettings(max_iter=25, check_every=0, adaptive_rho_every=0, scaling=0)
HORIZON, BATCH = 4, 1000


def solver(name: str, settings: ADMMSettings, dtype: str, **more) -> QPSolver:
    problem, options = linear_mpc.build(HORIZON), dict(ENGINES.get(name, {"engine": name})) | more
    if "staged" in options:
        options["stages"] = problem.stages
    return QPSolver(problem.P, problem.A, settings, dtype, **options)


def batch(dtype: str, size: int = BATCH) -> list[np.ndarray]:
    problem, rng = linear_mpc.build(HORIZON), np.random.default_rng(0)
    lower, upper = problem.bounds(linear_mpc.sample(size))
    values = (problem.P.data, problem.q, problem.A.data)
    random = [v * (1 + 0.1 * rng.random((size, v.size))) for v in values]
    return [array.astype(dtype) for array in (*random, lower, upper)]


def spoiled(dtype: str) -> tuple[list[np.ndarray], np.ndarray]:
    """A NaN, an infeasible instance, crossed bounds; and who is not affected."""
    P, q, A, lower, upper = batch(dtype)
    q[45, 3] = np.nan
    lower[100, 0] = upper[100, 0] = -2.0
    lower[500, 60], upper[500, 60] = 1.0, 0.0
    return [P, q, A, lower, upper], np.setdiff1d(np.arange(BATCH), [45, 100, 500])


def check_equal(one, other, rows=slice(None)) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a)[rows], np.asarray(b)[rows])


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", ENGINES)
class TestOnTheDevice:
    def test_fixed_iterations(self, name, dtype):
        found = solver(name, FIXED, dtype).solve(*batch(dtype))
        assert {device.platform for device in found.x.devices()} == {"gpu"}
        wanted = solver("dense", FIXED, "float64").solve(*batch("float64", BATCH))
        for ours, theirs in ((found.x, wanted.x), (found.y, wanted.y)):
            size = np.abs(theirs).max()
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=LIMITS[dtype] * size)

    def test_statuses_and_neighbours(self, name, dtype):
        one, (data, good) = solver(name, ADMMSettings(), dtype), spoiled(dtype)
        found, clean = one.solve(*data), one.solve(*batch(dtype))
        assert found.status[45] == Status.NON_FINITE
        # The digits of float32 may be too few for a certificate.
        certain = Status.PRIMAL_INFEASIBLE
        assert found.status[100] in (
            [certain] if dtype == "float64" else [certain, Status.MAX_ITER]
        )
        assert found.status[500] == Status.INVALID_BOUNDS
        np.testing.assert_array_equal(np.asarray(found.status)[good], Status.SOLVED)
        check_equal(found, clean, good)

    def test_the_same_bits(self, name, dtype):
        """Results agree from run to run, permuted, split and mapped."""
        one, data = solver(name, ADMMSettings(), dtype), spoiled(dtype)[0]
        wanted = one.solve(*data)
        check_equal(one.solve(*data), wanted)
        order = np.random.default_rng(3).permutation(BATCH)
        permuted = one.solve(*(array[order] for array in data))
        check_equal(jax.tree.map(lambda a: a[np.argsort(order)], permuted), wanted)
        check_equal(solver(name, ADMMSettings(max_batch=320), dtype).solve(*data), wanted)
        mapped = jax.vmap(lambda *args: one.solve(*args))(*(a.reshape(2, 500, -1) for a in data))
        check_equal(jax.tree.map(lambda a: a.reshape(BATCH, *a.shape[2:]), mapped), wanted)


@pytest.mark.parametrize("method", ["kkt", "lsq"])
@pytest.mark.parametrize("name", ["unrolled", "sparse"])
def test_gradients(name, method):
    settings = ADMMSettings(eps_abs=1e-9, eps_rel=1e-9, max_iter=20_000, sensitivity=method)
    data = batch("float64", 33)

    def gradient(engine):
        one = solver(engine, settings, "float64")

        def loss(*args):
            solution = one.solve(*args)
            return (solution.x**2).sum() + 0.1 * (solution.y**2).sum()

        *rest, lower, upper = jax.grad(loss, argnums=(0, 1, 2, 3, 4))(*data)
        return [*rest, lower + upper]

    for ours, wanted in zip(gradient(name), gradient("dense"), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", ENGINES)
def test_soft_rows(name, dtype):
    """Angles and heights are soft, in the first stage hard; a fixed number of iterations."""
    first = 12 * (HORIZON + 1)
    rows = np.array([first + 12 * k + i for k in range(1, HORIZON + 1) for i in (0, 1, 5)])
    penalties = np.random.default_rng(4).uniform(0, 0.5, (BATCH, 4, rows.size))
    penalties[::2, 2:], penalties[::7, 0] = 0, np.inf
    args = batch(dtype)
    args[3][:, rows], args[4][:, rows] = -0.05, 0.05
    found = solver(name, FIXED, dtype, soft_rows=rows).solve(
        *args, penalties=penalties.astype(dtype)
    )
    exact = solver("dense", FIXED, "float64", soft_rows=rows).solve(
        *(array.astype("float64") for array in args), penalties=penalties
    )
    s = np.asarray(exact.warm_start.s)[:, rows]
    assert ((s > args[4][:, rows]) | (s < args[3][:, rows])).mean() > 0.05
    for ours, wanted in ((found.x, exact.x), (found.y, exact.y)):
        error = np.abs(np.asarray(ours, dtype=np.float64) - np.asarray(wanted)).max()
        assert error < LIMITS[dtype] * np.abs(np.asarray(wanted)).max()
