"""The panel engine: any number of warps gives the same bits; what it needs of a multiprocessor."""

import json
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from cases import PATTERNS, KCase, quasi_definite
from oracles import run_updates

from warpmpc.engines.ldl.launch import TableLDL
from warpmpc.engines.panels import launch
from warpmpc.engines.panels import shape as shape_model
from warpmpc.engines.panels.launch import PanelKernels, PanelLDL
from warpmpc.engines.panels.shape import PanelShape, loop_bytes, panel_shape, register_limit
from warpmpc.engines.runtime import ffi
from warpmpc.engines.runtime.admm_loop import LoopData, LoopLimits, LoopState
from warpmpc.engines.runtime.batching import from_tiles, to_tiles
from warpmpc.symbolic.elimination import StoredElimination, eliminate
from warpmpc.symbolic.ordering import order

BATCH = 37  # one full tile and a part of another
SIGMA, OMEGA = 1e-6, 1.6
LIMIT, MULTIPROCESSORS = 227 * 1024, 132
ROWS = Path(__file__).parents[3] / "benchmarks" / "results" / "rolled_h200.jsonl"
SHAPES = [PanelShape(1, 2, 1), PanelShape(8, 4, 8)]


@cache
def case(name: str) -> tuple[KCase, StoredElimination, np.ndarray, np.ndarray]:
    """A pattern, its program, values of K in program order, and all K densely."""
    given = PATTERNS[name]()
    perm = order(given.pattern, "stage" if given.stages is not None else "amd", given.stages)
    program = StoredElimination(eliminate(given.pattern, perm), np.arange(given.pattern.nnz))
    _, values = quasi_definite(given, seed=2, batch=BATCH)
    pattern = given.pattern
    dense = np.zeros((BATCH, pattern.n_cols, pattern.n_cols))
    dense[:, pattern.row_idx, pattern.col_idx] = values
    dense[:, pattern.col_idx, pattern.row_idx] = values
    return given, program, values, dense[:, perm][:, :, perm]


def kernels(name: str, shape: PanelShape | None, dtype: str = "float64") -> PanelKernels:
    given, program, _, _ = case(name)
    return PanelKernels(program, int((given.signs > 0).sum()), dtype, shape=shape)


def wanted_factors(program: StoredElimination, values: np.ndarray) -> np.ndarray:
    found = [run_updates(program.in_program_order(), one) for one in values]
    return np.array([np.concatenate([L, 1 / D]) for L, D in found])


class TestFactorisation:
    @pytest.mark.parametrize(
        "name",
        # The dense one needs kernels of its own; its tables are also executed by NumPy.
        ["diagonal", pytest.param("dense", marks=pytest.mark.slow), "random_64", "quadrotor_4"],
    )
    def test_every_number_is_written(self, name):
        _, program, values, _ = case(name)
        K = to_tiles(jnp.asarray(values))
        first = None
        for shape in SHAPES:
            kernel = kernels(name, shape)
            assert isinstance(kernel._ldl, PanelLDL)
            unknown = jnp.full((2, program.n_L + program.n_nodes, 32), np.nan)
            factor = kernel.refactor(unknown, K, jnp.ones(2, dtype=jnp.int32))
            wanted = wanted_factors(program, values)
            np.testing.assert_allclose(from_tiles(factor, BATCH), wanted, rtol=1e-9, atol=1e-9)
            first = factor if first is None else first
            np.testing.assert_array_equal(factor, first)

    def test_rows_that_exceed_shared_memory(self, monkeypatch):
        monkeypatch.setattr(launch, "factor_fits", lambda *_: False)
        _, program, values, _ = case("dense")
        kernel = kernels("dense", None)
        assert isinstance(kernel._ldl, TableLDL)
        factor = from_tiles(kernel.factor(to_tiles(jnp.asarray(values))), BATCH)
        np.testing.assert_allclose(factor, wanted_factors(program, values), rtol=1e-9, atol=1e-9)


def loop(name: str, shape: PanelShape, check_every: int) -> LoopState:
    """Twelve iterations from zero without bounds on half of the rows."""
    _, program, values, _ = case(name)
    rng, n = np.random.default_rng(1), program.n_nodes
    lower = rng.normal(size=(BATCH, n))
    upper = lower + np.where(rng.random((BATCH, n)) < 0.5, np.inf, 1.0)
    parts = [values, lower, upper, np.zeros((BATCH, n))]
    tiles = [to_tiles(jnp.asarray(part)) for part in parts]
    one = jnp.zeros((2, 1, 32))
    whole = jnp.ones((2, 1, 32), dtype=jnp.int32)
    state = LoopState.before(jnp.zeros((2, n, 32)), whole, check_every)
    kernel, data = kernels(name, shape), LoopData(*tiles, one, one, scaled=False)
    numbers = np.array([SIGMA, OMEGA, 1e-12, 0, 1e-12, 1e-12, 1, 1, 1])
    limits = LoopLimits(check_every, 12, 12)
    R = jnp.ones((2, n, 32))
    begin = jnp.zeros((), dtype=jnp.int32)
    return kernel.iterate(kernel.factor(data.K), R, data, state, numbers, begin, limits)


@pytest.mark.parametrize("name", ["random_64", "quadrotor_4"])
def test_iterates_do_not_depend_on_the_number_of_warps(name):
    first, *others = (loop(name, shape, 0) for shape in SHAPES)
    checked = loop(name, SHAPES[-1], 4)
    assert np.isfinite(first.X).all()
    for other in (*others, checked):
        np.testing.assert_array_equal(first.X, other.X)
        np.testing.assert_allclose(first.report, other.report, rtol=1e-12)


def test_iterates_against_dense():
    name = "quadrotor_4"
    given, program, _, dense = case(name)
    rng, n = np.random.default_rng(1), program.n_nodes
    lower = rng.normal(size=(BATCH, n))
    upper = lower + np.where(rng.random((BATCH, n)) < 0.5, np.inf, 1.0)
    is_row = program.node_order >= int((given.signs > 0).sum())
    found = from_tiles(loop(name, SHAPES[0], 0).X, BATCH)
    for b in (0, 31, 36):
        x = np.zeros(n)
        for t in range(12):
            s = np.clip(x, lower[b], upper[b]) if t else np.zeros(n)
            z = np.linalg.solve(dense[b], np.where(is_row, 2 * s - x, SIGMA * x - lower[b]))
            v = s + (1 - OMEGA) * (x - s) + OMEGA * z
            x = np.where(is_row, v, OMEGA * z + (1 - OMEGA) * x)
        np.testing.assert_allclose(found[b], x, rtol=1e-9, atol=1e-9 * np.abs(x).max())


def is_time(row: dict) -> bool:
    return row["kind"] == "time" and row["skipped"] is None and row["solver"] == "panels"


def times(rows: list[dict], part: str, names: tuple[str, ...]) -> dict[tuple[int, ...], float]:
    """Best seconds of a part, keyed by the settings that decide it."""
    timed = [row for row in rows if row[part] is not None]
    return {tuple(row["settings"][n] for n in names): row[part]["best_s"] for row in timed}


class TestModel:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("n_slots", [2, 100, 272, 600])
    def test_shared_memory_and_registers_suffice(self, n_slots, dtype):
        for tiles in (1, 132, 133, 300, 5000):
            shape = panel_shape(n_slots, tiles, dtype)
            assert shape is not None
            warps, needed = (
                shape.warps + 1,
                loop_bytes(n_slots, shape.warps, shape.lead, dtype),
            )
            scratch = shape_model.scratch_numbers(needed, warps, dtype)
            size = scratch * (4 if dtype == "float32" else 8)
            assert needed <= size <= LIMIT - 4 * 32 * warps
            assert register_limit(needed, warps, tiles) * 32 * warps <= 65536

    def test_few_tiles_have_many_warps(self):
        warps = [panel_shape(272, tiles, "float32").warps for tiles in (1, 132, 512, 4096)]
        assert warps[0] == warps[1] == 8
        assert warps == sorted(warps, reverse=True)
        assert warps[-1] < 8

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("n_slots", [2, 100, 272, 600])
    def test_shared_memory_goes_to_tiles_then_warps_then_records(self, n_slots, dtype):
        for tiles in (1, 132, 200, 300, 512, 5000):
            shape = panel_shape(n_slots, tiles, dtype)
            needed = loop_bytes(n_slots, shape.warps, shape.lead, dtype)
            at_once = shape_model._blocks(needed, shape.warps + 1)
            wanted = min(shape_model.tiles_at_once(tiles), at_once)
            assert shape.warps * wanted <= 24
            larger = [(2 * shape.warps, 2)] if shape.warps < 8 else []
            larger += [(shape.warps, 4)] if shape.lead < 4 else []
            for warps, lead in larger:
                room = LIMIT + 1024 - wanted * (1024 + 4 * 32 * (warps + 1))
                too_large = wanted * loop_bytes(n_slots, warps, lead, dtype) > room
                assert too_large or warps * wanted > 24

    @pytest.mark.parametrize("batch", [64, 512, 4096, 16384])
    def test_choice_is_the_fastest_that_was_measured(self, batch):
        rows = [row for row in map(json.loads, ROWS.read_text().splitlines()) if is_time(row)]
        rows = [row for row in rows if row["batch"] == batch]
        shape = panel_shape(rows[0]["system"]["window_slots"], batch // 32, "float32")
        loops = times(rows, "admm", ("warps", "lead"))
        factors = times(rows, "factor", ("factor_warps",))
        # Repeated measurements of one shape differ by up to two percent.
        assert loops[shape.warps, shape.lead] <= 1.02 * min(loops.values())
        assert factors[(shape.factor_warps,)] <= 1.02 * min(factors.values())

    def test_three_tiles_at_once(self):
        # Measured at a batch of 16384, where both have three tiles at once.
        assert panel_shape(272, 3 * MULTIPROCESSORS, "float32") == PanelShape(8, 2, 8)

    def test_a_window_may_be_too_large(self, monkeypatch):
        assert panel_shape(1900, 1, "float32") is None
        monkeypatch.setattr(shape_model, "shared_memory_limit", lambda: 20 * 1024)
        assert panel_shape(272, 1, "float32") is None
        assert not kernels("quadrotor_4", None, "float64").fits

    def test_numbers_without_a_device(self):
        assert ffi.shared_memory_limit() == LIMIT
        assert ffi.multiprocessors() == MULTIPROCESSORS
