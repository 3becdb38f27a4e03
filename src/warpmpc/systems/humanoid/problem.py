"""The optimal control problem of the humanoid: 28 nodes, 1704 variables, 3234 rows.

Nodes 0 and 1 have torques and all equations of motion; later ones have contact forces alone, which
must carry the base.  The stage of a node is the same for all nodes of its kind.

x0 is the measured q and dq and the torques that were applied last, so that ``x`` of a closed loop
is all that the next solve needs.  The input of the problem is what a robot gets from a solve:
torques of the first two nodes, and the state of the second one.
"""

from __future__ import annotations

from dataclasses import dataclass

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem.expressions import ExpressionLike, sized_column
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.stage import Stage
from warpmpc.systems.humanoid import gait, tables
from warpmpc.systems.humanoid.model import Motion, friction, slope
from warpmpc.systems.humanoid.tables import (
    CONTACTS,
    HOME,
    N_FORCE,
    N_JOINTS,
    N_Q,
    N_X,
    PAIRS,
)

LEAST_HORIZON = 3
N_STATE = N_X + N_JOINTS  # with the torques that were applied last
WEIGHTS = {
    "q_weight": tables.Q_WEIGHT,
    "dq_weight": tables.DQ_WEIGHT,
    "ddq_weight": tables.DDQ_WEIGHT,
    "force_weight": tables.FORCE_WEIGHT,
    "torque_weight": tables.TORQUE_WEIGHT,
}
_CLEARANCE = 2 * tables.RADIUS


@dataclass(frozen=True, eq=False)
class Node:
    """Symbols of a node; torques and forces are empty where it has none."""

    q: ca.SX
    dq: ca.SX
    torque: ca.SX
    force: ca.SX
    gamma: ca.SX
    height: ca.SX
    q_ref: ca.SX
    dq_ref: ca.SX
    force_ref: ca.SX
    dt: ca.SX

    @property
    def z(self) -> ca.SX:
        """Variables."""
        return ca.vertcat(self.q, self.dq, self.torque, self.force)

    @property
    def p(self) -> ca.SX:
        """Parameters."""
        own = (self.gamma, self.height, self.q_ref, self.dq_ref, self.force_ref, self.dt)
        return ca.vertcat(*own)

    @property
    def forces(self) -> dict[str, ca.SX]:
        """Force on each contact."""
        return dict(zip(CONTACTS, ca.vertsplit(self.force, 3), strict=True))


@dataclass(frozen=True, eq=False)
class Rows:
    """Constraint rows with their bounds and names."""

    name: str
    g: ca.SX
    lower: ca.SX
    upper: ca.SX

    @classmethod
    def between(cls, name: str, lower: ExpressionLike, g: ca.SX, upper: ExpressionLike) -> Rows:
        """Rows that lie between bounds."""
        bounds = [sized_column(bound, g.numel(), "bound", "g") for bound in (lower, upper)]
        return cls(name, g, *bounds)

    @classmethod
    def zero(cls, name: str, g: ca.SX) -> Rows:
        """Rows that vanish."""
        return cls.between(name, 0.0, g, 0.0)

    @property
    def names(self) -> list[str]:
        """Name of each row."""
        return [f"{self.name}[{i}]" for i in range(self.g.numel())]


@dataclass(frozen=True, eq=False)
class Common:
    """Symbols that all stages share: x0 and the weights of the cost."""

    x0: ca.SX
    weights: dict[str, ca.SX]
    horizon: int

    @classmethod
    def new(cls, horizon: int) -> Common:
        """New symbols."""
        weights = {name: ca.SX.sym(name, value.size) for name, value in WEIGHTS.items()}
        return cls(ca.SX.sym("x0", N_STATE), weights, horizon)


def build(horizon: int = gait.NODES - 1) -> MPCProblem:
    """The problem; references are parameters of the nodes, weights of the whole problem.

    Args:
        horizon: Number of intervals, at least 3.
    """
    if horizon < LEAST_HORIZON:
        raise ProblemError(
            f"The humanoid needs a horizon of at least {LEAST_HORIZON} intervals, got {horizon}."
        )
    common = Common.new(horizon)
    kinds = {k: _node(k, horizon) for k in (0, 1, 2, horizon)}
    middle = _node(2, horizon)  # symbols of a node behind a node of the same kind
    between = _stage(2, kinds[2], middle, common)
    stages: list[Stage] = []
    for k in range(horizon + 1):
        here = kinds.get(k, kinds[2])
        after = kinds.get(k + 1, kinds[2]) if k < horizon else None
        repeated = 2 <= k < horizon - 1
        stages.append(between if repeated else _stage(k, here, after, common))
    return _problem(stages, common)


def _problem(stages: list[Stage], common: Common) -> MPCProblem:
    sizes = np.array([stage.n_z for stage in stages])
    begin, horizon = np.cumsum(sizes) - sizes, common.horizon
    p_sizes = np.array([stage.p.numel() for stage in stages])
    total = N_STATE + sum(value.size for value in WEIGHTS.values())
    p_begin = total + np.cumsum(p_sizes) - p_sizes
    param_names = _weight_rows() | _reference_rows(p_begin, horizon)
    begins = {"q": (begin, 0, N_Q), "dq": (begin, N_Q, N_Q)}
    begins["torque"] = (begin[:2], N_X, N_JOINTS)
    begins["force"] = (begin[:-1] + sizes[:-1], -N_FORCE, N_FORCE)
    tables_of = {name: _table(*place) for name, place in begins.items()}
    # What a robot gets: torques of nodes 0 and 1, and the state of node 1.
    given = [*tables_of["torque"], tables_of["q"][1], tables_of["dq"][1]]
    tables_of["u"] = np.concatenate(given)[None]
    motion = gait.walking(np, 0.0, horizon + 1)
    return MPCProblem(
        stages,
        x0=common.x0,
        shared=ca.vertcat(*common.weights.values()),
        names=tables_of,
        param_names=param_names,
        defaults=WEIGHTS | gait.references(np, HOME, motion),
    )


def _table(begin: np.ndarray, offset: int, size: int) -> np.ndarray:
    return begin[:, None] + offset + np.arange(size)


def _weight_rows() -> dict[str, np.ndarray]:
    rows, begin = {}, N_STATE
    for name, value in WEIGHTS.items():
        rows[name] = begin + np.arange(value.size)
        begin += value.size
    return rows


def _reference_rows(p_begin: np.ndarray, horizon: int) -> dict[str, np.ndarray]:
    rows, offset = {}, np.zeros(horizon + 1, dtype=int)
    for name, size in _PARAMETERS.items():
        there = np.arange(horizon + (name != "force_ref"))
        rows[name] = (p_begin + offset)[there, None] + np.arange(size)
        offset[there] += size
    return rows


_PARAMETERS = {
    "gamma": 4, "height": 4, "q_ref": N_Q, "dq_ref": N_Q, "force_ref": N_FORCE, "dt": 1
}  # fmt: skip


def _node(k: int, horizon: int) -> Node:
    """Symbols of node k."""
    sizes = {"q": N_Q, "dq": N_Q, "torque": N_JOINTS if k < 2 else 0}
    sizes |= {"force": N_FORCE if k < horizon else 0} | _PARAMETERS
    sizes["force_ref"] = sizes["force"]
    return Node(**{name: ca.SX.sym(name, size) for name, size in sizes.items()})


def _stage(k: int, here: Node, after: Node | None, common: Common) -> Stage:
    moving = Motion(here.q, here.dq)
    rows: list[Rows] = []
    if k == 0:
        rows.append(Rows.zero("measured", ca.vertcat(here.q, here.dq) - common.x0[:N_X]))
    if after is not None:
        rows += _dynamics(here, after, moving)
    if k:
        rows += _kinematics(here, moving)
    if after is not None:
        rows += _contact_forces(here)
    if not here.torque.is_empty():
        rows += _torque_limits(here)
    residual, weight = _cost(k, here, after, common)
    tau = ca.SX.sym("tau")
    return Stage(
        here.z,
        None if after is None else after.z,
        here.p,
        g=ca.cse(ca.vertcat(*(part.g for part in rows))),
        lower=ca.vertcat(*(part.lower for part in rows)),
        upper=ca.vertcat(*(part.upper for part in rows)),
        residual=residual,
        weight=weight,
        row_names=[name for part in rows for name in part.names],
        n_x=N_X,
        tau=tau,
        guess=_guess(k, tau, here, common),
    )


def _dynamics(here: Node, after: Node, moving: Motion) -> list[Rows]:
    """Forces carry the base, torques the joints where there are torques; rates are integrated."""
    ddq = (after.dq - here.dq) / here.dt
    needed = moving.needed(ddq, here.forces)
    if not here.torque.is_empty():
        joints = needed[6:] + friction(here.dq) - here.torque
        needed = ca.vertcat(needed[:6], joints)
    else:
        needed = needed[:6]
    moved = moving.moved(here.dt / 2 * (here.dq + after.dq))
    return [Rows.zero("dynamics", needed), Rows.zero("integration", after.q - moved)]


def _kinematics(here: Node, moving: Motion) -> list[Rows]:
    """Limits of joints, distances, heights and velocities of the feet: 68 rows."""
    distances = [
        ca.norm_2(moving.at_base(a) - moving.at_base(b)) - _CLEARANCE for a, b in PAIRS
    ]  # fmt: skip
    heights = ca.vertcat(*(moving.height(name) for name in CONTACTS)) - here.height
    speeds = [moving.velocity(name) for name in CONTACTS]
    slips = [here.gamma * ca.vertcat(*(speed[axis] for speed in speeds)) for axis in (0, 1)]
    return [
        Rows.between("position", tables.LOWER, here.q[6:], tables.UPPER),
        Rows.between("rate", -tables.RATES, here.dq[6:], tables.RATES),
        Rows.between("distance", 0.0, ca.vertcat(*distances), np.inf),
        Rows.between("hips", -np.inf, here.q[11] - here.q[6], tables.YAW_DIFFERENCE),
        Rows.zero("foot height", heights),
        *(Rows.zero(f"slip {axis}", slip) for axis, slip in zip("xy", slips, strict=True)),
    ]


def _contact_forces(here: Node) -> list[Rows]:
    """Friction cones of feet on the ground, no force on feet in the air: 16 rows."""
    forces = list(here.forces.values())
    cones = [ca.sqrt(f[0] ** 2 + f[1] ** 2 + 1) - tables.CONE * f[2] for f in forces]
    cone = tables.CONE_SCALE * here.gamma * ca.vertcat(*cones)
    absent = [(1 - here.gamma) * ca.vertcat(*(f[axis] for f in forces)) for axis in range(3)]
    return [
        Rows.between("friction cone", -np.inf, cone, 0.0),
        *(Rows.zero(f"no force {axis}", rows) for axis, rows in zip("xyz", absent, strict=True)),
    ]


def _torque_limits(here: Node) -> list[Rows]:
    """Limits of the motors, and of the voltage at the present rates: 36 rows."""
    taken, torque = slope(here.dq), here.torque
    return [
        Rows.between("torque", -tables.TORQUES, torque, tables.TORQUES),
        Rows.between("voltage", -tables.VOLTAGE - taken, torque, tables.VOLTAGE - taken),
    ]


def _cost(k: int, here: Node, after: Node | None, common: Common) -> tuple[ca.SX, ca.SX]:
    """Deviations from the references, and their weights."""
    weights = common.weights
    parts = [(here.q - here.q_ref, weights["q_weight"])]
    parts.append((here.dq - here.dq_ref, weights["dq_weight"]))
    if after is not None:
        parts.append(((after.dq - here.dq)[6:] / here.dt, weights["ddq_weight"]))
        parts.append((here.force - here.force_ref, weights["force_weight"]))
    if k == 0:
        parts.append((common.x0[N_X:] - here.torque, weights["torque_weight"]))
    residual = ca.vertcat(*(part for part, _ in parts))
    # A residual counts half.
    return residual, ca.vertcat(*(2 * here.dt * weight for _, weight in parts))


def _guess(k: int, tau: ca.SX, here: Node, common: Common) -> ca.SX:
    """At rest at home, or at the measured place, with the forces of an older gait.

    Nodes of a kind share a stage, so that the number of a node comes from tau.
    """
    start = common.x0[:N_Q] if k == 0 else ca.SX(HOME)
    parts = [start, ca.SX.zeros(N_Q + here.torque.numel())]
    if not here.force.is_empty():
        forces = gait.guess_forces(common.horizon + 1)
        is_node = ca.fabs(tau * common.horizon - np.arange(common.horizon)) < 0.5
        parts.append(ca.sparsify(ca.SX(ca.DM(forces.T))) @ is_node)
    return ca.densify(ca.vertcat(*parts))
