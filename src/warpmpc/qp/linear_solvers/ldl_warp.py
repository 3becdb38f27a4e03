"""Sparse engine: the table-driven Warp kernels behind the backend protocol."""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.engines.ldl.launch import (
    SEGMENTS,
    LaunchShape,
    TableLDL,
    launch_shape,
    window_fits,
)
from warpmpc.engines.ldl.schedule import build_schedule
from warpmpc.engines.ldl.window import WindowStream, build_window
from warpmpc.engines.runtime.batching import from_tiles, tile_count, to_tiles
from warpmpc.qp.linear_solvers.base import LDLSettings, LinearSystem, status_of
from warpmpc.symbolic.elimination import Elimination


class WarpLDL:
    """Factorises and solves on CPU or CUDA with the same kernels."""

    honours: ClassVar[frozenset[str]] = frozenset(field.name for field in fields(LDLSettings))

    def __init__(self, system: LinearSystem, settings: LDLSettings):
        """Builds schedule and tables."""
        elimination = _in_given_order(system)
        self._settings, self._n_L = settings, system.elimination.nnz_L
        self._perm, self._tiled = elimination.perm, settings.layout == "tiled"
        self._dtype = system.dtype
        segments = settings.segments or SEGMENTS
        schedule = build_schedule(
            elimination, segments, level_scheduling=settings.level_scheduling, unrolled=True
        )
        self._engine = TableLDL(
            schedule,
            system.dtype,
            tiled=self._tiled,
            window=_choose_window(elimination, system.dtype, settings),
            scale=system.value_scale,
        )

    def factor(self, K_vals: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Factor rows (entries of L, then inverse pivots) and status per problem."""
        batch = K_vals.shape[0]
        if not self._tiled:
            values = self._engine.factor(K_vals, self._shape(batch))
            return values, status_of(values[:, self._n_L :], axis=1)
        values = self.factor_tiles(to_tiles(K_vals))
        status = status_of(values[:, self._n_L :], axis=1)
        return values, status.reshape(-1)[:batch]

    def solve(self, factor: jax.Array, rhs: jax.Array) -> jax.Array:
        """Solutions in the caller's order."""
        batch = rhs.shape[0]
        if not self._tiled:
            return self._engine.solve(factor, rhs, self._shape(batch))
        return from_tiles(self.solve_tiles(factor, to_tiles(rhs)), batch)

    def factor_tiles(self, K: jax.Array) -> jax.Array:
        """Factor rows from values in tiles, for loops that keep their arrays in tiles."""
        return self._engine.factor(K, self._shape(K.shape[0] * K.shape[2]))

    def refactor_tiles(self, factor: jax.Array, K: jax.Array, todo: jax.Array) -> jax.Array:
        """New factor rows of the tiles marked in `todo`; others stay."""
        return self._engine.refactor(factor, K, todo, self._shape(K.shape[0] * K.shape[2]))

    def solve_tiles(self, factor: jax.Array, rhs: jax.Array) -> jax.Array:
        """Solutions in tiles, for loops that keep their vectors in tiles."""
        return self._engine.solve(factor, rhs, self._shape(rhs.shape[0] * rhs.shape[2]))

    def factors(self, factor: jax.Array, batch: int) -> tuple[jax.Array, jax.Array]:
        """L and D in elimination order, batch-first."""
        values = from_tiles(factor, batch) if self._tiled else factor
        return values[:, : self._n_L], 1 / values[:, self._n_L + jnp.asarray(self._perm)]

    def _shape(self, batch: int) -> LaunchShape:
        settings, warps = self._settings, self._settings.warps_per_tile
        if not self._tiled or not settings.level_scheduling:
            warps = warps or 1
        return launch_shape(tile_count(batch), self._dtype, warps=warps)


def _in_given_order(system: LinearSystem) -> Elimination:
    """The elimination with positions in the caller's list of values instead of the triangle's."""
    given, source = system.elimination, np.append(system.source, -1)
    return Elimination(
        K_pattern=given.K_pattern,
        perm=given.perm,
        parent=given.parent,
        L_pattern=given.L_pattern,
        K_to_L=source[given.K_to_L].astype(np.int32),
        K_to_D=source[given.K_to_D].astype(np.int32),
    )


def _choose_window(
    elimination: Elimination, dtype: str, settings: LDLSettings
) -> WindowStream | None:
    if settings.window is False or settings.layout != "tiled":
        return None
    window = build_window(elimination, settings.segments or SEGMENTS)
    if window_fits(window, dtype):
        return window
    if settings.window:
        raise SettingsError(
            f"window=True needs {window.n_slots} unknowns per problem on chip, more than this "
            'device has room for; use window=None or ordering="stage", which keeps few alive.'
        )
    return None
