"""The kernels on a CUDA device: accuracy of every variant, isolation, determinism."""

import jax
import numpy as np
import pytest
from cases import PATTERNS
from ldl_cases import DTYPES, WARP_ENGINES, check_solver, make_solver, solver_for, systems

from warpmpc import FactorStatus, LDLSettings, LDLSolver

pytestmark = pytest.mark.gpu

NAMES = [
    "one_column",
    "diagonal",
    "arrow_last",
    "dense",
    "random_120_half",
    "random_300",
    "cartpole_6",
    "linear_adjoint_2",
]
NAME = "cartpole_6"


def solve(solver: LDLSolver, values, rhs) -> np.ndarray:
    return np.asarray(solver.solve(solver.factor(values), rhs))


def test_kernels_run_on_the_device():
    factor = solver_for(NAME).factor(systems(NAME).values)
    assert {device.platform for device in factor.values.devices()} == {"gpu"}


@pytest.mark.parametrize("batch", [33, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", WARP_ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_residuals(name, engine, dtype, batch):
    check_solver(solver_for(name, engine, dtype), systems(name, dtype, batch))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("warps", [1, 2, 3, 4, 16, 32])
def test_warps_do_not_change_a_bit(warps, dtype):
    case, batch = PATTERNS[NAME](), systems(NAME, dtype, 100)
    solvers = [
        LDLSolver(case.K, dtype=dtype, settings=LDLSettings(window=False, warps_per_tile=count))
        for count in (1, warps)
    ]
    check_solver(solvers[1], batch)
    one, many = (solve(solver, batch.values, batch.rhs) for solver in solvers)
    np.testing.assert_array_equal(many, one)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", WARP_ENGINES)
class TestBits:
    def test_run_to_run(self, engine, dtype):
        solver, batch = solver_for(NAME, engine, dtype), systems(NAME, dtype, 1000)
        first = solve(solver, batch.values, batch.rhs)
        for _ in range(5):
            np.testing.assert_array_equal(solve(solver, batch.values, batch.rhs), first)

    def test_permuted_batch(self, engine, dtype):
        solver, batch = solver_for(NAME, engine, dtype), systems(NAME, dtype, 1000)
        order = np.random.default_rng(3).permutation(1000)
        straight = solve(solver, batch.values, batch.rhs)
        permuted = solve(solver, batch.values[order], batch.rhs[order])
        np.testing.assert_array_equal(permuted, straight[order])

    def test_alone_and_in_a_batch(self, engine, dtype):
        solver, batch = solver_for(NAME, engine, dtype), systems(NAME, dtype, 1000)
        together = solve(solver, batch.values, batch.rhs)
        for b in (0, 31, 32, 999):
            at = slice(b, b + 1)
            alone = solve(solver, batch.values[at], batch.rhs[at])
            np.testing.assert_array_equal(alone, together[at])

    @pytest.mark.parametrize("number", [np.nan, np.inf, 0.0])
    def test_neighbours_of_a_broken_instance(self, engine, dtype, number):
        solver, batch = solver_for(NAME, engine, dtype), systems(NAME, dtype, 100)
        values, clean = batch.values.copy(), solve(solver, batch.values, batch.rhs)
        values[45] = number
        factor = solver.factor(values)
        solution = np.asarray(solver.solve(factor, batch.rhs))
        status = np.full(100, FactorStatus.OK)
        status[45] = FactorStatus.NON_FINITE if number else FactorStatus.ZERO_PIVOT
        np.testing.assert_array_equal(factor.status, status)
        assert np.isnan(solution[45]).all()
        others = np.arange(100) != 45
        np.testing.assert_array_equal(solution[others], clean[others])

    def test_transforms(self, engine, dtype):
        solver, batch = solver_for(NAME, engine, dtype), systems(NAME, dtype, 64)
        wanted = solve(solver, batch.values, batch.rhs)
        jitted = jax.jit(lambda values, rhs: solver.solve(solver.factor(values), rhs))
        np.testing.assert_array_equal(jitted(batch.values, batch.rhs), wanted)
        mapped = jax.vmap(jitted)(batch.values.reshape(2, 32, -1), batch.rhs.reshape(2, 32, -1))
        np.testing.assert_array_equal(mapped.reshape(64, -1), wanted)


@pytest.mark.parametrize("ordering", ["amd", "stage"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_batch(dtype, ordering):
    case = PATTERNS["ldl_benchmark_4"]()
    solver = make_solver(case, "warp", dtype, ordering=ordering, stages=case.stages)
    check_solver(solver, systems(case, dtype, 20_000))
