"""The table-driven engine in its internal layout, on the CPU, against plain NumPy."""

import jax
import numpy as np
import pytest
from cases import PATTERNS, KCase, quasi_definite
from oracles import dense_symmetric, run_updates

from warpmpc._errors import CodegenError
from warpmpc.engines.ldl import launch as ldl_engine
from warpmpc.engines.ldl.launch import LaunchShape, TableLDL, window_fits
from warpmpc.engines.ldl.schedule import build_schedule
from warpmpc.engines.ldl.source import factor_kernel
from warpmpc.engines.ldl.window import CHUNK, build_window
from warpmpc.engines.ldl.window_source import LEAD, window_kernel, window_scratch
from warpmpc.engines.runtime.batching import LANES, to_tiles
from warpmpc.symbolic.elimination import Elimination, eliminate
from warpmpc.symbolic.ordering import order

TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
DTYPES = list(TOLERANCE)
ENGINES = ["window", "tables", "columns", "batch_first"]
NAMES = ["one_column", "diagonal", "arrow_first", "dense", "random_33", "random_64", "cartpole_6"]
BATCH = 40  # one full tile and a part of another


def eliminated_case(case: KCase) -> Elimination:
    return eliminate(case.pattern, order(case.pattern, "amd"))


def build_engine(elimination: Elimination, dtype: str, kind: str, scale=None) -> TableLDL:
    schedule = build_schedule(elimination, 8, level_scheduling=kind != "columns", unrolled=True)
    window = build_window(elimination, 8) if kind == "window" else None
    return TableLDL(schedule, dtype, tiled=kind != "batch_first", window=window, scale=scale)


def in_layout(engine: TableLDL, array: np.ndarray) -> np.ndarray:
    array = array.astype(engine.dtype)
    return np.asarray(to_tiles(array)) if engine.tiled else array


def all_problems(engine: TableLDL, array) -> np.ndarray:
    """Batch-first, spare lanes included."""
    array = np.asarray(array)
    if not engine.tiled:
        return array
    return array.transpose(0, 2, 1).reshape(-1, array.shape[1])


def expected_factors(elimination: Elimination, values: np.ndarray) -> np.ndarray:
    """Entries of L, then inverse pivots in the caller's order."""
    rows = []
    for K_vals in values:
        L, D = run_updates(elimination, K_vals)
        D_inv = np.empty(D.size)
        D_inv[elimination.perm] = 1 / D
        rows.append(np.concatenate([L, D_inv]))
    return np.array(rows)


def with_spare_lanes(engine: TableLDL, array: np.ndarray) -> np.ndarray:
    spare = -len(array) % LANES if engine.tiled else 0
    return np.concatenate([array, np.repeat(array[-1:], spare, axis=0)])


class TestEngine:
    @pytest.mark.parametrize("kind", ENGINES)
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("name", NAMES)
    def test_every_lane_is_computed(self, name, dtype, kind):
        case = PATTERNS[name]()
        elimination = eliminated_case(case)
        K, values = quasi_definite(case, seed=1, batch=BATCH)
        engine = build_engine(elimination, dtype, kind)
        factor = engine.factor(in_layout(engine, values))
        assert factor.shape[0] == (2 if engine.tiled else BATCH)
        assert factor.dtype == dtype
        wanted = with_spare_lanes(engine, expected_factors(elimination, values))
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(
            all_problems(engine, factor), wanted, rtol=tolerance, atol=tolerance
        )
        rhs = np.random.default_rng(2).normal(size=(BATCH, case.n))
        solution = engine.solve(factor, in_layout(engine, rhs))
        assert solution.dtype == dtype
        wanted = np.linalg.solve(dense_symmetric(K, values), rhs[..., None])[..., 0]
        wanted = with_spare_lanes(engine, wanted)
        np.testing.assert_allclose(
            all_problems(engine, solution), wanted, rtol=tolerance, atol=tolerance
        )

    @pytest.mark.parametrize("kind", ["window", "tables", "columns"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_warps_do_not_change_a_bit(self, dtype, kind):
        case = PATTERNS["random_64"]()
        _, values = quasi_definite(case, seed=3, batch=BATCH)
        engine = build_engine(eliminated_case(case), dtype, kind)
        K = in_layout(engine, values)
        rhs = in_layout(engine, np.random.default_rng(4).normal(size=(BATCH, case.n)))
        factor = engine.factor(K)
        solution = engine.solve(factor, rhs)
        for warps in (1, 2, 3, 4, 16):
            shape = LaunchShape(warps, registers=64)
            again = engine.factor(K, shape)
            np.testing.assert_array_equal(again, factor)
            np.testing.assert_array_equal(engine.solve(again, rhs, shape), solution)

    @pytest.mark.parametrize("kind", ["window", "tables", "batch_first"])
    def test_vmap_is_one_larger_batch(self, kind):
        case = PATTERNS["random_33"]()
        _, values = quasi_definite(case, seed=5, batch=64)
        rhs = np.random.default_rng(6).normal(size=(64, case.n))
        engine = build_engine(eliminated_case(case), "float64", kind)
        halves = [in_layout(engine, part) for part in (values[:32], values[32:])]
        rhs_halves = [in_layout(engine, part) for part in (rhs[:32], rhs[32:])]
        factor = jax.vmap(engine.factor)(np.stack(halves))
        solution = jax.vmap(engine.solve)(factor, np.stack(rhs_halves))
        for half in range(2):
            alone = engine.factor(halves[half])
            np.testing.assert_array_equal(factor[half], alone)
            np.testing.assert_array_equal(solution[half], engine.solve(alone, rhs_halves[half]))
        shared = jax.vmap(engine.solve, in_axes=(None, 0))(factor[0], np.stack(rhs_halves))
        np.testing.assert_array_equal(shared[1], engine.solve(factor[0], rhs_halves[1]))

    @pytest.mark.parametrize("kind", ENGINES)
    def test_scale_multiplies_each_entry(self, kind):
        case = PATTERNS["random_33"]()
        _, values = quasi_definite(case, seed=7, batch=3)
        scale = np.random.default_rng(8).uniform(0.5, 1.0, size=values.shape[1])
        elimination = eliminated_case(case)
        engine = build_engine(elimination, "float64", kind, scale)
        factor = all_problems(engine, engine.factor(in_layout(engine, values)))
        wanted = expected_factors(elimination, values * scale)
        np.testing.assert_allclose(factor[:3], wanted, rtol=1e-11, atol=1e-12)

    def test_schedules_for_other_engines_are_refused(self):
        elimination = eliminated_case(PATTERNS["dense"]())
        schedule = build_schedule(elimination, 8, level_scheduling=True)
        with pytest.raises(CodegenError, match="unrolled=True"):
            TableLDL(schedule, "float32")

    def test_no_window_without_asynchronous_copies(self, monkeypatch):
        window = build_window(eliminated_case(PATTERNS["dense"]()), 8)
        monkeypatch.setattr(ldl_engine, "has_async_copies", lambda: False)
        assert not window_fits(window, "float32")

    def test_windows_beyond_the_shared_memory_are_refused(self, monkeypatch):
        elimination = eliminated_case(PATTERNS["dense"]())
        window = build_window(elimination, 8)
        schedule = build_schedule(elimination, 8, level_scheduling=True, unrolled=True)
        assert window_fits(window, "float32")
        monkeypatch.setattr(ldl_engine, "shared_memory_limit", lambda: 8 * 1024)
        assert not window_fits(window, "float32")
        with pytest.raises(CodegenError, match="window of 41 unknowns exceeds shared memory"):
            TableLDL(schedule, "float32", window=window)


@pytest.mark.parametrize(
    ("shape", "problems", "tiled", "threads"),
    [
        (LaunchShape(), 1, True, (64, 64)),
        (LaunchShape(), 3, True, (128, 64)),
        (LaunchShape(block=32), 3, True, (96, 32)),
        (LaunchShape(4), 3, True, (384, 128)),
        (LaunchShape(3), 1, True, (96, 96)),
        (LaunchShape(), 1, False, (64, 64)),
        (LaunchShape(), 65, False, (128, 64)),
    ],
)
def test_launch_shape(shape, problems, tiled, threads):
    assert shape.threads(problems, tiled=tiled) == threads


class TestWindowScratch:
    LIMIT = 227 * 1024

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_holds_rings_and_window(self, dtype):
        item = np.dtype(dtype).itemsize
        for n_slots in range(2, 1200):
            scratch = window_scratch(n_slots, dtype, self.LIMIT)
            rings = (LEAD + 1) * CHUNK + (LEAD + 2) * CHUNK  # factor, right-hand sides
            lists = (LEAD + 1) * CHUNK * 4 + (LEAD + 2) * CHUNK * 8  # slots, items
            needed = (rings + n_slots) * LANES * item + lists
            if scratch is None:
                assert needed > self.LIMIT - 2048, "refused although it fits"
            else:
                assert needed <= scratch * item <= self.LIMIT

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_handful_of_sizes_serves_all(self, dtype):
        sizes = [window_scratch(n_slots, dtype, self.LIMIT) for n_slots in range(2, 1200)]
        fitting = [size for size in sizes if size is not None]
        assert fitting == sorted(fitting)
        assert sizes[len(fitting) :] == [None] * (len(sizes) - len(fitting))
        assert len(set(fitting)) <= 20


def test_kernels_are_built_once():
    def build(*, tiled):
        return factor_kernel("float32", tiled=tiled, registers=64).kernel()

    assert build(tiled=True) is build(tiled=True)
    window = [window_kernel("float64", scratch=4096).kernel() for _ in range(2)]
    assert window[0] is window[1]
    assert build(tiled=True) is not build(tiled=False)


@pytest.mark.parametrize(
    ("shape", "limit"),
    [
        (LaunchShape(), 255),
        (LaunchShape(registers=64), 64),
        (LaunchShape(16, registers=128), 128),
        (LaunchShape(32, registers=128), 64),  # 1024 threads with 128 registers each do not start
    ],
)
def test_register_limit_lets_a_block_start(shape, limit):
    assert shape.register_limit == limit
