"""A problem in which every kind of trouble is a matter of parameters, and a batch that has all."""

from __future__ import annotations

import casadi as ca
import numpy as np

from warpmpc import OCP

BATCH = 10


def corridor() -> OCP:
    """A cart between walls at `limit`; the force is between `low` and `high`.

    The cost is a number as long as the squared force is below `radius`.
    """
    x = ca.vertcat(ca.SX.sym("place"), ca.SX.sym("speed"))
    u = ca.SX.sym("force")
    p = {name: ca.SX.sym(name) for name in ("limit", "low", "high", "radius")}
    ocp = OCP(x, u, p, horizon=4, dt=0.5)
    ocp.set_dynamics(x_next=x + 0.5 * ca.vertcat(x[1], u - 0.1 * ca.sin(x[1])))
    ocp.add_cost(ca.sumsqr(x) + u**2 + 1e-3 * ca.sqrt(p["radius"] - u**2))
    ocp.add_cost(5 * ca.sumsqr(x), at="terminal")
    ocp.subject_to(p["low"], u, p["high"], name="motor")
    ocp.subject_to(-p["limit"], x[0], p["limit"], at="all", name="walls")
    for name, value in (("limit", 2.0), ("low", -2.0), ("high", 2.0), ("radius", 100.0)):
        ocp.set_default(name, value)
    return ocp


# Changes of one instance by its index, and a part of what is said about it.
TROUBLES = {
    1: ({"x0": (2.5, 0.0)}, "QP_INFEASIBLE", "walls[0] at node"),
    2: ({"low": 0.5, "high": -0.5}, "QP_INFEASIBLE", "bounds of motor[0] at node 0 cross: 0.5 >"),
    4: ({"x0": (1.0, np.nan)}, "NON_FINITE", "x0[1] is NaN"),
    5: ({"radius": np.nan}, "NON_FINITE", "params['radius'][0] is NaN"),
    6: ({"radius": -1.0}, "NON_FINITE", "the cost of node 0 is nan"),
    7: ({"radius": 1e-12}, "LINE_SEARCH_FAILED", "the cost of node 0 is nan at the full step"),
    8: ({"radius": np.inf}, "LINE_SEARCH_FAILED", "node 0 is inf; infinite: params['radius'][0]"),
}


def troubled() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Starts and parameters of the batch, in float64."""
    x0 = np.random.default_rng(0).uniform(-1.0, 1.0, (BATCH, 2))
    params = {"limit": 2.0, "low": -2.0, "high": 2.0, "radius": 100.0}
    given = {name: np.full((BATCH, 1), value) for name, value in params.items()}
    for b, (changes, _, _) in TROUBLES.items():
        for name, value in changes.items():
            (x0 if name == "x0" else given[name])[b] = value
    return x0, given
