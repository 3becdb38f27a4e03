"""Reads the machine code of on-chip kernels without a GPU: cycles of their ADMM loop.

    pip install nvidia-cuda-nvdisasm
    python benchmarks/machine_code.py [car pendulum cartpole ...] [--together 4] [--profile]

Instructions of an NVIDIA GPU encode how long to wait after them, and for which loads.  Therefore
the cycles that one warp alone takes for an iteration can be added up (an H200 took 10 to 25 % more,
by `phases.cycles` at batch 1).  They grow where the compiler runs out of registers: 32 values that
stayed alive for no reason were seen here as 15 to 70 % more cycles, long before anything is
spilled, and on an H200 as 6 % longer solves of pendulums.  The effect of other warps is not
modelled.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import NamedTuple

import warp as wp

from warpmpc import MPCSolver
from warpmpc.engines.onchip.launch import OnchipCounts
from warpmpc.engines.runtime.loading import start_warp
from warpmpc.mpc.sqp.onchip import OnchipIteration
from warpmpc_bench.mpc.setup import MPCSetup

HOPPER = 90
DISASSEMBLER = "nvidia-cuda-nvdisasm"
NO_SCOREBOARD = 7
SCOREBOARDS = 6
# Cycles until a result is there, for instructions without a fixed number; about what an H200 takes.
LATENCY = {"LDS": 30, "SHFL": 25, "MUFU": 22, "LDL": 200, "LDG": 300, "LDC": 60}
OTHER_LATENCY, READ_LATENCY = 25, 10
SHORTEST_LOOP = 150  # instructions; an ADMM iteration of a pendulum has 468

_LABEL = re.compile(r"^(\.L_x_\d+):")
_CODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(.*?);.*/\* 0x[0-9a-f]{16} \*/")
_WORD = re.compile(r"^\s*/\* (0x[0-9a-f]{16}) \*/")
_REGISTER = re.compile(r"\bR(\d+)\b")
_TARGET = re.compile(r"^BRA.*`\((\.L_x_\d+)\)")


class Instruction(NamedTuple):
    """An instruction with its encoded waiting times.

    Attributes:
        text: Instruction without its predicate.
        stall: Cycles before the next one.
        sets: Scoreboard that is busy until its result is there, or `NO_SCOREBOARD`.
        reads: The same until its operands have been read.
        waits: Bits of the scoreboards that it waits for.
    """

    text: str
    stall: int
    sets: int
    reads: int
    waits: int

    @property
    def name(self) -> str:
        """Operation without its variants."""
        return self.text.split()[0].split(".")[0]


def parsed(lines: Sequence[str]) -> tuple[list[Instruction], dict[str, int]]:
    """Instructions, and the number of that behind each label, from ``nvdisasm -c -hex``."""
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        code, word = _CODE.match(line), _WORD.match(after)
        if code and word:
            control = int(word[1], 16) >> 41
            bits = (control & 15, control >> 5 & 7, control >> 8 & 7, control >> 11 & 63)
            found.append(Instruction(code[1].strip(), *bits))
    return found, labels


def loops(code: Sequence[Instruction], labels: dict[str, int]) -> Iterator[list[Instruction]]:
    """What lies between a label and a jump back to it."""
    for i, instruction in enumerate(code):
        target = _TARGET.match(instruction.text)
        if target and labels.get(target[1], i + 1) <= i:
            yield list(code[labels[target[1]] : i + 1])


def admm_loop(code: Sequence[Instruction], labels: dict[str, int]) -> list[Instruction] | None:
    """The shortest long loop that exchanges values and neither divides nor reads tables."""
    without = {"MUFU", "LDG", "WARPSYNC"}
    some = [
        loop
        for loop in loops(code, labels)
        if len(loop) > SHORTEST_LOOP
        and (names := {i.name for i in loop}) >= {"SHFL", "LDS", "STS"}
        and not names & without
    ]
    return min(some, key=len, default=None)


def cycles(loop: Sequence[Instruction], repeats: int = 3) -> int:
    """Cycles of one warp alone for the last one of some repetitions."""
    ready, now, begin = [0] * SCOREBOARDS, 0, 0
    for _ in range(repeats):
        begin = now
        for i in loop:
            now = max([now, *(t for b, t in enumerate(ready) if i.waits >> b & 1)])
            takes = ((i.sets, LATENCY.get(i.name, OTHER_LATENCY)), (i.reads, READ_LATENCY))
            for scoreboard, latency in takes:
                if scoreboard != NO_SCOREBOARD:
                    ready[scoreboard] = max(ready[scoreboard], now + latency)
            now += max(i.stall, 1)
    return now - begin


def disassembler() -> str:
    """Where the program is; ends this one if it is nowhere."""
    try:
        of_package = [f for f in files(DISASSEMBLER) or () if f.name == "nvdisasm"]
    except PackageNotFoundError:
        of_package = []
    found = str(of_package[0].locate()) if of_package else shutil.which("nvdisasm")
    if found is None:
        raise SystemExit(f"nvdisasm is missing: pip install {DISASSEMBLER}")
    return found


def compiled(name: str, together: int, folder: Path, *, profile: bool) -> Path:
    """The kernel of a system with the settings of its benchmark, for Hopper."""
    made = MPCSetup(name).make()
    solver = MPCSolver(made.problem, made.settings, "float32", "onchip")
    iteration = OnchipIteration(solver.programs, solver.qp, solver.settings)
    counts = OnchipCounts(1, 1, record=False, restart=False, profile=profile)
    text = iteration.kernel.kernel_source(counts, list(solver.programs.point_rows), together)
    start_warp()
    wp.compile_aot_module(text.kernel().module, arch=HOPPER, module_dir=folder, use_ptx=False)
    (cubin,) = folder.glob("*.cubin")
    return cubin


def described(cubin: Path, program: str) -> str:
    """One line on a kernel, by a disassembler."""
    command = [program, "-c", "-hex", str(cubin)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code, labels = parsed(text.splitlines())
    registers = 1 + max(int(r) for i in code for r in _REGISTER.findall(i.text))
    figures = f"{len(code)} instructions, {registers} registers, "
    figures += f"{text.count('SpillRefill')} spills and refills; "
    loop = admm_loop(code, labels)
    if loop is None:
        return figures + "no ADMM loop found (long ones are folded)"
    return figures + f"ADMM iteration: {len(loop)} instructions, {cycles(loop)} cycles"


def main() -> int:
    """Describes some systems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("systems", nargs="*", default=["car", "pendulum", "cartpole"])
    parser.add_argument("--together", type=int, default=1, help="problems of a block")
    parser.add_argument("--profile", action="store_true", help="the kernel that counts cycles")
    options = parser.parse_args()
    program = disassembler()  # looked for before the work
    for name in options.systems:
        with tempfile.TemporaryDirectory() as folder:
            cubin = compiled(name, options.together, Path(folder), profile=options.profile)
            sys.stdout.write(f"{name}: {described(cubin, program)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
