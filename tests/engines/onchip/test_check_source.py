"""Generated products of P and A, carried out by 32 lanes in numpy, and the names they use."""

import re

import numpy as np
import pytest
from lane_memory_cases import Filled, filled
from onchip_cases import LAYOUTS

from warpmpc.engines.onchip.check_source import LaneResiduals
from warpmpc.engines.onchip.lane_source import KEPT, LaneSource
from warpmpc.engines.onchip.lanes import LANES
from warpmpc.engines.onchip.memory import LaneMemory

# Macros of `engines.onchip.head_template`, in Python; what is saved is kept, as on the CPU.
MACROS = {
    r"FROM_(BEFORE|BEHIND)\((\d+), (\w+), (\w+), (\d+)\)": r"KEEP(\2, \3) = \1(KEEP(\2, \4), \5);",
    r"SAVE\((\d+), (\w+), (.*)\)": r"KEEP(\1, \2) = \3;",
    r"(?:KEEP|SAVED)\((\d+), (\w+)\)": r"kept[\1, '\2']",
    r"MEM\((\w+)_ROWS \+ (\d+)\)": r"MEM('\1', \2)",
    r"(?:const )?\bSCALAR ": "",
}
LANE = np.arange(LANES)


class Lanes:
    """Executes native source with one value per lane."""

    def __init__(self, memory: LaneMemory, numbers: np.ndarray):
        self._sections, self.numbers = memory.sections, numbers.copy().reshape(-1, LANES)
        shape = len(memory.nodes), LANES
        self.with_x, self.with_y = np.full(shape, np.nan), np.full(shape, np.nan)
        self._names = {
            "kept": {},
            "MEM": lambda section, row: self.section(section)[row].copy(),
            "BEFORE": lambda x, h: self._shift(x, -h),
            "BEHIND": self._shift,
            "IF_BEFORE": lambda x: np.where(LANE > 0, x, 0.0),
            "IF_BEHIND": lambda x: np.where(LANE < LANES - 1, x, 0.0),
            "with_x": self.with_x,
            "with_y": self.with_y,
        }

    @staticmethod
    def _shift(x, lanes: int) -> np.ndarray:
        """Takes x from another lane; where there is none, a lane takes its own."""
        there = LANE + lanes
        inside = (there >= 0) & (there < LANES)
        return np.broadcast_to(x, LANES)[np.where(inside, there, LANE)]

    def section(self, name: str) -> np.ndarray:
        first = self._sections[name].first
        return self.numbers[first : first + self._sections[name].count]

    def run(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        for macro, python in MACROS.items():
            text = re.sub(macro, python, text)
        for block in text.split("EACH_LANE"):
            statements = [statement.strip() for statement in re.split(r"[;{}\n]", block)]
            exec("\n".join(statements), self._names, {})  # each block has locals of its own


def products(memory: LaneMemory) -> list[str]:
    """Source that records the products with x, and that of variables with y."""
    text = LaneResiduals(memory, "float64")

    def use(node):
        i = memory.place[node]
        if node.is_row:
            return [f"with_x[{i}] = a_{i};"]
        return [f"with_x[{i}] = p_{i}; with_y[{i}] = a_{i};"]

    return text.products(text.solution, use)


def saved(memory: LaneMemory) -> list[str]:
    text = LaneResiduals(memory, "float64")
    return [*text.save(couplings=True), *text.save(couplings=False)]


def by_lane(f: Filled, of_variables, of_rows) -> np.ndarray:
    """One number per node and lane, zero where the lane has no such node."""
    index = f.m.node_index
    return np.where(index >= 0, np.concatenate([of_variables, of_rows])[index], 0.0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_products(name):
    """P d, A d and A'y of random vectors; nothing but d, y and what has been saved is read."""
    f = filled(name)
    rng, lanes = np.random.default_rng(2), Lanes(f.m, f.numbers)
    d, y = rng.uniform(-1, 1, f.m.n_vars), rng.uniform(-1, 1, f.m.n_cons)
    lanes.run(saved(f.m))
    lanes.numbers[:] = np.nan
    for node, numbers in zip(f.m.nodes, by_lane(f, d, y), strict=True):
        lanes.section("R" if node.is_row else "X")[f.m.place[node]] = numbers
    lanes.run(products(f.m))
    wanted = by_lane(f, f.P @ d, f.A @ d)
    np.testing.assert_allclose(lanes.with_x, wanted, rtol=1e-12, atol=1e-12)
    wanted = by_lane(f, f.A.T @ y, np.zeros(y.size))
    of_variables = [not node.is_row for node in f.m.nodes]
    found, wanted = lanes.with_y[of_variables], wanted[of_variables]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_of_K_is_saved_once(name):
    """Entries without a constant value, over both calls; products read all of them and no more."""
    m = filled(name).m
    varying = {(a, b) for _, a, b in m.layout.couplings} - set(m.literals)
    found = [re.fullmatch(r"SAVE\((\d+), k, (.*)\)", line).groups() for line in saved(m)]
    entry = LaneSource(m, "float64").entry
    assert sorted(value for _, value in found) == sorted(entry(a, b) for a, b in varying)
    places = sorted(int(i) for i, _ in found)
    assert places == list(range(LaneResiduals(m, "float64").counts["k"]))
    read = re.findall(r"SAVED\((\d+), k\)", "\n".join(products(m)))
    assert {int(i) for i in read} == set(places)


@pytest.mark.parametrize("name", LAYOUTS)
def test_locals_are_not_what_lanes_keep(name):
    """On CUDA KEEP(3, y) is the variable y3: a local of this name would hide it."""
    m = filled(name).m
    lines = "\n".join([*products(m), *LaneResiduals(m, "float64").report(unit=True)])
    declared = {
        local
        for statement in re.findall(r"\bSCALAR (\w[^;]*);", lines)
        for local in re.findall(r"(?:^|, )(\w+)(?= = |$)", statement)
    }
    assert {f"{'a' if n.is_row else 'p'}_{i}" for n, i in m.place.items()} <= declared
    assert not [local for local in declared if re.fullmatch(rf"({'|'.join(KEPT)})\d+", local)]
