"""How much memory an instance of an MPC problem needs while it is solved, and on the way back.

Reads: sizes of a problem, its QPs and their factors.  Produces: counts of numbers, which decide how
many instances of a huge batch are worked on at once.  Compared with what XLA reserves in
tests/sqp/test_sqp_memory.py.
"""

from __future__ import annotations

from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.stage_evaluation import StageEvaluator
from warpmpc.qp.loops.kernels import KernelLoop
from warpmpc.qp.qp_solver import QPSolver

# Statuses, counts, residuals, costs and step lengths, now and before.
_SCALARS = 40


def three_launch_values(programs: StageEvaluator, qp: QPSolver, settings: SQPSettings) -> int:
    """Numbers of one instance in three launches per iteration.

    The factors; then vectors of nodes: inverse pivots, cost and bounds, 1/rho, x with v and with y
    before and after a launch, s, and the trajectory with its copy.  Checks need K.
    """
    loop = qp.loop
    assert isinstance(loop, KernelLoop)  # see `mpc.sqp.three_launch.obstacle`
    program = loop.program
    values = program.n_L + 9 * program.n_nodes
    if qp.settings.check_every:
        values += program.K_order.size + program.n_nodes
    return values + _others(programs, settings)


def onchip_values(programs: StageEvaluator, settings: SQPSettings) -> int:
    """Numbers of one instance in one launch: the start, which becomes the result, and a copy."""
    return 2 * result_values(programs) + _others(programs, settings)


def general_values(programs: StageEvaluator, qp: QPSolver, settings: SQPSettings) -> int:
    """Numbers of one instance where launches exchange whole QPs.

    Either the ADMM loop needs most, with the QP and the state beside it, or the trial points do.
    """
    at, problem = programs.assembly, programs.problem
    nodes = problem.n_vars + problem.n_cons
    data = at.P_pattern.nnz + at.A_pattern.nnz + nodes + problem.n_cons
    data += 4 * at.soft_rows.size
    n_trials = len(settings.line_search.ladder) + 1
    trials = n_trials * (problem.n_vars + 4 * (problem.horizon + 1)) + 2 * nodes
    most = max(qp.values_per_instance, trials)
    return data + most + 2 * nodes + _others(programs, settings)


def reverse_values(programs: StageEvaluator, adjoint: int) -> int:
    """Numbers of one instance on the way back.

    Args:
        programs: Stage functions.
        adjoint: Numbers that the derivative of a QP needs.
    """
    problem = programs.problem
    return adjoint + 3 * (problem.n_vars + problem.n_cons) + problem.n_params + _SCALARS


def result_values(programs: StageEvaluator) -> int:
    """Numbers of one solution."""
    return 2 * (programs.problem.n_vars + programs.problem.n_cons) + _SCALARS // 2


def _others(programs: StageEvaluator, settings: SQPSettings) -> int:
    """Parameters, scalars, and what is recorded of every iteration."""
    recorded = _SCALARS // 2 * settings.max_iter if settings.record else 0
    return programs.problem.n_params + _SCALARS + recorded
