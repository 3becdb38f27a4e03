"""What kernels report of their iterations, as the state and history of the SQP loop."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from warpmpc.codegen.native.line_search import REPORT_ROWS
from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.sqp.general import Iterate, is_infeasible, status_of
from warpmpc.mpc.types import History, QPState


class Reports:
    """Reads rows of `REPORT_ROWS`."""

    def __init__(self, settings: SQPSettings, dtype: str, *, soft: bool = False):
        """Takes the tolerances.

        Args:
            settings: Of the iteration.
            dtype: "float32" or "float64".
            soft: Whether there are soft rows.
        """
        self._tol, self._scale = settings.tolerances(dtype), settings.line_search.scale
        self._soft = soft

    def iterate(
        self,
        begin: Iterate,
        new: tuple[jax.Array, QPState],
        report: jax.Array,
        spent: tuple[jax.Array, jax.Array, jax.Array | int],
        active: jax.Array,
        converged: jax.Array | None = None,
    ) -> Iterate:
        """The state after some iterations, as `SQPIteration` would have found it.

        Args:
            begin: The state before.
            new: z, and what the last QP leaves.
            report: Of the last iteration, ``[groups, rows, lanes]``.
            spent: Status of the last QP, iterations of all QPs, and number of QPs.
            active: Instances that take part; others stay.
            converged: Instances that the kernel found to be converged; None: it did not ask.
        """
        row = {name: report[:, i : i + 1] for i, name in enumerate(REPORT_ROWS)}
        qp_status, qp_iterations, count = spent
        usable, accepted = row["usable"] > 0, row["accepted"] > 0
        infeasible = is_infeasible(qp_status)
        kkt = _kkt(row)
        if converged is None:
            converged = usable & ~infeasible & self._holds(row, kkt)
        after = replace(
            begin,
            z=new[0],
            qp=new[1],
            status=status_of(usable, qp_status, converged, accepted),
            infeasible=infeasible.astype(jnp.int32),
            iterations=begin.iterations + count,
            qp_iterations=begin.qp_iterations + qp_iterations,
            primal=row["primal"],
            dual=row["dual"],
            kkt=kkt,
            alpha=row["alpha"],
            accepted=accepted.astype(jnp.int32),
            cost=row["cost"],
            violation=row["worst"],
            theta=self._scale * jnp.sqrt(row["squares"]),
        )
        return jax.tree.map(lambda new, old: jnp.where(active, new, old), after, begin)

    def _holds(self, row: dict[str, jax.Array], kkt: jax.Array) -> jax.Array:
        """The conditions of `SQPIteration.step`."""
        tol = self._tol
        still = row["d_size"] <= tol.step * jnp.maximum(1, row["z_size"])
        holds = (still | (row["accepted"] == 0)) & (kkt <= tol.kkt)
        holds &= row["worst_before"] <= tol.violation
        return holds & (row["primal"] <= tol.violation) if self._soft else holds

    def history(self, reports: jax.Array) -> History:
        """Of all iterations, from ``[iterations, groups, rows, lanes]``."""
        row = {name: reports[:, :, i] for i, name in enumerate(REPORT_ROWS)}
        theta = self._scale * jnp.sqrt(row["squares"])
        return History(row["cost"], theta, row["alpha"], row["accepted"], _kkt(row))


def _kkt(row: dict[str, jax.Array]) -> jax.Array:
    return jnp.maximum(row["stationarity"], row["slack"]) / jnp.maximum(1, row["gradient"])
