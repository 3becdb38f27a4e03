"""`OCP`: an optimal control problem as a control engineer writes it.

Reads: SX expressions in states, inputs and parameters, and the nodes at which they hold.
Produces: an `MPCProblem`, by way of `problem.ocp.lowering`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex
from warpmpc.problem.expressions import ExpressionLike
from warpmpc.problem.integrators import INTEGRATORS, Discretisation, Interval
from warpmpc.problem.mpc_problem import MPCProblem, default_values
from warpmpc.problem.ocp.inputs import (
    bounds_of,
    checked_dt,
    checked_horizon,
    nodes_of,
    soft_rows,
)
from warpmpc.problem.ocp.lowering import Block, Formulation, Term, lower, named, table_of_names
from warpmpc.problem.pickling import HoldsExpressions
from warpmpc.problem.stage import SIDES, Soft, Stage

SymbolsLike: TypeAlias = ca.SX | Mapping[str, ca.SX]
At: TypeAlias = str | int | Iterable[int]


_MISSING: Any = object()
_COMPARISONS = (ca.OP_LE, ca.OP_LT, ca.OP_EQ, ca.OP_NE)


def _refuse_comparisons(*given: Any) -> None:
    """Refuses ``subject_to(x <= 3)``, as other tools write it, and missing arguments."""
    for value in given:
        if isinstance(value, ca.SX) and any(e.op() in _COMPARISONS for e in ex.entries(value)):
            raise ProblemError(
                f"subject_to takes bounds and not the comparison {value}: write subject_to(None, "
                "x, 3) for x <= 3, subject_to(0, x, None) for 0 <= x and subject_to(1, x, 1) for "
                "x == 1."
            )
    if any(value is _MISSING for value in given):
        raise ProblemError(
            "subject_to needs lower, expr and upper, in this order; pass None for a bound that "
            "does not exist: subject_to(None, x, 3)."
        )


class OCP(HoldsExpressions):
    """An optimal control problem over a horizon of N intervals with N + 1 nodes.

    Expressions are CasADi SX in x, u, p, p_stage, and in the attributes `x0` and `dt`.  They hold
    at nodes: "path" (0 to N - 1), "terminal" (N), "initial" (0), "all" (0 to N), an integer, or a
    range or list of integers.  At the last node there is no u unless `terminal_input` is set.

    Attributes:
        x: Symbols of the states, an SX column.
        u: Symbols of the inputs.
        p: Symbols of the parameters of the problem.
        p_stage: Symbols of the parameters that have a value at each of the N + 1 nodes.
        x0: Symbols of the initial state.
        dt: Length of an interval: the number or expression that was given, or with one number per
            interval the symbol of a parameter "dt" of the nodes.  Its value at the last node is
            that of the last interval.
        tau: Symbol for k/N, for `set_guess`.
        horizon: Number N of intervals.
    """

    def __init__(  # noqa: PLR0913  (one constructor, as users expect; most are optional)
        self,
        x: SymbolsLike,
        u: SymbolsLike | None,
        p: SymbolsLike | None = None,
        *,
        p_stage: SymbolsLike | None = None,
        horizon: int,
        dt: ExpressionLike,
        terminal_input: bool = False,
        fix_initial: bool = True,
    ) -> None:
        """Declares states, inputs, parameters and the horizon.

        Args:
            x: States: SX symbols, or a dict from names to SX symbols; results have these names.
            u: Inputs in the same form, or None for a system without inputs.
            p: Parameters of the problem in the same form.
            p_stage: Parameters of the nodes in the same form.
            horizon: Number of intervals, at least 1.
            dt: Length of the intervals: a positive number, one per interval, or an expression.
            terminal_input: Whether the last node has inputs as well, fixed to zero; all nodes then
                have the same size.
            fix_initial: Whether the first node has the rows x = x0.
        """
        self._x, self._u = named(x, "x"), named(u, "u")
        self._p, self._p_stage = named(p, "p"), named(p_stage, "p_stage")
        self.x, self.u = self._x.symbols, self._u.symbols
        self.p, self.p_stage = self._p.symbols, self._p_stage.symbols
        if not self._x.size:
            raise ProblemError("x is empty: a problem needs at least one state.")
        ex.check_disjoint({"x": self.x, "u": self.u, "p": self.p, "p_stage": self.p_stage})
        self.horizon = checked_horizon(horizon)
        self._terminal_input = ex.flag(terminal_input, "terminal_input")
        self._fix_initial = ex.flag(fix_initial, "fix_initial")

        self.x0 = ca.SX.sym("x0", self._x.size)
        self.tau = ca.SX.sym("tau")
        self._x_next = ca.SX.sym("x_next", self._x.size)
        self._z = ca.vertcat(self.x, self.u)
        given = checked_dt(dt, self.horizon)
        self._dt_values = given if isinstance(given, np.ndarray) else None
        self.dt: ca.SX | float = ca.SX.sym("dt") if isinstance(given, np.ndarray) else given
        self._check_known(ca.SX(self.dt), "dt", frozenset())
        self._param_names, self._defaults = self._layout_of_parameters()

        self._dynamics: Discretisation | None = None
        self._terms: list[Term] = []
        self._constraint_names: set[str] = set()
        self._guess = Stage(self._z, guess=self._full_guess(self.x0, None), tau=self.tau)

    def set_dynamics(
        self,
        xdot: ExpressionLike | None = None,
        integrator: str = "rk4",
        substeps: int = 1,
        *,
        x_next: ExpressionLike | None = None,
    ) -> None:
        """Sets the dynamics, which lead from one node to the next.

        Args:
            xdot: Time derivative of x.
            integrator: A name in `warpmpc.problem.integrators.INTEGRATORS`.
            substeps: Number of steps of the integrator per interval.
            x_next: Next state of a discrete system, in place of xdot.
        """
        if self._dynamics is not None:
            raise ProblemError("The dynamics are set already; call set_dynamics once.")
        if (xdot is None) == (x_next is None):
            raise ProblemError("set_dynamics needs either xdot or x_next.")
        if x_next is not None:
            if integrator != "rk4" or substeps != 1:
                raise ProblemError("x_next is discrete: leave integrator and substeps out.")
            rows = self._x_next - self._checked_motion(x_next, "x_next")
            self._dynamics = Discretisation({"dynamics": rows})
            return
        if integrator not in list(INTEGRATORS):
            raise ProblemError(
                f"integrator must be one of {list(INTEGRATORS)}, got {integrator!r}."
            )
        if not ex.is_integer(substeps, 1, 2**31):
            raise ProblemError(f"substeps must be an integer, at least 1, got {substeps!r}.")
        field = self._checked_motion(xdot, "xdot")
        self._dynamics = INTEGRATORS[integrator](
            Interval(
                xdot=lambda x: ca.substitute(field, self.x, x),
                x=self.x,
                x_next=self._x_next,
                dt=self.dt,
                substeps=int(substeps),
            )
        )

    def add_cost(self, expr: ExpressionLike, at: At = "path") -> None:
        """Adds a scalar to the cost of some nodes; it is not multiplied by dt."""
        self._add("cost", Stage(self._z, cost=expr), at)

    def add_residual(
        self, r: ExpressionLike, weight: ExpressionLike = 1.0, at: At = "path"
    ) -> None:
        """Adds ``1/2 sum(weight * r**2)`` to the cost of some nodes, with Gauss-Newton Hessian.

        Args:
            r: Column of expressions.
            weight: Nonnegative scalar, or one weight per row; it may depend on parameters.
            at: Nodes at which the residual counts.
        """
        if ex.column(r, "residual").is_empty():
            raise ProblemError("add_residual got an empty residual; give at least one row.")
        self._add("residual", Stage(self._z, residual=r, weight=weight), at)

    def subject_to(
        self,
        lower: ExpressionLike | None,
        expr: ExpressionLike = _MISSING,
        upper: ExpressionLike | None = _MISSING,
        at: At = "path",
        soft: Any = None,
        name: str | None = None,
    ) -> None:
        """Requires ``lower <= expr <= upper`` at some nodes.

        Args:
            lower: Lower bound: a scalar or one per row, which may depend on parameters; None and
                -inf mean that there is none.
            expr: Column of expressions.
            upper: Upper bound in the same form; None and inf mean that there is none.
            at: Nodes at which the rows hold.
            soft: Penalties of soft rows: a `Soft` or a number (linear penalty) for all rows, or a
                dict from rows to `Soft`.
            name: Name of the constraint, whose rows are called "name[0]", "name[1]", ...; None
                stands for "constraint_i" in the i-th call.
        """
        _refuse_comparisons(lower, expr, upper)
        column = ex.column(expr, "expr")
        if column.is_empty():
            raise ProblemError("subject_to got an empty expr; give at least one row.")
        name = self._constraint_name(name)
        rows = [f"{name}[{i}]" for i in range(column.numel())]
        ex.check_expressions({name: column})
        bounds = bounds_of(lower, upper, len(rows))
        for side, bound in zip(SIDES, bounds, strict=True):
            advice = f"bounds are not differentiated: move it into expr, as in expr - {side}."
            ex.check_independent(bound, self._z, f"{side} of {name}", advice)
        penalties = soft_rows(soft, len(rows))
        part = Stage(self._z, None, None, 0.0, column, *bounds, soft=penalties, row_names=rows)
        self._add(name, part, at, penalties)
        self._constraint_names.add(name)

    def set_guess(self, x: ExpressionLike | None = None, u: ExpressionLike | None = None) -> None:
        """Sets the initial guess of states and inputs at every node.

        Args:
            x: Guess of the states, a column or scalar in x0, tau, p and p_stage; None stands for
                x0.
            u: Guess of the inputs in the same form; None stands for zeros.
        """
        guess = self._full_guess(self.x0 if x is None else x, u)
        part = Stage(self._z, guess=guess, tau=self.tau)
        self._check_known(part.guess, "guess", frozenset(), self.tau)
        self._guess = part

    def set_default(self, name: str, value: Any) -> None:
        """Sets the value that a parameter has if the caller of a solver gives none.

        Args:
            name: Name of a parameter in p or p_stage.
            value: Scalar, one value per entry, or for p_stage one row per node.
        """
        if name == "dt" and self._dt_values is not None:
            raise ProblemError("dt has its defaults from OCP(dt=...); change them there.")
        if name not in list(self._param_names):
            raise ProblemError(
                f"There is no parameter {name!r}; the parameters are {sorted(self._param_names)}."
            )
        rows = self._param_names[name]
        self._defaults[rows] = default_values(name, value, rows)

    def problem(self) -> MPCProblem:
        """Builds the problem in stage form."""
        if self._dynamics is None:
            raise ProblemError("The dynamics are not set; call set_dynamics first.")
        return lower(
            Formulation(
                horizon=self.horizon,
                x=self._x,
                u=self._u,
                x_next=self._x_next,
                x0=self.x0,
                shared=self.p,
                p_node=self._p_node(),
                dynamics=self._dynamics,
                terms=tuple(self._terms),
                guess=self._guess,
                terminal_input=self._terminal_input,
                fix_initial=self._fix_initial,
                param_names=self._param_names,
                defaults=self._defaults,
            )
        )

    def _p_node(self) -> ca.SX:
        """Symbols of the parameters of a node."""
        return self.p_stage if self._dt_values is None else ca.vertcat(self.p_stage, self.dt)

    def _layout_of_parameters(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Rows by name and defaults of the parameter vector [x0 | p | nodes]."""
        begin, n_node = self._x.size + self._p.size, self._p_node().numel()
        nodes = begin + n_node * np.arange(self.horizon + 1)
        blocks = [Block(self._p, self._x.size), Block(self._p_stage, nodes)]
        defaults = np.full(begin + n_node * nodes.size, np.nan)
        if self._dt_values is not None:
            dt = named({"dt": self.dt}, "dt")
            blocks.append(Block(dt, nodes + self._p_stage.size))
            defaults[nodes + self._p_stage.size] = np.append(self._dt_values, self._dt_values[-1])
        return table_of_names(blocks), defaults

    def _add(self, what: str, part: Stage, at: At, soft: Mapping[int, Soft] | None = None) -> None:
        nodes = nodes_of(at, self.horizon)
        for expression in part.expressions().values():
            self._check_known(expression, what, nodes)
        self._terms.append(Term(part, nodes, soft or {}))

    def _check_known(
        self, expression: ca.SX, what: str, nodes: frozenset[int], *more: ca.SX
    ) -> None:
        """Refuses symbols that do not belong to this problem, and inputs at nodes without any."""
        own = [self.x, self.u, self.p, self.p_stage, self.x0]
        known = set(ex.symbol_keys(ca.vertcat(*own, *self._dt_symbol(), *more)))
        inputs = set(ex.symbol_keys(self.u))
        for key, name in ex.used_symbols(expression).items():
            if key == self.tau.element_hash() and key not in known:
                raise ProblemError(
                    f"{what} uses tau, which is for set_guess only; pass the times of the nodes as "
                    "a parameter in p_stage."
                )
            if key not in known:
                raise ProblemError(
                    f"{what} uses the unknown symbol {name!r}; pass it to OCP as x, u, p, p_stage."
                )
            if key in inputs and self.horizon in nodes and not self._terminal_input:
                raise ProblemError(
                    f"{what} uses the input {name!r} at the terminal node, which has no inputs; "
                    'use at="path", or OCP(..., terminal_input=True).'
                )

    def _dt_symbol(self) -> list[ca.SX]:
        return [] if self._dt_values is None else [ca.SX(self.dt)]

    def _checked_motion(self, given: ExpressionLike | None, what: str) -> ca.SX:
        expression = ex.column(given, what)
        if expression.numel() != self._x.size:
            raise ProblemError(
                f"{what} has {expression.numel()} rows but x has {self._x.size}; "
                "give one per state."
            )
        self._check_known(expression, what, frozenset())
        ex.check_expressions({what: expression})
        return expression

    def _constraint_name(self, name: Any) -> str:
        if name is None:
            name = f"constraint_{len(self._constraint_names)}"
        elif not isinstance(name, str) or not name:
            raise ProblemError(f"name must be a string, got {name!r}.")
        if name in self._constraint_names:
            raise ProblemError(f"A constraint is named {name!r} already; choose another name.")
        return name

    def _full_guess(self, x: ExpressionLike, u: ExpressionLike | None) -> ca.SX:
        x_guess = ex.sized_column(x, self._x.size, "guess of x", "x")
        u_guess = ex.sized_column(0.0 if u is None else u, self._u.size, "guess of u", "u")
        return ca.vertcat(x_guess, u_guess)


def as_problem(problem: Any) -> MPCProblem:
    """The problem in its general form."""
    if isinstance(problem, OCP):
        return problem.problem()
    if not isinstance(problem, MPCProblem):
        raise ProblemError(f"problem must be an OCP or MPCProblem, got {type(problem).__name__}.")
    return problem
