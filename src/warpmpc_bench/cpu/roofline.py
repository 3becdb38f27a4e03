"""What a core can do at most, measured by our own kernels, and which share of it a solve reaches.

Reads: a solver and its rate in one thread.  Produces: bytes and operations per SQP iteration,
rates, and shares of the bandwidth of the second level cache and of the peak of multiply-adds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from warpmpc.codegen.kernel_source import Argument, KernelSource
from warpmpc.codegen.native.preamble import PREAMBLE
from warpmpc.engines.runtime.ffi import core_cache, host
from warpmpc.mpc.solver import MPCSolver
from warpmpc.qp.loops.kernels import KernelLoop
from warpmpc_bench.common.record import Row
from warpmpc_bench.mpc.bytes import counted_bytes

# An ADMM iteration does so many for each node of K, beside the triangular solves.
_NODE_OPERATIONS = 10
_CHAINS = 12  # independent multiply-adds, more than one takes cycles
_ROUNDS = 20_000

_PEAK = """
if (thread) return;
Pack sums[CHAINS];
const Pack factor = (SCALAR)0.999, term = (SCALAR)1e-3;
_Pragma("unroll") for (int i = 0; i < CHAINS; ++i) sums[i] = (SCALAR)i;
if (reads) {
    // Each line of the array once per round.
    for (int round = 0; round < rounds; ++round)
        for (int row = 0; row + CHAINS <= x_in.shape[1]; row += CHAINS)
            _Pragma("unroll") for (int i = 0; i < CHAINS; ++i)
                sums[i] += *(const Pack*)(x_in.data + (row + i) * WIDTH);
} else {
    for (int round = 0; round < rounds; ++round)
        _Pragma("unroll") for (int i = 0; i < CHAINS; ++i) sums[i] = sums[i] * factor + term;
}
_Pragma("unroll") for (int i = 0; i < CHAINS; ++i)
    for (int l = 0; l < WIDTH; ++l) y_out.data[i] += sums[i][l];
"""


def machine_limits(dtype: str = "float32") -> dict[str, float]:
    """Bytes per second from the second level cache, and operations per second, of one core."""
    source = KernelSource(
        name="core_limits",
        title="Reads an array often, or multiplies and adds.",
        dtype=dtype,
        inputs=[Argument("x_in"), Argument("rounds", "number"), Argument("reads", "number")],
        outputs=[Argument("y_out")],
        head=f"#define CHAINS {_CHAINS}\n{PREAMBLE[dtype]}",
        body=_PEAK,
        merged=32,
    )
    width = 64 // np.dtype(dtype).itemsize
    rows = core_cache() // 2 // 64 // _CHAINS * _CHAINS  # half of the cache: nothing is evicted
    array = np.zeros((1, rows, width), dtype=dtype)
    few = max(1, _ROUNDS * _CHAINS // rows)
    reading = _fastest(source, array, few, reads=1)
    adding = _fastest(source, array, _ROUNDS, reads=0)
    return {
        "bytes_per_s": few * array.nbytes / reading,
        "operations_per_s": 2 * _ROUNDS * _CHAINS * width / adding,
    }


def _fastest(source: KernelSource, array: np.ndarray, rounds: int, *, reads: int) -> float:
    """Seconds of the fastest of some launches."""
    running = host()
    assert running is not None
    result = np.zeros((1, _CHAINS, 1), dtype=array.dtype)
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        running.launch_arrays(source, [array, rounds, reads, result], 32)
        times.append(time.perf_counter() - begin)
    return min(times)


def roofline(solver: MPCSolver, per_s: float, limits: Mapping[str, float]) -> Row | None:
    """Counts and rates of one SQP iteration in one thread; None where no factor is streamed.

    Args:
        solver: A solver of one SQP iteration.
        per_s: Instances per second, time in kernels alone.
        limits: See `machine_limits`.
    """
    if not isinstance(solver.qp.loop, KernelLoop) or solver.engine == "onchip":
        return None
    program, iterations = solver.qp.loop.program, solver.qp.settings.max_iter
    bytes_moved = counted_bytes(solver)["total"]
    # Both sweeps: a multiplication and an addition per entry of L.
    operations = iterations * (4 * program.n_L + _NODE_OPERATIONS * program.n_nodes)
    return {
        "bytes": bytes_moved,
        "operations_of_admm": operations,
        "bytes_per_s": bytes_moved * per_s,
        "operations_per_s": operations * per_s,
        "share_of_cache_bandwidth": bytes_moved * per_s / limits["bytes_per_s"],
        "share_of_peak": operations * per_s / limits["operations_per_s"],
        "limits": dict(limits),
    }
