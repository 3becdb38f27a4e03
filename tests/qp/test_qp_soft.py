"""Soft rows of `QPSolver`: solutions, statuses, batches and refusals."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from qp_cases import INF, fixed, ring, solver_for
from qp_soft_cases import (
    BATCH,
    CART_ROWS,
    ENGINES,
    SOFT_ROWS,
    carts,
    exact,
    soft_ring,
    soft_solver,
    solve_exactly,
)

from warpmpc import (
    ADMMSettings,
    ProblemError,
    QPSolver,
    QPWarmStart,
    RowClass,
    StagedSettings,
    Status,
)
from warpmpc.qp.loops import registry as engines
from warpmpc.qp.scaling import QPData

TIGHT = ADMMSettings(eps_abs=1e-8, eps_rel=1e-8)
SETTINGS = {"float64": TIGHT, "float32": ADMMSettings(eps_abs=1e-4, eps_rel=1e-4)}
MAX_ERROR = {"float64": 1e-6, "float32": 5e-3}


def check_solutions(solution, tolerance: float) -> None:
    np.testing.assert_array_equal(solution.status, Status.SOLVED)
    for b in range(BATCH):
        wanted = exact(b)
        np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=tolerance)
        np.testing.assert_allclose(solution.y[b], wanted.y, rtol=0, atol=10 * tolerance)
        np.testing.assert_allclose(solution.objective[b], wanted.objective, atol=10 * tolerance)


@pytest.mark.oracle
class TestAgainstSlackVariables:
    def test_the_table_has_rows_of_every_kind(self):
        batch = soft_ring()
        x = np.stack([exact(b).x for b in range(BATCH)])
        y = np.stack([exact(b).y for b in range(BATCH)])[:, SOFT_ROWS]
        s = np.stack([batch.given.instance(b).A @ x[b] for b in range(BATCH)])[:, SOFT_ROWS]
        below, above = (v > 1e-3 for v in batch.violations(s))
        for first in range(3):  # linear, quadratic, both
            assert below[first::6].any()
            assert above[first::6].any()
        assert not below[3::6].any()
        assert not above[4::6].any()
        held = ~below & ~above & (np.abs(y) > 1e-3)
        assert held.sum() > 5
        assert (~below & ~above & (np.abs(y) < 1e-6)).sum() > 5

    @pytest.mark.parametrize(
        ("engine", "dtype"),
        [
            *((engine, "float64") for engine in ENGINES),
            ("sparse", "float32"),
            ("unrolled", "float32"),
        ],
    )
    def test_solutions(self, engine, dtype):
        solver = soft_solver(engine, SETTINGS[dtype], dtype)
        check_solutions(soft_ring().solve(solver), MAX_ERROR[dtype])

    def test_loop_of_large_sparse_problems(self, monkeypatch):
        monkeypatch.setattr(engines, "sparse_loop", lambda *_: None)
        given = soft_ring().given
        solver = QPSolver(given.P, given.A, TIGHT, "float64", "sparse", soft_rows=SOFT_ROWS)
        check_solutions(soft_ring().solve(solver), MAX_ERROR["float64"])

    def test_pcg(self):
        given, settings = soft_ring().given, ADMMSettings(eps_abs=1e-4, eps_rel=1e-4)
        solver = QPSolver(given.P, given.A, settings, "float64", "pcg", soft_rows=SOFT_ROWS)
        check_solutions(soft_ring().solve(solver), 5e-3)

    def test_far_off_rho_and_nominal_scaling(self):
        """The adaptation changes the proximal maps, a scaling the penalties."""
        batch = soft_ring()
        P, q, A = (array[0] for array in batch.args[:3])
        settings = replace(TIGHT, rho=1e-4)
        more = {"nominal": (100 * P, 50 * q, 10 * A), "soft_rows": SOFT_ROWS}
        given = batch.given
        solver = QPSolver(given.P, given.A, settings, "float64", "sparse", **more)
        solution = batch.solve(solver)
        check_solutions(solution, MAX_ERROR["float64"])
        assert np.median(solution.iterations) < 500  # all 4000 without adaptation


class TestIterates:
    """Against the iteration in NumPy, and between engines."""

    def reference(self, b: int, iterations: int) -> tuple[np.ndarray, ...]:
        batch, settings = soft_ring(), fixed(iterations)
        qp, w = batch.given.instance(b), batch.penalties[b]
        n, m = qp.q.size, qp.lower.size
        equal, soft = qp.lower == qp.upper, np.zeros(m, dtype=bool)
        soft[SOFT_ROWS] = True
        free = np.isinf(qp.lower) & np.isinf(qp.upper)
        rho = np.where(free, 1e-6, np.where(equal & ~soft, 100.0, 0.1))
        A = qp.A.toarray()
        upper = qp.full_P.toarray() + settings.sigma * np.eye(n)
        K = np.block([[upper, A.T], [A, -np.diag(1 / rho)]])
        x, s, y = np.zeros(n), np.zeros(m), np.zeros(m)
        for _ in range(iterations):
            z = np.linalg.solve(K, np.concatenate([settings.sigma * x - qp.q, s - y / rho]))
            x = 1.6 * z[:n] - 0.6 * x
            v = s - 0.6 * y / rho + 1.6 / rho * z[n:]
            s = np.clip(v, qp.lower, qp.upper)
            for j, i in enumerate(SOFT_ROWS):  # the proximal map, by cases
                if v[i] > qp.upper[i] + w[1, j] / rho[i]:
                    s[i] = (rho[i] * v[i] - w[1, j] + w[3, j] * qp.upper[i]) / (rho[i] + w[3, j])
                elif v[i] < qp.lower[i] - w[0, j] / rho[i]:
                    s[i] = (rho[i] * v[i] + w[0, j] + w[2, j] * qp.lower[i]) / (rho[i] + w[2, j])
            y = rho * (v - s)
        return x, s, y

    @pytest.mark.parametrize("engine", ["sparse", "unrolled"])
    def test_fixed_iterations(self, engine):
        solution = soft_ring().solve(soft_solver(engine, fixed(30)))
        for b in (*range(6), 31, 32):
            x, s, y = self.reference(b, 30)
            np.testing.assert_allclose(solution.x[b], x, rtol=0, atol=1e-9)
            np.testing.assert_allclose(solution.warm_start.s[b], s, rtol=0, atol=1e-9)
            np.testing.assert_allclose(solution.y[b], y, rtol=0, atol=1e-8)

    def test_warm_starts(self):
        batch, fifteen = soft_ring(), soft_solver("sparse", fixed(15))
        thirty = batch.solve(soft_solver("sparse", fixed(30)))
        first = batch.solve(fifteen)
        again = batch.solve(fifteen, warm_start=first.warm_start)
        np.testing.assert_allclose(again.x, thirty.x, rtol=0, atol=1e-10)
        # v = s + y / rho is equivalent where rho is that of an inequality.
        given = batch.given
        equal, free = given.lower == given.upper, np.isinf(given.lower) & np.isinf(given.upper)
        equal[:, SOFT_ROWS] = False
        rho = np.where(free, 1e-6, np.where(equal, 100.0, 0.1))
        v = np.asarray(first.warm_start.s) + np.asarray(first.y) / rho
        once_more = batch.solve(fifteen, warm_start=QPWarmStart.from_xv(np.asarray(first.x), v))
        np.testing.assert_allclose(once_more.x, thirty.x, rtol=0, atol=1e-9)

    def test_objective_and_residuals_in_the_units_of_the_caller(self):
        batch = soft_ring()
        solution = batch.solve(soft_solver("sparse", TIGHT))
        s = np.asarray(solution.warm_start.s)
        below, above = batch.violations(s[:, SOFT_ROWS])
        w = np.where(np.isinf(batch.penalties), 0, batch.penalties)
        cost = w[:, 0] * below + w[:, 1] * above + w[:, 2] / 2 * below**2 + w[:, 3] / 2 * above**2
        for b, qp in enumerate(batch.given.instances):
            x, y = np.asarray(solution.x[b]), np.asarray(solution.y[b])
            primal, dual = qp.residuals(x, s[b], y)
            np.testing.assert_allclose(solution.primal_residual[b], primal, atol=1e-12)
            np.testing.assert_allclose(solution.dual_residual[b], dual, atol=1e-12)
            wanted = qp.objective(x) + cost[b].sum()
            np.testing.assert_allclose(solution.objective[b], wanted, rtol=1e-10)

    def test_infinite_penalties_are_hard_rows(self):
        """Also beyond 1e20, and by a quadratic penalty; the row classes are the same here."""
        given, soft = ring(BATCH), soft_solver("sparse", TIGHT)
        hard = solver_for(given, TIGHT).solve(*given.args)
        penalties = np.zeros((BATCH, 4, SOFT_ROWS.size))
        penalties[:, :2], penalties[::3, :2] = INF, 1e25
        penalties[1::3, :2], penalties[1::3, 2:] = 0, INF
        found = soft.solve(*given.args, penalties=penalties)
        plain = (given.lower != given.upper)[:, SOFT_ROWS].all(axis=1)
        assert 5 < plain.sum() < BATCH
        np.testing.assert_array_equal(found.iterations[plain], hard.iterations[plain])
        for name in ("x", "y", "objective"):
            ours, wanted = (np.asarray(getattr(s, name)) for s in (found, hard))
            np.testing.assert_allclose(ours[plain], wanted[plain], rtol=0, atol=1e-12)
            np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("code", ["unrolled", "panels"])
def test_mpc_that_is_infeasible_with_hard_rows(code):
    """Stages share their code though not all of them have the same soft rows."""
    batch, stages = carts()
    given, options = batch.given, {"staged": StagedSettings(code), "soft_rows": CART_ROWS}
    solver = QPSolver(given.P, given.A, TIGHT, "float64", stages=stages, **options)
    solution = batch.solve(solver)
    np.testing.assert_array_equal(solution.status, Status.SOLVED)
    hard = solver.solve(*batch.args, penalties=np.full_like(batch.penalties, INF))
    position = -given.lower[:, 0]
    outside = (position > 0.6) | (position < -0.5)
    assert outside.sum() > 10
    np.testing.assert_array_equal(np.asarray(hard.status)[outside], Status.PRIMAL_INFEASIBLE)
    for b in range(BATCH):
        wanted = solve_exactly(given.instance(b), CART_ROWS, batch.penalties[b])
        np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=1e-6)
        np.testing.assert_allclose(solution.objective[b], wanted.objective, rtol=1e-6)


@pytest.mark.parametrize("engine", ["dense", "sparse", "unrolled"])
class TestStatus:
    """Rows 0, 4 and 8 of a ring have the same columns; of these row 4 is soft."""

    def solved(self, engine, batch):
        return batch.solve(soft_solver(engine, TIGHT))

    def twice(self, batch, b: int, row: int) -> None:
        """Row `row` of instance b becomes row 0, with the opposite requirement."""
        given, at = batch.given, batch.given.A.indices
        given.A_vals[b, at == row] = given.A_vals[b, at == 0]
        given.lower[b, [0, row]], given.upper[b, [0, row]] = [-INF, 1.0], [-1.0, INF]

    def test_primal_certificates_rest_on_hard_sides_only(self, engine):
        batch = soft_ring().copy()
        for b, row in ((2, 4), (3, 4), (7, 8), (9, 4)):
            self.twice(batch, b, row)
        given = batch.given
        self.twice(batch, 8, 4)  # the other way round
        given.lower[8, [0, 4]], given.upper[8, [0, 4]] = [1.0, -INF], [INF, -1.0]
        # Instance 3: the side that is required is hard after all, 9: only the other one is.
        batch.penalties[2:10, :, 2] = 1.0
        # Instances 2, 8 and 9: multipliers run as if for ever, before the penalty holds them.
        late = [2, 8, 9]
        batch.penalties[late, :2, 2], batch.penalties[late, 2:, 2] = 1e3, 0
        batch.penalties[3, 0, 2], batch.penalties[9, 1, 2] = INF, INF
        found = self.solved(engine, batch)
        wanted = np.full(BATCH, Status.SOLVED)
        wanted[[3, 7]] = Status.PRIMAL_INFEASIBLE
        np.testing.assert_array_equal(found.status, wanted)

    def test_dual_certificates_weigh_penalties(self, engine):
        """Without a cost matrix, x falls without end unless penalties outweigh the linear cost."""
        batch = soft_ring().copy()
        given = batch.given
        given.lower[4:11], given.upper[4:11], given.P_vals[4:11] = -INF, INF, 0
        given.q[4:11] = 0
        A = given.instance(4).A.toarray()
        for b in range(4, 11):
            given.A_vals[b] = given.A_vals[4]
            given.q[b] = A[4]  # pulls A[4] x down
            given.lower[b, 4] = -1.0
            batch.penalties[b, :, 2] = [0.5, 0, 0, 0]
        batch.penalties[5, :, 2] = [2.0, 0, 0, 0]  # steeper than the cost
        batch.penalties[6, :, 2] = [0.5, 0, 1e-2, 0]  # steeper in the end
        batch.penalties[7, :, 2] = [INF, 0, 0, 0]
        batch.penalties[8, :, 2] = [0, 9.0, 0, 9.0]  # the other side
        given.upper[9:11, 4], given.q[9:11] = 1.0, -A[4]  # upwards
        batch.penalties[9, :, 2], batch.penalties[10, :, 2] = [9.0, 0.5, 9.0, 0], [9.0, 2.0, 9.0, 0]
        status = np.asarray(self.solved(engine, batch).status)
        wanted = np.full(BATCH, Status.SOLVED)
        wanted[[4, 8, 9]] = Status.DUAL_INFEASIBLE
        np.testing.assert_array_equal(status, wanted)

    def test_penalties_that_are_no_penalties(self, engine):
        batch = soft_ring().copy()
        clean = self.solved(engine, batch)
        batch.penalties[3, 2, 1], batch.penalties[5, 0, 0] = np.nan, -1.0
        found = self.solved(engine, batch)
        assert found.status[3] == Status.NON_FINITE
        assert found.status[5] == Status.INVALID_BOUNDS
        assert np.isnan(found.x[5]).all()
        others = np.delete(np.arange(BATCH), [3, 5])
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(clean), strict=True):
            np.testing.assert_array_equal(np.asarray(one)[others], np.asarray(other)[others])


def test_permuted_split_and_mapped_batches():
    """No instance changes a bit."""
    engine = "unrolled"
    batch, order = soft_ring(), np.random.default_rng(1).permutation(BATCH)
    twice = [np.concatenate([array, array[order]]) for array in (*batch.args, batch.penalties)]
    solver = soft_solver(engine, TIGHT)
    wanted = batch.solve(solver)
    split = soft_solver(engine, replace(TIGHT, max_batch=32)).solve(*twice[:5], penalties=twice[5])
    mapped = jax.vmap(lambda *a: solver.solve(*a[:5], penalties=a[5]))(
        *(array.reshape(2, BATCH, *array.shape[1:]) for array in twice)
    )
    for leaf, s, m in zip(*map(jax.tree.leaves, (wanted, split, mapped)), strict=True):
        np.testing.assert_array_equal(s[:BATCH], leaf)
        np.testing.assert_array_equal(s[BATCH:], np.asarray(leaf)[order])
        np.testing.assert_array_equal(m[0], leaf)
        np.testing.assert_array_equal(m[1], np.asarray(leaf)[order])


class TestRefusals:
    P, A = sp.identity(3, format="csc"), sp.csc_matrix(np.ones((2, 3)))

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([2], "soft_rows has row 2, but A has rows 0 to 1"),
            ([-1], "soft_rows has row -1, but A has rows 0 to 1"),
            ([1, 0, 1], "soft_rows has row 1 more than once"),
            ([0.0], r"as integers; got shape \(1,\), dtype float64"),
            ([True, False], "as integers; .* dtype bool"),
            (1, r"as integers; got shape \(\)"),
            ([[0, 1]], r"as integers; got shape \(1, 2\)"),
            ([[0], [1, 2]], "soft_rows must list rows of A as integers"),
        ],
    )
    def test_rows(self, rows, message):
        with pytest.raises(ProblemError, match=message):
            QPSolver(self.P, self.A, soft_rows=rows)

    def test_row_of_no_rows(self):
        with pytest.raises(ProblemError, match="soft_rows has row 0, but A has no rows"):
            QPSolver(self.P, sp.csc_matrix((0, 3)), soft_rows=[0])

    def test_soft_equality_class(self):
        classes = [RowClass.INEQUALITY, RowClass.EQUALITY]
        with pytest.raises(
            ProblemError, match=r"row_classes\[1\] is RowClass.EQUALITY, but the row"
        ):
            QPSolver(self.P, self.A, row_classes=classes, soft_rows=[1])
        QPSolver(self.P, self.A, row_classes=classes, soft_rows=[0])

    @pytest.mark.parametrize(
        ("penalties", "message"),
        [
            (None, r"has 5 soft rows: pass `penalties`, \[batch, 4, 5\], in the order linear"),
            (np.ones((BATCH, 5, 5)), r"shape \(33, 5, 5\); its last axes must be \(4, 5\)"),
            (np.ones((BATCH, 4, 4)), "its last axis must have length 5"),
            (np.ones(5), r"shape \(5,\); its last axes must be \(4, 5\)"),
            (np.ones((BATCH, 4, 5), dtype=bool), "penalties has dtype bool but"),
            (np.ones((7, 4, 5)), r"same leading axes, got \[\(7,\), \(33,\)\]"),
        ],
    )
    def test_penalties(self, penalties, message):
        with pytest.raises(ProblemError, match=message):
            soft_solver("sparse", TIGHT).solve(*soft_ring().args, penalties=penalties)

    def test_penalties_without_soft_rows(self):
        given = ring(BATCH)
        for none in (None, []):
            solver = QPSolver(given.P, given.A, dtype="float64", soft_rows=none)
            with pytest.raises(ProblemError, match="create the solver with `soft_rows`, or leave"):
                solver.solve(*given.args, penalties=np.ones((BATCH, 4, 5)))

    def test_tiles_without_penalties(self):
        batch, solver = soft_ring(), soft_solver("dense", TIGHT)
        data = QPData(*(array[..., None] for array in batch.args))
        with pytest.raises(ProblemError, match=r"QPData\.soft belongs to soft rows: give both"):
            solver.iterate(data, ())
