"""A problem that all kinds of trouble can happen to, as a matter of its parameters."""

from __future__ import annotations

import casadi as ca
import numpy as np

from warpmpc import OCP, MPCStatus

BATCH = 16
_, _, QP_INFEASIBLE, LINE_SEARCH_FAILED, NON_FINITE = MPCStatus


def gate() -> OCP:
    """An unstable scalar system between walls; every kind of trouble is a matter of parameters.

    `limit` walls of the state, `low` and `high` bounds of the input, `radius` of the inputs whose
    cost is a number.
    """
    x, u = ca.SX.sym("x"), ca.SX.sym("u")
    p = {name: ca.SX.sym(name) for name in ("limit", "low", "high", "radius")}
    ocp = OCP(x, u, p, horizon=3, dt=0.1)
    ocp.set_dynamics(x_next=x + 0.5 * ca.sin(x) + u)
    ocp.add_cost(x**2 + u**2 + 1e-3 * ca.sqrt(p["radius"] - u**2))
    ocp.add_cost(5 * x**2, at="terminal")
    ocp.subject_to(p["low"], u, p["high"], name="input")
    ocp.subject_to(-p["limit"], x, p["limit"], at="all", name="walls")
    for name, value in (("limit", 2.0), ("low", -1.0), ("high", 1.0), ("radius", 100.0)):
        ocp.set_default(name, value)
    return ocp


def healthy(seed=0):
    """Starts and parameters that have solutions."""
    rng = np.random.default_rng(seed)
    x0 = rng.uniform(-1.5, 1.5, (BATCH, 1))
    params = {"limit": 2.0, "low": -1.0, "high": 1.0, "radius": 100.0}
    return x0, {name: np.full((BATCH, 1), value) for name, value in params.items()}


# Changes of one instance, and what becomes of it.
TROUBLES = {
    "outside the walls": ({"x0": 2.5}, QP_INFEASIBLE),
    "pushed through the walls": ({"x0": 1.9, "high": -0.05, "low": -0.1}, QP_INFEASIBLE),
    "crossed bounds": ({"low": 0.5, "high": -0.5}, QP_INFEASIBLE),
    "cost is NaN nearby": ({"x0": 1.0, "radius": 1e-12}, LINE_SEARCH_FAILED),
    "x0 NaN": ({"x0": np.nan}, NON_FINITE),
    "x0 infinite": ({"x0": np.inf}, NON_FINITE),
    "parameter NaN": ({"radius": np.nan}, NON_FINITE),
    "cost is infinite": ({"radius": np.inf}, LINE_SEARCH_FAILED),
    "cost is NaN": ({"radius": -1.0}, NON_FINITE),
}


def with_troubles(where):
    """Healthy instances but for the troubles at some positions."""
    x0, params = healthy()
    for name, row in where.items():
        for key, value in TROUBLES[name][0].items():
            (x0 if key == "x0" else params[key])[row] = value
    return x0, params


def in_order():
    """All troubles, then healthy instances."""
    return with_troubles({name: row for row, name in enumerate(TROUBLES)})


def troubled(first):
    """A trouble at every second position, as many as there is room for, and where they are."""
    where = {name: first + 2 * i for i, name in enumerate(list(TROUBLES)[: BATCH // 2])}
    return *with_troubles(where), where
