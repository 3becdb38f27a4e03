"""Which symbols the expressions of a stage may use; whose a wrong one is.

Reads: the stages of a problem.  Produces: nothing, or a sentence that names stage and symbol.
"""

from __future__ import annotations

from collections.abc import Sequence

import casadi as ca

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex
from warpmpc.problem.stage import Stage


def check_symbols(stages: Sequence[Stage], x0: ca.SX, shared: ca.SX) -> None:
    """Refuses symbols that a stage does not know.

    A stage knows its own z, z_next and p, and the x0 and shared of the problem; its guess knows p,
    x0, shared and tau.
    """
    ex.check_disjoint({"x0": x0, "shared": shared})
    seen: set[int] = set()
    for k, stage in enumerate(stages):
        if id(stage) in seen:
            continue
        seen.add(id(stage))
        for what, common in (("x0", x0), ("shared", shared)):
            own = {"z": stage.z, "z_next": stage.z_next, "p": stage.p, "tau": stage.tau}
            for name, column in own.items():
                ex.check_disjoint({f"{name} of stage {k}": column, what: common})
        _check_stage(k, stages, x0, shared)


def _check_stage(k: int, stages: Sequence[Stage], x0: ca.SX, shared: ca.SX) -> None:
    stage = stages[k]
    common = ca.vertcat(x0, shared, stage.p)
    known = set(ex.symbol_keys(ca.vertcat(stage.z, stage.z_next, common)))
    for what, expression in stage.expressions().items():
        _check_expression(f"Stage {k}: {what}", expression, known, k, stages)
    known_to_guess = set(ex.symbol_keys(ca.vertcat(common, stage.tau)))
    _check_expression(f"Stage {k}: guess", stage.guess, known_to_guess, k, stages)


def _check_expression(
    what: str, expression: ca.SX, known: set[int], k: int, stages: Sequence[Stage]
) -> None:
    for key, name in ex.used_symbols(expression).items():
        if key not in known:
            raise ProblemError(f"{what} uses {_whose(key, name, k, stages)}")


def _whose(key: int, name: str, k: int, stages: Sequence[Stage]) -> str:
    """What an unknown symbol is, and what to do about it."""
    nearest = sorted(range(len(stages)), key=lambda j: abs(j - k))
    owner = next((j for j in nearest if key in ex.symbol_keys(stages[j].z)), None)
    if owner == k + 1:
        return f"{name!r}, a variable of stage {owner}; pass z of stage {owner} as z_next."
    if owner is not None:
        return (
            f"{name!r}, a variable of stage {owner}, but stages couple with the next one only; "
            "carry the value from stage to stage as an additional variable."
        )
    for j in nearest:
        if key in ex.symbol_keys(stages[j].z_next):
            return (
                f"{name!r}, which is in z_next of stage {j} only; a stage sees its own z and "
                "z_next, the last one its z."
            )
        if key in ex.symbol_keys(stages[j].p):
            return (
                f"{name!r}, a parameter of stage {j}; add it to p of stage {k}, or put it into "
                "`shared`."
            )
    return f"the unknown symbol {name!r}; add it to z, z_next or p, or to x0 or shared."
