"""Batches that are split: the same bits as in one go, and parts that the memory holds."""

import logging
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qp_cases import family, fixed, ring, solver_for, spoiled_ring

from warpmpc import ADMMSettings
from warpmpc.engines.runtime import batching as batches
from warpmpc.engines.runtime.batching import free_memory, on_batches, part_size

BATCH = 200
TIGHT = ADMMSettings(eps_abs=1e-9, eps_rel=1e-9)
SIZES = [32, 50, 199]  # one tile, one and a half, one instance less than all
CASES = {
    "ring": lambda: ring(BATCH),
    "random": lambda: family("random", 10, BATCH, 0.4),
    "portfolio": lambda: family("portfolio", 20, BATCH, 1.0),
    "linear_mpc": lambda: family("linear_mpc", 3, BATCH, 1.0),
}


def check_bits(got, wanted):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


@cache
def unsplit(name: str):
    given = CASES[name]()
    return solver_for(given).solve(*given.args)


def gradients(settings: ADMMSettings, given):
    solver = solver_for(given, settings)

    def loss(args):
        solution = solver.solve(*args)
        return jnp.sum(solution.x) + jnp.sum(solution.y**2) + jnp.sum(solution.objective)

    return jax.jit(jax.grad(loss))(given.args)


@pytest.mark.slow
class TestSameBits:
    @pytest.mark.parametrize("size", SIZES)
    def test_any_size(self, size):
        given = ring(BATCH)
        solver = solver_for(given, ADMMSettings(max_batch=size))
        check_bits(solver.solve(*given.args), unsplit("ring"))

    @pytest.mark.parametrize("name", [*CASES][1:])
    def test_families(self, name):
        given = CASES[name]()
        solver = solver_for(given, ADMMSettings(max_batch=64))
        check_bits(solver.solve(*given.args), unsplit(name))

    def test_instances_without_solution(self):
        given = spoiled_ring()
        solver = solver_for(given, ADMMSettings(max_batch=32))
        check_bits(solver.solve(*given.args), solver_for(given).solve(*given.args))

    def test_fixed_iterations_and_warm_start(self):
        given, settings = ring(BATCH), fixed(20)
        start = unsplit("ring").warm_start
        split = solver_for(given, replace(settings, max_batch=64))
        check_bits(
            split.solve(*given.args, warm_start=start),
            solver_for(given, settings).solve(*given.args, warm_start=start),
        )

    @pytest.mark.parametrize(("name", "sensitivity"), [("random", "kkt"), ("ring", "lsq")])
    def test_gradients(self, name, sensitivity):
        given, settings = CASES[name](), replace(TIGHT, sensitivity=sensitivity)
        wanted = gradients(settings, given)
        check_bits(gradients(replace(settings, max_batch=64), given), wanted)
        assert all(np.isfinite(gradient).all() for gradient in wanted)

    def test_forward_mode(self):
        given = ring(BATCH)
        tangents = tuple(np.ones_like(array) for array in given.args)

        def change(settings):
            solver = solver_for(given, settings)
            function = jax.jit(lambda *args: jax.jvp(solver.solve, args, tangents)[1].x)
            return function(*given.args)

        check_bits(change(replace(TIGHT, max_batch=96)), change(TIGHT))

    def test_jit(self):
        given = ring(BATCH)
        solver = solver_for(given, ADMMSettings(max_batch=64))
        check_bits(jax.jit(solver.solve)(*given.args), unsplit("ring"))

    def test_vmap(self):
        """The mapped axis is part of the batch that is split."""
        given = ring(BATCH)
        solver = solver_for(given, ADMMSettings(max_batch=64))
        mapped = jax.vmap(solver.solve)(*(a.reshape(8, 25, -1) for a in given.args))
        flat = jax.tree.map(lambda leaf: leaf.reshape(BATCH, *leaf.shape[2:]), mapped)
        check_bits(flat, unsplit("ring"))

    def test_vmap_of_grad(self):
        given = ring(BATCH)

        def total(settings):
            solver = solver_for(given, settings)
            one = jax.grad(lambda q, *rest: solver.solve(rest[0], q, *rest[1:]).x.sum())
            P_vals, q, *rest = given.args
            return jax.jit(jax.vmap(one))(q, P_vals, *rest)

        check_bits(total(replace(TIGHT, max_batch=64)), total(TIGHT))

    @pytest.mark.parametrize("engine", ["dense", "pcg"])
    def test_other_engines_agree_to_rounding(self, engine):
        """Their sums are in the hands of XLA and LAPACK."""
        given = ring(BATCH)
        wanted = solver_for(given, engine=engine).solve(*given.args)
        got = solver_for(given, ADMMSettings(max_batch=64), engine).solve(*given.args)
        np.testing.assert_array_equal(got.status, wanted.status)
        np.testing.assert_allclose(got.x, wanted.x, rtol=0, atol=1e-6)


class TestParts:
    @pytest.mark.parametrize(
        ("batch", "most", "part"),
        [
            (100, 100, 100),
            (100, 1000, 100),
            (40, 50, 40),
            (33, 32, 32),
            (64, 32, 32),
            (65, 64, 64),
            (100, 50, 32),
            (200, 199, 128),  # two parts of four tiles rather than six and one
            (300_000, 100_000, 100_000),
            (300_000, 99_999, 75_008),
        ],
    )
    def test_equal_parts_of_whole_tiles(self, batch, most, part):
        assert part_size(batch, most, 1) == part

    def test_every_instance_once(self):
        """A function that counts: no instance is left out, whatever the sizes."""
        for batch in (33, 64, 95, 130):
            values = jnp.arange(batch, dtype=float)[:, None]
            for part in (32, 64):
                plus = on_batches(lambda a: a + 1, 32, lambda _, part=part: part)
                np.testing.assert_array_equal(plus(values), values + 1)

    def test_only_a_part_exists_at_a_time(self):
        """XLA's own count of temporaries."""
        given = family("random", 10, 1, 0.4)
        shapes = [jax.ShapeDtypeStruct((4096, a.shape[1]), a.dtype) for a in given.args]

        def temporaries(settings):
            program = jax.jit(solver_for(given, settings).solve).lower(*shapes).compile()
            return program.memory_analysis().temp_size_in_bytes

        whole = temporaries(ADMMSettings(max_batch=4096))
        assert temporaries(ADMMSettings(max_batch=256)) < 0.3 * whole


class TestMemory:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("engine", "name", "size"),
        [("sparse", "portfolio", 40), ("sparse", "lasso", 10)]
        + [(engine, "random", 10) for engine in ("sparse", "dense", "pcg")],
    )
    def test_estimate_is_above_what_xla_counts(self, engine, name, size):
        given, batch = family(name, size, 1, 0.4), 512
        solver = solver_for(given, engine=engine)
        shapes = [jax.ShapeDtypeStruct((batch, a.shape[1]), a.dtype) for a in given.args]
        counted = jax.jit(solver.solve).lower(*shapes).compile().memory_analysis()
        needed = counted.temp_size_in_bytes / batch
        assert needed < solver.bytes_per_instance < 1.6 * needed

    def test_split_only_if_it_does_not_fit(self, monkeypatch, caplog):
        monkeypatch.setattr(batches, "free_memory", lambda: 100_000)
        with caplog.at_level(logging.INFO, logger="warpmpc"):
            assert part_size(75, None, 1000) == 75
            assert not caplog.text
            assert part_size(76, None, 1000) == 64
            # Results of all instances are kept: they leave room for fewer at once.
            assert part_size(75, None, 1000, bytes_per_result=500) == 32
        assert "batch of 76 instances is worked on 64 at a time" in caplog.text
        assert part_size(10**6, None, 10**9) == 32

    def test_parts_that_fit_the_caches_of_a_cpu(self, monkeypatch):
        monkeypatch.setattr(batches, "core_cache", lambda: 2**20)
        monkeypatch.setattr(batches, "usable_cores", lambda: 6)
        monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
        assert part_size(10_000, None, 2**16) == 192  # a tile of 2 MiB for each core
        assert part_size(10_000, None, 2**14) == 4 * 192 - 32  # 14 parts of 23 tiles, not of 24
        assert part_size(10_000, None, 2**20) == 192  # never less
        assert part_size(10_000, 5000, 2**20) == 3360  # who asks for more gets it
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(batches, "free_memory", lambda: 2**40)
        assert part_size(10_000, None, 2**16) == 10_000

    def test_solver_follows_the_memory(self, monkeypatch):
        given = ring(BATCH)
        solver = solver_for(given, ADMMSettings(max_iter=3975))  # not yet traced
        results = BATCH * 8 * solver.structure.n_data
        free = 100 * solver.bytes_per_instance + results
        monkeypatch.setattr(batches, "free_memory", lambda: free)
        program = str(jax.make_jaxpr(solver.solve)(*given.args))
        assert "f64[64," in program
        assert f"f64[{BATCH // 32 + 1},8,32]" not in program

    def test_free_memory_of_the_host(self):
        assert 1e8 < free_memory() < 1e14

    def test_free_memory_of_a_device(self, monkeypatch):
        class Device:
            def memory_stats(self):
                return {"bytes_limit": 1000, "bytes_in_use": 300}

        monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
        assert free_memory() == 700
