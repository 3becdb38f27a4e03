"""The ADMM loop of a QP in one launch: engines "staged" and "sparse".

Builds the kernels of an elimination; where there is a choice of kernels the number of tiles
decides.  A run brings scaled data into the order of the elimination, factorises, iterates, and
adapts rho between launches: tiles whose rho did not change keep their factors, and tiles that are
done return at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import PatternError, SettingsError
from warpmpc.codegen.kernel_source import KernelSource
from warpmpc.engines.panels.launch import PanelKernels
from warpmpc.engines.runtime.admm_loop import LoopData, LoopLimits, LoopState
from warpmpc.engines.runtime.batching import LANES, tile_count
from warpmpc.engines.staged.launch import StagedKernels, StagedVariants
from warpmpc.engines.staged.tuning import Measured
from warpmpc.qp.linear_solvers.inertia import Inertia, with_curvature
from warpmpc.qp.loops.general import ADMMLoop
from warpmpc.qp.scaling import LoopEnd, Residuals, ScaledQP
from warpmpc.qp.structure import QPStructure, inverse_rho
from warpmpc.qp.types import ADMMSettings, StagedSettings, Status
from warpmpc.symbolic.derivatives.stage_model import RowKind
from warpmpc.symbolic.elimination import StoredElimination, eliminate
from warpmpc.symbolic.ordering import safe_amd
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.stage_elimination import (
    StageElimination,
    build_stage_elimination,
    build_two_sided_elimination,
)

_LOG = logging.getLogger(__name__)
# Straight-line code beyond this many multiply-adds takes too long to compile.
_LARGEST_CODE = 8_000

LoopKernels = StagedKernels | PanelKernels


class KernelLoop:
    """ADMM on tiles for QPs with one pattern.

    Attributes:
        program: Elimination of the kernels; that with one side, if others may be chosen.
        values_per_instance: Number of values in memory while an instance is solved.
        reads_matrices: Whether scaled copies of P and A are kept beside K: XLA frees them where the
            loop is a single launch.
    """

    lanes = LANES

    def __init__(
        self,
        structure: QPStructure,
        kernels: LoopKernels,
        variants: StagedVariants | None = None,
    ):
        """Keeps the kernels.

        Args:
            structure: Patterns and settings of the QPs.
            kernels: Kernels of an elimination of K.
            variants: Kernels to choose from by the number of tiles, in place of `kernels`.
        """
        self._structure, self._kernels, self._variants = structure, kernels, variants
        self.program: StoredElimination = kernels.program
        n, n_L = self.program.n_nodes, self.program.n_L
        # Factors twice while rho changes; then the vectors of the loop.
        factors = (n_L + n) * (2 if structure.settings.adaptive_rho_every else 1)
        self.values_per_instance = self.program.K_order.size + factors + 8 * n
        settings = structure.settings
        self.reads_matrices = settings.check_every > 0 or settings.adaptive_rho_every > 0
        if structure.settings.check_every:
            self.values_per_instance += 2 * n
        self.values_per_instance += 4 * kernels.soft_nodes.size

    @property
    def takes_any_lanes(self) -> bool:
        """Whether tiles may have fewer lanes than 32."""
        return isinstance(self._kernels, StagedKernels)

    def run(self, problem: ScaledQP, start: tuple[jax.Array, ...], status: jax.Array) -> LoopEnd:
        """The whole loop; instances whose status is not MAX_ITER keep their state."""
        run = _Run(self._structure, self.kernels_at(status.shape[0]), problem)
        return run.whole(start, status)

    def kernels_at(self, tiles: int) -> LoopKernels:
        """Kernels for a number of tiles."""
        return self._kernels if self._variants is None else self._variants.at(tiles)

    def to_load(self, tiles: int) -> list[tuple[KernelSource, int]]:
        """Kernels for a number of tiles, where there is no choice of them that is measured."""
        return self._kernels.to_load(tiles) if self._variants is None else []

    def staged_at(self, tiles: int) -> StagedKernels | None:
        """Straight-line kernels for a number of tiles; None where there are no such kernels."""
        kernels = self.kernels_at(tiles)
        return kernels if isinstance(kernels, StagedKernels) else None

    def tune(self, batch: int, kinds: Sequence[RowKind] = ()) -> list[Measured]:
        """See `tune_loop`."""
        if self._variants is None:
            raise SettingsError(
                "Nothing to tune: only straight-line code of the staged engine has a choice of "
                'shapes.  Use engine="staged" with code="unrolled".'
            )
        max_iter = self._structure.settings.max_iter
        return self._variants.tune(tile_count(batch), max_iter, kinds)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class _Carry:
    """State between launches: rho and the factors beside the state of the loop."""

    state: LoopState
    rho: jax.Array
    factor: jax.Array
    bends_down: jax.Array
    iteration: jax.Array


def loop_constants(settings: ADMMSettings, dtype: str) -> np.ndarray:
    """Settings that kernels take as values."""
    names = (
        "sigma",
        "relaxation",
        "absolute_tolerance",
        "relative_tolerance",
        "eps_prim_inf",
        "eps_dual_inf",
    )
    inverses = inverse_rho(settings, dtype)[:2]
    numbers = [getattr(settings, name) for name in names]
    return np.array([*numbers, *inverses, settings.check_dualgap])


class _Run:
    """One run of the loop: the kernels of an elimination on a batch of QPs."""

    def __init__(self, structure: QPStructure, kernels: LoopKernels, problem: ScaledQP):
        """Keeps the kernels and the order they work in.

        Args:
            structure: Patterns and settings of the QPs.
            kernels: Kernels of an elimination of K.
            problem: The batch.
        """
        self._settings, self._structure, self._kernels = structure.settings, structure, kernels
        self._problem, self._elimination = problem, kernels.program
        self._order = NodeOrder(self._elimination, structure.n_vars)
        self._soft_rows = self._elimination.node_order[kernels.soft_nodes] - structure.n_vars
        self._constants = loop_constants(structure.settings, structure.dtype)

    def whole(self, start: tuple[jax.Array, ...], status: jax.Array) -> LoopEnd:
        """Iterates from scaled (x, s, y) until every instance is done."""
        settings, nodes, problem = self._settings, self._order, self._problem
        x, s, y = start
        rho = jnp.full_like(status, settings.rho, dtype=x.dtype)
        rows = problem.rho(rho)
        data = self._data(s, rows)
        state = LoopState.before(nodes.join(x, s + y / rows), status, settings.check_every)
        factor = self._kernels.factor(data.K)
        bends_down = self._bends_down(factor, data.K, rho)
        carry = _Carry(state, rho, factor, bends_down, jnp.asarray(0, dtype=jnp.int32))
        span = settings.adaptive_rho_every or settings.max_iter
        if span >= settings.max_iter:
            end = self._launch(data, carry)
        else:
            end = jax.lax.while_loop(
                lambda c: (
                    (c.iteration < settings.max_iter) & (c.state.status == Status.MAX_ITER).any()
                ),
                lambda c: self._adapt(data, self._launch(data, c)),
                carry,
            )
        bends_down = end.bends_down & (status == Status.MAX_ITER)
        return LoopEnd(
            *nodes.split(end.state.X),
            end.rho,
            with_curvature(end.state.status, bends_down),
            end.state.iterations,
            _residuals(end.state),
            end.state.report[:, 4:],
        )

    def _data(self, s: jax.Array, rows: jax.Array) -> LoopData:
        """The data of the loop in the order of the elimination."""
        problem, nodes = self._problem, self._order
        scaled, scaling, identical = problem.scaled, problem.scaling, problem.identical
        zero = jnp.zeros((s.shape[0], 1, s.shape[2]), dtype=scaled.q.dtype)
        nothing = jnp.zeros_like(scaled.q)
        # A nominal scaling is one for all.
        sizes = (scaling.x + nothing, scaling.con / scaling.cost + jnp.zeros_like(s))
        return LoopData(
            K=self._structure.assemble(scaled.P, scaled.A, rows, self._elimination.K_order),
            Q=nodes.join(scaled.q, scaled.lower),
            U=nodes.join(nothing, scaled.upper),
            S=nodes.join(nothing, s),
            size=zero if identical else nodes.join(*sizes),
            cost=zero if identical else jnp.broadcast_to(scaling.cost, zero.shape),
            scaled=not identical,
        )

    def _launch(self, data: LoopData, carry: _Carry) -> _Carry:
        """Iterates up to the next adaptation of rho, or to the end."""
        settings, problem = self._settings, self._problem
        span = settings.adaptive_rho_every or settings.max_iter
        limits = LoopLimits(settings.check_every, span, settings.max_iter)
        R = self._order.join(jnp.ones_like(problem.scaled.q), 1 / problem.rho(carry.rho))
        if self._soft_rows.size:
            R = jnp.concatenate([R, self._coefficients(carry.rho)], axis=1)
        given = (carry.factor, R, data, carry.state, self._constants, carry.iteration, limits)
        state = self._kernels.iterate(*given)
        return replace(carry, state=state, iteration=carry.iteration + span)

    def _coefficients(self, rho: jax.Array) -> jax.Array:
        """Coefficients of the proximal maps, the four values of a row side by side."""
        proximal = self._problem.projection(rho).proximal
        assert proximal is not None
        sides = (proximal.lower, proximal.upper)
        parts = [part for side in sides for part in (side.quadratic, side.linear)]
        parts = [part[:, self._soft_rows] for part in parts]
        return jnp.stack(parts, axis=2).reshape(rho.shape[0], -1, rho.shape[2])

    def _adapt(self, data: LoopData, carry: _Carry) -> _Carry:
        """New rho where it pays; only tiles with such an instance are factorised again."""
        settings, nodes, state = self._settings, self._order, carry.state
        problem = self._problem
        x, v = nodes.split(state.X)
        may = (state.status == Status.MAX_ITER) & (carry.iteration < settings.max_iter)
        change, rho, v = problem.balanced(carry.rho, v, _residuals(state), may, settings)
        K = data.K.at[:, nodes.row_diagonals].set(-1 / problem.rho(rho))
        todo = change.any(axis=(1, 2)).astype(jnp.int32)
        factor = self._kernels.refactor(carry.factor, K, todo)
        return replace(
            carry,
            state=replace(state, X=nodes.join(x, v)),
            rho=rho,
            factor=factor,
            bends_down=carry.bends_down | (change & self._bends_down(factor, K, rho)),
        )

    def _bends_down(self, factor: jax.Array, K: jax.Array, rho: jax.Array) -> jax.Array:
        """Which instances are seen not to be convex: none with a fixed number of iterations."""
        if not self._settings.check_every:
            return jnp.zeros((K.shape[0], 1, K.shape[2]), dtype=bool)
        inertia = Inertia(self._elimination.elimination, self._structure.n_vars)
        diagonals = self._elimination.diagonals
        found = inertia.is_wrong(factor, K[:, diagonals])

        def confirmed() -> jax.Array:
            firm = K.at[:, self._order.row_diagonals].set(-1 / self._problem.firm_rho(rho))
            return found & inertia.is_wrong(self._kernels.factor(firm), firm[:, diagonals])

        return jax.lax.cond(found.any(), confirmed, lambda: found)


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


def tune_loop(loop: ADMMLoop, batch: int, kinds: Sequence[RowKind] = ()) -> list[Measured]:
    """Measures on the GPU which shape of a loop's kernels is fastest.

    The choice is kept on disk: later calls and processes with the same problem, settings and device
    use it for batches up to the next power of two of tiles.  Programs that are compiled already
    keep their shape.

    Args:
        loop: Loop of a QP solver.
        batch: Number of instances.
        kinds: Kinds of the rows, where the loop that will run knows them.

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


def staged_loop(structure: QPStructure, stages: IntArray, staged: StagedSettings) -> KernelLoop:
    """The loop for a QP whose rows and cost couple neighbouring stages only.

    Args:
        structure: Patterns and settings of the QPs.
        stages: Stage of each variable, then of each row.
        staged: Settings of the kernels.
    """
    hints = (structure.light_variables, structure.representative)
    program = build_stage_elimination(structure.kkt, stages, *hints)
    code = staged.code or ("unrolled" if program.code_size <= _LARGEST_CODE else "panels")
    _LOG.info(
        "staged engine: %s code, %d templates, %d multiply-adds, nnz(L) = %d",
        code,
        len(program.runs),
        program.code_size,
        program.n_L,
    )
    if code == "unrolled":
        build = partial(_unrolled, structure, program, stages)
        variants = StagedVariants(build, staged.shape, tune=staged.tune)
        return KernelLoop(structure, variants.first, variants)
    staged.refuse_unrolled_only()
    panels = _panel_kernels(program, structure)
    if panels is None:
        raise PatternError(
            "The stages are too large for the staged engine: the unknowns alive at once do not fit "
            'into shared memory.  Use engine="sparse".'
        )
    return KernelLoop(structure, panels)


def _unrolled(
    structure: QPStructure, program: StageElimination, labels: IntArray, sides: int
) -> StagedKernels:
    """Kernels of the program, or of another one with two sides."""
    if sides == 2:
        hints = (structure.light_variables, structure.representative)
        program = build_two_sided_elimination(structure.kkt, labels, *hints)
    soft = _soft_nodes(program, structure)
    return StagedKernels(program, structure.n_vars, structure.dtype, soft=soft)


def sparse_loop(structure: QPStructure) -> KernelLoop | None:
    """The loop for any pattern, by tables; None where too many unknowns are alive at once."""
    pattern = structure.kkt.K_pattern
    elimination = eliminate(pattern, safe_amd(structure.kkt, structure.light_variables))
    program = StoredElimination(elimination, np.arange(pattern.nnz, dtype=np.int32))
    kernels = _panel_kernels(program, structure)
    return None if kernels is None else KernelLoop(structure, kernels)


def _panel_kernels(program: StoredElimination, structure: QPStructure) -> PanelKernels | None:
    soft = _soft_nodes(program, structure)
    kernels = PanelKernels(program, structure.n_vars, structure.dtype, soft)
    return kernels if kernels.fits else None


def _soft_nodes(program: StoredElimination, structure: QPStructure) -> list[int]:
    rows = structure.n_vars + structure.soft_rows
    return np.flatnonzero(np.isin(program.node_order, rows)).tolist()
