"""The whole ADMM loop of a QP in one launch: engines "staged" and "sparse".

Builds the kernels; where there is a choice of programs the number of tiles decides.  The loop
itself is that of `qp.loops.tiles`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from warpmpc._errors import PatternError, SettingsError
from warpmpc.engines.panels.launch import PanelKernels
from warpmpc.engines.runtime.tiles import LANES, tile_count
from warpmpc.engines.staged.launch import StagedKernels
from warpmpc.engines.staged.tuning import Measured
from warpmpc.engines.staged.variants import StagedVariants
from warpmpc.qp.linear_solvers.kkt_solvers import KKTSystem
from warpmpc.qp.loops.general import ADMMLoop, LoopEnd
from warpmpc.qp.loops.tiles import LoopKernels, TileLoop
from warpmpc.qp.scaling import ScaledQP
from warpmpc.qp.staged_settings import StagedSettings
from warpmpc.qp.types import ADMMSettings
from warpmpc.symbolic.derivatives.row_kinds import RowKind
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.float32_ordering import safe_amd
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.stage_elimination import (
    StageElimination,
    build_stage_elimination,
    build_two_sided_elimination,
)
from warpmpc.symbolic.storage_order import StoredElimination

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
