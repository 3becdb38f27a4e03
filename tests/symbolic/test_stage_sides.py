"""Elimination from both ends: two chains that touch only in the middle, and no more fill."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from cases import check_runs_cover_everything, kkt_of, light_of

from warpmpc import PatternError
from warpmpc.symbolic.ordering import holding_rows
from warpmpc.symbolic.pattern import KKTPattern, SparsePattern, build_kkt
from warpmpc.symbolic.stage_elimination import (
    StageElimination,
    build_stage_elimination,
    build_two_sided_elimination,
)
from warpmpc.systems import patterns

# Runs of the two chains, and entries of L.
FACTS = {
    "linear": ([[1, 19], [1, 1, 18, 1]], 11224),
    "cartpole": ([[1, 1, 48], [1, 1, 48, 1]], 3583),
    "quadrotor": ([[1, 1, 18], [1, 1, 18, 1]], 9041),
    "quadrotor_obstacles": ([[1, 1, 18], [1, 1, 18, 1]], 9557),
}
NONE = np.zeros(0, dtype=int)


def kkt_from(P: np.ndarray, A: np.ndarray) -> KKTPattern:
    return build_kkt(*(SparsePattern.from_scipy(sp.csc_matrix(M)) for M in (np.triu(P), A)))


def chain_of_blocks(
    sizes: list[int], rows: list[int], *, coupled: bool = True
) -> tuple[KKTPattern, np.ndarray]:
    """Stages of any sizes; the rows of a stage hold it and the next one, as cost may do."""
    stage = np.repeat(np.arange(len(sizes)), sizes)
    con = np.repeat(np.arange(len(rows)), rows)
    P = np.abs(stage[:, None] - stage) <= int(coupled)
    A = (stage == con[:, None]) | (stage == con[:, None] + 1)
    return kkt_from(P, A), np.concatenate([stage, con])


def built(name: str) -> tuple[StageElimination, KKTPattern, np.ndarray]:
    """Program, KKT pattern and light variables of a problem of `PROBLEMS`."""
    if name in FACTS:
        structure, kkt = kkt_of(name)
        stages, light = structure.stages, light_of(structure)
    elif name in SHORT:
        structure = SHORT[name]()
        kkt = build_kkt(*(SparsePattern.from_scipy(M) for M in (structure.P, structure.A)))
        stages, light = structure.stages, light_of(structure)
    else:
        kkt, stages = BLOCKS[name]()
        light = np.arange(0, kkt.n_vars, 3)
    return build_two_sided_elimination(kkt, stages, light), kkt, light


SHORT = {f"cartpole_{n}": partial(patterns.cartpole, n) for n in (2, 3, 4)}
BLOCKS = {
    "three": partial(chain_of_blocks, [2, 3, 2], [1, 2, 1]),
    "uneven": partial(chain_of_blocks, [1, 4, 2, 5, 3, 1], [3, 1, 0, 2, 4, 2]),
    "without_rows": partial(chain_of_blocks, [2, 2, 2, 2], [0, 0, 0, 0]),
}
PROBLEMS = [*FACTS, *SHORT, *BLOCKS]


@pytest.mark.parametrize("name", FACTS)
def test_no_more_fill_than_with_one_side(name):
    program, kkt, light = built(name)
    structure, _ = kkt_of(name)
    counts, nnz = FACTS[name]
    assert [[run.count for run in chain] for chain in program.chains] == counts
    assert program.n_L == nnz
    one = build_stage_elimination(kkt, structure.stages, light)
    assert program.n_L <= one.n_L


@pytest.mark.parametrize("name", PROBLEMS)
class TestChains:
    def test_runs_cover_everything_in_order(self, name):
        program, _, _ = built(name)
        check_runs_cover_everything(program)
        assert np.unique(program.node_order).size == program.n_nodes

    def test_halves_touch_only_in_the_last_stage(self, name):
        program, _, _ = built(name)
        L, join = program.elimination.L_pattern, program.chains[1][-1]
        assert join.count == 1
        assert join.template.joins
        assert not any(run.template.joins for run in program.runs[:-1])
        crosses = (L.col_idx < program.split) & (L.row_idx >= program.split)
        assert (L.row_idx[crosses] >= join.node).all()

    def test_templates_name_the_entries_of_L(self, name):
        program, _, _ = built(name)
        L, pairs = program.elimination.L_pattern, []
        join = program.chains[1][-1]
        for chain in program.chains:
            stages = [
                (run.node + k * run.template.n_nodes, run.template)
                for run in chain
                for k in range(run.count)
            ]
            for k, (begin, template) in enumerate(stages):
                if k + 1 < len(stages):
                    after, slots = stages[k + 1][0], stages[k + 1][1].slots
                else:
                    after, slots = join.node, join.template.joins
                pairs += [
                    (begin + t if t >= 0 else after + slots.index(~t), begin + j)
                    for j, column in enumerate(template.columns)
                    for t in column
                ]
        wanted = np.stack([L.row_idx, L.col_idx], axis=1)[program.L_order]
        np.testing.assert_array_equal(pairs, wanted)

    def test_leaves_have_the_pivots_of_K(self, name):
        program, kkt, _ = built(name)
        touched = np.unique(program.elimination.L_pattern.row_idx)
        leaves = [
            run.template.is_leaf(i)
            for run in program.runs
            for _ in range(run.count)
            for i in range(run.template.n_nodes)
        ]
        is_row = program.node_order >= kkt.n_vars
        wanted = is_row & ~np.isin(np.arange(program.n_nodes), touched)
        np.testing.assert_array_equal(leaves, wanted)


@pytest.mark.parametrize("name", [*FACTS, *SHORT])
def test_weak_variables_wait_for_the_rows_of_their_stage(name):
    _, kkt, _ = built(name)
    structure = kkt_of(name)[0] if name in FACTS else SHORT[name]()
    light = np.arange(0, kkt.n_vars, 2)
    program = build_two_sided_elimination(kkt, structure.stages, light)
    rows, holds = holding_rows(kkt)
    first = np.array(
        [run.node + k * run.template.n_nodes for run in program.runs for k in range(run.count)]
    )
    position = np.empty(program.n_nodes, dtype=int)
    position[program.node_order] = np.arange(program.n_nodes)
    stage = np.searchsorted(first, position, side="right")
    waited = 0
    for j in light:
        holding = rows[holds[:, [j]].nonzero()[0]]
        here = holding[stage[holding] == stage[j]]
        assert (position[here] < position[j]).all()
        waited += here.size > 0
    assert waited


@pytest.mark.parametrize("stretch", [1, 3, -2])
def test_labels_need_be_neither_consecutive_nor_ascending(stretch):
    kkt, stages = BLOCKS["uneven"]()
    program = build_two_sided_elimination(kkt, stretch * stages - 7, NONE)
    assert program.n_L == build_two_sided_elimination(kkt, stages, NONE).n_L


def test_rows_may_have_the_label_of_either_stage():
    structure, kkt = kkt_of("cartpole")
    n, con = kkt.n_vars, structure.con_stage.copy()
    A = sp.csr_matrix(structure.A)
    couples = np.diff(A.indptr) > 2
    con[couples] = np.minimum(con[couples] + 1, con.max())
    other = build_two_sided_elimination(kkt, np.concatenate([structure.stages[:n], con]), NONE)
    assert other.n_L <= 1.01 * FACTS["cartpole"][1]


@pytest.mark.parametrize("n_stages", [1, 2])
def test_too_few_stages(n_stages):
    kkt, stages = chain_of_blocks([2] * n_stages, [1] * n_stages)
    with pytest.raises(PatternError, match=f"at least 3 stages, these are {n_stages}; use sides=1"):
        build_two_sided_elimination(kkt, stages, NONE)


def test_stages_that_couple_beyond_neighbours():
    kkt = kkt_from(np.eye(4), np.array([[1.0, 0, 0, 1.0], [0, 1.0, 1.0, 0]]))
    with pytest.raises(PatternError, match="beyond their neighbours"):
        build_two_sided_elimination(kkt, np.array([0, 1, 2, 3, 0, 1]), NONE)


def test_a_half_without_stages():
    """All of stage 0 are rows that hold variables of stage 1, and count to it."""
    kkt = kkt_from(np.eye(2), np.eye(2)[[0, 0]])
    with pytest.raises(PatternError, match="One half of the stages has nothing to eliminate"):
        build_two_sided_elimination(kkt, np.array([1, 2, 0, 0]), NONE)


def test_rows_are_handed_on_unless_that_fills_much_more():
    """Two rows between stages of six variables; then six rows between stages of two."""
    for size, rows, is_row in ((6, 2, True), (2, 6, False)):
        kkt, stages = chain_of_blocks([size] * 7, [rows] * 6, coupled=False)
        program = build_two_sided_elimination(kkt, stages, NONE)
        join = program.chains[1][-1].template
        entered = [i for i, slot in enumerate(join.joins) if slot >= 0]
        assert entered
        assert {join.is_row[i] for i in entered} == {is_row}
