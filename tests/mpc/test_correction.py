"""Derivatives at solutions whose active set the tolerances leave open, against IPOPT."""

from __future__ import annotations

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
from mpc_cases import WholeProblem
from nlp_oracle import NonlinearProgram

import warpmpc as wm

LIMIT = 0.5


def swing() -> wm.OCP:
    """A pendulum whose first torque reaches its limit at some angle."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = wm.OCP(x, u, {}, horizon=4, dt=0.1)
    ocp.set_dynamics(ca.vertcat(x[1], ca.sin(x[0]) + u))
    ocp.add_residual(x, weight=[1, 0.1])
    ocp.add_residual(u, weight=0.1)
    ocp.add_residual(x, weight=[2, 1], at="terminal")
    ocp.subject_to(-LIMIT, u, LIMIT, name="torque")
    return ocp


class Oracle:
    """First torques by IPOPT."""

    def __init__(self, ocp: wm.OCP):
        self._problem = ocp.problem()
        self._program = NonlinearProgram(WholeProblem(self._problem))

    def __call__(self, angles: np.ndarray) -> np.ndarray:
        x0 = np.stack([angles, 0 * angles], axis=1)
        found = self._program.minima(np.zeros((angles.size, self._problem.n_vars)), x0)
        assert found.solved.all()
        assert self._problem.u_rows is not None
        return found.z[:, self._problem.u_rows[0, 0]]

    def kink(self) -> float:
        """The angle from which the torque is at its limit."""
        low, high = 0.0, 2.0
        for _ in range(5):
            angles = np.linspace(low, high, 16)
            first = int(np.argmax(self(angles) <= -LIMIT + 3e-5))
            low, high = angles[first - 1], angles[first]
        return low

    def slopes(self, angles: np.ndarray) -> np.ndarray:
        step = 1e-5
        return (self(angles + step) - self(angles - step)) / (2 * step)


def test_each_side_of_a_kink_has_its_derivative():
    """Although some solutions are on the wrong side of it, within their tolerances."""
    ocp, away = swing(), np.geomspace(3e-3, 3e-2, 12)
    oracle = Oracle(ocp)
    angles = oracle.kink() + np.concatenate([-away, away])
    qp = wm.ADMMSettings(
        eps_abs=1e-2, eps_rel=0, check_every=5, adaptive_rho_every=0, check_dualgap=False
    )
    rough = wm.SQPSettings(tol_kkt=0.1, tol_step=0.1, tol_violation=0.1, qp=qp)
    solver = wm.MPCSolver(ocp, rough, dtype="float32", engine="sparse")

    def first_torque(x0):
        solution = solver.solve(x0)
        return solution.u[:, 0, 0].sum(), solution

    x0 = jnp.asarray(np.stack([angles, 0 * angles], axis=1), dtype="float32")
    found, solution = jax.grad(first_torque, has_aux=True)(x0)
    np.testing.assert_array_equal(solution.status, wm.MPCStatus.CONVERGED)
    rows = solver.problem.row_names.index("torque[0]")
    says = np.asarray(solution.y)[:, rows] != 0
    assert (says != (angles > angles[11] + 1e-9)).sum() >= 2
    wanted = oracle.slopes(angles)
    assert abs(wanted[0] - wanted[-1]) > 1
    np.testing.assert_allclose(found[:, 0], wanted, atol=1e-2)
