"""Write the source of every generated kernel to a folder, and compare two such folders.

    python tools/kernel_sources.py write FOLDER [--systems pendulum cartpole ...]
    python tools/kernel_sources.py compare OLD NEW [--preprocessed]

The sources are those that Warp hands to its compilers, for the CPU and for CUDA, of all systems,
engines and both dtypes.  Entries of kernels on the CPU have the same bodies and are left out.
Nothing is compiled and no GPU is needed.  Two trees whose folders are equal run the same kernels,
so this is the proof that moving code has changed nothing.  Numbers that only count functions of a
process, and hashes of Warp, are taken out of the sources.  With `--preprocessed` the sources are
compared after `gcc -E`, white space and parentheses that group nothing aside: they are equal if
only macros, comments or the order of definitions of macros differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
import warp as wp
from warp._src import context

from warpmpc import (
    LDLSettings,
    LDLSolver,
    MPCSolver,
    SettingsError,
    SQPSettings,
    StagedSettings,
    systems,
)
from warpmpc.engines.onchip.launch import OnchipKernel
from warpmpc.engines.runtime import ffi

SYSTEMS = ("pendulum", "car", "linear", "cartpole", "quadrotor", "quadrotor_obstacles")
DTYPES = ("float32", "float64")
BATCH = 33  # two tiles
CHECK_EVERY = 10
TOGETHER = 4  # on-chip problems of a block, which only a GPU would choose
INDEX = "index.json"

# The engines and their requests: arguments of `MPCSolver`, fields of its `SQPSettings`, and
# iterations between checks of the residuals.
Case = tuple[dict[str, Any], dict[str, Any], int]
CASES: dict[str, Case] = {
    "three_launch": ({"engine": "staged"}, {}, 0),
    "three_launch_checked": ({"engine": "staged"}, {}, CHECK_EVERY),
    "three_launch_two_sides": (
        {"engine": "staged", "staged": StagedSettings(sides=2)},
        {},
        CHECK_EVERY,
    ),
    "staged": ({"engine": "staged"}, {"fused": False}, CHECK_EVERY),
    "panels": ({"engine": "staged", "staged": StagedSettings(code="panels")}, {}, CHECK_EVERY),
    "sparse": ({"engine": "sparse"}, {}, CHECK_EVERY),
    "dense": ({"engine": "dense"}, {}, CHECK_EVERY),
    "onchip": ({"engine": "onchip"}, {"convexify": "gershgorin"}, 0),
    "onchip_blocks": ({"engine": "onchip"}, {"convexify": "gershgorin"}, 0),
    "onchip_merit": ({"engine": "onchip"}, {"convexify": "gershgorin", "record": True}, 0),
    "onchip_converging": (
        {"engine": "onchip"},
        {"convexify": "gershgorin", "mode": "converge"},
        CHECK_EVERY,
    ),
    "interior_point": ({"engine": "sparse"}, {"method": "interior_point"}, CHECK_EVERY),
}


class Recorder:
    """Keeps the source of every kernel that is made while it is active."""

    def __init__(self, folder: Path):
        """Starts to listen; kernels are no longer compiled in this process."""
        self._folder, self._made, self.index = folder, [], {}
        folder.mkdir(parents=True, exist_ok=True)
        original = context.Kernel.__init__
        made = self._made

        def remember(kernel: Any, *args: Any, **options: Any) -> None:
            original(kernel, *args, **options)
            made.append(kernel)

        context.Kernel.__init__ = remember
        ffi.load_kernel = ffi.load_together = lambda *_: None
        ffi.host = lambda: None  # entries on the CPU have the same bodies

    def write(self, case: str) -> None:
        """Writes what was made since the last call, under the name of a case."""
        for kernel in self._made:
            for target in ("cpu", "cuda"):
                source = normalised(source_of(kernel, target))
                digest = hashlib.sha256(source.encode()).hexdigest()[:16]
                suffix = "cpp" if target == "cpu" else "cu"
                name = f"{kernel.key.rpartition('__locals__')[2]}_{digest}.{suffix}"
                (self._folder / name).write_text(source)
                self.index.setdefault(case, []).append(name)
        self._made.clear()


def source_of(kernel: Any, target: str) -> str:
    """What Warp hands to the compiler of a target."""
    module = kernel.module
    block = 1 if target == "cpu" else 256
    options = module.resolve_options(wp.config, block_dim=block)
    options = options | {"output_arch": None if target == "cpu" else 90, "block_dim": block}
    builder = context.ModuleBuilder(module, options, target=target)
    registers = f"// options: {kernel.options}\n"
    return registers + builder.codegen(target)


def normalised(source: str) -> str:
    """A source without the counters and hashes that differ between processes and file names."""
    source = re.sub(r"\w+__locals__(\w+)", r"\1", source)
    source = re.sub(r"^#line.*\n", "", source, flags=re.MULTILINE)
    source = re.sub(r"//[^\n]*\.py:\d+.*", "//", source)
    source = re.sub(r"_[0-9a-f]{8}(?=_(?:cpu|cuda)_|\b)", "", source)
    names = sorted(set(re.findall(r"static (?:CUDA_CALLABLE )?\w+ (\w+)_\d+\(", source)))
    for name in names:
        source = re.sub(rf"\b{name}_\d+\(", f"{name}(", source)
    return source


def trace(solver: MPCSolver, x0: np.ndarray) -> None:
    """Makes the kernels of a solve without compiling or running any."""
    jax.eval_shape(lambda x: solver.solve(x).z, jnp.asarray(x0, dtype=solver.dtype))


def mpc_cases(name: str, dtype: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """The solvers of one system, and what makes their kernels."""
    system = systems.make(name)
    x0 = system.sample(BATCH, 0)
    for case, (arguments, fields, check_every) in CASES.items():
        qp = replace(system.settings.qp_settings(dtype), check_every=check_every)
        if "method" in fields:  # most settings of a system have no effect there and are refused
            settings = SQPSettings(**fields)
        else:
            settings = replace(system.settings, qp=qp, **fields)
        if case.endswith("merit"):
            search = replace(settings.line_search, kind="merit")
            settings = replace(settings, line_search=search)

        together = TOGETHER if case == "onchip_blocks" else 1

        def make(
            arguments: dict[str, Any] = arguments,
            settings: Any = settings,
            together: int = together,
        ) -> None:
            OnchipKernel.together = lambda *_, **__: together
            solver = MPCSolver(system.problem, settings, dtype, **arguments)
            trace(solver, x0)
            trace_gradient(solver, x0)

        yield f"{name}/{dtype}/{case}", make


def trace_gradient(solver: MPCSolver, x0: np.ndarray) -> None:
    """Makes the kernels of a gradient."""

    def cost(x: jax.Array) -> jax.Array:
        return solver.solve(x).z.sum()

    jax.eval_shape(jax.grad(cost), jnp.asarray(x0, dtype=solver.dtype))


def ldl_cases(dtype: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """The table-driven LDL' kernels with each of their options."""
    rng = np.random.default_rng(0)
    dense = rng.random((30, 30)) < 0.2
    K = sp.csc_matrix(np.triu(dense + dense.T + 30 * np.eye(30)))
    options = {
        "plain": {},
        "batch_first": {"layout": "batch_first"},
        "no_levels": {"level_scheduling": False},
    }
    for name, given in options.items():

        def make(given: dict[str, Any] = given) -> None:
            solver = LDLSolver(K, dtype=dtype, settings=LDLSettings(**given))
            values = jnp.zeros((BATCH, solver.nnz), dtype=dtype)
            rhs = jnp.zeros((BATCH, solver.n), dtype=dtype)
            jax.eval_shape(lambda v, r: solver.solve(solver.factor(v), r), values, rhs)

        yield f"ldl/{dtype}/{name}", make


def write(folder: Path, names: list[str]) -> int:
    """Writes all sources of some systems."""
    jax.config.update("jax_enable_x64", True)
    wp.init()
    recorder = Recorder(folder)
    for dtype in DTYPES:
        cases = [case for name in names for case in mpc_cases(name, dtype)]
        for case, make in [*cases, *ldl_cases(dtype)]:
            try:
                make()
            except SettingsError as error:
                recorder.index[case] = [f"refused: {error}"]
            recorder.write(case)
            sys.stdout.write(f"{case}: {len(recorder.index.get(case, []))}\n")
            sys.stdout.flush()
    (folder / INDEX).write_text(json.dumps(recorder.index, indent=1, sort_keys=True))
    return 0


def preprocessed(path: Path) -> str:
    """The tokens of a source behind the preprocessor; headers of Warp stay out of it."""
    text = re.sub(r"^\s*#\s*include.*$", "", path.read_text(), flags=re.MULTILINE)
    # Kernels that are made inside functions have lost this prefix in `normalised`.
    text = re.sub(r"\bwp_args_", "", text)
    # The name of a native function does not matter.
    for name in {*re.findall(r"\bvoid (\w+)\(\s+(?:wp::|tile_)", text)}:
        text = re.sub(rf"\b{name}\b", "native_function", text)
    device = ["-D__CUDA_ARCH__=900"] if path.suffix == ".cu" else []
    command = ["gcc", "-E", "-P", "-x", "c++", *device, "-"]
    found = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return " ".join(without_idle_parentheses(re.findall(r"\w+|[^\w\s]", found.stdout)))


# What may stand before and behind parentheses that group nothing, whatever is in them.
_BEFORE = {"=", "(", ",", ";", "[", "{"}
_BEHIND = {";", ",", ")", "]"}
_TYPES = {"float", "double", "int", "unsigned", "bool", "Pack", "Lanes", "Offset", "size_t"}


def without_idle_parentheses(tokens: list[str]) -> list[str]:
    """Tokens without parentheses that group nothing, as the arguments of macros bring them.

    Dropped are those around a name, a number or a call with an operator on either side, and those
    around all of an argument or of the right-hand side of an assignment.
    """
    idle = True
    while idle:
        idle = {i for pair in _pairs(tokens) if _is_idle(tokens, *pair) for i in pair}
        tokens = [token for i, token in enumerate(tokens) if i not in idle]
    return tokens


def _pairs(tokens: list[str]) -> Iterator[tuple[int, int]]:
    """Places of parentheses that belong together."""
    opened: list[int] = []
    for i, token in enumerate(tokens):
        if token == "(":
            opened.append(i)
        elif token == ")" and opened:
            yield opened.pop(), i


def _is_idle(tokens: list[str], first: int, last: int) -> bool:
    before, behind = tokens[first - 1], tokens[min(last + 1, len(tokens) - 1)]
    if before[-1].isalnum() or before[-1] in "_])":
        return before == "return" and behind == ";"  # else a call or a cast
    outside = _at_top(tokens[first + 1 : last])
    if not outside or "," in outside:
        return False
    compares = before == "=" and tokens[first - 2] in ("=", "<", ">", "!")
    if before in _BEFORE and not compares and behind in _BEHIND:
        return True
    if before in _BEFORE and not compares and behind == "?":
        return not {"?", "="} & {*outside}
    if behind[0].isalnum() or behind[0] in "_(" or outside[0] in _TYPES:
        return False  # a cast
    return re.match(r"\w", outside[0]) is not None and {*outside[1:]} <= {"(", ")", "[", "]"}


def _at_top(tokens: list[str]) -> list[str]:
    """The tokens that are in no parentheses or brackets, and these themselves."""
    depth, found = 0, []
    for token in tokens:
        depth -= token in (")", "]")
        if depth == 0:
            found.append(token)
        depth += token in ("(", "[")
    return found


def contents(folder: Path, *, behind_preprocessor: bool) -> dict[str, set[str]]:
    """Names of the sources of each case; behind the preprocessor, equal sources get one name."""
    index = json.loads((folder / INDEX).read_text())
    if not behind_preprocessor:
        return {case: set(names) for case, names in index.items()}
    every = sorted({name for names in index.values() for name in names if "refused" not in name})
    with ThreadPoolExecutor() as pool:
        tokens = list(pool.map(preprocessed, [folder / name for name in every]))
    renamed = {}
    for name, source in zip(every, tokens, strict=True):
        stem, _, suffix = name.rpartition(".")
        digest = hashlib.sha256(source.encode()).hexdigest()[:16]
        renamed[name] = f"{stem.rpartition('_')[0]}_{digest}.{suffix}"
    return {case: {renamed.get(n, n) for n in names} for case, names in index.items()}


def compare(old: Path, new: Path, *, behind_preprocessor: bool = False) -> int:
    """Prints what differs between two folders; 1 if anything does.

    Cases that only one of the folders has are left out: the other one may hold fewer systems.
    """
    first, second = (
        contents(folder, behind_preprocessor=behind_preprocessor) for folder in (old, new)
    )
    n_different = 0
    for case in sorted({*first} & {*second}):
        before, after = first[case], second[case]
        for name in sorted(before ^ after):
            n_different += 1
            sys.stdout.write(f"{case}: only in {'OLD' if name in before else 'NEW'}: {name}\n")
    alone = {*first} ^ {*second}
    n_sources = len({name for case in {*first} & {*second} for name in second[case]})
    sys.stdout.write(f"{n_sources} sources, {n_different} differences")
    sys.stdout.write(f"; {len(alone)} cases in one folder only\n" if alone else "\n")
    return int(n_different > 0)


def main() -> int:
    """Runs the subcommand."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    writer = commands.add_parser("write", help="write the sources of this tree")
    writer.add_argument("folder", type=Path)
    writer.add_argument("--systems", nargs="*", default=list(SYSTEMS))
    comparer = commands.add_parser("compare", help="compare two folders")
    comparer.add_argument("old", type=Path)
    comparer.add_argument("new", type=Path)
    comparer.add_argument("--preprocessed", action="store_true", help="compare behind gcc -E")
    options = parser.parse_args()
    if options.command == "write":
        return write(options.folder, options.systems)
    return compare(options.old, options.new, behind_preprocessor=options.preprocessed)


if __name__ == "__main__":
    raise SystemExit(main())
