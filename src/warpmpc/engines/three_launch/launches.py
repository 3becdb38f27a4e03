"""The launches around the ADMM loop of one SQP iteration, on tiles in program order.

Reads: `KKTStep`s, `ReportStep`s and evaluations of stages, as programs with their rows.  Produces:
`ThreeLaunchKernels`, callable under `jax.jit`: linearise and factorise without K in memory; report,
search along the direction and take the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.kernel_source import Argument, KernelSource
from warpmpc.codegen.native.line_search import REPORT_ROWS, SearchRule
from warpmpc.codegen.stage_functions import StageCase, plan_stages
from warpmpc.engines.ldl.launch import REGISTER_FILE
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.runtime.ffi import launch
from warpmpc.engines.three_launch.factor_source import factor_body
from warpmpc.engines.three_launch.search_source import search_body
from warpmpc.symbolic.stage_elimination import StageElimination, StageTemplate

_FACTOR_BLOCK = 64
# The elimination spills with fewer; trial points gain more from other warps than from registers.
_FACTOR_REGISTERS = {"float32": 255, "float64": 255}
_SEARCH_REGISTERS = {"float32": 80, "float64": 128}


@dataclass(frozen=True, eq=False)
class ThreeLaunchPrograms:
    """All programs of one problem.

    Attributes:
        elimination: The elimination by stages.
        templates: Templates of the cases of `factor`.
        factor: Programs for (K, Q, U); outputs are rows of L, of nodes and of K.
        evaluate: Programs for cost and violations; their last input is the direction.
        report: Programs for residuals; their last inputs are direction, v and 1/rho.
        names: Names of the inputs at a point.
        nodes: Node of each variable, then of each row.
    """

    elimination: StageElimination
    templates: Sequence[StageTemplate]
    factor: Sequence[StageCase]
    evaluate: Sequence[StageCase]
    report: Sequence[StageCase]
    names: Sequence[str]
    nodes: np.ndarray


@dataclass(frozen=True, eq=False)
class Factored:
    """A linearised problem, in program order.

    Attributes:
        factor: L, then inverse pivots.
        K: Values of K, or one row of nothing.
        Q: Linear cost of variables, lower bounds of rows.
        U: Upper bounds of rows.
        R: 1/rho of rows.
        X: Start of x, and of v.
        status: `qp.types.Status` before the first iteration.
    """

    factor: jax.Array
    K: jax.Array
    Q: jax.Array
    U: jax.Array
    R: jax.Array
    X: jax.Array
    status: jax.Array


class ThreeLaunchKernels:
    """Kernels of one problem; their source is generated and compiled with the first call."""

    def __init__(
        self, stages: ThreeLaunchPrograms, rule: SearchRule, dtype: str, *, stores_K: bool
    ):
        """Plans the tables.

        Args:
            stages: Programs and rows.
            rule: Rule of the line search.
            dtype: "float32" or "float64".
            stores_K: Whether the ADMM loop needs K for its checks.
        """
        self._stages, self._rule, self._dtype, self._stores_K = stages, rule, dtype, stores_K
        self._plans = {
            name: plan_stages(getattr(stages, name)) for name in ("factor", "evaluate", "report")
        }
        # One warp per trial point, one for the residuals.
        self.parts = len(rule.ladder) + 2
        with jax.ensure_compile_time_eval():
            self._tables = {n: jnp.asarray(plan.table) for n, plan in self._plans.items()}
            self._nodes = jnp.asarray(stages.nodes, dtype=jnp.int32)

    def to_load(self) -> list[tuple[KernelSource, int]]:
        """Both kernels with their threads per block, for `load_all`."""
        return [(self.factor_source, _FACTOR_BLOCK), (self.search_source, self.parts * LANES)]

    @property
    def _point(self) -> list[Argument]:
        return [Argument(f"{name}_in") for name in self._stages.names]

    @cached_property
    def factor_source(self) -> KernelSource:
        """Declaration of the kernel of `factor`."""
        outputs = [Argument(f"{name}_out") for name in ("factor", "K", "Q", "U", "R", "X")]
        return KernelSource(
            name="fused_linearize_factor",
            title="Linearises the stages of an MPC problem and factorises its KKT matrix.",
            dtype=self._dtype,
            inputs=[
                *self._point,
                Argument("X_in"),
                Argument("S_in"),
                Argument("active_in", "whole"),
                Argument("numbers_in", "vector"),
                Argument("table_in", "table"),
                Argument("n_items", "number"),
                Argument("n_first", "number"),
                Argument("n_L", "number"),
            ],
            outputs=[*outputs, Argument("status_out", "whole")],
            body=factor_body(
                self._stages.elimination,
                self._stages.templates,
                self._plans["factor"],
                self._stages.names,
                self._dtype,
                stores_K=self._stores_K,
            ),
            parts=1,
            any_lanes=True,
            registers=_FACTOR_REGISTERS[self._dtype],
            plans=[self._plans["factor"]],
        )

    @cached_property
    def search_source(self) -> KernelSource:
        """Declaration of the kernel of `search`."""
        tables = ("points_in", "reports_in", "nodes_in")
        return KernelSource(
            name="fused_line_search",
            title="Residuals of a QP, cost and violation of all trial points, next point.",
            dtype=self._dtype,
            inputs=[
                *self._point,
                *(Argument(name) for name in ("X_in", "Q_in", "U_in", "R_in")),
                Argument("status_in", "whole"),
                *(Argument(name, "table") for name in tables),
                Argument("n_points", "number"),
                Argument("n_reports", "number"),
            ],
            outputs=[Argument(f"{name}_out") for name in ("z", "X", "S", "report")],
            body=search_body(
                self._rule,
                self._plans["evaluate"],
                self._plans["report"],
                self._stages.names,
                self._dtype,
            ),
            parts=self.parts,
            any_lanes=True,
            registers=min(_SEARCH_REGISTERS[self._dtype], REGISTER_FILE // (self.parts * LANES)),
            plans=[self._plans["evaluate"], self._plans["report"]],
        )

    def factor(
        self,
        point: Sequence[jax.Array],
        state: tuple[jax.Array, jax.Array],
        active: jax.Array,
        numbers: np.ndarray,
    ) -> Factored:
        """Linearises and factorises.

        Args:
            point: Arrays of the point, z first.
            state: X with x and y, and S with s of rows: where the ADMM loop starts.
            active: Which instances take part, ``[tiles, 1, 32]``.
            numbers: sigma, 1/rho of inequalities, equalities and free rows, the distance below
                which bounds are equal, and the size from which they are absent.
        """
        program, (tiles, _, lanes) = self._stages.elimination, point[0].shape
        n, n_L = program.n_nodes, program.n_L
        rows = {"factor_out": n_L + n, "K_out": program.K_order.size if self._stores_K else 1}
        rows |= dict.fromkeys(("Q_out", "U_out", "R_out", "X_out"), n)
        found = launch(
            self.factor_source,
            [
                *point,
                *state,
                active,
                jnp.asarray(numbers, dtype=self._dtype),
                self._tables["factor"],
                self._plans["factor"].n_items,
                sum(run.count for run in program.chains[0]),
                n_L,
            ],
            {**{name: (tiles, r, lanes) for name, r in rows.items()}, "status_out": active.shape},
            threads=-(-tiles * LANES // _FACTOR_BLOCK) * _FACTOR_BLOCK,
            block=_FACTOR_BLOCK,
        )
        return Factored(*found)

    def search(
        self, point: Sequence[jax.Array], found: Factored, X: jax.Array, status: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array], jax.Array]:
        """Takes a step along the direction in X.

        Args:
            point: Arrays of the point, z first.
            found: The linearised problem.
            X: x and v at the end of the ADMM loop.
            status: Status of the QPs.

        Returns:
            The new z, the state (X with x and y, S with s), and the report: `REPORT_ROWS`.
        """
        (tiles, n_z, lanes), n = point[0].shape, X.shape[1]
        rows = {"z_out": n_z, "X_out": n, "S_out": n, "report_out": len(REPORT_ROWS)}
        block = self.parts * LANES
        tables = (self._tables["evaluate"], self._tables["report"], self._nodes)
        z, X, S, report = launch(
            self.search_source,
            [
                *point,
                *(X, found.Q, found.U, found.R, status),
                *tables,
                self._plans["evaluate"].n_items,
                self._plans["report"].n_items,
            ],
            {name: (tiles, count, lanes) for name, count in rows.items()},
            threads=tiles * block,
            block=block,
        )
        return z, (X, S), report
