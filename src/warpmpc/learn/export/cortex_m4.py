"""Exported C on an emulated Cortex-M4F with the memory of an STM32F405 (the Crazyflie's).

QEMU counts instructions, not cycles.  Needs gcc-arm-none-eabi, newlib for it, and qemu-system-arm.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warpmpc.learn.errors import DataError

COMPILER, EMULATOR, SIZE = "arm-none-eabi-gcc", "qemu-system-arm", "arm-none-eabi-size"
FLAGS = (
    *("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard", "-O2"),
    # Fused multiply-add is what makes the unit fast; it rounds once instead of twice.
    *("-std=c99", "-ffp-contract=fast", "-ffunction-sections", "-fdata-sections"),
)
MACHINE = ("-M", "netduinoplus2", "-nographic")
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
    missing = missing_tools()
    if missing:
        raise DataError(
            f"{', '.join(missing)} not found; on Debian: apt-get install --no-install-recommends "
            "gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
        )
    build.mkdir(parents=True, exist_ok=True)
    (build / "start.c").write_text(START)
    (build / "memory.ld").write_text(LINKER)
    x = np.ascontiguousarray(x, dtype=np.float32)
    words = ",".join(f"{word}u" for word in x.view(np.uint32).ravel().tolist())
    image = _link(source, build, "run", MAIN.format(count=len(x), words=words))
    text = _command([EMULATOR, *MACHINE, *SEMIHOSTING, "-kernel", str(image)], build)
    bits = np.array([int(line, 16) for line in text.split()], dtype=np.uint32)
    values = ",".join(f"{value!r}f" for value in x[0].tolist())
    counts = [_instructions(source, build, values, calls) for calls in (1, 2)]
    flash, ram, stack = _sizes(source, build)
    u = bits.view(np.float32).reshape(len(x), n_u)
    return CortexReport(u, flash, ram, stack, counts[1] - counts[0])


def _link(source: Path, build: Path, name: str, main: str) -> Path:
    """A program from a main function and the policy."""
    (build / f"{name}.c").write_text(main)
    crt = _command([COMPILER, *FLAGS, "-print-file-name=rdimon-crt0.o"], build).strip()
    image = build / f"{name}.elf"
    files = [str(build / "start.c"), str(build / f"{name}.c"), str(source.resolve()), crt]
    options = ["--specs=rdimon.specs", "-nostartfiles", "-T", str(build / "memory.ld")]
    more = ["-I", str(source.resolve().parent), "-Wl,--gc-sections", "-lm", "-o", str(image)]
    _command([COMPILER, *FLAGS, *options, *files, *more], build)
    return image


def _instructions(source: Path, build: Path, values: str, calls: int) -> int:
    """Instructions of a whole run: one line of the trace each."""
    image = _link(source, build, f"count{calls}", COUNT_MAIN.format(values=values, calls=calls))
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
