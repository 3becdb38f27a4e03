"""Generated text of the staged engine: what numbers cannot show."""

import re

import pytest

from cases import kkt_of, weak_of
from warpmpc.codegen.staged_text import factor_text, iteration_text
from warpmpc.symbolic.stage_program import StageProgram, build_stage_program


def program_of(name: str) -> StageProgram:
    structure, kkt = kkt_of(name)
    return build_stage_program(kkt, structure.stages, weak_of(structure))


@pytest.mark.parametrize("emit", [factor_text, iteration_text])
def test_the_same_text_every_time(emit):
    assert emit(program_of("cartpole")) == emit(program_of("cartpole"))


def test_length_depends_on_templates_not_on_stages():
    text = iteration_text(program_of("quadrotor"))
    templates = [run.template for run in program_of("quadrotor").runs]
    assert text.count("GET(Lk,") == 2 * sum(template.n_L for template in templates)


def test_every_loop_says_what_it_walks():
    program = program_of("cartpole")
    comments = re.findall(
        r"// (\d+) stages of (\d+) nodes from node (\d+) on", factor_text(program)
    )
    wanted = [(run.count, run.template.n_nodes, run.node) for run in program.runs]
    assert [tuple(map(int, comment)) for comment in comments] == wanted


def test_leaves_cost_no_memory_between_the_sweeps():
    """Neither stored forward nor read backward: 652 rows of bounds of the linear MPC."""
    program = program_of("linear")
    text = iteration_text(program)
    leaves = sum(
        run.template.is_leaf(i) for run in program.runs for i in range(run.template.n_nodes)
    )
    nodes = sum(run.template.n_nodes for run in program.runs)
    assert leaves > 0
    assert len(re.findall(r"AT\(Wk, \d+\) = w\d+ \* GET\(Dk", text)) == nodes - leaves
