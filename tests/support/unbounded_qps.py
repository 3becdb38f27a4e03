"""Quadratic programs whose cost is unbounded below, and their bounded twins.

Each kind has a direction along which neither a row nor the Hessian stops the descent; the twins
have something that does.  All instances of a kind have one pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import scipy.sparse as sp
from infeasible_qps import badly_scaled
from qp_cases import INF, QP, QPBatch, stack

_N = 10


def _qp(
    P: np.ndarray,
    q: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray],
    lower: np.ndarray,
    upper: np.ndarray,
    of_P: np.ndarray | None = None,
) -> QP:
    """Dense data with fixed patterns; `rows` is A and where it has entries."""
    A, present = rows
    here = np.triu(np.ones_like(P) if of_P is None else of_P)
    i, j = np.nonzero(here)
    k, m = np.nonzero(present)
    return QP(
        sp.csc_matrix((P[i, j], (i, j)), shape=P.shape),
        q,
        sp.csc_matrix((A[k, m], (k, m)), shape=A.shape),
        lower,
        upper,
    )


def flat_direction(rng: np.random.Generator, *, bounded: bool) -> QP:
    """A singular Hessian; rows keep the flat direction, or bound it from both sides."""
    d = rng.normal(size=_N)
    d /= np.linalg.norm(d)
    root = rng.normal(size=(_N, _N - 2)) * rng.uniform(0.3, 2)
    root -= np.outer(d, d @ root)
    A = rng.normal(size=(5, _N))
    A[:3] -= np.outer(A[:3] @ d, d)
    A[3:] *= np.sign(A[3:] @ d)[:, None]
    lower, upper = np.array([-1.0, -1, -1, -1, -2]), np.array([1.0, 1, 1, INF, INF])
    if bounded:
        upper[3:] = rng.uniform(1, 3, 2)
    q = -rng.uniform(0.1, 2) * d + root @ rng.normal(size=_N - 2)
    return _qp(root @ root.T, q, (A, np.ones_like(A)), lower, upper)


def open_cone(rng: np.random.Generator, *, bounded: bool) -> QP:
    """A linear program over a cone of half-spaces, with a price that leads out of it or into it."""
    A = rng.normal(size=(2 * _N, _N))
    d = rng.normal(size=_N)
    A *= np.sign(A @ d)[:, None]
    lower = -rng.uniform(0, 1, 2 * _N)
    # Prices of rows that are positive make the cost bounded below on the cone.
    q = A.T @ np.where(rng.random(2 * _N) < 0.5, rng.uniform(0.1, 1, 2 * _N), 0)
    if not bounded:
        q -= (q @ d + rng.uniform(0.1, 1) * np.linalg.norm(d)) * d / (d @ d)
    zero = np.zeros((_N, _N))
    return _qp(zero, q, (A, np.ones_like(A)), lower, np.full(2 * _N, INF), zero)


def runaway(rng: np.random.Generator, *, bounded: bool) -> QP:
    """A chain of integrators whose state may go where it likes, at a profit."""
    steps, h = 8, 0.3
    n = 2 * steps + 1
    A, here = np.zeros((2 * steps + 1, n)), np.zeros((2 * steps + 1, n))
    A[0, 0] = 1.0
    for k in range(steps):
        A[k + 1, [k + 1, k, steps + 1 + k]] = 1.0, -1.0, -h
        A[steps + 1 + k, steps + 1 + k] = 1.0
    here[A != 0] = 1
    lower, upper = np.zeros(n), np.zeros(n)
    lower[0] = upper[0] = rng.normal()
    lower[steps + 1 :], upper[steps + 1 :] = -INF, rng.uniform(0.5, 2, steps)
    if bounded:
        lower[steps + 1 :] = -rng.uniform(0.5, 2, steps)
    q = np.zeros(n)
    q[1 : steps + 1] = rng.uniform(0.1, 1, steps)
    weight = np.zeros(n)
    of_P = np.diag(np.arange(n) == 0).astype(float)
    weight[0] = 1.0
    return _qp(np.diag(weight), q, (A, here), lower, upper, of_P)


def free_ride(rng: np.random.Generator, *, bounded: bool) -> QP:
    """A box around most variables; one without a weight has no bound on the cheap side."""
    A = np.vstack([np.eye(_N), rng.normal(size=(2, _N))])
    A[_N:, -1] = np.abs(A[_N:, -1])
    lower, upper = np.full(_N + 2, -1.0), np.full(_N + 2, 1.0)
    upper[-3], upper[_N:] = INF, INF
    lower[_N:] = -5.0
    if bounded:
        upper[-1] = 5.0
    root = rng.normal(size=(_N - 1, _N - 1))
    P = np.zeros((_N, _N))
    P[:-1, :-1] = root @ root.T + 0.1 * np.eye(_N - 1)
    q = rng.normal(size=_N)
    q[-1] = -rng.uniform(0.05, 2)
    return _qp(P, q, (A, A != 0), lower, upper, P != 0)


KINDS: dict[str, Callable[..., QP]] = {
    "flat_direction": flat_direction,
    "open_cone": open_cone,
    "runaway": runaway,
    "free_ride": free_ride,
}


@cache
def instances(kind: str, count: int, *, bounded: bool, seed: int = 6) -> QPBatch:
    """So many of a kind, every second one badly scaled."""
    found = []
    for b in range(count):
        rng = np.random.default_rng([seed, list(KINDS).index(kind), b, int(bounded)])
        qp = KINDS[kind](rng, bounded=bounded)
        found.append(badly_scaled(qp, rng) if b % 2 else qp)
    return stack(found)


unbounded = partial(instances, bounded=False)
bounded = partial(instances, bounded=True)
