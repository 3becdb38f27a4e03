"""Two threads per problem: the same answers as one, and as the dense engine."""

from dataclasses import dataclass
from functools import cache

import jax
import numpy as np
import pytest
import scipy.sparse as sp

from warpmpc import ADMMSettings, PatternError, QPSolver, SettingsError, StagedSettings, Status

BATCH = 100
FULL = ADMMSettings(eps_abs=1e-6, eps_rel=1e-6)  # scaling, checks, adaptive rho
NAN, INFEASIBLE = 7, 40


@dataclass(frozen=True, eq=False)
class Case:
    """QPs of a small chain of stages; values differ per instance."""

    P: sp.csc_matrix
    A: sp.csc_matrix
    stages: np.ndarray
    args: tuple[np.ndarray, ...]


def double_integrator(horizon: int, *, coupled: bool) -> tuple[np.ndarray, ...]:
    """States (p, v), an input but at the end, bounds on all; cost may couple neighbours.

    The first stage has an initial state, the last one a row of its own.
    """
    n = 3 * horizon + 2
    var = np.append(np.repeat(np.arange(horizon), 3), [horizon] * 2)
    P, A, con = np.eye(n), [], []
    P[1, 1] = P[-1, -1] = 0  # light
    for k in range(horizon):
        at, after = 3 * k, 3 * k + 3
        if coupled:
            P[at + 1, after] = P[after, at + 1] = 0.1
        for row, entries in enumerate(({at: 1, at + 1: 0.1}, {at + 1: 1, at + 2: 0.2})):
            dynamics = np.zeros(n)
            dynamics[list(entries)] = list(entries.values())
            dynamics[after + row] = -1
            A.append(dynamics)
            con.append(k)
    A += [np.eye(n)[0], np.eye(n)[1], *np.eye(n)[2::3], np.eye(n)[-1] + np.eye(n)[-2]]
    con += [0, 0, *range(horizon), *([horizon] * (len(A) - len(con) - 2 - horizon))]
    return P, np.array(A), np.concatenate([var, con])


@cache
def case(horizon: int, coupled: bool = True) -> Case:
    P, A, stages = double_integrator(horizon, coupled=coupled)
    P, A = sp.csc_matrix(P), sp.csc_matrix(A)
    rng, m = np.random.default_rng(horizon), A.shape[0]
    vary = 1 + 0.05 * rng.random((BATCH, 1))
    lower, upper = np.zeros((BATCH, m)), np.zeros((BATCH, m))
    lower[:, 2 * horizon + 2 :], upper[:, 2 * horizon + 2 :] = -0.8, 0.8
    first = slice(2 * horizon, 2 * horizon + 2)
    lower[:, first] = upper[:, first] = rng.normal(size=(BATCH, 2))
    q = 0.1 * rng.normal(size=(BATCH, P.shape[0]))
    return Case(P, A, stages, (P.data * vary, q, A.data * vary, lower, upper))


@cache
def solver(
    horizon: int, sides: int | None, settings: ADMMSettings = FULL, dtype: str = "float64", **more
):
    given = case(horizon)
    if sides is None:
        return QPSolver(given.P, given.A, settings, dtype, "dense", **more)
    staged = StagedSettings(sides=sides)
    return QPSolver(
        given.P, given.A, settings, dtype, "staged", stages=given.stages, staged=staged, **more
    )


def spoiled(horizon: int) -> tuple[np.ndarray, ...]:
    P, q, A, lower, upper = (array.copy() for array in case(horizon).args)
    q[NAN, 1] = np.nan
    lower[INFEASIBLE, -1] = upper[INFEASIBLE, -1] = 1e3
    return P, q, A, lower, upper


@pytest.mark.parametrize(
    "horizon", [2, *(pytest.param(horizon, marks=pytest.mark.slow) for horizon in (3, 5))]
)
def test_solutions_statuses_and_counts(horizon):
    """With three stages each half has one; the first and the last stage are unlike the others."""
    args = spoiled(horizon)
    found, wanted = (solver(horizon, sides).solve(*args) for sides in (2, None))
    np.testing.assert_array_equal(found.status, wanted.status)
    np.testing.assert_array_equal(found.iterations, wanted.iterations)
    assert found.status[NAN] == Status.NON_FINITE
    assert found.status[INFEASIBLE] == Status.PRIMAL_INFEASIBLE
    solved = np.asarray(found.status) == Status.SOLVED
    assert BATCH // 3 < solved.sum() < BATCH - 2  # some starts cannot reach the last row
    for name in ("x", "y", "objective", "primal_residual", "dual_residual"):
        ours, theirs = (np.asarray(getattr(s, name))[solved] for s in (found, wanted))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_one_and_two_sides_agree_to_rounding():
    settings = ADMMSettings(max_iter=40, check_every=0, adaptive_rho_every=0)
    one, two = (solver(5, sides, settings).solve(*case(5).args) for sides in (1, 2))
    for name in ("x", "y", "primal_residual", "dual_residual"):
        np.testing.assert_allclose(getattr(two, name), getattr(one, name), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(one.iterations, two.iterations)


@pytest.mark.parametrize("batch", [1, 31, 33])
def test_any_batch_in_any_order(batch):
    """Every instance is on its own: no bit depends on the others."""
    everything = solver(5, 2).solve(*spoiled(5))
    chosen = np.random.default_rng(batch).permutation(BATCH)[:batch]
    found = solver(5, 2).solve(*(array[chosen] for array in spoiled(5)))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(everything), strict=True):
        np.testing.assert_array_equal(one, np.asarray(other)[chosen])


def test_soft_rows():
    """Rows of both halves and of the middle, hard, linear and quadratic."""
    given, rows = case(5), np.arange(12, case(5).A.shape[0])
    penalties = np.random.default_rng(0).uniform(0, 0.5, (BATCH, 4, rows.size))
    penalties[::3, :2] = np.inf
    found, wanted = (
        solver(5, sides, soft_rows=tuple(rows)).solve(*given.args, penalties=penalties)
        for sides in (2, None)
    )
    np.testing.assert_array_equal(found.status, wanted.status)
    assert (np.asarray(found.status) == Status.SOLVED).mean() > 0.5
    np.testing.assert_allclose(found.x, wanted.x, rtol=0, atol=1e-6)
    Ax = np.asarray(found.x) @ given.A.toarray().T
    assert (np.abs(Ax[:, rows]) > 0.85).any()


def test_float32_keeps_its_digits():
    settings = ADMMSettings(max_iter=25, check_every=0, adaptive_rho_every=0)
    args = tuple(array.astype("float32") for array in case(5).args)
    found = solver(5, 2, settings, "float32").solve(*args)
    wanted = solver(5, None, settings).solve(*case(5).args)
    for ours, theirs in ((found.x, wanted.x), (found.y, wanted.y)):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"sides": 3}, "sides must be None or an integer from 1 to 2, got 3"),
            ({"sides": True}, "sides must be None or an integer from 1 to 2"),
            ({"tune": 1}, "tune must be True, False or None, got 1"),
            ({"sides": 2, "block": 128}, "With sides=2 a block is one tile of 64 threads"),
        ],
    )
    def test_settings(self, options, message):
        with pytest.raises(SettingsError, match=message):
            StagedSettings(**options)

    @pytest.mark.parametrize(
        ("staged", "message"),
        [
            (StagedSettings("panels", sides=2), "Panels have no choice of sides"),
            (StagedSettings("panels", tune=True), "Panels have no choice of tune"),
        ],
    )
    def test_panel_code(self, staged, message):
        given = case(3)
        with pytest.raises(SettingsError, match=message):
            QPSolver(given.P, given.A, stages=given.stages, staged=staged)

    def test_former_name_of_panels(self):
        with pytest.warns(DeprecationWarning, match='"rolled" is now called "panels"'):
            assert StagedSettings("rolled") == StagedSettings("panels")

    def test_two_stages(self):
        with pytest.raises(PatternError, match="at least 3 stages, these are 2; use sides=1"):
            solver(1, 2)

    def test_tuning(self):
        given = case(3)
        with pytest.raises(SettingsError, match="Nothing to tune on the CPU"):
            solver(3, 1).tune(100)
        panels = StagedSettings("panels")
        one = QPSolver(given.P, given.A, stages=given.stages, staged=panels)
        with pytest.raises(SettingsError, match="only straight-line code of the staged engine"):
            one.tune(100)
        with pytest.raises(SettingsError, match="this engine has one shape"):
            solver(3, None).tune(100)
        for batch in (0, 2.5, True):
            with pytest.raises(SettingsError, match="batch must be a positive integer"):
                solver(3, 1).tune(batch)
