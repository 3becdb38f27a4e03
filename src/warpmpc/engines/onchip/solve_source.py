"""Native source of a whole MPC solve by one warp per problem.

Reads: `LaneSource`, programs of the stages with their offsets, the rule of the line search.
Produces: a body for `codegen.kernel_source`; `engines.onchip.solve_template` explains its parts.

SQP iterations may end at a tolerance: a problem that has converged, or that cannot continue, leaves
its loop without waiting for others.  The rule is that of `mpc.sqp.general`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warpmpc.codegen.emit_native import Access, literal, place_source
from warpmpc.codegen.ir import ScalarProgram
from warpmpc.codegen.kernel_source import inlined
from warpmpc.codegen.native.admm import FORMULAS
from warpmpc.codegen.native.line_search import (
    COST_UNIT,
    POINT_SUMS,
    REPORT_ROWS,
    SearchRule,
    SQPTolerances,
    collected,
    report_source,
    verdict,
)
from warpmpc.codegen.native.preamble import EXTREMA, PREAMBLE
from warpmpc.codegen.native.status import STATUS_ENUM
from warpmpc.codegen.stage_functions import StagePlan
from warpmpc.engines.onchip.check_source import LaneChecks, LaneResiduals, OnchipChecks, qp_sources
from warpmpc.engines.onchip.copy_source import (
    ROUND,
    OnchipInputs,
    copy_back,
    declared,
    discard_places,
    dispatched,
    fetch,
    fetch_arrays,
    fetch_places,
    item_width,
    moved,
    taken,
)
from warpmpc.engines.onchip.head_template import FUNCTIONS, HEAD, INVERT
from warpmpc.engines.onchip.lane_source import LaneSource
from warpmpc.engines.onchip.lanes import Node
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.reduction_source import COUPLE, REDUCE
from warpmpc.engines.onchip.solve_template import NO_PART, PHASES, REPORT, SOLVE
from warpmpc.symbolic.derivatives.stage_model import RowKind

# A QP that gives no step is followed by a damped one without multipliers in its Hessian.
_JUDGE = r"""
    again = !converged && !(usable && accepted) && status != NON_FINITE && status != INVALID_BOUNDS
        && n_lost < (solvable ? MOST_LOST : 1);
    n_lost = again ? n_lost + 1 : 0;
    hopeless = !solvable || (hopeless && status != SOLVED);
    if (converged || again) {
        taken = 0;
        cost_new = cost_here;
        squares_new = squares_here;
        absolute_new = absolute_here;
        worst_new = worst_here;
    }
    ++n_done;"""

_LEAVE = " && (again || (!converged && accepted && usable))"

_FORGET_STATE = r"""    if (again) ROLLED for (int row = 0; row < X_COUNT; ++row) EACH_LANE {
        MEM(X_ROWS + row) = 0;
        if (row < R_COUNT) MEM(R_ROWS + row) = 0;
    }
"""

_DAMP = r"""
    if (n_lost) {{
        Lanes size_of = (Lanes)0;
        {norm}
        SCALAR more = FIRST_DAMPING * largest(size_of);
        for (int i = 1; i < n_lost; ++i) more *= DAMPING_GROWTH;
        {damp}
        SYNC
    }}"""

# The last two entries of the status: the number of iterations, and flags of the last one: the
# conditions hold; its QP gave no step, and the next one would have been another attempt; no QP had
# a solution since one was found to have none.
COUNTED = 2
CONVERGED, GOES_ON, HOPELESS = 1, 2, 4
_COUNT = f"""
if (CHIEF) {{
    status_of[status_out.shape[1] - 2] = n_done;
    status_of[status_out.shape[1] - 1] = {CONVERGED} * converged + {GOES_ON} * again + {HOPELESS} * hopeless;
}}"""


@dataclass(frozen=True)
class OnchipEnd:
    """When SQP iterations end, and what follows after QPs that give no step.

    Attributes:
        tolerances: Tolerances of the SQP iteration.
        most_lost: QPs in a row without a step after which a problem is given up.
        damping: Damping after the first of them, relative to the largest entry of P.
        growth: Factor of the damping after each further one.
    """

    tolerances: SQPTolerances
    most_lost: int
    damping: float
    growth: float

    def defines(self, dtype: str) -> list[str]:
        """Macros that the source of the end reads."""
        values = {"FIRST_DAMPING": self.damping, "DAMPING_GROWTH": self.growth}
        lines = [f"#define {name} {literal(value, dtype)}" for name, value in values.items()]
        return [*self.tolerances.defines(dtype), f"#define MOST_LOST {self.most_lost}", *lines]


def end_sources(
    end: OnchipEnd | None, damp: dict[str, list[str]], dtype: str, *, soft: bool
) -> dict[str, str]:
    """Parts of `engines.onchip.solve_template.SOLVE`; empty for a fixed number of iterations.

    Args:
        end: When SQP iterations end.
        damp: Statements that measure P and add to its diagonal.
        dtype: "float32" or "float64".
        soft: Whether there are soft rows.
    """
    if end is None:
        last = "RECORD || iteration + 1 == n_iterations"
        empty = dict.fromkeys(("begin", "judge", "leave", "count", "damp", "forget_state"), "")
        return {"reported": last, **empty}
    state = [
        "int n_done = 0, n_lost = 0;",
        "bool converged = false, again = false, hopeless = false;",
    ]
    begin = "\n".join(["", *end.defines(dtype), *state])
    return {
        "begin": begin,
        "damp": _DAMP.format(**{name: "\n".join(lines) for name, lines in damp.items()}),
        "forget_state": _FORGET_STATE,
        "judge": verdict(soft=soft) + _JUDGE,
        "reported": "true",
        "leave": _LEAVE,
        "count": _COUNT,
    }


UNIT_PARTS: Sequence[str] = ("begin_unit", "roots", "unit")


def unit_sources(n_vars: int) -> dict[str, str]:
    """Parts of the templates that find the unit of the cost, by the names in `UNIT_PARTS`.

    Args:
        n_vars: Number of variables.
    """
    return {
        "begin_unit": " SCALAR unit = 1;",
        "roots": "\nLanes roots_of = (Lanes)0;",
        "unit": f"\nunit = COST_UNIT(gradient, summed(roots_of), {n_vars});",
    }


_JOINED = {"+": "{} + {}", "max": "MAX({}, {})"}
_FOLLOWING = 2000  # an H200 has 660 cartpoles, 1056 cars or 1848 pendulums at a time
STATIC_SHARED = 48 * 1024  # bytes that a kernel may declare itself


@dataclass(frozen=True)
class OnchipConstants:
    """Settings that are constants of the source.

    Attributes:
        sigma: Regularisation of the ADMM iteration.
        relaxation: Relaxation of the ADMM iteration.
        inverse_rho: 1/rho of inequalities, equalities and free rows.
        same: Distance below which bounds are equal.
        absent: Size from which bounds are absent.
        checks: When QPs end; None: after a fixed number of iterations.
        end: When SQP iterations end; None: after a fixed number of iterations.
    """

    sigma: float
    relaxation: float
    inverse_rho: tuple[float, float, float]
    same: float
    absent: float
    checks: OnchipChecks | None = None
    end: OnchipEnd | None = None


@dataclass(frozen=True, eq=False)
class OnchipPlans:
    """Programs of the stages; items are rounds of 32 lanes, see `engines.onchip.copy_source`.

    Attributes:
        linearize: Programs for the contributions in `outputs`, then for the outputs of `evaluate`.
        outputs: Names of the contributions that `linearize` computes.
        evaluate: Programs for cost and violations; the last input is d.
        names: Names of the inputs at a point.
    """

    linearize: StagePlan
    outputs: Sequence[str]
    evaluate: StagePlan
    names: Sequence[str]


def _kept_source(kept: dict[str, int], saved: dict[str, int]) -> str:
    """Declares what lanes keep and save: local variables on CUDA, arrays on the CPU."""
    names = ", ".join(f"{name}{i}" for name, count in kept.items() for i in range(count))
    every = kept | saved
    arrays = [f"SCALAR kept_{name}[{max(count, 1)}][32];" for name, count in every.items()]
    there = [f"SCALAR {names};"] if names else []
    there += [f"SCALAR saved_{name}[{max(every[name], 1)}];" for name in ("l", "i", "u", *saved)]
    return "\n".join(["#if defined(__CUDA_ARCH__)", *there, "#else", *arrays, "#endif"])


def _penalties(lane: LaneSource, node: Node) -> list[str]:
    """Turns penalties into coefficients of the proximal map; see `qp.soft`."""
    lines = []
    for penalties in filter(None, (lane.penalties(node, side) for side in (0, 1))):
        b, a = penalties
        lines += [
            f"is_crossed = (({b} < 0) | ({a} < 0)) ? (SCALAR)1 : is_crossed;",
            f"is_broken = (({b} != {b}) | ({a} != {a})) ? (SCALAR)1 : is_broken;",
            f"{{ const bool hard = IS_HARD({b}, {a});",
            f"const SCALAR whole = {lane.rho(node)} + (hard ? (SCALAR)0 : {a});",
            f"{b} = PROXIMAL_B(hard, {b}, whole);",
            f"{a} = PROXIMAL_A(hard, {a}, r, whole); }}",
        ]
    return lines


def onchip_head(
    memory: LaneMemory, dtype: str, *, static: bool, profile: bool, together: int = 1
) -> str:
    """Source before the body: types, memory, exchange between lanes.

    Args:
        memory: Rows of the shared memory.
        dtype: "float32" or "float64".
        static: Whether the kernel declares its shared memory itself.
        profile: Whether the kernel counts cycles.
        together: Problems per block.
    """
    defines = {"WIDTH": 1, "STATIC": int(static), "MEMORY_ROWS": memory.n_rows}
    defines["TOGETHER"] = together
    letter = "f" if dtype == "float32" else "d"  # constraint letter of a register
    defines["SINGLE"] = int(dtype == "float32")
    defines |= {
        "PROFILE": int(profile),
        "PHASES": len(PHASES),
        "OPAQUE(x)": f'asm volatile("" : "+{letter}"(x));',
    }
    defines |= {f"{name}_ROWS": s.first for name, s in memory.sections.items()}
    defines |= {
        "X_COUNT": memory.sections["X"].count,
        "R_COUNT": memory.sections["R"].count,
        "NX": max(memory.n_separators, 1),  # size of arrays, which are unused without separators
        "LEVELS": memory.levels,
        "STORED_BLOCKS": memory.stored_blocks,
        "KEPT_BLOCKS": memory.kept_blocks,
        "K_COUNT": memory.dump,
        "KEEPS_FACTOR": int(LaneSource(memory, dtype).keeps_factor),
    }
    lines = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    counts = (LaneSource(memory, dtype).counts, LaneResiduals(memory, dtype).counts)
    head = HEAD.replace("KEPT_NUMBERS", _kept_source(*counts))
    return lines + PREAMBLE[dtype] + EXTREMA + FORMULAS + FUNCTIONS + head + REDUCE


class OnchipSource:
    """Writes the body of one problem."""

    def __init__(
        self, memory: LaneMemory, plans: OnchipPlans, rule: SearchRule, numbers: OnchipConstants
    ):
        """Keeps the memory, the programs, the line search and the constants."""
        self._m, self._plans, self._rule, self._numbers = memory, plans, rule, numbers
        self.plans = [plans.linearize, plans.evaluate]
        self._inputs = OnchipInputs(plans.names, memory)
        self.has_checks = numbers.checks is not None

    def body(self, dtype: str, *, record: bool, restart: bool, ends: bool = False) -> str:
        """The complete body.

        Args:
            dtype: "float32" or "float64".
            record: Whether every iteration writes a report.
            restart: Whether QPs start from direction zero.
            ends: Whether problems that converged or failed leave the loop.
        """
        lane, rule, nothing = LaneSource(self._m, dtype), self._rule, ""
        residuals = LaneResiduals(self._m, dtype)
        end, soft = self._numbers.end if ends else None, bool(self._m.soft)
        always = record or rule.weighs or soft or end is not None
        texts = {
            "statuses": STATUS_ENUM,
            "invert": INVERT,
            "inputs": self._inputs.pointers(),
            "inputs_later": self._inputs.prefetches(),
            "rounds": self._rounds(),
            "ladder": rule.steps(dtype),
            "clear": "\n".join(self._clear()),
            "linearize": self._linearize(dtype),
            "linearize_first": " ".join([self._first_entries("linearize"), *self._lacks("ASK")]),
            "evaluate_first": self._first_entries("evaluate"),
            "prepare": "\n".join(self._prepare(lane, restart=restart)),
            "eliminate": "\n".join(lane.elimination()),
            "couple": COUPLE if self._m.n_separators else nothing,
            "separators": "\n".join(self._separators()),
            "slope": nothing if always else "\n".join(self._slope()),
            "add_incoming": "\n".join(self._add_incoming()),
            "evaluate": self._evaluate(dtype),
            "finish": "\n".join(self._finish(lane)),
            "save_couplings": "\n".join(residuals.save(couplings=True)),
            "save_rest": "\n".join(residuals.save(couplings=False)),
            "ask": "\n".join(fetch_arrays(self._m)),
            "forget_places": discard_places(self._m),
            "ask_places": fetch_places(self._m),
            "read": "\n".join(taken(self._m)),
            "move": "\n".join(moved(self._m)),
            "write": "\n".join(copy_back(self._m)),
        }
        loop = {
            "loaded": "\n".join(["FORGET", *lane.loaded()]),
            "iterate": "\n".join(lane.iteration()),
            "correct": "\n".join(self._correct(lane)),
        }
        checks = LaneChecks(self._m, dtype)
        of_qp = qp_sources(loop, checks, self._numbers.checks, doubts=end is not None)
        converges = self._numbers.end is not None
        parts = unit_sources(self._m.n_vars) if converges else dict.fromkeys(UNIT_PARTS, "")
        texts["begin_unit"] = parts.pop("begin_unit")
        lines = "\n".join(residuals.report(unit=converges))
        parts |= {"evaluate_first": texts["evaluate_first"], "residuals": lines}
        report = REPORT.format(checked=of_qp.pop("checked"), **parts)
        texts |= {"report": report, **of_qp}
        damp = {"norm": residuals.norm_of_P("size_of"), "damp": residuals.damp("more")}
        values = end_sources(end, damp, dtype, soft=soft)
        rows = report_source(converges=converges)
        values |= {"report_rows": rows, "n_report": str(len(REPORT_ROWS))}
        values["no_part"] = str(NO_PART)
        settings = self._settings(dtype, record=record, always=always) + rule.macros(dtype)
        settings += COST_UNIT if converges else ""
        return settings + SOLVE.format(**texts, **values)

    def _settings(self, dtype: str, *, record: bool, always: bool) -> str:
        n = self._numbers
        row, equal, free = n.inverse_rho
        numbers = {"SIGMA": n.sigma, "OMEGA": n.relaxation, "R_ROW": row, "R_EQUAL": equal}
        numbers |= {"R_FREE": free, "SAME": n.same, "ABSENT": n.absent}
        lines = [f"#define {name} {literal(value, dtype)}" for name, value in numbers.items()]
        lines.append(f"#define POINTS {len(self._rule.ladder)}")
        lines.append(f"#define FOLLOWING (Offset){_FOLLOWING}")
        lines += [f"#define RECORD {int(record)}", f"#define REPORT_ALWAYS {int(always)}"]
        for name in ("linearize", "evaluate"):
            plan = getattr(self._plans, name)
            lines.append(f"#define {name.upper()}_ITEMS {plan.n_items}")
            lines.append(f"#define {name.upper()}_WIDTH {item_width(plan)}")
        lines.append(f"#define CHECKS {int(n.checks is not None)}")
        lines += n.checks.defines(dtype) if n.checks else []
        return "\n".join(lines)

    def _rounds(self) -> str:
        """Declares what is fetched ahead of rounds."""
        width = max(item_width(plan) for plan in self.plans)
        return " ".join([declared(width, ROUND), *self._lacks("AHEAD")])

    def _lacks(self, how: str) -> list[str]:
        return [f"{how}_LACKS({word})" for word in range(len(self._m.diagonals))]

    def _first_entries(self, name: str) -> str:
        """Fetches the entries of the first round of a plan."""
        return fetch(item_width(getattr(self._plans, name)), ROUND, f"{name}_in.data")

    def _clear(self) -> list[str]:
        """Clears linear costs, and sets the diagonal of variables that a lane does not have to one."""
        m = self._m
        lines = [f"MEM(Q_ROWS + {i}) = 0;" for i, node in enumerate(m.nodes) if not node.is_row]
        for word, diagonals in enumerate(m.diagonals):
            lines.append(f"{{ const int absent = LACKS({word});")
            lines.append("if (absent) {")
            for bit, row in enumerate(diagonals):
                lines.append(f"if (absent & {1 << bit}u) MEM(W_ROWS + {row}) = 1;")
            lines.append("}}")
        return lines

    def _add_incoming(self) -> list[str]:
        """Adds linear costs that the previous lane contributes."""
        m = self._m
        return [
            f"MEM(Q_ROWS + {i}) += MEM(W_ROWS + {m.incoming[node]});"
            for i, node in enumerate(m.nodes)
            if node in m.incoming
        ]

    def _linearize(self, dtype: str) -> str:
        plan = self._plans.linearize
        cases = [
            self._written(case.program, access, dtype)
            for case, access in zip(plan.cases, plan.accesses, strict=True)
        ]
        return dispatched(plan, cases)

    def _written(self, program: ScalarProgram, access: Access, dtype: str) -> list[str]:
        lines, values = inlined(program, access, dtype, **self._inputs.reads())
        count = len(self._plans.outputs)
        stores = []
        outputs = zip(self._plans.outputs, access.outputs, values[:count], strict=True)
        for name, places, of_output in outputs:
            for place, value in zip(places, of_output, strict=True):
                to, number = f"*(base + {place_source(place)})", f"NUMBER({value})"
                if name in ("P", "q"):
                    # Read before all stores, because the compiler has to assume that they overlap.
                    lines.append(f"const SCALAR sum{len(stores)} = {to};")
                    number = f"sum{len(stores)} + {number}"
                stores.append(f"{to} = {number};")
        lines += stores
        lines.append("if (!iteration) {")  # later iterations know it from the line search
        for (name, how), (value,) in zip(POINT_SUMS, values[count:], strict=True):
            of_lane, number = f"OF_LANE({name}_of)", f"NUMBER({value})"
            lines.append(f"{of_lane} = {_JOINED[how].format(of_lane, number)};")
        return [*lines, "}"]

    def _prepare(self, lane: LaneSource, *, restart: bool) -> list[str]:
        """Bounds, 1/rho and penalties of rows, v and right-hand sides; saves the correction of v."""
        m, lines = self._m, []
        for i, node in enumerate(m.nodes):
            if node.is_row:
                lines += ["{", *self._row(lane, i, node, restart=restart), "}"]
                continue
            if restart:
                lines.append(f"MEM(X_ROWS + {i}) = (SCALAR)0;")
            if i < m.n_interior:
                x = f"MEM(X_ROWS + {i})"
                lines.append(f"MEM(R_ROWS + {i}) = RHS_OF_X({x}, MEM(Q_ROWS + {i}));")
        return lines

    def _row(self, lane: LaneSource, i: int, node: Node, *, restart: bool) -> list[str]:
        m, slot = self._m, self._m.layout.row_slot(node)
        kind, lines = slot.kind, [lane.bounds(node)]
        names = ("lo", "hi") if node in m.upper else ("hi",) if kind is RowKind.UPPER else ("lo",)
        if kind is RowKind.UNKNOWN:
            equal = "R_ROW" if slot.soft else "R_EQUAL"
            lines += [
                f"const SCALAR kind = IS_EQUALITY(lo, hi, SAME) ? {equal} : R_ROW;",
                "const SCALAR r = IS_FREE(lo, hi, ABSENT) ? R_FREE : kind;",
                f"MEM(RHO_ROWS + {m.rho[node]}) = r;",
            ]
        else:
            lines.append(f"const SCALAR r = {lane.inverse_rho(node)};")
        lines += [f"is_broken = {name} != {name} ? (SCALAR)1 : is_broken;" for name in names]
        if len(names) == 2:
            lines.append("is_crossed = lo > hi ? (SCALAR)1 : is_crossed;")
        if "lo" in names:
            lines.append("is_crossed = lo > INFINITE ? (SCALAR)1 : is_crossed;")
        if "hi" in names or kind is RowKind.EQUALITY:
            lines.append(f"is_crossed = {names[-1]} < -INFINITE ? (SCALAR)1 : is_crossed;")
        lines += _penalties(lane, node)
        s = "(SCALAR)0" if restart else f"MEM(X_ROWS + {i})"
        return [
            *lines,
            f"const SCALAR s = {s}, v = V_OF(s, MEM(R_ROWS + {i}), r);",
            f"SAVE({m.row_number[node]}, c, LACKING_V(s, {lane.project(node)}))",
            f"MEM(X_ROWS + {i}) = v; MEM(R_ROWS + {i}) = RHS_OF_V(v, s);",
        ]

    def _separators(self) -> list[str]:
        """Right-hand sides of the separators."""
        n = self._m.n_interior
        return [
            f"KEEP({i}, g) = RHS_OF_X(MEM(X_ROWS + {n + i}), MEM(Q_ROWS + {n + i}));"
            for i in range(self._m.n_separators)
        ]

    def _correct(self, lane: LaneSource) -> list[str]:
        """Corrects the first iteration, which starts from s of the last QP instead of a projection."""
        lines = []
        for node, number in self._m.row_number.items():
            i = self._m.place[node]
            x = f"MEM(X_ROWS + {i})"
            lines += [
                f"{{ const SCALAR v = {x} + SAVED({number}, c); {lane.bounds(node)}",
                f"{x} = v; MEM(R_ROWS + {i}) = RHS_OF_V(v, {lane.project(node)}); }}",
            ]
        return lines

    def _slope(self) -> list[str]:
        terms = [
            f"MEM(Q_ROWS + {i}) * MEM(X_ROWS + {i})"
            for i, node in enumerate(self._m.nodes)
            if not node.is_row
        ]
        return [
            "Lanes slope_of;",
            f"EACH_LANE OF_LANE(slope_of) = {' + '.join(terms) or '(SCALAR)0'};",
            "slope = summed(slope_of);",
        ]

    def _evaluate(self, dtype: str) -> str:
        moved = "(*(base + {place}) + step * *(base + {also}))"
        plan = self._plans.evaluate
        cases = [
            collected(
                case.program, access, dtype, POINT_SUMS, **{**self._inputs.reads(), "in0": moved}
            )
            for case, access in zip(plan.cases, plan.accesses, strict=True)
        ]
        return dispatched(plan, cases)

    def _finish(self, lane: LaneSource) -> list[str]:
        lines = []
        for i, node in enumerate(self._m.nodes):
            if node.is_row:
                lines += [
                    f"{{ {lane.projected(node)}",
                    f"MEM(X_ROWS + {i}) = usable ? s : (SCALAR)0;",
                    f"const SCALAR y = MULTIPLIER_BY_RHO(v, s, {lane.rho(node)});",
                    f"MEM(R_ROWS + {i}) = honest ? y : (SCALAR)0; }}",
                ]
        return lines
