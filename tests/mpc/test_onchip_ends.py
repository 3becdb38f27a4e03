"""On-chip QPs and SQP iterations that end at a tolerance: as in other engines, each by itself."""

from dataclasses import replace

import casadi as ca
import jax.numpy as jnp
import numpy as np
import pytest
from mpc_cases import mixed_stages, pendulum
from onchip_cases import as_problem, check_equal, crane, instances, leaves, same_bits
from sqp_cases import FIXED, FIXED_QP, arm, soft_arm
from trouble_cases import BATCH, TROUBLES, gate, healthy, in_order, troubled

from warpmpc import OCP, LineSearchSettings, MPCSolver, MPCStatus, Soft, SQPSettings
from warpmpc.mpc.sqp.subproblem import MOST_LOST
from warpmpc.systems import car, cartpole

CHECKED = replace(FIXED_QP, max_iter=1000, check_every=10, eps_abs=1e-7, eps_rel=1e-7)
CONVERGING = SQPSettings(max_iter=12, qp=CHECKED, hessian="gauss_newton", convexify="gershgorin")
# Undefined where a QP has no solution; other engines count its multipliers as zero.
KKT = (".kkt_residual", ".history.kkt_residual")


def both(problem, settings, other="staged", **given):
    """Solutions of the on-chip and another engine."""
    solvers = [MPCSolver(problem, settings, "float64", engine) for engine in ("onchip", other)]
    assert solvers[0].engine == "onchip"
    return [solver.solve(**given) for solver in solvers]


def counts(solution):
    """What has to be equal, not only near."""
    kept = (solution.status, solution.iterations, solution.qp_iterations)
    return [np.asarray(array).tolist() for array in kept]


@pytest.fixture(scope="module")
def solver():
    return MPCSolver(gate(), CONVERGING, "float64", "onchip")


@pytest.fixture(scope="module")
def staged():
    return MPCSolver(gate(), CONVERGING, "float64", "staged")


class TestConverging:
    def test_every_trouble_has_its_status(self, solver):
        found = solver.solve(*in_order())
        expected = [status for _, status in TROUBLES.values()]
        assert found.status[: len(TROUBLES)].tolist() == expected
        np.testing.assert_array_equal(found.status[len(TROUBLES) :], MPCStatus.CONVERGED)
        assert len(set(counts(found)[1])) > 3
        assert len(set(counts(found)[2])) > 8
        assert np.asarray(found.qp_iterations).max() < CONVERGING.max_iter * CHECKED.max_iter

    @pytest.mark.slow
    def test_equals_the_staged_engine_in_all_troubles(self, solver, staged):
        """But for rounding: the staged engine poses its QPs in changes of multipliers."""
        found, wanted = solver.solve(*in_order()), staged.solve(*in_order())
        np.testing.assert_array_equal(found.status, wanted.status)
        healthy = np.asarray(wanted.status) == MPCStatus.CONVERGED
        np.testing.assert_array_equal(found.iterations, wanted.iterations)
        assert np.abs(np.asarray(found.z) - np.asarray(wanted.z))[healthy].max() < 1e-5

    def test_bad_instances_change_no_bit_of_others(self, solver):
        x0, params, where = troubled(1)
        others = np.setdiff1d(np.arange(BATCH), list(where.values()))
        found, plain = leaves(solver.solve(x0, params)), leaves(solver.solve(*healthy()))
        for key, value in plain.items():
            np.testing.assert_array_equal(found[key][others], value[others], err_msg=key)

    @pytest.mark.parametrize("batch", [1, 13])
    def test_neighbours_make_no_difference(self, solver, batch):
        x0, params = in_order()
        last = slice(BATCH - batch, None)
        own = {name: value[last] for name, value in params.items()}
        same_bits(solver.solve(x0[last], own), solver.solve(x0, params), last)

    def test_solved_ones_stay(self, solver):
        """Whoever starts at a solution finds that out in one iteration and does not move."""
        first = solver.solve(*healthy())
        again = solver.solve(*healthy(), warm_start=first.warm_start)
        np.testing.assert_array_equal(again.z, first.z)
        np.testing.assert_array_equal(again.iterations, 1)
        np.testing.assert_array_equal(again.status, MPCStatus.CONVERGED)

    @pytest.mark.slow
    def test_steps_move_whoever_is_converged(self, solver, staged):
        x0, params = healthy()
        z = staged.solve(x0, params).z + 1e-8
        found, wanted = (s.step(z, params, x0=x0)[0] for s in (solver, staged))
        check_equal(found, wanted)
        converged = np.asarray(found.status) == MPCStatus.CONVERGED
        assert converged.sum() > BATCH // 2
        assert (np.asarray(found.step_length)[converged] > 0).all()


def steep():
    """A scalar system whose input has an effect of any size."""
    x, u, slope = ca.SX.sym("x"), ca.SX.sym("u"), ca.SX.sym("slope")
    ocp = OCP(x, u, {"slope": slope}, horizon=3, dt=0.1)
    ocp.set_dynamics(x_next=x + slope * u)
    ocp.add_residual(ca.vertcat(x, u), weight=[1, 1])
    ocp.subject_to(-1, u, 1, name="input")
    return ocp


@pytest.mark.parametrize("engine", ["onchip", "sparse"])
def test_a_qp_that_overflows_is_not_bad_data(engine):
    """It is tried again, with more and more damping; data that are not finite are not."""
    settings = replace(CONVERGING, qp=replace(CHECKED, eps_abs=1e-4, eps_rel=1e-4))
    solver = MPCSolver(steep(), settings, "float32", engine)
    slope = np.array([[1], [1e30], [2], [np.nan]], dtype="float32")
    found = solver.solve(np.full((4, 1), 0.5, dtype="float32"), {"slope": slope})
    expected = [
        MPCStatus.CONVERGED,
        MPCStatus.LINE_SEARCH_FAILED,
        MPCStatus.CONVERGED,
        MPCStatus.NON_FINITE,
    ]
    assert found.status.tolist() == expected
    assert int(found.iterations[1]) == MOST_LOST + 1


# Problem and size of the points.
PROBLEMS = {
    "pendulum": (lambda: pendulum(33), 0.5),
    "cartpole": (lambda: cartpole.build(12), 0.1),
    "car": (lambda: car.build(8), 0.3),
    "crane": (lambda: crane(40), 0.3),
    "soft": (soft_arm, 0.5),
    "soft_and_hard": (lambda: arm(3, soft=Soft(linear=(0.5, np.inf), quadratic=2.0)), 0.5),
}
FILTER = replace(CONVERGING, record=True)
SETTINGS = {
    "filter": FILTER,
    "merit": replace(FILTER, hessian="exact", line_search=LineSearchSettings(kind="merit")),
    "full": replace(FILTER, line_search=LineSearchSettings(kind="full"), qp_start="last"),
    "fixed": replace(FIXED, qp=CHECKED, record=True),
}
COMPARED = [
    *((name, "filter") for name in PROBLEMS),
    *((name, "merit") for name in ("cartpole", "soft")),
    *((name, "full") for name in ("pendulum", "crane")),
    *((name, "fixed") for name in ("pendulum", "cartpole", "car", "soft_and_hard")),
]


def given(name, batch=7):
    make, spread = PROBLEMS[name]
    problem = as_problem(make())
    x0, params, z = instances(problem, batch, spread)
    if name in ("cartpole", "car"):
        params = None  # their parameters mean something
    return {"problem": problem, "x0": x0, "params": params, "warm_start": z}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), COMPARED)
def test_equals_the_staged_engine(name, settings):
    found, wanted = both(settings=SETTINGS[settings], **given(name))
    assert counts(found) == counts(wanted)
    check_equal(found, wanted)
    assert len(set(counts(found)[2])) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [("pendulum", "fixed"), ("soft", "filter")])
def test_equals_the_dense_engine(name, settings):
    found, wanted = both(settings=SETTINGS[settings], other="dense", **given(name, 3))
    assert counts(found) == counts(wanted)
    check_equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "most", "start"),
    [
        (1, 400, "last"),
        (1, 400, "multipliers"),
        (7, 400, "multipliers"),
        (7, 1, "last"),
        (1, 1, "multipliers"),
        (30, 20, "last"),
        (6, 18, "last"),
    ],
)
def test_any_number_of_iterations_between_checks(every, most, start):
    """Also if the first iteration is judged, which starts from an s that is not a projection."""
    qp = replace(CHECKED, check_every=every, max_iter=most)
    settings = replace(FIXED, qp=qp, qp_start=start, record=True)
    found, wanted = both(pendulum(4), settings, x0=np.linspace(-0.8, 0.8, 14).reshape(7, 2))
    assert counts(found) == counts(wanted)
    check_equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["filter", "merit"])
def test_troubles_with_a_fixed_number_of_iterations(kind):
    """Without fusion; how long others go on with what is not finite is their affair."""
    search = LineSearchSettings(step_min=0.1, kind=kind)
    settings = replace(CONVERGING, mode="fixed", max_iter=4, line_search=search, fused=False)
    (x0, params), rest = in_order(), slice(len(TROUBLES), None)
    found = MPCSolver(gate(), replace(settings, fused=None), "float64", "onchip").solve(x0, params)
    wanted = MPCSolver(gate(), settings, "float64", "staged").solve(x0, params)
    check_equal(found, wanted, but=(*KKT, ".iterations"))
    assert counts(found)[::2] == counts(wanted)[::2]
    np.testing.assert_array_equal(found.iterations[rest], 4)


def cliff() -> OCP:
    """Cost that falls for ever along the input, unless something stops or outweighs it."""
    x, u, p = ca.SX.sym("x"), ca.SX.sym("u"), ca.SX.sym("p", 4)
    ocp = OCP(x, u, {"p": p}, horizon=3, dt=0.1)
    ocp.set_dynamics(x_next=0.5 * x + 0.1 * ca.sin(x))
    ocp.add_cost(x**2 - p[0] * u)
    ocp.add_cost(x**2, at="terminal")
    ocp.subject_to(-1, u, p[1], name="hard")
    ocp.subject_to(-2, u, 2, soft=Soft(linear=p[2], quadratic=p[3]), name="soft")
    return ocp


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fixed", "converge"])
def test_unbounded_cost(mode):
    """Slope of the cost, hard bound, linear and quadratic penalty; and what becomes of it."""
    cases = [
        ([1.0, np.inf, 0.5, 0.0], MPCStatus.QP_INFEASIBLE),  # penalised less than it gains
        ([1.0, np.inf, 1.5, 0.0], MPCStatus.CONVERGED),
        ([1.0, np.inf, 0.5, 0.3], MPCStatus.CONVERGED),
        ([1.0, np.inf, np.inf, 0.0], MPCStatus.CONVERGED),
        ([1.0, 3.0, 0.5, 0.0], MPCStatus.CONVERGED),
        ([1.0, -3.0, 0.5, 0.0], MPCStatus.QP_INFEASIBLE),  # crossed
    ]
    p = np.array([numbers for numbers, _ in cases])
    settings = replace(CONVERGING, mode=mode, max_iter=6, record=True)
    found, wanted = both(cliff(), settings, x0=np.full((len(cases), 1), 0.3), params={"p": p})
    assert counts(found) == counts(wanted)
    check_equal(found, wanted, but=KKT)
    if mode == "converge":
        assert found.status.tolist() == [status for _, status in cases]


@pytest.mark.slow
def test_negative_penalties():
    """Such bounds are reported as invalid, and the QP is not iterated on."""
    penalties = {"pen": np.array([[0.5, 0.5], [-0.5, 0.5], [0.5, -0.5]])}
    x0 = np.tile([0.3, 0.0], (3, 1))
    found, wanted = both(soft_arm(), FIXED, x0=x0, params=penalties)
    assert counts(found) == counts(wanted)
    assert found.status[1:].tolist() == [MPCStatus.QP_INFEASIBLE] * 2


@pytest.mark.slow
def test_without_checks():
    """SQP iterations end, QPs do not; K need not be kept."""
    problem = mixed_stages()
    x0, params, z = instances(problem, 7, 0.5)
    settings = replace(FILTER, qp=replace(FIXED_QP, max_iter=200))
    given = {"x0": x0, "params": params, "warm_start": z}
    found, wanted = both(problem, settings, **given)
    assert counts(found) == counts(wanted)
    check_equal(found, wanted)
    assert len(set(counts(found)[1])) > 2


@pytest.mark.slow
def test_float32_converges():
    qp = replace(CHECKED, eps_abs=1e-4, eps_rel=1e-4)
    settings = replace(CONVERGING, qp=qp)
    x0 = np.random.default_rng(0).uniform(-1, 1, (9, 2))
    near = MPCSolver(pendulum(5), settings, "float32", "onchip").solve(jnp.asarray(x0, "float32"))
    exact = MPCSolver(pendulum(5), CONVERGING, "float64", "onchip").solve(x0)
    np.testing.assert_array_equal(near.status, MPCStatus.CONVERGED)
    np.testing.assert_allclose(near.z, exact.z, atol=5e-3)
