"""Tables shared by the tests: benchmark structures, named K patterns, quasi-definite values.

Adding a row to `STRUCTURE_FACTS` or `PATTERNS` adds its tests.  Nothing here is random: every draw
has a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import scipy.sparse as sp
from hypothesis import settings
from hypothesis import strategies as st

from warpmpc.symbolic.elimination import Elimination, eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.pattern import KKTPattern, SparsePattern, build_kkt
from warpmpc.symbolic.stage_elimination import StageElimination
from warpmpc.systems import patterns

PROPERTY = settings(deadline=None, derandomize=True, database=None, max_examples=40)
FEW = settings(PROPERTY, max_examples=12)


@dataclass(frozen=True)
class StructureFacts:
    """One line of the table in PROBLEMS.md; `nnz_K` is full and includes sigma-only diagonals."""

    n_vars: int
    n_cons: int
    nnz_P: int
    nnz_A: int
    nnz_K: int
    nnz_L: int
    levels: int


STRUCTURE_FACTS: dict[str, StructureFacts] = {
    "linear": StructureFacts(652, 1144, 447, 4104, 10004, 10644, 310),
    "linear_adjoint": StructureFacts(1669, 1669, 1669, 8926, 21190, 45534, 547),
    "ldl_benchmark": StructureFacts(396, 684, 396, 2076, 5232, 5732, 287),
    "cartpole": StructureFacts(505, 606, 505, 1806, 4723, 3436, 496),
    "quadrotor": StructureFacts(656, 656, 656, 2896, 7104, 11687, 180),
    "quadrotor_obstacles": StructureFacts(656, 820, 656, 3224, 7924, 10850, 295),
}
STRUCTURE_NAMES = sorted(STRUCTURE_FACTS)


def pattern_of(dense: np.ndarray) -> SparsePattern:
    """Pattern of the nonzeros of a dense matrix."""
    rows, cols = np.nonzero(dense)
    return SparsePattern.from_coo(rows, cols, (dense.shape[0], dense.shape[1]))


@cache
def kkt_of(name: str) -> tuple[patterns.KKTStructure, KKTPattern]:
    """Structure and KKT pattern of a benchmark system at its full horizon."""
    given = patterns.structure(name)
    P_pattern, A_pattern = SparsePattern.from_scipy(given.P), SparsePattern.from_scipy(given.A)
    return given, build_kkt(P_pattern, A_pattern)


def light_of(structure: patterns.KKTStructure) -> np.ndarray:
    """Variables whose diagonal entry of P is not stored."""
    return np.flatnonzero(sp.csc_matrix(structure.P).diagonal() == 0)


@cache
def eliminated(name: str, ordering: str) -> Elimination:
    """Elimination of a benchmark system under a named ordering."""
    given, kkt = kkt_of(name)
    return eliminate(kkt.K_pattern, order(kkt.K_pattern, ordering, given.stages))


@dataclass(frozen=True, eq=False)
class KCase:
    """A quasi-definite pattern: upper triangle of K (ones) and the sign of each pivot."""

    K: sp.csc_matrix
    signs: np.ndarray
    stages: np.ndarray | None = None

    @property
    def n(self) -> int:
        return int(self.signs.size)

    @property
    def pattern(self) -> SparsePattern:
        return SparsePattern.from_scipy(self.K)


def _case(present: np.ndarray, n_vars: int, stages: np.ndarray | None = None) -> KCase:
    """Case from a dense boolean matrix (either triangle counts), diagonal added."""
    n = present.shape[0]
    upper = np.triu(present | present.T) | np.eye(n, dtype=bool)
    signs = np.where(np.arange(n) < n_vars, 1, -1)
    return KCase(sp.csc_matrix(upper.astype(float)), signs, stages)


def diagonal(n: int) -> KCase:
    return _case(np.zeros((n, n), dtype=bool), (n + 1) // 2)


def arrow(n: int, hub: int) -> KCase:
    """One node tied to all others: hub 0 fills everything in natural order, hub n - 1 nothing."""
    present = np.zeros((n, n), dtype=bool)
    present[hub] = True
    return _case(present, (n + 1) // 2)


def random_case(n: int, density: float, seed: int) -> KCase:
    """Off-diagonal entries present with probability `density`; 60 % of the pivots positive."""
    rng = np.random.default_rng(seed)
    return _case(rng.random((n, n)) < density, -(-3 * n // 5))


def block_banded(n_blocks: int, size: int) -> KCase:
    """Dense diagonal blocks, each coupled densely to the next one."""
    block = np.arange(n_blocks * size) // size
    return _case(np.abs(block[:, None] - block) <= 1, n_blocks * size * 2 // 3, stages=block)


def mpc(build: Callable[[int], patterns.KKTStructure], horizon: int) -> KCase:
    """KKT matrix of a benchmark system at a short horizon."""
    given = build(horizon)
    signs = np.repeat([1, -1], [given.var_stage.size, given.con_stage.size])
    return KCase(SparsePattern.from_scipy(given.K).to_scipy(), signs, given.stages)


PATTERNS: dict[str, Callable[[], KCase]] = {
    "one_column": partial(diagonal, 1),
    "diagonal": partial(diagonal, 40),
    "arrow_first": partial(arrow, 60, 0),
    "arrow_last": partial(arrow, 60, 59),
    "dense": partial(random_case, 40, 1.0, 0),
    "random_2": partial(random_case, 2, 1.0, 1),
    "random_3": partial(random_case, 3, 0.5, 2),
    "random_10": partial(random_case, 10, 0.1, 3),
    "random_33": partial(random_case, 33, 0.1, 4),
    "random_64": partial(random_case, 64, 0.03, 5),
    "random_120": partial(random_case, 120, 0.01, 6),
    "random_120_half": partial(random_case, 120, 0.5, 7),
    "random_300_sparse": partial(random_case, 300, 0.0025, 8),
    "random_300": partial(random_case, 300, 0.01, 9),
    "block_banded": partial(block_banded, 12, 5),
    "cartpole_6": partial(mpc, patterns.cartpole, 6),
    "quadrotor_4": partial(mpc, patterns.quadrotor, 4),
    "quadrotor_obstacles_3": partial(mpc, patterns.quadrotor_obstacles, 3),
    "linear_3": partial(mpc, patterns.linear, 3),
    "linear_adjoint_2": partial(mpc, patterns.linear_adjoint, 2),
    "ldl_benchmark_4": partial(mpc, patterns.ldl_benchmark, 4),
}
PATTERN_NAMES = list(PATTERNS)

# 0.5 % to dense: a position is present if it is drawn in either triangle, hence half the density.
DENSITIES = (0.0025, 0.01, 0.05, 0.2, 1.0)


@st.composite
def random_cases(draw: st.DrawFn, max_n: int = 300, max_entries: int = 20_000) -> KCase:
    """Random quasi-definite patterns of sizes 1 to `max_n`, densities 0.5 % to dense.

    Sizes are cut where the upper triangle would exceed `max_entries`, to keep runs short.
    """
    n = draw(st.one_of(st.integers(1, min(12, max_n)), st.integers(1, max_n)))
    density = draw(st.sampled_from(DENSITIES))
    n = min(n, max(12, int(np.sqrt(max_entries / density))))
    return random_case(n, density, draw(st.integers(0, 2**16)))


def quasi_definite(
    case: str | KCase, seed: int = 0, batch: int = 1
) -> tuple[sp.csc_matrix, np.ndarray]:
    """Upper pattern of K (ones) and values ``[batch, nnz]`` in its column-major order, float64.

    K is [[H, A'], [A, -G]] up to a permutation: entries between pivots of equal sign form H and G,
    which are strictly diagonally dominant; the others form A.  Entries are scaled by the degrees of
    their nodes, so the norm of A stays near one and K is well conditioned at every density.
    """
    if isinstance(case, str):
        case = PATTERNS[case]()
    pattern = case.pattern
    rows, cols, n = pattern.row_idx, pattern.col_idx, case.n
    off = rows != cols
    i, j = rows[off], cols[off]
    degree = np.bincount(np.concatenate([i, j]), minlength=n)
    rng = np.random.default_rng(seed)
    values = np.empty((batch, pattern.nnz))
    values[:, off] = rng.normal(size=(batch, i.size)) / np.sqrt(np.maximum(degree[i], degree[j]))
    same = case.signs[i] == case.signs[j]
    dominance = np.zeros((batch, n))
    for end in (i[same], j[same]):
        np.add.at(dominance.T, end, np.abs(values[:, off][:, same]).T)
    pivots = case.signs * (rng.uniform(1.0, 2.0, size=(batch, n)) + dominance)
    values[:, ~off] = pivots[:, rows[~off]]
    return case.K.copy(), values


def check_runs_cover_everything(program: StageElimination) -> None:
    """Runs follow one another in nodes, in L and in K, from the first entry to the last."""
    node = at_L = at_K = 0
    for run in program.runs:
        assert (run.node, run.L, run.K) == (node, at_L, at_K)
        node += run.count * run.template.n_nodes
        at_L += run.count * run.template.n_L
        at_K += run.count * run.template.n_K
    assert (node, at_L, at_K) == (program.n_nodes, program.n_L, program.K_order.size)
