"""The whole problem: stages over the horizon, groups of equal stages, and offsets of all vectors.

Reads: `Stage` objects.  Produces: an `MPCProblem` with groups, offsets of variables, rows and
parameters, names, defaults and a content hash.

Stages are equal if one program can evaluate them.  To find this out, digests are made of the
straight-line programs of their expressions, which contain no names of symbols.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex
from warpmpc.problem.expressions import ExpressionLike
from warpmpc.problem.pickling import HoldsExpressions
from warpmpc.problem.stage import Stage, check_symbols

Names = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class StageGroup:
    """Stages that are equal in structure and constants.

    Attributes:
        stage: One stage, whose symbols stand for those of all.  Guesses and row names may differ;
            take them from `MPCProblem.stages`.
        ks: Positions of the stages in the horizon, in ascending order.
    """

    stage: Stage
    ks: tuple[int, ...]


class MPCProblem(HoldsExpressions):
    """An optimal control problem: the sum of stage costs subject to the rows of all stages.

    Variables are z_0, ..., z_N; rows are those of stage 0, then stage 1, and so on.  The parameter
    vector is ``[x0 | shared | p_0 | ... | p_N]``.

    Attributes:
        stages: The N + 1 stages, one per node; equal nodes may be the same object.
        x0: SX symbols of the initial state, whose values `solve(x0)` gets.
        shared: SX symbols of the parameters of the whole problem.
        groups: Groups of equal stages, in the order of their first node.
        group_of: Group of each node.
        z_offset: First variable of each node; the last entry is the number of variables.
        g_offset: First row of each node; the last entry is the number of rows.
        p_offset: First parameter of each node in the parameter vector; the last entry is the total.
        full_diagonal: Whether all diagonal entries of the Hessian are structural.
        defaults: Default of each parameter, NaN if the caller must give a value.
        names: Rows of z by name, ``[nodes that have it, size]``.
        param_names: Rows of the parameter vector by name, ``[size]`` or ``[nodes, size]``.
        row_names: Name of each constraint row within its node, which is in `con_stage`.
        x_rows: Rows of z that are states, ``[nodes that have some, n_x]``, or None if they are
            unknown or differ in number.
        u_rows: Rows of z that are inputs, in the same form; where stages do not tell, those that
            are named "u".
        var_stage: Node of each variable.
        con_stage: Node of each row.
        hash: Content hash of all of the above.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        x0: ExpressionLike | None = None,
        shared: ExpressionLike | None = None,
        full_diagonal: bool = True,
        defaults: np.ndarray | Mapping[str, Any] | None = None,
        names: Mapping[str, np.ndarray] | None = None,
        param_names: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Checks that the stages fit together.

        Args:
            stages: One stage per node, the last one without z_next.
            x0: SX symbols of the initial state, which expressions of all stages may use.
            shared: SX symbols of further parameters that expressions of all stages may use.
            full_diagonal: Whether to store all diagonal entries of the Hessian, zero or not.
            defaults: One default per parameter, NaN for none, or defaults by the names in
                `param_names`.
            names: Rows of z by name; None stands for "x" and "u" if all stages agree on their
                sizes.
            param_names: Rows of the parameter vector by name; None stands for "shared", and "p" for
                the parameters of the nodes ("p_0", "p_1", ... if their sizes differ).
        """
        self.stages = _checked_stages(stages)
        self.x0 = ex.symbols(x0, "x0")
        self.shared = ex.symbols(shared, "shared")
        self.full_diagonal = ex.flag(full_diagonal, "full_diagonal")
        check_symbols(self.stages, self.x0, self.shared)

        self.z_offset = _offsets(0, [stage.n_z for stage in self.stages])
        self.g_offset = _offsets(0, [stage.n_g for stage in self.stages])
        sizes = [stage.p.numel() for stage in self.stages]
        self.p_offset = _offsets(self.n_x0 + self.n_shared, sizes)

        self.group_of, self._digests = _grouped(self.stages, self.x0, self.shared)
        self.groups = tuple(
            StageGroup(self.stages[ks[0]], tuple(ks.tolist()))
            for ks in (np.flatnonzero(self.group_of == i) for i in range(len(self._digests)))
        )
        self._inputs = (names or {}).get("u")
        self.names = (
            self._default_names()
            if names is None
            else _checked_names(names, self.n_vars, "names", axes=(2,))
        )
        self.param_names = (
            self._default_param_names()
            if param_names is None
            else _checked_names(param_names, self.n_params, "param_names", axes=(1, 2))
        )
        self.defaults = self._checked_defaults(defaults)

    @property
    def horizon(self) -> int:
        """Number N of intervals; there is one node more."""
        return len(self.stages) - 1

    @property
    def n_vars(self) -> int:
        """Number of variables."""
        return int(self.z_offset[-1])

    @property
    def n_cons(self) -> int:
        """Number of constraint rows."""
        return int(self.g_offset[-1])

    @property
    def n_params(self) -> int:
        """Length of the parameter vector."""
        return int(self.p_offset[-1])

    @property
    def n_x0(self) -> int:
        """Length of x0."""
        return self.x0.numel()

    @property
    def n_shared(self) -> int:
        """Number of parameters of the whole problem."""
        return self.shared.numel()

    @cached_property
    def row_names(self) -> tuple[str, ...]:
        """Name of each constraint row."""
        return tuple(name for stage in self.stages for name in stage.row_names)

    @cached_property
    def var_stage(self) -> np.ndarray:
        """Node of each variable."""
        return np.repeat(np.arange(self.horizon + 1), np.diff(self.z_offset))

    @cached_property
    def con_stage(self) -> np.ndarray:
        """Node of each row."""
        return np.repeat(np.arange(self.horizon + 1), np.diff(self.g_offset))

    def param_rows(self, k: int) -> np.ndarray:
        """Rows of the parameter vector that node k uses: x0, shared, p_k."""
        common = np.arange(self.n_x0 + self.n_shared)
        return np.concatenate([common, np.arange(self.p_offset[k], self.p_offset[k + 1])])

    @cached_property
    def hash(self) -> str:
        """Content hash of the whole problem, equal in every process that builds the same one."""
        guesses: dict[int, str] = {}
        for stage in self.stages:
            if id(stage) not in guesses:
                function = guess_function(stage, self.x0, self.shared)
                guesses[id(stage)] = function_digest(function)
        tables = (*self.names.values(), *self.param_names.values())
        parts = [
            repr((self.full_diagonal, self.row_names, *self._digests)),
            repr((list(self.names), list(self.param_names))),
            *(guesses[id(stage)] for stage in self.stages),
            *(array_digest(rows) for rows in tables),
            array_digest(self.group_of),
            array_digest(self.defaults),
        ]
        return digest(parts)

    @cached_property
    def x_rows(self) -> np.ndarray | None:
        """Rows of z that are states, ``[nodes that have some, n_x]``; see the class."""
        return self._rows_of([(0, stage.n_x) for stage in self.stages])

    @cached_property
    def u_rows(self) -> np.ndarray | None:
        """Rows of z that are inputs, ``[nodes that have some, n_u]``; see the class."""
        rows = self._rows_of([(stage.n_x or 0, stage.n_u) for stage in self.stages])
        return self._inputs if rows is None else rows

    def _rows_of(self, parts: Sequence[tuple[int, int | None]]) -> np.ndarray | None:
        """Rows of z from (begin, size) in each node."""
        sizes = {size for _, size in parts} - {0}
        if len(sizes) != 1 or None in sizes:
            return None
        nodes = [k for k, (_, size) in enumerate(parts) if size]
        begin = self.z_offset[nodes] + np.array([parts[k][0] for k in nodes])
        return begin[:, None] + np.arange(sizes.pop() or 0)

    def _default_names(self) -> Names:
        rows = {"x": self.x_rows, "u": self.u_rows}
        return {name: part for name, part in rows.items() if part is not None}

    def _default_param_names(self) -> Names:
        sizes = np.diff(self.p_offset)
        nodes = np.flatnonzero(sizes)
        names: Names = {}
        if self.n_shared:
            names["shared"] = self.n_x0 + np.arange(self.n_shared)
        if len({*sizes[nodes].tolist()}) == 1:
            names["p"] = self.p_offset[nodes, None] + np.arange(int(sizes[nodes[0]]))
        else:
            names |= {f"p_{k}": self.p_offset[k] + np.arange(sizes[k]) for k in nodes.tolist()}
        return names

    def _checked_defaults(self, given: Any) -> np.ndarray:
        defaults = np.full(self.n_params, np.nan)
        if given is None:
            return defaults
        if isinstance(given, Mapping):
            for name, value in given.items():
                rows = self._rows_of_parameter(name)
                defaults[rows] = default_values(name, value, rows)
            return defaults
        array = _numbers(given, "defaults")
        if array.shape != defaults.shape:
            raise ProblemError(
                f"defaults has shape {array.shape} but the problem has {self.n_params} parameters; "
                "give one number each (NaN for none), or a dict by name."
            )
        return array.copy()

    def _rows_of_parameter(self, name: str) -> np.ndarray:
        if name not in self.param_names:
            raise ProblemError(
                f"defaults names {name!r}, but the parameters are {sorted(self.param_names)}."
            )
        return self.param_names[name]


def default_values(name: str, value: Any, rows: np.ndarray) -> np.ndarray:
    """The default of a named parameter in the shape of its rows.

    Args:
        name: Name of the parameter, for error messages.
        value: Scalar, one value per entry (for all nodes), or one row per node.
        rows: Rows of the parameter, ``[size]`` or ``[nodes, size]``.
    """
    array = _numbers(value, f"The default of {name!r}")
    if np.any(np.isnan(array)):
        raise ProblemError(f"The default of {name!r} contains NaN; give numbers.")
    if rows.ndim == 2 and rows.shape[1] == 1 and array.shape == rows.shape[:1]:
        array = array[:, None]
    if array.shape not in ((), rows.shape[-1:], rows.shape):
        raise ProblemError(
            f"The default of {name!r} has shape {array.shape}; it must be a scalar or have the "
            f"shape {' or '.join(map(str, dict.fromkeys([rows.shape[-1:], rows.shape])))}."
        )
    return np.broadcast_to(array, rows.shape)


def stage_function(stage: Stage, x0: ca.SX, shared: ca.SX) -> ca.Function:
    """Function of (z, z_next, x0, shared, p) that returns all expressions of a stage."""
    inputs = [stage.z, stage.z_next, x0, shared, stage.p]
    outputs = stage.expressions()
    names = ["z", "z_next", "x0", "shared", "p"]
    return ca.Function("stage", inputs, list(outputs.values()), names, list(outputs))


def guess_function(stage: Stage, x0: ca.SX, shared: ca.SX) -> ca.Function:
    """Function of (x0, shared, p, tau) that returns the guess of z."""
    inputs = [x0, shared, stage.p, stage.tau]
    return ca.Function("guess", inputs, [stage.guess], ["x0", "shared", "p", "tau"], ["z"])


def _numbers(value: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ProblemError(f"{what} must be numbers, got {value!r}.") from error


def _checked_stages(stages: Any) -> tuple[Stage, ...]:
    if isinstance(stages, Stage) or not isinstance(stages, Sequence):
        raise ProblemError(
            f"stages must be a list of Stage, one per node, got {type(stages).__name__}."
        )
    for k, stage in enumerate(stages):
        if not isinstance(stage, Stage):
            raise ProblemError(f"Stage {k} must be a Stage, got {type(stage).__name__}.")
    if not stages:
        raise ProblemError("stages is empty: give at least one stage (the last one has no z_next).")
    for k, (here, after) in enumerate(pairwise(stages)):
        if here.z_next.numel() != after.n_z:
            raise ProblemError(
                f"Stage {k} has {here.z_next.numel()} symbols in z_next but z of stage {k + 1} has "
                f"{after.n_z}; pass as many symbols, used or not."
            )
    if stages[-1].z_next.numel():
        raise ProblemError(
            f"Stage {len(stages) - 1} is the last one but has z_next; leave z_next out there."
        )
    return tuple(stages)


def _grouped(
    stages: Sequence[Stage], x0: ca.SX, shared: ca.SX
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Group of each node, and the digest of each group."""
    by_identity: dict[int, str] = {}
    for stage in stages:
        if id(stage) not in by_identity:
            by_identity[id(stage)] = stage_digest(stage, x0, shared)
    digests = tuple(dict.fromkeys(by_identity.values()))
    number = {found: i for i, found in enumerate(digests)}
    return np.array([number[by_identity[id(stage)]] for stage in stages]), digests


def _offsets(begin: int, sizes: Sequence[int]) -> np.ndarray:
    return begin + np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _checked_names(given: Mapping[Any, Any], size: int, what: str, axes: tuple[int, ...]) -> Names:
    names: Names = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ProblemError(f"Names in {what} must be strings, got {name!r}.")
        rows = _numbers(value, f"{what}[{name!r}]")
        if rows.ndim not in axes or np.any(rows != np.floor(rows)):
            wanted = " or ".join("[nodes, size]" if n == 2 else "[size]" for n in axes)
            raise ProblemError(f"{what}[{name!r}] must be an array of integers {wanted}.")
        if rows.size and not (rows.min() >= 0 and rows.max() < size):
            raise ProblemError(f"{what}[{name!r}] has rows outside 0 to {size - 1}.")
        names[name] = rows.astype(np.int64)
    return names


def function_digest(function: ca.Function) -> str:
    """Digest of the sizes, operations, operands and constants of an SX function, without names.

    The program depends on how an expression was built, and not on the identity of its symbols.
    """
    shapes = [function.size_in(i) for i in range(function.n_in())]
    patterns = [function.sparsity_out(i).get_triplet() for i in range(function.n_out())]
    sizes = [function.size_out(i) for i in range(function.n_out())]
    codes = ex.operation_codes(function)
    # The number of operands of an operation follows from its code, so they need no separators.
    operands: list[int] = []
    for i in range(len(codes)):
        operands += function.instruction_input(i)
        operands += function.instruction_output(i)
    program = (np.array(codes), np.array(operands), ex.program_constants(function, codes))
    return digest([repr((shapes, sizes, patterns)), *(array_digest(part) for part in program)])


def stage_digest(stage: Stage, x0: ca.SX, shared: ca.SX) -> str:
    """Digest of everything that an iteration evaluates, so without guess and row names."""
    function = stage_function(stage, x0, shared)
    rest = (stage.soft_rows.tolist(), stage.n_x, stage.n_u)
    return digest([function_digest(function), repr(rest)])


def array_digest(array: np.ndarray) -> str:
    """Digest of shape, type and values."""
    content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return digest([str(array.shape), array.dtype.str, content])


def digest(parts: Iterable[str]) -> str:
    """SHA-256 of a sequence of strings."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode() + b"\n")
    return total.hexdigest()
