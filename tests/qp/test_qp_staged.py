"""The staged engine through `QPSolver`: the same results as the others, choices, refusals."""

import logging
from functools import cache

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from qp_cases import OSQP_FIXED, QP, fixed, osqp_solve

from warpmpc import (
    ADMMSettings,
    PatternError,
    ProblemError,
    QPSolver,
    QPWarmStart,
    RowClass,
    SettingsError,
    StagedSettings,
    Status,
)
from warpmpc.engines.staged.launch import StagedShape
from warpmpc.systems import linear_mpc

HORIZON, BATCH = 3, 40
CODES = {"unrolled": StagedSettings(code="unrolled"), "rolled": StagedSettings(code="panels")}
# A broken instance, an infeasible one, and crossed bounds.
NAN, INFEASIBLE, CROSSED = 5, 17, 33


@cache
def batch(dtype: str = "float64") -> tuple[np.ndarray, ...]:
    """Linear MPC from different states, matrices perturbed per instance."""
    problem, rng = linear_mpc.build(HORIZON), np.random.default_rng(0)
    lower, upper = problem.bounds(linear_mpc.sample(BATCH))
    P, q, A = (
        np.tile(values, (BATCH, 1)) * (1 + 0.1 * rng.random((BATCH, values.size)))
        for values in (problem.P.data, problem.q, problem.A.data)
    )
    return tuple(array.astype(dtype) for array in (P, q, A, lower, upper))


@cache
def spoiled() -> tuple[np.ndarray, ...]:
    P, q, A, lower, upper = (array.copy() for array in batch())
    q[NAN, 3] = np.nan
    lower[INFEASIBLE, 0] = upper[INFEASIBLE, 0] = -2.0  # the initial angle beyond its bound
    lower[CROSSED, 40], upper[CROSSED, 40] = 1.0, 0.0
    return P, q, A, lower, upper


@cache
def solver(engine: str, settings: ADMMSettings | None = None, dtype: str = "float64", **more):
    problem = linear_mpc.build(HORIZON)
    if engine in CODES:
        more |= {"stages": problem.stages, "staged": CODES[engine]}
    name = "staged" if engine in CODES else engine
    return QPSolver(problem.P, problem.A, settings, dtype, name, **more)


def instance(b: int) -> QP:
    problem, (P, q, A, lower, upper) = linear_mpc.build(HORIZON), batch()
    of = (
        sp.csc_matrix((v, M.indices, M.indptr), M.shape)
        for v, M in ((P[b], problem.P), (A[b], problem.A))
    )
    P_one, A_one = of
    return QP(P_one, q[b], A_one, lower[b], upper[b])


@pytest.mark.oracle
@pytest.mark.parametrize("iterations", [1, 10, 50])
@pytest.mark.parametrize("code", CODES)
def test_iterates_are_those_of_osqp(code, iterations):
    solution = solver(code, fixed(iterations)).solve(*batch())
    for b in (0, 31, 39):
        wanted = osqp_solve(instance(b), max_iter=iterations, **OSQP_FIXED)
        np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=1e-9)
        np.testing.assert_allclose(solution.y[b], wanted.y, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", [*CODES, "sparse"])
class TestAgainstDense:
    def test_solutions_statuses_and_counts(self, engine):
        """Scaling, adaptation, termination and certificates, every instance on its own."""
        settings = ADMMSettings(eps_abs=1e-6, eps_rel=1e-6)
        found = solver(engine, settings).solve(*spoiled())
        wanted = solver("dense", settings).solve(*spoiled())
        np.testing.assert_array_equal(found.status, wanted.status)
        np.testing.assert_array_equal(found.iterations, wanted.iterations)
        assert found.status[NAN] == Status.NON_FINITE
        assert found.status[INFEASIBLE] == Status.PRIMAL_INFEASIBLE
        assert found.status[CROSSED] == Status.INVALID_BOUNDS
        solved = np.asarray(found.status) == Status.SOLVED
        assert solved.sum() == BATCH - 3
        for name in ("x", "y", "objective", "primal_residual", "dual_residual"):
            ours, theirs = (np.asarray(getattr(s, name)) for s in (found, wanted))
            assert np.isnan(ours[[NAN, CROSSED]]).all()
            np.testing.assert_allclose(ours[solved], theirs[solved], rtol=1e-6, atol=1e-7)

    def test_neighbours_do_not_notice(self, engine):
        good = np.setdiff1d(np.arange(BATCH), [NAN, INFEASIBLE, CROSSED])
        spoilt, clean = (solver(engine).solve(*data) for data in (spoiled(), batch()))
        for one, other in zip(jax.tree.leaves(spoilt), jax.tree.leaves(clean), strict=True):
            np.testing.assert_array_equal(np.asarray(one)[good], np.asarray(other)[good])

    def test_unbounded(self, engine):
        P, q, A, lower, upper = (array.copy() for array in batch())
        P[3], q[3], lower[3], upper[3] = 0, -1.0, -np.inf, np.inf
        found = solver(engine).solve(P, q, A, lower, upper)
        assert found.status[3] == Status.DUAL_INFEASIBLE

    @pytest.mark.slow
    def test_nominal_scaling_and_fixed_classes(self, engine):
        P, q, A, _, _ = batch()
        classes = np.full(batch()[3].shape[1], RowClass.INEQUALITY)
        classes[: 12 * (HORIZON + 1)] = RowClass.EQUALITY
        more = {"nominal": (P[0], q[0], A[0]), "row_classes": classes}
        problem = linear_mpc.build(HORIZON)
        settings = ADMMSettings(max_iter=30, check_every=0, adaptive_rho_every=0, scaling=4)
        staged = {"stages": problem.stages, "staged": CODES[engine]} if engine in CODES else {}
        name = "staged" if engine in CODES else engine
        ours = QPSolver(problem.P, problem.A, settings, "float64", name, **more, **staged)
        dense = QPSolver(problem.P, problem.A, settings, "float64", "dense", **more)
        found, wanted = (one.solve(*batch()) for one in (ours, dense))
        np.testing.assert_allclose(found.x, wanted.x, rtol=0, atol=1e-8)
        np.testing.assert_allclose(found.y, wanted.y, rtol=0, atol=1e-7)

    def test_warm_start(self, engine):
        one = solver(engine, fixed(10))
        first = one.solve(*batch())
        again = one.solve(*batch(), warm_start=first.warm_start)
        wanted = solver(engine, fixed(20)).solve(*batch())
        np.testing.assert_allclose(again.x, wanted.x, rtol=0, atol=1e-10)
        point = QPWarmStart.from_xy(first.x, first.y)
        ours, theirs = (
            solver(e, fixed(3)).solve(*batch(), warm_start=point) for e in (engine, "dense")
        )
        np.testing.assert_allclose(ours.x, theirs.x, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("engine", "limit"), [("unrolled", 1e-4), ("rolled", 1e-4), ("sparse", 2e-3)]
)
@pytest.mark.slow
def test_float32_keeps_its_digits(engine, limit):
    """States without a weight: an unfortunate order of elimination loses 10 % of x here."""
    found = solver(engine, fixed(25), "float32").solve(*batch("float32"))
    wanted = solver("dense", fixed(25)).solve(*batch())
    np.testing.assert_allclose(found.x, wanted.x, rtol=0, atol=limit * np.abs(wanted.x).max())
    np.testing.assert_allclose(found.y, wanted.y, rtol=0, atol=limit * np.abs(wanted.y).max())


@pytest.mark.parametrize("code", CODES)
class TestTransforms:
    def test_permuted_split_and_mapped_batches(self, code):
        one, order = solver(code), np.random.default_rng(1).permutation(BATCH)
        wanted = one.solve(*spoiled())
        permuted = one.solve(*(array[order] for array in spoiled()))
        split = solver(code, ADMMSettings(max_batch=32)).solve(*spoiled())
        pairs = (array.reshape(2, BATCH // 2, -1) for array in spoiled())
        mapped = jax.vmap(lambda *args: one.solve(*args))(*pairs)
        for leaf, p, s, m in zip(
            *map(jax.tree.leaves, (wanted, permuted, split, mapped)), strict=True
        ):
            np.testing.assert_array_equal(p, np.asarray(leaf)[order])
            np.testing.assert_array_equal(s, leaf)
            np.testing.assert_array_equal(np.asarray(m).reshape(leaf.shape), leaf)

    @pytest.mark.slow
    def test_gradients_are_those_of_the_sparse_engine(self, code):
        settings = ADMMSettings(eps_abs=1e-9, eps_rel=1e-9, max_iter=20_000)

        def loss(name):
            one = solver(name, settings)
            return lambda *args: (lambda s: (s.x**2).sum() + (0.1 * s.y**2).sum())(one.solve(*args))

        small = tuple(array[:3] for array in batch())
        found = []
        for name in (code, "sparse"):
            *rest, lower, upper = jax.grad(loss(name), argnums=(0, 1, 2, 3, 4))(*small)
            # An equality whose multiplier is zero up to rounding may have either side.
            found.append([*rest, lower + upper])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


class TestChoices:
    def test_auto(self, caplog):
        problem = linear_mpc.build(2)
        with caplog.at_level(logging.INFO, "warpmpc"):
            assert QPSolver(problem.P, problem.A).engine == "sparse"
            assert "sparse, because no stages are given" in caplog.text
            assert QPSolver(problem.P, problem.A, stages=problem.stages).engine == "staged"
            assert "staged, because stages are given" in caplog.text
            apart = problem.stages * 2  # labels need not be consecutive
            assert QPSolver(problem.P, problem.A, stages=apart).engine == "staged"
            mixed = np.random.default_rng(0).permutation(problem.stages)
            assert QPSolver(problem.P, problem.A, stages=mixed).engine == "sparse"
            assert "couple beyond their neighbours" in caplog.text

    @pytest.mark.slow
    def test_overrides_change_no_bit(self):
        problem, args = linear_mpc.build(HORIZON), batch("float32")
        base = solver("unrolled", fixed(20), "float32").solve(*args)
        staged = StagedSettings("unrolled", registers=96, block=128, prefetch=False)
        other = QPSolver(problem.P, problem.A, fixed(20), stages=problem.stages, staged=staged)
        np.testing.assert_array_equal(other.solve(*args).x, base.x)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"engine": "staged"}, SettingsError, 'engine="staged" needs `stages`'),
            (
                {"engine": "dense", "stages": []},
                SettingsError,
                'engine="dense" has no use for `stages`',
            ),
            (
                {"engine": "sparse", "staged": StagedSettings()},
                SettingsError,
                'engine="sparse" has no use for `staged`',
            ),
            ({"staged": StagedSettings()}, SettingsError, "no effect without `stages`"),
            ({"engine": "magic"}, SettingsError, "Unknown engine 'magic'; choose one of"),
            (
                {"engine": "staged", "stages": [0, 1]},
                PatternError,
                "one integer per variable, then",
            ),
            ({"stages": [[0, 1], [2]]}, PatternError, "one integer per variable, then"),
            ({"staged": "rolled"}, SettingsError, "staged must be StagedSettings, got str"),
            ({"settings": {"rho": 1}}, SettingsError, "settings must be ADMMSettings, got dict"),
            ({"engine": ["staged"]}, SettingsError, "Unknown engine"),
            ({"nominal": (1, 2)}, ProblemError, "nominal needs finite values of one instance"),
            ({"nominal": "abc"}, ProblemError, "nominal needs finite values of one instance"),
            (
                {"nominal": (), "settings": ADMMSettings(scaling=0)},
                SettingsError,
                "nominal has no effect with scaling=0",
            ),
            ({"stages": [0, 1]}, PatternError, "one integer per variable, then"),
            ({"engine": "staged", "stages": "floats"}, PatternError, "dtype float64"),
            (
                {"engine": "staged", "stages": "mixed"},
                PatternError,
                "couple beyond their neighbours",
            ),
            (
                {"stages": "good", "staged": StagedSettings("panels", registers=64, block=64)},
                SettingsError,
                "Panels have no choice of registers, block",
            ),
        ],
    )
    def test_refusals(self, options, error, message):
        problem = linear_mpc.build(2)
        stages = {
            "good": problem.stages,
            "floats": problem.stages.astype(float),
            "mixed": np.random.default_rng(0).permutation(problem.stages),
        }
        if isinstance(options.get("stages"), str):
            options = options | {"stages": stages[options["stages"]]}
        with pytest.raises(error, match=message):
            QPSolver(problem.P, problem.A, **options)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"code": "curled"}, 'code must be "unrolled", "panels" or None'),
            ({"registers": 8}, "registers must be None or an integer from 24 to 255, got 8"),
            ({"registers": True}, "registers must be None or an integer"),
            ({"registers": 64.0}, "registers must be None or an integer"),
            ({"block": 48}, "block must be None or an integer from 32 to 1024, a multiple of 32"),
            ({"prefetch": 1}, "prefetch must be True, False or None, got 1"),
        ],
    )
    def test_settings(self, options, message):
        with pytest.raises(SettingsError, match=message):
            StagedSettings(**options)


def test_wrong_warm_start():
    with pytest.raises(SettingsError, match="warm_start must be QPWarmStart, got tuple"):
        solver("sparse").solve(*batch(), warm_start=(1, 2))


def test_no_variables():
    with pytest.raises(PatternError, match="at least one variable"):
        QPSolver(sp.csc_matrix((0, 0)), sp.csc_matrix((2, 0)))


def test_a_block_may_always_start():
    """1024 threads with 255 registers each do not fit; the model gives way."""
    assert StagedShape(255, 1024, prefetch=False).register_limit == 64
    assert StagedShape(96, 128, prefetch=False).register_limit == 96


@pytest.mark.parametrize("n_rows", [0, 2])
@pytest.mark.parametrize("engine", ["sparse", "staged", "dense"])
class TestWithoutEntriesOfA:
    def build(self, engine, n_rows):
        stages = {"stages": [0] * (3 + n_rows)} if engine == "staged" else {}
        settings = ADMMSettings(eps_abs=1e-10, eps_rel=1e-10)
        A = sp.csc_matrix((n_rows, 3))
        one = QPSolver(sp.eye(3, format="csc"), A, settings, "float64", engine, **stages)
        P, q = np.array([[1.0, 2, 4]] * 2), np.array([[1.0, 2, 3], [4, 5, 6]])
        return one, (P, q, np.zeros((2, 0)), -np.ones((2, n_rows)), np.ones((2, n_rows)))

    def test_solution_and_gradients(self, engine, n_rows):
        one, args = self.build(engine, n_rows)
        solution = one.solve(*args)
        np.testing.assert_allclose(solution.x, -args[1] / args[0], atol=1e-8)
        assert solution.y.shape == (2, n_rows)
        np.testing.assert_array_equal(solution.status, Status.SOLVED)
        found = jax.grad(lambda *a: one.solve(*a).x.sum(), argnums=(0, 1, 2, 3, 4))(*args)
        np.testing.assert_allclose(found[0], args[1] / args[0] ** 2, atol=1e-6)
        np.testing.assert_allclose(found[1], -1 / args[0], atol=1e-6)
        assert [g.shape for g in found] == [a.shape for a in args]

    def test_warm_starts(self, engine, n_rows):
        one, args = self.build(engine, n_rows)
        first = one.solve(*args)
        for start in (first.warm_start, QPWarmStart.from_xy(first.x, first.y)):
            again = one.solve(*args, warm_start=start)
            np.testing.assert_array_equal(again.iterations, 25)
            np.testing.assert_allclose(again.x, first.x, atol=1e-8)
