"""Stage programs: they cover the elimination, and repeat where stages repeat."""

import numpy as np
import pytest
import scipy.sparse as sp
from cases import STRUCTURE_FACTS, check_runs_cover_everything, kkt_of, light_of

from warpmpc import PatternError
from warpmpc.symbolic.elimination import StoredElimination, eliminate, product_terms
from warpmpc.symbolic.ordering import order, safe_stagewise
from warpmpc.symbolic.pattern import SparsePattern, build_kkt
from warpmpc.symbolic.stage_elimination import StageElimination, build_stage_elimination

# Runs of equal stages, and entries of L.
FACTS = {
    "linear": ([1, 1, 38, 1], 11242),
    "cartpole": ([1, 1, 98, 1], 3585),
    "quadrotor": ([1, 1, 38, 1], 9074),
    "quadrotor_obstacles": ([1, 1, 38, 1], 9565),
}

NONE = np.zeros(0, dtype=int)


def program_of(name: str) -> tuple[StageElimination, int]:
    structure, kkt = kkt_of(name)
    return build_stage_elimination(kkt, structure.stages, light_of(structure)), kkt.n_vars


@pytest.mark.parametrize("name", FACTS)
class TestBenchmarkSystems:
    def test_middle_stages_are_one_run(self, name):
        program, _ = program_of(name)
        counts, nnz = FACTS[name]
        assert [run.count for run in program.runs] == counts
        assert program.n_L == nnz

    def test_fill_is_near_that_of_amd(self, name):
        assert program_of(name)[0].n_L <= 1.06 * STRUCTURE_FACTS[name].nnz_L

    def test_runs_cover_everything_in_order(self, name):
        program, _ = program_of(name)
        check_runs_cover_everything(program)

    def test_templates_name_the_entries_of_L(self, name):
        """Walking the templates gives row and column of every entry of L, in program order."""
        program, _ = program_of(name)
        L = program.elimination.L_pattern
        pairs, begins = [], []
        for run in program.runs:
            begins += [run.node + k * run.template.n_nodes for k in range(run.count)]
        stages = [run.template for run in program.runs for _ in range(run.count)]
        for k, (begin, template) in enumerate(zip(begins, stages, strict=True)):
            for j, column in enumerate(template.columns):
                for target in column:
                    if target >= 0:
                        pairs.append((begin + target, begin + j))
                    else:
                        ahead = stages[k + 1].slots.index(~target)
                        pairs.append((begins[k + 1] + ahead, begin + j))
        wanted = np.stack([L.row_idx, L.col_idx], axis=1)[program.L_order]
        np.testing.assert_array_equal(pairs, wanted)

    def test_leaves_have_the_pivots_of_K(self, name):
        program, n_vars = program_of(name)
        touched = np.unique(program.elimination.L_pattern.row_idx)
        leaves = []
        for run in program.runs:
            t = run.template
            leaves += [t.is_leaf(i) for _ in range(run.count) for i in range(t.n_nodes)]
        is_row = program.node_order >= n_vars
        wanted = is_row & ~np.isin(np.arange(program.n_nodes), touched)
        np.testing.assert_array_equal(leaves, wanted)


def test_the_better_direction_is_taken():
    structure, kkt = kkt_of("linear")
    labels, light = structure.stages, light_of(structure)
    fill = [
        eliminate(kkt.K_pattern, safe_stagewise(kkt, s, light)).nnz_L for s in (labels, -labels)
    ]
    assert fill[1] < fill[0]
    for given in (labels, -labels):
        assert build_stage_elimination(kkt, given, light).n_L == fill[1]


def test_stages_that_couple_beyond_neighbours():
    A = sp.csc_matrix(np.array([[1.0, 0, 1.0], [0, 1.0, 1.0]]))
    kkt = build_kkt(*(SparsePattern.from_scipy(M) for M in (sp.csc_matrix(np.eye(3)), A)))
    with pytest.raises(PatternError, match=r'beyond their neighbours.*engine="sparse"'):
        build_stage_elimination(kkt, np.array([0, 1, 2, 0, 1]), NONE)


def test_one_stage_is_enough():
    A = sp.csc_matrix(np.ones((2, 3)))
    kkt = build_kkt(*(SparsePattern.from_scipy(M) for M in (sp.csc_matrix(np.eye(3)), A)))
    program = build_stage_elimination(kkt, np.zeros(5, dtype=int), NONE)
    assert [run.count for run in program.runs] == [1]
    assert program.carried == ()


@pytest.mark.parametrize("ordering", ["stage", "amd"])
def test_products_from_the_values_of_K(ordering):
    structure, kkt = kkt_of("cartpole")
    K, n = kkt.K_pattern, kkt.n_vars
    program: StoredElimination = build_stage_elimination(kkt, structure.stages, light_of(structure))
    if ordering == "amd":
        program = StoredElimination(
            eliminate(K, order(K, "amd")), np.random.default_rng(1).permutation(K.nnz)
        )
    rng = np.random.default_rng(0)
    values, vector = rng.normal(size=K.nnz), rng.normal(size=K.n_cols)
    dense = np.zeros(K.shape)
    dense[K.row_idx, K.col_idx] = dense[K.col_idx, K.row_idx] = values
    nodes, terms = product_terms(program, n)
    w, V = vector[program.node_order], values[program.K_order]
    for i, (begin, split, end, is_row) in enumerate(nodes.tolist()):
        old = int(program.node_order[i])
        assert is_row == (old >= n)
        first, second = (
            sum(V[e] * w[j] for e, j in terms[a:b].tolist())
            for a, b in ((begin, split), (split, end))
        )
        wanted = (0.0, dense[old, :n] @ vector[:n])
        if not is_row:
            wanted = (dense[old, :n] @ vector[:n], dense[old, n:] @ vector[n:])
        np.testing.assert_allclose((first, second), wanted, atol=1e-13)
    np.testing.assert_array_equal(V[program.diagonals], np.diag(dense)[program.node_order])
