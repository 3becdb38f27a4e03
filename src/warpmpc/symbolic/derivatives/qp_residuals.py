"""Functions that evaluate the residuals of a QP stage by stage, without its matrices.

Reads: the stage functions of an MPC problem.  Produces: `ReportStep`s.  Each has a function that
linearises one stage again and multiplies with the solution at once.  A variable of stage k takes
part in the rows and the cost of the stages k - 1 and k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.derivatives.kkt_stages import StageFunctions, StageSymbols, part_of
from warpmpc.symbolic.derivatives.stage_model import StageModel
from warpmpc.symbolic.pattern import IntArray

# The outputs of a step: sums over all stages come first, then largest values.
REPORT_SUMS = ("slope",)
REPORT_MAXIMA = (
    "stationarity",
    "gradient",
    "dual",
    "primal",
    "slack",
    "y_size",
    "d_size",
    "z_size",
)


@dataclass(frozen=True, eq=False)
class ReportStep:
    """Stages of the problem that share one function.

    Attributes:
        function: Maps the inputs at the point, then d, v and 1/rho of the rows, to `REPORT_SUMS`
            (q'd) and `REPORT_MAXIMA`.  The latter are the largest absolute values of q + A'y, q,
            P d + q + A'y, A d - s, y times the bound that it belongs to, y, d, and z (the first
            input).
        stages: Numbers of the stages.
        in_rows: Rows of the elements of each input, ``[stages, n]``.
    """

    function: ca.Function
    stages: IntArray
    in_rows: tuple[IntArray, ...]


def report_steps(
    assembly: Assembly, stages: StageFunctions, d_rows: Sequence[Any], g_rows: Sequence[Any]
) -> list[ReportStep]:
    """Builds the functions of all stages of a problem.

    Args:
        assembly: Index tables of the problem.
        stages: Linearisations of the groups.
        d_rows: Rows of the step of the variables (z, z_next), per group.
        g_rows: Rows of v and of 1/rho, per group.
    """
    inputs = {**stages.inputs, "d": d_rows, "v": g_rows, "r": g_rows}
    symbols = StageSymbols(assembly, inputs)
    kinds: dict[Any, list[tuple[int, list[IntArray]]]] = {}
    for k in range(assembly.problem.horizon + 1):
        ks = [k] if k == 0 else [k - 1, k]
        rows, shape = symbols.rows(ks)
        groups = tuple(symbols.home[j][0] for j in ks)
        kinds.setdefault((groups, shape), []).append((k, rows))
    steps = []
    for number, ((groups, shape), members) in enumerate(kinds.items()):
        rows = [row for _, row in members]
        given = symbols.symbols(rows[0])
        parts = [
            _StageQP(assembly.models[group], stages, group, given, [place[at] for place in shape])
            for at, group in enumerate(groups)
        ]
        function = ca.Function(f"report_{number}", given, ca.cse(_report(parts)))
        ks = np.array([k for k, _ in members], dtype=np.int32)
        in_rows = tuple(np.stack(of_input) for of_input in zip(*rows, strict=True))
        steps.append(ReportStep(function, ks, in_rows))
    return steps


class _StageQP:
    """The contribution of one stage to the QP, and its products with a solution."""

    def __init__(
        self,
        model: StageModel,
        stages: StageFunctions,
        group: int,
        given: Sequence[ca.SX],
        places: Sequence[Sequence[int]],
    ):
        own = [part_of(vector, at) for vector, at in zip(given, places, strict=True)]
        *point, self.d, v, r = own
        self.z = point[0]
        self.model, found = model, stages.call(group, point)
        self.lower, self.upper = found.get("lower", ca.SX(0, 1)), found.get("upper", ca.SX(0, 1))
        self._A = found.get("A", ca.SX(0, 1))
        self._P, self._q = found["P"], found["q"]
        self.s = ca.fmin(ca.fmax(v, self.lower), self.upper)
        self.y = (v - self.s) / r
        self.n_w = model.w.numel()

    def gradient(self) -> list[ca.SX]:
        """Gradient of the cost over (z, z_next)."""
        out = [ca.SX(0)] * self.n_w
        for place, col in enumerate(self.model.gradient_cols.tolist()):
            out[col] = self._q[place]
        return out

    def of_rows(self) -> list[ca.SX]:
        """The product A'y."""
        out = [ca.SX(0)] * self.n_w
        for place, (row, col) in enumerate(self._entries()):
            out[col] += self._A[place] * self.y[row]
        return out

    def rows(self) -> list[ca.SX]:
        """The product A d."""
        out = [ca.SX(0)] * self.model.stage.g.numel()
        for place, (row, col) in enumerate(self._entries()):
            out[row] += self._A[place] * self.d[col]
        return out

    def curvature(self) -> list[ca.SX]:
        """The product P d."""
        out, hessian = [ca.SX(0)] * self.n_w, self.model.hessian
        for place, (i, j) in enumerate(zip(hessian.rows, hessian.cols, strict=True)):
            out[i] += self._P[place] * self.d[int(j)]
            if i != j:
                out[j] += self._P[place] * self.d[int(i)]
        return out

    def _entries(self) -> list[tuple[int, int]]:
        rows, cols = self.model.jacobian_positions
        return list(zip(rows.tolist(), cols.tolist(), strict=True))


def _report(parts: list[_StageQP]) -> list[ca.SX]:
    """Report of the last of two neighbouring stages; the first one touches its variables."""
    own, n_z = parts[-1], parts[-1].model.n_z

    def joined(name: str) -> list[ca.SX]:
        mine = getattr(own, name)()[:n_z]
        if len(parts) == 1:
            return mine
        before = getattr(parts[0], name)()[parts[0].model.n_z :]
        # The last stage may have variables that the stage before it does not know.
        before += [ca.SX(0)] * (n_z - len(before))
        return [a + b for a, b in zip(mine, before, strict=True)]

    gradient, of_rows, curvature = (joined(n) for n in ("gradient", "of_rows", "curvature"))
    slope = sum((q * own.d[i] for i, q in enumerate(own.gradient())), ca.SX(0))
    stationarity = [q + a for q, a in zip(gradient, of_rows, strict=True)]
    dual = [a + b for a, b in zip(stationarity, curvature, strict=True)]
    primal = [a - own.s[i] for i, a in enumerate(own.rows())]
    slack = [
        ca.if_else(y > 0, y * own.upper[i], ca.if_else(y < 0, y * own.lower[i], 0))
        for i, y in enumerate(ca.vertsplit(own.y) if own.y.numel() else [])
    ]
    sizes = ([own.y], [own.d[:n_z]], [own.z[:n_z]])
    maxima = (stationarity, gradient, dual, primal, slack, *sizes)
    return [ca.densify(slope), *(_largest(values) for values in maxima)]


def _largest(values: list[ca.SX]) -> ca.SX:
    found = ca.SX(0)
    for vector in values:
        for i in range(vector.numel()):
            found = ca.fmax(found, ca.fabs(vector[i]))
    return ca.densify(found)
