"""Generated source of a lane: properties that results do not show."""

import re

import pytest
from mpc_cases import pendulum
from onchip_cases import crane, limits, masses, memory_of
from sqp_cases import soft_arm

from warpmpc.engines.onchip.check_source import LaneResiduals
from warpmpc.engines.onchip.lane_source import KEPT, LaneSource
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.systems import cartpole

PROBLEMS = {
    "cartpole": lambda: cartpole.build(100),
    "crane": lambda: crane(40),
    "limits": lambda: limits(5),
    "masses": masses,
    "soft": lambda: soft_arm(5),
}


@pytest.fixture(scope="module", params=PROBLEMS)
def memory(request) -> LaneMemory:
    return memory_of(PROBLEMS[request.param]())


def whole(memory: LaneMemory, dtype: str = "float64") -> str:
    text = LaneSource(memory, dtype)
    return "\n".join([*text.elimination(), *text.iteration()])


def test_the_same_text_every_time(memory):
    assert whole(memory) == whole(memory)


def test_nothing_is_kept_beyond_what_is_declared(memory):
    counts = LaneSource(memory, "float64").counts
    assert list(counts) == list(KEPT)
    for name, index in {(n, int(i)) for i, n in re.findall(r"KEEP\((\d+), (\w+)\)", whole(memory))}:
        assert index < counts[name]


def test_rows_lie_inside_their_sections(memory):
    for name, row in set(re.findall(r"MEM\((\w+)_ROWS \+ (\d+)\)", whole(memory))):
        assert int(row) < memory.sections[name].count


def test_what_is_saved_is_loaded(memory):
    """Entries of L, pivots and couplings: saved once, on either kind of device, and taken back."""
    text = LaneSource(memory, "float64")
    eliminated = "\n".join(text.elimination())
    loaded = re.findall(r"LOAD\((\d+), (\w+)\)", "\n".join(text.loaded()))
    assert len(set(loaded)) == len(loaded)
    assert sorted(loaded) == sorted(re.findall(r"SAVE_NOW\((\d+), (\w+), ", eliminated))
    # Couplings are entries of K, which is saved before: on CUDA they are taken from there.
    taken = re.findall(r"LOAD_AS\((\d+), e, (\d+), k\)", "\n".join(text.loaded()))
    saved = "\n".join(LaneResiduals(memory, "float64").save(couplings=True))
    assert sorted(re.findall(r"SAVE\((\d+), k, ", saved)) == sorted({j for _, j in taken})
    loaded += [(i, "e") for i, _ in taken]
    assert sorted(loaded) == sorted(re.findall(r"SAVE_LATE\((\d+), (\w+), ", eliminated))
    kept = {name: [int(i) for i, of in loaded if of == name] for name in "lie"}
    assert kept["l"] == list(range(memory.elimination.n_L))
    read = re.findall(r"KEEP\((\d+), ([ie])\)", "\n".join(text.iteration()))
    assert {(str(i), name) for name in "ie" for i in kept[name]} == set(read)
    values = text.counted_values()
    assert values["factor"] == len(kept["l"]) + len(kept["i"])
    assert values["couplings"] == len(kept["e"])


def test_the_factor_is_read_in_both_solves(memory):
    text, n_L = LaneSource(memory, "float64"), memory.elimination.n_L
    read = re.findall(r"KEEP\((\d+), l\) \*", "\n".join(text.iteration()))
    times = 2 if text.folds else 4  # forward and backward
    assert {int(i): read.count(i) for i in set(read)} == dict.fromkeys(range(n_L), times)


def test_counts_are_those_of_the_text(memory):
    """Multiplications and additions of the solves and the reduction, as often as they run."""
    text = LaneSource(memory, "float64")
    counts, size = text.counts, memory.n_separators
    assert counts["l"] == memory.elimination.n_L
    solves = 2 * (2 * counts["l"] + memory.n_interior) + 2 * counts["e"]
    assert text.counted_operations() == solves + memory.n_blocks * size**2
    products = re.findall(
        r"MEM\(W_ROWS \+ \((\d+)\) \* \d+ \+ (\d+)\)", "\n".join(text.iteration())
    )
    if not text.folds:
        assert len(set(products)) == len(products) == memory.n_blocks * size**2
    assert text.counted_values()["working"] == memory.n_interior + 2 * size


def test_text_does_not_depend_on_the_horizon_beyond_stages_per_lane():
    assert whole(memory_of(crane(40))) == whole(memory_of(crane(50)))
    assert whole(memory_of(crane(40))) != whole(memory_of(crane(31)))


def test_constants_are_numbers_of_the_text():
    """Entries of linear dynamics are neither kept nor read, but where the last lane has none."""
    m = memory_of(masses())
    text = LaneSource(m, "float32")
    assert text.counted_values()["couplings"] < text.counts["e"]
    assert re.search(r"= -?0\.2\d*f", whole(m, "float32"))
    assert not set(m.literals) & set(m.entries)


def test_long_loops_are_folded(memory):
    """Long source is written once and runs twice; short source has no loop around its solves."""
    text = LaneSource(memory, "float64")
    lines = text.iteration()
    assert text.folds == any("half < 2" in line for line in lines)
    levels = sum("FROM_BEFORE(0, before, s" in line for line in lines)
    assert levels == (1 if text.folds else memory.levels - 1)
    assert sum("FROM_ACROSS(0, before, s" in line for line in lines) == 1


@pytest.mark.parametrize("blocks", [1, 3, 5])
def test_blocks_in_registers(blocks):
    """The last blocks of the reduction are loaded once, and no iteration reads them from memory."""
    memory = memory_of(pendulum(40))
    kept, size = memory.keeping(blocks), memory.n_separators
    assert kept.sections["W"].count <= memory.sections["W"].count
    text = LaneSource(kept, "float64")
    lines = "\n".join(text.iteration())
    count = blocks * size**2
    assert text.counts["u"] == text.counted_values()["reduction"] == count
    assert {int(i) for i in re.findall(r"KEEP\((\d+), u\)", lines)} == set(range(count))
    assert set(re.findall(r"LOAD_AS\((\d+), u, \d+, u\)", "\n".join(text.loaded()))) == set(
        map(str, range(count))
    )
    read = {int(block) for block in re.findall(r"MEM\(W_ROWS \+ \((\d+)\)", lines)}
    assert read == set(range(kept.stored_blocks))


def test_rows_of_known_kind_read_neither_rho_nor_a_second_bound():
    assert "RHO_ROWS" not in whole(memory_of(pendulum(5)))
    assert "RHO_ROWS" in whole(memory_of(limits(5)))
    text = LaneSource(memory_of(limits(5)), "float64")
    m = memory_of(limits(5))
    lower = [n for n in m.rows if n not in m.upper]
    assert all("hi" not in text.bounds(n) for n in lower)


def test_soft_rows_are_no_equalities():
    """As in other engines: rho of an equality would pull them back to their bounds."""
    m = memory_of(soft_arm(5))
    text = LaneSource(m, "float64")
    soft = [n for n in m.rows if m.layout.row_slot(n).soft]
    assert {m.layout.row_slot(n).kind.name for n in soft} >= {"BOTH", "EQUALITY"}
    assert {text.inverse_rho(n) for n in soft} == {"R_ROW"}
