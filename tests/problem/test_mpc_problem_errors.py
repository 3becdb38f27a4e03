"""Stages that do not fit together raise, and the sentence names the stage."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

from warpmpc._errors import ProblemError
from warpmpc.problem.evaluation import evaluate, initial_guess
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.stage import Soft, Stage

X0, SHARED = ca.SX.sym("x0", 2), ca.SX.sym("shared", 2)
Z = [ca.SX.sym(f"z{k}", 2) for k in range(5)]
P = [ca.SX.sym(f"p{k}") for k in range(5)]


def chain(k=None, **given):
    """Five stages with symbols of their own; stage k has other arguments as well."""
    pairs = zip(Z, [*Z[1:], None], P, strict=True)
    extra = {k: given}
    return [Stage(z, after, p, **extra.get(k, {})) for k, (z, after, p) in enumerate(pairs)]


def refuses(message, stages, **given):
    with pytest.raises(ProblemError, match=message):
        MPCProblem(stages, **{"x0": X0, "shared": SHARED, **given})


class TestStages:
    def test_empty_horizon(self):
        refuses("^stages is empty: give at least one stage", [])

    def test_types(self):
        refuses("^stages must be a list of Stage, one per node, got Stage", Stage(Z[0]))
        refuses("^stages must be a list of Stage, one per node, got int", 3)
        refuses("^Stage 1 must be a Stage, got function", [Stage(Z[0], Z[1]), chain])

    def test_sizes(self):
        message = "^Stage 1 has 1 symbols in z_next but z of stage 2 has 2; pass as many symbols"
        refuses(message, [Stage(Z[0], Z[1]), Stage(Z[1], Z[2][0]), Stage(Z[2])])
        refuses("^Stage 0 has 0 symbols in z_next but z of stage 1 has 2", [Stage(Z[0])] * 2)

    def test_last_stage(self):
        message = "^Stage 2 is the last one but has z_next; leave z_next out there"
        refuses(message, [Stage(Z[0], Z[1])] * 3)

    def test_full_diagonal(self):
        refuses("^full_diagonal must be True or False, got 'yes'", chain(), full_diagonal="yes")


class TestSymbols:
    @pytest.mark.parametrize(
        ("what", "given"),
        [
            ("cost", {"cost": ca.SX.sym("y")}),
            ("residual", {"residual": ca.SX.sym("y")}),
            ("weight", {"residual": Z[2], "weight": ca.SX.sym("y")}),
            ("g", {"g": ca.SX.sym("y"), "lower": 0}),
            ("lower", {"g": Z[2], "lower": ca.SX.sym("y")}),
            ("upper", {"g": Z[2], "upper": ca.SX.sym("y")}),
            ("penalties", {"g": Z[2], "upper": 0, "soft": {0: Soft(ca.SX.sym("y"))}}),
            ("guess", {"guess": ca.SX.sym("y")}),
        ],
    )
    def test_unknown(self, what, given):
        message = (
            f"^Stage 2: {what} uses the unknown symbol 'y'; add it to z, z_next or p, or to x0"
        )
        refuses(message, chain(2, **given))

    @pytest.mark.parametrize("j", [0, 1, 4])
    def test_beyond_neighbours(self, j):
        message = (
            f"^Stage 2: g uses 'z{j}_1', a variable of stage {j}, but stages couple with the next"
        )
        refuses(message, chain(2, g=Z[j][1], lower=0))

    def test_next_stage_with_other_symbols(self):
        stages = chain(2, cost=Z[2][0])
        stages[2] = Stage(Z[2], ca.SX.sym("other", 2), P[2], cost=Z[3][0])
        message = "^Stage 2: cost uses 'z3_0', a variable of stage 3; pass z of stage 3 as z_next"
        refuses(message, stages)

    def test_parameter_of_another_stage(self):
        message = "^Stage 2: cost uses 'p4', a parameter of stage 4; add it to p of stage 2, or put"
        refuses(message, chain(2, cost=P[4]))

    def test_next_of_another_stage(self):
        after = ca.SX.sym("after", 2)
        stages = [Stage(Z[0], after)] * 3 + [Stage(Z[0], cost=after[1])]
        message = (
            "^Stage 3: cost uses 'after_1', which is in z_next of stage 2 only; a stage sees its"
        )
        refuses(message, stages)

    def test_guess_knows_no_variables_of_others(self):
        refuses("^Stage 2: guess uses 'z4_0', a variable of stage 4", chain(2, guess=Z[4]))

    def test_missing_x0(self):
        refuses(
            "^Stage 0: g uses the unknown symbol 'x0_0'", chain(0, g=Z[0] - X0, lower=0), x0=None
        )

    def test_overlaps(self):
        message = "^The symbol 'shared_1' is in both x0 and shared; make separate symbols for them"
        refuses(message, chain(), x0=SHARED[1])
        refuses("^The symbol 'z0_0' is in both z of stage 0 and x0", chain(), x0=Z[0])
        refuses("^The symbol 'z1_0' is in both z_next of stage 0 and shared", chain(), shared=Z[1])
        refuses("^The symbol 'p3' is in both p of stage 3 and shared", chain(), shared=P[3])
        stages = [Stage(Z[0], guess=X0[0], tau=X0[0])]
        refuses("^The symbol 'x0_0' is in both tau of stage 0 and x0", stages)

    @pytest.mark.parametrize("name", ["x0", "shared"])
    def test_no_symbols(self, name):
        refuses(f"^{name} is an MX expression", chain(), **{name: ca.MX.sym("m")})
        refuses(f"^{name} must consist of SX symbols", chain(), **{name: 1.0})


class TestNames:
    @pytest.mark.parametrize("rows", [[0, 1], 0, [[0.5, 1.0]], [[[1]]]])
    def test_of_variables(self, rows):
        message = r"^names\['a'\] must be an array of integers \[nodes, size\]"
        refuses(message, chain(), names={"a": rows})

    def test_of_parameters(self):
        message = r"^param_names\['a'\] must be an array of integers \[size\] or \[nodes, size\]"
        refuses(message, chain(), param_names={"a": 3})

    def test_types(self):
        message = r"^names\['a'\] must be numbers, got "
        refuses(message, chain(), names={"a": "b"})
        refuses(message, chain(), names={"a": [[0], [1, 2]]})
        refuses("^Names in names must be strings, got 3", chain(), names={3: [[0]]})
        refuses("^Names in param_names must be strings, got 3", chain(), param_names={3: [0]})

    def test_range(self):
        refuses(r"^names\['a'\] has rows outside 0 to 9", chain(), names={"a": [[10]]})
        refuses(r"^names\['a'\] has rows outside 0 to 9", chain(), names={"a": [[-1]]})
        refuses(r"^param_names\['a'\] has rows outside 0 to 8", chain(), param_names={"a": [9]})


class TestDefaults:
    def test_unknown(self):
        message = r"^defaults names 'q', but the parameters are \['p', 'shared'\]"
        refuses(message, chain(), defaults={"q": 1})

    def test_shapes(self):
        message = (
            r"^defaults has shape \(3,\) but the problem has 9 parameters; give one number each"
        )
        refuses(message, chain(), defaults=np.zeros(3))
        message = (
            r"default of 'shared' has shape \(3,\); it must be a scalar or have the shape \(2,\)"
        )
        refuses(message, chain(), defaults={"shared": [1, 2, 3]})
        message = r"'p' has shape \(2,\); it must be a scalar or have the shape \(1,\) or \(5, 1\)"
        refuses(message, chain(), defaults={"p": [1, 2]})

    def test_values(self):
        refuses("^The default of 'p' contains NaN; give numbers", chain(), defaults={"p": np.nan})
        refuses("^The default of 'p' must be numbers, got 'a'", chain(), defaults={"p": "a"})
        refuses("^defaults must be numbers, got 'abc'", chain(), defaults="abc")


def test_evaluation():
    problem = MPCProblem(chain(), x0=X0, shared=SHARED)
    message = r"^z has shape \(3,\) but must have the shape \(10,\)"
    with pytest.raises(ProblemError, match=message):
        evaluate(problem, np.zeros(3), np.zeros(9))
    message = r"^params has shape \(1, 9\) but must have the shape \(9,\)"
    with pytest.raises(ProblemError, match=message):
        evaluate(problem, np.zeros(10), np.zeros((1, 9)))
    with pytest.raises(ProblemError, match="params has shape"):
        initial_guess(problem, np.zeros(3))
