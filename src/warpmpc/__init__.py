"""warpmpc: nonlinear model-predictive control in large batches on one GPU, inside JAX.

The folder tree is the data path:

    problem    what a user writes: stage functions, constraints, dynamics
    symbolic   pattern of the KKT matrix, ordering, elimination, schedules (host)
    codegen    programs and kernels from both
    kernels    Warp kernels and their JAX calls
    qp         linear systems and quadratic programs in batches
    sqp, sim, learn   nonlinear programs, closed loop, approximation by networks
    viz        pictures; matplotlib is imported when one is drawn

A layer imports only layers to its left.  Public names are those below.
"""

from warpmpc._errors import (
    CodegenError,
    PatternError,
    ProblemError,
    SettingsError,
    WarpMPCError,
)
from warpmpc._types import FactorStatus
from warpmpc._version import __version__
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
    "diagnose",
    "from_jax",
    "plot",
    "rollout",
]
