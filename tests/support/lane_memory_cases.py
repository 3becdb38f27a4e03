"""Memory of a warp that all stages have written to, for tests of what reads it."""

from functools import cache

import numpy as np
from onchip_cases import LAYOUTS, memory_of, positions

from warpmpc.engines.onchip.lanes import LANES, pair
from warpmpc.engines.onchip.memory import LaneMemory


class Filled:
    """A memory that all stages have written to, at a random point."""

    def __init__(self, memory: LaneMemory):
        self.m, self.layout = memory, memory.layout
        self.at, self.problem = memory.layout.assembly, memory.layout.problem
        rng = np.random.default_rng(1)
        self.z = rng.uniform(-1, 1, self.problem.n_vars)
        self.p = rng.uniform(0.5, 1.5, self.problem.n_params)
        self.numbers = np.zeros(memory.n_rows * LANES)
        for word, rows in enumerate(memory.diagonals):
            for bit, row in enumerate(rows):
                absent = memory.absent.view(np.uint32)[word] >> np.uint32(bit) & np.uint32(1)
                place = memory.offset("W", row)
                self.numbers[place : place + LANES] = absent
        n, m = self.problem.n_vars, self.problem.n_cons
        self.P, self.q, self.A = np.zeros((n, n)), np.zeros(n), np.zeros((m, n))
        self.lower, self.upper = np.zeros(m), np.zeros(m)
        for group in range(len(self.at.models)):
            self._write(group)
        self.P = self.P + np.triu(self.P, 1).T + np.tril(self.P, -1).T

    def _write(self, group: int) -> None:
        at, model = self.at, self.at.models[group]
        outputs = ("P", "q", "A", "lower", "upper", "soft")
        function = model.linearize("stage", outputs)
        of_P, of_A = positions(at.P_pattern), positions(at.A_pattern)
        n_P = len(of_P)
        for row, k in enumerate(at.stages[group].tolist()):
            point = (self.z[at.w_rows[group][row]], self.p[at.p_rows[group][row]])
            P, q, A, lower, upper, soft = (np.array(v).ravel() for v in function(*point))
            for i, value in zip(at.P_places[group][row].tolist(), P, strict=True):
                self._put(k, self.m.of_entry(i, k), value, add=True)
                self.P[of_P[i]] += value
            for i, value in zip(at.q_places[group][row].tolist(), q, strict=True):
                self._put(k, self.m.of_cost(i, k), value, add=True)
                self.q[i] += value
            for i, value in zip(at.A_rows[group][row].tolist(), A, strict=True):
                self._put(k, self.m.of_entry(n_P + i, k), value)
                self.A[of_A[i]] = value
            rows = at.g_rows[group][row]
            self.lower[rows], self.upper[rows] = lower, upper
            for i, low, high in zip(rows.tolist(), lower, upper, strict=True):
                self._put(k, self.m.of_bound(i, upper=False), low)
                self._put(k, self.m.of_bound(i, upper=True), high)
            tables = [
                self.m.of_penalty(int(i), part)
                for part in range(4)
                for i in rows[model.stage.soft_rows]
            ]
            for offset, value in zip(tables, soft, strict=True):
                self._put(k, offset, value)

    def _put(self, k: int, offset: int, value: float, *, add: bool = False) -> None:
        place = offset + self.layout.place(k)[0]
        self.numbers[place] = value + (self.numbers[place] if add else 0.0)

    def get(self, section: str, row: int, lane: int) -> float:
        return float(self.numbers[self.m.offset(section, row) + lane])

    def entry(self, lane: int, a, b) -> float:
        """An entry of P or A as a lane finds it."""
        key, m = pair(a, b), self.m
        if key in m.literals:
            return m.literals[key]
        found = [self.get("W", of[key], lane) for of in (m.entries, m.incoming) if key in of]
        return sum(found)


@cache
def filled(name: str) -> Filled:
    return Filled(memory_of(LAYOUTS[name]()))
