"""What CONVERGED means in any unit of the cost, and that float32 loses no instances on the way."""

from __future__ import annotations

import casadi as ca
import jax.numpy as jnp
import numpy as np
import pytest

import warpmpc as wm
from warpmpc.mpc.stage_evaluation import _projected
from warpmpc.systems.pendulum import build

STATUS = wm.MPCStatus


def weighted() -> wm.OCP:
    """A pendulum that falls, whose torque saturates; all weights are times a parameter."""
    x, u, unit = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("unit")
    ocp = wm.OCP(x, u, {"unit": unit}, horizon=20, dt=0.1)
    ocp.set_dynamics(ca.vertcat(x[1], 9.81 * ca.sin(x[0]) + u), integrator="rk4")
    ocp.add_residual(ca.vertcat(x, u), weight=unit * np.array([1, 0.1, 0.01]))
    ocp.add_residual(x, weight=10 * unit, at="terminal")
    ocp.subject_to(-5, u, 5, name="torque")
    return ocp


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_unit_of_the_cost_makes_no_difference(dtype):
    """With weights times 1e-7 the guess used to be accepted, and no torque was applied."""
    units = np.array([1, 1e-12, 1e-7, 1e-3, 1e7], dtype=dtype)[:, None]
    x0 = np.broadcast_to(np.array([0.3, 0.5], dtype=dtype), (units.size, 2))
    found = wm.MPCSolver(weighted(), dtype=dtype).solve(x0, {"unit": units})
    np.testing.assert_array_equal(found.status, STATUS.CONVERGED)
    np.testing.assert_array_equal(found.iterations, found.iterations[0])
    tolerance = {"float32": 1e-2, "float64": 1e-5}[dtype]
    np.testing.assert_allclose(found.u[:, 0, 0], -5, atol=tolerance)
    np.testing.assert_allclose(found.u, found.u[:1].repeat(units.size, 0), atol=tolerance)
    relative = np.asarray(found.cost) / units[:, 0]
    np.testing.assert_allclose(relative, relative[0], rtol=tolerance)


def starts(batch: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    angle, rate = rng.uniform(-3.5, 3.5, batch), rng.uniform(-3, 3, batch)
    return np.stack([angle, rate], axis=1).astype("float32")


@pytest.mark.parametrize(
    ("batch", "least"), [(128, 125), pytest.param(512, 505, marks=pytest.mark.slow)]
)
def test_float32_solves_what_float64_does(batch, least):
    """In 512 instances, 40 used to end as NON_FINITE and 48 in the line search."""
    status = np.asarray(wm.MPCSolver(build()).solve(starts(batch)).status)
    assert not (status == STATUS.NON_FINITE).any()
    assert (status == STATUS.CONVERGED).sum() >= least


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_projected_blocks_have_no_negative_eigenvalue_by_rounding(dtype):
    rng = np.random.default_rng(0)
    blocks = rng.normal(size=(500, 4, 4)) * 10.0 ** rng.uniform(-6, 6, (500, 1, 1))
    blocks = (blocks + blocks.transpose(0, 2, 1)).astype(dtype)
    projected = np.asarray(_projected(jnp.asarray(blocks)), dtype=np.float64)
    symmetric = (projected + projected.transpose(0, 2, 1)) / 2
    least = np.linalg.eigvalsh(symmetric).min(axis=1)
    assert (least > 0).all()
    largest = np.abs(np.linalg.eigvalsh(blocks.astype(np.float64))).max(axis=1)
    assert (least < 100 * np.finfo(dtype).eps * largest)[least < 0.1 * largest].any()
