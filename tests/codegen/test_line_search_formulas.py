"""Acceptance, choice, verdict and report of an SQP iteration: native source agrees with JAX."""

from dataclasses import replace
from functools import cache
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp

from warpmpc import LineSearchSettings, SQPSettings
from warpmpc.codegen.native.line_search import (
    COST_UNIT,
    REPORT_ROWS,
    SQPTolerances,
    report_source,
    verdict,
)
from warpmpc.engines.runtime.loading import start_warp
from warpmpc.mpc.line_search import LINE_SEARCHES, Trial, choose, native_rule
from warpmpc.mpc.settings import Tolerances
from warpmpc.mpc.sqp.general import Verdict, relative_kkt
from warpmpc.mpc.sqp.subproblem import cost_unit
from warpmpc.mpc.stage_evaluation import Evaluation

DTYPES = ["float32", "float64"]
MODES = ["fixed", "converge"]
TOLERANCES = Tolerances(step=0.5, kkt=0.25, violation=0.125)
NAN, INF = np.nan, np.inf

LIBM = {
    "float32": "#define LIBM(name) __builtin_##name##f\n",
    "float64": "#define LIBM(name) __builtin_##name\n",
}
HEAD = """
#define ROOT(x) LIBM(sqrt)(x)
#define MAX(a, b) ((a) < (b) ? (b) : (a))
const int n = given.shape[1];
#define GIVEN(i) given.data[(i) * n + thread]
#define FOUND(i) found.data[(i) * n + thread]
"""
SEARCH = """
const SCALAR slope = GIVEN(3), weight = GIVEN(4);
int choice = -1;
bool accepted = false;
SEARCH_AT_ITERATE(GIVEN(0), GIVEN(1), GIVEN(2))
for (int i = 0; i < POINTS && !accepted; ++i) {
    const SCALAR step = ladder[i];
    const SCALAR cost = GIVEN(5 + 3 * i), squares = GIVEN(6 + 3 * i), absolute = GIVEN(7 + 3 * i);
    SEARCH_AT_TRIAL
    if (SEARCH_TAKES(i + 1 == POINTS)) choice = i;
}
FOUND(0) = choice;
FOUND(1) = accepted;
"""
NAMES = ("d_size", "z_size", "stationarity", "slack", "gradient", "unit", "worst_here", "primal")
FLAGS = ("accepted", "usable", "solvable")
NEW = ("alpha", "cost_new", "worst_new", "squares_new", "dual")


@cache
def kernel(dtype: str, body: str):
    """A kernel from ``given`` to ``found``, one thread per column, compiled for the CPU."""
    start_warp()
    real = wp.array2d(dtype={"float32": wp.float32, "float64": wp.float64}[dtype])
    name = {"float32": "float", "float64": "double"}[dtype]

    @wp.func_native(f"#define SCALAR {name}\n{LIBM[dtype]}{HEAD}{body}")
    def evaluate(given: real, thread: int, found: real): ...

    @wp.kernel(module="unique", enable_backward=False)
    def columns(given: real, found: real):
        thread = wp.tid()
        evaluate(given, thread, found)

    return columns


def native(body: str, given: np.ndarray, n_found: int) -> np.ndarray:
    """What the body makes of each column."""
    found = wp.zeros(
        (n_found, given.shape[1]), dtype=wp.dtype_from_numpy(given.dtype), device="cpu"
    )
    compiled = kernel(given.dtype.name, body)
    wp.launch(compiled, given.shape[1], [wp.array(given, device="cpu")], [found], device="cpu")
    return found.numpy()


def trials(dtype: str, steps: int) -> np.ndarray:
    """Columns of a point, slope, weight and trial points: random ones, ties and edges."""
    rng = np.random.default_rng(0)
    count = 2000
    given = rng.normal(size=(5 + 3 * steps, count))
    size = 10.0 ** rng.choice([-6, -3, -1, 0, 1], given.shape)
    given[1:3] = np.abs(given * size)[1:3]
    given[4] = np.abs(given[4])
    for i in range(steps):
        given[5 + 3 * i] = given[0] + given[5 + 3 * i] * size[5 + 3 * i]
        given[6 + 3 * i : 8 + 3 * i] = np.abs(given * size)[6 + 3 * i : 8 + 3 * i]
    edges = (0.0, 1.0, -1.0, NAN, INF, -INF)
    special = []
    for cost_0, cost in product(edges, repeat=2):
        for squares_0, squares in product((0.0, 1.0, NAN, INF), repeat=2):
            for slope, weight in ((-1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (NAN, 1.0), (-1.0, INF)):
                point = (cost_0, squares_0, squares_0, slope, weight)
                special.append([*point, *(cost, squares, squares) * (steps - 1), 0.5, 0.0, 0.0])
                special.append([*point, *(cost, squares, squares) * steps])
    return np.concatenate([given, np.array(special).T], axis=1).astype(dtype)


def chosen(given: np.ndarray, settings: SQPSettings):
    """The choice of JAX: index, which is -1 without a step, and whether it was accepted."""
    steps = len(settings.line_search.ladder)

    def tiles(rows):
        return jnp.asarray(rows).reshape(len(rows), 1, 1, -1)

    def evaluation(cost, squares, absolute):
        return Evaluation(tiles(cost), tiles(squares), tiles(absolute), tiles(absolute))

    points = given[5:].reshape(steps, 3, -1)
    there = evaluation(points[:, 0], points[:, 1], points[:, 2])
    here = evaluation(given[0:1], given[1:2], given[2:3])
    found = choose(Trial(here, there, tiles(given[3:4]), tiles(given[4:5])), settings)
    moves = np.asarray(found.alpha).ravel() > 0
    return np.where(moves, np.asarray(found.index).ravel(), -1), np.asarray(found.accepted).ravel()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", list(LINE_SEARCHES))
@pytest.mark.parametrize("fallback", ["smallest", "stay"])
def test_both_choose_the_same_step(dtype, mode, kind, fallback):
    search = LineSearchSettings(kind=kind, step_min=0.1, fallback=fallback)
    settings = SQPSettings(mode=mode, line_search=search)
    rule = native_rule(settings, dtype)
    given = trials(dtype, len(rule.ladder))
    head = f"\n#define POINTS {len(rule.ladder)}\nconst SCALAR ladder[] = {{{rule.steps(dtype)}}};"
    index, accepted = native(head + rule.macros(dtype) + SEARCH, given, 2)
    expected_index, expected = chosen(given, settings)
    np.testing.assert_array_equal(accepted, expected)
    np.testing.assert_array_equal(index, expected_index)
    assert set(index) >= {0, len(rule.ladder) - 1} | ({-1} if fallback == "stay" else set())


def test_conditions_say_whether_they_need_multipliers():
    def weighs(kind, mode):
        settings = SQPSettings(mode=mode, line_search=LineSearchSettings(kind=kind))
        return native_rule(settings, "float32").weighs

    assert {(k, m): weighs(k, m) for k, m in product(LINE_SEARCHES, MODES)} == {
        ("filter", "fixed"): False,
        ("filter", "converge"): True,
        ("merit", "fixed"): True,
        ("merit", "converge"): True,
        ("full", "fixed"): False,
        ("full", "converge"): False,
    }


def states(dtype: str) -> np.ndarray:
    """Columns of `NAMES`, `FLAGS` and `NEW`: values around the tolerances, ties and edges."""
    rng = np.random.default_rng(1)
    near = rng.choice(
        [0, 0.125, 0.25, 0.5, 1, 2, NAN, INF], (len(NAMES), 4000), p=[0.3, *[0.1] * 7]
    )
    flags = rng.choice([0, 1], (len(FLAGS), 4000), p=[0.2, 0.8])
    return np.concatenate([near, flags, rng.normal(size=(len(NEW), 4000))]).astype(dtype)


def declared() -> str:
    values = [f"const SCALAR {name} = GIVEN({i});" for i, name in enumerate((*NAMES,))]
    flags = [f"const bool {name} = GIVEN({len(NAMES) + i}) > 0;" for i, name in enumerate(FLAGS)]
    first = len(NAMES) + len(FLAGS)
    values += [f"const SCALAR {name} = GIVEN({first + i});" for i, name in enumerate(NEW)]
    return "\n".join([*values, *flags])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("soft", [False, True])
def test_both_have_the_same_verdict(dtype, soft):
    given = states(dtype)
    row = dict(zip((*NAMES, *FLAGS), map(jnp.asarray, given), strict=False))
    t = TOLERANCES
    tolerances = SQPTolerances(tol_step=t.step, tol_kkt=t.kkt, tol_violation=t.violation)
    head = "\n" + "\n".join(tolerances.defines(dtype)) + "\n" + declared()
    body = f"{head}\nbool converged;\n{verdict(soft=soft)}\nFOUND(0) = converged;"
    kkt = relative_kkt(row["stationarity"], row["slack"], row["unit"])
    sizes = (row["d_size"], row["z_size"], row["accepted"] > 0, row["worst_here"])
    holds = Verdict(*sizes, kkt=kkt, primal=row["primal"]).holds(t, soft=soft)
    expected = holds & (row["usable"] > 0) & (row["solvable"] > 0)
    # A maximum of C drops what is NaN; the report of such an instance is NaN in both.
    clear = np.isfinite(given[: len(NAMES)]).all(axis=0) & (given[NAMES.index("unit")] > 0)
    found = native(body, given, 1)[0]
    np.testing.assert_array_equal(found[clear], np.asarray(expected)[clear])
    assert 0.01 < found[clear].mean() < 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_have_the_same_unit_of_the_cost(dtype):
    """It is proportional to the cost, and one where there is no cost at all."""
    rng = np.random.default_rng(2)
    sizes = 10.0 ** rng.uniform(-12, 12, (2, 1000)) * rng.choice([0, 1], (2, 1000), p=[0.2, 0.8])
    given = sizes.astype(dtype)
    found = native(f"{COST_UNIT}FOUND(0) = COST_UNIT(GIVEN(0), GIVEN(1), 7);", given, 1)[0]
    expected = np.asarray(cost_unit(*map(jnp.asarray, given), 7))
    np.testing.assert_allclose(found, expected, rtol=4 * np.finfo(dtype).eps)
    assert (found[(given == 0).all(axis=0)] == 1).all()
    # Roots of the diagonal grow by two where the cost grows by four.
    more = cost_unit(4 * jnp.asarray(given[0]), 2 * jnp.asarray(given[1]), 7)
    some = given.any(axis=0)
    np.testing.assert_array_equal(np.asarray(more)[some], 4 * expected[some])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("converges", [False, True])
def test_reports_have_one_row_per_name(dtype, converges):
    given = states(dtype)
    lines = (
        report_source(converges=converges)
        .replace("report[", "found.data[n * ")
        .replace("] =", " + thread] =")
    )
    found = native(f"\n{declared()}\n{lines}", given, len(REPORT_ROWS))
    value = dict(zip((*NAMES, *FLAGS, *NEW), given, strict=True))
    known = np.where(value["usable"] > 0, 0, NAN)
    solvable = value["solvable"] > 0
    expected = {
        "alpha": value["alpha"],
        "accepted": (value["accepted"] > 0) & (value["usable"] > 0),
        "usable": value["usable"],
        "cost": value["cost_new"],
        "worst": value["worst_new"],
        "squares": value["squares_new"],
        "worst_before": value["worst_here"],
        "primal": value["primal"] + known,
        "dual": value["dual"] + known,
        "stationarity": np.where(solvable, value["stationarity"], value["gradient"]) + known,
        "gradient": value["unit" if converges else "gradient"] + known,
        "slack": np.where(solvable, value["slack"], 0) + known,
        "d_size": value["d_size"] + known,
        "z_size": value["z_size"],
    }
    assert tuple(expected) == REPORT_ROWS
    for row, name in zip(found, REPORT_ROWS, strict=True):
        np.testing.assert_array_equal(row, expected[name], err_msg=name)


def test_rows_of_wider_reports_are_further_apart():
    assert "report[2] = usable;" in report_source()
    assert "report[TILE_2] = usable;" in report_source(tiled=True)


def test_a_rule_is_found_by_its_name(monkeypatch):
    monkeypatch.setitem(LINE_SEARCHES, "twin", replace(LINE_SEARCHES["merit"]))
    twin, merit = (
        native_rule(SQPSettings(line_search=LineSearchSettings(kind=kind)), "float32")
        for kind in ("twin", "merit")
    )
    assert twin == merit
