"""A batch spread over CPU devices, or over processes: run by `tests/sqp/test_sqp_devices.py`.

    python device_script.py devices
    python device_script.py everything
    python device_script.py gradients
    python device_script.py all_gradients
    python device_script.py moves
    python device_script.py process NUMBER COUNT PORT

Every check fails by an exception.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sqp_cases import FIXED, TIGHT, arm

import warpmpc as wm

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


_MOVES = ("all-gather", "all-to-all", "collective-permute")


def without_communication(function, *args, besides=(*_MOVES, "all-reduce")):
    """The results of one program in which no device waits for another; or for sums alone."""
    program = jax.jit(function).lower(*args).compile()
    for operation in besides:
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
    quadratic_programs(explicit)


def other_shapes(solver, sharding):
    x0, params = data()
    first = solver.solve(x0, params)
    second = solver.solve(x0, params, first.warm_start)
    args = jax.device_put((x0, params), sharding)
    # The start is on one device only: it is spread like the data.
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
    # A program may request an uneven split; all devices do all the work then.
    uneven = jax.jit(lambda x: solver.solve(jax.lax.with_sharding_constraint(x, sharding)))
    equal(uneven(data(33)[0]), solver.solve(data(33)[0]))


def some_qp():
    """min half x'Px + q'x inside of a box, and its data: values of P are a gradient's common."""
    ones, rng = sp.eye_array(3, format="csc"), np.random.default_rng(0)
    q, bounds = rng.normal(size=(BATCH, 3)), rng.uniform(0.1, 1, (BATCH, 3))
    values = np.ones((BATCH, 3))
    solver = wm.QPSolver(ones, ones, dtype="float64")
    return solver, (values, q, values, -bounds, bounds)


def quadratic_programs(sharding):
    """With the user's code for one device, also where the axes of the mesh are explicit."""
    solver, args = some_qp()
    wanted = solver.solve(*args)
    np.testing.assert_allclose(wanted.x, np.clip(-args[1], args[3], args[4]), atol=1e-2)
    spread = jax.device_put(args, sharding)
    found = solver.solve(*spread)
    again = solver.solve(*spread, warm_start=found.warm_start)
    inside = without_communication(solver.solve, *spread)
    for one in (found, inside):
        is_spread(one, sharding)
        close(one, wanted, 1e-12)
    is_spread(again, sharding)
    assert (np.asarray(again.iterations) < np.asarray(found.iterations).max()).all()


def close(found, wanted, atol):
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


def mpc_loss(call, weights, x0, params):
    """No two instances count alike: a gradient of the wrong one would be seen."""
    found = call(x0, params)
    return (weights[:, None] * jnp.sin(found.z)).sum() + (weights * found.cost).sum()


def one_step(solver, x0, params):
    return solver.step(solver.z_guess(x0, params), params, x0=x0)[0]


def qp_loss(solver, weights, q, P, bounds):
    # A sum, so that explicit axes spread it like q: `broadcast_to` would not.
    found = solver.solve(P + 0 * q, q, jnp.ones_like(q), -bounds, bounds)
    return (weights[:, None] * jnp.sin(found.x)).sum() + (weights * found.objective).sum()


def gradients_agree(loss, args, sharding, *, in_program):
    """Gradients of spread batches and of what all instances share are those of one device."""
    weights = np.random.default_rng(1).normal(size=BATCH)
    gradient = jax.grad(loss, argnums=tuple(range(1, 1 + len(args))))
    wanted = jax.jit(gradient)(*jax.tree.map(jnp.asarray, (weights, *args)))
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(wanted))
    common = NamedSharding(sharding.mesh, PartitionSpec())

    def put(array):
        return jax.device_put(array, sharding if array.shape[0] == BATCH else common)

    spread = jax.tree.map(put, (weights, *args))
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    # JAX's own `grad` needs to know of a mesh with explicit axes.
    with jax.set_mesh(sharding.mesh) if explicit else nullcontext():
        if in_program:
            found = without_communication(gradient, *spread, besides=_MOVES)
        else:
            found = gradient(*spread)
    close(found, wanted, 1e-10)
    for mine, given in zip(jax.tree.leaves(found), jax.tree.leaves(spread[1:]), strict=True):
        assert mine.sharding.is_equivalent_to(given.sharding, mine.ndim), mine.sharding


def gradient_data():
    x0, params = data()
    return 0.5 * x0, {**params, "gravity": np.array([0.8])}


def gradients():
    """What an instance has for itself, x0, and what all have in common."""
    sharding = batch_sharding()
    gradients_agree(partial(mpc_loss, make().solve), gradient_data(), sharding, in_program=True)
    explicit = batch_sharding(AxisType.Explicit)
    solver, (P, q, _, _, bounds) = some_qp()
    gradients_agree(partial(qp_loss, solver), (q, 2 * P[0], bounds), explicit, in_program=False)


def moves():
    """Forward mode: changes of spread batches are spread, and those of one device."""
    x0, params = gradient_data()
    solver = make()

    def moved(x0, params):
        def plan(x0):
            return solver.solve(x0, params).z

        return jax.jvp(plan, (x0,), (jnp.cos(x0),))[1]

    wanted = jax.jit(moved)(x0, params)
    assert np.abs(wanted).max() > 1e-3
    for kind in (AxisType.Auto, AxisType.Explicit):
        sharding = batch_sharding(kind)
        spread = jax.tree.map(
            lambda a: jax.device_put(jnp.asarray(a), sharding if a.shape[0] == BATCH else None),  # noqa: B023
            (x0, params),
        )
        with jax.set_mesh(sharding.mesh) if kind == AxisType.Explicit else nullcontext():
            for found in (moved(*spread), jax.jit(moved)(*spread)):
                close(found, wanted, 1e-10)
                assert found.sharding.is_equivalent_to(sharding, found.ndim), found.sharding


def all_gradients():
    x0, params = gradient_data()
    cases = [(x0, params), (x0, {"w": np.array([1.0, 0.1, 0.1]), "gravity": np.array([0.8])})]
    solvers = [wm.MPCSolver(arm(), settings, "float64", "staged") for settings in (FIXED, TIGHT)]
    calls = [solver.solve for solver in solvers] + [partial(one_step, solvers[0])]
    solver, (P, q, _, _, bounds) = some_qp()
    for sharding in (batch_sharding(), batch_sharding(AxisType.Explicit)):
        for in_program in (True, False):
            for call in calls:
                for case in cases:
                    gradients_agree(partial(mpc_loss, call), case, sharding, in_program=in_program)
            args = (q, 2 * P[0], bounds)
            gradients_agree(partial(qp_loss, solver), args, sharding, in_program=in_program)


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
    modes = {
        "devices": several_devices,
        "everything": everything_on_several_devices,
        "gradients": gradients,
        "all_gradients": all_gradients,
        "moves": moves,
    }
    modes.get(sys.argv[1], one_of_many)(*map(int, sys.argv[2:]))
