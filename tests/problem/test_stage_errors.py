"""Every mistake inside one stage raises, with a sentence that explains what to do."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex
from warpmpc.problem.stage import Soft, Stage

Z, NEXT, Q = ca.SX.sym("z", 3), ca.SX.sym("after", 3), ca.SX.sym("q")
MX = ca.MX.sym("m", 3)


def refuses(message, **given):
    with pytest.raises(ProblemError, match=message):
        Stage(**{"z": Z, "z_next": NEXT, "p": Q, **given})


class TestExpressions:
    @pytest.mark.parametrize(
        "name", ["z", "z_next", "p", "cost", "g", "lower", "upper", "residual", "weight", "guess"]
    )
    def test_mx(self, name):
        fill = {"g": Z} if name in ("lower", "upper") else {}
        fill |= {"residual": Z} if name == "weight" else {}
        refuses(f"^{name} is an MX expression; build it with `ca.SX` instead", **fill, **{name: MX})

    @pytest.mark.parametrize("value", ["1", {"a": 1}, object(), 1j, np.array("a"), lambda: 0])
    def test_types(self, value):
        refuses("cost must be a number, an array or an SX expression, got", cost=value)

    @pytest.mark.parametrize("value", [True, np.True_])
    def test_truth_is_no_number(self, value):
        refuses("cost must be a number or an SX expression, got .*True", cost=value)
        refuses("g must be a number or an SX expression, got .*True", g=[Z, value], lower=0)

    @pytest.mark.parametrize("value", [ca.SX.sym("r", 1, 3), np.zeros((1, 2))])
    def test_rows(self, value):
        refuses(r"g has shape \(1, \d\) but must be a column; transpose it", g=value, lower=0)

    def test_matrices(self):
        message = r"g has shape \(2, 2\) but must be a column; stack its columns by `ca.vec`"
        refuses(message, g=ca.DM.zeros(2, 2), lower=0)

    def test_axes(self):
        refuses("g has 3 axes but must be a column", g=np.zeros((2, 2, 2)))

    @pytest.mark.parametrize("value", [Z, [1, 2], []])
    def test_cost_is_scalar(self, value):
        refuses(r"cost must be a scalar, got shape \(\d, 1\)", cost=value)

    @pytest.mark.parametrize(
        ("given", "place"),
        [
            ({"cost": Z[0] * np.nan}, "cost"),
            ({"g": ca.vertcat(Z[0], Z[1] + ca.log(ca.SX(-1))), "lower": 0}, r"g\[1\]"),
            ({"g": Z, "lower": [0, 0, np.nan]}, r"lower\[2\]"),
            ({"g": Z, "upper": ca.vertcat(0, Q - ca.inf + ca.inf, np.nan)}, r"upper\[2\]"),
            ({"residual": [Z[0], np.nan]}, r"residual\[1\]"),
            ({"residual": Z, "weight": [1, np.nan, 1]}, r"weight\[1\]"),
            ({"guess": [1, np.nan, 1]}, r"guess\[1\]"),
        ],
    )
    def test_nan(self, given, place):
        refuses(f"^{place} contains the constant NaN; check the numbers it is made of", **given)

    def test_nan_in_a_penalty(self):
        with pytest.raises(ProblemError, match=r"^Soft penalty\[2\] contains the constant NaN"):
            Soft(linear=1, quadratic=np.nan)

    def test_printme(self):
        refuses(r"^g\[1\] contains printme; remove it", g=[Z[0], Z[1].printme(Z[0])], lower=0)

    def test_calls(self):
        table = ca.interpolant("table", "linear", [[0, 1, 2]], [0, 1, 4])
        message = (
            "^cost contains a call of a CasADi function that cannot be translated .* in SX operat"
        )
        refuses(message, cost=table(Z[0]))

    def test_other_operations(self, monkeypatch):
        """None is left today: one is taken away."""
        monkeypatch.setattr(ex, "TRANSLATED", ex.TRANSLATED - {ca.OP_ERFINV})
        message = "^cost contains the CasADi operation erfinv, which cannot be translated; write it"
        refuses(message, cost=ca.erfinv(Z[0]))


class TestSymbols:
    def test_no_variables(self):
        refuses("^z is empty: a stage needs at least one variable", z=ca.SX(0, 1))
        refuses("^z is empty: a stage needs at least one variable", z=None)

    @pytest.mark.parametrize("name", ["z", "z_next", "p", "tau"])
    def test_expressions_are_no_symbols(self, name):
        message = rf"^{name} must consist of SX symbols \(`ca.SX.sym`\), but contains sin\(q\)"
        refuses(message, **{name: ca.vertcat(ca.SX.sym("a"), ca.sin(Q))})
        refuses(rf"^{name} must consist of SX symbols .*, got float", **{name: 1.0})
        refuses(rf"^{name} must consist of SX symbols .*, got ndarray", **{name: np.zeros(3)})

    @pytest.mark.parametrize("name", ["z", "z_next", "p"])
    def test_repeated(self, name):
        one, two = ca.SX.sym("one"), ca.SX.sym("two")
        message = f"^{name} contains the symbol 'one' twice; list it once"
        refuses(message, **{name: ca.vertcat(one, two, one)})

    def test_overlaps(self):
        message = "^The symbol 'z_1' is in both z and {}; make separate symbols for them"
        refuses(message.format("z_next"), z_next=Z[1:])
        refuses(message.format("p"), p=Z[1])
        refuses(message.format("tau"), tau=Z[1])
        refuses("^The symbol 'q' is in both z_next and p", z_next=ca.vertcat(NEXT[:2], Q))

    def test_tau_is_one(self):
        refuses("^tau must be one scalar symbol, got 3", tau=ca.SX.sym("t", 3))

    @pytest.mark.parametrize("n_x", [-1, 4, 1.0, True, "2"])
    def test_states(self, n_x):
        message = r"^n_x must be an integer between 0 and 3 \(size of z\), got "
        refuses(message, n_x=n_x)

    @pytest.mark.parametrize("n_u", [-1, 2, 1.0, False])
    def test_inputs(self, n_u):
        message = r"^n_u must be an integer between 0 and 1 \(size of z without states\), got "
        refuses(message, n_x=2, n_u=n_u)

    def test_inputs_without_states(self):
        refuses("^n_u is given without n_x; inputs stand after the states, so give both", n_u=1)


class TestSizes:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"g": Z, "lower": [0, 0]}, "lower has 2 rows but g has 3"),
            ({"g": Z, "upper": np.zeros(4)}, "upper has 4 rows but g has 3"),
            ({"residual": Z, "weight": [1, 1]}, "weight has 2 rows but residual has 3"),
            ({"guess": [1, 1]}, "guess has 2 rows but z has 3"),
        ],
    )
    def test_mismatch(self, given, message):
        refuses(f"^{message}; give one value per row, or a scalar for all", **given)

    def test_what_is_missing(self):
        refuses("^weight is given without a residual; pass residual=... as well", weight=1)
        refuses("^lower is given without g; pass g=... as well", lower=0)
        refuses("^upper is given without g; pass g=... as well", upper=[0, 1])
        refuses("^g is given without lower and upper; pass at least one of them", g=Z)

    def test_row_names(self):
        refuses("^row_names has 2 names but g has 3 rows", g=Z, lower=0, row_names=["a", "b"])
        refuses("^row_names contains 'a' twice", g=Z, lower=0, row_names=["a", "b", "a"])
        message = "^row_names must be a list of strings, one per row of g"
        refuses(message, g=Z, lower=0, row_names=["a", "b", 3])
        refuses(message, g=Z, lower=0, row_names="abc")


class TestDependence:
    @pytest.mark.parametrize("variable", [Z[0], NEXT[1]])
    def test_what_may_use_parameters_only(self, variable):
        message = (
            f"^weight depends on {variable.name()!r}; weights may use parameters only; multiply"
        )
        refuses(message, residual=Z, weight=variable**2)
        message = (
            f"^A soft penalty depends on {variable.name()!r}; penalties may use parameters only"
        )
        refuses(message, g=Z, lower=0, soft={1: Soft(variable**2)})
        message = (
            f"^guess depends on {variable.name()!r}; an initial guess may use x0, shared, p and"
        )
        refuses(message, guess=variable)

    @pytest.mark.parametrize("name", ["cost", "residual", "weight", "g", "lower", "upper"])
    def test_tau_is_for_the_guess(self, name):
        tau = ca.SX.sym("time")
        given = {"g": Z, "lower": 0, "residual": Z, name: tau}
        refuses(f"^{name} depends on 'time'; tau is for the guess only", tau=tau, **given)


class TestBounds:
    def test_crossed(self):
        message = r"^Row 'b' has lower 2 > upper 1.5; swap or change them"
        names = ["a", "b", "c"]
        refuses(message, g=Z, lower=[Q, 2, 3], upper=[-9, 1.5, 0], row_names=names)

    def test_no_value_satisfies(self):
        message = (
            r"^Row 'g\[1\]' has lower inf, which nothing satisfies; use -inf for an absent bound"
        )
        refuses(message, g=Z, lower=[0, np.inf, 0])
        message = (
            r"^Row 'g\[1\]' has upper -inf, which nothing satisfies; use inf for an absent bound"
        )
        refuses(message, g=Z, upper=[0, -np.inf, 0])

    def test_constant_rows(self):
        message = r"^Row 'g\[1\]' is the constant 5, which is not between 0 and 1; nothing can"
        refuses(message, g=[Z[0], 5], lower=0, upper=1)
        refuses(message, g=[9, 5], lower=0, upper=1, soft={0: Soft(1)})
        Stage(Z, g=[0, 1, 5 * Q], lower=0, upper=1)

    def test_negative_weight(self):
        message = (
            "^weight must not be negative, got -0.5; put terms that are not convex into `cost`"
        )
        refuses(message, residual=Z, weight=[1, -0.5, Q])


class TestSoft:
    @pytest.mark.parametrize("given", [{"linear": -1}, {"quadratic": (0, -1)}])
    def test_negative(self, given):
        with pytest.raises(
            ProblemError, match=r"^Soft penalties must not be negative, got -1; viola"
        ):
            Soft(**given)

    def test_infinite(self):
        message = "^A quadratic penalty must be finite; give linear=inf to keep a side hard"
        with pytest.raises(ProblemError, match=message):
            Soft(linear=1, quadratic=(1, np.inf))
        message = "^Both sides have an infinite penalty, so nothing is soft; leave `soft` out"
        with pytest.raises(ProblemError, match=message):
            Soft(linear=np.inf)

    def test_values(self):
        with pytest.raises(
            ProblemError, match=r"^Soft.linear must be one value or a pair .*, got 3"
        ):
            Soft(linear=(1, 2, 3))
        with pytest.raises(ProblemError, match=r"^Soft.quadratic must be a scalar"):
            Soft(quadratic=np.zeros(2))
        with pytest.raises(ProblemError, match=r"^Soft.linear must be a number, an array or an SX"):
            Soft(linear="1")

    @pytest.mark.parametrize(
        ("soft", "side"),
        [(Soft(), "lower"), (Soft(0, (1, 0)), "upper"), (Soft((0, 1), (0, 1)), "lower")],
    )
    def test_no_penalty(self, soft, side):
        message = (
            rf"^Row 'g\[2\]' is soft with penalty 0 on its {side} side; give a positive penalty"
        )
        refuses(message, g=Z, lower=0, upper=1, soft={2: soft})

    @pytest.mark.parametrize("row", [3, -1, 1.0, "g[0]", True])
    def test_rows(self, row):
        refuses("^soft names row .*, but the rows are 0 to 2", g=Z, lower=0, soft={row: Soft(1)})

    def test_types(self):
        refuses(r"^soft\[1\] must be a `Soft`, got float; write", g=Z, lower=0, soft={1: 1.0})
        refuses(r"^soft must be a dict \{row of g: Soft\}, got Soft", g=Z, lower=0, soft=Soft(1))
