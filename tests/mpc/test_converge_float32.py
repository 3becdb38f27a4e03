"""All systems converge in float32, on both engines of the QPs; also where states have no weight."""

from __future__ import annotations

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from system_names import SMALL

from warpmpc import OCP, MPCSolver, MPCStatus, SQPSettings, systems

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("engine", ["staged", "sparse"])
@pytest.mark.parametrize("name", SMALL)
def test_systems(name, engine):
    system = systems.make(name)
    solver = MPCSolver(system.problem, system.converged_settings, engine=engine)
    solution = solver.solve(system.sample(64).astype("float32"))
    assert (np.asarray(solution.status) == MPCStatus.CONVERGED).all()


@pytest.mark.parametrize("convexify", ["project", "gershgorin"])
@pytest.mark.parametrize("scaling", [0, 10])
def test_car(convexify, scaling):
    """Its obstacle takes all weight of positions; only then do orders of elimination matter."""
    system = systems.make("car")
    settings = SQPSettings(convexify=convexify)
    qp = replace(settings.qp_settings("float32"), scaling=scaling)
    solver = MPCSolver(system.problem, replace(settings, qp=qp), engine="staged")
    solution = solver.solve(system.sample(64).astype("float32"))
    assert (np.asarray(solution.status) == MPCStatus.CONVERGED).all()


def crossing():
    """A boat crosses a stream in least time, its last state: positions have no cost at all."""
    x, turn, current = ca.SX.sym("x", 4), ca.SX.sym("turn"), ca.SX.sym("current")
    px, py, heading, duration = ca.vertsplit(x)
    ocp = OCP(x, turn, {"current": current}, horizon=30, dt=duration / 30, fix_initial=False)
    ocp.subject_to(ocp.x0[:3], x[:3], ocp.x0[:3], at="initial")
    ocp.set_dynamics([ca.cos(heading) + current * py * (1 - py), ca.sin(heading), turn, 0])
    ocp.add_cost(duration, at="terminal")
    ocp.add_cost(1e-3 * turn**2)
    ocp.subject_to([2, 1], ca.vertcat(px, py), [2, 1], at="terminal")
    ocp.subject_to(-2, turn, 2)
    ocp.subject_to(0.5, duration, 10, at="all")
    ocp.set_guess(x=ca.vertcat(2 * ocp.tau, ocp.tau, 0.4, 3.0))
    return ocp


def test_least_time():
    """Float32 finds what float64 finds."""
    x0 = np.tile([0, 0, 0.4, 3.0], (50, 1))
    current = np.linspace(-1, 1, 50)[:, None]
    durations = []
    for dtype in ("float32", "float64"):
        solver = MPCSolver(crossing(), SQPSettings(max_iter=200), dtype, "staged")
        solution = solver.solve(x0.astype(dtype), {"current": current.astype(dtype)})
        assert (np.asarray(solution.status) == MPCStatus.CONVERGED).all()
        durations.append(np.asarray(solution.x[:, -1, 3]))
    np.testing.assert_allclose(*durations, rtol=1e-3)
