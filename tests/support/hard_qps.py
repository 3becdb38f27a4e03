"""Quadratic programs of the kinds in the public collections (Maros-Meszaros, CUTEst), made here.

What makes them hard is what makes those hard: linear programs in all but name, costs and units many
powers of ten apart, degenerate vertices, nearly singular Hessians, long chains of differences.
`cases` lists them; each has patterns of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import casadi as ca
import numpy as np
import scipy.sparse as sp
from qp_cases import INF, QP

Rng = np.random.Generator


def _qp(P: sp.spmatrix | np.ndarray, q: np.ndarray, *parts: tuple) -> QP:
    """From rows in parts (matrix, lower, upper); zeros are no entries."""
    n = q.size
    P = sp.csc_matrix(sp.triu(sp.csc_matrix(P)))
    P.eliminate_zeros()
    A = sp.csc_matrix(sp.vstack([sp.csc_matrix(part[0]) for part in parts]))
    A.eliminate_zeros()
    sizes = [part[0].shape[0] for part in parts]
    lower, upper = (
        np.concatenate([np.broadcast_to(part[i], k) for part, k in zip(parts, sizes, strict=True)])
        for i in (1, 2)
    )
    assert A.shape == (lower.size, n)
    return QP(P, np.asarray(q, dtype=float), A, lower.astype(float), upper.astype(float))


def _differences(n: int, order: int) -> sp.csc_matrix:
    D = sp.identity(n, format="csc")
    for _ in range(order):
        D = D[1:] - D[:-1]
    return sp.csc_matrix(D)


def smoothing(rng: Rng, order: int, size: int = 50) -> QP:
    """LISWET, YAO: the nearest point whose differences of some order have one sign."""
    t = np.linspace(0, 1, size)
    shape = (np.sin(3 * t), t**3, np.sqrt(t), np.exp(t), -np.cos(5 * t))[order % 5]
    data = shape + 0.1 * rng.normal(size=size)
    return _qp(sp.identity(size), -data, (_differences(size, order), 0.0, INF))


def staircase(rng: Rng, size: int, step: float) -> QP:
    """POWELL20: neighbours forced apart, by steps that grow along the chain."""
    sign = (-1.0) ** np.arange(size - 1)
    rows = sp.diags([sign, -sign], [0, 1], shape=(size - 1, size))
    low = step * (np.arange(size - 1) + rng.uniform(0.5, 1.5, size - 1))
    return _qp(sp.identity(size), np.zeros(size), (rows, low, INF))


def transport(rng: Rng, scale: float, curvature: float) -> QP:
    """QAFIRO, QSHARE: a transport problem with prices in large units and hardly any Hessian."""
    sources, sinks = 5, 7
    n = sources * sinks
    out = sp.kron(sp.identity(sources), np.ones((1, sinks)))
    into = sp.kron(np.ones((1, sources)), sp.identity(sinks))
    demand = rng.uniform(10, 100, sinks)
    supply = rng.uniform(0.5, 1.5, sources)
    supply *= 1.2 * demand.sum() / supply.sum()
    P = curvature * sp.diags((rng.random(n) < 0.3) * rng.uniform(0.1, 1, n))
    q = scale * rng.uniform(1, 10, n)
    return _qp(P, q, (out, -INF, supply), (into, demand, INF), (sp.identity(n), 0.0, INF))


def blend(rng: Rng, scale: float) -> QP:
    """QPCBLEND, QADLITTL: degenerate recipes, many rows active at the solution."""
    n, m = 30, 20
    A = np.where(rng.random((m, n)) < 0.3, rng.integers(-3, 4, (m, n)), 0).astype(float)
    x = np.where(rng.random(n) < 0.5, rng.integers(1, 5, n), 0).astype(float)
    price = rng.uniform(0, 5, m) * (rng.random(m) < 0.5)
    reduced = np.where(x == 0, rng.uniform(0, 3, n) * (rng.random(n) < 0.7), 0)
    low = A @ x  # all rows are active at x, so multipliers are not unique
    diagonal = (rng.random(n) < 0.2) * rng.uniform(0.01, 1, n)
    q = scale * (A.T @ price + reduced - diagonal * x)
    return _qp(scale * sp.diags(diagonal), q, (A, low, INF), (sp.identity(n), 0.0, INF))


def matrix_balance(rng: Rng, scale: float) -> QP:
    """HUES-MOD, HUESTIS: few rows with large entries, weights far apart."""
    n = 40
    A = np.vstack([rng.uniform(0.5, 1, n) * scale, np.linspace(0.1, 2, n) * scale])
    x = rng.uniform(0, 2, n)
    weight = 10.0 ** rng.uniform(-2, 2, n)
    return _qp(sp.diags(weight), np.zeros(n), (A, A @ x, A @ x), (sp.identity(n), 0.0, INF))


def structured(rng: Rng, rows: int, condition: float) -> QP:
    """CVXQP: a sparse Hessian with weights that grow along it, sparse equalities, a box."""
    n = 40
    i = np.arange(n)
    weight = np.linspace(1, condition, n)
    parts = sum(
        sp.csc_matrix((np.ones(n), (i, (a * i + b) % n)), shape=(n, n))
        for a, b in ((1, 0), (2, 1), (3, 2))
    )
    P = parts.T @ sp.diags(weight) @ parts
    B = sp.csc_matrix(
        (
            np.ones(3 * rows),
            (np.tile(i[:rows], 3), np.r_[i[:rows], (4 * i[:rows] + 1) % n, (5 * i[:rows] + 2) % n]),
        ),
        shape=(rows, n),
    )
    b = B @ rng.uniform(0.5, 2, n)
    return _qp(P, rng.normal(size=n), (B, b, b), (sp.identity(n), 0.1, 10.0))


def simplex_fit(rng: Rng, scale: float, rank: int) -> QP:
    """DUAL, PRIMAL: a Gram matrix on the simplex, in small or large units."""
    n = 40
    root = rng.normal(size=(n, rank))
    P = scale * (root @ root.T)
    q = -scale * 0.1 * rng.uniform(size=n)
    return _qp(P, q, (np.ones((1, n)), 1.0, 1.0), (sp.identity(n), 0.0, 1.0))


def many_rows(rng: Rng, scale: float) -> QP:
    """DUALC, KSIP: few variables, many rows, nearly parallel ones among them."""
    n, m = 8, 120
    t = np.linspace(0, 1, m)[:, None]
    A = t ** np.arange(n)
    bound = np.tan(np.ravel(t)) + 0.05 * rng.uniform(size=m)
    P = scale * sp.diags(1.0 / np.arange(1, n + 1))
    return _qp(P, scale / np.arange(1, n + 1), (A, bound, INF))


def grid_flow(rng: Rng, scale: float) -> QP:
    """AUG2D: a flow on a grid, some edges without a weight."""
    k = 5
    edges = [(i * k + j, i * k + j + 1) for i in range(k) for j in range(k - 1)]
    edges += [(i * k + j, i * k + j + k) for i in range(k - 1) for j in range(k)]
    n = len(edges)
    B = np.zeros((k * k, n))
    for e, (a, b) in enumerate(edges):
        B[a, e], B[b, e] = 1.0, -1.0
    supply = B @ rng.uniform(0, 2, n)
    weight = np.where(rng.random(n) < 0.8, 1.0, 0.0)
    return _qp(
        scale * sp.diags(weight),
        scale * 0.1 * rng.uniform(size=n),
        (B, supply, supply),
        (sp.identity(n), 0.0, INF),
    )


def control(rng: Rng, weight: float) -> QP:
    """UBH1, STADAT: a chain of integrators with cheap inputs and bounds on states."""
    steps, h = 15, 1 / 15
    n = 3 * (steps + 1)
    rows = np.zeros((2 * steps, n))
    for k in range(steps):
        now, after = 3 * k, 3 * (k + 1)
        rows[2 * k, [after, now, now + 1]] = 1.0, -1.0, -h
        rows[2 * k + 1, [after + 1, now + 1, now + 2]] = 1.0, -1.0, -h
    start = np.zeros((2, n))
    start[0, 0] = start[1, 1] = 1.0
    at = np.array([rng.uniform(0.5, 1), rng.normal()])
    box = sp.identity(n)
    high = np.tile([2.0, 3.0, 10.0], steps + 1)
    diagonal = np.tile([1.0, 0.0, weight], steps + 1)
    return _qp(
        sp.diags(diagonal), np.zeros(n), (rows, 0.0, 0.0), (start, at, at), (box, -high, high)
    )


def nearly_singular(rng: Rng, condition: float) -> QP:
    """HS268, GOULDQP: a Hessian whose eigenvalues are far apart, few rows."""
    n = 10
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    P = basis @ np.diag(np.logspace(0, -np.log10(condition), n)) @ basis.T
    P = (P + P.T) / 2
    x = rng.normal(size=n)
    A = rng.normal(size=(5, n))
    return _qp(1e3 * P, -1e3 * P @ x, (A, A @ x - rng.uniform(0, 1, 5), INF))


def piecewise(rng: Rng, scale: float) -> QP:
    """LP with an optimal face and costs in large units: absolute deviations of a fit."""
    n, m = 4, 25
    data = np.vander(np.linspace(-1, 1, m), n)
    b = data @ rng.normal(size=n) + rng.standard_t(2, size=m)
    eye = np.eye(m)
    q = np.concatenate([np.zeros(n), scale * rng.uniform(0.5, 2, m)])
    rows = np.vstack([np.hstack([data, -eye]), np.hstack([-data, -eye])])
    return _qp(sp.csc_matrix((n + m, n + m)), q, (rows, -INF, np.concatenate([b, -b])))


def other_units(rng: Rng, of: QP, of_x: float, of_rows: float, cost: float) -> QP:
    """The same problem in other units of variables, rows and cost, a little different in each.

    Cheap variables in small units, or rows in large units, satisfy absolute tolerances of residuals
    where the cost is far off.
    """
    units = of_x * 10.0 ** rng.uniform(-0.5, 0.5, of.q.size)
    rows = of_rows * 10.0 ** rng.uniform(-0.5, 0.5, of.lower.size)
    D, E = sp.diags(units), sp.diags(rows)
    P, A = sp.csc_matrix(cost * D @ of.P @ D), sp.csc_matrix(E @ of.A @ D)
    return QP(P, cost * units * of.q, A, rows * of.lower, rows * of.upper)


KINDS: dict[str, tuple[Callable[..., QP], list[tuple]]] = {
    "smoothing": (smoothing, [(1,), (2,), (3,), (4,), (2, 100), (3, 100)]),
    "staircase": (staircase, [(10, 1.0), (30, 1.0), (40, 10.0)]),
    "transport": (transport, [(1, 0), (1, 1e-3), (100, 0), (100, 1), (1e4, 1), (1e-2, 0)]),
    "blend": (blend, [(1,), (100,), (1e4,), (1e-2,)]),
    "matrix_balance": (matrix_balance, [(1,), (30,), (1e3,)]),
    "structured": (structured, [(10, 40), (20, 40), (30, 1e3), (10, 1e4)]),
    "simplex_fit": (simplex_fit, [(30, 5), (1e-3, 40), (1e3, 3), (1, 40), (1e4, 10)]),
    "many_rows": (many_rows, [(1,), (100,), (1e4,)]),
    "grid_flow": (grid_flow, [(1,), (100,), (1e-2,)]),
    "control": (control, [(1e-2,), (1e-4,), (1e-6,)]),
    "nearly_singular": (nearly_singular, [(1e2,), (1e4,), (1e6,), (1e8,)]),
    "piecewise": (piecewise, [(1,), (100,), (1e4,), (1e-2,)]),
}
# Of variables, rows and cost.
UNITS = [(1, 1, 1), (1e-2, 1, 1e-2), (1, 1e-3, 1), (1e-3, 1, 1e-2), (1, 1e-3, 1e2)]
RESCALED = (
    "smoothing",
    "transport",
    "blend",
    "structured",
    "simplex_fit",
    "grid_flow",
    "piecewise",
)


def _cases() -> Iterator[tuple[str, QP]]:
    for k, (kind, (build, variants)) in enumerate(KINDS.items()):
        for i, variant in enumerate(variants):
            yield f"{kind}_{i}", build(np.random.default_rng([3, k, i]), *variant)
        if kind in RESCALED:
            for i, units in enumerate(UNITS):
                rng = np.random.default_rng([4, k, i])
                yield f"{kind}_units_{i}", other_units(rng, build(rng, *variants[0]), *units)


@cache
def cases() -> dict[str, QP]:
    """All of them, by name."""
    return dict(_cases())


def exact_objective(qp: QP) -> float:
    """The optimal cost, by an interior-point method in float64 (Ipopt)."""
    P, A = qp.full_P, qp.A
    shape = {"h": ca.DM(P).sparsity(), "a": ca.DM(A).sparsity()}
    quiet = {"print_level": 0, "sb": "yes", "tol": 1e-10, "max_iter": 1000}
    options = {"nlpsol": "ipopt", "nlpsol_options": {"ipopt": quiet, "print_time": False}}
    solver = ca.conic("exact", "nlpsol", shape, options)
    found = solver(h=ca.DM(P), g=qp.q, a=ca.DM(A), lba=qp.lower, uba=qp.upper)
    assert solver.stats()["success"]
    return float(found["cost"])
