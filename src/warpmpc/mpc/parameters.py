"""Conversion of x0, named parameters and tensors to the parameter vectors of a problem.

Parameters of one value for all instances may come without batch axes, and are kept once for all of
them; everything else has the leading axes of x0.  PyTorch tensors come in and go out through
DLPack, without a copy as long as the device is the same; torch is never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._checks import ArrayLike, check_array, check_values
from warpmpc._errors import ProblemError
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.symbolic.pattern import IntArray

Params = Mapping[str, ArrayLike] | ArrayLike | None
_ALL = ""  # stands for all parameters but x0 where there are no names


@dataclass(frozen=True, eq=False)
class ParameterSplit:
    """Which entries of the parameter vector all instances share.

    Attributes:
        own: Entries that every instance has for itself.
        common: Entries that are the same for all; possibly none.
    """

    own: IntArray
    common: IntArray


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameter vectors of a batch; what all instances share exists once.

    Attributes:
        own: ``[..., n_own]``; in tiles ``[tiles, n_own, 32]``.
        common: ``[1, n_common]``; in tiles ``[1, n_common, 32]``.  None without such entries.
        split: Which entries are common and which are own.
    """

    own: jax.Array
    common: jax.Array | None
    split: ParameterSplit = field(metadata={"static": True})

    @property
    def arrays(self) -> list[jax.Array]:
        """The arrays that there are."""
        return [self.own] if self.common is None else [self.own, self.common]

    def joined(self) -> jax.Array:
        """The whole vectors, ``[..., n_params]``."""
        if self.common is None:
            return self.own
        rows = jnp.broadcast_to(self.common[0], (*self.own.shape[:-1], self.common.shape[1]))
        place = np.argsort(np.concatenate([self.split.own, self.split.common]))
        return jnp.concatenate([self.own, rows], axis=-1)[..., place]

    def unknown(self) -> jax.Array:
        """Instances with a NaN among their parameters, per tile; bounds may be infinite."""
        found = [jnp.isnan(array).any(axis=1, keepdims=True) for array in self.arrays]
        return reduce(jnp.logical_or, found)

    def cotangents(self, bars: jax.Array) -> Parameters:
        """Combines the cotangents of all instances' parameter vectors, ``[..., n_params]``."""
        own = bars[..., self.split.own]
        if self.common is None:
            return Parameters(own, None, self.split)
        shares = bars[..., self.split.common].reshape(-1, self.split.common.size)
        return Parameters(own, shares.sum(axis=0, keepdims=True), self.split)


class ParameterPacker:
    """Builds parameter vectors for one problem."""

    def __init__(self, problem: MPCProblem, dtype: str):
        """Reads names and defaults."""
        self._problem, self._dtype = problem, dtype
        self._groups = [
            np.array([problem.param_rows(k) for k in group.ks]).reshape(len(group.ks), -1)
            for group in problem.groups
        ]
        self._splits: dict[bytes, ParameterSplit] = {}
        self._split, self._rows = cache(self._found_split), cache(self._found_rows)
        self._n_x0 = problem.n_x0
        # One program instead of many small ones: the first call would compile each of them.
        self._assembled = jax.jit(self._assemble, static_argnames=("names", "leading", "split"))

    def __call__(self, x0: ArrayLike | None, params: Params, *, whole: bool = False) -> Parameters:
        """The parameter vectors.

        Args:
            x0: Initial states ``[..., n_x0]``.
            params: Parameters by name, or all but x0 as ``[..., n]``; None: defaults.
            whole: Whether every instance gets all of them for itself.
        """
        check_names(params)
        if isinstance(params, Mapping):
            named = dict(params)
            if "x0" in named and "x0" not in self._problem.param_names:
                if x0 is not None:
                    raise ProblemError('x0 is given twice: as an argument and in params["x0"].')
                x0 = named.pop("x0")
        else:
            named = {} if params is None else {_ALL: params}
        head = self._x0(x0)
        rows = self._rows(tuple(named))
        values = {name: self._value(name, named[name], rows[name]) for name in named}
        sizes = [(name or "params", values[name], rows[name].ndim) for name in named]
        leading = _common([("x0", head, 1), *sizes])
        own = tuple(name for name in named if values[name].ndim > rows[name].ndim)
        split = self._split(own, whole)
        listed = list(values.values())
        return self._assembled(head, listed, names=tuple(named), leading=leading, split=split)

    def _x0(self, x0: ArrayLike | None) -> jax.Array | np.ndarray:
        if x0 is None:
            if self._n_x0:
                raise ProblemError(
                    'x0 is missing: pass the initial states, or params with the entry "x0".'
                )
            return jnp.zeros(0, dtype=self._dtype)
        return check_values(x0, "x0", self._n_x0, self._dtype)

    def _found_rows(self, names: tuple[str, ...]) -> dict[str, IntArray]:
        """Entries of the given parameters; every parameter must be given or have a default."""
        problem = self._problem
        if names == (_ALL,):
            return {_ALL: np.arange(problem.n_x0, problem.n_params)}
        unknown = sorted(set(names) - set(problem.param_names))
        if unknown:
            raise ProblemError(
                f"Unknown parameter {unknown[0]!r}; this problem has {sorted(problem.param_names)}."
            )
        rows = {name: problem.param_names[name] for name in names}
        every = np.concatenate([np.zeros(0, dtype=int), *(r.ravel() for r in rows.values())])
        if np.unique(every).size < every.size:
            raise ProblemError(f"params names an entry twice: {sorted(names)} overlap.")
        self._refuse_missing(every)
        return rows

    def _found_split(self, own: tuple[str, ...], whole: bool) -> ParameterSplit:
        """What all instances share: everything without batch axes but x0.

        Equal stages read alike: an entry is common only if it is for all stages of a group.  Where
        no instance would have anything for itself, nothing is common.
        """
        common = np.full(self._problem.n_params, not whole)
        common[: self._problem.n_x0] = False
        for name in own:
            common[self._problem.param_names[name] if name else slice(None)] = False
        for rows in self._groups:
            common[rows[:, ~common[rows].all(axis=0)]] = False
        if common.all():
            common[:] = False
        entries = (np.flatnonzero(~common), np.flatnonzero(common))
        return self._splits.setdefault(common.tobytes(), ParameterSplit(*entries))

    def _assemble(
        self,
        head: jax.Array | np.ndarray,
        values: list[jax.Array],
        names: tuple[str, ...],
        leading: tuple[int, ...],
        split: ParameterSplit,
    ) -> Parameters:
        """The vectors from x0 and values of some entries; the others have defaults."""
        tables = self._rows(names).values()
        given = [(np.arange(self._problem.n_x0), head), *zip(tables, values, strict=True)]
        own = self._filled(split.own, given, leading)
        common = self._filled(split.common, given, (1,)) if split.common.size else None
        return Parameters(own, common, split)

    def _filled(
        self, entries: IntArray, given: list[tuple[IntArray, Any]], leading: tuple[int, ...]
    ) -> jax.Array:
        """Some entries of the vectors."""
        defaults = jnp.asarray(self._problem.defaults, dtype=self._dtype)
        found, places = [], []
        for rows, value in given:
            flat = value.reshape(*value.shape[: value.ndim - rows.ndim], rows.size)
            (there,) = np.nonzero(np.isin(rows.ravel(), entries))
            if there.size:
                found.append(flat[..., there])
                places.append(rows.ravel()[there])
        rest = np.setdiff1d(entries, np.concatenate([np.zeros(0, dtype=int), *places]))
        found, places = [*found, defaults[rest]], [*places, rest]
        parts = [jnp.broadcast_to(part, (*leading, part.shape[-1])) for part in found]
        return jnp.concatenate(parts, axis=-1)[..., np.argsort(np.concatenate(places))]

    def _value(self, name: str, value: Any, rows: IntArray) -> jax.Array:
        called = f"params[{name!r}]" if name else "params"
        array = check_array(value, called, rows.shape[-1], self._dtype)
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


def _common(arrays: list[tuple[str, jax.Array | np.ndarray, int]]) -> tuple[int, ...]:
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


def check_names(params: Any) -> None:
    """Refuses names that are no strings; JAX cannot even sort them."""
    if isinstance(params, Mapping):
        for name in params:
            if not isinstance(name, str):
                raise ProblemError(f"Names in params must be strings, got {name!r}.")


def has_tensors(tree: Any) -> bool:
    """Whether any leaf is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and any(isinstance(a, torch.Tensor) for a in jax.tree.leaves(tree))


def to_jax(tree: Any) -> Any:
    """Tensors as JAX arrays on the same device and memory; other leaves stay."""
    return jax.tree.map(_to_jax, tree)


def to_torch(tree: Any) -> Any:
    """JAX arrays as tensors on the same device and memory."""
    return jax.tree.map(sys.modules["torch"].from_dlpack, tree)


def _to_jax(leaf: Any) -> Any:
    if not has_tensors(leaf):
        return leaf
    if leaf.requires_grad:
        raise ProblemError(
            "A tensor requires gradients, which do not flow through warpmpc in PyTorch: pass "
            "`tensor.detach()`, or differentiate in JAX."
        )
    return jnp.from_dlpack(leaf.contiguous())
