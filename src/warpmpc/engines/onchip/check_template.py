"""Native text of a QP that ends at a tolerance: the lanes of its warp vote; see `onchip_native`.

Residuals and certificates are those of `qp.termination`, see `engines.onchip.check_source`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from warpmpc.codegen.emit_native import literal
from warpmpc.engines.onchip.check_source import LaneChecks
from warpmpc.engines.onchip.solve_template import PLAIN_LOOP

# P, q or A with numbers that are not finite: nobody iterates on them.
FINITE = r"""
    {{
        Lanes odd_of = (Lanes)0;
        EACH_LANE {{
            {finite}
        }}
        if (!is_zero(odd_of)) status = NON_FINITE;
    }}"""

# The iterations up to a check keep their numbers in registers and leave before the last one of
# them: certificates compare what is before it and after it.
CHECKED_LOOP = r"""SCALAR checked_primal = 0, checked_dual = 0, checked_weight = 0;
    if (status == RUNNING) {{
        int t = 0;
        ROLLED while (status == RUNNING && t < n_admm) {{
            const int next = (t / CHECK_EVERY + 1) * CHECK_EVERY;
            const int due = next < n_admm ? next : n_admm;
            const bool first = t == 0, judged = t + 1 == due;
            const int end = first || judged ? t + 1 : due - 1;
            if (judged) EACH_LANE {{
                {remember}
            }}
            {loaded}
            ROLLED for (; t < end; ++t) {{
                {iterate}
            }}
            FORGET
            if (first) EACH_LANE {{
                {correct}
            }}
            if (judged) {{
                {check}
            }}
        }}
        spent += t;
    }}"""

CHECK = r"""
                enum {{ PRIMAL, PRIMAL_SCALE, DUAL, DUAL_SCALE, FLAT, COMBINATION, RISE,
                       X_CHANGE, Y_CHANGE, WEIGHT, MAXIMA }};
                Lanes of[MAXIMA], descent_of = (Lanes)0, support_of = (Lanes)0;
                Lanes odd_of = (Lanes)0;
                UNROLL for (int i = 0; i < MAXIMA; ++i) of[i] = (Lanes)0;
                #define GROW(i, value) \
                    {{ const SCALAR size = value; OF_LANE(of[i]) = MAX(OF_LANE(of[i]), size); }}
                #define SIZE(value) LIBM(fabs)(value)
                {judged}
                checked_primal = largest(of[PRIMAL]);
                checked_dual = largest(of[DUAL]);
                checked_weight = largest(of[WEIGHT]);
                const SCALAR x_change = largest(of[X_CHANGE]), y_change = largest(of[Y_CHANGE]);
                const SCALAR limit = EPS_DUAL_INF * x_change;
                if (x_change > EPS_DUAL_INF && summed(descent_of) < 0
                    && largest(of[FLAT]) <= limit && largest(of[RISE]) <= limit)
                    status = DUAL_INFEASIBLE;
                if (y_change > EPS_PRIM_INF && summed(support_of) < 0
                    && largest(of[COMBINATION]) <= EPS_PRIM_INF * y_change)
                    status = PRIMAL_INFEASIBLE;
                if (checked_primal <= EPS_ABS + EPS_REL * largest(of[PRIMAL_SCALE])
                    && checked_dual <= EPS_ABS + EPS_REL * largest(of[DUAL_SCALE]))
                    status = SOLVED;
                if (!is_zero(odd_of)) status = NON_FINITE;"""


# A report is of the last check: multipliers of a QP without solution are forgotten after it.
CHECKED_REPORT = r"""
primal = checked_primal; dual = checked_dual; weight = checked_weight;
"""


@dataclass(frozen=True)
class OnchipChecks:
    """When a QP ends; see `ADMMSettings`.

    Attributes:
        check_every: Iterations between checks, above zero.
        eps_abs: Tolerance of the residuals.
        eps_rel: Likewise.
        eps_prim_inf: Tolerance of certificates.
        eps_dual_inf: Likewise.
    """

    check_every: int
    eps_abs: float
    eps_rel: float
    eps_prim_inf: float
    eps_dual_inf: float

    def defines(self, dtype: str) -> list[str]:
        """The numbers of `CHECK`; HARD is what no linear coefficient of a soft side reaches."""
        values = {name.upper(): literal(value, dtype) for name, value in asdict(self).items()}
        values |= {"CHECK_EVERY": str(self.check_every), "HARD": "(SCALAR)1e37"}
        return [f"#define {name} {value}" for name, value in values.items()]


def qp_sources(
    loop: dict[str, str], text: LaneChecks, checks: OnchipChecks | None, *, doubts: bool
) -> dict[str, str]:
    """Parts of `onchip_native.SOLVE`: the ADMM iterations of a QP, and what is said of them.

    Args:
        loop: Parts of the loop.
        text: Of checks.
        checks: When a QP ends; None: after a fixed number of iterations.
        doubts: Whether QPs that are not finite are not even tried; with checks they never are.
    """
    finite = FINITE.format(finite="\n".join(text.finite())) if checks or doubts else ""
    if checks is None:
        return {"admm": PLAIN_LOOP.format(**loop), "finite": finite, "checked": ""}
    check = CHECK.format(judged="\n".join(text.check()))
    admm = CHECKED_LOOP.format(remember="\n".join(text.remember()), check=check, **loop)
    return {"admm": admm, "finite": finite, "checked": CHECKED_REPORT}
