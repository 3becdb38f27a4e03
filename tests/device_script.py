"""A batch spread over CPU devices, or over processes: run by `tests/sqp/test_sqp_devices.py`.

    python device_script.py devices
    python device_script.py everything
    python device_script.py process NUMBER COUNT PORT

Every check fails by an exception.
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import warpmpc as wm
from sqp_cases import FIXED, arm

BATCH, DEVICES = 40, 4


def make(**options) -> wm.MPCSolver:
    return wm.MPCSolver(arm(), FIXED, "float64", "staged", **options)


def data(batch: int = BATCH):
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, 2)), {"w": rng.uniform(0.1, 1, (batch, 3))}


def simulate(x, u):
    return x + 0.3 * jnp.stack([x[:, 1], jnp.sin(x[:, 0]) + u[:, 0]], axis=1)


def resets(x):
    return x[:, 0] > 1, -x


def everything(solver, x0, params):
    """A solve, the next one, a step, gradients and a closed loop, in a program of the caller's."""
    first = solver.solve(x0, params)
    second = solver.solve(x0, params, first.warm_start, shift=True)
    step, _ = solver.step(first.z, params, first.warm_start.qp, x0=x0)
    loop = wm.rollout(solver, simulate, x0, 2, params=params, resets=resets)
    gradient = jax.grad(lambda x: (solver.solve(x, params).z ** 2).sum())(x0)
    return [first, second, step, loop, gradient]


def equal(found, wanted):
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        for shard in mine.addressable_shards:
            np.testing.assert_array_equal(shard.data, np.asarray(theirs)[shard.index])


def is_spread(tree, sharding):
    """Every device has its part of every array, and nothing else."""
    for path, array in jax.tree.leaves_with_path(tree):
        assert array.sharding.is_equivalent_to(sharding, array.ndim), (path, array.sharding)


def without_communication(function, *args):
    """The results of one program in which no device waits for another."""
    program = jax.jit(function).lower(*args).compile()
    for operation in ("all-gather", "all-to-all", "collective-permute", "all-reduce"):
        assert operation not in program.as_text(), operation
    return program(*args)


def batch_sharding(axis_type=AxisType.Auto):
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(axis_type,))
    return NamedSharding(mesh, PartitionSpec("batch"))


def refused(function, *words):
    with pytest.raises(wm.ProblemError) as info:
        function()
    assert all(word in str(info.value) for word in words), info.value


def several_devices():
    """Solves of arrays that exist, and in a program of the caller's."""
    assert jax.device_count() == DEVICES
    solver, (x0, params), sharding = make(), data(), batch_sharding()
    first = solver.solve(x0, params)
    second = solver.solve(x0, params, first.warm_start)
    args = jax.device_put((x0, params), sharding)
    is_spread(solver.cold_start(solver.z_guess(*args)), sharding)
    found = solver.solve(*args)
    equal(found, first)
    is_spread(found, sharding)
    equal(without_communication(solver.solve, *args), first)
    explicit = batch_sharding(AxisType.Explicit)
    found_again = solver.solve(*jax.device_put((x0, params), explicit))
    equal(found_again, first)
    is_spread(found_again, explicit)

    equal(solver.solve(*args, found.warm_start, donate=True), second)
    assert found.warm_start.z.is_deleted()

    moving = make(device=sharding)
    refused(lambda: moving.solve(*data(33)), "33", "over 4 devices", "multiple of 4")
    refused(lambda: moving.solve(x0[0]), "without batch axis")


def everything_on_several_devices():
    solver, sharding = make(), batch_sharding()
    program = partial(everything, solver)
    wanted = jax.jit(program)(*data())
    args = jax.device_put(data(), sharding)
    found = without_communication(program, *args)
    equal(found, wanted)
    is_spread(found, sharding)
    is_spread(make(device=sharding).solve(*data()), sharding)
    explicit = batch_sharding(AxisType.Explicit)
    found = without_communication(program, *jax.device_put(data(), explicit))
    equal(found, wanted)
    is_spread(found, explicit)
    is_spread(make(device=explicit).solve(*data()), sharding)
    other_shapes(solver, sharding)
    quadratic_programs(sharding)


def other_shapes(solver, sharding):
    x0, params = data()
    first = solver.solve(x0, params)
    second = solver.solve(x0, params, first.warm_start)
    args = jax.device_put((x0, params), sharding)
    # The start lies on one device only: it is spread like the data.
    again = solver.solve(*args, first.warm_start)
    equal(again, second)
    is_spread(again, sharding)
    # Two axes of the batch; one instance that every device has.
    folded = jax.tree.map(lambda a: a.reshape(DEVICES, -1, *a.shape[1:]), (x0, params))
    again = solver.solve(*jax.device_put(folded, sharding))
    is_spread(again, sharding)
    equal(jax.tree.map(lambda a: a.reshape(BATCH, *a.shape[2:]), again), first)
    replicated = NamedSharding(sharding.mesh, PartitionSpec())
    alone = solver.solve(*jax.device_put(jax.tree.map(lambda a: a[0], (x0, params)), replicated))
    equal(alone, jax.tree.map(lambda a: a[0], first))
    # A program may ask for an uneven split; all devices do all the work then.
    uneven = jax.jit(lambda x: solver.solve(jax.lax.with_sharding_constraint(x, sharding)))
    equal(uneven(data(33)[0]), solver.solve(data(33)[0]))


def quadratic_programs(sharding):
    rng, ones = np.random.default_rng(0), sp.eye_array(3, format="csc")
    solver = wm.QPSolver(ones, ones, dtype="float64")
    q, bounds = rng.normal(size=(BATCH, 3)), rng.uniform(0.1, 1, (BATCH, 3))
    values = np.ones((BATCH, 3))
    args = (values, q, values, -bounds, bounds)
    wanted = jax.jit(solver.solve)(*args)
    np.testing.assert_allclose(wanted.x, np.clip(-q, -bounds, bounds), atol=1e-2)
    found = without_communication(solver.solve, *jax.device_put(args, sharding))
    is_spread(found, sharding)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)


def one_of_many(number: int, count: int, port: int):
    jax.distributed.initialize(f"localhost:{port}", count, number)
    assert jax.process_count() == count
    assert len(jax.local_devices()) == 1
    solver, sharding = make(), batch_sharding()
    alone = solver.solve(*data())
    args = jax.tree.map(
        lambda a: jax.make_array_from_callback(a.shape, sharding, lambda index: a[index]), data()
    )
    found = solver.solve(*args)
    equal(found, alone)
    is_spread(found, sharding)
    program = partial(everything, solver)
    inside = without_communication(program, *args)
    is_spread(inside, sharding)
    equal(inside, jax.jit(program)(*data()))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    modes = {"devices": several_devices, "everything": everything_on_several_devices}
    modes.get(sys.argv[1], one_of_many)(*map(int, sys.argv[2:]))
