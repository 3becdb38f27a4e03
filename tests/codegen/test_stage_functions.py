"""Generated modules: rows shared between elements, source that does not depend on the horizon."""

import ast
from dataclasses import replace

import casadi as ca
import numpy as np
import pytest

from warpmpc.codegen import stage_functions as stage_module
from warpmpc.codegen.from_casadi import translate
from warpmpc.codegen.stage_functions import (
    StageCase,
    merged_cases,
    module_key,
    plan_stages,
    stage_source,
)

ARRAYS = (("z", "p"), ("g",))


def cases(horizon: int) -> list[StageCase]:
    """Five variables and a parameter per stage, one shared parameter; a last stage."""
    z, p = ca.SX.sym("z", 5), ca.SX.sym("p", 2)
    middle = translate(ca.Function("middle", [z, p], [z[:3] * p[0] + p[1]]))
    last = translate(ca.Function("last", [z, p], [z[:1] * p[0]]))
    ks = np.arange(horizon)
    rows = (5 * ks[:, None] + np.arange(5), np.stack([0 * ks, ks + 1], axis=1))
    end = (5 * horizon + np.arange(5)[None], np.array([[0, horizon + 1]]))
    return [
        StageCase(middle, ks, rows, (3 * ks[:, None] + np.arange(3),)),
        StageCase(last, np.array([horizon]), end, (np.array([[3 * horizon]]),)),
    ]


def rows_of(case_number: int, item: int, horizon: int) -> list[np.ndarray]:
    """Rows of all arguments of one stage, from the table and the access alone."""
    plan = plan_stages(cases(horizon))
    kind, begin = plan.table[2 * item : 2 * item + 2]
    assert kind == case_number
    access = plan.accesses[case_number]
    return [
        np.array([plan.table[begin + slot] + offset for slot, offset in places])
        for places in (*access.inputs, *access.outputs)
    ]


@pytest.mark.parametrize("horizon", [1, 2, 7])
def test_table_and_offsets_give_the_rows(horizon):
    middle, last = cases(horizon)
    for k in range(horizon):
        for got, want in zip(
            rows_of(0, k, horizon), (*middle.in_rows, *middle.out_rows), strict=True
        ):
            np.testing.assert_array_equal(got, want[k])
    for got, want in zip(
        rows_of(1, horizon, horizon), (*last.in_rows, *last.out_rows), strict=True
    ):
        np.testing.assert_array_equal(got, want[0])


def test_elements_that_move_alike_share_an_entry():
    access = plan_stages(cases(7)).accesses[0]
    slots = [{slot for slot, _ in places} for places in (*access.inputs, *access.outputs)]
    assert [len(used) for used in slots] == [1, 2, 1]
    assert len(set.union(*slots)) == 4


def test_stages_that_differ_in_unused_inputs_share_a_program():
    """The stage before a smaller last one has fewer variables behind it."""
    z, wide, p = ca.SX.sym("z", 3), ca.SX.sym("w", 7), ca.SX.sym("p", 2)
    narrow = translate(ca.Function("narrow", [z, p], [z[0] * z[2] + p[1]]))
    same = translate(ca.Function("same", [wide, p], [wide[0] * wide[2] + p[1]]))
    other = translate(ca.Function("other", [z, p], [z[0] / z[1] + p[1]]))
    rows = np.arange(9)
    given = [
        StageCase(
            program, np.array([k]), (rows[None, k : k + n], rows[None, :2]), (rows[None, :1],)
        )
        for k, (program, n) in enumerate([(narrow, 3), (same, 7), (other, 3)])
    ]
    first, second = merged_cases(given)
    assert first.stages.tolist() == [0, 1]
    assert first.program.input_sizes == (2, 1)
    assert first.in_rows[0].tolist() == [[0, 2], [1, 3]]
    assert first.in_rows[1].tolist() == [[1], [1]]
    assert first.out_rows[0].tolist() == [[0], [0]]
    assert second.stages.tolist() == [2]
    assert second.in_rows[0].tolist() == [[2, 3]]


def test_stages_of_all_cases_in_order():
    first, second = cases(4)
    odd = replace(
        first,
        stages=np.array([1, 3]),
        in_rows=tuple(rows[[1, 3]] for rows in first.in_rows),
        out_rows=tuple(rows[[1, 3]] for rows in first.out_rows),
    )
    even = replace(
        first,
        stages=np.array([0, 2]),
        in_rows=tuple(rows[[0, 2]] for rows in first.in_rows),
        out_rows=tuple(rows[[0, 2]] for rows in first.out_rows),
    )
    plan = plan_stages([second, odd, even])
    assert plan.n_items == 5
    assert plan.table[: 2 * plan.n_items : 2].tolist() == [2, 1, 2, 1, 0]


def test_text_and_key_do_not_depend_on_the_horizon():
    short, long = plan_stages(cases(5)), plan_stages(cases(9))
    assert module_key("k", short, ARRAYS, "float32") == module_key("k", long, ARRAYS, "float32")
    texts = [stage_source("k", plan, ARRAYS, "float32").module() for plan in (short, long)]
    bodies = [text.partition("BODY = ")[2] for text in texts]
    assert bodies[0] == bodies[1]


def test_key_depends_on_all_that_the_text_depends_on(monkeypatch):
    plan = plan_stages(cases(5))
    first, last = cases(5)
    other_rows = replace(last, in_rows=(last.in_rows[0][:, ::-1], last.in_rows[1]))
    z, p = ca.SX.sym("z", 5), ca.SX.sym("p", 2)
    other_program = replace(last, program=translate(ca.Function("last", [z, p], [z[:1] * p[1]])))
    keys = [
        module_key("k", plan, ARRAYS, "float32"),
        module_key("k", plan, ARRAYS, "float64"),
        module_key("other", plan, ARRAYS, "float32"),
        module_key("k", plan, (("z", "q"), ("g",)), "float32"),
        module_key("k", plan_stages([first, other_rows]), ARRAYS, "float32"),
        module_key("k", plan_stages([first, other_program]), ARRAYS, "float32"),
    ]
    monkeypatch.setattr(stage_module, "_generator", lambda: "another generator")
    keys.append(module_key("k", plan, ARRAYS, "float32"))
    assert len(set(keys)) == len(keys)


def test_modules_are_python_with_a_readable_head():
    source = stage_source("k", plan_stages(cases(5)), ARRAYS, "float32", 'Says "hello"\\ \n twice')
    text = source.module()
    head = ast.get_docstring(ast.parse(text))
    assert head.splitlines()[0] == "Says 'hello'/ twice"
    names = [f"{name}_in" for name in ARRAYS[0]], [f"{name}_out" for name in ARRAYS[1]]
    key = module_key("k", plan_stages(cases(5)), names, "float32")
    assert f"Kernel k, float32, content {key}." in head
    assert "middle, first generated for 5 stages from 0 to 4." in head
    assert "last, first generated for stage 5." in head
