"""Memory of a warp: stages find their places, K, bounds and products can be read back."""

import casadi as ca
import numpy as np
import pytest
from lane_memory_cases import filled
from mpc_cases import WholeProblem
from onchip_cases import LAYOUTS, positions

from warpmpc.engines.onchip.lane_source import LaneSource
from warpmpc.engines.onchip.lanes import LANES, Node
from warpmpc.engines.onchip.memory import Section
from warpmpc.symbolic.derivatives.stage_model import RowKind


@pytest.mark.parametrize("name", LAYOUTS)
class TestMemory:
    def test_sections_follow_each_other(self, name):
        m = filled(name).m
        end = 0
        for section in m.sections.values():
            assert section.first == end
            end += section.count
        assert m.n_rows == end
        assert sorted(m.place.values()) == list(range(len(m.nodes)))
        rows = [*m.entries.values(), *m.incoming.values(), m.dump]
        assert sorted(rows) == list(range(m.dump + 1))

    def test_K_is_in_the_lanes(self, name):
        """Every entry of P and A, also where two lanes contribute."""
        f = filled(name)
        wanted = [f.P[at] for at in positions(f.at.P_pattern)]
        wanted += [f.A[at] for at in positions(f.at.A_pattern)]
        found = [f.entry(lane, a, b) for lane, a, b in f.layout.couplings]
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)

    def test_A_is_that_of_the_whole_problem(self, name):
        f = filled(name)
        whole = WholeProblem(f.problem)
        wanted = whole.value(ca.jacobian(whole.g, whole.z), f.z, f.p)
        np.testing.assert_allclose(f.A, wanted, rtol=1e-12, atol=1e-12)
        wanted = whole.value(ca.gradient(whole.cost, whole.z), f.z, f.p)[:, 0]
        np.testing.assert_allclose(f.q, wanted, rtol=1e-11, atol=1e-11)

    def test_linear_cost_is_in_the_lanes(self, name):
        f, found = filled(name), []
        for lane, node in f.layout.var_nodes:
            value = f.get("Q", f.m.place[node], lane)
            if node in f.m.incoming:
                value += f.get("W", f.m.incoming[node], lane)
            found.append(value)
        np.testing.assert_allclose(found, f.q, rtol=1e-13, atol=1e-13)

    def test_bounds_are_in_the_lanes(self, name):
        f = filled(name)
        for row, (lane, node) in enumerate(f.layout.row_nodes):
            kind, stored = f.layout.row_slot(node).kind, f.get("Q", f.m.place[node], lane)
            assert stored == (f.upper if kind is RowKind.UPPER else f.lower)[row]
            if node in f.m.upper:
                assert f.get("U", f.m.upper[node], lane) == f.upper[row]
            else:
                absent = {RowKind.EQUALITY: f.lower[row], RowKind.LOWER: np.inf}
                assert f.upper[row] == absent.get(kind, f.upper[row])

    def test_what_lanes_do_not_have_is_nothing(self, name):
        """Zeros, but for ones on the diagonal of variables; constants meet no variable."""
        f, m = filled(name), filled(name).m
        there = {*f.layout.var_nodes, *f.layout.row_nodes}
        for lane in range(LANES):
            for node in m.nodes:
                if (lane, node) in there:
                    continue
                assert m.node_index[m.place[node], lane] == -1
                assert f.get("Q", m.place[node], lane) == 0
                diagonal = m.entries.get((node, node))
                assert diagonal is None or f.get("W", diagonal, lane) == 1
            for a, b in f.layout.edges:
                have = [(lane, a), (lane, b)]
                if b.stage >= f.layout.per_lane:
                    have[1] = (lane + 1, Node(0, False, b.index))
                if sum(place in there for place in have) == 1:
                    assert f.entry(lane, a, b) == 0

    def test_nodes_name_variables_and_rows(self, name):
        f = filled(name)
        table, places = f.m.node_index, [*f.layout.var_nodes, *f.layout.row_nodes]
        assert sorted(table[table >= 0]) == list(range(len(places)))
        for index, (lane, node) in enumerate(places):
            assert table[f.m.place[node], lane] == index

    def test_a_copy_has_room_and_no_place_twice(self, name):
        """Places of the caller's values for each lane, as whole lines are written to Q and W."""
        f = filled(name)
        m, index = f.m, f.m.node_index
        # One place for each value of the copy; nodes that lanes lack are after the arrays.
        assert sorted(m.in_copy.ravel()) == list(range(LANES * m.sections["Q"].count))
        copy = np.full(LANES * m.sections["Q"].count, -1)
        variables = LANES * m.sections["Z"].count
        for begin, count, first in ((0, m.n_vars, 0), (m.n_vars, m.n_cons, variables)):
            for i in range(count):  # COPY of `onchip_head_native`
                row, lane = divmod(first + i, LANES)
                copy[row * LANES + (lane ^ row % LANES)] = begin + i
        np.testing.assert_array_equal(copy[m.in_copy], index)

    def test_points_and_directions(self, name):
        """A stage finds its variables, and the direction of each at the same variable."""
        f = filled(name)
        m = f.m
        for group, stages in enumerate(f.at.stages):
            for row, k in enumerate(stages.tolist()):
                here = f.layout.place(k)[0]
                for index in f.at.w_rows[group][row].tolist():
                    lane, node = f.layout.var_nodes[index]
                    offset = m.of_point(index, k)
                    assert offset == m.offset("Z", m.row_of("Z", node), lane - here)
                    wanted = m.offset("X", m.place[node], lane - here)
                    assert m.of_direction(offset) == wanted


def test_parameters_lie_behind_all_else():
    m = filled("soft").m
    holding = m.holding({"p": 5, "common": 40})
    sections = holding.sections
    assert sections["PAR"] == Section(m.n_rows, 2)  # one array behind the other, in whole rows
    assert {name: sections[name] for name in m.sections if name != "PAR"} == {
        name: section for name, section in m.sections.items() if name != "PAR"
    }
    assert holding.held_at == {"p": 0, "common": 5}
    assert holding.n_rows == m.n_rows + 2
    assert holding.keeping(1).held == holding.held
    assert (m.held, m.held_at, m.sections["PAR"].count) == ({}, {}, 0)


def test_penalties_of_soft_rows():
    """Linear and quadratic, of both sides; sides without a bound have none."""
    f = filled("soft")
    soft = {node for node, _ in f.m.soft}
    assert soft == {node for node in f.m.rows if f.layout.row_slot(node).soft}
    for index, (lane, node) in enumerate(f.layout.row_nodes):
        if not f.layout.row_slot(node).soft:
            continue
        k = int(f.problem.con_stage[index])
        stage, i = f.problem.stages[k], index - int(f.problem.g_offset[k])
        place = stage.soft_rows.tolist().index(i)
        penalties = ca.Function("pen", [f.problem.shared, stage.p], [stage.penalties[place, :]])
        own = f.p[f.problem.param_rows(k)][f.problem.n_x0 :]
        wanted = np.array(penalties(*np.split(own, [f.problem.n_shared]))).ravel()
        found = [f.get("H", f.m.soft[node, part], lane) for part in range(4)]
        np.testing.assert_array_equal(found, wanted)
    one_sided = filled("car").m
    assert {part for _, part in one_sided.soft} == {0, 2}


def test_rho_of_rows_whose_kind_is_known():
    m = filled("pendulum_31").m
    assert not m.rho
    text = LaneSource(m, "float64")
    assert {text.inverse_rho(node) for node in m.rows} == {"R_ROW", "R_EQUAL"}
    unknown = filled("limits").m
    assert len(unknown.rho) == sum(
        unknown.layout.row_slot(n).kind is RowKind.UNKNOWN for n in unknown.rows
    )
    assert len(unknown.rho) > 0


# Levels of the reduction: lanes that have stages, to the power of two above.
LEVELS = {
    "pendulum_1": 1,
    "pendulum_31": 5,
    "pendulum_32": 5,
    "mixed": 3,
    "crane_5": 3,
    "masses": 5,
}


@pytest.mark.parametrize("name", LEVELS)
def test_levels_of_the_reduction(name):
    m = filled(name).m
    assert m.levels == LEVELS[name]
    assert m.n_blocks == 2 * m.levels  # two per level but one in the last, and the inverse
    assert m.sections["W"].count >= m.n_blocks * len(m.layout.separators) ** 2


@pytest.mark.parametrize("name", LEVELS)
def test_blocks_in_registers_leave_room(name):
    m = filled(name).m
    size = len(m.layout.separators) ** 2
    kept = m.keeping(m.n_blocks)
    assert kept.stored_blocks == 0
    assert kept.sections["W"].count == max(m.dump + 1, len(m.nodes))
    assert m.n_rows - kept.n_rows == max(0, m.n_blocks * size - kept.sections["W"].count)
    assert kept.place == m.place
    assert m.kept_blocks == 0


def test_constants_are_not_stored():
    """Linear dynamics leave nothing but P and what the first and last stage have not in common."""
    m = filled("masses").m
    stored = {(a, b) for a, b in m.entries if a.is_row or b.is_row}
    assert m.literals
    assert len(stored) < len(m.literals)
    assert set(m.literals.values()) <= {1.0, -1.0, -0.2}
