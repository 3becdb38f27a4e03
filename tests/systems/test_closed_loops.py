"""First control steps of the benchmarks against the reference iteration, and their check runs."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_models as models
import reference_sqp as reference
from system_names import SMALL

from warpmpc import systems
from warpmpc.mpc.solver import MPCSolver
from warpmpc.mpc.types import MPCStatus
from warpmpc.sim.rollout import rollout

STEPS = 3
TOLERANCE = 1e-8  # trajectories agree within it; the iterations agree to 1e-10


@dataclass(frozen=True)
class Case:
    """A benchmark and its reference."""

    name: str
    problem: reference.Problem
    options: reference.Options
    plant: Any
    interpolated: bool = True
    made: dict[str, Any] = field(default_factory=dict)

    def guess(self, x0):
        """Interpolated linearly to the origin, or held; inputs are zero."""
        n_nodes = len(self.problem.dt) + 1
        steps = np.linspace(1, 0, n_nodes) if self.interpolated else np.ones(n_nodes)
        return np.hstack([np.outer(steps, x0), np.zeros((n_nodes, self.problem.n_u))]).ravel()


def cartpole_plant(x, u):
    return x + 0.1 * models.cartpole_xdot(x, np.clip(u, -9, 9))


def quadrotor_plant(x, u):
    return x + 0.01 * models.quadrotor_xdot(x, u)


CASES = {
    "cartpole_5x25": Case(
        "cartpole",
        reference.cartpole(100),
        reference.Options(5, 25),
        cartpole_plant,
        made={"sqp_iter": 5, "admm_iter": 25},
    ),
    "cartpole_10x50": Case(
        "cartpole", reference.cartpole(100), reference.Options(10, 50), cartpole_plant
    ),
    "quadrotor": Case(
        "quadrotor", reference.quadrotor(40), reference.Options(1, 25), quadrotor_plant
    ),
    "quadrotor_obstacles": Case(
        "quadrotor_obstacles",
        reference.quadrotor(40, cylinders=True),
        reference.Options(1, 100, step_min=0.01, rho_equality=1e3),
        quadrotor_plant,
        interpolated=False,
    ),
}


@cache
def solver_of(key, engine):
    system = systems.make(CASES[key].name, **CASES[key].made)
    return system, MPCSolver(system.problem, system.settings, dtype="float64", engine=engine)


@pytest.mark.parametrize(
    ("key", "engine"),
    [
        ("cartpole_10x50", "staged"),
        pytest.param("quadrotor_obstacles", "sparse", marks=pytest.mark.slow),
        *(pytest.param(key, "auto", marks=pytest.mark.gpu) for key in CASES),
    ],
)
def test_first_steps_are_those_of_the_reference(key, engine):
    case, (system, solver) = CASES[key], solver_of(key, engine)
    x0 = system.sample(64)[:2]
    x, warm, found = jnp.asarray(x0), None, []
    simulate = jax.jit(system.simulate)
    for _ in range(STEPS):
        found.append(solver.solve(x, warm_start=warm))
        warm, x = found[-1].warm_start, simulate(x, found[-1].u[:, 0])
    for b, start in enumerate(x0):
        wanted, states = reference.closed_loop(
            case.problem, case.guess(start), case.plant, start, STEPS, case.options
        )
        for here, there in zip(found, wanted, strict=True):
            np.testing.assert_allclose(here.z[b], there.z, rtol=0, atol=TOLERANCE)
            np.testing.assert_allclose(here.y[b], there.y, rtol=0, atol=TOLERANCE)
            assert float(here.step_length[b]) == there.alphas[-1]
            assert bool(here.accepted[b]) == there.accepted
            for value, expected in (
                (here.cost, there.cost),
                (here.theta, there.theta),
                (here.primal_residual, there.primal),
                (here.dual_residual, there.dual),
            ):
                assert float(value[b]) == pytest.approx(expected, rel=1e-7, abs=1e-10)
        np.testing.assert_allclose(x[b], states[-1], rtol=0, atol=TOLERANCE)


def test_first_steps_exercise_the_line_search():
    """Some steps of the comparison above are shortened, so that the filter matters."""
    case = CASES["cartpole_10x50"]
    x0 = systems.make("cartpole").sample(64)[0]
    wanted, _ = reference.closed_loop(
        case.problem, case.guess(x0), case.plant, x0, STEPS, case.options
    )
    assert {alpha for result in wanted for alpha in result.alphas} >= {1.0, 0.5, 0.25}


def test_linear_mpc_check_values():
    """One full step from zero is the QP of PROBLEMS.md, section 1."""
    system = systems.make("linear")
    solver = MPCSolver(system.problem, system.settings, dtype="float64", engine="sparse")
    solution = solver.solve(np.zeros((1, 12)))
    constant = 0.5 * 10 * 41  # the reference's share of the cost
    assert float(solution.cost[0]) - constant == pytest.approx(-191.13321438, abs=5e-9)
    u_0 = (-1.03676135, 1.76159993, -1.03676135, 1.76159993)
    np.testing.assert_allclose(solution.u[0, 0], u_0, rtol=0, atol=5e-9)
    assert float(solution.primal_residual[0]) == pytest.approx(0.0451614, rel=2e-6)
    assert float(solution.dual_residual[0]) == pytest.approx(7.09990e-4, rel=5e-6)


def check_converged(name, batch):
    system = systems.make(name)
    solver = MPCSolver(system.problem, system.converged_settings, dtype="float64", engine="sparse")
    solution = solver.solve(system.sample(batch))
    assert (solution.status == MPCStatus.CONVERGED).all()
    assert float(solution.violation.max()) <= 1e-6
    return solution


@pytest.mark.slow
def test_accurate_solutions_avoid_the_obstacle():
    """The obstacle is soft, but its penalty is exact."""
    solution = check_converged("car", 8)
    away = jnp.hypot(solution["px"] + 7.0, solution["py"])
    assert float(away.min()) == pytest.approx(2.1, abs=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SMALL)
def test_accurate_solutions_exist(name):
    check_converged(name, 32)


# Results of whole closed loops in PROBLEMS.md, with its digits.
CHECK_RUNS = {
    "cartpole_5x25": (64, {"theta": (0.00546, 0.440), "step": 0.869, "accepted": 0.933}),
    "cartpole_10x50": (32, {"theta": (0.00972, 0.107), "step": 0.645, "accepted": 0.986}),
    "quadrotor": (64, {"theta": (4.28e-4, 0.01973), "step": 1.0, "accepted": 1.0}),
    "quadrotor_obstacles": (64, {"theta": (0.00225, 0.2553), "step": 0.9966, "accepted": 1.0}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("key", sorted(CHECK_RUNS))
def test_check_runs(key):
    system, solver = solver_of(key, "auto")
    batch, expected = CHECK_RUNS[key]
    loop = rollout(solver, system.simulate, system.sample(batch), system.steps, shift=False)
    found = system.metrics(np.asarray(loop.x), np.asarray(loop.u))
    assert found["success"].all()
    assert found["satisfied"].sum() == (62 if key == "quadrotor_obstacles" else batch)
    mean, largest = expected["theta"]
    assert float(loop.theta.mean()) == pytest.approx(mean, rel=2e-3)
    assert float(loop.theta.max()) == pytest.approx(largest, rel=2e-3)
    assert float(loop.step_length.mean()) == pytest.approx(expected["step"], rel=3e-3)
    assert float(loop.accepted.mean()) == pytest.approx(expected["accepted"], rel=2e-3)
    FIGURES[key](found)


def _cartpole_5x25(found):
    assert found["final_error"].mean() == pytest.approx(0.110, rel=5e-3)
    assert found["input_excess"].max() == pytest.approx(7.4e-4, rel=1e-2)


def _cartpole_10x50(found):
    assert found["final_error"].mean() == pytest.approx(1.9e-7, rel=0.1)


def _quadrotor(found):
    batch = found["final_error"].size
    rms = np.sqrt(np.sum(found["final_error"] ** 2) / (3 * batch))
    assert rms == pytest.approx(0.03256, rel=2e-4)
    rms = np.sqrt(np.sum(found["final_state"] ** 2) / (12 * batch))
    assert rms == pytest.approx(0.27974, rel=2e-5)
    assert found["final_cost"].mean() == pytest.approx(0.0039196, rel=2e-5)


def _quadrotor_obstacles(found):
    assert found["violation"].max() == pytest.approx(1.9e-4, rel=0.03)
    assert found["input_excess"].max() == pytest.approx(0.0208, rel=5e-3)
    assert (found["input_excess"] > 0).all()


FIGURES = {
    "cartpole_5x25": _cartpole_5x25,
    "cartpole_10x50": _cartpole_10x50,
    "quadrotor": _quadrotor,
    "quadrotor_obstacles": _quadrotor_obstacles,
}
