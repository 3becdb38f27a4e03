"""Memory per instance: what the solver counts against what XLA reserves for the compiled program.

Too little, and a huge batch does not fit; too much, and it is worked on in more parts than needed.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from sqp_cases import FIXED, FIXED_QP, TIGHT, arm

from warpmpc import MPCSolver, systems
from warpmpc.engines.runtime import batching as batches
from warpmpc.mpc.batching import result_values
from warpmpc.systems import car, cartpole, linear, quadrotor, quadrotor_obstacles

BATCH, PART = 1024, 256
MOST = 1.4  # times what XLA reserves
SYSTEMS = {"cartpole": cartpole, "quadrotor": quadrotor, "obstacles": quadrotor_obstacles}
SYSTEMS |= {"linear": linear, "car": car}
CHECKED = replace(FIXED, qp=replace(FIXED_QP, check_every=5))
ARMS = {
    "fused": FIXED,
    "unfused": replace(FIXED, fused=False),
    "fused_checked": CHECKED,
    "unfused_checked": replace(CHECKED, fused=False),
    "recorded": replace(FIXED, record=True, max_iter=20),
    "converging": TIGHT,
    "long_ladder": replace(
        FIXED, fused=False, line_search=replace(FIXED.line_search, step_min=1e-8)
    ),
}


@pytest.fixture(autouse=True)
def large_caches(monkeypatch):
    """Only memory limits a batch, as on a GPU."""
    monkeypatch.setattr(batches, "cached_instances", lambda _, otherwise: otherwise)


def in_parts(settings, dtype):
    return replace(settings, qp=replace(settings.qp_settings(dtype), max_batch=PART))


def arguments(solver, batch):
    x0 = jax.ShapeDtypeStruct((batch, solver.problem.n_x0), solver.dtype)
    params = jax.eval_shape(lambda x: solver._packed(x, None), x0)
    start = jax.eval_shape(lambda x: solver.cold_start(solver.z_guess(x)), x0)
    return params.common, replace(params, common=None), start


def reserved(program, *args):
    return program.lower(*args).compile().memory_analysis()


def values_of_solves(problem, settings, dtype, *, parts):
    """Values per instance that are reserved: by the whole batch, or by parts of it, if worse."""
    item, found = np.dtype(dtype).itemsize, []
    cases = ((settings, BATCH), (in_parts(settings, dtype), PART))
    for some, size in cases if parts else cases[:1]:
        solver = MPCSolver(problem, some, dtype, "staged")
        memory = reserved(solver._solve.compiled, *arguments(solver, BATCH))
        # Results of all parts take the place of arguments in the end.
        results = memory.alias_size_in_bytes if size == PART else 0
        found.append((memory.temp_size_in_bytes - results) / size / item)
        per_result = memory.output_size_in_bytes / BATCH / item
        assert per_result <= result_values(solver.programs) + 5 * settings.max_iter
    return max(found)


def check_solves(problem, settings, dtype, *, parts=True):
    solver = MPCSolver(problem, settings, dtype, "staged")
    counted = solver.bytes_per_instance / np.dtype(dtype).itemsize
    needed = values_of_solves(problem, settings, dtype, parts=parts)
    assert needed <= counted <= MOST * needed, (counted, needed)


@pytest.mark.parametrize("case", ["fused", "unfused"])
def test_whole_batches(case):
    check_solves(arm(), ARMS[case], "float64", parts=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", ARMS)
def test_parts(case):
    check_solves(arm(), ARMS[case], "float64")


@pytest.mark.slow
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("name", SYSTEMS)
def test_systems(name, fused):
    system = SYSTEMS[name].make()
    check_solves(system.problem, replace(system.settings, fused=fused), "float32")


@pytest.mark.slow
def test_humanoid():
    """The largest system needs at most 0.95 MB in float32."""
    pytest.importorskip("mujoco")
    system = systems.make("humanoid")
    solver = system.solver()
    memory = reserved(solver._solve.compiled, *arguments(solver, BATCH))
    needed = memory.temp_size_in_bytes / BATCH
    assert needed <= solver.bytes_per_instance <= min(0.95e6, MOST * needed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_gradients(name):
    system = SYSTEMS[name].make()
    solver = MPCSolver(system.problem, system.settings)
    args, program = arguments(solver, BATCH), solver._solve
    solution = jax.eval_shape(program._solutions, *args)
    sensitivity = program._sensitivity
    kept = jax.eval_shape(sensitivity.keeps, solution)
    bars = jax.eval_shape(lambda s: (s.z, s.y, s.cost[..., None]), solution)
    memory = reserved(program._compiled_back, *args, kept, bars)
    needed = memory.temp_size_in_bytes / BATCH / 4
    counted = sensitivity.values_per_instance
    assert needed <= counted <= 1.1 * MOST * needed, (counted, needed)
    moves = (jax.ShapeDtypeStruct((BATCH, solver.problem.n_params), "float32"),)
    memory = reserved(program._compiled_ahead, *args, kept, moves)
    needed, counted = memory.temp_size_in_bytes / BATCH / 4, sensitivity.values_forward
    assert needed <= counted <= 1.3 * MOST * needed, (counted, needed)


def test_parts_of_a_small_gpu(monkeypatch):
    """24 GB hold 200 000 cartpoles at once, and 450 000 in two parts: nothing is wasted."""
    system = cartpole.make()
    solver = MPCSolver(system.problem, system.settings)
    monkeypatch.setattr(batches, "free_memory", lambda: 22 * 10**9)
    values = solver._values_per_instance()
    assert solver._part_size(200_000, values) == 200_000
    assert solver._part_size(450_000, values) == 225_024
