"""Everything that `MPCSolver` refuses, with messages that explain what to do."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpc_cases import mixed_stages, pendulum

import warpmpc.mpc
from warpmpc import (
    OCP,
    ADMMSettings,
    MPCProblem,
    MPCSolver,
    MPCWarmStart,
    ProblemError,
    QPState,
    SettingsError,
    SQPSettings,
    Stage,
)
from warpmpc.mpc.types import TrajectoryLayout

X0 = np.zeros((3, 2))
A = {"a": np.zeros((3, 2))}


def walker() -> OCP:
    """A parameter without default, and one per node."""
    x, u, a, ref = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("a", 2), ca.SX.sym("ref", 2)
    ocp = OCP(x, u, {"a": a}, p_stage={"ref": ref}, horizon=3, dt=0.1)
    ocp.set_dynamics(x_next=x + ca.vertcat(u, u))
    ocp.add_cost(ca.sumsqr(x - ref) + a[0] * u**2)
    ocp.set_default("ref", 0.0)
    return ocp


@pytest.fixture(scope="module")
def solver():
    """Nothing here is ever compiled: all is refused before."""
    return MPCSolver(walker(), dtype="float64", engine="sparse")


@pytest.fixture(scope="module")
def swing():
    return MPCSolver(pendulum(3), dtype="float64", engine="sparse")


class TestConstruction:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"settings": ADMMSettings()}, "settings must be SQPSettings, got ADMMSettings"),
            ({"settings": {}}, "settings must be SQPSettings, got dict"),
            ({"dtype": "float16"}, "dtype must be one of .*'float16'"),
            (
                {"engine": "pcg"},
                r"Unknown engine 'pcg'; choose one of \['auto', 'onchip'",
            ),
            ({"engine": None}, "Unknown engine None"),
            ({"device": "npu"}, "device must be a JAX device or one of its platforms, got 'npu'"),
            ({"device": 3}, "device must be a JAX device or one of its platforms, got 3; there"),
            ({"device": True}, "device must be a JAX device .*got True"),
        ],
    )
    def test_settings(self, given, message):
        with pytest.raises(SettingsError, match=message):
            MPCSolver(pendulum(3), **given)

    @pytest.mark.parametrize("problem", [None, "pendulum", [Stage(ca.SX.sym("z"))], pendulum])
    def test_problem(self, problem):
        message = f"problem must be an OCP or MPCProblem, got {type(problem).__name__}"
        with pytest.raises(ProblemError, match=message):
            MPCSolver(problem)

    def test_float64_needs_64_bit_mode(self):
        with jax.enable_x64(False), pytest.raises(SettingsError, match="needs 64-bit mode in JAX"):
            MPCSolver(pendulum(3), dtype="float64")

    def test_damping_needs_a_diagonal(self):
        z = ca.SX.sym("z", 2)
        sparse = MPCProblem([Stage(z, cost=z[0] ** 2, g=z, lower=-1)], full_diagonal=False)
        message = "regularization needs all diagonal entries .* full_diagonal=True"
        with pytest.raises(SettingsError, match=message):
            MPCSolver(sparse, SQPSettings(regularization=1e-3))

    @pytest.mark.parametrize("rows", [{}, {"g": ca.SX(0.5), "lower": 0, "upper": 1}])
    def test_no_constraints(self, rows):
        z = ca.SX.sym("z", 2)
        problem = MPCProblem([Stage(z, cost=ca.sumsqr(z), **rows)])
        message = "No constraint of this problem depends on a variable; .* Add them, or a bound"
        with pytest.raises(ProblemError, match=message):
            MPCSolver(problem)

    @pytest.mark.parametrize(
        "nominal",
        [
            3,
            "ab",
            (np.zeros(11),),
            (np.zeros(11), np.zeros(6), 0),
            (np.zeros(10), np.ones(6)),
            (np.zeros(11), np.ones((2, 6))),
            (np.full(11, np.nan), np.ones(6)),
            (np.zeros(11), None),
        ],
    )
    def test_nominal(self, nominal):
        message = r"nominal needs z \(11\) and the whole parameter vector \(6\) of one instance"
        with pytest.raises(ProblemError, match=message):
            MPCSolver(pendulum(3), nominal=nominal)

    def test_nominal_without_scaling(self):
        settings = SQPSettings(qp=ADMMSettings(scaling=0))
        with pytest.raises(SettingsError, match="nominal has no effect with scaling=0"):
            MPCSolver(pendulum(3), settings, nominal=(np.zeros(11), np.ones(6)))


class TestParameters:
    @pytest.mark.parametrize(
        ("x0", "params", "message"),
        [
            (None, A, 'x0 is missing: pass the initial states, or params with the entry "x0"'),
            (X0, {**A, "x0": X0}, r'x0 is given twice: as an argument and in params\["x0"\]'),
            (X0, {**A, "b": X0}, r"Unknown parameter 'b'; this problem has \['a', 'ref'\]"),
            (X0, None, r"No value for the parameters \['a'\]: pass them in `params`, or give"),
            (X0, {}, r"No value for the parameters \['a'\]"),
            (X0[:2], A, r"same leading axes, or none; got x0: \[2\], a: \[3\]"),
            (X0, {"a": np.zeros((1, 2))}, r"same leading axes, or none; got x0: \[3\], a: \[1\]"),
            (X0, np.zeros((2, 10)), r"same leading axes, or none; got x0: \[3\], params: \[2\]"),
            (X0, np.zeros(9), r"params has shape \(9,\); its last axis must have length 10"),
            (X0, {"a": np.zeros(3)}, r"params\['a'\] has shape \(3,\); its last axis .*length 2"),
            (X0, {"a": np.zeros(2, complex)}, r"params\['a'\] has dtype complex128 but the solver"),
            (X0, {"a": [0.0, 0.0]}, r"params\['a'\] must be a NumPy or JAX array, got list"),
            (X0, {"a": 1.0}, r"params\['a'\] must be a NumPy or JAX array, got float"),
            (X0, {"a": np.float64(1)}, r"params\['a'\] has shape \(\); its last axis"),
            (X0, 7, "params must be a NumPy or JAX array, got int"),
            (X0[:, :1], A, r"x0 has shape \(3, 1\); its last axis must have length 2"),
            (X0[:0], A, r"x0 is empty: shape \(0, 2\); pass at least one instance"),
            (X0 > 0, A, "x0 has dtype bool but the solver works in float64; pass an array of real"),
            (X0, {**A, 3: X0}, "Names in a dict of arrays must be strings|Names in params must be"),
            (X0, {3: X0}, "Names in params must be strings, got 3"),
            (X0.tolist(), A, "x0 must be a NumPy or JAX array, got list"),
            (
                X0,
                {**A, "ref": np.zeros((3, 2))},
                r"params\['ref'\] has shape \(3, 2\); it belongs to 4 nodes: its last axes must be "
                r"\(4, 2\), or \(2,\) alone for one value everywhere",
            ),
        ],
    )
    def test_refused(self, solver, x0, params, message):
        for call in (solver.solve, solver.z_guess, solver.pack):
            with pytest.raises(ProblemError, match=message):
                call(x0, params)
        with pytest.raises(ProblemError, match=message):
            solver.step(np.zeros(solver.problem.n_vars), params, x0=x0)

    def test_refused_while_tracing(self, solver):
        with pytest.raises(ProblemError, match=r"x0 has shape \(2, 1\)"):
            jax.jit(lambda x: solver.solve(x).z)(jnp.zeros((2, 1)))

    def test_names_that_overlap(self):
        problem = mixed_stages()
        rows = {"all": 2 + np.arange(3), "first": np.array([2])}
        named = MPCProblem(problem.stages, x0=problem.x0, shared=problem.shared, param_names=rows)
        solver = MPCSolver(named, dtype="float64", engine="sparse")
        twice = {"all": np.zeros(3), "first": np.zeros(1)}
        with pytest.raises(ProblemError, match=r"params names an entry twice: \['all', 'first'\]"):
            solver.solve(X0, twice)


class TestStarts:
    @pytest.mark.parametrize(
        ("start", "message"),
        [
            (np.zeros(10), r"z has shape \(10,\); its last axis must have length 11"),
            (np.zeros((2, 11)), r"warm_start.z has leading axes \[2\] but the data have \[3\]"),
            (np.zeros(11, complex), "z has dtype complex128 but the solver works in float64"),
            ([0.0] * 11, "z must be a NumPy or JAX array, got list"),
        ],
    )
    def test_trajectory(self, swing, start, message):
        with pytest.raises(ProblemError, match=message):
            swing.solve(X0, warm_start=start)
        with pytest.raises(ProblemError, match=message):
            swing.step(start, x0=X0)

    @pytest.mark.parametrize("part", ["d", "s", "y"])
    def test_parts(self, swing, part):
        start = swing.cold_start(jnp.zeros((3, 11)))
        size = getattr(start.qp, part).shape[1]
        for wrong, message in (
            (jnp.zeros((3, size - 1)), rf"warm_start.{part} has shape .* must have length {size}"),
            (jnp.zeros((2, size)), rf"warm_start.{part} has leading axes \[2\] but the data have"),
            (jnp.zeros((3, size), complex), rf"warm_start.{part} has dtype complex128"),
        ):
            state = replace(start.qp, **{part: wrong})
            with pytest.raises(ProblemError, match=message):
                swing.solve(X0, warm_start=MPCWarmStart(start.z, state))
            with pytest.raises(ProblemError, match=message):
                swing.step(start.z, state=state, x0=X0)

    @pytest.mark.parametrize("state", [3, (X0, X0, X0), MPCWarmStart(X0, QPState(X0, X0, X0))])
    def test_state(self, swing, state):
        message = f"state must be QPState, the second result of `step` .*{type(state).__name__}"
        with pytest.raises(ProblemError, match=message):
            swing.step(np.zeros((3, 11)), state=state, x0=X0)


class TestReading:
    def test_unknown_variable(self):
        layout = TrajectoryLayout(pendulum(3).problem())
        with pytest.raises(
            ProblemError, match=r"No variable is named 'v'; there are \['u', 'x', 'x_0', 'x_1'\]"
        ):
            layout.rows("v")

    @pytest.mark.parametrize(("name", "what"), [("x", "states"), ("u", "inputs")])
    def test_unknown_states(self, name, what):
        z = ca.SX.sym("z", 2)
        problem = MPCProblem([Stage(z, cost=ca.sumsqr(z - 1), g=z, lower=0)])
        solver = MPCSolver(problem, dtype="float64", engine="sparse")
        start = solver.cold_start(jnp.zeros(2))
        parts = dict.fromkeys(warpmpc.Solution.__dataclass_fields__)
        solution = warpmpc.Solution(**{**parts, "z": start.z, "layout": TrajectoryLayout(problem)})
        message = rf"does not say which variables are {what}; give its stages `n_x`, or read "
        with pytest.raises(ProblemError, match=message):
            getattr(solution, name)


def test_every_raise_is_known():
    """A new refusal needs a test: this counts those that have one (torch's is elsewhere)."""
    folder = Path(warpmpc.mpc.__file__).parent
    counts = {}
    for path in sorted(folder.rglob("*.py")):
        raised = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Raise)]
        if raised:
            counts[path.stem] = len(raised)
    known = {
        "choice": 3,
        "diagnose": 1,
        "host_batch": 4,
        "linear_system": 1,
        "parameters": 9,
        "settings": 8,
        "solver": 14,
        "types": 2,
    }
    assert counts == known
