"""Translation of a jaxpr: folding of constants, rules for primitives, inlining, unrolling of loops.

Reads: a jaxpr and its arguments.  Produces: its outputs as NumPy arrays or CasADi expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from warpmpc._errors import ProblemError
from warpmpc.problem.jaxpr import contraction, elementwise, linalg, movement
from warpmpc.problem.jaxpr.values import (
    Equation,
    RefusalError,
    Refused,
    Symbolic,
    Value,
    flat_of,
    symbolic,
)

MAX_ITERATIONS = 10_000  # limit on the iterations of all loops together
_JAX_FOLDER = str(Path(jax.__file__).parent)

RULES: dict[str, Callable[[Equation, list[Value]], Value | list[Value]]] = {
    **elementwise.RULES,
    **movement.RULES,
    **contraction.RULES,
    **linalg.RULES,
}

# The parameter of a call that holds the called jaxpr.
_CALLEES = {
    "call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "composite": "jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}

_HINTS = {
    **dict.fromkeys(("argmin", "sort", "top_k"), contraction.NO_ORDER),
    "conv_general_dilated": "write the convolution as a matrix product",
    "lu": "its pivots depend on the arguments; use jnp.linalg.solve, or a Cholesky factor",
}
_NO_RULE = (
    "there is no rule for it; write this part with elementwise functions, constant indices, matrix "
    "products and reductions, or in CasADi"
)

Result = Value | Refused


class Translator:
    """Evaluates jaxprs on numbers and expressions; counts the iterations of their loops."""

    def __init__(self) -> None:
        """Starts with no iteration counted."""
        self._iterations = 0
        self._site: Equation | None = None  # where the user's code calls into JAX's own functions
        self._control: dict[str, Callable[[Equation, list[Any]], list[Result]]] = {
            **dict.fromkeys(_CALLEES, self._call),
            "cond": self._cond,
            "custom_linear_solve": self._linear_solve,
            "scan": self._scan,
            "while": self._while,
        }

    def evaluate(self, closed: Any, arguments: Sequence[Result]) -> list[Result]:
        """Outputs of a jaxpr with or without constants of its own."""
        jaxpr = getattr(closed, "jaxpr", closed)
        environment: dict[Any, Result] = dict(zip(jaxpr.invars, arguments, strict=True))
        constants = getattr(closed, "consts", ())
        environment.update(zip(jaxpr.constvars, map(_number, constants), strict=True))
        for eqn in jaxpr.eqns:
            values = [_read(environment, atom) for atom in eqn.invars]
            environment.update(zip(eqn.outvars, self._apply(eqn, values), strict=True))
        return [_read(environment, atom) for atom in jaxpr.outvars]

    def _apply(self, eqn: Equation, values: list[Any]) -> Sequence[Result]:
        name, n_out = eqn.primitive.name, len(eqn.outvars)
        known = not any(isinstance(value, Symbolic | Refused) for value in values)
        if known and name not in _CALLEES:
            return _fold(eqn, values)
        refused = _first_refused(values)
        try:
            if name in self._control:
                return self._control[name](eqn, values)
            if refused is not None:
                return [refused] * n_out
            result = _rule(eqn)(eqn, values)
        except RefusalError as reason:
            return [self._refuse(eqn, str(reason))] * n_out
        return result if isinstance(result, list) else [result]

    def _refuse(self, eqn: Equation, reason: str) -> Refused:
        place = _place(self._site or eqn)
        return Refused(f"from_jax cannot translate `{eqn.primitive.name}`{place}: {reason}.")

    def _inline(self, eqn: Equation, closed: Any, arguments: Sequence[Result]) -> list[Result]:
        """Outputs of a jaxpr inside an equation."""
        outer = self._site
        if outer is None and _JAX_FOLDER in _source(closed):
            self._site = eqn  # JAX traces its own functions once, with the place of the first call
        try:
            return self.evaluate(closed, arguments)
        finally:
            self._site = outer

    def _call(self, eqn: Equation, values: list[Any]) -> list[Result]:
        closed = eqn.params[_CALLEES[eqn.primitive.name]]
        known = not any(isinstance(value, Symbolic) for value in values)
        own = _source(closed).startswith(f"logaddexp at {_JAX_FOLDER}")
        if own and not known and _first_refused(values) is None:
            shape = tuple(eqn.outvars[0].aval.shape)
            return [elementwise.apply(elementwise.logaddexp, values, shape)]
        return self._inline(eqn, closed, values)

    def _cond(self, eqn: Equation, values: list[Any]) -> list[Result]:
        which, *operands = values
        branches = eqn.params["branches"]
        if isinstance(which, Refused):
            return [which] * len(eqn.outvars)
        if not isinstance(which, Symbolic):
            chosen = branches[int(np.clip(which, 0, len(branches) - 1))]
            return self._inline(eqn, chosen, operands)
        outputs = [self._inline(eqn, branch, operands) for branch in branches]
        return [_merge(which, list(cases)) for cases in zip(*outputs, strict=True)]

    def _scan(self, eqn: Equation, values: list[Any]) -> list[Result]:
        given = eqn.params
        n_fixed, n_carry = given["num_consts"], given["num_carry"]
        fixed, carry = values[:n_fixed], values[n_fixed : n_fixed + n_carry]
        inputs = values[n_fixed + n_carry :]
        shapes = [variable.aval for variable in eqn.outvars[n_carry:]]
        steps = range(given["length"])
        stacks: list[list[Result]] = []
        for step in reversed(steps) if given["reverse"] else steps:
            self._count(eqn)
            here = [_entry(array, step) for array in inputs]
            outputs = self._inline(eqn, given["jaxpr"], [*fixed, *carry, *here])
            carry = outputs[:n_carry]
            stacks.append(outputs[n_carry:])
        if given["reverse"]:
            stacks.reverse()
        return [*carry, *(_stack([row[i] for row in stacks], s) for i, s in enumerate(shapes))]

    def _while(self, eqn: Equation, values: list[Any]) -> list[Result]:
        given = eqn.params
        n_cond, n_body = given["cond_nconsts"], given["body_nconsts"]
        fixed_cond, fixed_body = values[:n_cond], values[n_cond : n_cond + n_body]
        carry = values[n_cond + n_body :]
        while True:
            (going,) = self._inline(eqn, given["cond_jaxpr"], [*fixed_cond, *carry])
            if isinstance(going, Refused):
                return [going] * len(carry)
            if isinstance(going, Symbolic):
                raise RefusalError(
                    "the number of iterations depends on the arguments; use lax.fori_loop or "
                    "lax.scan with a constant number"
                )
            if not going:
                return carry
            self._count(eqn)
            carry = self._inline(eqn, given["body_jaxpr"], [*fixed_body, *carry])

    def _count(self, eqn: Equation) -> None:
        self._iterations += 1
        if self._iterations > MAX_ITERATIONS:
            raise ProblemError(
                f"from_jax unrolls loops; `{eqn.primitive.name}`{_place(self._site or eqn)} brings "
                f"them to more than {MAX_ITERATIONS} iterations; shorten the loops."
            )

    def _linear_solve(self, eqn: Equation, values: list[Any]) -> list[Result]:
        """Takes the matrix from its products with unit vectors and ignores JAX's way to solve."""
        lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        fixed, right = values[: lengths.matvec], values[sum(lengths) :]
        refused = _first_refused([*fixed, *right])
        if refused is not None:
            return [refused] * len(eqn.outvars)
        ends = np.cumsum([flat_of(part).numel() for part in right])
        columns: list[ca.SX] = []
        for unit in np.eye(ends[-1]):
            parts = [
                part.reshape(value.shape)
                for part, value in zip(np.split(unit, ends[:-1]), right, strict=True)
            ]
            product = self._inline(eqn, jaxprs.matvec, [*fixed, *parts])
            refused = _first_refused(product)
            if refused is not None:
                return [refused] * len(eqn.outvars)
            columns.append(ca.vertcat(*(flat_of(part) for part in product)))  # pyright: ignore
        solution = linalg.solve_blocks(ca.horzcat(*columns), ca.vertcat(*map(flat_of, right)))
        found = ca.vertsplit(solution, [0, *ends.tolist()])
        return [symbolic(part, value.shape) for part, value in zip(found, right, strict=True)]


def _read(environment: dict[Any, Result], atom: Any) -> Result:
    if isinstance(atom, Literal):
        aval: Any = atom.aval
        return np.asarray(atom.val, dtype=aval.dtype)
    return environment[atom]


def _number(value: Any) -> np.ndarray:
    """A constant as a NumPy array; random keys, which have no NumPy form, stay as they are."""
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return value
    return np.asarray(value)


def _fold(eqn: Equation, values: list[Any]) -> list[Result]:
    """Evaluates an equation of arrays, by NumPy where the result is the same, else by JAX."""
    name = eqn.primitive.name
    plain = all(isinstance(value, np.ndarray) for value in values)
    results: Any
    if plain and name in elementwise.ON_NUMBERS:
        with np.errstate(all="ignore"):  # JAX does not warn, either
            results = elementwise.ON_NUMBERS[name](*values)
    elif plain and name in movement.ON_NUMBERS:
        results = movement.ON_NUMBERS[name](eqn, values)
    else:
        results = eqn.primitive.bind(*values, **eqn.params)
    return list(map(_number, results if eqn.primitive.multiple_results else [results]))


def _rule(eqn: Equation) -> Callable[[Equation, list[Value]], Value | list[Value]]:
    name = eqn.primitive.name
    if any(np.dtype(variable.aval.dtype).kind == "c" for variable in eqn.outvars):
        raise RefusalError("CasADi has no complex numbers; split real and imaginary parts")
    if name not in RULES:
        raise RefusalError(_HINTS.get(name, _NO_RULE))
    return RULES[name]


def _first_refused(values: Sequence[Result]) -> Refused | None:
    return next((value for value in values if isinstance(value, Refused)), None)


def _merge(which: Symbolic, cases: list[Any]) -> Result:
    """One output of a `cond` from those of its branches; equal arrays stay an array."""
    refused = _first_refused(cases)
    if refused is not None:
        return refused
    numbers = [case for case in cases if not isinstance(case, Symbolic)]
    if len(numbers) == len(cases) and all(np.array_equal(numbers[0], case) for case in numbers):
        return numbers[0]
    return elementwise.choose(which, cases, cases[0].shape)


def _entry(array: Any, step: int) -> Result:
    """One entry along the first axis."""
    if not isinstance(array, Symbolic):
        return array if isinstance(array, Refused) else array[step]
    size = math.prod(array.shape[1:])
    return Symbolic(array.flat[step * size : (step + 1) * size], array.shape[1:])


def _stack(rows: list[Any], aval: Any) -> Result:
    """Outputs of the iterations along a new first axis."""
    refused = _first_refused(rows)
    if refused is not None:
        return refused
    if any(isinstance(row, Symbolic) for row in rows):
        return symbolic(ca.vertcat(*map(flat_of, rows)), tuple(aval.shape))
    return np.array(rows, dtype=aval.dtype).reshape(aval.shape)


def _source(closed: Any) -> str:
    """The note of JAX on the function of a jaxpr, "name at file:line", or an empty string."""
    information = getattr(getattr(closed, "jaxpr", closed), "debug_info", None)
    return getattr(information, "func_src_info", None) or ""


def _place(eqn: Equation) -> str:
    """The innermost line outside of JAX that led to an equation."""
    traceback = getattr(eqn.source_info, "traceback", None)
    for frame in traceback.frames if traceback is not None else ():
        if not frame.file_name.startswith(_JAX_FOLDER):
            return f" ({Path(frame.file_name).name}:{frame.line_num}, in {frame.function_name})"
    return ""
