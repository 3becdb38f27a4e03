"""From what a caller passes (x0, named parameters) to the parameter vector of a problem.

Parameters of one value for all instances may come without batch axes; everything else has the
leading axes of x0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc._types import ArrayLike, check_array
from warpmpc.problem.mpc_problem import MPCProblem

Params = Mapping[str, ArrayLike] | ArrayLike | None


class ParameterPacker:
    """Builds ``[..., n_params]`` for one problem."""

    def __init__(self, problem: MPCProblem, dtype: str):
        """Reads names and defaults."""
        self._problem, self._dtype = problem, dtype
        # One program instead of many small ones: the first call would compile each of them.
        self._assembled = jax.jit(self._assemble, static_argnames=("names", "leading"))

    def __call__(self, x0: ArrayLike | None, params: Params) -> jax.Array:
        """The parameter vectors.

        Args:
            x0: Initial states ``[..., n_x0]``.
            params: By name, or all of them but x0 as ``[..., n]``; None: defaults.
        """
        if isinstance(params, Mapping):
            given = dict(params)
            if "x0" in given and "x0" not in self._problem.param_names:
                if x0 is not None:
                    raise ProblemError('x0 is given twice: as an argument and in params["x0"].')
                x0 = given.pop("x0")
            return self._by_name(self._x0(x0), given)
        head = self._x0(x0)
        if params is None:
            return self._by_name(head, {})
        rest = check_array(
            params, "params", self._problem.n_params - self._problem.n_x0, self._dtype
        )
        leading = _common([("x0", head, 1), ("params", rest, 1)])
        return self._assembled(head, [rest], names=None, leading=leading)

    def _x0(self, x0: ArrayLike | None) -> jax.Array:
        if x0 is None:
            if self._problem.n_x0:
                raise ProblemError(
                    'x0 is missing: pass the initial states, or params with the entry "x0".'
                )
            return jnp.zeros(0, dtype=self._dtype)
        return check_array(x0, "x0", self._problem.n_x0, self._dtype)

    def _by_name(self, head: jax.Array, params: dict[str, Any]) -> jax.Array:
        problem = self._problem
        unknown = sorted(set(params) - set(problem.param_names))
        if unknown:
            raise ProblemError(
                f"Unknown parameter {unknown[0]!r}; this problem has {sorted(problem.param_names)}."
            )
        rows = [problem.param_names[name] for name in params]
        every = np.concatenate([r.ravel() for r in rows]) if rows else np.array([], dtype=int)
        if np.unique(every).size < every.size:
            raise ProblemError(f"params names an entry twice: {sorted(params)} overlap.")
        self._refuse_missing(every)
        values = [self._value(name, params[name]) for name in params]
        named = [("x0", head, 1)]
        named += [(n, v, r.ndim) for n, v, r in zip(params, values, rows, strict=True)]
        return self._assembled(head, values, names=tuple(params), leading=_common(named))

    def _assemble(
        self,
        head: jax.Array,
        values: list[jax.Array],
        names: tuple[str, ...] | None,
        leading: tuple[int, ...],
    ) -> jax.Array:
        """The vectors; without names there is one array of all parameters but x0."""
        problem = self._problem
        vector = jnp.asarray(problem.defaults, dtype=self._dtype)
        vector = jnp.broadcast_to(vector, (*leading, problem.n_params))
        vector = vector.at[..., : problem.n_x0].set(head)
        if names is None:
            return vector.at[..., problem.n_x0 :].set(values[0])
        for name, value in zip(names, values, strict=True):
            vector = vector.at[..., problem.param_names[name]].set(value)
        return vector

    def _value(self, name: str, value: Any) -> jax.Array:
        rows = self._problem.param_names[name]
        array = check_array(value, f"params[{name!r}]", rows.shape[-1], self._dtype)
        # A parameter of every node may be given once for all of them.
        if rows.ndim == 2 and (array.ndim < 2 or array.shape[-2] != rows.shape[0]):
            if array.ndim > 1:
                raise ProblemError(
                    f"params[{name!r}] has shape {tuple(array.shape)}; it belongs to "
                    f"{rows.shape[0]} nodes: its last axes must be {tuple(rows.shape)}, or "
                    f"({rows.shape[-1]},) alone for one value everywhere."
                )
            array = jnp.broadcast_to(array, rows.shape)
        return array

    def _refuse_missing(self, given: np.ndarray) -> None:
        """Every parameter has a value or a default."""
        problem = self._problem
        missing = np.isnan(problem.defaults)
        missing[: problem.n_x0] = False
        missing[given] = False
        if missing.any():
            names = [n for n, rows in problem.param_names.items() if missing[rows].any()]
            raise ProblemError(
                f"No value for the parameters {sorted(names)}: pass them in `params`, or give them "
                "a default."
            )


def _common(arrays: list[tuple[str, jax.Array, int]]) -> tuple[int, ...]:
    """Leading axes of all arrays; none, or the same for all that have any.

    Args:
        arrays: Name, array, and how many of its last axes are its own.
    """
    found = {name: array.shape[: array.ndim - own] for name, array, own in arrays}
    some = {leading for leading in found.values() if leading}
    if len(some) > 1:
        listed = ", ".join(f"{name}: {list(leading)}" for name, leading in found.items())
        raise ProblemError(f"All arguments need the same leading axes, or none; got {listed}.")
    return some.pop() if some else ()
