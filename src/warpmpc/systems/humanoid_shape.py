"""A problem as large as whole-body MPC of a humanoid, to verify and time what large stages need.

Produces: `build`, an `MPCProblem` with the variables, rows, couplings and weights of PROBLEMS.md,
section 5 (28 nodes, 60 variables, 114 rows and 1123 Jacobian entries at nodes 2 to 26); `sample`,
`settings` and `nominal` beside it.  Synthetic is the robot, whose links are points
(`humanoid_tree`), so that its stage functions are as long as those of rigid bodies; joints have no
friction, intervals are equal, and references and weights are constants.

Nodes 0 and 1 have torques and all equations of motion; later ones have forces alone, which must
carry the base.  What follows a solve is the predicted next node, ``solution.x[..., 1, :]``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.mpc.settings import SQPSettings
from warpmpc.problem.evaluation import initial_guess
from warpmpc.problem.expressions import ExpressionLike, sized_column
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.stage import Stage
from warpmpc.systems.base import benchmark_settings, generator
from warpmpc.systems.humanoid_tree import (
    GRAVITY,
    MASS,
    N_JOINTS,
    N_Q,
    Contact,
    Motion,
    inverse_dynamics,
    motion,
)

NODES, DT = 28, 0.03
N_X, N_FORCE = 2 * N_Q, 12
FRICTION, FORCE_SCALE = 0.7, 0.005
STANCE_FORCE = MASS * GRAVITY / 2  # vertical reference of each contact that carries [N]
_LEG_HOME = (0.0, 0.0, -0.724757, 1.412282, -0.68752)
_ARMS_HOME = (0.0, -0.1, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0)
HOME = np.array([0, 0, 0.61, 0, 0, 0, *_LEG_HOME, *_LEG_HOME, *_ARMS_HOME])

# Link and point in its frame; R and L for right and left.
HEEL, TOE = (-0.05, 0.0, -0.041), (0.1, 0.0, -0.041)
POINTS: dict[str, tuple[int, tuple[float, float, float]]] = {
    f"{side}{name}": (first + link, (x, sign * y, z))
    for side, leg, arm, sign in (("R", 0, 10, -1.0), ("L", 5, 14, 1.0))
    for name, first, link, (x, y, z) in (
        ("hip", leg, 2, (0.0, 0.04, -0.05)),
        ("knee", leg, 3, (0.0, 0.0, 0.0)),
        ("shank", leg, 3, (0.0, 0.0, -0.13925)),
        ("ankle", leg, 4, (0.0, 0.0, 0.0)),
        ("heel", leg, 4, HEEL),
        ("toe", leg, 4, TOE),
        ("hand", arm, 3, (0.0, 0.0, -0.26)),
    )
}
CONTACTS = ("Rheel", "Lheel", "Rtoe", "Ltoe")
_PAIRS = """
    Rankle-Lankle Rshank-Lshank Rknee-Lknee Rankle-Lshank Lankle-Rshank Rshank-Lknee Lshank-Rknee
    Rtoe-Lankle Rtoe-Lshank Ltoe-Rankle Ltoe-Rshank Rheel-Lankle Rheel-Lshank Lheel-Rankle
    Lheel-Rshank Lheel-Rtoe Rheel-Ltoe Rhip-Rhand Lhip-Lhand
"""
PAIRS = [tuple(pair.split("-")) for pair in _PAIRS.split()]
CLEARANCE = 0.12  # of the centers of two spheres [m]

_LEG_LOWER, _LEG_UPPER = (-30, -60, -120, 10, -80), (30, 60, 60, 180, 80)
LOWER = np.radians([*_LEG_LOWER, *_LEG_LOWER, -90, -90, -90, -130, -90, -2.5, -45, -130])
UPPER = np.radians([*_LEG_UPPER, *_LEG_UPPER, 80, 2.5, 45, 0, 80, 90, 90, 0])
RATES = np.array([50.0] * 10 + [25.0] * 8)
YAW_DIFFERENCE = np.radians(45)
TORQUES = np.array([13.998, 25.998, 72, 195.996, 51.996] * 2 + [13.998, 13.998, 13.998, 20.997] * 2)
_LEG_VOLTAGE, _ARM_VOLTAGE = [78.261, 78.261, 125, 406.522, 156.522], [78.261] * 3 + [117.391]
VOLTAGE = np.array(_LEG_VOLTAGE * 2 + _ARM_VOLTAGE * 2)  # torque at standstill [N m]
_LEG_SLOPE, _ARM_SLOPE = [1.6306, 1.6306, 3.20625, 19.3473, 6.5223], [1.6306] * 3 + [3.6688]
SLOPE = np.array(_LEG_SLOPE * 2 + _ARM_SLOPE * 2)  # what a rate takes of it

Q_WEIGHT = np.array([0, 0, 8000, 300, 600, 300, *[20, 20, 0.05, 0.05, 0.05] * 2, *[100] * 8])
DQ_WEIGHT = np.array(
    [100, 100, 100, 800, 800, 100, *[5, 5, 0.12, 0.12, 0.12] * 2, *[0.4, 0.4, 0.4, 0.3] * 2]
)
DDQ_WEIGHT = np.array([0.001] * 10 + [0.002] * 8)
FORCE_WEIGHT, TORQUE_WEIGHT = 0.005, np.array([0.5, 0.5, 0.01, 0.01, 0.01] * 2 + [0.5] * 8)

# A gait: both feet for 0.01 s, right foot in the air for 0.34 s, both, left foot.
PERIOD, SWING, DOUBLE, LIFT, DEADBAND = 0.7, 0.34, 0.01, 0.05, 0.007


@dataclass(frozen=True, eq=False)
class _Node:
    """Symbols of a node; torques are empty where it has none."""

    q: ca.SX
    dq: ca.SX
    torque: ca.SX
    force: ca.SX
    gamma: ca.SX
    height: ca.SX

    @property
    def z(self) -> ca.SX:
        return ca.vertcat(self.q, self.dq, self.torque, self.force)

    @property
    def p(self) -> ca.SX:
        return ca.vertcat(self.gamma, self.height)

    @property
    def forces(self) -> list[ca.SX]:
        return ca.vertsplit(self.force, 3)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Constraint rows with their bounds."""

    g: ca.SX
    lower: ca.SX
    upper: ca.SX

    @classmethod
    def between(cls, lower: ExpressionLike, g: ca.SX, upper: ExpressionLike) -> _Rows:
        bounds = [sized_column(bound, g.numel(), "bound", "g") for bound in (lower, upper)]
        return cls(g, *bounds)

    @classmethod
    def zero(cls, g: ca.SX) -> _Rows:
        return cls.between(0.0, g, 0.0)


def _node(k: int, last: int) -> _Node:
    """Symbols of node k."""
    sizes = {"q": N_Q, "dq": N_Q, "torque": N_JOINTS if k < 2 else 0}
    sizes |= {"force": N_FORCE if k < last else 0, "gamma": 4, "height": 4}
    return _Node(**{name: ca.SX.sym(name, size) for name, size in sizes.items()})


def _integrator(here: _Node, after: _Node) -> ca.SX:
    """Zero if the next positions follow from the mean of the rates."""
    moved = DT / 2 * (here.dq + after.dq)
    R = motion(here.q, here.dq).R
    turned = R @ moved[:3]
    sp, cp, sy, cy = (f(here.q[i]) for i in (4, 5) for f in (ca.sin, ca.cos))
    roll = (cy * turned[0] + sy * turned[1]) / cp
    angles = ca.vertcat(roll, cy * turned[1] - sy * turned[0], sp * roll + turned[2])
    return after.q - here.q - ca.vertcat(R @ moved[3:6], angles, moved[6:])


def _dynamics(here: _Node, after: _Node, moving: Motion) -> ca.SX:
    """Zero if forces carry the base, and torques the joints where there are torques."""
    contacts = [
        Contact(*POINTS[name], force) for name, force in zip(CONTACTS, here.forces, strict=True)
    ]
    base, torques = inverse_dynamics(moving, here.dq, (after.dq - here.dq) / DT, contacts)
    if here.torque.is_empty():
        return base
    return ca.vertcat(base, torques - here.torque)


def _kinematics(here: _Node, moving: Motion) -> list[_Rows]:
    """Limits of joints, distances, heights and velocities of the feet: 68 rows."""
    world = {name: moving.point(*POINTS[name]) for name in POINTS}
    distances = ca.vertcat(*(ca.norm_2(world[a] - world[b]) - CLEARANCE for a, b in PAIRS))
    heights = ca.vertcat(*(world[name][2] for name in CONTACTS)) - here.height
    speeds = [moving.point_velocity(*POINTS[name]) for name in CONTACTS]
    slips = [here.gamma * ca.vertcat(*(speed[axis] for speed in speeds)) for axis in (0, 1)]
    return [
        _Rows.between(LOWER, here.q[6:], UPPER),
        _Rows.between(-RATES, here.dq[6:], RATES),
        _Rows.between(0.0, distances, np.inf),
        _Rows.between(-np.inf, here.q[11] - here.q[6], YAW_DIFFERENCE),
        _Rows.zero(heights),
        *(_Rows.zero(slip) for slip in slips),
    ]


def _contact_forces(here: _Node) -> list[_Rows]:
    """Friction cones of feet on the ground, no force on feet in the air: 16 rows."""
    cones = [ca.sqrt(f[0] ** 2 + f[1] ** 2 + 1) - FRICTION * f[2] for f in here.forces]
    absent = [
        (1 - here.gamma) * ca.vertcat(*(force[axis] for force in here.forces)) for axis in range(3)
    ]
    return [
        _Rows.between(-np.inf, FORCE_SCALE * here.gamma * ca.vertcat(*cones), 0.0),
        *(_Rows.zero(rows) for rows in absent),
    ]


def _torque_limits(here: _Node) -> list[_Rows]:
    """Limits of the gears, and of the voltage at the present rates: 36 rows."""
    taken = SLOPE * here.dq[6:]
    return [
        _Rows.between(-TORQUES, here.torque, TORQUES),
        _Rows.between(-VOLTAGE - taken, here.torque, VOLTAGE - taken),
    ]


def _residuals(here: _Node, after: _Node | None) -> tuple[ca.SX, ca.SX]:
    """Deviations from the references, and their weights."""
    parts = [(here.q - HOME, Q_WEIGHT), (here.dq, DQ_WEIGHT)]
    if after is not None:
        parts.append(((after.dq - here.dq)[6:] / DT, DDQ_WEIGHT))
        parts.append((here.force - _stance(here.gamma), np.full(N_FORCE, FORCE_WEIGHT)))
    # A residual counts half.
    weights = np.concatenate([2 * DT * weight for _, weight in parts])
    return ca.vertcat(*(residual for residual, _ in parts)), ca.SX(weights)


def _stance(gamma: ca.SX) -> ca.SX:
    """Reference of the forces: twice the weight on two feet, as published."""
    return ca.vertcat(*(ca.vertcat(0, 0, STANCE_FORCE * gamma[c]) for c in range(4)))


def _stage(k: int, here: _Node, after: _Node | None, x0: ca.SX) -> Stage:
    moving = motion(here.q, here.dq)
    rows: list[_Rows] = [] if k else [_Rows.zero(ca.vertcat(here.q, here.dq) - x0)]
    if after is not None:
        rows.append(_Rows.zero(_dynamics(here, after, moving)))
        rows.append(_Rows.zero(_integrator(here, after)))
    if k:
        rows += _kinematics(here, moving)
    if after is not None:
        rows += _contact_forces(here)
    if not here.torque.is_empty():
        rows += _torque_limits(here)
    residual, weight = _residuals(here, after)
    if k == 0:
        residual = ca.vertcat(residual, here.torque)
        weight = ca.vertcat(weight, 2 * DT * TORQUE_WEIGHT)
    start = x0[:N_Q] if k == 0 else ca.SX(HOME)
    force = _stance(here.gamma) if after is not None else ca.SX(0, 1)
    return Stage(
        here.z,
        after.z if after is not None else None,
        here.p,
        g=ca.vertcat(*(part.g for part in rows)),
        lower=ca.vertcat(*(part.lower for part in rows)),
        upper=ca.vertcat(*(part.upper for part in rows)),
        residual=residual,
        weight=weight,
        n_x=N_X,
        guess=ca.vertcat(start, ca.SX.zeros(N_Q + here.torque.numel()), force),
    )


def gait(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Which contacts carry, and how high the feet are, ``[nodes, 4]``; walking from time 0."""
    gamma, height = np.ones((nodes, 4)), np.zeros((nodes, 4))
    phase = (DT * np.arange(nodes) + DEADBAND) % PERIOD
    for foot, begin in enumerate((DOUBLE, 2 * DOUBLE + SWING)):
        s = (phase - begin) / SWING
        swings = (s >= 0) & (s < 1)
        for contact in (foot, foot + 2):
            gamma[swings, contact] = 0
            height[swings, contact] = LIFT * 16 * (s * (1 - s))[swings] ** 2
    return gamma, height


def build(nodes: int = NODES) -> MPCProblem:
    """The problem; x0 is q and dq, parameters of the nodes are "gamma" and "height" of contacts."""
    if nodes < 4:
        raise ProblemError(f"The humanoid needs at least 4 nodes, got {nodes}.")
    x0, last = ca.SX.sym("x0", N_X), nodes - 1
    kinds = {k: _node(k, last) for k in (0, 1, 2, last)}
    middle = _node(2, last)  # symbols of a node behind a node of the same kind
    stages: list[Stage] = []
    between: Stage | None = None
    for k in range(nodes):
        here = kinds.get(k, kinds[2])
        if 2 <= k < last - 1:
            between = between or _stage(k, here, middle, x0)
            stages.append(between)
        else:
            after = kinds.get(k + 1, kinds[2]) if k < last else None
            stages.append(_stage(k, here, after, x0))
    sizes = np.array([stage.n_z for stage in stages])
    begin, p_begin = np.cumsum(sizes) - sizes, N_X + 8 * np.arange(nodes)
    gamma, height = gait(nodes)
    return MPCProblem(
        stages,
        x0=x0,
        names={
            "q": _rows(begin, 0, N_Q),
            "dq": _rows(begin, N_Q, N_Q),
            "torque": _rows(begin[:2], N_X, N_JOINTS),
            "force": _rows(begin[:-1] + sizes[:-1], -N_FORCE, N_FORCE),
        },
        param_names={"gamma": _rows(p_begin, 0, 4), "height": _rows(p_begin, 4, 4)},
        defaults={"gamma": gamma, "height": height},
    )


def _rows(begin: np.ndarray, offset: int, size: int) -> np.ndarray:
    return begin[:, None] + offset + np.arange(size)


def sample(batch: int, seed: int | None = None) -> np.ndarray:
    """Standing robots, 5 cm and 0.08 rad about the origin, ``[batch, 48]``; seed `batch`."""
    rng = generator(batch, batch if seed is None else seed)
    x = np.tile(np.concatenate([HOME, np.zeros(N_Q)]), (batch, 1))
    x[:, :2] += rng.uniform(-0.05, 0.05, (batch, 2))
    x[:, 5] += rng.uniform(-0.08, 0.08, batch)
    return x


def settings(admm_iter: int = 25) -> SQPSettings:
    """One SQP iteration per solve, as published; QPs are scaled at the `nominal` point."""
    published = benchmark_settings(1, admm_iter, step_min=0.03, rho_equality=1e3)
    assert published.qp is not None
    return replace(
        published,
        line_search=replace(published.line_search, scale=0.05),
        qp=replace(published.qp, rho=0.02, relaxation=1.4, scaling=2),
    )


def nominal(problem: MPCProblem) -> tuple[np.ndarray, np.ndarray]:
    """A point (z, params) for the scaling: standing at home."""
    params = problem.defaults.copy()
    params[:N_X] = np.concatenate([HOME, np.zeros(N_Q)])
    return initial_guess(problem, params), params
