"""Small systems of linear equations: Cholesky factors, triangular systems, general systems.

General systems are solved by CasADi's symbolic QR factorisation and not by JAX's LU, because the
choice of pivots depends on values and an expression cannot.
"""

from __future__ import annotations

import casadi as ca
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from warpmpc.problem.jaxpr.values import (
    Equation,
    RefusalError,
    Value,
    from_matrices,
    matrices_of,
)


def _cholesky(eqn: Equation, values: list[Value]) -> Value:
    # JAX reads the lower triangle only.
    lower = [ca.tril(matrix) for matrix in matrices_of(values[0])]
    factors = [ca.chol(ca.tril2symm(triangle)).T for triangle in lower]
    return from_matrices(factors, values[0].shape)


def _triangular_solve(eqn: Equation, values: list[Value]) -> Value:
    """Solves op(a) x = b, or x op(a) = b, with one triangle of a."""
    given = eqn.params
    solutions: list[ca.SX] = []
    for matrix, right in zip(*map(matrices_of, values), strict=True):
        triangle = ca.tril(matrix) if given["lower"] else ca.triu(matrix)
        if given["unit_diagonal"]:
            triangle += ca.diag(1 - ca.diag(triangle))
        # CasADi substitutes where the sparsity is triangular.
        if given["left_side"]:
            system = triangle.T if given["transpose_a"] else triangle
            solutions.append(ca.solve(system, right))
        else:
            system = triangle if given["transpose_a"] else triangle.T
            solutions.append(ca.solve(system, right.T).T)
    return from_matrices(solutions, values[1].shape)


def solve_blocks(matrix: ca.SX, right: ca.SX) -> ca.SX:
    """Solves a system that may consist of independent ones; equal ones are factorised once.

    Several right-hand sides occur in a jaxpr as one large system with a copy of the matrix for
    each of them.
    """
    matrix = ca.sparsify(matrix)
    pattern = matrix.sparsity()
    if ca.sprank(pattern) < matrix.shape[0]:
        raise RefusalError("its matrix is singular whatever the arguments are")
    rows, columns = np.array(pattern.get_triplet(), dtype=int).reshape(2, -1)
    n = matrix.shape[0]
    graph = sp.coo_matrix((np.ones(rows.size), (rows, n + columns)), shape=(2 * n, 2 * n))
    count, label = connected_components(graph, directed=False)
    groups: list[tuple[ca.SX, list[list[int]], list[list[int]]]] = []
    for block in range(count):
        i, j = (np.flatnonzero(side == block).tolist() for side in (label[:n], label[n:]))
        inner = matrix[i, j]
        same = next((group for group in groups if _equal(group[0], inner)), None)
        if same is None:
            groups.append((inner, [i], [j]))
        else:
            same[1].append(i)
            same[2].append(j)
    solution = ca.SX.zeros(n, 1)
    for inner, at, to in groups:
        found = ca.solve(inner, ca.horzcat(*(right[i] for i in at)))
        for number, j in enumerate(to):
            solution[j] = found[:, number]
    return solution


def _equal(first: ca.SX, second: ca.SX) -> bool:
    """Whether two matrices hold the same nodes."""
    return first.sparsity() == second.sparsity() and ca.is_equal(first, second, 0)


RULES = {"cholesky": _cholesky, "triangular_solve": _triangular_solve}
