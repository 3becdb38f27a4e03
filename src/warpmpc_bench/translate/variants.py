"""The emitters of CasADi functions: how long from the function to results, phase by phase.

Export ends with code: the source of a Warp module, or a program that JAX has traced and lowered.
Compilation ends when it can be called.  No code comes from a cache, but Warp has compiled its
headers, which takes a second or two once per process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np

from warpmpc.codegen.emit_jax import jax_function
from warpmpc.codegen.from_casadi import translate
from warpmpc.engines.runtime.batching import from_tiles, to_tiles
from warpmpc.engines.runtime.ffi import form
from warpmpc.engines.runtime.loading import empty_caches
from warpmpc.engines.runtime.stage_kernels import StageCase, StageKernels
from warpmpc.systems.synthetic import SIZE
from warpmpc_bench.common.timing import Measured, build, measure
from warpmpc_bench.translate.case import Case, function_of

VARIANTS = {"native": "native Warp kernel", "jax": "JAX function"}


def measure_native(case: Case, repeats: int) -> Measured:
    """The kernel on batch-first arrays; conversion to tiles included."""
    kernels, export_s, compile_s = _native(case.length, case.dtype)

    def call(x: jax.Array, u: jax.Array) -> jax.Array:
        (s,) = kernels(to_tiles(x), to_tiles(u))
        return from_tiles(s, case.batch)

    program, result = build(call, *case.arguments)
    phases = {"export_s": export_s, "compile_s": compile_s + program.first_call_s}
    run = measure(program.call, *case.arguments, repeats=repeats, first_call_s=sum(phases.values()))
    settings = {"emitter": "native", "result_dtype": str(result.dtype), **phases}
    return Measured({"run": run}, settings, case.accuracy(result))


@cache
def _native(length: int, dtype: str) -> tuple[StageKernels, float, float]:
    """The kernel of a function with the seconds of export and compilation; batches share it."""
    if length > 1:
        _native(1, dtype)  # the first kernel of a process also compiles Warp's headers
    function, rows = function_of(length), np.arange(SIZE)[None]
    with empty_caches():
        start = time.perf_counter()
        case = StageCase(translate(function), np.array([0]), (rows, rows), (rows,))
        kernels = StageKernels(f"translate_{length}", [case], ["x", "u"], {"s": SIZE}, dtype)
        for source in kernels.sources:
            form(source)
        exported = time.perf_counter()
        kernels.build()
    return kernels, exported - start, time.perf_counter() - exported


def measure_jax(case: Case, repeats: int) -> Measured:
    """The JAX function on the same arrays."""
    return measure_function(case, repeats, "jax", lambda: jax_function(translate(case.function)))


def measure_function(
    case: Case, repeats: int, emitter: str, make: Callable[[], Callable[..., Any]]
) -> Measured:
    """Times a JAX function from its making on.

    Args:
        case: Function and arguments.
        repeats: Timings per median.
        emitter: Its name in the row.
        make: Makes the function of ``[batch, 8]`` arrays from CasADi's; the first result counts.
    """
    start = time.perf_counter()
    lowered = jax.jit(make()).lower(*case.arguments)
    exported = time.perf_counter()
    compiled = lowered.compile()
    result = jax.block_until_ready(compiled(*case.arguments))
    phases = {"export_s": exported - start, "compile_s": time.perf_counter() - exported}
    run = measure(compiled, *case.arguments, repeats=repeats, first_call_s=sum(phases.values()))
    # In 64-bit mode of JAX other translators may compute in float64 whatever they are given.
    settings = {"emitter": emitter, "result_dtype": str(result[0].dtype), **phases}
    return Measured({"run": run}, settings, case.accuracy(result[0]))


MEASURE: dict[str, Callable[[Case, int], Measured]] = {
    "native": measure_native,
    "jax": measure_jax,
}
