"""The whole ADMM loop of a QP in one launch: engines "staged" and "sparse".

Brings scaled data into program order, factorises, iterates, and adapts rho between launches; tiles
whose rho did not change keep their factors, tiles that are done return at once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import PatternError
from warpmpc.kernels.admm_types import LoopData, LoopLimits, LoopState
from warpmpc.kernels.ldl_engine import SEGMENTS, window_fits
from warpmpc.kernels.rolled_engine import RolledKernels
from warpmpc.kernels.staged_engine import StagedKernels
from warpmpc.kernels.tiles import LANES
from warpmpc.qp.admm import LoopEnd
from warpmpc.qp.conditioning import Residuals, ScaledQP
from warpmpc.qp.kkt_solvers.kkt_engines import KKTSystem
from warpmpc.qp.staged_settings import StagedSettings
from warpmpc.qp.types import ADMMSettings, Status
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.program import Program
from warpmpc.symbolic.safe_ordering import safe_amd
from warpmpc.symbolic.schedule import build_schedule
from warpmpc.symbolic.stage_program import build_stage_program
from warpmpc.symbolic.window import build_window

_LOG = logging.getLogger(__name__)
# Straight-line code beyond this many multiply-adds takes too long to compile.
_LARGEST_CODE = 8_000


class LoopKernels(Protocol):
    """Kernels of one program; they choose their launch shapes."""

    @property
    def program(self) -> Program:
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


class KernelLoop:
    """ADMM on tiles for QPs with one pattern."""

    def __init__(self, system: KKTSystem, kernels: LoopKernels, settings: ADMMSettings):
        """Keeps the kernels and the order they work in.

        Args:
            system: Pattern of K.
            kernels: Of a program for it.
            settings: Of the iteration.
        """
        self._settings, self._system, self.kernels = settings, system, kernels
        self.lanes, self.program = LANES, kernels.program
        n, n_L = self.program.n_nodes, self.program.n_L
        matrices = self.program.K_order.size + n_L + n
        # Twice while rho changes; then the vectors of the loop.
        self.values_per_instance = matrices * (2 if settings.adaptive_rho_every else 1) + 9 * n
        self.values_per_instance += 4 * kernels.soft_nodes.size
        self._order = _Order(self.program, system.kkt.n_vars)
        self._soft_rows = self.program.node_order[kernels.soft_nodes] - system.kkt.n_vars
        names = ("sigma", "relaxation", "eps_abs", "eps_rel", "eps_prim_inf", "eps_dual_inf")
        self.numbers = np.array([getattr(settings, name) for name in names])

    @property
    def is_unrolled(self) -> bool:
        """Whether the kernels are straight-line code of stages."""
        return isinstance(self.kernels, StagedKernels)

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
        factor = self.kernels.factor(data.K)
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
        state = self.kernels.iterate(
            carry.factor,
            R,
            data,
            carry.state,
            self.numbers,
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
            factor=self.kernels.refactor(carry.factor, K, todo),
        )


def _residuals(state: LoopState) -> Residuals:
    return Residuals(*(state.report[:, i : i + 1] for i in range(4)))


class _Order:
    """Between (variables, rows) and the nodes of a program."""

    def __init__(self, program: Program, n_vars: int):
        """Inverts the order of the nodes."""
        position = np.empty(program.n_nodes, dtype=np.int32)
        position[program.node_order] = np.arange(program.n_nodes)
        self._node_order = program.node_order
        self._vars, self._rows = position[:n_vars], position[n_vars:]
        self.row_diagonals = program.diagonals[self._rows]

    def join(self, of_vars: jax.Array, of_rows: jax.Array) -> jax.Array:
        """Values of variables and rows as values of nodes."""
        return jnp.concatenate([of_vars, of_rows], axis=1)[:, self._node_order]

    def split(self, nodes: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Values of variables, and of rows."""
        return nodes[:, self._vars], nodes[:, self._rows]


def staged_loop(
    system: KKTSystem, stages: Any, settings: ADMMSettings, staged: StagedSettings
) -> KernelLoop:
    """The loop for a QP whose rows and cost couple neighbouring stages only.

    Args:
        system: Pattern of K.
        stages: Stage of each variable, then of each row.
        settings: Of the iteration.
        staged: Of the kernels.
    """
    kkt = system.kkt
    labels = checked_stages(stages, kkt.K_pattern.n_cols)
    program = build_stage_program(kkt, labels, system.weak)
    code = staged.code or ("unrolled" if program.code_size <= _LARGEST_CODE else "rolled")
    _LOG.info(
        "staged engine: %s code, %d templates, %d multiply-adds, nnz(L) = %d",
        code,
        len(program.runs),
        program.code_size,
        program.n_L,
    )
    if code == "unrolled":
        overrides = {name: getattr(staged, name) for name in StagedSettings.OF_UNROLLED}
        given = {name: value for name, value in overrides.items() if value is not None}
        soft = _soft_nodes(program, system)
        unrolled = StagedKernels(program, kkt.n_vars, system.dtype, given, soft)
        return KernelLoop(system, unrolled, settings)
    staged.refuse_unrolled_only()
    rolled = _rolled(program, system)
    if rolled is None:
        raise PatternError(
            "The stages are too large for the staged engine: the unknowns alive at once do not fit "
            'into shared memory.  Use engine="sparse".'
        )
    return KernelLoop(system, rolled, settings)


def sparse_loop(system: KKTSystem, settings: ADMMSettings) -> KernelLoop | None:
    """The loop for any pattern, by tables; None where too many unknowns are alive at once."""
    pattern = system.kkt.K_pattern
    elimination = eliminate(pattern, safe_amd(system.kkt, system.weak))
    program = Program(elimination, np.arange(pattern.nnz, dtype=np.int32))
    kernels = _rolled(program, system)
    return None if kernels is None else KernelLoop(system, kernels, settings)


def _rolled(program: Program, system: KKTSystem) -> RolledKernels | None:
    elimination, n_vars = program.in_program_order(), system.kkt.n_vars
    window = build_window(elimination, SEGMENTS)
    if not window_fits(window, system.dtype):
        return None
    schedule = build_schedule(elimination, SEGMENTS, level_scheduling=True, unrolled=True)
    soft = _soft_nodes(program, system)
    return RolledKernels(program, schedule, window, n_vars, system.dtype, soft)


def _soft_nodes(program: Program, system: KKTSystem) -> list[int]:
    rows = system.kkt.n_vars + system.soft_rows
    return np.flatnonzero(np.isin(program.node_order, rows)).tolist()


def checked_stages(stages: Any, size: int) -> IntArray:
    """Labels as an array; a wrong length or type raises."""
    try:
        labels = np.asarray(stages)
    except ValueError:  # ragged
        labels = np.zeros(0)
    if labels.shape != (size,) or labels.dtype.kind not in "iu":
        raise PatternError(
            f"`stages` must hold one integer per variable, then one per row of A: shape ({size},); "
            f"got shape {labels.shape}, dtype {labels.dtype}."
        )
    return labels.astype(np.int64)
