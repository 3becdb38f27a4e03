"""Panels of factorisation and solves: their tables are executed by NumPy, warp by warp."""

import numpy as np
import pytest
from cases import PATTERNS, PROPERTY, KCase, mpc, quasi_definite, random_cases
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_symmetric, run_updates
from panel_oracles import run_panel_factor, run_sweep

from warpmpc.engines.panels.factor_plan import COLUMNS, NODES, panel_factor
from warpmpc.engines.panels.sweep_plan import PANEL, PanelNodes, deal, panel_items
from warpmpc.symbolic.elimination import Elimination, StoredElimination, eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.systems import patterns

RESIDUAL = 1e-10
NAMES = ["one_column", "diagonal", "arrow_first", "dense", "random_33", "block_banded"]
NAMES += ["cartpole_6", "quadrotor_4"]


def in_order(case: KCase) -> tuple[Elimination, np.ndarray, np.ndarray]:
    """Elimination in program order, values of one K, and K itself."""
    perm = order(case.pattern, "stage" if case.stages is not None else "amd", case.stages)
    elimination = eliminate(case.pattern, perm)
    program = StoredElimination(elimination, np.arange(case.pattern.nnz))
    K, values = quasi_definite(case, seed=3, batch=1)
    return program.in_program_order(), values[0], dense_symmetric(K, values[0])[np.ix_(perm, perm)]


def factors(elimination: Elimination, K_vals: np.ndarray) -> np.ndarray:
    L, D = run_updates(elimination, K_vals)
    return np.concatenate([L, 1 / D])


def check_sweeps(case: KCase, warps: int) -> np.ndarray:
    elimination, K_vals, K = in_order(case)
    factor, n = factors(elimination, K_vals), elimination.n
    nodes = PanelNodes(elimination.nnz_L, np.arange(n) % 2 == 0, np.full(n, -1))
    rhs = np.random.default_rng(0).normal(size=n)
    values = rhs
    for items in panel_items(elimination):
        values, finished = run_sweep(items, deal(items, nodes, warps), factor, values)
        assert sorted(finished) == list(range(n))
    np.testing.assert_allclose(values, np.linalg.solve(K, rhs), rtol=RESIDUAL, atol=RESIDUAL)
    return values


@pytest.mark.parametrize("name", NAMES)
def test_sweeps_do_not_depend_on_the_number_of_warps(name):
    one, several, many = (check_sweeps(PATTERNS[name](), warps) for warps in (1, 3, 8))
    np.testing.assert_array_equal(one, several)
    np.testing.assert_array_equal(one, many)


@PROPERTY
@given(random_cases(max_n=60), st.sampled_from([2, 5]))
def test_sweeps_of_any_pattern(case: KCase, warps: int):
    check_sweeps(case, warps)


def test_slots_are_those_of_a_stage():
    """A longer horizon has more panels but no larger window."""
    windows = []
    for horizon in (10, 30):
        elimination, _, _ = in_order(mpc(patterns.cartpole, horizon))
        forward, backward = panel_items(elimination)
        chain = int((elimination.L_rows[0].col_counts > 0).sum())
        assert len(forward.triangles) == len(backward.triangles) == -(-chain // PANEL)
        windows.append(forward.zero)
    assert windows[1] <= windows[0] + PANEL
    assert backward.zero == windows[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("warps", [1, 3, 8])
def test_factorisation(name, warps):
    elimination, K_vals, _ = in_order(PATTERNS[name]())
    plan = panel_factor(elimination)
    L, D = run_panel_factor(plan, warps, K_vals, elimination.nnz_L, elimination.n)
    wanted_L, wanted_D = run_updates(elimination, K_vals)
    np.testing.assert_allclose(L, wanted_L, rtol=RESIDUAL, atol=RESIDUAL)
    np.testing.assert_allclose(D, wanted_D, rtol=RESIDUAL)


@PROPERTY
@given(random_cases(max_n=60), st.sampled_from([2, 5]))
def test_factorisation_of_any_pattern(case: KCase, warps: int):
    elimination, K_vals, _ = in_order(case)
    L, D = run_panel_factor(
        panel_factor(elimination), warps, K_vals, elimination.nnz_L, elimination.n
    )
    wanted_L, wanted_D = run_updates(elimination, K_vals)
    np.testing.assert_allclose(L, wanted_L, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(D, wanted_D, rtol=1e-8)


def test_every_column_is_a_leaf_or_in_one_panel():
    elimination, _, _ = in_order(PATTERNS["quadrotor_4"]())
    plan = panel_factor(elimination)
    nodes = plan.panels[:, NODES : NODES + COLUMNS]
    found = np.concatenate([nodes[nodes >= 0], plan.leaves[:, 0]])
    assert sorted(found.tolist()) == list(range(elimination.n))
