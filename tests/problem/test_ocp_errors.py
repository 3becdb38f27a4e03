"""Every mistake in an OCP raises where it is made, with a sentence that explains what to do."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

from warpmpc._errors import ProblemError
from warpmpc.problem.integrators import INTEGRATORS
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.problem.stage import Soft

X, U, Q, S, Y = (ca.SX.sym(name, n) for name, n in zip("xuqsy", (2, 1, 2, 1, 1), strict=True))


def make(**given):
    arguments = {"x": X, "u": U, "p": Q, "p_stage": S, "horizon": 4, "dt": 0.1}
    return OCP(**{**arguments, **given})


@pytest.fixture
def ocp():
    return make()


def refuses(message):
    return pytest.raises(ProblemError, match=message)


class TestConstructor:
    @pytest.mark.parametrize("horizon", [0, -1, 2.0, True, None, "4"])
    def test_horizon(self, horizon):
        with refuses("^horizon must be an integer, at least 1 .*, got "):
            make(horizon=horizon)

    @pytest.mark.parametrize("dt", [0, -0.1, np.inf, [0.1, 0.1, 0.0, 0.1]])
    def test_dt_is_positive(self, dt):
        with refuses("^dt must be positive and finite, got "):
            make(dt=dt)

    def test_dt_is_a_number(self):
        with refuses("^dt must be positive and finite, got nan"):
            make(dt=np.nan)
        with refuses("^dt must be a number, an array or an SX expression, got str"):
            make(dt="0.1")
        with refuses("^dt is an MX expression"):
            make(dt=ca.MX.sym("dt"))
        with refuses(r"^dt must be a scalar, got shape \(2, 1\)"):
            make(dt=Q)
        with refuses("^dt uses the unknown symbol 'y'"):
            make(dt=Y)

    @pytest.mark.parametrize("dt", [[0.1], [0.1] * 5, np.ones(3), ca.DM([0.1, 0.2])])
    def test_dt_of_another_length(self, dt):
        n = np.size(dt) if not isinstance(dt, ca.DM) else 2
        with refuses(f"^dt has {n} values but there are 4 intervals; give one each, or a scalar"):
            make(dt=dt)

    @pytest.mark.parametrize("x", [None, ca.SX(0, 1), {}])
    def test_no_states(self, x):
        with refuses("^x is empty: a problem needs at least one state"):
            make(x=x)

    @pytest.mark.parametrize("name", ["x", "u", "p", "p_stage"])
    def test_symbols(self, name):
        with refuses(f"^{name} is an MX expression; build it with `ca.SX`"):
            make(**{name: ca.MX.sym("m")})
        with refuses(f"^{name} must consist of SX symbols .*, but contains sin"):
            make(**{name: ca.sin(Y)})
        with refuses(f"^{name} must consist of SX symbols .*, got int"):
            make(**{name: 2})
        with refuses(f"^{name} contains the symbol 'y' twice; list it once"):
            make(**{name: {"a": Y, "b": Y}})
        with refuses(rf"^{name}\['a'\] must consist of SX symbols"):
            make(**{name: {"a": 2 * Y}})
        with refuses(rf"^{name}\['a'\] is empty; leave the name out"):
            make(**{name: {"a": ca.SX(0, 1)}})
        with refuses(rf"^{name}\['A'\] has shape \(2, 2\) but must be a column; .*`ca.vec`"):
            make(**{name: {"A": ca.SX.sym("A", 2, 2)}})
        for wrong in (1, "", None):
            with refuses(f"^Names in {name} must be strings, got"):
                make(**{name: {wrong: Y}})

    @pytest.mark.parametrize(
        ("one", "other"), [("x", "u"), ("x", "p"), ("u", "p_stage"), ("p", "p_stage")]
    )
    def test_overlaps(self, one, other):
        with refuses(
            f"^The symbol 'y' is in both {one} and {other}; make separate symbols for them"
        ):
            make(**{one: Y, other: Y})

    def test_names_given_twice(self):
        with refuses("^The name 'a' is given twice; names must be distinct"):
            make(p={"a": ca.SX.sym("a")}, p_stage={"a": ca.SX.sym("a")})
        with refuses("^The name 'dt' is given twice; names must be distinct"):
            make(p={"dt": Y}, dt=np.ones(4))
        ocp = make(x={"a": X}, u={"a": U})
        ocp.set_dynamics(X)
        with refuses("^The name 'a' is given twice; names must be distinct"):
            ocp.problem()

    def test_name_of_an_integrator(self):
        ocp = make(x={"xdot_1": X})
        ocp.set_dynamics(X, "gauss_legendre")
        with refuses("^The name 'xdot_1' is given twice; names must be distinct"):
            ocp.problem()

    @pytest.mark.parametrize("name", ["terminal_input", "fix_initial"])
    @pytest.mark.parametrize("value", [1, None, "no"])
    def test_flags(self, name, value):
        with refuses(f"^{name} must be True or False, got "):
            make(**{name: value})


class TestDynamics:
    def test_not_set(self, ocp):
        with refuses("^The dynamics are not set; call set_dynamics first"):
            ocp.problem()

    def test_set_twice(self, ocp):
        ocp.set_dynamics(X)
        with refuses("^The dynamics are set already; call set_dynamics once"):
            ocp.set_dynamics(x_next=X)

    def test_either_form(self, ocp):
        for given in ({}, {"xdot": X, "x_next": X}):
            with refuses("^set_dynamics needs either xdot or x_next"):
                ocp.set_dynamics(**given)

    @pytest.mark.parametrize("given", [{"integrator": "euler"}, {"substeps": 2}])
    def test_discrete(self, ocp, given):
        with refuses("^x_next is discrete: leave integrator and substeps out"):
            ocp.set_dynamics(x_next=X, **given)

    @pytest.mark.parametrize("integrator", ["RK4", "radau", None, 4, ["rk4"]])
    def test_unknown_integrator(self, ocp, integrator):
        with refuses("^integrator must be one of .*'rk4'.*, got ") as caught:
            ocp.set_dynamics(X, integrator)
        assert all(repr(name) in str(caught.value) for name in INTEGRATORS)

    @pytest.mark.parametrize("substeps", [0, -1, 1.0, True, "2", None])
    def test_substeps(self, ocp, substeps):
        with refuses("^substeps must be an integer, at least 1, got "):
            ocp.set_dynamics(X, substeps=substeps)

    @pytest.mark.parametrize("form", ["xdot", "x_next"])
    def test_expressions(self, ocp, form):
        with refuses(f"^{form} has 1 rows but x has 2; give one per state"):
            ocp.set_dynamics(**{form: X[0]})
        with refuses(f"^{form} uses the unknown symbol 'y'; pass it to OCP as x, u, p, p_stage"):
            ocp.set_dynamics(**{form: X * Y})
        with refuses(f"^{form} uses tau, which is for set_guess only; pass the times of the nodes"):
            ocp.set_dynamics(**{form: X * ocp.tau})
        with refuses(rf"^{form}\[1\] contains the constant NaN"):
            ocp.set_dynamics(**{form: [X[0], np.nan]})
        with refuses(rf"^{form}\[0\] contains printme"):
            ocp.set_dynamics(**{form: [X[0].printme(X[1]), 0]})
        with refuses(f"^{form} is an MX expression"):
            ocp.set_dynamics(**{form: ca.MX.sym("m", 2)})


ADD = {
    "cost": lambda ocp, expr, at="path": ocp.add_cost(expr, at=at),
    "residual": lambda ocp, expr, at="path": ocp.add_residual(expr, at=at),
    "row": lambda ocp, expr, at="path": ocp.subject_to(0, expr, 1, at=at, name="row"),
}


@pytest.mark.parametrize("what", ADD)
class TestTerms:
    def test_unknown_symbol(self, ocp, what):
        with refuses(f"^{what} uses the unknown symbol 'y'; pass it to OCP as x, u, p, p_stage"):
            ADD[what](ocp, X[0] * Y)

    def test_tau(self, ocp, what):
        with refuses(f"^{what} uses tau, which is for set_guess only; pass the times of the nodes"):
            ADD[what](ocp, X[0] * ocp.tau)

    def test_nan(self, ocp, what):
        with refuses(f"^{what} contains the constant NaN"):
            ADD[what](ocp, X[0] + np.nan)

    def test_mx(self, ocp, what):
        with refuses("is an MX expression; build it with `ca.SX` instead"):
            ADD[what](ocp, ca.MX.sym("m"))

    @pytest.mark.parametrize("at", ["terminal", "all", 4, [3, 4]])
    def test_inputs_at_the_end(self, ocp, what, at):
        with refuses(
            f"^{what} uses the input 'u' at the terminal node, which has no inputs; use at="
        ):
            ADD[what](ocp, U, at)
        ADD[what](make(terminal_input=True), U, at)

    @pytest.mark.parametrize("at", ["end", "PATH", ""])
    def test_words(self, ocp, what, at):
        message = (
            r"^at must be one of \['path', 'terminal', 'initial', 'all'\], an integer or a range"
        )
        with refuses(message):
            ADD[what](ocp, X[0], at)

    @pytest.mark.parametrize("at", [5, -1, 1.0, True, None, range(3, 6), [0, "1"], np.array(7)])
    def test_range(self, ocp, what, at):
        with refuses("^at names node .*, but the nodes are 0 to 4"):
            ADD[what](ocp, X[0], at)

    def test_sequences(self, ocp, what):
        with refuses("^at is empty: name at least one of the nodes 0 to 4"):
            ADD[what](ocp, X[0], range(3, 3))
        with refuses("^at names a node twice; name each once"):
            ADD[what](ocp, X[0], [1, 2, 1])

    def test_a_refused_term_leaves_no_trace(self, what):
        ocp, plain = make(), make()
        for each in (ocp, plain):
            each.set_dynamics(X)
        with refuses("^at names node 9"):
            ADD[what](ocp, X[0], 9)
        assert ocp.problem().hash == plain.problem().hash
        ADD[what](ocp, X[0])


class TestCost:
    def test_scalar(self, ocp):
        with refuses(r"^cost must be a scalar, got shape \(2, 1\)"):
            ocp.add_cost(X)

    def test_residual(self, ocp):
        with refuses("^add_residual got an empty residual; give at least one row"):
            ocp.add_residual([])
        with refuses("^weight has 3 rows but residual has 2; give one value per row, or a scalar"):
            ocp.add_residual(X, weight=[1, 2, 3])
        with refuses(
            "^weight must not be negative, got -1; put terms that are not convex into `cost`"
        ):
            ocp.add_residual(X, weight=-1)
        with refuses("^weight depends on 'x_0'; weights may use parameters only"):
            ocp.add_residual(X, weight=X[0] ** 2)
        with refuses("^residual uses the unknown symbol 'y'"):
            ocp.add_residual(X, weight=Y)


class TestConstraints:
    def test_sizes(self, ocp):
        with refuses("^subject_to got an empty expr; give at least one row"):
            ocp.subject_to(0, [], 1)
        with refuses("^subject_to got neither lower nor upper; give at least one of them"):
            ocp.subject_to(None, X, None)
        with refuses(
            "^lower has 3 rows but expr has 2; give one value per row, or a scalar for all"
        ):
            ocp.subject_to([0, 0, 0], X, 1)
        with refuses("^upper has 3 rows but expr has 2"):
            ocp.subject_to(0, X, [1, 1, 1])

    def test_values(self, ocp):
        with refuses(r"^Row 'box\[1\]' has lower 2 > upper 1; swap or change them"):
            ocp.subject_to([0, 2], X, 1, name="box")
        with refuses(r"^Row 'constraint_0\[0\]' has lower inf, which nothing satisfies; use -inf"):
            ocp.subject_to(np.inf, X, None)
        with refuses(r"^lower\[1\] contains the constant NaN"):
            ocp.subject_to([0, np.nan], X, 1)
        with refuses(r"^box\[1\] contains the constant NaN"):
            ocp.subject_to(0, [X[0], np.nan], 1, name="box")

    @pytest.mark.parametrize("variable", [X[1], U])
    def test_bounds_in_variables(self, ocp, variable):
        name = variable.name()
        advice = "bounds are not differentiated: move it into expr, as in expr"
        with refuses(f"^lower of box depends on '{name}'; {advice} - lower"):
            ocp.subject_to(variable, X[0], None, name="box")
        with refuses(f"^upper of constraint_0 depends on '{name}'; {advice} - upper"):
            ocp.subject_to(None, X[0], 2 * variable)

    def test_unknown_symbols_in_bounds(self, ocp):
        with refuses("^box uses the unknown symbol 'y'"):
            ocp.subject_to(-Y, X[0], Y, name="box")
        with refuses("^box uses the unknown symbol 'y'"):
            ocp.subject_to(-1, X[0], 1, soft=Y, name="box")

    @pytest.mark.parametrize("name", [1, "", ["a"]])
    def test_names(self, ocp, name):
        with refuses("^name must be a string, got "):
            ocp.subject_to(0, X, 1, name=name)

    def test_names_are_distinct(self, ocp):
        ocp.subject_to(0, X, 1, name="box")
        with refuses("^A constraint is named 'box' already; choose another name"):
            ocp.subject_to(0, X, 1, at="terminal", name="box")
        ocp.subject_to(0, X, 1)
        with refuses("^A constraint is named 'constraint_1' already"):
            ocp.subject_to(0, X, 1, name="constraint_1")

    def test_soft(self, ocp):
        with refuses("^soft must be a Soft, a linear penalty or a dict row -> Soft, got True"):
            ocp.subject_to(0, X, 1, soft=True)
        with refuses("^soft must be a Soft, a linear penalty or a dict row -> Soft, got 'l1'"):
            ocp.subject_to(0, X, 1, soft="l1")
        with refuses("^soft names row 2, but the rows are 0 to 1"):
            ocp.subject_to(0, X, 1, soft={2: Soft(1)})
        with refuses("^Soft penalties must not be negative, got -1"):
            ocp.subject_to(0, X, 1, soft=-1)
        with refuses("^soft must be a scalar"):
            ocp.subject_to(0, X, 1, soft=[1, 2])
        with refuses(r"^Row 'box\[0\]' is soft with penalty 0 on its lower side"):
            ocp.subject_to(0, X, 1, soft=0, name="box")
        with refuses("^A soft penalty depends on 'x_0'; penalties may use parameters only"):
            ocp.subject_to(0, X, 1, soft=X[0] ** 2)


class TestGuess:
    def test_sizes(self, ocp):
        with refuses(
            "^guess of x has 3 rows but x has 2; give one value per row, or a scalar for all"
        ):
            ocp.set_guess(x=[1, 2, 3])
        with refuses("^guess of u has 2 rows but u has 1"):
            ocp.set_guess(u=[1, 2])

    def test_symbols(self, ocp):
        with refuses(
            "^guess depends on 'x_0'; an initial guess may use x0, shared, p and tau only"
        ):
            ocp.set_guess(x=X)
        with refuses("^guess uses the unknown symbol 'y'"):
            ocp.set_guess(x=Y)
        with refuses(r"^guess\[2\] contains the constant NaN"):
            ocp.set_guess(u=np.nan)


class TestDefaults:
    def test_unknown(self, ocp):
        message = (
            r"^There is no parameter 'w'; the parameters are "
            r"\['p', 'p_stage', 'q_0', 'q_1', 's'\]"
        )
        with refuses(message):
            ocp.set_default("w", 1)

    def test_values(self, ocp):
        with refuses(
            r"^The default of 'p' has shape \(3,\); it must be a scalar or have the shape"
        ):
            ocp.set_default("p", [1, 2, 3])
        with refuses("^The default of 'p' contains NaN; give numbers"):
            ocp.set_default("p", np.nan)
        with refuses("^The default of 's' must be numbers, got 'a'"):
            ocp.set_default("s", "a")

    def test_dt(self):
        with refuses(r"^dt has its defaults from OCP\(dt=...\); change them there"):
            make(dt=np.ones(4)).set_default("dt", 1)


class TestWordsOfOtherTools:
    """What users of other modelling tools write first."""

    @pytest.mark.parametrize(
        "given", [(X[0] <= 3,), (None, X[0] < 3, None), (-1, X >= 0, 1), (X[0] == 0, 0, 0)]
    )
    def test_comparisons(self, ocp, given):
        with refuses("^subject_to takes bounds and not the comparison .*: write subject_to"):
            ocp.subject_to(*given)

    def test_missing_bounds(self, ocp):
        with refuses("^subject_to needs lower, expr and upper, in this order; pass None for"):
            ocp.subject_to(X[0], 3)
        with refuses("^subject_to needs lower, expr and upper"):
            ocp.subject_to(X)

    def test_comparisons_inside_of_expressions(self, ocp):
        ocp.subject_to(-1, ca.if_else(X[0] <= 0, X[0], 2 * X[0]), 1)

    @pytest.mark.parametrize(
        "W", [np.diag([1.0, 2.0]), ca.DM.eye(2), ca.SX.eye(2), [[1, 0], [0, 1]]]
    )
    def test_weight_matrices(self, ocp, W):
        with refuses(r"^weight is a 2x2 matrix, but there is one weight per residual: .*ca\.diag"):
            ocp.add_residual(X, W)

    def test_what_the_message_advises(self):
        """r'W r with the residual chol(W) r, and with the diagonal."""
        W = ca.DM([[2.0, 0.5], [0.5, 1.0]])
        whole = ca.Function("f", [X], [ca.bilin(W, X, X), ca.sumsqr(ca.chol(W) @ X)])
        one, other = whole([0.3, -0.7])
        np.testing.assert_allclose(float(one), float(other))
        make().add_residual(X, ca.diag(W))

    @pytest.mark.parametrize("options", [{}, {"inline": True}])
    def test_interpolants(self, ocp, options):
        points = [0.0, 1, 2, 3, 4]
        table = ca.interpolant("table", "bspline", [points], [p**2 for p in points], options)
        with refuses(
            r"^cost contains a call of a CasADi function .*an interpolant, with inline=T"
            r".*ca\.pw_lin\(x, points, values\) or as a polynomial"
        ) as _:
            ocp.add_cost(table(X[0]))
        ocp.add_cost(ca.pw_lin(X[0], points, [p**2 for p in points]))
