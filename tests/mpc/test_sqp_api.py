"""How `MPCSolver` is called: batches, axes, transformations, warm starts, names."""

from __future__ import annotations

from dataclasses import replace

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sqp_cases import FIXED, FIXED_QP

from warpmpc import OCP, MPCSolver, MPCWarmStart, QPState

HORIZON, BATCH = 4, 100


def lift() -> OCP:
    """Every kind of name: states, inputs, parameters, parameters of nodes, interval lengths."""
    height, speed, force = ca.SX.sym("h", 1), ca.SX.sym("s", 1), ca.SX.sym("f", 1)
    weight, mass, target = ca.SX.sym("w", 2), ca.SX.sym("m"), ca.SX.sym("t")
    ocp = OCP(
        {"height": height, "speed": speed},
        {"force": force},
        {"weight": weight, "mass": mass},
        p_stage={"target": target},
        horizon=HORIZON,
        dt=[0.1, 0.2, 0.3, 0.4],
    )
    ocp.set_dynamics(ca.vertcat(speed, force / mass - 0.1 * speed**3), integrator="euler")
    ocp.add_cost(0.5 * (weight[0] * (height - target) ** 2 + weight[1] * force**2))
    ocp.add_cost(5 * (height - target) ** 2 + speed**2, at="terminal")
    ocp.subject_to(-2, force, 2)
    ocp.set_guess((1 - ocp.tau) * ocp.x0, 0.1 * target)
    for name, value in (("weight", [1.0, 0.1]), ("mass", 2.0), ("target", 0.5)):
        ocp.set_default(name, value)
    return ocp


@pytest.fixture(scope="module")
def solver():
    return MPCSolver(lift(), FIXED, "float64", "staged", device=jax.devices("cpu")[0])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    params = {
        "weight": rng.uniform(0.1, 2, (BATCH, 2)),
        "mass": rng.uniform(1, 3, (BATCH, 1)),
        "target": rng.uniform(-1, 1, (BATCH, HORIZON + 1, 1)),
    }
    return rng.normal(size=(BATCH, 2)), params


@pytest.fixture(scope="module")
def whole(solver, data):
    """The whole batch at once."""
    return solver.solve(*data)


def part(data, index):
    return jax.tree.map(lambda a: a[index], data)


def equal(found, wanted):
    """Same structure, same bits."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(mine, theirs)


class TestBatches:
    @pytest.mark.parametrize("index", [7, slice(99, 100), slice(31)], ids=["none", "1", "31"])
    def test_parts_of_the_batch(self, solver, data, whole, index):
        """A single problem has no batch axis, in or out."""
        equal(solver.solve(*part(data, index)), part(whole, index))

    def test_two_leading_axes(self, solver, data, whole):
        fold = jax.tree.map(lambda a: a[:33].reshape(3, 11, *a.shape[1:]), data)
        wanted = jax.tree.map(lambda a: a[:33].reshape(3, 11, *a.shape[1:]), whole)
        equal(solver.solve(*fold), wanted)

    def test_order_does_not_matter(self, solver, data, whole):
        order = np.random.default_rng(1).permutation(BATCH)
        equal(solver.solve(*part(data, order)), part(whole, order))

    def test_split_batches(self, data, whole):
        settings = replace(FIXED, qp=replace(FIXED_QP, max_batch=32))
        solver = MPCSolver(lift(), settings, "float64", "staged")
        found = solver.solve(*data)
        equal(replace(found, layout=whole.layout), whole)

    def test_shapes(self, solver, whole):
        problem = solver.problem
        assert whole.z.shape == (BATCH, problem.n_vars)
        assert whole.y.shape == (BATCH, problem.n_cons)
        assert whole.x.shape == (BATCH, HORIZON + 1, 2)
        assert whole.u.shape == (BATCH, HORIZON, 1)
        scalars = "cost status iterations qp_iterations primal_residual dual_residual kkt_residual"
        for name in (*scalars.split(), "step_length", "accepted", "violation", "theta"):
            assert getattr(whole, name).shape == (BATCH,), name
        assert whole.accepted.dtype == bool
        assert whole.history is None
        assert whole.z.devices() == {jax.devices("cpu")[0]}


class TestTransformations:
    def test_jit_of_vmap(self, solver, data, whole):
        fold = jax.tree.map(lambda a: a.reshape(4, 25, *a.shape[1:]), data)
        found = jax.jit(jax.vmap(solver.solve))(*fold)
        equal(jax.tree.map(lambda a: a.reshape(BATCH, *a.shape[2:]), found), whole)

    def test_scan(self, solver, data, whole):
        """Iterations in a loop of the caller's; the state is a pytree."""
        x0, params = jax.tree.map(jnp.asarray, data)
        start = solver.cold_start(solver.z_guess(x0, params))

        def body(carry, _):
            z, state = carry
            result, state = solver.step(z, params, state, x0=x0)
            return (result.z, state), result

        (z, state), results = jax.lax.scan(body, (start.z, start.qp), None, length=3)
        np.testing.assert_allclose(z, whole.z, rtol=0, atol=1e-12)
        np.testing.assert_allclose(state.y, whole.y, rtol=0, atol=1e-12)
        assert results.x.shape == (3, BATCH, HORIZON + 1, 2)
        assert np.all(results.iterations == 1)

    def test_solution_is_a_pytree(self, whole):
        leaves, structure = jax.tree.flatten(whole)
        equal(jax.tree.unflatten(structure, leaves), whole)
        assert isinstance(whole.warm_start, MPCWarmStart)
        assert isinstance(whole.warm_start.qp, QPState)


class TestWarmStarts:
    def test_trajectory_alone(self, solver, data, whole):
        """The guess of the problem is where a solve without warm start begins."""
        z = solver.z_guess(*data)
        equal(solver.solve(*data, warm_start=z), whole)
        equal(solver.solve(*data, warm_start=np.asarray(z)), whole)
        equal(solver.solve(*data, warm_start=solver.cold_start(z)), whole)

    def test_one_for_all(self, solver, data):
        start = part(solver.solve(*data).warm_start, 3)
        every = jax.tree.map(lambda a: jnp.broadcast_to(a, (BATCH, *a.shape)), start)
        equal(solver.solve(*data, warm_start=start), solver.solve(*data, warm_start=every))

    def test_everything_of_it_is_used(self, solver, data, whole):
        start = whole.warm_start
        wanted = solver.solve(*data, warm_start=start)
        for part_of_it in ("d", "s", "y"):
            changed = replace(start.qp, **{part_of_it: 0 * getattr(start.qp, part_of_it)})
            found = solver.solve(*data, warm_start=replace(start, qp=changed))
            assert not np.array_equal(found.y, wanted.y), part_of_it

    def test_shift(self, solver, data, whole):
        moved = solver.shift(whole.warm_start)
        x, u, old_x, old_u = (
            array
            for z in (moved.z, whole.z)
            for array in (z[:, solver.problem.x_rows], z[:, solver.problem.u_rows])
        )
        np.testing.assert_array_equal(x[:, :-1], old_x[:, 1:])
        np.testing.assert_array_equal(x[:, -1], old_x[:, -1])
        np.testing.assert_array_equal(u[:, :-1], old_u[:, 1:])
        np.testing.assert_array_equal(u[:, -1], old_u[:, -1])
        # A row becomes that of the same name at the next node, if there is one.
        problem = solver.problem
        at = list(zip(problem.con_stage.tolist(), problem.row_names, strict=True))
        source = [at.index((k + 1, n)) if (k + 1, n) in at else i for i, (k, n) in enumerate(at)]
        assert len(set(source)) < len(source)
        for name in ("s", "y"):
            rows, old = getattr(moved.qp, name), getattr(whole.warm_start.qp, name)
            np.testing.assert_array_equal(rows, old[:, np.array(source)], err_msg=name)
        once = solver.solve(*data, warm_start=whole.warm_start, shift=True)
        equal(once, solver.solve(*data, warm_start=moved))


class TestNames:
    def test_variables(self, solver, whole):
        np.testing.assert_array_equal(whole["height"], whole.x[..., :1])
        np.testing.assert_array_equal(whole["speed"], whole.x[..., 1:])
        np.testing.assert_array_equal(whole["force"], whole.u)
        np.testing.assert_array_equal(whole.z[:, :3], np.c_[whole.x[:, 0], whole.u[:, 0]])
        single = part(whole, 5)
        assert single["height"].shape == (HORIZON + 1, 1)

    def test_dynamics_tie_them_together(self, whole, data):
        """Nearly: three iterations from far away."""
        x, u, mass = whole.x, whole.u[..., 0], data[1]["mass"]
        flow = np.stack([x[:, :-1, 1], u / mass - 0.1 * x[:, :-1, 1] ** 3], axis=-1)
        dt = np.array([0.1, 0.2, 0.3, 0.4])[None, :, None]
        np.testing.assert_allclose(x[:, 1:], x[:, :-1] + dt * flow, atol=1e-2)
        np.testing.assert_allclose(x[:, 0], data[0], atol=1e-2)

    def test_guess(self, solver, data):
        z = solver.z_guess(*data)
        tau = np.linspace(0, 1, HORIZON + 1)[None, :, None]
        wanted = (1 - tau) * data[0][:, None]
        np.testing.assert_allclose(z[:, solver.problem.x_rows], wanted, atol=1e-15)
        wanted = 0.1 * data[1]["target"][:, :-1]
        np.testing.assert_allclose(z[:, solver.problem.u_rows], wanted, atol=1e-15)


class TestParameters:
    """The parameter vector is [x0 | weight, mass | target, dt of each node]."""

    def vector(self, x0, weight=(1.0, 0.1), mass=2.0, target=0.5):
        target = np.broadcast_to(target, HORIZON + 1)
        nodes = np.stack([target, [0.1, 0.2, 0.3, 0.4, 0.4]], axis=1).ravel()
        return np.concatenate([x0, weight, [mass], nodes])

    def test_defaults(self, solver):
        x0 = np.array([3.0, 4.0])
        np.testing.assert_array_equal(solver.pack(x0), self.vector(x0))
        batch = np.stack([x0, -x0])
        wanted = np.stack([self.vector(x0), self.vector(-x0)])
        np.testing.assert_array_equal(solver.pack(batch), wanted)

    def test_by_name(self, solver):
        x0 = np.array([3.0, 4.0])
        given = {"mass": np.array([9.0]), "target": np.arange(5.0)[:, None]}
        wanted = self.vector(x0, mass=9.0, target=np.arange(5.0))
        np.testing.assert_array_equal(solver.pack(x0, given), wanted)
        once = {"target": np.array([7.0])}
        np.testing.assert_array_equal(solver.pack(x0, once), self.vector(x0, target=7.0))
        inside = solver.pack(None, given | {"x0": x0})
        np.testing.assert_array_equal(inside, wanted)

    def test_as_an_array(self, solver):
        x0 = np.array([3.0, 4.0])
        wanted = self.vector(x0, mass=9.0)
        np.testing.assert_array_equal(solver.pack(x0, wanted[2:]), wanted)

    def test_broadcasting(self, solver):
        """What has no batch axes counts for all instances, x0 included."""
        x0 = np.array([3.0, 4.0])
        masses = np.array([[1.0], [2.0], [3.0]])
        wanted = np.stack([self.vector(x0, mass=m) for m in masses[:, 0]])
        np.testing.assert_array_equal(solver.pack(x0, {"mass": masses}), wanted)
        batch = np.stack([x0] * 3)
        np.testing.assert_array_equal(solver.pack(batch, {"mass": masses}), wanted)
        np.testing.assert_array_equal(solver.pack(batch, wanted[0, 2:])[1], wanted[0])
        np.testing.assert_array_equal(solver.pack(x0, wanted[:, 2:]), wanted)
        deep = solver.pack(np.stack([batch] * 2), {"weight": np.array([1.0, 0.1])})
        assert deep.shape == (2, 3, 15)
        targets = np.arange(15.0).reshape(3, 5, 1)
        found = solver.pack(x0, {"target": targets})
        np.testing.assert_array_equal(found[:, 5::2], targets[..., 0])

    def test_under_jit(self, solver):
        x0 = np.array([3.0, 4.0])
        found = jax.jit(lambda x, m: solver.pack(x, {"mass": m}))(x0, np.array([9.0]))
        np.testing.assert_array_equal(found, self.vector(x0, mass=9.0))
