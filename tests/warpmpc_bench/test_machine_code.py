"""`benchmarks/machine_code.py`: what instructions say of waiting, and cycles of a loop."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "machine_code.py"
NONE = 7


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("machine_code", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(text, stall=1, sets=NONE, reads=NONE, waits=0):
    """An instruction as nvdisasm writes it; the upper half of the second word is for waiting."""
    control = stall | sets << 5 | reads << 8 | waits << 11
    words = f"/* 0x{12345:016x} */", f"/* 0x{control << 41 | 0xABC:016x} */"
    return [
        f"        /*0040*/              {text} ;     {words[0]}",
        f"                  {words[1]}",
    ]


LOAD = line("LDS R1, [R2+0x80]", sets=0)
ADD = line("@P0 FADD R3, R1, R3", stall=4, waits=1)
STORE = line("STS [R2], R3", reads=2)


def test_parts_of_an_instruction(tool):
    code, labels = tool.parsed([*LOAD, ".L_x_7:", *ADD, *STORE, ".L_x_8:"])
    assert [i.name for i in code] == ["LDS", "FADD", "STS"]
    assert code[0][1:] == (1, 0, NONE, 0)
    assert code[1] == ("FADD R3, R1, R3", 4, NONE, NONE, 1)
    assert code[2].reads == 2
    assert labels == {".L_x_7": 1, ".L_x_8": 3}


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (ADD + ADD, 8),
        (LOAD + ADD, 30 + 4),
        (LOAD + line("NOP", stall=10) + ADD, 30 + 4),
        (LOAD + line("NOP", stall=15) * 3 + ADD, 46 + 4),
        (STORE + line("MOV R3, R4", waits=4), 10 + 1),
        (line("MOV R1, R2", stall=0), 1),
    ],
)
def test_waiting(tool, lines, wanted):
    code, _ = tool.parsed(lines)
    assert tool.cycles(code, repeats=1) == wanted
    assert tool.cycles(code) == wanted  # scoreboards of one round are free in the next


def test_a_load_of_one_round_is_waited_for_in_the_next(tool):
    code, _ = tool.parsed(ADD + LOAD)
    assert tool.cycles(code, repeats=1) == 5
    assert tool.cycles(code, repeats=2) == 30 - 1 + 5


def test_the_loop_of_iterations(tool):
    """Shorter ones, those that divide, and jumps ahead are not it."""
    inside = LOAD + ADD * 200 + line("SHFL.UP PT, R4, R3, 0x1, RZ") + STORE
    back = line("@P1 BRA `(.L_x_1)")
    whole = [
        *(".L_x_0:", *ADD, *line("BRA `(.L_x_3)")),
        *(".L_x_1:", *inside, *back),
        *(".L_x_2:", *inside, *line("MUFU.RCP R5, R4"), *line("BRA `(.L_x_2)")),
        *(".L_x_3:", *LOAD, *STORE, *line("BRA `(.L_x_3)"), *line("BRA `(.L_x_0)")),
    ]
    found = tool.admm_loop(*tool.parsed(whole))
    assert found == tool.parsed([*inside, *back])[0]
    assert tool.admm_loop(*tool.parsed(whole[: whole.index(".L_x_1:")])) is None


def test_advice_without_the_disassembler(tool, monkeypatch):
    monkeypatch.setattr(tool, "DISASSEMBLER", "no-such-package")
    monkeypatch.setattr(tool.shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match="nvdisasm is missing: pip install no-such-package"):
        tool.disassembler()
