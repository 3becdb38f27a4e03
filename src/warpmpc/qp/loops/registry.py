"""Which engine runs the ADMM loop of a QP: chosen by name, or by what is known about the problem.

Register a new engine in `LOOPS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warpmpc._errors import PatternError, SettingsError
from warpmpc.qp.linear_solvers.kkt_solvers import (
    DenseEngine,
    KKTEngine,
    KKTSystem,
    PCGEngine,
    SparseEngine,
)
from warpmpc.qp.loops.general import ADMMLoop, GenericLoop
from warpmpc.qp.loops.kernels import checked_stages, sparse_loop, staged_loop
from warpmpc.qp.types import ADMMSettings, StagedSettings

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class EngineRequest:
    """What an engine is built from.

    Attributes:
        system: Pattern of K.
        settings: Of the iteration.
        stages: Stage labels, or None.
        staged: Settings of the staged engine, or None.
    """

    system: KKTSystem
    settings: ADMMSettings
    stages: Any
    staged: StagedSettings | None

    def generic(self, engine: KKTEngine) -> GenericLoop:
        """The loop written with JAX."""
        return GenericLoop(engine, self.system.matrices, self.settings)


def _staged(request: EngineRequest) -> ADMMLoop:
    if request.stages is None:
        raise SettingsError(
            'engine="staged" needs `stages`: the stage of each variable, then of each row of A.'
        )
    staged = request.staged or StagedSettings()
    return staged_loop(request.system, request.stages, request.settings, staged)


def _sparse(request: EngineRequest) -> ADMMLoop:
    loop = sparse_loop(request.system, request.settings)
    if loop is not None:
        return loop
    _LOG.info("sparse engine: too many unknowns are alive at once for a loop in one launch")
    return request.generic(SparseEngine(request.system))


LOOPS: dict[str, Callable[[EngineRequest], ADMMLoop]] = {
    "staged": _staged,
    "sparse": _sparse,
    "dense": lambda request: request.generic(DenseEngine(request.system)),
    "pcg": lambda request: request.generic(PCGEngine(request.system)),
}


def build_loop(engine: str, request: EngineRequest) -> tuple[str, ADMMLoop]:
    """Name and loop of an engine; "auto" picks one and says why in the log."""
    if engine == "auto":
        return _auto(request)
    if not isinstance(engine, str) or engine not in LOOPS:
        raise SettingsError(f"Unknown engine {engine!r}; choose one of {['auto', *sorted(LOOPS)]}.")
    for name in ("stages", "staged"):
        if engine != "staged" and getattr(request, name) is not None:
            raise SettingsError(
                f'engine="{engine}" has no use for `{name}`; leave it out or use engine="staged".'
            )
    return engine, LOOPS[engine](request)


def _auto(request: EngineRequest) -> tuple[str, ADMMLoop]:
    if request.stages is None:
        if request.staged is not None:
            raise SettingsError("`staged` has no effect without `stages`; pass both or neither.")
        _LOG.info("engine auto: sparse, because no stages are given")
        return "sparse", _sparse(request)
    # Labels that are wrong in form are a mistake; labels that do not suit the pattern need not be.
    checked_stages(request.stages, request.system.kkt.K_pattern.n_cols)
    try:
        loop = _staged(request)
    except PatternError as reason:
        if request.staged is not None:
            raise
        _LOG.warning("engine auto: sparse, because the stages cannot be used: %s", reason)
        return "sparse", _sparse(request)
    _LOG.info("engine auto: staged, because stages are given")
    return "staged", loop


def sensitivity_engine(engine: str, system: KKTSystem) -> KKTEngine:
    """What solves the linear systems of derivatives."""
    if engine == "dense":
        return DenseEngine(system)
    return PCGEngine(system) if engine == "pcg" else SparseEngine(system)
