"""The whole ADMM loop of a QP in one launch: engines "staged" and "sparse".

Builds the kernels; where there is a choice of programs the number of tiles decides.  The loop
itself is that of `qp.loops.kernels`.

The ADMM loop of a QP on tiles, by kernels of one program.

Brings scaled data into program order, factorises, iterates, and adapts rho between launches; tiles
whose rho did not change keep their factors, tiles that are done return at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import PatternError, SettingsError
from warpmpc.engines.panels.launch import PanelKernels
from warpmpc.engines.runtime.admm_launch import LoopData, LoopLimits, LoopState
from warpmpc.engines.runtime.tiles import LANES, tile_count
from warpmpc.engines.staged.launch import StagedKernels
from warpmpc.engines.staged.tuning import Measured, StagedVariants
from warpmpc.qp.linear_solvers.kkt_solvers import KKTSystem
from warpmpc.qp.loops.general import ADMMLoop, LoopEnd
from warpmpc.qp.scaling import RHO_MIN, Residuals, ScaledQP
from warpmpc.qp.types import ADMMSettings, StagedSettings, Status
from warpmpc.symbolic.derivatives.stage_model import RowKind
from warpmpc.symbolic.elimination import StoredElimination, eliminate
from warpmpc.symbolic.float32_ordering import safe_amd
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.stage_elimination import (
    StageElimination,
    build_stage_elimination,
    build_two_sided_elimination,
)


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


_LOG = logging.getLogger(__name__)
# Straight-line code beyond this many multiply-adds takes too long to compile.
_LARGEST_CODE = 8_000


class KernelLoop:
    """ADMM on tiles for QPs with one pattern.

    Attributes:
        program: Of the kernels; of those with one side, if others may be chosen.
        values_per_instance: Numbers in memory while an instance is solved.
    """

    def __init__(
        self,
        system: KKTSystem,
        kernels: LoopKernels,
        settings: ADMMSettings,
        variants: StagedVariants | None = None,
    ):
        """Keeps the kernels.

        Args:
            system: Pattern of K.
            kernels: Of a program for it.
            settings: Of the iteration.
            variants: Kernels to choose from by the number of tiles, in place of `kernels`.
        """
        self._system, self._kernels, self._settings = system, kernels, settings
        self._variants = variants
        self.lanes, self.program = LANES, kernels.program
        n, n_L = self.program.n_nodes, self.program.n_L
        # Factors twice while rho changes; then the vectors of the loop.
        factors = (n_L + n) * (2 if settings.adaptive_rho_every else 1)
        self.values_per_instance = self.program.K_order.size + factors + 8 * n
        self.values_per_instance += 4 * kernels.soft_nodes.size

    def run(
        self,
        problem: ScaledQP,
        start: tuple[jax.Array, ...],
        status: jax.Array,
    ) -> LoopEnd:
        """Iterates from scaled (x, s, y); instances whose status is not MAX_ITER stay."""
        kernels = self.kernels_at(status.shape[0])
        return TileLoop(self._system, kernels, self._settings).run(problem, start, status)

    def kernels_at(self, tiles: int) -> LoopKernels:
        """Kernels for so many tiles."""
        return self._kernels if self._variants is None else self._variants.at(tiles)

    def staged_at(self, tiles: int) -> StagedKernels | None:
        """Straight-line kernels for so many tiles; None where there are no such kernels."""
        kernels = self.kernels_at(tiles)
        return kernels if isinstance(kernels, StagedKernels) else None

    def tune(self, batch: int, kinds: Sequence[RowKind] = ()) -> list[Measured]:
        """See `tune_loop`."""
        if self._variants is None:
            raise SettingsError(
                "Nothing to tune: only straight-line code of the staged engine has a choice of "
                'shapes.  Use engine="staged" with code="unrolled".'
            )
        return self._variants.tune(tile_count(batch), self._settings.max_iter, kinds)


def tune_loop(loop: ADMMLoop, batch: int, kinds: Sequence[RowKind] = ()) -> list[Measured]:
    """Measures on the GPU which shape of a loop's kernels is fastest.

    The choice is kept on disk: later calls and processes with the same problem, settings and device
    use it for batches up to the next power of two of tiles.  Programs that are compiled already
    keep their shape.

    Args:
        loop: Of a QP solver.
        batch: Number of instances.
        kinds: Of the rows, where the loop that will run knows them.

    Returns:
        All that was measured, the fastest last.
    """
    if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
        raise SettingsError(f"batch must be a positive integer, got {batch!r}.")
    if not isinstance(loop, KernelLoop):
        raise SettingsError(
            'Nothing to tune: this engine has one shape.  Use engine="staged" with code="unrolled".'
        )
    return loop.tune(int(batch), kinds)


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
    program = build_stage_elimination(kkt, labels, system.light_variables, system.representative)
    code = staged.code or ("unrolled" if program.code_size <= _LARGEST_CODE else "panels")
    _LOG.info(
        "staged engine: %s code, %d templates, %d multiply-adds, nnz(L) = %d",
        code,
        len(program.runs),
        program.code_size,
        program.n_L,
    )
    if code == "unrolled":
        build = partial(_unrolled, system, program, labels)
        variants = StagedVariants(build, staged.shape, tune=staged.tune)
        return KernelLoop(system, variants.first, settings, variants)
    staged.refuse_unrolled_only()
    panels = _panel_kernels(program, system)
    if panels is None:
        raise PatternError(
            "The stages are too large for the staged engine: the unknowns alive at once do not fit "
            'into shared memory.  Use engine="sparse".'
        )
    return KernelLoop(system, panels, settings)


def _unrolled(
    system: KKTSystem, program: StageElimination, labels: IntArray, sides: int
) -> StagedKernels:
    """Kernels of the program, or of another one with two sides."""
    if sides == 2:
        program = build_two_sided_elimination(
            system.kkt, labels, system.light_variables, system.representative
        )
    soft = _soft_nodes(program, system)
    return StagedKernels(program, system.kkt.n_vars, system.dtype, soft=soft)


def sparse_loop(system: KKTSystem, settings: ADMMSettings) -> KernelLoop | None:
    """The loop for any pattern, by tables; None where too many unknowns are alive at once."""
    pattern = system.kkt.K_pattern
    elimination = eliminate(pattern, safe_amd(system.kkt, system.light_variables))
    program = StoredElimination(elimination, np.arange(pattern.nnz, dtype=np.int32))
    kernels = _panel_kernels(program, system)
    return None if kernels is None else KernelLoop(system, kernels, settings)


def _panel_kernels(program: StoredElimination, system: KKTSystem) -> PanelKernels | None:
    soft = _soft_nodes(program, system)
    kernels = PanelKernels(program, system.kkt.n_vars, system.dtype, soft)
    return kernels if kernels.fits else None


def _soft_nodes(program: StoredElimination, system: KKTSystem) -> list[int]:
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
