"""Random instances of systems: optimality conditions, and IPOPT's minimisers.

`benchmarks/accuracy_mpc.py` does the same for all systems, with more instances.
"""

from __future__ import annotations

import numpy as np
import pytest
from mpc_cases import WholeProblem
from nlp_oracle import NonlinearProgram
from quick_compile import solve_quickly

from warpmpc import MPCSolver, MPCStatus, systems

COUNT = 20
KKT_TOLERANCE = 1.1e-6  # that of the solver, and rounding
SAME_COST, SAME_POINT = 1e-4, 1e-3
# Share of the instances where IPOPT has to find our minimiser: the car may pass on either side.
SYSTEMS = {
    "pendulum": ({}, 0.95),
    "car": ({}, 0.9),
    "quadrotor": ({"horizon": 15}, 1.0),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_random_instances(name):
    options, share = SYSTEMS[name]
    system = systems.make(name, **options)
    solver = MPCSolver(system.problem, system.converged_settings, dtype="float64", engine="sparse")
    program = NonlinearProgram(WholeProblem(system.problem))
    x0 = system.sample(COUNT, seed=1)
    params, guesses = (np.asarray(a) for a in (solver.pack(x0), solver.z_guess(x0)))
    found = solve_quickly(solver, x0)
    z, y, cost = (np.asarray(a) for a in (found.z, found.y, found.cost))

    np.testing.assert_array_equal(found.status, MPCStatus.CONVERGED)
    for b in range(COUNT):
        conditions = program.optimality(z[b], y[b], params[b])
        assert conditions.holds(KKT_TOLERANCE), (b, conditions)

    from_guess = program.minima(guesses, params)
    scale = np.maximum(1, np.abs(z).max(axis=1))
    same = from_guess.solved & (np.abs(z - from_guess.z).max(axis=1) <= SAME_POINT * scale)
    assert same.mean() >= share
    np.testing.assert_allclose(cost[same], from_guess.cost[same], rtol=SAME_COST)

    from_ours = program.minima(z, params, y)
    assert from_ours.solved.all()
    np.testing.assert_allclose(cost, from_ours.cost, rtol=SAME_COST)
