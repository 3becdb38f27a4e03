"""Long programs that contain each other share code, and programs are kept on disk."""

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc.codegen import from_casadi
from warpmpc.codegen.from_casadi import decoded, derivation, encoded, kept_program, translate
from warpmpc.codegen.sharing import Values, elements_within
from warpmpc.codegen.stage_functions import StageCase, merged_cases, shared_cases
from warpmpc.engines.runtime.stage_kernels import StageKernels

N = 4


def programs():
    """Functions of the first stage, with two more rows, and of all others."""
    x, p = ca.SX.sym("x", N), ca.SX.sym("p", 2)
    common = ca.vertcat(ca.sin(x[0]) * x[1], x[2] ** 2 + p[0], x[3] / x[0], 1.0)
    costs = ca.sumsqr(x)
    more = ca.vertcat(common[0], x[0] - p[0], common[1:], x[1] - p[1])
    first = translate(ca.Function("first", [x, p], ca.cse([more, costs])))
    other = translate(ca.Function("other", [x, p], ca.cse([common, costs])))
    return first, other


def cases():
    """Three stages with their own rows of x; p is shared."""
    first, other = programs()
    x_rows, p_rows = np.arange(3 * N).reshape(3, N), np.array([[0, 1]] * 3)
    big, small = np.arange(6)[None], 6 + np.arange(8).reshape(2, 4)
    cost = np.arange(3)[:, None]
    return [
        StageCase(first, np.array([0]), (x_rows[:1], p_rows[:1]), (big, cost[:1])),
        StageCase(other, np.array([1, 2]), (x_rows[1:], p_rows[1:]), (small, cost[1:])),
    ]


def test_the_first_stage_runs_the_program_of_the_others_and_the_rest():
    found = merged_cases(shared_cases(cases(), long=0))
    first, other = programs()
    assert sorted(case.program.n_ops for case in found) == [2, other.n_ops]
    joined = max(found, key=lambda case: case.program.n_ops)
    assert sorted(np.asarray(joined.stages).tolist()) == [0, 1, 2]
    rest = min(found, key=lambda case: case.program.n_ops)
    assert rest.out_rows[0].tolist() == [[1, 5]]
    assert rest.out_rows[1].size == 0
    assert first.n_ops == other.n_ops + 2


def test_the_stage_before_a_smaller_last_one():
    """Its inputs are the first ones of those of the others, which have zeros for the rest."""
    x, y = ca.SX.sym("x", N), ca.SX.sym("y", 2)
    shared = [ca.sin(x[0]) * x[1], x[2] / x[3]]
    short = translate(ca.Function("short", [x], [ca.vertcat(*shared)]))
    more = ca.vertcat(*shared, 0, 0)
    long = translate(ca.Function("long", [ca.vertcat(x, y)], [more]))
    x_rows = np.arange(3)[:, None] * 3 + np.arange(N + 2)
    given = [
        StageCase(long, np.array([0, 1]), (x_rows[:2],), (np.arange(8).reshape(2, 4),)),
        StageCase(short, np.array([2]), (x_rows[2:, :N],), (np.array([[8, 9]]),)),
    ]
    found = merged_cases(shared_cases(given, long=0))
    assert sorted(case.program.n_ops for case in found) == [0, short.n_ops]
    joined = max(found, key=lambda case: case.program.n_ops)
    assert sorted(np.asarray(joined.stages).tolist()) == [0, 1, 2]
    np.testing.assert_array_equal(np.sort(joined.in_rows[0], axis=0), x_rows[:, :N])
    kernels = StageKernels("smaller", found, ["x"], {"s": 10}, "float64")
    at = np.random.default_rng(0).normal(size=(1, 12, 32))
    (values,) = kernels(jnp.asarray(at))
    for rows, targets in zip(x_rows, ((0, 1), (4, 5), (8, 9)), strict=True):
        a, b, c, d = at[0, rows[:N]]
        np.testing.assert_allclose(values[0, targets[0]], np.sin(a) * b, rtol=1e-14)
        np.testing.assert_allclose(values[0, targets[1]], c / d, rtol=1e-14)
    assert not np.asarray(values)[0, [2, 3, 6, 7]].any()


def test_short_programs_stay_as_they_are():
    given = cases()
    assert shared_cases(given) == given


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shared_programs_compute_the_same_bits(dtype, monkeypatch):
    rng = np.random.default_rng(0)
    x, p = (jnp.asarray(rng.normal(size=(2, rows, 32)).astype(dtype)) for rows in (12, 2))
    results = []
    for long in (10**9, 0):
        monkeypatch.setattr(shared_cases, "__defaults__", (long,))
        kernels = StageKernels("sharing", cases(), ("x", "p"), {"g": 14, "cost": 3}, dtype)
        results.append(jax.jit(kernels)(x, p))
    assert len(merged_cases(shared_cases(cases(), long=0))) == 2
    for plain, shared in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, shared)


def test_values_are_equal_for_equal_expressions_only():
    x = ca.SX.sym("x", 3)
    a = translate(ca.Function("a", [x], [ca.vertcat(x[0] * x[1] + x[2], ca.sin(x[0]))]))
    b = translate(ca.Function("b", [x], [ca.vertcat(x[2] + x[1] * x[0], ca.cos(x[0]))]))
    c = translate(ca.Function("c", [x], [ca.vertcat(x[2] - x[0], x[0] - x[2])]))
    values = Values()
    (of_a,), (of_b,), (of_c,) = (values.of(program) for program in (a, b, c))
    assert of_a[0] == of_b[0]
    assert of_a[1] != of_b[1]
    assert of_c[0] != of_c[1]
    assert elements_within([of_b], [of_a]) is None
    assert [e.tolist() for e in elements_within([of_a[:1]], [of_b])] == [[0]]
    twice = np.array([7, 7], dtype=np.int32)
    assert elements_within([twice], [np.array([7, 3, 7])])[0].tolist() == [0, 2]
    assert elements_within([twice], [np.array([7, 3])]) is None


def test_part_keeps_what_is_needed():
    first, _ = programs()
    part = first.part([np.array([1, 5]), np.zeros(0, dtype=np.int32)])
    assert part.n_ops == 2
    assert part.input_sizes == first.input_sizes
    assert part.output_sizes == (2, 0)


def test_programs_survive_the_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("WARPMPC_CACHE_DIR", str(tmp_path))
    first, other = programs()
    assert decoded(encoded(first)).hash == first.hash
    assert decoded(encoded(first)).input_names == first.input_names
    made = []

    def make():
        made.append(1)
        return first

    key = "k" * 64
    assert kept_program(key, make).hash == first.hash
    kept_program(key, make)
    assert len(made) == 2  # short ones are not kept
    monkeypatch.setattr(from_casadi, "LONG", 0)
    kept_program(key, make)
    assert kept_program(key, make).hash == first.hash
    assert len(made) == 3
    monkeypatch.setattr(from_casadi, "decoded", lambda text: {}["other version"])
    kept_program(key, make)
    assert len(made) == 4
    (path,) = tmp_path.rglob("program_*.txt")
    path.write_text(path.read_text()[:-90])
    with pytest.warns(RuntimeWarning, match="damaged; the program is derived again"):
        assert kept_program(key, make).hash == first.hash
    assert other.hash != first.hash
    assert len(derivation()) == 64
