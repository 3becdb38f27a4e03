"""The windowed solve: streams are executed by a NumPy interpreter, slots are counted naively."""

import numpy as np
import pytest
from cases import FEW, PATTERN_NAMES, PATTERNS, KCase, eliminated, quasi_definite, random_cases
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_pattern, most_alive, relative_residuals, run_updates, run_window

from warpmpc._errors import SettingsError
from warpmpc.engines.ldl import window as window_module
from warpmpc.engines.ldl.window import CHUNK, Sweep, WindowStream, build_window
from warpmpc.symbolic.elimination import Elimination, eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.pattern import invert

SOLVE_RESIDUAL = 1e-12
BUDGETS = [1, 3, 16, 256]
BLOCKS = [1, 8, 32]


def eliminated_case(case: KCase, ordering: str = "amd") -> Elimination:
    return eliminate(case.pattern, order(case.pattern, ordering, case.stages))


def build(elimination: Elimination, segments: int, block: int = 32) -> WindowStream:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_module, "BLOCK", block)
        return build_window(elimination, segments)


def check_solution(window: WindowStream, elimination: Elimination, case: KCase) -> None:
    K, values = quasi_definite(case, seed=1)
    L, D = run_updates(elimination, values[0])
    D_inv = np.empty(case.n)
    D_inv[elimination.perm] = 1 / D
    rhs = np.random.default_rng(2).normal(size=(1, case.n))
    solution = run_window(window, np.concatenate([L, D_inv]), rhs[0])
    assert np.isfinite(solution).all(), "a slot was read before it was written"
    assert relative_residuals(K, values, solution[None], rhs)[0] < SOLVE_RESIDUAL


def item_starts(sweep: Sweep) -> np.ndarray:
    """First step of every item."""
    return np.concatenate(
        [first + steps * np.arange(n_items) for n_items, steps, first in sweep.segments]
    )


def check_layout(sweep: Sweep, n: int, segments: int) -> None:
    n_items, steps, first = sweep.segments.T
    assert len(sweep.segments) <= segments
    assert n_items.min() > 0
    assert n_items.sum() == n
    assert np.all(np.isin(steps, [1, 2, 4]) | (steps % CHUNK == 0))
    batch = np.minimum(steps, CHUNK)
    assert np.all(first % batch == 0), "a batch of steps straddles two chunks"
    # Segments follow each other, with gaps no larger than the alignment needs.
    gap = first[1:] - (first + n_items * steps)[:-1]
    assert first[0] == 0
    assert np.all((gap >= 0) & (gap < batch[1:]))
    n_chunks = -(-(first[-1] + n_items[-1] * steps[-1]) // CHUNK)
    assert sweep.rows.shape == sweep.slots.shape == (n_chunks, CHUNK)
    assert sweep.brings.shape == (n_chunks,)
    # Whole chunks of items and one more, all copies of the last.
    assert sweep.items.shape == ((-(-n // CHUNK) + 1) * CHUNK, 2)
    assert np.all(sweep.items[n:] == sweep.items[n - 1])
    brings = np.zeros(n_chunks, dtype=int)
    np.add.at(brings, item_starts(sweep)[::CHUNK] // CHUNK, 1)
    np.testing.assert_array_equal(sweep.brings, brings)
    for table in (sweep.segments, sweep.items, sweep.rows, sweep.slots, sweep.brings):
        assert table.dtype == np.int32


def check_content(window: WindowStream, elimination: Elimination) -> None:
    n, nnz_L, perm = elimination.n, elimination.nnz_L, elimination.perm
    forward, backward = window.forward, window.backward
    for sweep in (forward, backward):
        nodes, slots = sweep.items[:n].T
        np.testing.assert_array_equal(np.sort(nodes), np.arange(n))
        assert np.all((slots >= 0) & (slots != window.zero) & (slots < window.n_slots))
        padding = sweep.rows < 0
        assert np.all(sweep.rows[padding] == -1)
        assert np.all(sweep.slots[padding] == window.zero)
        assert np.all(sweep.slots < window.n_slots - 1), "the sink is read"
        assert sweep.padded_share == pytest.approx(padding.sum() / padding.size)
    # Every entry of L once per sweep, every pivot once, first in its own item.
    used = np.sort(forward.rows[forward.rows >= 0])
    np.testing.assert_array_equal(used, np.arange(nnz_L + n))
    used = np.sort(backward.rows[backward.rows >= 0])
    np.testing.assert_array_equal(used, np.arange(nnz_L))
    first = item_starts(forward)
    np.testing.assert_array_equal(forward.rows.ravel()[first], nnz_L + forward.items[:n, 0])
    assert np.all(forward.slots.ravel()[first] == window.zero)
    # As few slots as there are unknowns alive at the same time.
    L, position = dense_pattern(elimination.L_pattern), invert(perm)
    alive = most_alive(position[forward.items[:n, 0]], L)
    assert window.zero == max(alive, most_alive(position[backward.items[:n, 0]], L.T))
    assert window.n_slots == window.zero + 2


def check_window(case: KCase, segments: int, block: int, ordering: str = "amd") -> None:
    elimination = eliminated_case(case, ordering)
    window = build(elimination, segments, block)
    check_layout(window.forward, case.n, segments)
    check_layout(window.backward, case.n, segments)
    check_content(window, elimination)
    check_solution(window, elimination, case)


class TestStream:
    @pytest.mark.parametrize("segments", BUDGETS)
    @pytest.mark.parametrize("name", PATTERN_NAMES)
    def test_named_patterns(self, name, segments):
        check_window(PATTERNS[name](), segments, block=32)

    @pytest.mark.parametrize("block", BLOCKS)
    @pytest.mark.parametrize("ordering", ["amd", "natural", "stage"])
    @pytest.mark.parametrize("name", ["cartpole_6", "quadrotor_4", "block_banded"])
    def test_orders(self, name, ordering, block):
        check_window(PATTERNS[name](), 16, block, ordering)

    @FEW
    @given(random_cases(max_n=80, max_entries=2000), st.sampled_from(BUDGETS))
    @pytest.mark.parametrize("block", BLOCKS)
    def test_random_patterns(self, block, case: KCase, segments):
        check_window(case, segments, block)

    def test_blocks_of_one_row_keep_the_elimination_order(self):
        elimination = eliminated_case(PATTERNS["random_33"]())
        window, n = build(elimination, 16, block=1), elimination.n
        np.testing.assert_array_equal(window.forward.items[:n, 0], elimination.perm)
        np.testing.assert_array_equal(window.backward.items[:n, 0], elimination.perm[::-1])

    def test_rows_stay_in_their_block(self):
        elimination = eliminated_case(PATTERNS["random_120"]())
        window, n, position = build(elimination, 16), elimination.n, invert(elimination.perm)
        block = np.arange(n) // 32
        np.testing.assert_array_equal(position[window.forward.items[:n, 0]] // 32, block)
        np.testing.assert_array_equal(position[window.backward.items[:n, 0]] // 32, block[::-1])


class TestSize:
    @pytest.mark.parametrize(
        ("name", "ordering", "slots"),
        [
            ("cartpole", "amd", 32),
            ("ldl_benchmark", "amd", 56),
            ("cartpole", "stage", 32),
            ("quadrotor", "stage", 64),
        ],
    )
    def test_benchmark_systems_need_few_slots(self, name, ordering, slots):
        assert build_window(eliminated(name, ordering), 256).n_slots <= slots

    def test_nothing_is_alive_in_a_diagonal_matrix(self):
        window = build_window(eliminated_case(PATTERNS["diagonal"]()), 4)
        assert window.zero == 0
        assert np.all(window.forward.items[:, 1] == 1)
        assert np.all(window.backward.items[:, 1] == 1)

    def test_more_segments_pad_less(self):
        elimination = eliminated("ldl_benchmark", "amd")
        windows = [build_window(elimination, segments) for segments in (1, 4, 16, 64, 256)]
        for sweeps in ([w.forward for w in windows], [w.backward for w in windows]):
            shares = [sweep.padded_share for sweep in sweeps]
            assert shares == sorted(shares, reverse=True)
            assert shares[-1] < 0.3 < shares[0]


def test_budget_must_be_positive():
    with pytest.raises(SettingsError, match="budget must be at least 1, got 0"):
        build_window(eliminated_case(PATTERNS["random_10"]()), 0)
