"""The ADMM loop of a QP on tiles, by kernels of one program.

Brings scaled data into program order, factorises, iterates, and adapts rho between launches; tiles
whose rho did not change keep their factors, tiles that are done return at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.engines.runtime.admm_types import LoopData, LoopLimits, LoopState
from warpmpc.engines.runtime.tiles import LANES
from warpmpc.qp.linear_solvers.kkt_solvers import KKTSystem
from warpmpc.qp.loops.general import LoopEnd
from warpmpc.qp.scaling import RHO_MIN, Residuals, ScaledQP
from warpmpc.qp.types import ADMMSettings, Status
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.storage_order import StoredElimination


class LoopKernels(Protocol):
    """Kernels of one program; they choose their launch shapes."""

    @property
    def program(self) -> StoredElimination:
        """Which order nodes and values are in."""
        ...

    @property
    def soft_nodes(self) -> IntArray:
        """Nodes that may be soft rows; R has coefficients for each of them, in this order."""
        ...

    def factor(self, K: jax.Array) -> jax.Array:
        """Factors of all tiles."""
        ...

    def refactor(self, factor: jax.Array, K: jax.Array, todo: jax.Array) -> jax.Array:
        """New factors of the tiles marked in `todo`; others stay."""
        ...

    def iterate(
        self,
        factor: jax.Array,
        R: jax.Array,
        data: LoopData,
        state: LoopState,
        numbers: np.ndarray,
        begin: jax.Array,
        limits: LoopLimits,
    ) -> LoopState:
        """Iterates from iteration `begin` on; see `LoopData` for `R`, `numbers`: the tolerances."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class _Carry:
    """State between launches: rho and its factors beside what the loop changes."""

    state: LoopState
    rho: jax.Array
    factor: jax.Array
    iteration: jax.Array


def loop_constants(settings: ADMMSettings, dtype: str) -> np.ndarray:
    """What kernels have to know of the settings."""
    names = ("sigma", "relaxation", "eps_abs", "eps_rel", "eps_prim_inf", "eps_dual_inf")
    inverses = inverse_rho(settings, dtype)[:2]
    return np.array([*(getattr(settings, name) for name in names), *inverses])


def inverse_rho(settings: ADMMSettings, dtype: str) -> list[float]:
    """1/rho of inequalities, equalities and free rows; rho is rounded before it is inverted."""
    real = np.dtype(dtype).type
    rho = (settings.rho, settings.rho * settings.rho_equality, RHO_MIN)
    return [float(real(1) / real(value)) for value in rho]


class TileLoop:
    """ADMM on tiles in the order of one program."""

    def __init__(self, system: KKTSystem, kernels: LoopKernels, settings: ADMMSettings):
        """Keeps the kernels and the order they work in.

        Args:
            system: Pattern of K.
            kernels: Of a program for it.
            settings: Of the iteration.
        """
        self._settings, self._system, self._kernels = settings, system, kernels
        self.program = kernels.program
        self._order = NodeOrder(self.program, system.kkt.n_vars)
        self._soft_rows = self.program.node_order[kernels.soft_nodes] - system.kkt.n_vars
        self._numbers = loop_constants(settings, system.dtype)

    def run(
        self,
        problem: ScaledQP,
        start: tuple[jax.Array, ...],
        status: jax.Array,
    ) -> LoopEnd:
        """Iterates from scaled (x, s, y); instances whose status is not MAX_ITER stay."""
        settings, nodes = self._settings, self._order
        x, s, y = start
        rho = jnp.full_like(status, settings.rho, dtype=x.dtype)
        rows = problem.rho(rho)
        data = self._data(problem, s, rows)
        state = LoopState(
            X=nodes.join(x, s + y / rows),
            status=status,
            iterations=jnp.zeros_like(status),
            report=jnp.zeros((status.shape[0], 5, LANES), dtype=x.dtype),
        )
        factor = self._kernels.factor(data.K)
        carry = _Carry(state, rho, factor, jnp.asarray(0, dtype=jnp.int32))
        span = settings.adaptive_rho_every or settings.max_iter
        if span >= settings.max_iter:
            end = self._launch(problem, data, carry)
        else:
            end = jax.lax.while_loop(
                lambda c: (
                    (c.iteration < settings.max_iter) & (c.state.status == Status.MAX_ITER).any()
                ),
                lambda c: self._adapt(problem, data, self._launch(problem, data, c)),
                carry,
            )
        return LoopEnd(
            *nodes.split(end.state.X),
            end.rho,
            end.state.status,
            end.state.iterations,
            _residuals(end.state),
            end.state.report[:, 4:],
        )

    def _data(self, problem: ScaledQP, s: jax.Array, rows: jax.Array) -> LoopData:
        scaled, scaling, nodes = problem.scaled, problem.scaling, self._order
        identical = problem.identical
        zero = jnp.zeros((s.shape[0], 1, LANES), dtype=scaled.q.dtype)
        nothing = jnp.zeros_like(scaled.q)
        # A nominal scaling is one for all.
        sizes = (scaling.x + nothing, scaling.con / scaling.cost + jnp.zeros_like(s))
        return LoopData(
            K=self._system.assemble(scaled.P, scaled.A, rows, self.program.K_order),
            Q=nodes.join(scaled.q, scaled.lower),
            U=nodes.join(nothing, scaled.upper),
            S=nodes.join(nothing, s),
            size=zero if identical else nodes.join(*sizes),
            cost=zero if identical else jnp.broadcast_to(scaling.cost, zero.shape),
            scaled=not identical,
        )

    def _launch(self, problem: ScaledQP, data: LoopData, carry: _Carry) -> _Carry:
        """Iterates up to the next adaptation of rho, or to the end."""
        settings = self._settings
        span = settings.adaptive_rho_every or settings.max_iter
        limits = LoopLimits(settings.check_every, span, settings.max_iter)
        R = self._order.join(jnp.ones_like(problem.scaled.q), 1 / problem.rho(carry.rho))
        if self._soft_rows.size:
            R = jnp.concatenate([R, self._coefficients(problem, carry.rho)], axis=1)
        state = self._kernels.iterate(
            carry.factor,
            R,
            data,
            carry.state,
            self._numbers,
            carry.iteration,
            limits,
        )
        return replace(carry, state=state, iteration=carry.iteration + span)

    def _coefficients(self, problem: ScaledQP, rho: jax.Array) -> jax.Array:
        """Of the proximal maps, the four numbers of a row side by side."""
        proximal = problem.projection(rho).proximal
        assert proximal is not None
        sides = (proximal.lower, proximal.upper)
        parts = [part for side in sides for part in (side.quadratic, side.linear)]
        parts = [part[:, self._soft_rows] for part in parts]
        return jnp.stack(parts, axis=2).reshape(rho.shape[0], 4 * self._soft_rows.size, LANES)

    def _adapt(self, problem: ScaledQP, data: LoopData, carry: _Carry) -> _Carry:
        """New rho where it pays; only tiles with such an instance are factorised again."""
        settings, nodes, state = self._settings, self._order, carry.state
        x, v = nodes.split(state.X)
        may = (state.status == Status.MAX_ITER) & (carry.iteration < settings.max_iter)
        change, rho, v = problem.balanced(carry.rho, v, _residuals(state), may, settings)
        K = data.K.at[:, nodes.row_diagonals].set(-1 / problem.rho(rho))
        todo = change.any(axis=(1, 2)).astype(jnp.int32)
        return replace(
            carry,
            state=replace(state, X=nodes.join(x, v)),
            rho=rho,
            factor=self._kernels.refactor(carry.factor, K, todo),
        )


def _residuals(state: LoopState) -> Residuals:
    return Residuals(*(state.report[:, i : i + 1] for i in range(4)))


class NodeOrder:
    """Between (variables, rows) and the nodes of a program.

    Attributes:
        vars: Node of each variable.
        rows: Node of each row.
        row_diagonals: Where the diagonals of rows stand among the values of K.
    """

    def __init__(self, program: StoredElimination, n_vars: int):
        """Inverts the order of the nodes."""
        position = np.empty(program.n_nodes, dtype=np.int32)
        position[program.node_order] = np.arange(program.n_nodes)
        self._node_order = program.node_order
        self.vars, self.rows = position[:n_vars], position[n_vars:]
        self.row_diagonals = program.diagonals[self.rows]

    def join(self, of_vars: jax.Array, of_rows: jax.Array) -> jax.Array:
        """Values of variables and rows as values of nodes."""
        return jnp.concatenate([of_vars, of_rows], axis=1)[:, self._node_order]

    def split(self, nodes: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Values of variables, and of rows."""
        return nodes[:, self.vars], nodes[:, self.rows]
