"""The ADMM iteration on scaled data, and its outer loop with termination and adaptation of rho.

One vector v per constraint row instead of (s, y): s = clip(v, lower, upper), y = rho (v - s); soft
rows have the proximal map of their penalty instead of the clip (`qp.soft`).
This is OSQP's iteration exactly, with fewer vectors.  Arrays are ``[groups, rows, lanes]``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from warpmpc.qp.linear_solvers.inertia import KnowsCurvature, with_curvature
from warpmpc.qp.linear_solvers.kkt_solvers import KKTEngine
from warpmpc.qp.products import QPMatrices, total
from warpmpc.qp.scaling import LoopEnd, Residuals, ScaledQP
from warpmpc.qp.structure import QPStructure
from warpmpc.qp.termination import (
    duality_gap,
    is_dual_infeasible,
    is_primal_infeasible,
    is_reference,
    is_solved,
    residuals,
    verdict,
)
from warpmpc.qp.types import ADMMSettings, Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Progress:
    """State of the outer loop; per-instance scalars are ``[groups, 1, lanes]``.

    `reference` is unscaled x and y that certificates compare with, at first the start.
    """

    x: jax.Array
    v: jax.Array
    reference: tuple[jax.Array, jax.Array]
    rho: jax.Array
    kkt: Any
    bends_down: jax.Array
    status: jax.Array
    iterations: jax.Array
    residuals: Residuals
    iteration: jax.Array


class ADMMLoop(Protocol):
    """Runs the iteration from scaled (x, s, y) until every instance is done.

    Instances whose status is not MAX_ITER at the start are left alone.  `values_per_instance`
    counts the values that a loop keeps in memory at a time.  `reads_matrices`: whether it needs the
    scaled P and A while it runs, and not K alone.
    """

    lanes: int
    reads_matrices: bool
    values_per_instance: int

    def run(self, problem: ScaledQP, start: tuple[jax.Array, ...], status: jax.Array) -> LoopEnd:
        """The whole loop."""
        ...


class GenericLoop:
    """The loop written with JAX around an engine that solves linear systems."""

    reads_matrices = True

    def __init__(self, engine: KKTEngine, structure: QPStructure):
        """Keeps the engine.

        Args:
            engine: Solver of the linear systems.
            structure: Patterns and settings of the QPs.
        """
        matrices = structure.matrices
        self._engine, self._matrices, self._settings = engine, matrices, structure.settings
        self.lanes = engine.lanes
        vectors = 10 * (matrices.A.n_rows + matrices.AT.n_rows)
        # The products of a check gather the values once more.
        self.values_per_instance = engine.values_per_instance + vectors + matrices.n_values

    def run(self, problem: ScaledQP, start: tuple[jax.Array, ...], status: jax.Array) -> LoopEnd:
        """The whole loop."""
        admm = ADMM(self._engine, self._matrices, self._settings, problem)
        end = iterate(admm, start, status)
        x = problem.scaling.x * end.x
        Px = self._matrices.P.product(problem.data.P, x)
        objective = total((0.5 * Px + problem.data.q) * x)
        # Instances that were not to be iterated keep their status.
        ran = with_curvature(end.status, end.bends_down & (status == Status.MAX_ITER))
        found = (end.x, end.v, end.rho, ran, end.iterations, end.residuals)
        return LoopEnd(*found, objective)


@dataclass(frozen=True, eq=False)
class ADMM:
    """The iteration for one scaled batch.

    Attributes:
        engine: Solver of the KKT system.
        matrices: Products with P and A.
        settings: Tolerances and limits.
        problem: The batch.
    """

    engine: KKTEngine
    matrices: QPMatrices
    settings: ADMMSettings
    problem: ScaledQP

    def update(
        self, kkt: Any, rho: jax.Array, x: jax.Array, s: jax.Array, dual: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """One iteration from x, s and y / rho; returns x and v."""
        settings, n = self.settings, x.shape[1]
        rhs = jnp.concatenate([settings.sigma * x - self.problem.scaled.q, s - dual], axis=1)
        solution = self.engine.solve(kkt, rhs, x)
        omega = settings.relaxation
        x_next = omega * solution[:, :n] + (1 - omega) * x
        return x_next, s + (1 - omega) * dual + omega / rho * solution[:, n:]

    def prepare(self, rho: jax.Array) -> Any:
        """Factorises K for this rho."""
        scaled = self.problem.scaled
        return self.engine.prepare(scaled.P, scaled.A, self.problem.rho(rho))

    def bends_down(self, kkt: Any, rho: jax.Array) -> jax.Array:
        """Which instances are seen not to be convex: none with a fixed number of iterations."""
        if not self.settings.check_every or not isinstance(self.engine, KnowsCurvature):
            return jnp.zeros_like(rho, dtype=bool)
        engine, scaled = self.engine, self.problem.scaled
        found = engine.bends_down(kkt, scaled.P, scaled.A, self.problem.rho(rho))

        def confirmed() -> jax.Array:
            firm = self.problem.firm_rho(rho)
            again = engine.prepare(scaled.P, scaled.A, firm)
            return found & engine.bends_down(again, scaled.P, scaled.A, firm)

        return jax.lax.cond(found.any(), confirmed, lambda: found)


def iterate(admm: ADMM, start: tuple[jax.Array, ...], status: jax.Array) -> Progress:
    """Runs the iteration from scaled (x, s, y) until every instance is done.

    Instances whose status is not MAX_ITER at the start are left alone.
    """
    x, s, y = start
    settings, rho = admm.settings, jnp.full_like(status, admm.settings.rho, dtype=x.dtype)
    kkt, rows = admm.prepare(rho), admm.problem.rho(rho)
    # The first iteration may start from an s that is not a projection; later v determines s.
    x_next, v = admm.update(kkt, rows, x, s, y / rows)
    nothing = jnp.zeros_like(rho)
    progress = Progress(
        x=x_next,
        v=v,
        reference=(admm.problem.scaling.x * x, admm.problem.unscaled_dual(y)),
        rho=rho,
        kkt=kkt,
        bends_down=admm.bends_down(kkt, rho),
        status=status,
        iterations=(status == Status.MAX_ITER).astype(status.dtype),
        residuals=Residuals(nothing, nothing, nothing, nothing),
        iteration=jnp.asarray(1, dtype=jnp.int32),
    )
    if _period(settings) == 1 or settings.max_iter == 1:
        progress = _check(admm, progress)
    return jax.lax.while_loop(
        lambda p: (p.iteration < settings.max_iter) & (p.status == Status.MAX_ITER).any(),
        lambda p: _chunk(admm, p),
        progress,
    )


def _period(settings: ADMMSettings) -> int:
    """Number of iterations between checks; residuals are also needed after the last one."""
    return settings.check_every or settings.adaptive_rho_every or settings.max_iter


def _chunk(admm: ADMM, before: Progress) -> Progress:
    """Iterations up to the next check, then the check."""
    settings, period = admm.settings, _period(admm.settings)
    # Checks fall on multiples of the period; the first iteration is already done.
    steps = jnp.minimum(period - before.iteration % period, settings.max_iter - before.iteration)
    rows, project = admm.problem.rho(before.rho), admm.problem.projection(before.rho)

    def step(_: int, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, v = carry
        s = project(v)
        return admm.update(before.kkt, rows, x, s, v - s)

    x, v = jax.lax.fori_loop(0, steps, step, (before.x, before.v))
    active = before.status == Status.MAX_ITER
    now = replace(
        before,
        x=jnp.where(active, x, before.x),
        v=jnp.where(active, v, before.v),
        iteration=before.iteration + steps,
        iterations=jnp.where(active, before.iteration + steps, before.iterations),
    )
    return _check(admm, now)


def _check(admm: ADMM, now: Progress) -> Progress:
    """Residuals, certificates, and a new rho where it pays."""
    settings, problem, last = admm.settings, admm.problem, now.reference
    x, s, y = problem.unscaled(now.x, now.v, now.rho)
    iterate = (problem.data, admm.matrices, x, s, y)
    r = residuals(*iterate)
    solved = is_solved(r, duality_gap(*iterate) if settings.check_dualgap else None, settings)

    def certificates() -> tuple[jax.Array, jax.Array]:
        given, penalties = (problem.judged, admm.matrices), problem.scaled_penalties
        dx, dy = problem.scaled_change(x - last[0], y - last[1])
        impossible = is_primal_infeasible(*given, dy, settings, penalties)
        return impossible, is_dual_infeasible(*given, dx, settings, penalties)

    is_last = now.iteration >= settings.max_iter
    status = verdict(now.status, solved, certificates, is_last, settings)
    finite = jnp.isfinite(x).all(axis=1, keepdims=True) & jnp.isfinite(y).all(axis=1, keepdims=True)
    broken = (now.status == Status.MAX_ITER) & ~finite
    status = jnp.where(broken, Status.NON_FINITE, status)
    now = replace(now, residuals=r, status=status)
    if settings.check_every:
        renewed = is_reference(now.iteration // settings.check_every)
        now = replace(now, reference=jax.lax.cond(renewed, lambda: (x, y), lambda: last))
    return _adapt(admm, now, r) if settings.adaptive_rho_every else now


def _adapt(admm: ADMM, now: Progress, r: Residuals) -> Progress:
    """Changes rho of the instances where it pays and factorises again if there are any."""
    settings = admm.settings
    due = (now.iteration % settings.adaptive_rho_every == 0) & (now.iteration < settings.max_iter)
    may = due & (now.status == Status.MAX_ITER)
    change, rho, v = admm.problem.balanced(now.rho, now.v, r, may, settings)

    def refactor(p: Progress) -> Progress:
        scaled, rows = admm.problem.scaled, admm.problem.rho(rho)
        kkt = admm.engine.renew(p.kkt, scaled.P, scaled.A, rows, change)
        bends_down = p.bends_down | admm.bends_down(kkt, rho)
        return replace(p, rho=rho, v=v, kkt=kkt, bends_down=bends_down)

    return jax.lax.cond(change.any(), refactor, lambda p: p, now)
