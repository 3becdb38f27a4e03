"""Where a solve starts: guesses from x0 and parameters, trajectories shifted by one node."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.emit_jax import jax_function
from warpmpc.codegen.from_casadi import translate
from warpmpc.mpc.types import MPCWarmStart, QPState
from warpmpc.problem.fingerprint import guess_function
from warpmpc.problem.mpc_problem import MPCProblem


class Guess:
    """The initial guess of a problem as a JAX function of its parameter vector."""

    def __init__(self, problem: MPCProblem, dtype: str):
        """Translates each guess that occurs once.

        Args:
            problem: With a guess in every stage.
            dtype: "float32" or "float64".
        """
        self._problem, self._dtype = problem, dtype
        nodes: dict[int, list[int]] = {}
        for k, stage in enumerate(problem.stages):
            nodes.setdefault(id(stage), []).append(k)
        self._parts = []
        for ks in nodes.values():
            function = guess_function(problem.stages[ks[0]], problem.x0, problem.shared)
            self._parts.append((np.array(ks), jax_function(translate(function))))

    def __call__(self, params: jax.Array) -> jax.Array:
        """Trajectories ``[..., n_vars]`` from parameter vectors ``[..., n_params]``."""
        problem = self._problem
        found, places = [], []
        for ks, function in self._parts:
            rows = np.stack([problem.param_rows(k) for k in ks])
            cuts = [problem.n_x0, problem.n_x0 + problem.n_shared]
            tau = jnp.asarray(ks / max(problem.horizon, 1), dtype=self._dtype)[:, None]
            tau = jnp.broadcast_to(tau, (*params.shape[:-1], ks.size, 1))
            (values,) = function(*jnp.split(params[..., rows], cuts, axis=-1), tau)
            found.append(values.reshape(*params.shape[:-1], -1).astype(self._dtype))
            places.append((problem.z_offset[ks][:, None] + np.arange(values.shape[-1])).ravel())
        # Reading from the right place is part of another kernel on a GPU; writing to it is not.
        return jnp.concatenate(found, axis=-1)[..., np.argsort(np.concatenate(places))]


class Shift:
    """Moves a warm start by one node: what was planned for the next node is now for this one.

    Where a neighbour has no counterpart (the last node, a first stage with more rows) the old
    values stay.
    """

    def __init__(self, problem: MPCProblem):
        """Builds the tables."""
        self._z = _shifted(problem.z_offset)
        self._rows = _shifted_rows(problem)

    def __call__(self, start: MPCWarmStart) -> MPCWarmStart:
        """The shifted warm start."""
        qp = start.qp
        moved = QPState(qp.d[..., self._z], qp.s[..., self._rows], qp.y[..., self._rows])
        return MPCWarmStart(start.z[..., self._z], moved)


def _shifted(offsets: np.ndarray) -> np.ndarray:
    """For each entry, the entry of the same place in the next node if there is one."""
    table = np.arange(offsets[-1])
    for k in range(offsets.size - 2):
        here, after = offsets[k + 1] - offsets[k], offsets[k + 2] - offsets[k + 1]
        common = min(here, after)
        table[offsets[k] : offsets[k] + common] = offsets[k + 1] + np.arange(common)
    return table


def _shifted_rows(problem: MPCProblem) -> np.ndarray:
    """For each row, the row of the same name in the next node if there is one.

    Names without a meaning ("g[0]") correspond only in stages of one group.
    """
    table = np.arange(problem.n_cons)
    for k in range(problem.horizon):
        here, after = problem.stages[k], problem.stages[k + 1]
        same = problem.group_of[k] == problem.group_of[k + 1]
        place = {name: i for i, name in enumerate(after.row_names)}
        for i, name in enumerate(here.row_names):
            if name in place and (same or not name.startswith("g[")):
                table[problem.g_offset[k] + i] = problem.g_offset[k + 1] + place[name]
    return table
