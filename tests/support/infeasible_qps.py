"""Quadratic programs without a feasible point, and their feasible twins.

Each kind has one reason why no x satisfies its rows, and a number `slack`: how much the bounds
leave (feasible, if positive) or lack.  All instances of a kind have one pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import scipy.sparse as sp
from qp_cases import INF, QP, QPBatch, stack

_N = 12


def _hessian(rng: np.random.Generator, n: int, kind: str) -> sp.csc_matrix:
    """Dense and strictly convex, a diagonal on some variables, or nothing at all."""
    size = 10.0 ** rng.uniform(-1, 1)
    if kind == "dense":
        root = rng.normal(size=(n, n))
        rows, cols = np.triu_indices(n)
        values = (root @ root.T + 0.1 * np.eye(n))[rows, cols]
    else:
        rows = cols = np.arange(0, n, 3) if kind == "some" else np.arange(0)
        values = rng.uniform(0.1, 1, rows.size)
    return sp.csc_matrix((size * values, (rows, cols)), shape=(n, n))


def _qp(
    rng: np.random.Generator,
    hessian: str,
    A: np.ndarray,
    present: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
) -> QP:
    """Rows with a fixed pattern, and a random cost that is bounded below."""
    rows, cols = np.nonzero(present)
    stored = sp.csc_matrix((A[rows, cols], (rows, cols)), shape=A.shape)
    P = _hessian(rng, A.shape[1], hessian)
    price = np.where(np.isfinite(lower) & np.isfinite(upper), rng.normal(size=A.shape[0]), 0)
    q = (P + sp.triu(P, 1).T) @ rng.normal(size=A.shape[1]) + price @ A
    return QP(P, q, stored, lower, upper)


def half_spaces(rng: np.random.Generator, slack: float) -> QP:
    """Half-spaces whose normals have a positive combination that is zero."""
    m = 2 * _N
    A = rng.normal(size=(m, _N))
    weight = np.where(rng.random(m - 1) < 0.3, rng.uniform(0.1, 2, m - 1), 0)
    weight[0] = 1.0
    A[-1] = -weight @ A[:-1]
    point = rng.normal(size=_N)
    upper = A @ point + np.where(np.append(weight, 1) > 0, 0, rng.uniform(0, 1, m))
    upper[-1] += slack * (1 + np.abs(upper[-1]))
    return _qp(rng, "dense", A, np.ones_like(A), np.full(m, -INF), upper)


def equalities(rng: np.random.Generator, slack: float) -> QP:
    """An equality that is a combination of others, up to its right-hand side."""
    m = _N // 2
    A = rng.normal(size=(m, _N))
    A[-1] = rng.normal(size=m - 1) @ A[:-1]
    b = A @ rng.normal(size=_N)
    b[-1] += min(slack, 0) * (1 + abs(b[-1]))
    return _qp(rng, "dense", A, np.ones_like(A), b, b.copy())


def crowded_simplex(rng: np.random.Generator, slack: float) -> QP:
    """Shares with upper limits whose sum does not reach one."""
    A = np.vstack([np.eye(_N), np.ones((1, _N))])
    limit = rng.uniform(0.1, 1, _N)
    limit *= (1 + max(slack, -0.9)) / limit.sum()
    lower, upper = np.zeros(_N + 1), np.append(limit, 1.0)
    lower[-1] = 1.0
    return _qp(rng, "none", A, A != 0, lower, upper)


def distant_row(rng: np.random.Generator, slack: float) -> QP:
    """A row that no corner of a box reaches, among rows that hold easily."""
    A = np.vstack([np.eye(_N), rng.normal(size=(4, _N))])
    present = np.vstack([np.eye(_N), np.ones((4, _N))])
    reach = np.abs(A[-1]).sum()
    lower, upper = np.full(_N + 4, -1.0), np.full(_N + 4, 1.0)
    lower[_N:], upper[_N:] = -50.0, 50.0
    lower[-1], upper[-1] = reach * (1 - slack), INF
    return _qp(rng, "dense", A, present, lower, upper)


def cycle(rng: np.random.Generator, slack: float) -> QP:
    """Differences around a cycle that add up to less than nothing."""
    shift = np.roll(np.eye(_N), 1, axis=1)
    height = rng.normal(size=_N)
    upper = (shift - np.eye(_N)) @ height + slack * rng.uniform(0.5, 1.5, _N)
    return _qp(rng, "dense", shift - np.eye(_N), shift + np.eye(_N), np.full(_N, -INF), upper)


def short_of_power(rng: np.random.Generator, slack: float) -> QP:
    """A cart with bounded forces that has to be somewhere at the end."""
    steps, h = 8, 0.25
    drag = rng.uniform(0.7, 1.0)
    Ad, Bd = np.array([[1.0, h], [0.0, drag]]), np.array([0.5 * h * h, h])
    n = 2 * (steps + 1) + steps
    A, present = np.zeros((2 * (steps + 2) + steps, n)), np.zeros((2 * (steps + 2) + steps, n))
    lower = np.zeros(A.shape[0])
    A[[0, 1], [0, 1]] = 1.0
    for k in range(steps):
        here, at = slice(2 * k, 2 * k + 2), slice(2 * k + 2, 2 * k + 4)
        A[at, here], A[at, at], A[at, 2 * (steps + 1) + k] = Ad, -np.eye(2), Bd
        present[at, here], present[at, 2 * (steps + 1) + k] = [[1, 1], [0, 1]], 1
        present[[2 * k + 2, 2 * k + 3], [2 * k + 2, 2 * k + 3]] = 1
    present[[0, 1], [0, 1]] = 1
    last = 2 * (steps + 1)
    A[[last, last + 1], [2 * steps, 2 * steps + 1]] = 1.0
    A[last + 2 + np.arange(steps), last + np.arange(steps)] = 1.0
    present[last:] = A[last:] != 0
    upper = lower.copy()
    lower[last + 2 :], upper[last + 2 :] = -1.0, 1.0
    x = np.zeros(2)
    reach = np.zeros(2)
    for _ in range(steps):
        reach = Ad @ reach + Bd
    lower[:2] = upper[:2] = x
    lower[last], upper[last] = reach[0] * (1 - slack), INF
    lower[last + 1], upper[last + 1] = -INF, INF
    return _qp(rng, "some", A, present, lower, upper)


def narrow_network(rng: np.random.Generator, slack: float) -> QP:
    """A flow from the first to the last node that the edges of a cut do not bear."""
    nodes = 6
    tails, heads = np.triu_indices(nodes, 1)
    edges = tails.size
    balance = np.zeros((nodes, edges))
    balance[tails, np.arange(edges)], balance[heads, np.arange(edges)] = 1.0, -1.0
    capacity = rng.uniform(0.5, 2.0, edges)
    cut = (tails < nodes // 2) & (heads >= nodes // 2)
    capacity[cut] *= 0.2
    graph = sp.csr_matrix(
        (np.rint(capacity * 1e6).astype(np.int32), (tails, heads)), shape=(nodes, nodes)
    )
    flow = sp.csgraph.maximum_flow(graph, 0, nodes - 1).flow_value / 1e6
    supply = np.zeros(nodes)
    supply[[0, -1]] = flow * (1 - slack), -flow * (1 - slack)
    A = np.vstack([balance, np.eye(edges)])
    lower = np.concatenate([supply, np.zeros(edges)])
    return _qp(rng, "none", A, A != 0, lower, np.concatenate([supply, capacity]))


def tight_pair(rng: np.random.Generator, slack: float) -> QP:
    """Two nearly parallel strips in a box that do not meet there."""
    A = np.vstack([rng.normal(size=(6, _N)), np.eye(_N)])
    present = np.vstack([np.ones((6, _N)), np.eye(_N)])
    A[5] = A[4] + 0.2 * rng.normal(size=_N)
    apart = np.abs(A[5] - A[4]).sum()
    least = A[4] @ np.sign(A[5] - A[4])
    lower, upper = np.full(_N + 6, -1.0), np.full(_N + 6, 1.0)
    lower[:4], upper[:4] = -30.0, 30.0
    lower[4], upper[4] = -INF, least
    lower[5], upper[5] = least + (1 - slack) * apart, INF
    return _qp(rng, "dense", A, present, lower, upper)


KINDS: dict[str, Callable[[np.random.Generator, float], QP]] = {
    "half_spaces": half_spaces,
    "equalities": equalities,
    "crowded_simplex": crowded_simplex,
    "distant_row": distant_row,
    "cycle": cycle,
    "short_of_power": short_of_power,
    "narrow_network": narrow_network,
    "tight_pair": tight_pair,
}


def badly_scaled(qp: QP, rng: np.random.Generator) -> QP:
    """The same in other units of rows, variables and cost."""
    of_rows, of_x = (10.0 ** rng.uniform(-1, 1, n) for n in qp.A.shape)
    cost = 10.0 ** rng.uniform(-3, 3)
    P, A = qp.P.copy(), qp.A.copy()
    columns = [np.repeat(np.arange(M.shape[1]), np.diff(M.indptr)) for M in (P, A)]
    P.data = P.data * cost * of_x[P.indices] * of_x[columns[0]]
    A.data = A.data * of_rows[A.indices] * of_x[columns[1]]
    return QP(P, qp.q * cost * of_x, A, qp.lower * of_rows, qp.upper * of_rows)


@cache
def instances(kind: str, count: int, *, feasible: bool, seed: int = 5) -> QPBatch:
    """So many of a kind, every second one badly scaled; they lack or leave 10 % to 200 %."""
    found = []
    for b in range(count):
        rng = np.random.default_rng([seed, list(KINDS).index(kind), b, int(feasible)])
        slack = 10.0 ** rng.uniform(-1, -0.3 if feasible else 0.3)
        qp = KINDS[kind](rng, slack if feasible else -slack)
        found.append(badly_scaled(qp, rng) if b % 2 else qp)
    return stack(found)


infeasible = partial(instances, feasible=False)
feasible = partial(instances, feasible=True)
