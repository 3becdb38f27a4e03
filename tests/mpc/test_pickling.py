"""Problems, solvers and results survive pickling and copying, also between processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import casadi as ca
import jax
import numpy as np
import pytest
import scipy.sparse as sp
from pickling_worker import solve_elsewhere
from sqp_cases import ARM_X0, arm, fixed_solver, soft_arm

from warpmpc import (
    ADMMSettings,
    LineSearchSettings,
    MPCSolver,
    ProblemError,
    QPSolver,
    Soft,
    SQPSettings,
    StagedSettings,
    rollout,
)
from warpmpc.systems import car, cartpole, quadrotor

WAYS = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.fixture(params=WAYS)
def again(request):
    """One way to make the same thing again."""
    return WAYS[request.param]


def leaves_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


class TestProblems:
    @pytest.mark.parametrize("make", [arm, soft_arm, lambda: car.build(5)])
    def test_ocp(self, again, make):
        ocp = make()
        before = ocp.problem().hash
        found = again(ocp)
        assert found.problem().hash == before
        found.add_cost(found.x[0] ** 2)  # still of one piece
        assert found.problem().hash != before
        assert ocp.problem().hash == before

    @pytest.mark.parametrize("make", [soft_arm, cartpole.build, quadrotor.build])
    def test_problem(self, again, make):
        problem = make().problem()
        found = again(problem)
        assert found.hash == problem.hash
        assert len({id(s) for s in found.stages}) == len({id(s) for s in problem.stages})
        np.testing.assert_array_equal(found.defaults, problem.defaults)
        assert found.row_names == problem.row_names

    @pytest.mark.parametrize("way", ["copy", "deepcopy"])
    def test_copies_know_the_symbols_of_the_original(self, way):
        """What was written for one can be added to the other, and stays there."""
        ocp = arm()
        x = ocp.x
        found = WAYS[way](ocp)
        found.subject_to(-3, x[0], 3, name="angle")
        assert found.problem().n_cons > ocp.problem().n_cons

    def test_stage(self, again):
        stage = soft_arm().problem().stages[1]
        found = again(stage)
        assert found.row_names == stage.row_names
        symbols = ca.vertcat(found.z, found.z_next, found.p)
        known = {entry.element_hash() for entry in symbols.elements()}
        used = {entry.element_hash() for entry in ca.symvar(ca.vertcat(found.cost, found.g))}
        assert used
        assert used <= known


@pytest.mark.parametrize(
    "settings",
    [
        ADMMSettings(max_iter=7),
        SQPSettings(qp=ADMMSettings(scaling=0), tol_kkt=1e-3),
        LineSearchSettings(kind="merit"),
        StagedSettings(),
        Soft(linear=2.0),
    ],
)
def test_settings(again, settings):
    found = again(settings)
    assert type(found) is type(settings)
    assert vars(found) == vars(settings)


class TestResults:
    def test_solution(self, again):
        solver = fixed_solver("pendulum", "sparse")
        solution = solver.solve(ARM_X0)
        found = again(solution)
        leaves_equal(found, solution)
        np.testing.assert_array_equal(found.u, solution.u)
        both = jax.tree.map(lambda a, b: np.concatenate([a, b]), solution, found)
        assert both["u"].shape[0] == 6
        leaves_equal(
            solver.solve(ARM_X0, warm_start=found.warm_start).z,
            solver.solve(ARM_X0, warm_start=solution.warm_start).z,
        )

    def test_solution_that_was_given_away(self):
        solver = fixed_solver("pendulum", "sparse")
        solution = solver.solve(ARM_X0)
        solver.solve(ARM_X0, warm_start=solution.warm_start, donate=True)
        with pytest.raises(ProblemError, match="The solution was given away by an earlier call"):
            pickle.dumps(solution)

    def test_rollout(self, again):
        result = rollout(fixed_solver("pendulum", "sparse"), lambda x, u: x + 0.1 * u, ARM_X0, 2)
        leaves_equal(again(result), result)


def some_qp():
    P = sp.csc_matrix([[2.0, 0.5], [0.0, 1.0]])
    A = sp.csc_matrix([[1.0, 1.0], [0.0, 1.0]])
    solver = QPSolver(P, A, ADMMSettings(max_iter=500), "float64", soft_rows=[1])
    values = [np.tile(v, (3, 1)) for v in ([2.0, 0.5, 1.0], [1.0, -1.0], [1.0, 1.0, 1.0])]
    bounds = [-0.1 * np.ones((3, 2)), 0.1 * np.ones((3, 2))]
    return solver, (*values, *bounds), np.ones((3, 4, 1))


class TestSolvers:
    def test_qp(self, again):
        solver, data, penalties = some_qp()
        solution = solver.solve(*data, penalties=penalties)
        leaves_equal(again(solver).solve(*data, penalties=penalties), solution)
        leaves_equal(again(solution), solution)

    def test_parts_of_a_solver(self):
        with pytest.raises(ProblemError, match="is a part of an MPCSolver; pickle that one"):
            pickle.dumps(fixed_solver("pendulum", "sparse").qp)

    def test_copies_are_the_solver(self):
        """Nothing in it can change."""
        solver = fixed_solver("pendulum", "sparse")
        assert copy.copy(solver) is copy.deepcopy(solver) is solver
        assert copy.copy(solver.qp) is copy.deepcopy(solver.qp) is solver.qp

    def test_definition(self):
        settings = SQPSettings(max_iter=3, qp=ADMMSettings(max_iter=30))
        problem = arm(3).problem()
        nominal = (np.zeros(problem.n_vars), np.ones(problem.n_params))
        solver = MPCSolver(problem, settings, "float64", "sparse", "cpu", nominal)
        found = pickle.loads(pickle.dumps(solver))
        assert (found.problem.hash, found.settings, found.dtype) == (
            problem.hash,
            settings,
            "float64",
        )
        assert found._device == solver._device == jax.devices("cpu")[0]
        leaves_equal(found._rest_of_definition[1], nominal)

    def test_meshes_stay_here(self):
        mesh = jax.make_mesh((1,), ("batch",))
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
        solver = MPCSolver(arm(3), dtype="float64", engine="sparse", device=place)
        with pytest.raises(ProblemError, match="spreads batches over a mesh cannot be pickled"):
            pickle.dumps(solver)

    def test_devices_that_are_not_there(self):
        from warpmpc.engines.runtime.batching import device_at

        with pytest.raises(ProblemError, match='made for a device of the platform "npu"'):
            device_at(("npu", 0))
        assert device_at(("cpu", 99)) == jax.devices("cpu")[0]


def test_another_process():
    """It gets solvers, compiles nothing, and its results are equal bit for bit."""
    solver = fixed_solver("pendulum", "sparse")
    qp, data, penalties = some_qp()
    wanted = solver.solve(ARM_X0), qp.solve(*data, penalties=penalties)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        found = pool.apply(solve_elsewhere, (solver, ARM_X0, qp, data, penalties))
    *results, compiled = found
    leaves_equal(tuple(results), wanted)
    assert compiled == 0
