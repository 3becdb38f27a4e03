"""Random problems in random units: what is CONVERGED is optimal, and most of them converge."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz_cases import CLASSES, Tally, fuzz_case, judge
from quick_compile import solve_quickly

import warpmpc as wm

LEAST = {"float32": 0.90, "float64": 0.95}
# Structures and problems of each; the slow run has 24 structures and 504 problems per dtype.
QUICK, SLOW = (1, 8), (8, 21)
# A solve in one launch takes neither scaled QPs nor projected blocks.
ONCHIP = wm.SQPSettings(
    convexify="gershgorin", qp=wm.ADMMSettings(scaling=0, adaptive_rho_every=0, max_iter=20_000)
)


def run(count: tuple[int, int], scaling: str, dtype: str, engine: str) -> Tally:
    tally, (structures, batch) = Tally(), count
    settings = ONCHIP if engine == "onchip" else wm.SQPSettings()
    for seed in range(structures):
        case = fuzz_case(seed, scaling, batch)
        solved = case.program.minima(case.guess, case.params).solved
        solver = wm.MPCSolver(case.ocp, settings, dtype=dtype, engine=engine)
        solution = solve_quickly(solver, case.x0, case.values)
        judge(case, solution, solved, tally, kept=solver._units is None)
    return tally


def check(tally: Tally, dtype: str) -> None:
    assert tally.solved > 0
    assert tally.wrong == 0, tally
    assert tally.share >= LEAST[dtype], tally


@pytest.mark.parametrize("dtype", list(LEAST))
@pytest.mark.parametrize("scaling", ["good", "bad"])
def test_a_few_problems(scaling, dtype):
    check(run(QUICK, scaling, dtype, "sparse"), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["staged", "sparse", "onchip"])
@pytest.mark.parametrize("dtype", list(LEAST))
@pytest.mark.parametrize("scaling", list(CLASSES))
def test_five_hundred_problems(scaling, dtype, engine):
    check(run(SLOW, scaling, dtype, engine), dtype)


def test_all_classes_hold_the_same_problems():
    good, bad = (fuzz_case(3, scaling, 4) for scaling in ("good", "bad"))
    assert np.ptp(np.log10(bad.z_unit)) > 1
    np.testing.assert_array_equal(good.params, bad.params)
    np.testing.assert_allclose(bad.x0 / bad.z_unit[: bad.x0.shape[1]], good.x0)
