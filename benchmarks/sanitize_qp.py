"""A small case of every kernel of the QP loops, to be run under NVIDIA's compute-sanitizer.

    export JAX_PLATFORMS=cpu
    compute-sanitizer --tool memcheck --error-exitcode 1 python benchmarks/sanitize_qp.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python benchmarks/sanitize_qp.py

Launches the kernels through Warp alone, so that the tools watch nothing else, and checks the
iterates, so that a clean report is one of a run that did the work.  Without CUDA: on the CPU.
"""

import numpy as np
import warp as wp

from warpmpc.engines.panels.factor_plan import deal_factor, panel_factor
from warpmpc.engines.panels.factor_source import panel_factor_kernel
from warpmpc.engines.panels.loop_source import panel_admm_kernel
from warpmpc.engines.panels.shape import factor_bytes, loop_bytes, scratch_numbers, window_rows
from warpmpc.engines.panels.sweep_plan import PanelNodes, deal, panel_items
from warpmpc.engines.staged.stage_source import (
    factor_source,
    iteration_source,
    side_layout,
    staged_admm_kernel,
    staged_factor_kernel,
)
from warpmpc.symbolic.elimination import product_terms
from warpmpc.symbolic.pattern import SparsePattern, build_kkt
from warpmpc.symbolic.stage_elimination import build_stage_elimination
from warpmpc.systems.patterns import cartpole

TILES, ITERATIONS, CHECK_EVERY, LEAD = 2, 6, 3, 2
SIGMA, OMEGA, RHO = 1e-6, 1.6, 0.1
TOLERANCE = {"float32": 2e-4, "float64": 1e-11}


class Case:
    """64 QPs of a short cartpole problem, all the same but for their bounds, in program order."""

    def __init__(self, dtype: str):
        """Draws numbers and analyses the stages."""
        system = cartpole(horizon=4)
        self.kkt = build_kkt(SparsePattern.from_scipy(system.P), SparsePattern.from_scipy(system.A))
        self.program = build_stage_elimination(self.kkt, system.stages, np.zeros(0, dtype=int))
        self.dtype, self.n = dtype, self.program.n_nodes
        rng, K = np.random.default_rng(0), self.kkt.K_pattern
        self.is_row = self.program.node_order >= self.kkt.n_vars
        self.values = 0.3 * rng.standard_normal(K.nnz)
        sign = np.where(np.arange(self.n) < self.kkt.n_vars, 1.0, -1 / RHO)
        self.values[K.row_idx == K.col_idx] = sign
        self.lower = rng.standard_normal((TILES, self.n, 32))
        self.upper = self.lower + 0.5
        self.tables = product_terms(self.program, self.kkt.n_vars)

    def real(self, array: np.ndarray) -> wp.array:
        """On the device."""
        return wp.array(np.ascontiguousarray(array, dtype=self.dtype))

    def empty(self, *shape: int) -> wp.array:
        """Filled with NaN: what a kernel does not write shows."""
        return self.real(np.full(shape, np.nan))

    def inputs(self, factor: wp.array) -> list[wp.array]:
        """What every loop reads."""
        shape = (TILES, self.n, 32)
        in_order = self.values[self.program.K_order][None, :, None]
        K = np.broadcast_to(in_order, (TILES, self.values.size, 32))
        arrays = [K, self.lower, self.upper, np.full(shape, 1 / RHO), np.zeros(shape)]
        ones = [np.ones(shape), np.ones((TILES, 1, 32))]
        tables = [wp.array(table) for table in self.tables]
        numbers = self.real(np.array([SIGMA, OMEGA, 1e-9, 0, 1e-9, 1e-9, 1 / RHO, 1 / RHO]))
        begin = wp.array(np.zeros(1, dtype=np.int32))
        return [factor, *(self.real(a) for a in (*arrays, *ones)), *tables, numbers, begin]

    def outputs(self) -> list[wp.array]:
        """What every loop changes or writes."""
        whole = [wp.array(np.full((TILES, 1, 32), value, dtype=np.int32)) for value in (1, 0)]
        shape = (TILES, self.n, 32)
        return [
            self.real(np.zeros(shape)),
            *whole,
            self.empty(TILES, 5, 32),
            self.empty(*shape),
            self.empty(*shape),
        ]

    def error(self, X: np.ndarray) -> float:
        """Largest difference to a dense solution, over the size of the iterates."""
        K, at = np.zeros((self.n, self.n)), self.program.node_order
        pattern = self.kkt.K_pattern
        K[pattern.row_idx, pattern.col_idx] = K[pattern.col_idx, pattern.row_idx] = self.values
        K, row = K[np.ix_(at, at)], self.is_row[:, None]
        lower, upper = (a.transpose(1, 0, 2).reshape(self.n, -1) for a in (self.lower, self.upper))
        w = np.zeros_like(lower)
        for t in range(ITERATIONS):
            s = np.clip(w, lower, upper) if t else np.zeros_like(w)
            z = np.linalg.solve(K, np.where(row, 2 * s - w, SIGMA * w - lower))
            v = s + (1 - OMEGA) * (w - s) + OMEGA * z / RHO
            w = np.where(row, v, OMEGA * z + (1 - OMEGA) * w)
        found = X.transpose(1, 0, 2).reshape(self.n, -1)
        return float(np.abs(found - w).max() / np.abs(w).max())


def unrolled(case: Case, *, prefetch: int) -> float:
    """Error of the generated stages."""
    program, threads = case.program, TILES * 32
    factor = case.empty(TILES, program.n_L + program.n_nodes, 32)
    inputs = case.inputs(factor)
    everything = wp.array(np.ones(TILES, dtype=np.int32))
    layout = side_layout(program)
    kernel = staged_factor_kernel(factor_source(program), case.dtype, 128, layout).kernel()
    static = [inputs[1], everything, program.n_L, prefetch]
    wp.launch(kernel, threads, inputs=static, outputs=[factor], block_dim=64)
    kernel = staged_admm_kernel(iteration_source(program), case.dtype, 128, layout).kernel()
    outputs, limits = case.outputs(), [CHECK_EVERY, ITERATIONS, ITERATIONS, 1]
    inputs += [program.n_L, prefetch, *limits]
    wp.launch(kernel, threads, inputs=inputs, outputs=outputs, block_dim=64)
    return case.error(outputs[0].numpy())


def panels(case: Case, warps: int) -> float:
    """Error of factorisation and sweeps by panels with a number of warps per tile."""
    program = case.program
    elimination = program.in_program_order()
    plan, sweeps = panel_factor(elimination), panel_items(elimination)
    factor = case.empty(TILES, program.n_L + program.n_nodes, 32)
    inputs = case.inputs(factor)
    tables = [plan.panels, plan.leaves, plan.sources, plan.working, *deal_factor(plan, warps)]
    everything = wp.array(np.ones(TILES, dtype=np.int32))
    scratch = scratch_numbers(factor_bytes(plan.n_slots, case.dtype), warps, case.dtype)
    kernel = panel_factor_kernel(case.dtype, warps, scratch, 128).kernel()
    static = [inputs[1], everything, *(wp.array(t) for t in tables), program.n_L, plan.n_slots]
    threads = 32 * warps
    wp.launch(kernel, TILES * threads, inputs=static, outputs=[factor], block_dim=threads)
    nodes = PanelNodes(program.n_L, case.is_row, np.full(case.n, -1))
    dealt = [deal(sweep, nodes, warps) for sweep in sweeps]
    streams = [wp.array(t) for one in dealt for t in (one.records, one.begin, one.triangles)]
    outputs, limits = case.outputs(), [CHECK_EVERY, ITERATIONS, ITERATIONS, 1]
    zero = sweeps[0].zero
    inputs += [*streams, program.n_L, zero, window_rows(zero + 2, warps), *limits]
    needed = loop_bytes(zero + 2, warps, LEAD, case.dtype)
    scratch = scratch_numbers(needed, warps + 1, case.dtype)
    kernel = panel_admm_kernel(case.dtype, warps, LEAD, scratch, 128, soft=False).kernel()
    threads = 32 * (warps + 1)
    wp.launch(kernel, TILES * threads, inputs=inputs, outputs=outputs, block_dim=threads)
    return case.error(outputs[0].numpy())


def main() -> None:
    """Every kernel and dtype."""
    for dtype, tolerance in TOLERANCE.items():
        case = Case(dtype)
        found = {f"unrolled, prefetch {p}": unrolled(case, prefetch=p) for p in (0, 1)}
        found |= {f"panels, {warps} warps": panels(case, warps) for warps in (1, 8)}
        for name, error in found.items():
            print(f"{dtype}, {name}: relative error {error:.1e}")  # noqa: T201
            assert error < tolerance


if __name__ == "__main__":
    main()
