"""Generated source of the staged engine: properties that results do not show."""

import re

import pytest
from cases import kkt_of, light_of

from warpmpc.engines.staged.stage_source import (
    SideLayout,
    eliminate_stage,
    factor_source,
    iteration_source,
    side_layout,
    soft_order,
    softened_nodes,
)
from warpmpc.symbolic.stage_elimination import (
    StageElimination,
    build_stage_elimination,
    build_two_sided_elimination,
)


def program_of(name: str) -> StageElimination:
    structure, kkt = kkt_of(name)
    return build_stage_elimination(kkt, structure.stages, light_of(structure))


@pytest.mark.parametrize("emit", [factor_source, iteration_source])
def test_the_same_text_every_time(emit):
    assert emit(program_of("cartpole")) == emit(program_of("cartpole"))


def test_length_depends_on_templates_not_on_stages():
    text = iteration_source(program_of("quadrotor"))
    templates = [run.template for run in program_of("quadrotor").runs]
    assert text.count("GET(Lk,") == 2 * sum(template.n_L for template in templates)


def test_every_loop_says_what_it_walks():
    program = program_of("cartpole")
    comments = re.findall(
        r"// (\d+) stages of (\d+) nodes from node (\d+) on", factor_source(program)
    )
    wanted = [(run.count, run.template.n_nodes, run.node) for run in program.runs]
    assert [tuple(map(int, comment)) for comment in comments] == wanted


def test_leaves_cost_no_memory_between_the_sweeps():
    """Neither stored forward nor read backward: 652 rows of bounds of the linear MPC."""
    program = program_of("linear")
    text = iteration_source(program)
    leaves = sum(
        run.template.is_leaf(i) for run in program.runs for i in range(run.template.n_nodes)
    )
    nodes = sum(run.template.n_nodes for run in program.runs)
    assert leaves > 0
    assert len(re.findall(r"AT\(Wk, \d+\) = w\d+ \* GET\(Dk", text)) == nodes - leaves


class TestSoftRows:
    def rows(self, program: StageElimination) -> list[int]:
        """Last rows of the last two stages of each run."""
        found = []
        for run in program.runs:
            size, template = run.template.n_nodes, run.template
            last = max(i for i in range(size) if template.is_row[i])
            found += [run.node + k * size + last for k in range(max(run.count - 2, 0), run.count)]
        return found

    def test_only_their_code_is_longer(self):
        program = program_of("cartpole")
        plain, soft = iteration_source(program), iteration_source(program, self.rows(program))
        changed = [line for line in soft.split("\n") if line not in plain.split("\n")]
        assert len(changed) == 3 * len(program.runs)  # where they are, what is ahead, the update
        assert sum("SOFTEN" in line for line in changed) == len(program.runs)
        assert iteration_source(program, ()) == plain

    def test_numbers_stand_in_the_order_of_the_stages(self):
        program = program_of("cartpole")
        rows, order = self.rows(program), soft_order(program, self.rows(program))
        assert set(rows) <= set(order)
        assert order == sorted(order)
        assert len(order) == sum(run.count for run in program.runs)
        starts = re.findall(r"AT_STAGE\(H, (\d+) \+ k \* (\d+)\)", iteration_source(program, rows))
        counts = [run.count for run in program.runs]
        wanted = [(4 * sum(counts[:i]), 4) for i in reversed(range(len(counts)))]
        assert [tuple(map(int, pair)) for pair in starts] == wanted
        assert all(len(nodes) == 1 for nodes in softened_nodes(program, rows))


class TestTwoSides:
    def program(self, name: str = "cartpole") -> StageElimination:
        structure, kkt = kkt_of(name)
        return build_two_sided_elimination(kkt, structure.stages, light_of(structure))

    def sides(self, text: str) -> list[tuple[int, str]]:
        """Parts between the places where both meet, with the side that runs them."""
        parts = re.split(r"^ON_SIDE\((\d)\) \{$", text, flags=re.MULTILINE)
        return [(int(side), part) for side, part in zip(parts[1::2], parts[2::2], strict=True)]

    @pytest.mark.parametrize("emit", [factor_source, iteration_source])
    def test_a_side_walks_its_own_chain(self, emit):
        program = self.program()
        comment = r"// \d+ stages of \d+ nodes from node (\d+) on"
        for side, part in self.sides(emit(program)):
            nodes = {int(node) for node in re.findall(comment, part)}
            assert nodes <= {run.node for run in program.chains[side]}

    def test_where_they_meet(self):
        program = self.program("quadrotor")
        assert factor_source(program).count("\nMEET\n") == 1
        assert iteration_source(program).count("\nMEET\n") == 2
        one = build_stage_elimination(*self.of_one_side("quadrotor"))
        for emit in (factor_source, iteration_source):
            assert not re.search("MEET|ON_SIDE|SEND|RECEIVED", emit(one))

    def of_one_side(self, name: str):
        structure, kkt = kkt_of(name)
        return kkt, structure.stages, light_of(structure)

    def test_everything_sent_is_received(self):
        program = self.program("quadrotor")
        for emit, count in ((factor_source, 78), (iteration_source, 12)):
            text = emit(program)
            sent = {int(i) for i in re.findall(r"SEND\((\d+),", text)}
            received = {int(i) for i in re.findall(r"RECEIVED\((\d+)\)", text)}
            assert sent == received == set(range(count))
        assert side_layout(program) == SideLayout(2, program.split, 78)

    def test_values_of_K_from_other_text(self):
        """Every value is read once, where it is needed first."""
        program = self.program()
        template = program.runs[-1].template
        lines = "\n".join(eliminate_stage(template, program, lambda i: f"value({i})"))
        assert "GET(Kk" not in lines
        read = [int(i) for i in re.findall(r"value\((\d+)\)", lines)]
        assert sorted(read) == list(range(template.n_K))
