"""Kinds of rows: what bounds determine for every instance, and what they do not."""

import casadi as ca
import numpy as np
import pytest

from warpmpc import OCP
from warpmpc.symbolic.derivatives.stage_model import RowKind, row_kinds

INF = np.inf
# Lower and upper bound as functions of a parameter, and the kind.
BOUNDS = {
    "equal constants": (lambda p: (1.0, 1.0), RowKind.EQUALITY),
    "equal parameters": (lambda p: (2 * p, 2 * p), RowKind.EQUALITY),
    "constants": (lambda p: (-1.0, 1.0), RowKind.BOTH),
    "almost equal": (lambda p: (0.0, 1e-5), RowKind.UNKNOWN),
    "parameters": (lambda p: (-p, p), RowKind.UNKNOWN),
    "lower constant": (lambda p: (-1.0, INF), RowKind.LOWER),
    "lower parameter": (lambda p: (p, INF), RowKind.LOWER),
    "upper parameter": (lambda p: (-INF, p), RowKind.UPPER),
    "one parameter": (lambda p: (0.0, p), RowKind.UNKNOWN),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_kinds(case):
    bounds, kind = BOUNDS[case]
    x, u, p = ca.SX.sym("x"), ca.SX.sym("u"), ca.SX.sym("p")
    ocp = OCP(x, u, p, horizon=3, dt=0.1)
    ocp.set_dynamics(u)
    ocp.add_cost(x**2 + u**2)
    lower, upper = bounds(p)
    ocp.subject_to(lower, u + x, upper, name="row")
    problem = ocp.problem()
    kinds = row_kinds(problem, 1e-4)
    assert len(kinds) == problem.n_cons
    # One row per interval of this kind; dynamics and initial state are equalities.
    others = [k for k in kinds if k is not kind]
    if kind is RowKind.EQUALITY:
        assert others == []
    else:
        assert len(kinds) - len(others) == 3
        assert set(others) == {RowKind.EQUALITY}
