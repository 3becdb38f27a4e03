"""Polished QPs in an SQP iteration: the step is that of the exact QP."""

from dataclasses import replace

import numpy as np
from mpc_cases import pendulum
from sqp_cases import FIXED

from warpmpc import ADMMSettings, MPCSolver

LOOSE = ADMMSettings(eps_abs=1e-3, eps_rel=1e-3)
TIGHT = ADMMSettings(eps_abs=1e-10, eps_rel=1e-10, max_iter=20_000)


def test_polished_steps_are_exact():
    start = np.random.default_rng(0).uniform(-0.4, 0.4, (8, 2))
    found = {}
    for name, qp in (("loose", LOOSE), ("polished", replace(LOOSE, polish=True)), ("tight", TIGHT)):
        settings = replace(FIXED, max_iter=1, qp=qp)
        solver = MPCSolver(pendulum(3), settings, "float64", "dense")
        found[name] = np.asarray(solver.solve(start).z)
    off = {name: np.abs(z - found["tight"]).max(axis=1) for name, z in found.items()}
    assert np.median(off["polished"]) < 1e-2 * np.median(off["loose"])
    assert np.median(off["polished"]) < 1e-7
