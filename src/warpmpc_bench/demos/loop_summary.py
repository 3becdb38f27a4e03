"""What `warpmpc demo` prints about closed loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpmpc_bench.demos.loop import LoopDemo


def format_demo(loop: LoopDemo) -> str:
    """The result as text."""
    from warpmpc_bench.common.report import demo_result, facts, rate, status_note

    problem, settings, metrics = loop.system.problem, loop.system.settings, loop.metrics
    statuses = ", ".join(f"{_share(share)} {name}" for name, share in loop.statuses.items())
    rows = {
        "problem": f"{_count(loop.system.n_x, 'state')}, {_count(loop.system.n_u, 'input')}, "
        f"horizon {problem.horizon}: {problem.n_vars} variables, {problem.n_cons} rows",
        "solver": f"{settings.max_iter} SQP x {settings.qp_settings('float32').max_iter} ADMM "
        f"iterations per solve, float32, engine {loop.engine}",
        "compile": f"{loop.compile_s:.1f} s; kernels are cached, the next time takes less",
        "closed loop": f"{loop.steps} steps of {loop.system.control_dt:g} s for all in "
        f"{loop.run_s:.2f} s: {rate(loop.solves_per_s).strip()} MPC problems/s, "
        f"{rate(loop.iterations_per_s).strip()} SQP iterations/s",
        "success": _success(loop),
        "violations": f"{metrics['satisfied'].mean():.1%} keep all state constraints; worst "
        f"violation {metrics['violation'].max():.2g}, worst input excess "
        f"{metrics['input_excess'].max():.2g}",
        "solves": f"{statuses}{status_note(loop.statuses, fixed=settings.mode == 'fixed')}",
        "result": demo_result(correct=loop.correct),
    }
    title = f"{loop.options.batch} x {loop.options.name} in closed loop on {loop.device}"
    return facts(title, rows)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _share(share: float) -> str:
    return "<0.1%" if share < 1e-3 else f"{share:.1%}"


def _success(loop: LoopDemo) -> str:
    success = loop.metrics["success"]
    text = f"{success.mean():.1%} reach the goal ({int(success.sum())} of {success.size})"
    return text if loop.whole else f"{text}; a full loop has {loop.system.steps} steps"
