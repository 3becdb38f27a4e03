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

    def __call__(self, x0: ArrayLike | None, params: Params) -> jax.Array:
        """The parameter vectors.

        Args:
            x0: Initial states ``[..., n_x0]``.
            params: By name, or all of them but x0 as ``[..., n]``; None: defaults.
        """
        if isinstance(params, Mapping):
            return self._by_name(x0, dict(params))
        head = self._x0(x0)
        rest = self._problem.n_params - self._problem.n_x0
        if params is None:
            self._refuse_missing(np.array([], dtype=int))
            tail = jnp.asarray(self._problem.defaults[self._problem.n_x0 :], dtype=self._dtype)
        else:
            tail = check_array(params, "params", rest, self._dtype)
        leading = _common([("x0", head, 1), ("params", tail, 1)])
        parts = [jnp.broadcast_to(a, (*leading, a.shape[-1])) for a in (head, tail)]
        return jnp.concatenate(parts, axis=-1)

    def _x0(self, x0: ArrayLike | None) -> jax.Array:
        if x0 is None:
            if self._problem.n_x0:
                raise ProblemError(
                    'x0 is missing: pass the initial states, or params with the entry "x0".'
                )
            return jnp.zeros(0, dtype=self._dtype)
        return check_array(x0, "x0", self._problem.n_x0, self._dtype)

    def _by_name(self, x0: ArrayLike | None, params: dict[str, Any]) -> jax.Array:
        problem = self._problem
        if "x0" in params and "x0" not in problem.param_names:
            if x0 is not None:
                raise ProblemError('x0 is given twice: as an argument and in params["x0"].')
            x0 = params.pop("x0")
        head = self._x0(x0)
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
        leading = _common(named)
        defaults = jnp.asarray(problem.defaults, dtype=self._dtype)
        vector = jnp.broadcast_to(defaults, (*leading, problem.n_params))
        vector = vector.at[..., : problem.n_x0].set(head)
        for value, at in zip(values, rows, strict=True):
            vector = vector.at[..., at].set(value)
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
