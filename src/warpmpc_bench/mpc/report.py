"""Tables of the MPC benchmark: one line per row, and a summary.

Reads: rows of `warpmpc_bench.mpc.bench`.  Produces: strings; the command line prints them.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpmpc_bench.common.record import Row
from warpmpc_bench.common.report import (
    left_out,
    percent,
    rate,
    roof_text,
    times,
    usable,
    workload,
)

# SQP iterations/s of the published implementation on one H200, float32, by batch size; for a
# system, its horizon, and its SQP and ADMM iterations.  The linear MPC with one factor that all
# instances share.
PUBLISHED: dict[tuple[str, int, int, int], dict[int, float]] = {
    ("cartpole", 100, 10, 50): {1000: 7.8e3, 10_000: 51e3, 100_000: 237e3},
    ("quadrotor", 40, 1, 25): {1000: 5.8e3, 10_000: 43e3, 100_000: 177e3},
    ("linear", 40, 1, 25): {10_000: 88e3, 100_000: 268e3},
}
HEADER = (
    f"{'variant':<15}{'engine':<8}{'dtype':<9}{'batch':>7}  {'SQP it/s':>9}{'ms/solve':>9}"
    f"{'of roof':>8}{'not ADMM':>9}{'theta':>9}{'max':>9}{'success':>9}"
    f"{'control':>9}{'p95':>9}{'compile':>9}{'memory':>9}"
)


def line(row: Row) -> str:
    """One row of the table."""
    engine = "-" if row["skipped"] else row["settings"]["engine"]
    start = f"{row['solver']:<15}{engine:<8}{row['dtype']:<9}{row['batch']:>7}"
    if row["skipped"]:
        return f"{start}  skipped: {row['skipped']}"
    if row["kind"] == "baseline":
        return start + _baseline(row)
    timing, found, memory = row["sqp"], row["accuracy"], row["memory"]
    phases = row["phases"] or {"other_share": None}
    roof = None if engine == "onchip" else timing["floor_fraction"]  # not limited by memory
    theta, control = found["loop"]["theta"], found["control"]["relative"]
    used = "-" if memory is None else f"{rate(memory['peak_bytes']).strip()}B"
    return (
        f"{start}  {rate(timing['per_s']):>9}{row['latency']['step_ms']:>9.3g}"
        f"{percent(roof):>8}{percent(phases['other_share']):>9}"
        f"{_small(theta[0]):>9}{_small(theta[1]):>9}"
        f"{percent(success_of(row)):>9}{_small(control['median']):>9}{_small(control['p95']):>9}"
        f"{row['compile']['total_s']:>7.1f} s{used:>9}"
        f"{'' if row['correct'] else '  WRONG: ' + ', '.join(found['failed'])}"
    )


def _baseline(row: Row) -> str:
    """The rest of the line of a baseline; it counts solves instead of SQP iterations."""
    loop = row["accuracy"]["loop"]
    return (
        f"  {'-':>9}{row['latency']['step_ms']:>9.3g}{'-':>8}{'-':>9}{'-':>9}{'-':>9}"
        f"{percent(loop['success']):>9}{'-':>9}{'-':>9}{row['compile']['total_s']:>7.1f} s{'-':>9}"
        f"  {rate(row['solve']['per_s']).strip()} solves/s, {percent(loop['solved'])} converged"
        f"{'' if row['correct'] else '  WRONG: ' + ', '.join(row['accuracy']['failed'])}"
    )


def success_of(row: Row) -> float | None:
    """Success of the whole batch, or of the sample where the loop was too short, if known."""
    found = row["accuracy"]
    whole, sample = found["loop"]["success"], found["sample"]
    return whole if whole is not None or sample is None else sample["here"]["success"]


def _small(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.1e}"


def summary(rows: Sequence[Row]) -> str:
    """What a run showed, in a few lines."""
    lines: list[str] = []
    good = [row for row in usable(rows) if row["kind"] == "variant"]
    for dtype in dict.fromkeys(row["dtype"] for row in good):
        alike = [row for row in good if row["dtype"] == dtype]
        lines += [_best(max(alike, key=_per_s)), *_quickest(alike)]
    others = [row for row in usable(rows) if row["kind"] == "baseline"]
    lines += [_compared(row, good) for row in others]
    return "\n".join(lines + left_out(rows))


def _compared(row: Row, variants: Sequence[Row]) -> str:
    """Solves per second of a baseline beside those of the best variant."""
    text = f"{row['label']}: {rate(row['solve']['per_s']).strip()} MPC solves/s to convergence"
    if not variants:
        return text
    best = max(one["sqp"]["per_s"] / one["settings"]["sqp_iterations"] for one in variants)
    ratio = times(best / row["solve"]["per_s"])
    return f"{text}; the best variant does {rate(best).strip()} with fixed iterations, {ratio}"


def _per_s(row: Row) -> float:
    return row["sqp"]["per_s"]


def _best(row: Row) -> str:
    name, horizon, sqp_iterations, admm_iterations = workload(row)
    engine, cores = row["settings"]["engine"], f", {row['cores']} cores"
    text = (
        f"best {row['dtype']}: {rate(_per_s(row)).strip()} SQP iterations/s of {name} (N = "
        f"{horizon}, {sqp_iterations} x {admm_iterations}, {row['solver']}, engine {engine}, batch "
        f"{row['batch']}{cores if row['platform'] == 'cpu' else ''})"
    )
    if engine != "onchip":
        text += f", {roof_text(row['sqp']['floor_fraction'])}"
    ratio = speedup(row)
    published = f", {times(ratio)} the published implementation on an H200"
    return text if ratio is None else text + published


def _quickest(rows: Sequence[Row]) -> list[str]:
    """How long one solve of the smallest batch takes, if it is small."""
    row = min(rows, key=lambda row: row["batch"])
    times_ms = row["latency"]
    if times_ms["call_ms"] is None:
        return []
    on_device = times_ms["kernels_ms"]
    return [
        f"a solve of batch {row['batch']} takes {times_ms['step_ms']:.3g} ms in the loop, "
        f"{times_ms['call_ms']:.3g} ms as a call from Python"
        + ("" if on_device is None else f", {on_device:.3g} ms in kernels")
    ]


def published_rates(row: Row) -> dict[int, float]:
    """Rates of the published implementation for what a row measures, by batch size."""
    return PUBLISHED.get(workload(row), {})


def speedup(row: Row) -> float | None:
    """Rate over that of the published implementation at the same batch size and settings."""
    known = published_rates(row).get(row["batch"])
    if known is None or row["dtype"] != "float32" or row["platform"] != "gpu":
        return None
    return _per_s(row) / known
