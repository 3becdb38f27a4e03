"""The layering of the source tree as a pure function of file contents.

Reads: a path below ``src/warpmpc`` (or ``warpmpc_bench/...``) and its source.  Produces: one
sentence for each broken rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

MAX_LINES = 600
LAYERS = ("problem", "symbolic", "codegen", "engines", "qp", "mpc", "sim", "learn")
FOUNDATION = ("_checks", "_conventions", "_errors", "_moved", "_version")
ROOT = "__init__"  # the public names; whoever imports them imports every layer

# Who may be imported from where.  A layer sees itself and everything to its left; systems are
# problems with the settings to solve them, some of them of robots; robots make expressions for
# problems, and their plant is a function of arrays, so that they see nothing of the solvers; viz
# draws what all of them make, and is public in part.
ALLOWED: dict[str, set[str]] = {
    **{layer: {*LAYERS[: i + 1], *FOUNDATION} for i, layer in enumerate(LAYERS)},
    **{module: set(FOUNDATION) for module in FOUNDATION},
    # Pictures of robots are written by the scenes of viz, which are imported when one is drawn.
    "robots": {"robots", "problem", "viz", *FOUNDATION},
    "systems": {"systems", "problem", "qp", "mpc", "robots", *FOUNDATION},
    "viz": {*LAYERS, "systems", "viz", *FOUNDATION},
    ROOT: {*LAYERS, "robots", "systems", "viz", *FOUNDATION},
}
ALLOWED["learn"].add("systems")  # tasks by name are systems with noise and costs
# Only the command line, the outermost module of the library, sees everything.  The benchmarks are a
# package of their own, which imports the library; the library never imports them.
ALLOWED["cli"] = {*ALLOWED, "cli"}
BENCH = "warpmpc_bench"
ALLOWED[BENCH] = {*ALLOWED}

# C++ templates are as long as the kernels that they make.  Modules named `*_source.py` are Python
# that writes C++, and count like all others.
TEMPLATES = ("_template.py",)
NATIVE = "codegen/native/"

# Third-party packages that are confined to some layers.
CONFINED = {
    # Benchmarks compare with CasADi's solvers.
    "casadi": {"problem", "symbolic", "codegen", "robots", "systems", BENCH},
    "mujoco": {"robots"},
    "warp": {"codegen", "engines"},
}


def violations(path: str, source: str) -> list[str]:
    """Broken rules of one file; `path` is relative to ``src/warpmpc``, with forward slashes."""
    layer = PurePosixPath(path).with_suffix("").parts[0]
    if layer not in ALLOWED:
        where = "add it to tests/support/layout_rules.py"
        return [f"{path}: {layer!r} has no place in the layering; {where}."]
    found: list[str] = []
    n_lines = len(source.splitlines())
    is_template = path.endswith(TEMPLATES) or path.startswith(NATIVE)
    if n_lines > MAX_LINES and not is_template:
        found.append(f"{path}: {n_lines} lines, at most {MAX_LINES} are allowed; split the file.")
    for line, module in _imported_modules(path, ast.parse(source)):
        package, *inside = module.split(".")
        if package in CONFINED and layer not in CONFINED[package]:
            found.append(f"{path}:{line}: {package} is confined to {sorted(CONFINED[package])}.")
        if package == BENCH and layer != BENCH:
            found.append(f"{path}:{line}: {layer} must not import {BENCH}.")
        if package == "warpmpc" and (target := _layer_of(inside)) not in ALLOWED[layer]:
            found.append(f"{path}:{line}: {layer} must not import {target}.")
    return found


def _layer_of(inside: list[str]) -> str:
    """Layer of ``warpmpc.<inside>``; a name that is no layer is one of the public names."""
    return inside[0] if inside and inside[0] in ALLOWED else ROOT


def _imported_modules(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import at any depth, `import_module` of a literal included."""
    folders = PurePosixPath(path).parts[:-1]
    here = folders if folders[:1] == (BENCH,) else ("warpmpc", *folders)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = [*here[: len(here) - level + 1]] if level else []
                base += [module] if module else []
                # `from warpmpc import qp` names the layer only in the imported name.
                yield from ((node.lineno, ".".join([*base, alias.name])) for alias in names)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(func).rpartition(".")[2] in ("import_module", "__import__"):
                    yield node.lineno, name
            case _:
                pass
