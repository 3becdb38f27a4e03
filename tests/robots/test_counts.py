"""Programs stay short: operations of straight-line programs, as CasADi counts its instructions."""

from __future__ import annotations

import casadi as ca
import pytest
from robot_models import MODELS

from warpmpc.robots import load

LIMITS = {
    ("arm", "inverse"): 1_100,
    ("arm", "forward"): 2_600,
    ("humanoid", "inverse"): 6_500,
    ("humanoid", "forward"): 18_600,
    ("humanoid", "derivatives"): 94_000,
}


def instructions(name: str, what: str) -> int:
    robot = load(MODELS[name])
    (q, v), a = robot.symbols(), ca.SX.sym("a", robot.nv)
    if what == "forward":
        return ca.Function("f", [q, v, a], [robot.forward_dynamics(q, v, a)]).n_instructions()
    torques = robot.inverse_dynamics(q, v, a)
    if what == "derivatives":
        torques = ca.jacobian(torques, ca.vertcat(q, v, a))
    return ca.Function("f", [q, v, a], [torques]).n_instructions()


@pytest.mark.parametrize(("name", "what"), LIMITS)
def test_instructions(name, what):
    assert instructions(name, what) <= LIMITS[name, what]


def test_branches_do_not_couple():
    robot = load(MODELS["humanoid"])
    q, _ = robot.symbols()
    mass = robot.mass_matrix(q)
    legs = [next(j.v.start for j in robot.joints if j.name == f"{side}_knee") for side in "lr"]
    assert not mass.sparsity().has_nz(*legs)
    assert mass.sparsity().has_nz(legs[0], 0)
