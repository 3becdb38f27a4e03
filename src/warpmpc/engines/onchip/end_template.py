"""Native text of SQP iterations that end at a tolerance; see `onchip_native`.

A problem that is converged, or that cannot go on, leaves its loop: nobody waits for it.  The rule
is that of `mpc.sqp.general`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from warpmpc.codegen.emit_native import literal

_JUDGE = r"""
    // Where no step is acceptable any more, the conditions alone decide.
    const bool at_rest = d_size <= TOL_STEP * MAX((SCALAR)1, z_size) || !accepted;
    const SCALAR kkt = MAX(stationarity, slack) / MAX((SCALAR)1, gradient);
    converged = usable && solvable && at_rest && worst_here <= TOL_VIOLATION && kkt <= TOL_KKT;
    SOFT
    if (converged) {
        taken = 0;
        cost_new = cost_here;
        squares_new = squares_here;
        absolute_new = absolute_here;
        worst_new = worst_here;
    }
    ++n_done;"""

# Multipliers of soft rows belong to s; they say something of z only where A d is s.
_SOFT = "converged = converged && primal <= TOL_VIOLATION;"

_LEAVE = " && !converged && accepted && usable"

# Behind all else: iterations, and whether the conditions hold.
COUNTED = 2
_COUNT = r"""
if (CHIEF) {
    status_of[status_out.shape[1] - 2] = n_done;
    status_of[status_out.shape[1] - 1] = converged;
}"""


@dataclass(frozen=True)
class OnchipEnd:
    """Tolerances of the SQP iteration; see `SQPSettings`.

    Attributes:
        tol_step: Of steps.
        tol_kkt: Of the optimality conditions.
        tol_violation: Of rows.
    """

    tol_step: float
    tol_kkt: float
    tol_violation: float

    def defines(self, dtype: str) -> list[str]:
        """The numbers."""
        return [f"#define {k.upper()} {literal(v, dtype)}" for k, v in asdict(self).items()]


def end_sources(end: OnchipEnd | None, dtype: str, *, soft: bool) -> dict[str, str]:
    """Parts of `onchip_native.SOLVE`; nothing for a fixed number of iterations.

    Args:
        end: Tolerances.
        dtype: "float32" or "float64".
        soft: Whether there are soft rows.
    """
    if end is None:
        last = "RECORD || iteration + 1 == n_iterations"
        return {"begin": "", "judge": "", "reported": last, "leave": "", "count": ""}
    begin = "\n".join(["", *end.defines(dtype), "int n_done = 0;", "bool converged = false;"])
    return {
        "begin": begin,
        "judge": _JUDGE.replace("SOFT", _SOFT if soft else ""),
        "reported": "true",
        "leave": _LEAVE,
        "count": _COUNT,
    }
