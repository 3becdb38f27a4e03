"""Trials of eliminations in float32, against dense NumPy; which order they lead to."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import casadi as ca
import numpy as np
import pytest
import scipy.sparse as sp
from mpc_cases import WholeProblem
from scipy.sparse.csgraph import connected_components

from warpmpc import OCP, ADMMSettings, MPCSolver, SQPSettings
from warpmpc.symbolic import stage_elimination as stage_program
from warpmpc.symbolic.derivatives import representative_kkt
from warpmpc.symbolic.derivatives.assembly import HostQP
from warpmpc.symbolic.derivatives.representative_kkt import least_rho, representative_system
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.ordering import safe_stagewise
from warpmpc.symbolic.pattern import SparsePattern, build_kkt
from warpmpc.symbolic.stage_elimination import (
    build_stage_elimination,
    build_two_sided_elimination,
    one_sided_orders,
    two_sided_orders,
)
from warpmpc.systems import car, cartpole, linear, pendulum, quadrotor, quadrotor_obstacles

SYSTEMS = {m.__name__.rsplit(".", 1)[-1]: m for m in (pendulum, car, linear, cartpole)}
SYSTEMS |= {"quadrotor": quadrotor, "obstacles": quadrotor_obstacles}


def pattern(dense):
    return SparsePattern.from_scipy(sp.csc_matrix(dense))


def small(P_diagonal, rho=0.1, seed=0):
    """Three stages of two variables with one row between neighbours, with its system."""
    rng = np.random.default_rng(seed)
    A = np.zeros((2, 6))
    A[0, :4], A[1, 2:] = rng.uniform(1, 2, 4), rng.uniform(1, 2, 4)
    kkt = build_kkt(pattern(np.diag(np.ones(6))), pattern(A))
    zero = np.zeros(2)
    qp = HostQP(np.full(6, P_diagonal, dtype=float), np.zeros(6), A.T[A.T != 0], zero, zero + 1)
    return kkt, representative_system(kkt, qp, np.full(2, rho), 1e-6), A


def dense_error(system, perm):
    """LDL' without pivoting and both solves in float32, entry by entry."""
    K, n = system.kkt.K_pattern, system.kkt.K_pattern.n_cols
    upper = sp.csc_matrix((system.values, K.row_idx, K.col_ptr), K.shape).toarray()
    whole = upper + np.triu(upper, 1).T
    work = whole[np.ix_(perm, perm)].astype(np.float32)
    L, D = np.eye(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    for j in range(n):
        D[j] = work[j, j]
        L[j + 1 :, j] = work[j + 1 :, j] / D[j]
        work[j + 1 :, j + 1 :] -= np.outer(L[j + 1 :, j], work[j + 1 :, j])
    x = system._sides[perm].astype(np.float32)
    for j in range(n):
        x[j + 1 :] -= L[j + 1 :, [j]] * x[[j]]
    x /= D[:, None]
    for j in range(n - 1, -1, -1):
        x[j] -= L[j + 1 :, j] @ x[j + 1 :]
    found = np.empty_like(x)
    found[perm] = x
    wanted = np.linalg.solve(whole, system._sides)
    error, size = (np.abs(a)[: system.kkt.n_vars].max(axis=1) for a in (found - wanted, wanted))
    return (error / size).mean()


class TestError:
    def test_typical_values(self):
        kkt, system, A = small(0.5)
        K = kkt.K_pattern
        dense = sp.csc_matrix((system.values, K.row_idx, K.col_ptr), K.shape).toarray()
        wanted = np.block([[0.500001 * np.eye(6), A.T], [np.zeros((2, 6)), -np.eye(2) / 0.1]])
        np.testing.assert_allclose(dense, wanted)

    def test_weak_variable_as_first_pivot(self):
        """Digits go where nothing but sigma is on the diagonal, and none after its row."""
        kkt, system, _ = small([0, 1, 1, 1, 1, 1])
        orders = np.arange(8), np.roll(np.arange(8), 2)  # variables first, rows first
        errors = [system.error(eliminate(kkt.K_pattern, perm)) for perm in orders]
        assert errors[0] > 1e-3
        assert errors[1] < 1e-6
        for error, perm in zip(errors, orders, strict=True):
            wanted = dense_error(system, perm)
            assert wanted / 8 < error < 8 * wanted

    def test_dense_oracle(self):
        """Also of two chains; sums are others, so the errors are only of the same size."""
        solver = solver_of("pendulum")
        system, kkt = solver.qp.structure.representative, solver.qp.structure.kkt
        for order in (*one_sided_orders(stages(solver)), *two_sided_orders(kkt, stages(solver))):
            perm = safe_stagewise(kkt, order.positions, solver.qp.structure.light_variables[:0])
            wanted = dense_error(system, perm)
            assert wanted / 8 < system.error(eliminate(kkt.K_pattern, perm)) < 8 * wanted

    def test_nothing_known(self, monkeypatch):
        kkt, system, _ = small(0.5)
        elimination = eliminate(kkt.K_pattern, np.arange(8))
        monkeypatch.setattr(representative_kkt, "_LARGEST_BAND", 8)
        assert system.error(elimination) == np.inf
        monkeypatch.undo()
        singular = representative_kkt.RepresentativeSystem(kkt, np.zeros_like(system.values))
        assert singular.error(elimination) == np.inf


@cache
def solver_of(name):
    system = SYSTEMS[name].make()
    return MPCSolver(system.problem, system.settings)


def stages(solver):
    return np.concatenate([solver.problem.var_stage, solver.problem.con_stage])


# As where all light variables wait; but for the obstacles: 10757 then, with an error of 2e-2.
FILL = {"pendulum": 480, "car": 1712, "linear": 11242}
FILL |= {"cartpole": 3585, "quadrotor": 9074, "obstacles": 11559}


class TestOrders:
    @pytest.mark.parametrize("name", SYSTEMS)
    def test_systems(self, name):
        """Accurate with one side and with two, and no more fill than that needs."""
        solver = solver_of(name)
        system = solver.qp.structure
        program = solver.qp.loop.program
        assert program.n_L == FILL[name]
        assert system.representative.error(program.elimination) < 1e-5
        two = build_two_sided_elimination(
            system.kkt, stages(solver), system.light_variables, system.representative
        )
        assert system.representative.error(two.elimination) < 1e-5
        assert two.n_L <= program.n_L

    def test_cartpole_needs_its_weak_variables(self):
        """As many entries of L without them, and two digits less."""
        solver = solver_of("cartpole")
        kkt, light = solver.qp.structure.kkt, solver.qp.structure.light_variables
        without = build_stage_elimination(kkt, stages(solver), light[:0])
        assert solver.qp.structure.representative.error(without.elimination) > 5e-5

    def test_obstacles_need_fewer(self):
        """Half of the light variables; that all of them wait costs digits, or fill."""
        solver = solver_of("obstacles")
        system = solver.qp.structure
        assert [
            light.size for light in (system.light_variables, *system.representative.fewer_light)
        ] == [567, 280, 0]
        all_wait = build_stage_elimination(system.kkt, stages(solver), system.light_variables)
        assert all_wait.n_L == 10757
        assert system.representative.error(all_wait.elimination) > 1e-3
        descending = one_sided_orders(stages(solver))[1].positions
        accurate = eliminate(
            system.kkt.K_pattern, safe_stagewise(system.kkt, descending, system.light_variables)
        )
        assert system.representative.error(accurate) < 1e-5
        assert accurate.nnz_L == 15751

    def test_least_error_where_none_is_small(self, monkeypatch):
        solver = solver_of("obstacles")
        system = solver.qp.structure
        args = (system.kkt, stages(solver), system.light_variables, system.representative)
        monkeypatch.setattr(stage_program, "_LARGEST_ERROR", 0.0)
        best = system.representative.error(build_stage_elimination(*args).elimination)
        monkeypatch.setattr(stage_program, "_LARGEST_ERROR", np.inf)
        least = build_stage_elimination(*args)
        assert least.n_L == 9565
        assert best < 2e-2 * system.representative.error(least.elimination)

    def test_safe_order_where_trials_fail(self, monkeypatch):
        """All light variables wait, as without values."""
        solver = solver_of("linear")
        system = solver.qp.structure
        monkeypatch.setattr(representative_kkt, "_LARGEST_BAND", 0)
        args = (system.kkt, stages(solver), system.light_variables)
        found = build_stage_elimination(*args, system.representative)
        assert found.n_L == build_stage_elimination(*args).n_L == 11242

    def test_nearly_the_least_error(self, monkeypatch):
        """Half a digit does not justify more fill; a whole one does."""
        solver = solver_of("linear")
        system = solver.qp.structure
        args = (system.kkt, stages(solver), system.light_variables, system.representative)
        errors = {11242: 2e-4, 13862: 1e-4}
        monkeypatch.setattr(
            representative_kkt.RepresentativeSystem, "error", lambda _, e: errors.get(e.nnz_L, 1.0)
        )
        assert build_stage_elimination(*args).n_L == 11242
        errors[11242] = 1e-3
        assert build_stage_elimination(*args).n_L == 13862


def near_the_obstacle(problem):
    """Plan of a car that drives through the obstacle, and multipliers that push it out."""
    z = np.zeros(problem.n_vars)
    px = np.linspace(-12, 0, problem.x_rows.shape[0])
    z[problem.x_rows] = np.stack([px, 0 * px + 0.1, 0 * px + 0.1, 0 * px + 3.0], axis=1)
    y = 10 * np.random.default_rng(0).normal(size=problem.n_cons)
    is_obstacle = np.array([name.startswith("obstacle") for name in problem.row_names])
    inside = np.hypot(px[1:] + 7, 0.1) < 2.1
    y[is_obstacle] = np.where(inside, -50, 0)
    return z, y


def projected_hessian(whole, z, p, y):
    """Blocks of the Lagrangian; variables that it does not couple are projected for themselves."""
    hessian = ca.hessian(whole.cost + ca.dot(ca.DM(y), whole.g), whole.z)[0]
    dense = whole.value(hessian, z, p)
    _, labels = connected_components(sp.csr_matrix(dense), directed=False)
    for label in np.unique(labels):
        members = np.ix_(labels == label, labels == label)
        eigenvalues, vectors = np.linalg.eigh(dense[members])
        dense[members] = (vectors * np.maximum(eigenvalues, 0)) @ vectors.T
    return dense


@pytest.mark.parametrize("scaling", [0, 10])
def test_curvature_that_takes_all_weight(scaling):
    """Positions near the obstacle have no weight of their own; before, two digits were left.

    All instances of the car ended without a finite direction in their second SQP iteration.
    """
    settings = SQPSettings(qp=ADMMSettings(scaling=scaling))
    solver = MPCSolver(car.make().problem, settings)
    problem, system = solver.problem, solver.qp.structure
    (z, y), p = near_the_obstacle(problem), np.nan_to_num(problem.defaults)
    whole = WholeProblem(problem)
    P = projected_hessian(whole, z, p, y)
    assert (P[np.arange(0, 180, 6), np.arange(0, 180, 6)] == 0).sum() > 10
    A = whole.value(ca.jacobian(whole.g, whole.z), z, p)
    at = solver.programs.assembly
    upper, rows = (M[k.row_idx, k.col_idx] for M, k in ((P, at.P_pattern), (A, at.A_pattern)))
    qp = HostQP(upper, z, rows, y, y)
    true = representative_system(system.kkt, qp, least_rho(at, (1.0, 1000.0, 1e-6)), 1e-6)
    two = build_two_sided_elimination(
        system.kkt, stages(solver), system.light_variables, system.representative
    )
    for program in (solver.qp.loop.program, two):
        assert true.error(program.elimination) < 5e-5


FIXED = SQPSettings(mode="fixed", qp=ADMMSettings(check_every=0, adaptive_rho_every=0, scaling=0))


def chain(cost, settings=FIXED, nominal=None):
    """x_next = x + u with bounds of all kinds at the first node; `nominal` is a value of z."""
    x, u, limit = ca.SX.sym("x"), ca.SX.sym("u"), ca.SX.sym("limit")
    ocp = OCP(x, u, {"limit": limit}, horizon=2, dt=0.1)
    ocp.set_dynamics(x_next=x + u)
    ocp.add_cost(cost(x, u))
    ocp.subject_to(-limit, u, limit, name="by_parameter", at=[0])
    ocp.subject_to(-1, u, 1, name="known", at=[0])
    ocp.subject_to(-limit, x + u, limit, name="of_two", at=[0])
    problem = ocp.problem()
    point = None
    if nominal is not None:
        point = np.full(problem.n_vars, nominal), np.ones(problem.n_params)
    return MPCSolver(problem, settings, nominal=point)


class TestTypical:
    def test_rho(self):
        """Rows whose bounds are not known hold nothing if they are simple bounds."""
        solver = chain(lambda x, u: x**2 + u**2)
        found = least_rho(solver.programs.assembly, (0.1, 100.0, 1e-6))
        by_name: dict[str, set[float]] = {}
        for name, rho in zip(solver.problem.row_names, found.tolist(), strict=True):
            by_name.setdefault(name.split("[")[0], set()).add(rho)
        assert by_name.pop("by_parameter") == {1e-6}
        assert by_name.pop("known") == {0.1}
        assert by_name.pop("of_two") == {0.1}
        assert set.union(*by_name.values()) == {100.0}
        system = solver.qp.structure.representative
        np.testing.assert_allclose(system.values[system.kkt.rho_to_K], -1 / found)

    def test_rho_grows_by_adaptation_or_scaling(self):
        """But not that of free rows."""
        fixed = chain(lambda x, u: x**2 + u**2).qp.structure.representative
        for change in ({"adaptive_rho_every": 50}, {"scaling": 10}):
            settings = replace(FIXED, qp=replace(FIXED.qp, **change))
            grown = chain(lambda x, u: x**2 + u**2, settings).qp.structure.representative
            ratio = fixed.values / grown.values
            assert set(np.round(ratio, 9)) == {1.0, 10.0}
            is_grown = np.isin(np.arange(ratio.size), fixed.kkt.rho_to_K) & (fixed.values > -1e6)
            np.testing.assert_allclose(ratio[is_grown], 10)
            np.testing.assert_allclose(ratio[~is_grown], 1)

    @pytest.mark.parametrize("coupled", [0, 1])
    def test_weights_that_may_vanish(self, coupled):
        """They do in every other stage, and with them what couples them; constants stay."""
        solver = chain(lambda x, u: 1 - ca.cos(x) + u**2 + coupled * x * u)
        system = solver.qp.structure.representative
        kkt = system.kkt
        K = sp.csc_matrix((system.values, kkt.K_pattern.row_idx, kkt.K_pattern.col_ptr)).toarray()
        P = K[: kkt.n_vars, : kkt.n_vars] - 1e-6 * np.eye(kkt.n_vars)
        assert solver.problem.var_stage.tolist() == [0, 0, 1, 1, 2]
        certain = 0 if coupled else 2  # a block is projected as a whole
        wanted = np.diag([0, certain, np.cos(0.3), 2, 0])
        wanted[2, 3] = coupled
        np.testing.assert_allclose(P, wanted, atol=1e-12)

    def test_unknown_numbers(self):
        assert chain(lambda x, u: ca.sqrt(x - 10) + u**2).qp.structure.representative is None

    def test_point_of_the_caller(self):
        """The curvature of the cost at the nominal point, not at the representative one."""
        settings = replace(FIXED, qp=replace(FIXED.qp, scaling=2))
        solver = chain(lambda x, u: x**4 + u**2, settings, nominal=2.0)
        system = solver.qp.structure.representative
        K = system.kkt.K_pattern
        node = 2  # x of an odd stage, where no weight is taken away
        entry = np.flatnonzero((K.row_idx == node) & (K.col_idx == node))[0]
        assert system.values[entry] - 1e-6 == pytest.approx(12 * 2.0**2)
