"""warpmpc: nonlinear model-predictive control in large batches, on a GPU or a CPU, inside JAX.

The folder tree is the data path:

    problem    what a user writes: stage functions, constraints, dynamics
    symbolic   pattern of the KKT matrix, ordering, elimination, derivatives of stages (host)
    codegen    scalar programs in, JAX functions and kernel sources out
    engines    one folder for each engine: its plan, its source, its launches
    qp         linear systems and quadratic programs in batches
    mpc        nonlinear programs: SQP iterations, line searches, sensitivities, diagnosis
    sim        closed loops of whole batches
    learn      networks that imitate an MPC, trained from its data

    robots     rigid bodies from robot files; MuJoCo is imported when one is loaded
    systems    benchmark problems with the settings to solve them
    viz        pictures; matplotlib is imported when one is drawn
    cli        the command `warpmpc`

A layer imports only layers to its left (above it in this list).  Public names are those below, and
the module `learn`, which is imported when it is first used.
"""

from importlib import import_module
from types import ModuleType

from warpmpc import _moved
from warpmpc import robots as robots
from warpmpc._conventions import FactorStatus
from warpmpc._errors import (
    CodegenError,
    PatternError,
    ProblemError,
    SettingsError,
    WarpMPCError,
)
from warpmpc._version import __version__
from warpmpc.engines.runtime.ffi import cpu_threads, set_cpu_threads
from warpmpc.mpc.diagnosis.diagnose import diagnose
from warpmpc.mpc.diagnosis.report import Diagnosis
from warpmpc.mpc.settings import LineSearchSettings, SQPSettings
from warpmpc.mpc.solver import MPCSolver
from warpmpc.mpc.types import (
    GradientStatus,
    MPCStatus,
    MPCWarmStart,
    QPState,
    Solution,
    StepResult,
)
from warpmpc.problem.from_jax import from_jax
from warpmpc.problem.mpc_problem import MPCProblem, StageGroup
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.problem.stage import Soft, Stage
from warpmpc.qp.ldl_solver import LDLFactor, LDLSolver
from warpmpc.qp.linear_solvers.base import LDLSettings
from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.types import ADMMSettings, QPSolution, QPWarmStart, RowClass, StagedSettings, Status
from warpmpc.sim.rollout import rollout
from warpmpc.sim.types import Rollout
from warpmpc.viz.solution_figure import plot

__all__ = [
    "OCP",
    "ADMMSettings",
    "CodegenError",
    "Diagnosis",
    "FactorStatus",
    "GradientStatus",
    "LDLFactor",
    "LDLSettings",
    "LDLSolver",
    "LineSearchSettings",
    "MPCProblem",
    "MPCSolver",
    "MPCStatus",
    "MPCWarmStart",
    "PatternError",
    "ProblemError",
    "QPSolution",
    "QPSolver",
    "QPState",
    "QPWarmStart",
    "Rollout",
    "RowClass",
    "SQPSettings",
    "SettingsError",
    "Soft",
    "Solution",
    "Stage",
    "StageGroup",
    "StagedSettings",
    "Status",
    "StepResult",
    "WarpMPCError",
    "__version__",
    "cpu_threads",
    "diagnose",
    "from_jax",
    "plot",
    "rollout",
    "set_cpu_threads",
]

_moved.install()


def __getattr__(name: str) -> ModuleType:
    """Imports `warpmpc.learn` when it is first used."""
    if name == "learn":
        return import_module("warpmpc.learn")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
