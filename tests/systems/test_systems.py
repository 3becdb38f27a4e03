"""Every system: sizes of the table, parameters, guesses, plants, settings, refusals."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import STRUCTURE_FACTS
from system_names import SMALL

from warpmpc import systems
from warpmpc._errors import ProblemError
from warpmpc.problem.evaluation import initial_guess
from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.derivatives.stage_model import HessianRule, StageModel
from warpmpc.systems import patterns

NAMES = sorted(systems.SYSTEMS)
BENCHMARKS = ["cartpole", "linear", "quadrotor", "quadrotor_obstacles"]
STAGED = ["cartpole", "quadrotor", "quadrotor_obstacles"]  # variables and rows in published order
KEYS = {"success", "satisfied", "violation", "input_excess", "final_error"}


@cache
def made(name, **options):
    return systems.make(name, **options)


@cache
def assembled(name, **options):
    problem = made(name, **options).problem
    rule = HessianRule()
    return Assembly(problem, [StageModel.build(problem, g.stage, rule) for g in problem.groups])


def params_of(system, x0):
    """Parameter vector with all defaults."""
    params = system.problem.defaults.copy()
    params[: system.n_x] = x0
    return params


@pytest.mark.parametrize("name", BENCHMARKS)
def test_counts_of_the_table(name):
    problem, found, facts = made(name).problem, assembled(name), STRUCTURE_FACTS[name]
    assert (problem.n_vars, problem.n_cons) == (facts.n_vars, facts.n_cons)
    assert found.P_pattern.nnz == facts.nnz_P
    assert found.A_pattern.nnz == facts.nnz_A
    diagonal = np.repeat(np.arange(problem.n_vars), np.diff(found.P_pattern.col_ptr))
    on_diagonal = (found.P_pattern.row_idx == diagonal).sum()
    nnz_K = 2 * found.P_pattern.nnz - on_diagonal + 2 * found.A_pattern.nnz + problem.n_cons
    paper = {"cartpole": 4723, "linear": 9799, "quadrotor": 7104, "quadrotor_obstacles": 7924}
    assert nnz_K == paper[name]


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize("free_physics", [False, True])
def test_patterns_are_the_published_ones(name, free_physics):
    found, wanted = assembled(name, free_physics=free_physics), patterns.structure(name)
    for pattern, matrix in ((found.P_pattern, wanted.P), (found.A_pattern, wanted.A)):
        np.testing.assert_array_equal(pattern.col_ptr, matrix.indptr)
        np.testing.assert_array_equal(pattern.row_idx, matrix.indices)
    np.testing.assert_array_equal(found.problem.var_stage, wanted.var_stage)
    np.testing.assert_array_equal(found.problem.con_stage, wanted.con_stage)


@pytest.mark.parametrize("name", SMALL)
def test_middle_stages_are_equal(name):
    """First, middle, last; one kind more where the last node is smaller."""
    problem = made(name).problem
    assert len(problem.groups) == (3 if name in STAGED else 4)
    assert max(len(group.ks) for group in problem.groups) >= problem.horizon - 2


@pytest.mark.parametrize("name", NAMES)
def test_parts_fit_together(name):
    system = made(name)
    assert system.name == name
    if name in SMALL:  # the state of others holds more than variables of a node
        assert system.problem.x_rows.shape == (system.problem.horizon + 1, system.n_x)
    assert system.problem.u_rows.shape[1] == system.n_u
    assert not np.isnan(system.problem.defaults[system.n_x :]).any()
    x = system.sample(5)
    assert x.shape == (5, system.n_x)
    assert x.dtype == np.float64
    states, inputs = [jnp.asarray(x)], jnp.zeros((5, system.n_u))
    simulate = jax.jit(system.simulate)
    for _ in range(3):
        states.append(simulate(states[-1], inputs))
    found = system.metrics(np.stack(states, axis=1), np.zeros((5, 3, system.n_u)))
    assert found.keys() >= KEYS
    assert {value.shape for value in found.values()} == {(5,)}
    assert {found[key].dtype for key in ("success", "satisfied")} == {np.dtype(bool)}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("horizon", [1, 2, 7])
def test_other_horizons(name, horizon):
    system = systems.make(name, horizon=horizon)
    assert system.problem.horizon == horizon
    z = initial_guess(system.problem, params_of(system, system.sample(1)[0]))
    assert z.shape == (system.problem.n_vars,)
    assert np.isfinite(z).all()


@pytest.mark.parametrize("name", NAMES)
def test_plants_keep_the_dtype_and_any_leading_axes(name):
    system = made(name)
    simulate = jax.jit(system.simulate)
    x = jnp.asarray(system.sample(6), dtype="float32")
    u = jnp.full((6, system.n_u), 0.01, dtype="float32")
    after = simulate(x, u)
    assert after.dtype == np.dtype("float32")
    nested = simulate(x.reshape(2, 3, -1), u.reshape(2, 3, -1))
    np.testing.assert_allclose(nested.reshape(6, -1), after, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(simulate(x[2], u[2]), after[2], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["cartpole", "quadrotor", "pendulum"])
def test_guess_leads_to_the_origin(name):
    system = made(name)
    x0 = system.sample(1)[0]
    z = initial_guess(system.problem, params_of(system, x0))
    steps = 1 - np.arange(system.problem.horizon + 1) / system.problem.horizon
    np.testing.assert_allclose(z[system.problem.x_rows], np.outer(steps, x0), atol=1e-15)
    np.testing.assert_array_equal(z[system.problem.u_rows], 0)


def test_guess_among_cylinders_stays():
    system = made("quadrotor_obstacles")
    x0 = system.sample(1)[0]
    z = initial_guess(system.problem, params_of(system, x0))
    np.testing.assert_array_equal(z[system.problem.x_rows], np.tile(x0, (41, 1)))
    np.testing.assert_array_equal(z[system.problem.u_rows], 0)


def test_guess_of_the_linear_mpc_is_zero():
    system = made("linear")
    z = initial_guess(system.problem, params_of(system, system.sample(1)[0]))
    np.testing.assert_array_equal(z, 0)


@pytest.mark.parametrize(
    ("name", "options", "sqp_iter", "admm_iter", "step_min", "rho_equality", "kind"),
    [
        ("cartpole", {}, 10, 50, 0.1, 1.0, "filter"),
        ("cartpole", {"sqp_iter": 5, "admm_iter": 25}, 5, 25, 0.1, 1.0, "filter"),
        ("quadrotor", {}, 1, 25, 0.1, 1.0, "filter"),
        ("quadrotor_obstacles", {}, 1, 100, 0.01, 1e3, "filter"),
        ("linear", {}, 1, 25, 0.1, 1e3, "full"),
    ],
)
def test_settings_are_the_published_ones(
    name, options, sqp_iter, admm_iter, step_min, rho_equality, kind
):
    settings = systems.make(name, **options).settings
    search, qp = settings.line_search, settings.qp
    assert (settings.mode, settings.max_iter, qp.max_iter) == ("fixed", sqp_iter, admm_iter)
    assert (search.kind, search.step_min, search.decay, search.scale) == (kind, step_min, 0.5, 0.1)
    thresholds = (search.theta_max, search.theta_min, search.gamma, search.armijo)
    assert thresholds == (1e-1, 1e-3, 1e-3, 1e-4)
    assert (search.rounding, search.fallback) == (0, "smallest")
    assert (settings.hessian, settings.qp_start) == ("gauss_newton", "last")
    assert (qp.rho, qp.rho_equality, qp.relaxation, qp.sigma) == (0.1, rho_equality, 1.6, 1e-6)
    assert (qp.check_every, qp.adaptive_rho_every, qp.scaling) == (0, 0, 0)


@pytest.mark.parametrize(
    ("name", "control_dt", "steps"),
    [
        ("cartpole", 0.1, 100),
        ("quadrotor", 0.01, 100),
        ("quadrotor_obstacles", 0.01, 200),
        ("linear", 0.1, 50),
    ],
)
def test_closed_loops_are_the_published_ones(name, control_dt, steps):
    assert (made(name).control_dt, made(name).steps) == (control_dt, steps)


@pytest.mark.parametrize("name", NAMES)
def test_accurate_settings_iterate_until_convergence(name):
    assert made(name).converged_settings.mode == "converge"


def test_parameters_have_names_and_defaults():
    w = made("cartpole").params["w"]
    assert w.shape == (13,)
    np.testing.assert_array_equal(
        w[[0, 8, 12]], [4.87491613111937, 9.132100349037795, 0.06702144014521097]
    )
    assert made("cartpole").params.keys() == {"w", "tube", "dt"}
    np.testing.assert_array_equal(made("cartpole").params["dt"], np.full((101, 1), 0.1))
    quadrotor = made("quadrotor").params
    assert {name: value.shape for name, value in quadrotor.items()} == {
        "x_ref": (12,),
        "Q": (12,),
        "R": (4,),
        "dt": (41, 1),
    }
    assert quadrotor["dt"][:-1].sum() == pytest.approx(1.2080, abs=5e-5)
    assert made("quadrotor_obstacles").params["cylinders"].shape == (12,)
    shapes = {name: value.shape for name, value in made("linear").params.items()}
    assert shapes == {"A_d": (26,), "B_d": (48,), "Q": (7,), "R": (4,), "x_ref": (12,)}


@pytest.mark.parametrize(("name", "size"), [("cartpole", 9), ("quadrotor", 7), ("pendulum", 4)])
def test_physical_constants_can_be_parameters(name, size):
    assert made(name, free_physics=True).params["physics"].shape == (size,)
    assert "physics" not in made(name).params


def test_other_cylinders():
    one = np.array([[0.5, 0.5, 0.2]])
    system = systems.make("quadrotor_obstacles", cylinders=one)
    assert system.problem.n_cons == made("quadrotor").problem.n_cons + 41
    np.testing.assert_allclose(system.params["cylinders"], [0.5, 0.5, 0.3])
    x = system.sample(300)
    assert np.hypot(x[:, 0] - 0.5, x[:, 1] - 0.5).min() >= 0.34
    assert (made("quadrotor_obstacles").sample(300) != x).any()
    through = np.zeros((1, 2, 12))
    through[0, :, :2] = [[0.0, 0.0], [0.6, 0.5]]
    assert system.metrics(through, np.zeros((1, 1, 4)))["violation"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: systems.make("rocket"), f"Unknown system 'rocket'; choose one of {NAMES}."),
        (lambda: systems.make(["car"]), "Unknown system ['car']; choose one of"),
        (
            lambda: systems.make("quadrotor_obstacles", cylinders=[[0.0, 1.0]]),
            "cylinders needs the shape [n, 3]: center x, center y and a positive radius each, got "
            "[[0.0, 1.0]].",
        ),
        (
            lambda: systems.make("quadrotor_obstacles", cylinders=[[0.0, 1.0, -0.1]]),
            "a positive radius each, got [[0.0, 1.0, -0.1]].",
        ),
        *(
            (lambda name=name: made(name).sample(0), "A batch needs at least one instance, got 0.")
            for name in NAMES
        ),
        (
            lambda: made("cartpole").metrics(np.zeros((2, 3, 4)), np.zeros((2, 3, 1))),
            "metrics needs x [batch, steps + 1, 4] and u [batch, steps, 1] with at least one step, "
            "got [2, 3, 4] and [2, 3, 1].",
        ),
        (
            lambda: made("car").metrics(np.zeros((2, 1, 4)), np.zeros((2, 0, 2))),
            "with at least one step, got [2, 1, 4] and [2, 0, 2].",
        ),
        (
            lambda: made("quadrotor").metrics(np.zeros((3, 12)), np.zeros((2, 4))),
            "got [3, 12] and [2, 4].",
        ),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ProblemError, match=re.escape(message)):
        call()
