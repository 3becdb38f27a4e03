"""What `warpmpc info NAME` says about a benchmark system: sizes, elimination and memory.

Reads: an entry of `SYSTEMS`.  Produces: one dictionary, and its text.  Nothing is compiled.
"""

from __future__ import annotations

from typing import Any

from warpmpc.cli.arguments import check_name, full_name


def describe_system(given: str) -> dict[str, Any]:
    """Sizes of a system with its published settings, in float32 and as this machine solves it."""
    from warpmpc import systems

    name = full_name(given)
    check_name(name, systems.SYSTEMS, "system")
    system = systems.make(name)
    problem, solver = system.problem, system.solver()
    at = solver.programs.assembly
    n, m = problem.n_vars, problem.n_cons
    diagonal = int((at.P_pattern.row_idx == at.P_pattern.col_idx).sum())
    sizes = {key: rows.size for key, rows in problem.param_names.items()}
    return {
        "system": name,
        "title": systems.describe(name).title,
        "horizon": problem.horizon,
        "control_dt": system.control_dt,
        "n": n,
        "m": m,
        "n_x": system.n_x,
        "n_u": system.n_u,
        "params": sizes,
        "n_params": problem.n_params,
        "nnz_P": at.P_pattern.nnz,
        "nnz_A": at.A_pattern.nnz,
        # Both triangles and the whole diagonal, as papers count.
        "nnz_K": 2 * (at.P_pattern.nnz - diagonal + at.A_pattern.nnz) + n + m,
        "programs": [
            {
                "stages": len(group.ks),
                "variables": int(group.stage.z.numel()),
                "rows": int(group.stage.g.numel()),
            }
            for group in problem.groups
        ],
        "sqp_iterations": system.settings.max_iter,
        "admm_iterations": None if system.settings.qp is None else system.settings.qp.max_iter,
        "engine": solver.engine,
        "engine_reason": solver.engine_reason,
        "bytes_per_instance": solver.bytes_per_instance,
        **_elimination(solver),
    }


def _elimination(solver: Any) -> dict[str, Any]:
    """Fill of the elimination of the QPs; nothing where a solve is one launch, which has no L."""
    program = None if solver.engine == "onchip" else getattr(solver.qp.loop, "program", None)
    if program is None:
        return {"nnz_L": None, "multiply_adds": None}
    below = program.elimination.L_pattern.col_counts.astype(int)
    return {"nnz_L": program.n_L, "multiply_adds": int((below * (below + 1) // 2).sum())}


def format_system(s: dict[str, Any]) -> str:
    """The description as text."""
    params = ", ".join(f"{name} ({size})" for name, size in s["params"].items())
    groups = ", ".join(
        f"{g['stages']} x {g['variables']} variables and {g['rows']} rows" for g in s["programs"]
    )
    rows = {
        "problem": f"n = {s['n']}, m = {s['m']}, horizon {s['horizon']}, every {s['control_dt']} s",
        "state, input": f"{s['n_x']}, {s['n_u']}",
        "parameters": f"{s['n_params']}, with the state: {params}",
        "stages": groups,
        "K": f"nnz(P) = {s['nnz_P']}, nnz(A) = {s['nnz_A']}, nnz(K) = {s['nnz_K']} in full",
        "iterations": f"{s['sqp_iterations']} SQP x {s['admm_iterations']} ADMM, as published",
        "engine": f"{s['engine']}, {s['engine_reason']}",
        "memory": f"at most {s['bytes_per_instance'] / 1e6:.3f} MB per instance in float32",
    }
    if s["nnz_L"] is not None:
        fill = f"nnz(L) = {s['nnz_L']}, {s['multiply_adds']} multiply-adds to factorise"
        rows["elimination"] = fill
    return "\n".join([f"{s['system']}: {s['title']}", *(f"  {k:<13}{v}" for k, v in rows.items())])
