"""Stage programs of the on-chip engine: the parts that stages share, and the memory they use.

Reads: the stage functions of a problem and a `LaneMemory`.  Produces: `OnchipStages`.

A stage is evaluated in up to two parts: rows that most stages have, and the rest.  The first stage
differs from others by the rows of the initial state; everything else is one program for both, which
is fetched once and runs on all lanes at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warpmpc.codegen.from_casadi import translate
from warpmpc.codegen.stage_functions import StageCase, merged_cases, plan_stages
from warpmpc.engines.onchip.copy_source import item_table
from warpmpc.engines.onchip.lanes import LANES, LaneLayout
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.solve_source import OnchipPlans
from warpmpc.mpc.stage_evaluation import StageEvaluator

MAIN, REST = 0, 1  # the two parts
_ROUND = 10  # cost of a round, in values that are written


@dataclass(frozen=True)
class StagePart:
    """A part of the stages of one group.

    Attributes:
        group: Group of stages.
        number: MAIN or REST.
        rows: Rows of the stage that belong to it.
        has_cost: Whether the cost belongs to it.
    """

    group: int
    number: int
    rows: tuple[int, ...]
    has_cost: bool


class OnchipStages:
    """Stage programs with offsets in the memory of a lane for what they read and write."""

    def __init__(self, programs: StageEvaluator, memory: LaneMemory):
        """Builds both plans.

        Args:
            programs: Stage functions.
            memory: Rows of the shared memory.
        """
        self._programs, self._m = programs, memory
        self._at = programs.assembly
        self._parts = stage_parts(programs, memory.layout)
        self._rounds = self._used_rounds()
        n_items = LANES * (1 + max(self._rounds.values()))
        self.plans = OnchipPlans(
            linearize=plan_stages(merged_cases(self._linearizations()), n_items),
            outputs=programs.linearize_functions[1],
            evaluate=plan_stages(self._evaluations(), n_items),
            names=list(programs.point_rows),
        )

    @property
    def tables(self) -> list[np.ndarray]:
        """Tables of both plans."""
        return [item_table(plan) for plan in (self.plans.linearize, self.plans.evaluate)]

    def _used_rounds(self) -> dict[tuple[int, int], int]:
        """Number of each round, by the stage of a lane and the part that some lane has there.

        A rest goes to an earlier round if all its lanes have nothing to do there.
        """
        lanes: dict[tuple[int, int], set[int]] = {}
        for part in self._parts:
            for k in self._at.stages[part.group]:
                lane, stage = self._m.layout.place(int(k))
                lanes.setdefault((part.number, stage), set()).add(lane)
        rounds: dict[tuple[int, int], int] = {}
        busy: list[set[int]] = []
        for (number, stage), some in sorted(lanes.items()):
            free = (i for i, others in enumerate(busy) if number == REST and not others & some)
            at = next(free, len(busy))
            if at == len(busy):
                busy.append(set())
            busy[at] |= some
            rounds[stage, number] = at
        return rounds

    def _items(self, part: StagePart) -> np.ndarray:
        places = [self._m.layout.place(int(k)) for k in self._at.stages[part.group]]
        items = [self._rounds[stage, part.number] * LANES + lane for lane, stage in places]
        return np.array(items, dtype=np.int64)

    def _point(self, name: str) -> Callable[[int, int], int]:
        """Offset of an element of an input, seen from the lane of a stage."""
        memory = self._m
        if name == "y":
            return lambda index, k: memory.of_row("R", index, k)
        return memory.of_point if name == "z" else lambda index, _: index

    def _points(self, group: int, names: Sequence[str]) -> tuple[np.ndarray, ...]:
        stages, rows = self._at.stages[group], self._programs.point_rows
        return tuple(_offsets(rows[name][group], stages, self._point(name)) for name in names)

    def _linearizations(self) -> list[StageCase]:
        outputs, point = self._programs.linearize_functions[1], list(self._programs.point_rows)
        written = {name: self._wanted(name) for name in outputs}
        cases = []
        for i, part in enumerate(self._parts):
            picked = {name: written[name][i][0] for name in outputs}
            function = self._programs.models[part.group].linearize_part(
                f"part_{part.group}_{part.number}", picked, part.rows, with_cost=part.has_cost
            )
            cases.append(
                StageCase(
                    translate(function),
                    self._items(part),
                    self._points(part.group, point),
                    tuple(written[name][i][1] for name in outputs),
                )
            )
        return cases

    def _wanted(self, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each part the elements of a contribution that are read, and their offsets."""
        picked = [self._picked(name, part) for part in self._parts]
        pairs = zip(self._parts, picked, strict=True)
        written = [self._written(name, part.group)[:, at] for part, at in pairs]
        # Parts of the same kind leave out the same, so that their programs stay equal.
        alike = [(part.number, len(at)) for part, at in zip(self._parts, picked, strict=True)]
        nowhere = self._m.offset("W", self._m.dump)
        read: dict[tuple[int, int], np.ndarray] = {}
        for kind, offsets in zip(alike, written, strict=True):
            found = (offsets != nowhere).any(axis=0)
            read[kind] = found | read.get(kind, np.zeros_like(found))
        return [
            (at[read[kind]], offsets[:, read[kind]])
            for kind, at, offsets in zip(alike, picked, written, strict=True)
        ]

    def _picked(self, name: str, part: StagePart) -> np.ndarray:
        """Elements of a contribution that belong to a part."""
        model = self._programs.models[part.group]
        if name in ("P", "q"):
            sizes = {"P": model.hessian.rows, "q": model.gradient_cols}
            return np.arange(len(sizes[name]) if part.has_cost else 0)
        if name == "soft":
            rows = np.tile(model.stage.soft_rows, 4)
        elif name == "A":
            rows = model.jacobian_positions[0]
        else:
            rows = np.arange(model.stage.g.numel())
        return np.flatnonzero(np.isin(rows, part.rows))

    def _written(self, name: str, group: int) -> np.ndarray:
        """Offsets of what a stage contributes to the QP."""
        at, memory, stages = self._at, self._m, self._at.stages[group]
        n_P = at.P_pattern.nnz
        if name == "soft":
            rows = at.g_rows[group][:, at.models[group].stage.soft_rows]
            parts = [_offsets(rows, stages, _penalty(memory, part)) for part in range(4)]
            return np.concatenate(parts, axis=1)
        tables: dict[str, tuple[Any, Callable[[int, int], int]]] = {
            "P": (at.P_places, memory.of_entry),
            "q": (at.q_places, memory.of_cost),
            "A": (at.A_rows, lambda index, k: memory.of_entry(n_P + index, k)),
            "lower": (at.g_rows, lambda index, _: memory.of_bound(index, upper=False)),
            "upper": (at.g_rows, lambda index, _: memory.of_bound(index, upper=True)),
        }
        rows, offset = tables[name]
        return _offsets(rows[group], stages, offset)

    def _evaluations(self) -> list[StageCase]:
        """The offsets of d follow those of the point."""
        names = [name for name in self._programs.point_rows if name != "y"]
        cases = []
        for part in self._parts:
            name = f"value_{part.group}_{part.number}"
            model = self._programs.models[part.group]
            function = model.evaluate_part(name, part.rows, with_cost=part.has_cost)
            points = self._points(part.group, names)
            cases.append(StageCase(translate(function), self._items(part), points, ()))
        return [
            replace(case, in_rows=(*case.in_rows, self._directions(case)))
            for case in merged_cases(cases)
        ]

    def _directions(self, case: StageCase) -> np.ndarray:
        """Offsets of d of the variables that a case reads."""
        points = np.asarray(case.in_rows[0])
        found = [self._m.of_direction(int(offset)) for offset in points.ravel()]
        return np.array(found, dtype=np.int64).reshape(points.shape)


def stage_parts(programs: StageEvaluator, layout: LaneLayout) -> list[StagePart]:
    """Parts of all groups: of the ways to divide them that are tried, the one with least work.

    What most stages have may be all that they have, or what they share with another group.
    """
    names = [set(model.stage.row_names) for model in programs.models]
    most = max(range(len(names)), key=lambda group: len(programs.assembly.stages[group]))
    common = dict.fromkeys(frozenset(names[most] & other) for other in (names[most], *names))
    tried = [_divided(programs, some) for some in common]
    return min(tried, key=lambda parts: _work(programs, layout, parts))


def _divided(programs: StageEvaluator, common: frozenset[str]) -> list[StagePart]:
    """Parts of all groups; a stage that lacks one of the common rows is a rest as a whole."""
    parts = []
    for group, model in enumerate(programs.models):
        names = list(enumerate(model.stage.row_names))
        has_all = common <= {name for _, name in names}
        main = tuple(row for row, name in names if has_all and name in common)
        rest = tuple(row for row, name in names if not (has_all and name in common))
        if has_all:
            parts.append(StagePart(group, MAIN, main, has_cost=True))
        if rest or not has_all:
            parts.append(StagePart(group, REST, rest, has_cost=not has_all))
    return parts


def _work(programs: StageEvaluator, layout: LaneLayout, parts: list[StagePart]) -> int:
    """Values that lanes write one after the other: lanes with different programs take turns."""
    found: dict[tuple[int, int], set[int]] = {}
    for part in parts:
        model = programs.models[part.group]
        rows = int(np.isin(model.jacobian_positions[0], part.rows).sum()) + 2 * len(part.rows)
        cost = len(model.hessian.rows) + len(model.gradient_cols) if part.has_cost else 0
        for k in programs.assembly.stages[part.group]:
            found.setdefault((layout.place(int(k))[1], part.number), set()).add(rows + cost)
    return sum(_ROUND + sum(sizes) for sizes in found.values())


def _penalty(memory: LaneMemory, part: int) -> Callable[[int, int], int]:
    return lambda index, _: memory.of_penalty(index, part)


def _offsets(rows: Any, stages: Any, offset: Callable[[int, int], int]) -> np.ndarray:
    """Offsets of the elements of all stages of a case."""
    table = np.asarray(rows)
    found = [[offset(int(i), int(k)) for i in row] for row, k in zip(table, stages, strict=True)]
    return np.array(found, dtype=np.int64).reshape(table.shape)
