"""CasADi itself, and other translators, where their packages are present.

Add an entry to `BASELINES`.  A baseline that cannot run says why; that becomes a row, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from warpmpc.systems.synthetic import SIZE, evaluate
from warpmpc_bench.common.baseline import Baseline, needs, on_one_core
from warpmpc_bench.common.timing import Measured, measure
from warpmpc_bench.translate.case import Case
from warpmpc_bench.translate.variants import measure_function

CASADI_BATCH = 256


def measure_casadi(case: Case, repeats: int) -> Measured:
    """CasADi's virtual machine on one CPU core; nothing is exported or compiled."""
    x, u = case.arguments
    mapped = case.function.map(case.batch)
    run = measure(lambda: mapped(x.T, u.T), repeats=repeats)
    return Measured({"run": run}, {"emitter": "none"}, case.accuracy(evaluate(case.function, x, u)))


def measure_jaxadi(case: Case, repeats: int) -> Measured:
    """JaxADi's function of one instance, mapped over the batch."""

    def make() -> Callable[..., Any]:
        from jaxadi import convert  # pyright: ignore[reportMissingImports]

        one = jax.vmap(convert(case.function))
        return lambda x, u: one(x[..., None], u[..., None])

    return measure_function(case, repeats, "jaxadi", make)


_ROWS = 64 * SIZE  # generous: values that live at once
BASELINES: dict[str, Baseline] = {
    "casadi": on_one_core(
        "CasADi, one CPU core", measure_casadi, "casadi", CASADI_BATCH, 8 * _ROWS
    ),
    "jaxadi": Baseline(
        "JaxADi",
        measure_jaxadi,
        needs("jaxadi", "jaxadi"),
        {"gpu": 100_000, "cpu": 10_000},
        lambda itemsize: itemsize * _ROWS,
    ),
}
