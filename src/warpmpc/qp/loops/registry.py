"""The engines that run the ADMM loop of a QP, and which of them "auto" picks.

To add an engine, put an `Engine` into `LOOPS`: `QPSolver` takes it by its name, and so does
`MPCSolver` unless the engine is too inexact for sensitivities.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpmpc._errors import PatternError, SettingsError
from warpmpc.qp.linear_solvers.kkt_solvers import (
    DenseEngine,
    KKTEngine,
    PCGEngine,
    SparseEngine,
)
from warpmpc.qp.loops.general import ADMMLoop, GenericLoop
from warpmpc.qp.loops.kernels import sparse_loop, staged_loop
from warpmpc.qp.structure import QPStructure
from warpmpc.qp.types import StagedSettings
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.stage_elimination import check_coupling

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class EngineRequest:
    """What an engine is built from.

    Attributes:
        structure: Patterns and settings of the QPs.
        stages: Stage of each variable, then of each row; None for engines that need none.
        staged: Settings of the staged engine, or None.
    """

    structure: QPStructure
    stages: Any = None
    staged: StagedSettings | None = None

    @property
    def system(self) -> QPStructure:
        """Former name of `structure`."""
        message = "EngineRequest.system is now called structure; the old name will be removed."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.structure

    def checked_stages(self) -> IntArray:
        """The stages as an array; labels of a wrong number or type raise."""
        size = self.structure.n_vars + self.structure.A.n_rows
        try:
            labels = np.asarray(self.stages)
        except ValueError:  # ragged
            labels = np.zeros(0)
        if labels.shape != (size,) or labels.dtype.kind not in "iu":
            raise PatternError(
                "`stages` must hold one integer per variable, then one per row of A: shape "
                f"({size},); got shape {labels.shape}, dtype {labels.dtype}."
            )
        return labels.astype(np.int64)

    def generic(self, engine: KKTEngine) -> GenericLoop:
        """The loop written with JAX around a linear solver."""
        return GenericLoop(engine, self.structure)


@dataclass(frozen=True, eq=False)
class Engine:
    """One way to run the ADMM loop.

    Attributes:
        name: What callers of the solvers write.
        build: Builds the loop for a request.
        takes_stages: Whether the engine needs stages and reads `StagedSettings`; all other engines
            refuse both.
        sensitivity: Builds the linear solver of derivatives; None: the engine is too inexact for
            derivatives.
    """

    name: str
    build: Callable[[EngineRequest], ADMMLoop]
    takes_stages: bool = False
    sensitivity: Callable[[QPStructure], KKTEngine] | None = SparseEngine

    def check(self, request: EngineRequest) -> None:
        """Raises if this engine cannot use what is requested, without building anything."""
        if self.takes_stages:
            if request.stages is None:
                raise SettingsError(
                    f'engine="{self.name}" needs `stages`: the stage of each variable, then of '
                    "each row of A."
                )
            check_coupling(request.structure.kkt, request.checked_stages())
            return
        for name in ("stages", "staged"):
            if getattr(request, name) is not None:
                raise SettingsError(
                    f'engine="{self.name}" has no use for `{name}`; leave it out or use '
                    'engine="staged".'
                )


def _staged(request: EngineRequest) -> ADMMLoop:
    staged = request.staged or StagedSettings()
    return staged_loop(request.structure, request.checked_stages(), staged)


def _sparse(request: EngineRequest) -> ADMMLoop:
    loop = sparse_loop(request.structure)
    if loop is not None:
        return loop
    _LOG.info("sparse engine: too many unknowns are alive at once for a loop in one launch")
    return request.generic(SparseEngine(request.structure))


def _dense(request: EngineRequest) -> ADMMLoop:
    return request.generic(DenseEngine(request.structure))


def _pcg(request: EngineRequest) -> ADMMLoop:
    return request.generic(PCGEngine(request.structure))


LOOPS: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("staged", _staged, takes_stages=True),
        Engine("sparse", _sparse),
        Engine("dense", _dense, sensitivity=DenseEngine),
        Engine("pcg", _pcg, sensitivity=None),
    )
}


def engine_named(name: Any) -> Engine:
    """An engine of the registry; an unknown name raises."""
    if not isinstance(name, str) or name not in LOOPS:
        raise SettingsError(f"Unknown engine {name!r}; choose one of {['auto', *sorted(LOOPS)]}.")
    return LOOPS[name]


def differentiable_engines() -> list[str]:
    """Names of the engines with sensitivities, in the order of the registry."""
    return [name for name, engine in LOOPS.items() if engine.sensitivity is not None]


def check_request(name: Any, request: EngineRequest) -> None:
    """Raises what is wrong with a choice of engine, without building the engine."""
    if name != "auto":
        engine_named(name).check(request)
        return
    if request.stages is None:
        if request.staged is not None:
            raise SettingsError("`staged` has no effect without `stages`; pass both or neither.")
        return
    # Labels of the wrong form are a mistake; that they do not suit the pattern need not be one.
    request.checked_stages()
    if request.staged is not None:
        LOOPS["staged"].check(request)


def build_loop(name: str, request: EngineRequest) -> tuple[Engine, ADMMLoop]:
    """The engine and its loop; "auto" picks one and says why in the log."""
    if name != "auto":
        engine = engine_named(name)
        return engine, engine.build(request)
    return _auto(request)


def _auto(request: EngineRequest) -> tuple[Engine, ADMMLoop]:
    staged, sparse = LOOPS["staged"], LOOPS["sparse"]
    if request.stages is None:
        _LOG.info("engine auto: sparse, because no stages are given")
        return sparse, sparse.build(request)
    try:
        loop = staged.build(request)
    except PatternError as reason:
        if request.staged is not None:
            raise
        _LOG.warning("engine auto: sparse, because the stages cannot be used: %s", reason)
        return sparse, sparse.build(request)
    _LOG.info("engine auto: staged, because stages are given")
    return staged, loop
