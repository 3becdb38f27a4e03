"""The KKT matrix of a QP and the origin of its values.

Reads: patterns of P (upper or full) and A.  Produces: the upper pattern of
K = [[P + sigma I, A'], [A, -1/rho]] and the maps from P_vals, A_vals, sigma and rho into K_vals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpmpc._errors import PatternError
from warpmpc.symbolic.pattern import IntArray, SparsePattern


@dataclass(frozen=True, eq=False)
class KKTPattern:
    """Upper pattern of K and scatter maps into its values.

    Attributes:
        K_pattern: Upper triangle of K, all diagonal entries present.
        n_vars: Number of variables (leading block).
        n_cons: Number of constraint rows (trailing block).
        P_to_K: Position in K of each stored upper entry of P.
        A_to_K: Position in K of each entry of A (A is column-major).
        sigma_to_K: Position in K of the leading diagonal.
        rho_to_K: Position in K of the trailing diagonal.
    """

    K_pattern: SparsePattern
    n_vars: int
    n_cons: int
    P_to_K: IntArray
    A_to_K: IntArray
    sigma_to_K: IntArray
    rho_to_K: IntArray


def build_kkt(P_pattern: SparsePattern, A_pattern: SparsePattern) -> KKTPattern:
    """Assembles the KKT pattern; only the upper triangle of P is read."""
    n_vars, n_cons = P_pattern.n_cols, A_pattern.n_rows
    if P_pattern.n_rows != n_vars:
        raise PatternError(f"P must be square, got shape {P_pattern.shape}.")
    if A_pattern.n_cols != n_vars:
        raise PatternError(f"A has {A_pattern.n_cols} columns but P has {n_vars}; they must match.")
    P_upper, _ = P_pattern.upper()
    n_kkt = n_vars + n_cons
    diagonal = np.arange(n_kkt)
    off = P_upper.row_idx != P_upper.col_idx
    rows = np.concatenate([P_upper.row_idx[off], A_pattern.col_idx, diagonal])
    cols = np.concatenate([P_upper.col_idx[off], A_pattern.row_idx + n_vars, diagonal])
    K_pattern = SparsePattern.from_coo(rows, cols, (n_kkt, n_kkt))
    on_diagonal = K_pattern.positions(diagonal, diagonal)
    return KKTPattern(
        K_pattern=K_pattern,
        n_vars=n_vars,
        n_cons=n_cons,
        P_to_K=K_pattern.positions(P_upper.row_idx, P_upper.col_idx),
        A_to_K=K_pattern.positions(A_pattern.col_idx, A_pattern.row_idx + n_vars),
        sigma_to_K=on_diagonal[:n_vars],
        rho_to_K=on_diagonal[n_vars:],
    )
