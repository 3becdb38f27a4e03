"""Count the modules of warpmpc that a solve passes through, and the switches between them.

    python tools/solve_path.py [staged] [onchip] [--modules]

A reader who follows a solve has to open these files.  The problem is a pendulum of 40 intervals;
construction of the solver and one solve of four instances count, imports do not.  "staged" is
`MPCSolver(ocp).solve(x0)` with all defaults, "onchip" a solve with fixed iterations on chip.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import casadi as ca
import jax
import numpy as np

from warpmpc import OCP, ADMMSettings, MPCSolver, SQPSettings

PACKAGE = "warpmpc"
# Python calls the finder of old names of modules when any package looks for a module in vain.
FINDER = f"{PACKAGE}._moved"
FIXED = SQPSettings(
    mode="fixed",
    max_iter=5,
    convexify="gershgorin",
    qp=ADMMSettings(max_iter=25, check_every=0, scaling=0, adaptive_rho_every=0),
)
SOLVERS: dict[str, Callable[[OCP], MPCSolver]] = {
    "staged": MPCSolver,
    "onchip": lambda ocp: MPCSolver(ocp, FIXED, engine="onchip"),
}


@dataclass
class Path:
    """What a call passed through.

    Attributes:
        calls: Calls of Python functions by module.
        switches: How often a call left the module of the call before it.
    """

    calls: Counter[str] = field(default_factory=Counter)
    switches: int = 0
    _last: str | None = None

    def note(self, module: str) -> None:
        """Counts a call of a function of a module."""
        self.calls[module] += 1
        self.switches += module != self._last
        self._last = module


def traced(call: Callable[[], Any]) -> Path:
    """Runs a call and returns its path through the package; bodies of modules do not count."""
    path = Path()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        ours = module == PACKAGE or module.startswith(f"{PACKAGE}.")
        ours = ours and module != FINDER
        if event == "call" and ours and frame.f_code.co_name != "<module>":
            path.note(module)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return path


def problem() -> OCP:
    """A pendulum with a bounded torque."""
    angle, rate, torque = (ca.SX.sym(name) for name in ("angle", "rate", "torque"))
    ocp = OCP(ca.vertcat(angle, rate), torque, horizon=40, dt=0.05)
    ocp.set_dynamics([rate, 9.81 * ca.sin(angle) + torque], integrator="rk4")
    ocp.add_residual([angle, rate, torque], weight=[1, 0.1, 0.01])
    ocp.subject_to(-12, torque, 12, name="torque")
    return ocp


def solve_path(engine: str) -> Path:
    """The path of constructing a solver and of one solve.

    Args:
        engine: A key of `SOLVERS`.
    """
    ocp, x0 = problem(), np.full((4, 2), 0.1, dtype="float32")
    return traced(lambda: jax.block_until_ready(SOLVERS[engine](ocp).solve(x0)))


def report(engine: str, path: Path, *, modules: bool) -> str:
    """The counts, and the modules by folder if wanted."""
    lines = [f"{engine}: {len(path.calls)} modules, {path.switches} switches between them"]
    if modules:
        lines += [f"  {calls:>6} calls  {name}" for name, calls in sorted(path.calls.items())]
    return "\n".join(lines)


def main() -> int:
    """Prints the counts of the given engines, by default of all."""
    parser = argparse.ArgumentParser(description="Modules that a solve passes through.")
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(SOLVERS)}")
    parser.add_argument("--modules", action="store_true", help="list the modules")
    given = parser.parse_args()
    for engine in given.engines or SOLVERS:
        if engine not in SOLVERS:
            parser.error(f"unknown engine {engine!r}; choose from {', '.join(SOLVERS)}")
        sys.stdout.write(report(engine, solve_path(engine), modules=given.modules) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
