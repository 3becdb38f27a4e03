"""Exported C on an emulated Cortex-M4F with the memory of an STM32F405 (the Crazyflie's).

QEMU counts instructions, not cycles.  Needs gcc-arm-none-eabi, newlib for it, and qemu-system-arm.
"""

from __future__ import annotations

import re
import select
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warpmpc.learn.errors import DataError
from warpmpc.learn.export.host import include_flags

COMPILER, EMULATOR, SIZE = "arm-none-eabi-gcc", "qemu-system-arm", "arm-none-eabi-size"
FLAGS = (
    *("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard", "-O2"),
    # Fused multiply-add is what makes the unit fast; it rounds once instead of twice.
    *("-std=c99", "-ffp-contract=fast", "-ffunction-sections", "-fdata-sections"),
)
MACHINE = ("-M", "netduinoplus2", "-nographic")
WITHOUT_CONSOLE = ("-serial", "none", "-monitor", "none")  # standard input is the program's
SEMIHOSTING = ("-semihosting-config", "enable=on,target=native")
TIMEOUT_S = 120

START = """\
#include <stdint.h>
extern uint32_t _estack, __data_load, __data_start, __data_end;
void _start(void);
__attribute__((noreturn)) void Reset_Handler(void) {
  *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* turns the floating-point unit on */
  __asm volatile("dsb\\n isb");
  uint32_t *from = &__data_load, *to = &__data_start;
  while (to < &__data_end) *to++ = *from++;
  _start();
  for (;;) {
  }
}
void Hang(void) {
  for (;;) {
  }
}
__attribute__((section(".vectors"), used)) void *const vectors[16] = {
    &_estack, Reset_Handler, Hang, Hang, Hang, Hang, Hang, 0, 0, 0, 0, Hang, Hang, 0, Hang, Hang};
void _init(void) {}
void _fini(void) {}
"""

LINKER = """\
ENTRY(Reset_Handler)
MEMORY
{
  FLASH (rx)  : ORIGIN = 0x08000000, LENGTH = 1024K
  RAM   (rwx) : ORIGIN = 0x20000000, LENGTH = 128K
}
_estack = ORIGIN(RAM) + LENGTH(RAM);
SECTIONS
{
  .vectors : { KEEP(*(.vectors)) } > FLASH
  .text : {
    *(.text*) KEEP(*(.init)) KEEP(*(.fini)) *(.rodata*) *(.eh_frame*) . = ALIGN(4);
  } > FLASH
  .ARM.exidx : { __exidx_start = .; *(.ARM.exidx*) __exidx_end = .; } > FLASH
  .init_array : {
    __preinit_array_start = .; KEEP(*(.preinit_array*)) __preinit_array_end = .;
    __init_array_start = .; KEEP(*(SORT(.init_array.*))) KEEP(*(.init_array)) __init_array_end = .;
    __fini_array_start = .; KEEP(*(.fini_array*)) __fini_array_end = .;
    . = ALIGN(4); __data_load = .;
  } > FLASH
  .data : AT (__data_load) { __data_start = .; *(.data*) . = ALIGN(4); __data_end = .; } > RAM
  .bss (NOLOAD) : { __bss_start__ = .; *(.bss*) *(COMMON) . = ALIGN(4); __bss_end__ = .; } > RAM
  end = .; __end__ = .; PROVIDE(__stack = _estack);
}
"""

# The bits of all outputs, so that nothing is rounded by printing.
MAIN = """\
#include <stdint.h>
#include <stdio.h>
#include "policy.h"
static const uint32_t inputs[{count} * POLICY_NX] = {{{words}}};
int main(void) {{
  float u[POLICY_NU];
  for (int i = 0; i < {count}; ++i) {{
    policy((const float *)inputs + i * POLICY_NX, u);
    for (int j = 0; j < POLICY_NU; ++j) {{
      union {{ float number; uint32_t bits; }} both;
      both.number = u[j];
      printf("%08lx\\n", (unsigned long)both.bits);
    }}
  }}
  return 0;
}}
"""

# Called once or twice, with nothing else that differs.
COUNT_MAIN = """\
#include "policy.h"
volatile float seen;
static const float x[POLICY_NX] = {{{values}}};
int main(void) {{
  float u[POLICY_NU];
  for (volatile int i = 0; i < {calls}; ++i) {{
    policy(x, u);
    seen = u[0];
  }}
  return 0;
}}
"""


# A line of hexadecimal digits in, one out, as long as there are any.
SERVE_MAIN = """\
#include <stdint.h>
#include <stdio.h>
void {function}(const float *x, float *u);
int main(void) {{
  union {{ float number; uint32_t bits; }} both;
  float x[{n_x}], u[{n_u}];
  for (;;) {{
    for (int i = 0; i < {n_x}; ++i) {{
      both.bits = 0;
      for (int digit = 0; digit < 8;) {{
        const int c = getchar();
        if (c == EOF) return 0;
        if (c < '0') continue;
        both.bits = both.bits << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        ++digit;
      }}
      x[i] = both.number;
    }}
    {function}(x, u);
    for (int i = 0; i < {n_u}; ++i) {{
      both.number = u[i];
      printf("%08lx", (unsigned long)both.bits);
    }}
    printf("\\n");
    fflush(stdout);
  }}
}}
"""


@dataclass(frozen=True)
class CortexReport:
    """What one policy needs on the controller.

    Attributes:
        u: Outputs ``[n, n_u]``, as computed there.
        flash: Bytes of code and constants of policy.c alone.
        ram: Bytes of its variables; the stack is not in it.
        stack: Bytes of stack that its functions need together at most.
        instructions: Per call.
    """

    u: np.ndarray
    flash: int
    ram: int
    stack: int
    instructions: int


def missing_tools() -> list[str]:
    """What has to be installed before a policy can be tried; empty if nothing."""
    return [name for name in (COMPILER, EMULATOR, SIZE) if shutil.which(name) is None]


def run_on_cortex_m4(source: Path, build: Path, x: np.ndarray, n_u: int) -> CortexReport:
    """Compiles, runs and measures a policy.c.

    Args:
        source: A policy.c with its policy.h beside it.
        build: Folder for programs.
        x: States ``[n, n_x]``, float32.
        n_u: Number of inputs.
    """
    _prepare(build)
    x = np.ascontiguousarray(x, dtype=np.float32)
    words = ",".join(f"{word}u" for word in x.view(np.uint32).ravel().tolist())
    image = _link([source], build, "run", MAIN.format(count=len(x), words=words))
    text = _command([EMULATOR, *MACHINE, *SEMIHOSTING, "-kernel", str(image)], build)
    bits = np.array([int(line, 16) for line in text.split()], dtype=np.uint32)
    values = ",".join(f"{value!r}f" for value in x[0].tolist())
    counts = [_instructions(source, build, values, calls) for calls in (1, 2)]
    flash, ram, stack = _sizes(source, build)
    u = bits.view(np.float32).reshape(len(x), n_u)
    return CortexReport(u, flash, ram, stack, counts[1] - counts[0])


class CortexFunction:
    """A function from states to inputs on the emulated controller, which waits between calls."""

    def __init__(
        self, sources: Sequence[Path], build: Path, sizes: tuple[int, int], function: str = "policy"
    ):
        """Compiles it and starts the emulator.

        Args:
            sources: All C files; headers lie beside them.
            build: Folder for programs.
            sizes: Number of states and of inputs.
            function: What is called.
        """
        _prepare(build)
        self._sizes, n_x, n_u = sizes, *sizes
        main = SERVE_MAIN.format(function=function, n_x=n_x, n_u=n_u)
        image = _link(sources, build, "serve", main)
        command = [EMULATOR, *MACHINE, *WITHOUT_CONSOLE, *SEMIHOSTING, "-kernel", str(image)]
        self._errors = (build / "serve.err").open("w+b")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Inputs ``[n, n_u]`` at states ``[n, n_x]``."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        return np.array([self._one(row) for row in x.view(np.uint32)]).view(np.float32)

    def _one(self, bits: np.ndarray) -> np.ndarray:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None  # both are pipes
        assert back is not None
        try:
            to.write(("".join(f"{word:08x}" for word in bits.tolist()) + "\n").encode())
            to.flush()
        except BrokenPipeError:
            pass  # it has ended, as an empty answer says, too
        ready, _, _ = select.select([back], [], [], TIMEOUT_S)
        line = back.readline().decode().strip() if ready else ""
        if len(line) != 8 * self._sizes[1]:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()[-500:]
            raise DataError(f"{EMULATOR} gave no answer: {said or line!r}")
        words = [int(line[i : i + 8], 16) for i in range(0, len(line), 8)]
        return np.array(words, dtype=np.uint32)

    def __enter__(self) -> CortexFunction:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the emulator."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def _prepare(build: Path) -> None:
    """Refuses to begin without tools, and writes what all programs share."""
    missing = missing_tools()
    if missing:
        raise DataError(
            f"{', '.join(missing)} not found; on Debian: apt-get install --no-install-recommends "
            "gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
        )
    build.mkdir(parents=True, exist_ok=True)
    (build / "start.c").write_text(START)
    (build / "memory.ld").write_text(LINKER)


def _link(sources: Sequence[Path], build: Path, name: str, main: str) -> Path:
    """A program from a main function and C files."""
    (build / f"{name}.c").write_text(main)
    crt = _command([COMPILER, *FLAGS, "-print-file-name=rdimon-crt0.o"], build).strip()
    image = build / f"{name}.elf"
    sources = [path.resolve() for path in sources]
    files = [str(build / "start.c"), str(build / f"{name}.c"), *map(str, sources), crt]
    options = ["--specs=rdimon.specs", "-nostartfiles", "-T", str(build / "memory.ld")]
    more = [*include_flags(sources), "-Wl,--gc-sections", "-lm", "-o", str(image)]
    _command([COMPILER, *FLAGS, *options, *files, *more], build)
    return image


def _instructions(source: Path, build: Path, values: str, calls: int) -> int:
    """Instructions of a whole run: one line of the trace each."""
    image = _link([source], build, f"count{calls}", COUNT_MAIN.format(values=values, calls=calls))
    log = build / f"count{calls}.log"
    trace = ["-singlestep", "-d", "exec,nochain", "-D", str(log)]
    _command([EMULATOR, *MACHINE, *SEMIHOSTING, *trace, "-kernel", str(image)], build)
    with log.open() as lines:
        count = sum(line.startswith("Trace") for line in lines)
    log.unlink()
    return count


def _sizes(source: Path, build: Path) -> tuple[int, int, int]:
    compiled = build / "policy.o"
    command = [COMPILER, *FLAGS, "-fstack-usage", "-c", str(source.resolve()), "-o", str(compiled)]
    _command(command, build)
    text, data, bss = (
        int(v) for v in _command([SIZE, str(compiled)], build).split("\n")[1].split()[:3]
    )
    usage = compiled.with_suffix(".su").read_text()
    stack = sum(int(found) for found in re.findall(r"\t(\d+)\t", usage))
    return text + data, data + bss, stack


def _command(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{command[0]} did not end within {TIMEOUT_S} s.") from error
    if done.returncode:
        raise DataError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
