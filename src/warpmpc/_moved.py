"""Old names of modules that the documentation of version 0.1 used, as aliases that warn.

Importing `warpmpc` puts one finder behind those of Python.  It is asked only for names that no file
has, so that it costs nothing otherwise.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "warpmpc.bench": "warpmpc_bench",
    "warpmpc.bench.ldl_baselines": "warpmpc_bench.ldl.baselines",
    "warpmpc.bench.ldl_variants": "warpmpc_bench.ldl.variants",
    "warpmpc.bench.qp_baselines": "warpmpc_bench.qp.baselines",
    "warpmpc.bench.qp_variants": "warpmpc_bench.qp.variants",
    "warpmpc.bench.mpc_variants": "warpmpc_bench.mpc.variants",
    "warpmpc.codegen.lane_text": "warpmpc.engines.onchip.lane_source",
    "warpmpc.qp.conditioning": "warpmpc._conventions",
    "warpmpc.qp.engines": "warpmpc.qp.loops.registry",
    "warpmpc.qp.kkt_solvers": "warpmpc.qp.linear_solvers",
    "warpmpc.qp.kkt_solvers.kkt_engines": "warpmpc.qp.linear_solvers.kkt_solvers",
    "warpmpc.sqp": "warpmpc.mpc",
    "warpmpc.sqp.line_search": "warpmpc.mpc.line_search",
    "warpmpc.sqp.onchip": "warpmpc.mpc.sqp.onchip",
}
RENAMED = {("warpmpc.codegen.lane_text", "LaneText"): "LaneSource"}


class _Alias(Loader):
    """Makes a module whose names are those of the one that took its place."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module; its names are looked up when they are used."""
        alias = ModuleType(spec.name)
        alias.__dict__["__getattr__"] = lambda name: _attribute(spec.name, name)
        return alias

    def exec_module(self, module: ModuleType) -> None:
        """Imports the new module and warns."""
        new = MOVED[module.__name__]
        import_module(new)
        message = f"{module.__name__} is now called {new}; the old name will be removed."
        warnings.warn(message, DeprecationWarning, stacklevel=2)


def _attribute(old: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {old!r} has no attribute {name!r}")
    return getattr(import_module(MOVED[old]), RENAMED.get((old, name), name))


class _Finder(MetaPathFinder):
    """Finds the old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The alias of an old name."""
        del path, target
        if fullname not in MOVED:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in MOVED)
        return ModuleSpec(fullname, _Alias(), is_package=is_package)


def install() -> None:
    """Lets Python find the old names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
