"""One stage of an optimal control problem: cost, constraints and soft rows.

Reads: SX symbols and expressions of the user.  Produces: a `Stage` of dense SX columns, which
`problem.mpc_problem` strings together over the horizon.

A stage checks itself when it is made.  `check_symbols` then checks for all stages of a problem that
their expressions use only symbols which they know; its errors name the stage and the symbol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex
from warpmpc.problem.expressions import ExpressionLike
from warpmpc.problem.pickling import HoldsExpressions

SIDES = ("lower", "upper")


@dataclass(frozen=True, eq=False)
class Soft:
    """Penalty on the violation v >= 0 of a constraint: ``linear * v + quadratic / 2 * v**2``.

    Both sides of the row have the same penalty unless a pair (lower, upper) is given.  An infinite
    linear penalty keeps a side hard.  An equality may be soft: both directions are penalised.

    Attributes:
        linear: Linear penalty: a number or SX expression in parameters, or a pair of them.
        quadratic: Quadratic penalty in the same form.
    """

    linear: Any = 0.0
    quadratic: Any = 0.0

    def __post_init__(self) -> None:
        """Checks shapes and constants."""
        values = ex.constants(self.columns())
        if np.any(values < 0):
            raise ProblemError(
                f"Soft penalties must not be negative, got {values[values < 0][0]:g}; "
                "violations are never negative themselves."
            )
        if np.any(np.isinf(values[2:])):
            raise ProblemError(
                "A quadratic penalty must be finite; give linear=inf to keep a side hard."
            )
        if np.all(np.isinf(values[:2])):
            raise ProblemError(
                "Both sides have an infinite penalty, so nothing is soft; leave `soft` out."
            )
        ex.check_expressions({"Soft penalty": self.columns()})

    def columns(self) -> ca.SX:
        """The penalties as a column: linear lower and upper, quadratic lower and upper."""
        pairs = ((self.linear, "linear"), (self.quadratic, "quadratic"))
        return ca.vertcat(*(_pair(value, f"Soft.{name}") for value, name in pairs))


class Stage(HoldsExpressions):
    """Cost and constraints of one node of the horizon, and of the interval to the next one.

    The cost is ``cost + 1/2 sum(weight * residual**2)``, the constraints are
    ``lower <= g <= upper``.  Expressions may use z, z_next, p, and the symbols `x0` and `shared` of
    the `MPCProblem`.  All attributes that hold expressions are dense SX columns; empty ones have
    the shape 0x1.

    Attributes:
        z: Variables of this node.
        z_next: Variables of the next node; empty at the last one.
        p: Parameters of this node.
        cost: Expression part of the cost, 1x1.
        residual: Residuals, whose Hessian is the Gauss-Newton one.
        weight: Weight of each residual, a function of parameters only.
        g: Constraint functions.
        lower: Lower bounds, -inf where absent.  They may depend on parameters and, as data that is
            never differentiated, on variables.
        upper: Upper bounds, inf where absent, with the same dependence.
        soft_rows: Rows of g that are soft, ascending.
        penalties: One row per soft row: linear lower, linear upper, quadratic lower, quadratic
            upper; see `Soft`.
        n_x: Number of states, which are the first entries of z, or None if it is unknown.
        n_u: Number of inputs, which are the next entries of z, or None if it is unknown.
        guess: Initial guess of z from x0, shared, p and tau.
        tau: Symbol for k/N in the guess.
        row_names: One name per row of g.
    """

    def __init__(  # noqa: PLR0913  (the stage form has as many parts; all but z are optional)
        self,
        z: ExpressionLike,
        z_next: ExpressionLike | None = None,
        p: ExpressionLike | None = None,
        cost: ExpressionLike = 0.0,
        g: ExpressionLike | None = None,
        lower: ExpressionLike | None = None,
        upper: ExpressionLike | None = None,
        *,
        residual: ExpressionLike | None = None,
        weight: ExpressionLike | None = None,
        soft: Mapping[int, Soft] | None = None,
        n_x: int | None = None,
        n_u: int | None = None,
        guess: ExpressionLike | None = None,
        tau: ca.SX | None = None,
        row_names: Sequence[str] | None = None,
    ) -> None:
        """Checks everything that one stage shows by itself.

        Args:
            z: SX symbols of the variables, at least one.
            z_next: SX symbols of the variables of the next stage; None at the last stage.
            p: SX symbols of the parameters of the node.
            cost: Scalar expression.
            g: Column of expressions.
            lower: Lower bound: a scalar or one per row of g, or None if there is none.
            upper: Upper bound: a scalar or one per row of g, or None if there is none.
            residual: Column of expressions.
            weight: Weight of the residuals: a scalar or one per row; None stands for 1.
            soft: Penalties of soft rows: a dict from rows of g to `Soft`.
            n_x: Number of states in z.
            n_u: Number of inputs in z; None stands for all that are not states, if n_x is given.
            guess: Initial guess of z, a column as long as z; None stands for zeros.
            tau: Scalar SX symbol that `guess` uses for k/N.
            row_names: Distinct names of the rows of g; None stands for "g[0]", "g[1]", ...
        """
        self.z = ex.symbols(z, "z")
        self.z_next = ex.symbols(z_next, "z_next")
        self.p = ex.symbols(p, "p")
        self.tau = ex.symbols(ca.SX.sym("tau") if tau is None else tau, "tau")
        self._check_symbols()
        self.n_x, self.n_u = _split(n_x, n_u, self.n_z)

        self.cost = ex.scalar(cost, "cost")
        self.residual = ex.column(residual, "residual")
        self.weight = _weights(weight, self.residual)
        self.g = ex.column(g, "g")
        self.lower, self.upper = _bounds(lower, upper, self.g)
        self.row_names = _row_names(row_names, self.n_g)
        self.soft_rows, self.penalties = _soft_rows(soft, self.n_g)
        self.guess = ex.sized_column(0.0 if guess is None else guess, self.n_z, "guess", "z")

        self._check_dependence()
        ex.check_expressions(self.expressions() | {"guess": self.guess})
        self._check_bounds()

    @property
    def n_z(self) -> int:
        """Number of variables of this node."""
        return self.z.numel()

    @property
    def n_g(self) -> int:
        """Number of constraint rows."""
        return self.g.numel()

    def expressions(self) -> dict[str, ca.SX]:
        """All expressions that an iteration evaluates, by name; the guess is not one of them."""
        return {
            "cost": self.cost,
            "residual": self.residual,
            "weight": self.weight,
            "g": self.g,
            "lower": self.lower,
            "upper": self.upper,
            "penalties": ca.vec(self.penalties),
        }

    def _check_symbols(self) -> None:
        if not self.n_z:
            raise ProblemError("z is empty: a stage needs at least one variable.")
        if self.tau.numel() != 1:
            raise ProblemError(f"tau must be one scalar symbol, got {self.tau.numel()}.")
        ex.check_disjoint({"z": self.z, "z_next": self.z_next, "p": self.p, "tau": self.tau})

    def _check_dependence(self) -> None:
        variables = ca.vertcat(self.z, self.z_next)
        advice = "weights may use parameters only; multiply the residual instead."
        ex.check_independent(self.weight, variables, "weight", advice)
        advice = "penalties may use parameters only."
        ex.check_independent(ca.vec(self.penalties), variables, "A soft penalty", advice)
        advice = "an initial guess may use x0, shared, p and tau only."
        ex.check_independent(self.guess, variables, "guess", advice)
        for what, expression in self.expressions().items():
            ex.check_independent(expression, self.tau, what, "tau is for the guess only.")

    def _check_bounds(self) -> None:
        lower, upper = ex.constants(self.lower), ex.constants(self.upper)
        crossed = np.flatnonzero(lower > upper)
        if crossed.size:
            row = crossed[0]
            raise ProblemError(
                f"Row {self.row_names[row]!r} has lower {lower[row]:g} > upper {upper[row]:g}; "
                "swap or change them."
            )
        for side, values, wrong in (("lower", lower, np.inf), ("upper", upper, -np.inf)):
            rows = np.flatnonzero(values == wrong)
            if rows.size:
                raise ProblemError(
                    f"Row {self.row_names[rows[0]]!r} has {side} {wrong}, which nothing satisfies; "
                    f"use {-wrong} for an absent bound."
                )
        self._check_penalties(np.stack([lower, upper], axis=1))
        self._check_constant_rows(lower, upper)

    def _check_constant_rows(self, lower: np.ndarray, upper: np.ndarray) -> None:
        g = ex.constants(self.g)
        broken = np.flatnonzero((g < lower) | (g > upper))
        hard = broken[~np.isin(broken, self.soft_rows)]
        if hard.size:
            row = hard[0]
            raise ProblemError(
                f"Row {self.row_names[row]!r} is the constant {g[row]:g}, which is not between "
                f"{lower[row]:g} and {upper[row]:g}; nothing can satisfy it."
            )

    def _check_penalties(self, bounds: np.ndarray) -> None:
        """Refuses a side that has a bound and no penalty, which would be no constraint."""
        values = ex.constants(ca.vec(self.penalties)).reshape(-1, 4, order="F")
        for row, (linear, quadratic) in zip(self.soft_rows, values.reshape(-1, 2, 2), strict=True):
            free = (linear == 0) & (quadratic == 0) & ~np.isinf(bounds[row])
            if np.any(free):
                side = SIDES[int(np.flatnonzero(free)[0])]
                raise ProblemError(
                    f"Row {self.row_names[row]!r} is soft with penalty 0 on its {side} side; give "
                    f"a positive penalty, or an infinite {side} bound if there is none."
                )


def check_symbols(stages: Sequence[Stage], x0: ca.SX, shared: ca.SX) -> None:
    """Refuses symbols that a stage does not know.

    A stage knows its own z, z_next and p, and the x0 and shared of the problem; its guess knows p,
    x0, shared and tau.
    """
    ex.check_disjoint({"x0": x0, "shared": shared})
    seen: set[int] = set()
    for k, stage in enumerate(stages):
        if id(stage) in seen:
            continue
        seen.add(id(stage))
        for what, common in (("x0", x0), ("shared", shared)):
            own = {"z": stage.z, "z_next": stage.z_next, "p": stage.p, "tau": stage.tau}
            for name, column in own.items():
                ex.check_disjoint({f"{name} of stage {k}": column, what: common})
        _check_stage(k, stages, x0, shared)


def _pair(value: Any, what: str) -> ca.SX:
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise ProblemError(
                f"{what} must be one value or a pair (lower, upper), got {len(value)} values."
            )
        return ca.vertcat(*(ex.scalar(entry, what) for entry in value))
    return ca.repmat(ex.scalar(value, what), 2, 1)


def _split(n_x: Any, n_u: Any, n_z: int) -> tuple[int | None, int | None]:
    """Checked numbers of states and inputs."""
    if n_x is None and n_u is not None:
        raise ProblemError("n_u is given without n_x; inputs stand after the states, so give both.")
    if n_x is None:
        return None, None
    if not ex.is_integer(n_x, 0, n_z):
        raise ProblemError(f"n_x must be an integer between 0 and {n_z} (size of z), got {n_x!r}.")
    rest = n_z - int(n_x)
    if n_u is None:
        return int(n_x), rest
    if not ex.is_integer(n_u, 0, rest):
        raise ProblemError(
            f"n_u must be an integer between 0 and {rest} (size of z without states), got {n_u!r}."
        )
    return int(n_x), int(n_u)


def _weights(weight: ExpressionLike | None, residual: ca.SX) -> ca.SX:
    if residual.is_empty():
        if weight is not None and not ex.column(weight, "weight").is_empty():
            raise ProblemError("weight is given without a residual; pass residual=... as well.")
        return ca.SX(0, 1)
    given = 1.0 if weight is None else weight
    _refuse_matrix(given, residual.numel())
    result = ex.sized_column(given, residual.numel(), "weight", "residual")
    values = ex.constants(result)
    if np.any(values < 0):
        raise ProblemError(
            f"weight must not be negative, got {values[values < 0][0]:g}; put terms that are not "
            "convex into `cost` (`add_cost` of an OCP)."
        )
    return result


def _refuse_matrix(weight: Any, size: int) -> None:
    """Explains a weight matrix, which users of other tools may try."""
    shape = weight.shape if isinstance(weight, ca.SX | ca.DM | ca.MX) else np.shape(weight)
    if tuple(shape) == (size, size) and size > 1:
        raise ProblemError(
            f"weight is a {size}x{size} matrix, but there is one weight per residual: pass the "
            "diagonal, ca.diag(W).  With other entries make the residual ca.chol(W) @ r, without "
            "weight."
        )


def _bounds(
    lower: ExpressionLike | None, upper: ExpressionLike | None, g: ca.SX
) -> tuple[ca.SX, ca.SX]:
    if g.is_empty():
        for what, bound in zip(SIDES, (lower, upper), strict=True):
            if bound is not None and not ex.column(bound, what).is_empty():
                raise ProblemError(f"{what} is given without g; pass g=... as well.")
        return ca.SX(0, 1), ca.SX(0, 1)
    if lower is None and upper is None:
        raise ProblemError("g is given without lower and upper; pass at least one of them.")
    given = (-np.inf if lower is None else lower, np.inf if upper is None else upper)
    columns = [
        ex.sized_column(bound, g.numel(), what, "g")
        for what, bound in zip(SIDES, given, strict=True)
    ]
    return columns[0], columns[1]


def _row_names(row_names: Any, n_g: int) -> tuple[str, ...]:
    if row_names is None:
        return tuple(f"g[{i}]" for i in range(n_g))
    listed = isinstance(row_names, Iterable) and not isinstance(row_names, str)
    if not listed or not all(isinstance(name, str) for name in row_names):
        raise ProblemError("row_names must be a list of strings, one per row of g.")
    names: tuple[str, ...] = tuple(row_names)
    if len(names) != n_g:
        raise ProblemError(f"row_names has {len(names)} names but g has {n_g} rows.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ProblemError(f"row_names contains {repeated[0]!r} twice; names must be distinct.")
    return names


def _soft_rows(soft: Any, n_g: int) -> tuple[np.ndarray, ca.SX]:
    if soft is None:
        soft = {}
    if not isinstance(soft, Mapping):
        raise ProblemError(f"soft must be a dict {{row of g: Soft}}, got {type(soft).__name__}.")
    for row, penalty in soft.items():
        if not ex.is_integer(row, 0, n_g - 1):
            raise ProblemError(f"soft names row {row!r}, but the rows are 0 to {n_g - 1}.")
        if not isinstance(penalty, Soft):
            raise ProblemError(
                f"soft[{row}] must be a `Soft`, got {type(penalty).__name__}; "
                "write Soft(linear=..., quadratic=...)."
            )
    rows: list[int] = sorted(soft)
    penalties = [soft[row].columns().T for row in rows]
    return np.array(rows, dtype=np.int64), ca.densify(ca.vertcat(ca.SX(0, 4), *penalties))


def _check_stage(k: int, stages: Sequence[Stage], x0: ca.SX, shared: ca.SX) -> None:
    stage = stages[k]
    common = ca.vertcat(x0, shared, stage.p)
    known = set(ex.symbol_keys(ca.vertcat(stage.z, stage.z_next, common)))
    for what, expression in stage.expressions().items():
        _check_expression(f"Stage {k}: {what}", expression, known, k, stages)
    known_to_guess = set(ex.symbol_keys(ca.vertcat(common, stage.tau)))
    _check_expression(f"Stage {k}: guess", stage.guess, known_to_guess, k, stages)


def _check_expression(
    what: str, expression: ca.SX, known: set[int], k: int, stages: Sequence[Stage]
) -> None:
    for key, name in ex.used_symbols(expression).items():
        if key not in known:
            raise ProblemError(f"{what} uses {_whose(key, name, k, stages)}")


def _whose(key: int, name: str, k: int, stages: Sequence[Stage]) -> str:
    """The origin of an unknown symbol, and what to do about it."""
    nearest = sorted(range(len(stages)), key=lambda j: abs(j - k))
    owner = next((j for j in nearest if key in ex.symbol_keys(stages[j].z)), None)
    if owner == k + 1:
        return f"{name!r}, a variable of stage {owner}; pass z of stage {owner} as z_next."
    if owner is not None:
        return (
            f"{name!r}, a variable of stage {owner}, but stages couple with the next one only; "
            "carry the value from stage to stage as an additional variable."
        )
    for j in nearest:
        if key in ex.symbol_keys(stages[j].z_next):
            return (
                f"{name!r}, which is in z_next of stage {j} only; a stage sees its own z and "
                "z_next, the last one its z."
            )
        if key in ex.symbol_keys(stages[j].p):
            return (
                f"{name!r}, a parameter of stage {j}; add it to p of stage {k}, or put it into "
                "`shared`."
            )
    return f"the unknown symbol {name!r}; add it to z, z_next or p, or to x0 or shared."
