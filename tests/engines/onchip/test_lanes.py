"""Lanes of a warp: everything has one place, separators part the lanes, the elimination solves."""

from functools import cache

import numpy as np
import pytest
from mpc_cases import pendulum
from onchip_cases import LAYOUTS, SIGMA, RandomKKT, as_problem, crane, memory_of, positions

from warpmpc.engines.onchip.lanes import LANES, LaneElimination, LaneLayout, Node
from warpmpc.symbolic.derivatives.stage_model import RowKind


@cache
def found(name: str) -> tuple[LaneLayout, LaneElimination]:
    memory = memory_of(LAYOUTS[name]())
    return memory.layout, memory.elimination


def owners(layout: LaneLayout) -> list[tuple[int, Node]]:
    """Lane and node of variables, then rows."""
    return [*layout.var_nodes, *layout.row_nodes]


@pytest.mark.parametrize("name", LAYOUTS)
class TestLayout:
    def test_everything_has_a_place_of_its_own(self, name):
        layout, _ = found(name)
        places = owners(layout)
        assert len(set(places)) == len(places) == layout.problem.n_vars + layout.problem.n_cons
        nodes = {*layout.interior, *layout.separators}
        assert {node for _, node in places} == nodes
        assert len(nodes) == len(layout.interior) + len(layout.separators)

    def test_lanes_own_consecutive_stages(self, name):
        layout, _ = found(name)
        problem = layout.problem
        stages = [*problem.var_stage, *problem.con_stage]
        for k, (lane, node) in zip(stages, owners(layout), strict=True):
            assert lane * layout.per_lane + node.stage == k
        assert 0 < layout.n_lanes <= LANES
        assert layout.n_lanes * layout.per_lane >= problem.horizon + 1
        assert (layout.n_lanes - 1) * layout.per_lane < problem.horizon + 1

    def test_rows_that_share_a_node_are_of_one_kind(self, name):
        layout, _ = found(name)
        problem, soft = layout.problem, set(layout.assembly.soft_rows.tolist())
        for row, (_, node) in enumerate(layout.row_nodes):
            assert layout.row_slot(node).soft == (row in soft)
            k = int(problem.con_stage[row])
            stage, i = problem.stages[k], row - int(problem.g_offset[k])
            bounds = stage.lower[i], stage.upper[i]
            if all(bound.is_constant() for bound in bounds):
                low, high = map(float, bounds)
                kind = layout.row_slot(node).kind
                assert (kind is RowKind.EQUALITY) == (low == high)
                assert (kind is RowKind.LOWER) == (low > -np.inf and high == np.inf)
            else:
                assert layout.row_slot(node).kind in (
                    RowKind.UNKNOWN,
                    RowKind.EQUALITY,
                    RowKind.LOWER,
                )

    def test_separators_part_the_lanes(self, name):
        """Without them K has no entry between lanes; with one of them left it has."""
        layout, _ = found(name)
        K, places = RandomKKT(layout).K, owners(layout)
        lanes = np.array([lane for lane, _ in places])
        apart = lanes[:, None] != lanes[None, :]
        parting = np.array([node in layout.separators for _, node in places])
        inside = ~parting
        assert not K[np.ix_(inside, inside)][apart[np.ix_(inside, inside)]].any()
        for node in layout.separators if layout.n_lanes > 1 else ():
            kept = inside | np.array([other == node for _, other in places])
            assert K[np.ix_(kept, kept)][apart[np.ix_(kept, kept)]].any(), node

    def test_couplings_are_the_entries_of_K(self, name):
        """Each of them once, in the pattern that lanes share; nodes behind it are separators."""
        layout, _ = found(name)
        at, places = layout.assembly, owners(layout)
        back = {place: i for i, place in enumerate(places)}
        n = layout.problem.n_vars
        wanted = positions(at.P_pattern) + [(n + i, j) for i, j in positions(at.A_pattern)]
        ahead = {layout.ahead(node): node for node in layout.separators}
        for (i, j), (lane, a, b) in zip(wanted, layout.couplings, strict=True):
            named = [back[(lane + 1, ahead[c]) if c in ahead else (lane, c)] for c in (a, b)]
            assert sorted(named) == sorted((i, j))
            assert (a, b) in layout.edges or a == b


class LanesByHand:
    """The engine's algorithm in NumPy: local factors, reduction, two local solves."""

    def __init__(self, layout: LaneLayout, elimination: LaneElimination, kkt: RandomKKT):
        self.layout, self.elimination = layout, elimination
        self.own = list(layout.separators)
        self.nodes = [*elimination.order, *self.own, *map(layout.ahead, self.own)]
        self.at = {node: i for i, node in enumerate(self.nodes)}
        self.n, self.s = len(elimination.order), len(self.own)
        size = len(self.nodes)
        self.K = np.zeros((LANES, size, size))
        own = range(self.n + self.s)
        self.K[:, own, own] = 1.0  # what a lane does not have
        self._fill(kkt)

    def _fill(self, kkt: RandomKKT) -> None:
        places, n_vars = owners(self.layout), self.layout.problem.n_vars
        for index, (lane, node) in enumerate(places):
            i = self.at[node]
            self.K[lane, i, i] = kkt.K[index, index] if index >= n_vars else SIGMA
        at = self.layout.assembly
        values = [kkt.P[place] for place in positions(at.P_pattern)]
        values += [kkt.A[place] for place in positions(at.A_pattern)]
        for value, (lane, a, b) in zip(values, self.layout.couplings, strict=True):
            i, j = self.at[a], self.at[b]
            self.K[lane, i, j] += value
            if i != j:
                self.K[lane, j, i] += value

    def eliminate(self) -> int:
        """Eliminates the interior along the stored columns; returns the entries of L inside."""
        left, inside = self.K.copy(), 0
        self.L = np.zeros((LANES, self.n, self.n)) + np.eye(self.n)
        self.D = np.zeros((LANES, self.n))
        order, columns = self.elimination.order, self.elimination.columns
        for j, (node, column) in enumerate(zip(order, columns, strict=True)):
            assert self.nodes[j] == node
            targets = [self.at[target] for target in column]
            assert targets == sorted(targets)
            others = np.setdiff1d(np.arange(j + 1, len(self.nodes)), targets)
            assert not left[:, j, others].any()  # no entry is forgotten
            self.D[:, j] = left[:, j, j]
            factor = left[:, j, targets] / left[:, j, [j]]
            left[np.ix_(range(LANES), targets, targets)] -= (
                factor[:, :, None] * left[:, None, j, targets]
            )
            stored = [i for i, t in enumerate(targets) if t < self.n]
            self.L[:, [targets[i] for i in stored], j] = factor[:, stored]
            inside += len(stored)
        n, s = self.n, self.s
        own, ahead = slice(n, n + s), slice(n + s, n + 2 * s)
        self.diag, self.above = left[:, own, own].copy(), left[:, own, ahead].copy()
        self.diag[1:] += left[:-1, ahead, ahead]
        return inside

    def interior(self, r: np.ndarray) -> np.ndarray:
        """Solves with the interior of every lane."""
        t = np.linalg.solve(self.L, r[..., None])
        return np.linalg.solve(np.swapaxes(self.L, 1, 2), t / self.D[..., None])[..., 0]

    def reduction(self, g: np.ndarray) -> np.ndarray:
        """Parallel cyclic reduction of the block tridiagonal system of the separators."""

        def before(x, h):
            return np.concatenate([np.zeros_like(x[:h]), x[:-h]])

        def behind(x, h):
            return np.concatenate([x[h:], np.zeros_like(x[:h])])

        above = self.above.copy()
        above[-1] = 0
        below = np.swapaxes(before(above, 1), 1, 2)
        diag, h = self.diag.copy(), 1
        while h < LANES:
            inverse = np.linalg.inv(diag)
            up, down = below @ before(inverse, h), above @ behind(inverse, h)
            g = g - (up @ before(g, h)[..., None] + down @ behind(g, h)[..., None])[..., 0]
            diag = diag - up @ before(above, h) - down @ behind(below, h)
            below, above = -up @ before(below, h), -down @ behind(above, h)
            h *= 2
        assert not below.any()
        assert not above.any()
        return np.linalg.solve(diag, g[..., None])[..., 0]

    def solve(self, rhs: np.ndarray) -> np.ndarray:
        """K^-1 rhs, variables first."""
        n, s = self.n, self.s
        r = np.zeros((LANES, n + s))
        places = owners(self.layout)
        for value, (lane, node) in zip(rhs, places, strict=True):
            r[lane, self.at[node]] = value
        E, F = self.K[:, :n, n : n + s], self.K[:, :n, n + s :]
        t = self.interior(r[:, :n])[:, :, None]
        g = r[:, n:] - (np.swapaxes(E, 1, 2) @ t)[..., 0]
        g[1:] -= (np.swapaxes(F, 1, 2) @ t)[:-1, :, 0]
        y = self.reduction(g)
        ahead = np.concatenate([y[1:], np.zeros_like(y[:1])])
        x = self.interior(r[:, :n] - (E @ y[..., None] + F @ ahead[..., None])[..., 0])
        whole = np.hstack([x, y])
        return np.array([whole[lane, self.at[node]] for lane, node in places])


@pytest.mark.parametrize("name", LAYOUTS)
def test_elimination_and_reduction_solve(name):
    layout, elimination = found(name)
    kkt = RandomKKT(layout)
    lanes = LanesByHand(layout, elimination, kkt)
    assert lanes.eliminate() == elimination.n_L
    wanted = np.linalg.solve(kkt.K, kkt.rhs)
    np.testing.assert_allclose(lanes.solve(kkt.rhs), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LAYOUTS)
def test_stages_of_a_lane_are_eliminated_in_order(name):
    layout, elimination = found(name)
    stages = [node.stage for node in elimination.order]
    assert stages == sorted(stages)
    assert sorted(elimination.order) == sorted(layout.interior)


# Stages per lane and lanes that have any.
SHAPES = {1: (1, 2), 30: (1, 31), 31: (1, 32), 32: (2, 17), 63: (2, 32), 64: (3, 22), 95: (3, 32)}


@pytest.mark.parametrize("horizon", SHAPES)
def test_stages_are_spread_over_the_lanes(horizon):
    layout = memory_of(pendulum(horizon)).layout
    assert (layout.per_lane, layout.n_lanes) == SHAPES[horizon]
    assert layout.place(horizon) == divmod(horizon, SHAPES[horizon][0])


class TestSeparators:
    def test_are_states_of_the_first_stage(self):
        layout, _ = found("cartpole")
        assert layout.per_lane == 4
        assert layout.separators == [Node(0, False, i) for i in range(4)]

    def test_are_inputs_too_if_neighbours_share_them(self):
        layout, _ = found("crane_40")
        assert layout.separators == [Node(0, False, i) for i in range(3)]

    def test_of_stages_with_different_sizes(self):
        """No stage is coupled to variables after the first two of the following stage."""
        layout, _ = found("uneven")
        assert layout.separators == [Node(0, False, i) for i in range(2)]
        assert layout.z_sizes == [4, 4]

    def test_of_one_stage_are_none(self):
        layout = memory_of(pendulum(1)).layout
        assert layout.separators == [Node(0, False, 0), Node(0, False, 1)]
        alone = LaneLayout(layout.assembly, [RowKind.UNKNOWN] * layout.problem.n_cons, 1)
        assert alone.separators == []
        assert alone.per_lane == 2


def test_fewer_lanes_may_be_asked_for():
    """The layout of a part of a warp is one, too."""
    problem = as_problem(crane(12))
    layout = memory_of(problem).layout
    eight = LaneLayout(layout.assembly, [RowKind.UNKNOWN] * problem.n_cons, 8)
    assert (eight.per_lane, eight.n_lanes) == (2, 7)
