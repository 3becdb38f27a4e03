"""What is compiled, and which memory is used: batches of as many tiles, parts, donation, leaks."""

from __future__ import annotations

import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sqp_cases import FIXED, FIXED_QP, arm

import warpmpc as wm
from warpmpc import ADMMSettings, MPCSolver, MPCWarmStart, QPState, SQPSettings
from warpmpc.engines.runtime import batching as batches

COMPILED = "/jax/core/compile/backend_compile_duration"
ONE_STEP = SQPSettings(
    mode="fixed", max_iter=1, qp=ADMMSettings(max_iter=5, check_every=0, adaptive_rho_every=0)
)


@pytest.fixture(scope="module")
def solver():
    return MPCSolver(arm(), FIXED, "float64", "staged")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(64, 2)), {"w": rng.uniform(0.1, 1, (64, 3))}


@pytest.fixture
def compiled():
    """Names of the programs that XLA compiles from here on."""
    names: list[str] = []

    def listen(event: str, _: float, **about) -> None:
        if event == COMPILED:
            names.append(about.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def first(data, batch):
    return jax.tree.map(lambda a: a[:batch], data)


def equal(found, wanted):
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(mine, theirs)


class TestOneProgramPerNumberOfTiles:
    def test_solve(self, solver, data, compiled):
        whole = solver.solve(*data)
        assert any("_solutions" in name for name in compiled)
        compiled.clear()
        for batch in (33, 40, 63):
            equal(solver.solve(*first(data, batch)), first(whole, batch))
        assert compiled  # programs that fill up and cut
        assert not any("_solutions" in name for name in compiled)
        assert solver._solve.compiled._cache_size() == 1

    def test_step(self, solver, data, compiled):
        start = solver.cold_start(solver.z_guess(*data))

        def step(batch):
            x0, params = first(data, batch)
            z, state = first((start.z, start.qp), batch)
            return solver.step(z, params, state, x0=x0)

        whole = step(64)
        compiled.clear()
        for batch in (33, 40):
            equal(step(batch), first(whole, batch))
        assert not any("_solutions" in name for name in compiled)

    @pytest.mark.slow
    def test_gradient(self, solver, data, compiled):
        """Also of the way back, when no program of the caller surrounds it."""

        def gradient(batch):
            x0, params = first(data, batch)
            return jax.grad(lambda x: (solver.solve(x, params).z ** 2).sum())(jnp.asarray(x0))

        whole = gradient(64)
        assert any("_cotangents" in name for name in compiled)
        compiled.clear()
        np.testing.assert_array_equal(gradient(40), whole[:40])
        assert not any("_cotangents" in name or "_solutions" in name for name in compiled)

    @pytest.mark.slow
    def test_inside_programs_of_the_caller(self, solver, data):
        wanted = first(solver.solve(*data), 40)
        fold = jax.tree.map(lambda a: a.reshape(5, 8, *a.shape[1:]), first(data, 40))
        for found in (
            jax.jit(solver.solve)(*fold),
            jax.vmap(jax.vmap(jax.jit(solver.solve)))(*fold),
        ):
            equal(jax.tree.map(lambda a: a.reshape(40, *a.shape[2:]), found), wanted)

    @pytest.mark.slow
    def test_constants_of_a_traced_program(self, solver, data):
        found = jax.jit(lambda: solver.solve(*first(data, 3), donate=True))()
        equal(found, solver.solve(*first(data, 3)))


class TestParts:
    """Batches larger than the memory."""

    def solver(self, max_batch):
        return MPCSolver(
            arm(), replace(FIXED, qp=replace(FIXED_QP, max_batch=max_batch)), "float64", "staged"
        )

    def memory(self, solver, batch):
        x0 = jax.ShapeDtypeStruct((batch, 2), "float64")
        params = jax.eval_shape(lambda x: solver._packed(x, None), x0)
        start = jax.eval_shape(lambda x: solver.cold_start(solver.z_guess(x)), x0)
        args = (params.common, replace(params, common=None), start)
        found = solver._solve.compiled.lower(*args).compile().memory_analysis()
        # Results that take the place of arguments are collected elsewhere first.
        return found.temp_size_in_bytes - found.alias_size_in_bytes

    @pytest.mark.slow
    def test_as_many_as_the_memory_holds(self, solver, data, monkeypatch):
        """Without a limit of the caller's, the free memory sets one."""
        wanted, whole = solver.solve(*data), self.memory(solver, 1024)
        monkeypatch.setattr(batches, "free_memory", lambda: 45 * solver.bytes_per_instance)
        small = MPCSolver(arm(), FIXED, "float64", "staged")
        equal(small.solve(*data), wanted)
        assert self.memory(small, 1024) < whole / 6

    @pytest.mark.slow
    def test_results_and_memory(self, solver, data):
        """No bit changes; temporaries are those of one part, apart from results."""
        parts = self.solver(max_batch=32)
        equal(parts.solve(*data), solver.solve(*data))
        whole, few, more = (
            self.memory(*case) for case in ((solver, 1024), (parts, 1024), (parts, 4096))
        )
        assert few < whole / 6
        assert (more - few) / 3072 < whole / 1024 / 6


class TestDonation:
    @pytest.mark.parametrize("batch", [64, 33])
    def test_solve(self, solver, data, batch):
        args = first(data, batch)
        start = solver.solve(*args).warm_start
        wanted = solver.solve(*args, start)
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(start))
        equal(solver.solve(*args, start), wanted)
        found = solver.solve(*args, start, donate=True)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(start))
        equal(found, wanted)

    def test_shifted(self, solver, data):
        start = solver.solve(*data).warm_start
        wanted = solver.solve(*data, start, shift=True)
        equal(solver.solve(*data, start, shift=True, donate=True), wanted)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(start))

    def test_step(self, solver, data):
        x0, params = data
        start = solver.solve(*data).warm_start
        wanted = solver.step(start.z, params, start.qp, x0=x0)
        equal(solver.step(start.z, params, start.qp, x0=x0, donate=True), wanted)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(start))

    def test_the_same_array_twice(self, solver, data):
        start = solver.cold_start(solver.z_guess(*data))
        rows = jnp.zeros_like(start.qp.y)
        twice = MPCWarmStart(start.z, QPState(start.qp.d, rows, rows))
        equal(solver.solve(*data, twice, donate=True), solver.solve(*data, start))

    def test_one_program_for_both(self, solver, data, compiled):
        start = solver.solve(*data).warm_start
        compiled.clear()
        solver.solve(*data, solver.solve(*data, start).warm_start, donate=True)
        assert not any("_solutions" in name for name in compiled)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class TestStableMemory:
    """Neither arrays nor the process grow over many steps."""

    @pytest.mark.parametrize("steps", [300, pytest.param(10_000, marks=pytest.mark.slow)])
    def test_steps(self, steps):
        solver = MPCSolver(arm(3), ONE_STEP, "float64", "staged")
        x0 = jnp.asarray(np.random.default_rng(0).normal(size=(33, 2)))
        result = solver.solve(x0)
        sizes = []
        for count in range(steps):
            result = solver.solve(x0, None, result.warm_start, shift=True, donate=count % 2 == 0)
            if count in (steps // 10, steps - 1):
                result.z.block_until_ready()
                sizes.append((sum(a.nbytes for a in jax.live_arrays()), resident_bytes()))
        (live, resident), (live_after, resident_after) = sizes
        assert live_after == live
        assert resident_after - resident < 4 * 2**20

    @pytest.mark.slow
    def test_closed_loop(self):
        """Warm starts stay where they are from step to step: only what is recorded grows."""
        solver = MPCSolver(arm(3), ONE_STEP, "float64", "staged")

        def memory(steps):
            loop = jax.jit(lambda x: wm.rollout(solver, lambda x, u: x + 0.1 * u, x, steps))
            shape = jax.ShapeDtypeStruct((1024, 2), "float64")
            found = loop.lower(shape).compile().memory_analysis()
            return found.temp_size_in_bytes, found.output_size_in_bytes

        (temporary, results), (more_temporary, more_results) = memory(4), memory(64)
        assert more_temporary - temporary <= 2 * (more_results - results)
        assert more_results - results < 64 * 1024 * 100


def test_programs_return_no_array_twice(solver, data):
    """A donated argument must not take the place of one of two equal results."""
    found = solver.solve(*data)
    assert found.z is found.warm_start.z
    assert found.y is found.warm_start.qp.y
