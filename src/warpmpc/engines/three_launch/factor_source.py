"""Native source of a launch that linearises an MPC problem and factorises its KKT matrix.

Reads: `KKTStep`s as programs with their rows.  Produces: a body for `codegen.kernel_source`.

One thread per problem walks over the stages of the elimination.  A table gives the program of each
stage and its rows.  The values of K are local variables that go straight from the program into the
elimination.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from warpmpc._conventions import Status
from warpmpc.codegen.emit_native import Access
from warpmpc.codegen.ir import ScalarProgram
from warpmpc.codegen.kernel_source import inlined, pointers, switch
from warpmpc.codegen.native.preamble import INVERT_PIVOT
from warpmpc.codegen.native.status import status_enum
from warpmpc.codegen.stage_functions import StagePlan
from warpmpc.engines.staged.stage_source import eliminate_stage
from warpmpc.symbolic.stage_elimination import StageElimination, StageTemplate

_FACTOR = r"""
{statuses}
{invert}
#if defined(__CUDA_ARCH__)
#define INVERT(out, in) (out) = invert(in)
#else
#define INVERT(out, in) for (int _l = 0; _l < WIDTH; ++_l) (out)[_l] = invert((in)[_l])
#endif
if (tile >= status_out.shape[0]) return;
const SCALAR SIGMA = numbers_in.data[0];
const SCALAR r_row = numbers_in.data[1], r_equal = numbers_in.data[2], r_free = numbers_in.data[3];
const SCALAR same = numbers_in.data[4], absent = numbers_in.data[5];
BEGIN_TILE
{inputs}
const SCALAR* __restrict__ X_old = BASE(X_in);
const SCALAR* __restrict__ S_old = BASE(S_in);
SCALAR* __restrict__ L = BASE(factor_out);
SCALAR* __restrict__ D = L + (Offset)n_L * TILE;
SCALAR* __restrict__ K = BASE(K_out);
SCALAR* __restrict__ Q = BASE(Q_out);
SCALAR* __restrict__ U = BASE(U_out);
SCALAR* __restrict__ R = BASE(R_out);
SCALAR* __restrict__ X = BASE(X_out);
{carried}
#define RECEIVED(i) received##i
Pack broken = 0, crossed = 0;
#pragma unroll 1
for (int item = 0; item < n_items; ++item) {{
    if (item == n_first) {{  // the second of two chains begins; they meet in its last stage
        {hand_over}
    }}
    const int* __restrict__ rows = table_in.data + table_in.data[2 * item + 1];
    {stages}
}}
for (int l = 0; l < LANES_HERE; ++l) {{
    int status = LANE(crossed, l) != 0 ? INVALID_BOUNDS : RUNNING;
    if (LANE(broken, l) != 0) status = NON_FINITE;
    BASE(status_out)[l] = BASE(active_in)[l] ? status : SOLVED;
}}
END_TILE
"""

_STATUSES = status_enum((Status.SOLVED, Status.MAX_ITER, Status.NON_FINITE, Status.INVALID_BOUNDS))

# Places of a step's outputs: rows of L, of nodes, of K.
_OF_L, _OF_NODES, _OF_K = range(3)


def factor_body(
    program: StageElimination,
    templates: Sequence[StageTemplate],
    plan: StagePlan,
    names: Sequence[str],
    dtype: str,
    *,
    stores_K: bool,
) -> str:
    """Linearises and eliminates stage by stage.

    Args:
        program: The elimination.
        templates: Templates of the cases of the plan.
        plan: Programs for (K, Q, U), with rows of their inputs, of L, of nodes and of K.
        names: Names of the inputs at a point.
        dtype: "float32" or "float64".
        stores_K: Whether K is needed afterwards.
    """
    cases = [
        _factor_stage(program, template, (case.program, access), dtype, stores_K)
        for template, case, access in zip(templates, plan.cases, plan.accesses, strict=True)
    ]
    carried = [f"c{a}_{b}" for a, b in program.carried_pairs]
    received = [f"received{i}" for i in range(len(carried))]
    zeros = [f"{name} = 0" for name in (*carried, *received)]
    moves = [f"{to} = {name}; {name} = 0;" for to, name in zip(received, carried, strict=True)]
    return _FACTOR.format(
        statuses=_STATUSES,
        invert=INVERT_PIVOT,
        inputs=pointers(names),
        carried=f"Pack {', '.join(zeros)};" if zeros else "",
        hand_over=" ".join(moves),
        stages=switch("table_in.data[2 * item]", cases),
    )


def _factor_stage(
    program: StageElimination,
    template: StageTemplate,
    source: tuple[ScalarProgram, Access],
    dtype: str,
    stores_K: bool,
) -> list[str]:
    step, access = source
    lines, (K, Q, U) = inlined(step, access, dtype)
    first = {which: access.outputs[which][0][0] for which in range(3) if access.outputs[which]}
    head = []
    for array, which in (("D", _OF_NODES), ("L", _OF_L), ("K", _OF_K)):
        if which in first:  # a stage may have nothing below its diagonal
            head.append(
                f"SCALAR* __restrict__ {array}k = {array} + (Offset)r{first[which]} * TILE;"
            )
    at, nodes = f"r{first[_OF_NODES]}", range(template.n_nodes)
    # All loads precede the first store, so that they are in flight together.
    head += [f"const Pack old{i} = GET(X_old, {at} + {i});" for i in nodes]
    head += [f"const Pack s{i} = GET(S_old, {at} + {i});" for i in nodes if template.is_row[i]]
    reads = [line for line in lines if "ROW(" in line or "GET(" in line]
    values = _K_values(template, K)
    defined, users = [line for line in lines if line not in set(reads)], []
    for i in nodes:
        if template.is_row[i]:
            kind = _kind(step, i)
            defined += _row_values(i, Q[i], U[i], kind)
            users += _row(i, at)
        else:
            users.append(f"AT(Q, {at} + {i}) = {Q[i]}; AT(X, {at} + {i}) = old{i};")
    if stores_K:
        users += [f"AT(Kk, {i}) = {value};" for i, value in enumerate(values)]
    users += eliminate_stage(template, program, K_source=lambda i: values[i])
    return [*reads, *head, *_when_needed(defined, users)]


def _kind(step: ScalarProgram, i: int) -> str | None:
    """1/rho of a row whose kind is known from constant bounds; else None."""
    lower, upper = (int(step.outputs[which][i]) for which in (1, 2))
    if lower == upper:
        return "r_equal"
    constants = dict(enumerate(step.constants.tolist(), start=step.n_inputs))
    absent = (constants.get(lower) == -np.inf, constants.get(upper) == np.inf)
    return "r_free" if all(absent) else "r_row" if any(absent) else None


_NAME = re.compile(r"\b(?:v|k|lo|hi|kind|rho)\d+\b")


def _when_needed(defined: Sequence[str], users: Sequence[str]) -> list[str]:
    """Definitions of values, each right before its first use: few of them are alive at once."""
    text = {_NAME.findall(line)[0]: line for line in defined}
    placed: set[str] = set()
    lines: list[str] = []
    for user in users:
        wanted = [user]
        while wanted:
            line = wanted[-1]
            missing = [n for n in _NAME.findall(line) if n in text and n not in placed]
            own = _NAME.findall(line)[0] if len(wanted) > 1 else None
            missing = [name for name in missing if name != own]
            if missing:
                wanted.append(text[missing[0]])
                continue
            if own is not None:
                placed.add(own)
            lines.append(wanted.pop())
    return lines


def _K_values(template: StageTemplate, names: Sequence[str]) -> list[str]:
    """Expressions of K: sigma is added to the diagonal of variables, rows have -1/rho."""
    values, at = list(names), 0
    for i, column in enumerate(template.in_K):
        values[at] = f"(-rho{i})" if template.is_row[i] else f"({names[at]} + SIGMA)"
        at += 1 + sum(column)
    return values


def _row_values(i: int, lower: str, upper: str, kind: str | None) -> list[str]:
    """Bounds of a row, and 1/rho by its kind."""
    bounds = [f"const Pack lo{i} = {lower};", f"const Pack hi{i} = {upper};"]
    if kind is not None:
        return [*bounds, f"const Pack rho{i} = {kind};"]
    return [
        *bounds,
        f"const Pack kind{i} = IS_EQUALITY(lo{i}, hi{i}, same) ? (Pack)r_equal : (Pack)r_row;",
        f"const Pack rho{i} = IS_FREE(lo{i}, hi{i}, absent) ? (Pack)r_free : kind{i};",
    ]


def _row(i: int, at: str) -> list[str]:
    """Stores a row, with v = s + y / rho, and checks its bounds."""
    return [
        f"AT(Q, {at} + {i}) = lo{i}; AT(U, {at} + {i}) = hi{i}; AT(R, {at} + {i}) = rho{i};",
        f"AT(X, {at} + {i}) = V_OF(s{i}, old{i}, rho{i});",
        f"broken = ((lo{i} != lo{i}) | (hi{i} != hi{i})) ? (Pack)1 : broken;",
        f"crossed = (lo{i} > hi{i}) ? (Pack)1 : crossed;",
        f"crossed = ((lo{i} > INFINITE) | (hi{i} < -INFINITE)) ? (Pack)1 : crossed;",
    ]
