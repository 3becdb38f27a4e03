"""The QP of one instance on the host, against derivatives of the whole problem by CasADi."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
import scipy.sparse as sp
from mpc_cases import WholeProblem, mixed_stages, pendulum

from warpmpc.problem.ocp.ocp import OCP
from warpmpc.symbolic.derivatives.assembly import Assembly, host_qp
from warpmpc.symbolic.derivatives.stage_model import HessianRule, StageModel

PROBLEMS = {"mixed": mixed_stages, "pendulum": lambda: pendulum(5).problem()}


def assembly_of(problem, rule):
    models = [StageModel.build(problem, group.stage, rule) for group in problem.groups]
    return Assembly(problem, models)


def point(problem, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, problem.n_vars), rng.uniform(0.5, 1.5, problem.n_params)


def dense(values, pattern):
    return sp.csc_matrix((values, pattern.row_idx, pattern.col_ptr), pattern.shape).toarray()


@pytest.mark.parametrize("name", PROBLEMS)
def test_whole_problem(name):
    problem = PROBLEMS[name]()
    at, whole = assembly_of(problem, HessianRule("exact", "none")), WholeProblem(problem)
    z, p = point(problem)
    found = host_qp(at, z, p)
    g = whole.value(whole.g, z, p)[:, 0]
    hessian = whole.value(ca.hessian(whole.cost, whole.z)[0], z, p)
    assert np.allclose(dense(found.P, at.P_pattern), np.triu(hessian), atol=1e-12)
    assert found.q == pytest.approx(whole.value(ca.gradient(whole.cost, whole.z), z, p)[:, 0])
    jacobian = whole.value(ca.jacobian(whole.g, whole.z), z, p)
    assert np.allclose(dense(found.A, at.A_pattern), jacobian, atol=1e-14)
    assert found.lower == pytest.approx(whole.value(whole.lower, z, p)[:, 0] - g)
    assert found.upper == pytest.approx(whole.value(whole.upper, z, p)[:, 0] - g)
    assert found.is_known


def indefinite():
    """Costs whose Hessians have negative eigenvalues, also between neighbours."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = OCP(x, u, horizon=3, dt=0.1)
    ocp.set_dynamics(x_next=ca.vertcat(x[0] + x[1], x[1] + u))
    ocp.add_cost(ca.sin(x[0]) * x[1] - x[0] ** 2 + u * x[1] ** 2)
    return ocp.problem()


def test_projected_blocks():
    """The nearest semidefinite matrices, stage by stage."""
    problem = indefinite()
    z, p = point(problem)
    raw, projected = (
        host_qp(assembly_of(problem, HessianRule("exact", rule)), z, p)
        for rule in ("none", "project")
    )
    at, convex = (assembly_of(problem, HessianRule("exact", r)) for r in ("none", "project"))
    before, after = dense(raw.P, at.P_pattern), dense(projected.P, convex.P_pattern)
    before, after = (upper + np.triu(upper, 1).T for upper in (before, after))
    assert np.linalg.eigvalsh(before)[0] < -0.1
    wanted = np.zeros_like(before)
    for k in range(problem.horizon + 1):
        rows = np.arange(problem.z_offset[k], problem.z_offset[k + 1])
        values, vectors = np.linalg.eigh(before[np.ix_(rows, rows)])
        wanted[np.ix_(rows, rows)] = (vectors * np.maximum(values, 0)) @ vectors.T
    assert np.allclose(after, wanted, atol=1e-12)


def test_unknown_numbers():
    problem = pendulum(3).problem()
    z, p = point(problem)
    at = assembly_of(problem, HessianRule())
    p[-1] = np.nan
    assert not host_qp(at, z, p).is_known
