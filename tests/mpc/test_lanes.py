"""Tiles with fewer than 32 lanes, which only the CPU has: the same results from each of them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import MPCSolver, systems
from warpmpc._errors import CodegenError
from warpmpc.codegen.kernel_source import Argument, KernelSource
from warpmpc.engines.runtime import batching
from warpmpc.engines.runtime.batching import TILES, WIDTHS, HostWidths, Widths

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="for the CPU")

BATCH = 19
CASES = {
    "three_launch": ("staged", {"mode": "fixed", "max_iter": 3}),
    "general": ("staged", {"mode": "converge", "max_iter": 4}),
    "dense": ("dense", {"mode": "fixed", "max_iter": 2}),
}


def solver_of(case: str, lanes: int | None = None) -> MPCSolver:
    engine, fields = CASES[case]
    system = systems.make("pendulum", horizon=6)
    solver = MPCSolver(system.problem, replace(system.settings, **fields), "float64", engine)
    assert isinstance(solver.widths, HostWidths)
    if lanes is not None:
        solver.widths.fixed = lanes
    return solver


@pytest.mark.parametrize(
    "case", ["three_launch", "general", pytest.param("dense", marks=pytest.mark.slow)]
)
def test_every_width_finds_the_same(case):
    x0 = systems.make("pendulum", horizon=6).sample(BATCH, 0)
    wanted = solver_of(case, 32).solve(x0)
    assert np.isfinite(wanted.z).all()
    for lanes in WIDTHS[:-1] if case == "three_launch" else (1, 8):
        found = solver_of(case, lanes).solve(x0)
        np.testing.assert_array_equal(found.status, wanted.status)
        np.testing.assert_array_equal(found.qp_iterations, wanted.qp_iterations)
        for name in ("z", "y", "cost", "kkt_residual"):
            np.testing.assert_allclose(
                getattr(found, name), getattr(wanted, name), rtol=1e-12, atol=1e-12
            )


def test_a_single_problem_is_one_lane():
    solver = solver_of("three_launch")
    x0 = systems.make("pendulum", horizon=6).sample(BATCH, 0)
    wanted = solver_of("three_launch", 32).solve(x0)
    text = str(jax.make_jaxpr(lambda x: solver.solve(x).z)(jnp.asarray(x0[0])))
    assert ",32]" not in text
    np.testing.assert_allclose(solver.solve(x0[0]).z, wanted.z[0], rtol=1e-12, atol=1e-12)


class TestChoice:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch):
        monkeypatch.setattr(batching, "core_cache", lambda: 2**20)
        monkeypatch.setattr(batching, "usable_cores", lambda: self.cores)
        monkeypatch.setattr(batching, "host", object)
        self.cores = 1

    def test_one(self):
        assert HostWidths(4, lambda: 1000).lanes(1) == 1
        assert HostWidths(4, lambda: 1000).filled(1) == 1

    def test_few_are_not_filled_up_to_32(self):
        found = HostWidths(4, lambda: 1000)
        assert [found.lanes(batch) for batch in (2, 8, 16, 32, 1024)] == [8, 8, 16, 32, 32]
        assert [found.filled(batch) for batch in (2, 8, 9, 17, 33)] == [8, 8, 16, 32, 64]

    def test_data_of_a_tile_fit_the_cache_if_vectors_are_full(self):
        assert HostWidths(4, lambda: 15_000).lanes(1024) == 16
        assert HostWidths(4, lambda: 1_000_000).lanes(1024) == 16
        assert HostWidths(8, lambda: 1_000_000).lanes(1024) == 8

    def test_all_cores_have_work(self):
        self.cores = 4
        found = HostWidths(4, lambda: 1000)
        assert [found.lanes(batch) for batch in (32, 64, 128, 1024)] == [8, 16, 32, 32]

    def test_kernels_that_know_32_only(self):
        found = HostWidths(4, lambda: None)
        assert found.lanes(1) == found.filled(1) == 32

    def test_other_devices(self, monkeypatch):
        monkeypatch.setattr(batching, "host", lambda: None)
        found = HostWidths(4, lambda: 1000)
        assert found.lanes(1) == found.filled(1) == TILES.lanes(1) == 32

    def test_without_tiles(self):
        assert Widths(has_tiles=False).lanes(100) == 1


def test_other_kernels_refuse_other_widths():
    system = systems.make("pendulum", horizon=4)
    assert MPCSolver(system.problem, system.settings, engine="sparse").widths.lanes(1) == 32
    source = KernelSource("other", "Title.", "float64", [Argument("x_in")], [], body="", head="")
    with pytest.raises(CodegenError, match="Kernel other has tiles of 32 lanes, got 8"):
        source.entry(8)
