"""Where results lie: in the arrays of the start, each in its own; single problems stay single."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpc_cases import pendulum
from sqp_cases import FIXED

from warpmpc import MPCSolver
from warpmpc.engines.runtime import batching as batches
from warpmpc.engines.runtime.ffi import has_gpu
from warpmpc.mpc import batching as batch_program


@pytest.fixture(scope="module", params=["onchip", pytest.param("staged", marks=pytest.mark.slow)])
def solver(request):
    problem = pendulum(2, integrator="euler")
    return MPCSolver(problem, replace(FIXED, max_iter=2), "float64", request.param)


@pytest.fixture(scope="module")
def x0():
    return np.random.default_rng(0).normal(size=(33, 2))


def arguments(solver, batch):
    x0 = jax.ShapeDtypeStruct((batch, solver.problem.n_x0), solver.dtype)
    params = jax.eval_shape(lambda x: solver._packed(x, None), x0)
    start = jax.eval_shape(lambda x: solver.cold_start(solver.z_guess(x)), x0)
    return params.common, replace(params, common=None), start


def numbered(tree):
    """The tree with the indices of its leaves in place of them."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, range(len(leaves)))


def test_every_array_takes_its_own_place(solver):
    """An s in the place of y, which has its shape, would have to wait elsewhere."""
    args = arguments(solver, 32)
    program = solver._solve.compiled
    text = program.lower(*args).compile().as_text()
    header = text[text.index("input_output_alias=") : text.index("entry_computation_layout")]
    pairs = re.findall(r"\{(\d+)\}: \((\d+), \{\}", header)
    places = {int(result): int(argument) for result, argument in pairs}
    start = numbered(args)[2]
    end = numbered(jax.eval_shape(program, *args)).warm_start
    wanted = dict(zip(jax.tree.leaves(end), jax.tree.leaves(start), strict=True))
    assert places == wanted


def test_cold_start_keeps_the_trajectory(solver):
    z = jnp.ones((4, solver.problem.n_vars), dtype=solver.dtype)
    start = solver.cold_start(z)
    assert start.z is z
    states = (start.qp.d, start.qp.s, start.qp.y)
    assert [array.shape[1] for array in states] == [z.shape[1], *2 * [solver.problem.n_cons]]
    assert not any(array.any() for array in states)
    assert batch_program._differ(start)  # so that all of them can be given away


def test_parts_are_not_for_what_works_in_place(solver, monkeypatch):
    """Results in parts would need memory beside the start; on chip they take its place."""
    monkeypatch.setattr(batches, "free_memory", lambda: 0)
    text = solver._solve.compiled.lower(*arguments(solver, 96)).as_text()
    in_parts = "dynamic_update_slice" in text
    assert in_parts == (solver.engine == "staged")


@pytest.mark.parametrize("leading", [(1,), (1, 1), ()])
def test_one_problem_is_no_tile(solver, x0, leading, monkeypatch):
    """One problem is one on chip, and for every engine on the CPU; no bit depends on it."""
    whole, seen = solver.solve(x0), []
    name = "compiled" if has_gpu() else "_alone"
    real = getattr(solver._solve, name)

    def compiled(common, params, start):
        seen.append(start.z.size // start.z.shape[-1])
        return real(common, params, start)

    monkeypatch.setattr(solver._solve, name, compiled)
    one = solver.solve(x0[:1].reshape(*leading, 2))
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(np.reshape(mine, theirs[:1].shape), theirs[:1])
    again = solver.solve(x0[:1].reshape(*leading, 2), None, one.warm_start, donate=True)
    assert again.z.shape[:-1] == leading
    assert seen == 2 * [1 if solver.engine == "onchip" or not has_gpu() else 32]
