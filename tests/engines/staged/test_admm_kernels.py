"""Kernels that run a whole ADMM loop, against dense NumPy.

Staged (unrolled with one and two sides, rolled) and sparse.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import light_of
from oracles import dense_ldl

from warpmpc.engines.panels.launch import PanelKernels
from warpmpc.engines.runtime.admm_loop import LoopData, LoopLimits, LoopState
from warpmpc.engines.staged.launch import StagedKernels
from warpmpc.symbolic.elimination import StoredElimination, eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.pattern import KKTPattern, SparsePattern, build_kkt
from warpmpc.symbolic.stage_elimination import (
    StageElimination,
    build_stage_elimination,
    build_two_sided_elimination,
)
from warpmpc.systems import patterns

SYSTEMS = {
    "cartpole": partial(patterns.cartpole, 6),
    "quadrotor": partial(patterns.quadrotor, 3),
    "linear": partial(patterns.linear, 4),
}
CODES = ["unrolled", "two_sided", "rolled", "sparse"]
STAGED = ["unrolled", "two_sided"]
DTYPES = {"float32": 3e-4, "float64": 1e-10}  # largest error of iterates over their size
# Large stages take long to compile, twice as long with two sides, longer in float64.


def takes_long(name, code, dtype):
    if name == "cartpole" or code not in STAGED:
        return []
    quick = (name, code, dtype) == ("quadrotor", "unrolled", "float32")
    return [] if quick else [pytest.mark.slow]


ALL = [
    pytest.param(name, code, dtype, marks=takes_long(name, code, dtype))
    for name in SYSTEMS
    for code in CODES
    for dtype in DTYPES
]
SIGMA, OMEGA = 1e-6, 1.6
TILES = 3
FIXED = LoopLimits(check_every=0, span=20, max_iter=20)


@dataclass(frozen=True, eq=False)
class Case:
    """QPs of one pattern in the order of K: variables, then rows; ``[problems, ...]``."""

    kkt: KKTPattern
    values: np.ndarray
    rho: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    s0: np.ndarray
    penalties: np.ndarray | None = None  # linear and quadratic of both sides, infinite: hard

    @property
    def n(self) -> int:
        return self.kkt.K_pattern.n_cols

    def dense(self, b: int) -> np.ndarray:
        K, pattern = np.zeros((self.n, self.n)), self.kkt.K_pattern
        K[pattern.row_idx, pattern.col_idx] = K[pattern.col_idx, pattern.row_idx] = self.values[b]
        return K

    @cached_property
    def is_var(self) -> np.ndarray:
        return np.arange(self.n) < self.kkt.n_vars

    def project(self, b: int, v: np.ndarray) -> np.ndarray:
        s = np.clip(v, self.lower[b], self.upper[b])
        if self.penalties is None:
            return s
        (w_lower, w_upper, h_lower, h_upper), rho = self.penalties[b], self.rho[b]
        above = (rho * (v - s) - w_upper) / (rho + h_upper)
        below = (rho * (s - v) - w_lower) / (rho + h_lower)
        return s + np.maximum(above, 0) - np.maximum(below, 0)

    def iterate(self, b: int, iterations: int) -> np.ndarray:
        """x and v after some iterations from x = 0, s = s0, y = 0."""
        K, w = self.dense(b), np.where(self.is_var, 0, self.s0[b])
        for t in range(iterations):
            s = self.project(b, w) if t else self.s0[b]
            rhs = np.where(self.is_var, SIGMA * w - self.lower[b], 2 * s - w)
            z = np.linalg.solve(K, rhs)
            v = s + (1 - OMEGA) * (w - s) + OMEGA * z / self.rho[b]
            w = np.where(self.is_var, OMEGA * z + (1 - OMEGA) * w, v)
        return w

    def residuals(self, b: int, w: np.ndarray) -> list[float]:
        """Primal, its scale, dual, its scale, objective."""
        n, K = self.kkt.n_vars, self.dense(b)
        P, A, q, x, v = K[:n, :n] - SIGMA * np.eye(n), K[n:, :n], self.lower[b, :n], w[:n], w[n:]
        s = self.project(b, w)[n:]
        y = self.rho[b, n:] * (v - s)
        parts = [A @ x - s, A @ x, s, P @ x + q + A.T @ y, P @ x, A.T @ y, q]
        primal, Ax, s_size, dual, Px, ATy, q_size = (np.abs(part).max() for part in parts)
        objective = 0.5 * x @ P @ x + q @ x
        return [primal, max(Ax, s_size), dual, max(Px, ATy, q_size), objective]


@cache
def case(name: str, seed: int = 0) -> Case:
    structure = SYSTEMS[name]()
    kkt = build_kkt(SparsePattern.from_scipy(structure.P), SparsePattern.from_scipy(structure.A))
    rng, n, K = np.random.default_rng(seed), kkt.K_pattern.n_cols, kkt.K_pattern
    batch = 32 * TILES
    rho = np.where(rng.random((batch, n)) < 0.5, 0.1, 100.0)
    values = 0.3 * rng.normal(size=(batch, K.nnz))
    pivots = np.where(np.arange(n) < kkt.n_vars, 0.5 + rng.random((batch, n)), -1 / rho)
    values[:, K.row_idx == K.col_idx] = pivots
    lower = rng.normal(size=(batch, n))
    upper = lower + np.where(rng.random((batch, n)) < 0.3, np.inf, rng.random((batch, n)))
    return Case(kkt, values, rho, lower, upper, rng.normal(size=(batch, n)))


@cache
def soft_case(name: str) -> Case:
    """Every fourth row is soft, whatever its stage; sides of some are hard or linear."""
    given, rng = case(name), np.random.default_rng(9)
    penalties = rng.uniform(0, 0.3, (32 * TILES, 4, given.n))
    penalties[::2, 2:] = 0
    penalties[:, :2] = np.where(
        rng.random((32 * TILES, 2, given.n)) < 0.1, np.inf, penalties[:, :2]
    )
    hard = np.setdiff1d(np.arange(given.n), soft_rows(name))
    penalties[:, :, hard] = np.array([np.inf, np.inf, 0, 0])[:, None]
    return replace(given, penalties=penalties)


def soft_rows(name: str) -> np.ndarray:
    """Values of K in its order."""
    kkt = case(name).kkt
    return np.arange(kkt.n_vars, kkt.K_pattern.n_cols)[1::4]


@cache
def kernels(name: str, code: str, dtype: str, soft: bool = False):
    kkt, structure = case(name).kkt, SYSTEMS[name]()
    build = build_two_sided_elimination if code == "two_sided" else build_stage_elimination
    program: StoredElimination = build(kkt, structure.stages, light_of(structure))
    rows = soft_rows(name) if soft else []
    if code in ("unrolled", "two_sided"):
        assert isinstance(program, StageElimination)
        nodes = np.flatnonzero(np.isin(program.node_order, rows)).tolist()
        return StagedKernels(program, kkt.n_vars, dtype, soft=nodes)
    if code == "sparse":
        elimination = eliminate(kkt.K_pattern, order(kkt.K_pattern, "amd"))
        program = StoredElimination(elimination, np.arange(kkt.K_pattern.nnz))
    nodes = np.flatnonzero(np.isin(program.node_order, rows))
    return PanelKernels(program, kkt.n_vars, dtype, nodes.tolist())


def tiles(array: np.ndarray, dtype: str) -> jax.Array:
    return jnp.asarray(array.reshape(TILES, 32, -1).transpose(0, 2, 1), dtype=dtype)


def problems(array: jax.Array) -> np.ndarray:
    return np.asarray(array, dtype=np.float64).transpose(0, 2, 1).reshape(32 * TILES, -1)


def data_of(given: Case, program: StoredElimination, dtype: str) -> tuple[LoopData, jax.Array]:
    at, none = program.node_order, jnp.zeros((TILES, 1, 32), dtype=dtype)
    parts = (given.lower[:, at], given.upper[:, at], given.s0[:, at])
    Q, U, S = (tiles(part, dtype) for part in parts)
    K = tiles(given.values[:, program.K_order], dtype)
    return LoopData(K, Q, U, S, none, none, scaled=False), tiles(1 / given.rho[:, at], dtype)


def coefficients(given: Case, kernel, dtype: str) -> jax.Array:
    """Four values for each node that the kernel treats as soft."""
    assert given.penalties is not None
    at = kernel.program.node_order[kernel.soft_nodes]
    rho = given.rho[:, at]
    w_lower, w_upper, h_lower, h_upper = (given.penalties[:, i][:, at] for i in range(4))
    sides = ((w_lower, h_lower), (w_upper, h_upper))
    parts = [part for w, h in sides for part in (rho / (rho + h), w / (rho + h))]
    return tiles(np.stack(parts, axis=2).reshape(32 * TILES, -1), dtype)


def run(name: str, code: str, dtype: str, *, limits=FIXED, given=None, status=None):
    """Factorises and iterates; values that were never written show as NaN."""
    given = given or case(name)
    kernel = kernels(name, code, dtype, given.penalties is not None)
    data, R = data_of(given, kernel.program, dtype)
    if given.penalties is not None:
        R = jnp.concatenate([R, coefficients(given, kernel, dtype)], axis=1)
    start = np.where(given.is_var, 0, given.s0)[:, kernel.program.node_order]
    numbers = np.array([SIGMA, OMEGA, 1e-3, 1e-3, 1e-4, 1e-4, 1, 1, 0])
    state = LoopState(
        X=tiles(start, dtype),
        status=jnp.ones((TILES, 1, 32), dtype=jnp.int32) if status is None else status,
        iterations=jnp.full((TILES, 1, 32), -1, dtype=jnp.int32),
        report=jnp.full((TILES, 5, 32), jnp.nan, dtype=dtype),
        reference=jnp.full((TILES, 2 * start.shape[1], 32), jnp.nan, dtype=dtype),
    )
    factor = kernel.factor(data.K)
    begin = jnp.asarray(0, dtype=jnp.int32)
    return kernel.iterate(factor, R, data, state, numbers, begin, limits), kernel.program


@pytest.mark.parametrize(("name", "code", "dtype"), ALL)
def test_iterates_and_report(name, code, dtype):
    given = case(name)
    end, program = run(name, code, dtype)
    np.testing.assert_array_equal(end.iterations, FIXED.max_iter)
    X, report = problems(end.X), problems(end.report)
    for b in (0, 31, 32, 95):
        wanted = given.iterate(b, FIXED.max_iter)
        size = np.abs(wanted).max()
        error = np.abs(X[b] - wanted[program.node_order]).max()
        assert error < DTYPES[dtype] * size
        residuals = np.array(given.residuals(b, wanted))
        np.testing.assert_allclose(report[b], residuals, rtol=100 * DTYPES[dtype])


@pytest.mark.parametrize(
    ("code", "dtype"),
    [*((code, "float64") for code in CODES), *((code, "float32") for code in STAGED)],
)
def test_soft_rows(code, dtype):
    given, limits = soft_case("cartpole"), LoopLimits(check_every=20, span=20, max_iter=20)
    end, program = run("cartpole", code, dtype, given=given, limits=limits)
    X, report, beyond = problems(end.X), problems(end.report), 0
    for b in (0, 31, 32, 95):
        wanted = given.iterate(b, limits.max_iter)
        error = np.abs(X[b] - wanted[program.node_order]).max()
        assert error < DTYPES[dtype] * np.abs(wanted).max()
        residuals = np.array(given.residuals(b, wanted))
        np.testing.assert_allclose(report[b], residuals, rtol=100 * DTYPES[dtype])
        s = given.project(b, wanted)
        outside = (s > given.upper[b]) | (s < given.lower[b])
        beyond += outside[soft_rows("cartpole")].sum()
    assert beyond > 10


def test_stages_with_other_soft_rows_share_their_code():
    """More nodes have coefficients than are soft: those of all stages of a run."""
    soft = soft_rows("cartpole")
    unrolled, panels = (
        kernels("cartpole", code, "float64", True) for code in ("unrolled", "panels")
    )
    for kernel in (unrolled, panels):
        nodes = kernel.program.node_order[kernel.soft_nodes]
        assert np.isin(soft, nodes).all()
        assert np.unique(nodes).size == nodes.size
    assert unrolled.soft_nodes.size > soft.size
    assert panels.soft_nodes.size == soft.size


@pytest.mark.parametrize(
    ("name", "code", "dtype"),
    [one for one in ALL if one.values[1] in STAGED],
)
def test_factors_of_the_stages(name, code, dtype):
    given, kernel = case(name), kernels(name, code, dtype)
    program = kernel.program
    data, _ = data_of(given, program, dtype)
    factor = problems(kernel.factor(data.K))
    for b in (0, 33, 95):
        L, D = dense_ldl(given.dense(b)[np.ix_(program.node_order, program.node_order)])
        pattern = program.elimination.L_pattern
        wanted = L[pattern.row_idx, pattern.col_idx][program.L_order]
        tolerance = 1e-4 if dtype == "float32" else 1e-11
        np.testing.assert_allclose(factor[b, : program.n_L], wanted, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(factor[b, program.n_L :], 1 / D, rtol=tolerance)


@pytest.mark.parametrize("code", CODES)
def test_only_marked_tiles_are_factorised_again(code):
    given, kernel = case("cartpole"), kernels("cartpole", code, "float64")
    data, _ = data_of(given, kernel.program, "float64")
    old, fresh = kernel.factor(data.K), kernel.factor(2 * data.K)
    new = kernel.refactor(old, 2 * data.K, jnp.array([0, 1, 0], dtype=jnp.int32))
    np.testing.assert_array_equal(new[1], fresh[1])
    np.testing.assert_array_equal(new[::2], old[::2])
    assert not np.array_equal(fresh[1], old[1])


@pytest.mark.parametrize("code", CODES)
def test_instances_that_are_done_stay(code):
    status = np.ones((TILES, 1, 32), dtype=np.int32)
    status[0, 0, 7] = status[1] = 4
    end, program = run("cartpole", code, "float64", status=jnp.asarray(status))
    free, _ = run("cartpole", code, "float64")
    np.testing.assert_array_equal(end.status, status)
    given = case("cartpole")
    start = np.where(given.is_var, 0, given.s0)[:, program.node_order]
    stays = status.reshape(-1) == 4
    X, wanted = problems(end.X), problems(free.X)
    np.testing.assert_array_equal(X[stays], start[stays])
    np.testing.assert_array_equal(X[~stays], wanted[~stays])
    assert np.isnan(problems(end.report)[stays]).all()
    assert (problems(end.iterations)[stays] == -1).all()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_broken_instance_changes_no_bit_of_its_neighbours(code, number):
    given = case("cartpole")
    values = given.values.copy()
    values[40] = number
    broken = Case(given.kkt, values, given.rho, given.lower, given.upper, given.s0)
    limits = LoopLimits(check_every=5, span=20, max_iter=20)
    end, _ = run("cartpole", code, "float64", given=broken, limits=limits)
    clean, _ = run("cartpole", code, "float64", limits=limits)
    assert problems(end.status)[40] == 4
    others = np.arange(32 * TILES) != 40
    for field in ("X", "status", "iterations", "report"):
        ours, wanted = (problems(getattr(state, field))[others] for state in (end, clean))
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("code", CODES)
def test_the_same_bits_in_every_run(code):
    first, _ = run("cartpole", code, "float32")
    again, _ = run("cartpole", code, "float32")
    np.testing.assert_array_equal(first.X, again.X)
