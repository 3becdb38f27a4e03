"""A function of tiles as a program of batches: differentiable, compiled per number of tiles.

Reads: what one solve or step does with tiles ``[tiles, rows, 32]``, and its sensitivity.  Produces:
`BatchedCall`, which takes batch-first arrays with any leading axes.  Batches are filled up to
whole tiles outside the compiled program, so that it serves all batches of as many tiles.

How many instances of a huge batch are worked on at once depends on the number of values that each
of them needs while it is solved, and on the way back; tests/mpc/test_sqp_memory.py compares these
counts with what XLA reserves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.core import Tracer

from warpmpc.engines.runtime.announcing import ANNOUNCER
from warpmpc.engines.runtime.batching import LANES, TILES, Widths, on_batches
from warpmpc.engines.runtime.ffi import has_gpu
from warpmpc.mpc.parameters import Parameters
from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.stage_evaluation import StageEvaluator
from warpmpc.mpc.types import MPCWarmStart, Solution
from warpmpc.qp.linear_map import Directions, linear_map
from warpmpc.qp.loops.kernels import KernelLoop
from warpmpc.qp.qp_solver import QPSolver, no_tangent

_FIRST_ONLY = (
    "MPCSolver has first derivatives only: jax.hessian and other second derivatives of a solve or "
    "step do not exist; take finite differences of jax.grad instead."
)


class Sensitivity(Protocol):
    """The derivatives of a function of tiles in forward and reverse mode.

    `values_per_instance` counts the values that reverse mode keeps in memory at a time.  Changes
    and cotangents of the start are those of its trajectory, and belong to the map only where
    `of_start` says so.
    """

    of_start: bool

    @property
    def values_per_instance(self) -> int:
        """See above; needed when the first derivative is computed."""
        ...

    @property
    def values_forward(self) -> int:
        """Values that forward mode keeps in memory at a time."""
        ...

    def keeps(self, solution: Solution) -> Any:
        """What derivatives need of the result, rows of instances."""
        ...

    def check(self, p: Parameters, start: MPCWarmStart, kept: Any, bars: Any) -> tuple[jax.Array]:
        """`GradientStatus` of instances for cotangents of z and y, on tiles."""
        ...

    def forward(self, p: Parameters, start: MPCWarmStart, kept: Any, moves: Any) -> Any:
        """Changes of z, y and the cost for those of the parameter vector and the start."""
        ...

    def reverse(self, p: Parameters, start: MPCWarmStart, kept: Any, bars: Any) -> Any:
        """The transpose: from cotangents of z, y and the cost, on tiles."""
        ...


class BatchedCall:
    """One solve or step of a batch.

    Arrays that exist are filled up to whole tiles first, by copies of the last instance; a single
    problem of an engine without tiles is not.  Under a transformation of the caller nothing is
    known of the batch that will be: `jax.vmap` folds its axis into it, and tiles are filled inside.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        sensitivity: Callable[[], Sensitivity],
        read: Callable[..., Solution],
        part_size: Callable[[int, int], int],
        values: Callable[[], int],
        widths: Widths = TILES,
    ):
        """Nothing is compiled yet.

        Args:
            function: Solve or step of parameters and a start, in its layout.
            sensitivity: Builds its derivatives, when the first one is needed.
            read: Makes the solution from the function's results, as rows of instances.
            part_size: How many instances of a batch are worked on at once if each of them needs
                so many values.
            values: Number of values that the function needs per instance.
            widths: Instances per group of the function's layout ``[groups, rows, lanes]``; its
                sensitivity has tiles of 32.
        """
        self._make_sensitivity, self._part_size = sensitivity, part_size
        self._read, self._widths = read, widths
        # Without tiles results lie where the start was: in parts they would need room of their own.
        self._forward = on_batches(
            _with_common(function),
            widths.lanes,
            lambda batch: part_size(batch, values() if widths.has_tiles else 0),
        )
        self.compiled = jax.jit(self._single_solutions, donate_argnums=2)
        self._traced = jax.jit(self._solutions)
        self._alone = jax.jit(self._alone_solutions)
        self._compiled_back = jax.jit(self._cotangents)
        self._compiled_ahead = jax.jit(self._changes)
        self._differentiable = jax.custom_jvp(self._run)
        self._differentiable.defjvp(self._jvp)

    @cached_property
    def _sensitivity(self) -> Sensitivity:
        return self._make_sensitivity()

    def _on_batches(self, function: Callable[..., Any], values: int) -> Callable[..., Any]:
        """A function of the sensitivity on batches."""
        return on_batches(
            _with_common(function), LANES, lambda batch: self._part_size(batch, values)
        )

    @cached_property
    def _reverse(self) -> Callable[..., Any]:
        """The way back on batches."""
        found = self._sensitivity
        return self._on_batches(found.reverse, found.values_per_instance)

    @cached_property
    def _ahead(self) -> Callable[..., Any]:
        """Forward mode on batches."""
        found = self._sensitivity
        return self._on_batches(found.forward, found.values_forward)

    def __call__(self, params: Parameters, start: MPCWarmStart, *, donate: bool) -> Solution:
        """The solutions, with the leading axes of the arguments.

        Args:
            params: Parameter vectors.
            start: Where the iteration starts.
            donate: Whether the buffers of `start` may be overwritten; otherwise they are copied.
        """
        with ANNOUNCER.call():
            if _exist((params, start)):
                return self._run(params, start, donate=donate)
            return self._differentiable(params, start)

    def forget(self) -> None:
        """Compiles anew with the next call: other kernels may be the best by now."""
        programs = (self.compiled, self._alone, self._traced)
        for program in (*programs, self._compiled_back, self._compiled_ahead):
            program.clear_cache()  # pyright: ignore[reportAttributeAccessIssue]

    def _solutions(self, common: Any, params: Parameters, start: MPCWarmStart) -> Solution:
        return self._read(*self._forward(params, start, shared=common))

    def _single_solutions(self, *args: Any) -> Solution:
        """The solutions without arrays that they have twice.

        Where one of two equal results takes the place of a donated argument, XLA for CUDA (JAX
        0.11) has left the argument's old values in it.  Results take the places of arguments of
        their shape in order: those of the warm start their own, so that nothing is copied.
        """
        return replace(self._solutions(*args), z=None, y=None)  # pyright: ignore[reportArgumentType]

    def _alone_solutions(self, common: Any, params: Parameters, start: MPCWarmStart) -> Solution:
        """The solution of one instance, with the leading axes of its arguments."""
        flat = _flat((params, start))
        return _cut(self._single_solutions(common, *flat), start.z.shape[:-1])

    def _cotangents(self, common: Any, *args: Any) -> Any:
        return self._reverse(*args, shared=common)

    def _changes(self, common: Any, *args: Any) -> Any:
        return self._ahead(*args, shared=common)

    @cached_property
    def _check(self) -> Callable[..., Any]:
        """The check of the way back on batches, compiled."""
        found = self._sensitivity
        call = self._on_batches(found.check, found.values_per_instance)
        return jax.jit(lambda common, *args: call(*args, shared=common))

    def gradient_status(
        self, params: Parameters, start: MPCWarmStart, solution: Solution, z_bar: jax.Array
    ) -> jax.Array:
        """`GradientStatus` of instances for a cotangent of the trajectory."""
        bars = (z_bar, jnp.zeros_like(solution.y))
        kept = self._sensitivity.keeps(solution)
        args = (replace(params, common=None), start, kept, bars)
        (found,) = _cut(self._check(params.common, *_flat(args)), solution.z.shape[:-1])
        return found[..., 0]

    def _run(self, params: Parameters, start: MPCWarmStart, *, donate: bool = False) -> Solution:
        common, args = params.common, (replace(params, common=None), start)
        leading = start.z.shape[:-1]
        if not _exist((common, args)):
            return _cut(self._traced(common, *_flat(args)), leading)
        single = math.prod(leading) == 1
        if single and not has_gpu():
            # Every program around the one that matters takes its share of a control loop's time.
            solution = self._alone(common, *args)
            if donate:
                release(start, solution)
            return _whole(solution)
        # One problem of an engine without tiles is not made 32: it may be part of a control loop.
        alone = single and not self._widths.has_tiles
        if _is_ready(leading, args, self._widths) or (alone and leading == (1,)):
            mine = start if donate and _differ(start) else _copied(start)
            return _whole(self.compiled(common, args[0], mine))
        fill = not (alone or is_sharded(args))
        batch = self._widths.filled(math.prod(leading)) if fill else None
        solution = self.compiled(common, *_prepared(args, batch))
        if donate:
            release(start, solution)
        return _whole(_cut_program(solution, leading))

    def _jvp(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """Both modes: a linear map of the tangents, which JAX transposes for reverse mode."""
        params, start = primals
        move, move_of_start = tangents
        solution = self._differentiable(params, start)
        found = self._sensitivity
        given = (params, start, found.keeps(solution))
        tree = jax.tree.structure(given)
        directions = Directions(
            lambda leaves, inputs: self._moved(jax.tree.unflatten(tree, leaves), inputs),
            lambda leaves, bars: self._pulled_back(jax.tree.unflatten(tree, leaves), bars),
        )
        inputs = [*move.arrays, *([move_of_start.z] if found.of_start else [])]
        like = [solution.z, solution.y, solution.cost]
        z, y, cost = linear_map(directions, _FIRST_ONLY, given, inputs, like)
        nothing = jax.tree.map(no_tangent, solution)
        again = nothing.warm_start
        again = replace(again, z=z, qp=replace(again.qp, y=y))
        return solution, replace(nothing, z=z, y=y, cost=cost, warm_start=again)

    def _moved(self, given: Any, inputs: list[Any]) -> list[Any]:
        """Changes of z, y and the cost."""
        params = given[0]
        own, *more = inputs
        common = None if params.common is None else more.pop(0)
        whole = Parameters(own, common, params.split).joined()
        z, y, cost = self._applied(self._compiled_ahead, *given, (whole, *more))
        return [z, y, cost[..., 0]]

    def _pulled_back(self, given: Any, bars: list[Any]) -> list[Any]:
        """Cotangents of the parameters, and of the trajectory where the start has any."""
        z, y, cost = bars
        p_bar, *more = self._applied(self._compiled_back, *given, (z, y, cost[..., None]))
        return [*given[0].cotangents(p_bar).arrays, *more]

    def _applied(self, compiled: Any, params: Parameters, start: MPCWarmStart, *rest: Any) -> Any:
        """A compiled function of batches at a solution."""
        common, args = params.common, (replace(params, common=None), start, *rest)
        leading = start.z.shape[:-1]
        with ANNOUNCER.call():
            if not _exist((common, args)):
                return _cut(compiled(common, *_flat(args)), leading)
            if _is_ready(leading, args):
                return compiled(common, *args)
            args = _prepared(args, None if is_sharded(args) else TILES.filled(math.prod(leading)))
            return _cut_program(compiled(common, *args), leading)


def _whole(solution: Solution) -> Solution:
    """The solution with all its arrays; z and y are those of its warm start."""
    start = solution.warm_start
    return replace(solution, z=start.z, y=start.qp.y)


def _with_common(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of parameters as one that gets the common ones apart."""

    def call(params: Parameters, *rest: Any, shared: jax.Array | None = None) -> Any:
        return function(replace(params, common=shared), *rest)

    return call


def _exist(tree: Any) -> bool:
    """Whether all arrays have values: no transformation is under way."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def release(tree: Any, result: Any) -> None:
    """Frees arrays as soon as a result is computed from them.

    Where the result is part of a program that is being traced, they are constants of it: they stay.
    """
    if _exist((tree, result)):
        for leaf in jax.tree.leaves(tree):
            leaf.delete()


def is_sharded(tree: Any) -> bool:
    """Whether several devices have parts of the arrays; each fills the tiles of its own part."""
    return _exist(tree) and any(len(a.devices()) > 1 for a in jax.tree.leaves(tree))


def _is_ready(leading: tuple[int, ...], args: Any, widths: Widths = TILES) -> bool:
    """Whether there is one batch axis, and nothing to be filled up."""
    full = widths.filled(math.prod(leading))
    return leading == (full,) or (len(leading) == 1 and is_sharded(args))


def _differ(tree: Any) -> bool:
    """Whether no array occurs twice; a buffer can be given away once only."""
    leaves = jax.tree.leaves(tree)
    return len({id(leaf) for leaf in leaves}) == len(leaves)


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def _flat(args: Any) -> Any:
    """Leading axes as one; all arguments have the same."""
    return jax.tree.map(lambda a: a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), args)


@partial(jax.jit, static_argnums=1)
def _prepared(args: Any, batch: int | None) -> Any:
    """Arguments with one batch axis, filled up to a batch by copies of the last instance."""
    flat = _flat(args)
    if batch is None:
        return flat
    return jax.tree.map(lambda a: jnp.pad(a, ((0, batch - a.shape[0]), (0, 0)), mode="edge"), flat)


def _cut(tree: Any, leading: tuple[int, ...]) -> Any:
    """Results without what was filled up, and with the leading axes of the arguments."""
    batch = math.prod(leading)
    return jax.tree.map(lambda a: a[:batch].reshape(*leading, *a.shape[1:]), tree)


_cut_program = partial(jax.jit, static_argnums=1)(_cut)


# Statuses, counts, residuals, costs and step lengths, now and before.
_SCALARS = 40


def three_launch_values(programs: StageEvaluator, qp: QPSolver, settings: SQPSettings) -> int:
    """Values of one instance in three launches per iteration.

    The factors; then vectors of nodes: inverse pivots, cost and bounds, 1/rho, x with v and with y
    before and after a launch, s, and the trajectory with its copy.  Checks need K.
    """
    loop = qp.loop
    assert isinstance(loop, KernelLoop)  # see `mpc.sqp.choice`
    program = loop.program
    values = program.n_L + 9 * program.n_nodes
    if qp.settings.check_every:
        values += program.K_order.size + program.n_nodes
    return values + _others(programs, settings)


def onchip_values(programs: StageEvaluator, settings: SQPSettings) -> int:
    """Values of one instance in one launch: the start, which becomes the result, and a copy."""
    return 2 * result_values(programs) + _others(programs, settings)


def general_values(programs: StageEvaluator, qp: QPSolver, settings: SQPSettings) -> int:
    """Values of one instance where launches exchange whole QPs.

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
    """Values of one instance in reverse mode.

    Args:
        programs: Stage functions.
        adjoint: Values that the derivative of a QP needs.
    """
    problem = programs.problem
    return adjoint + 3 * (problem.n_vars + problem.n_cons) + problem.n_params + _SCALARS


def result_values(programs: StageEvaluator) -> int:
    """Values of one solution."""
    return 2 * (programs.problem.n_vars + programs.problem.n_cons) + _SCALARS // 2


def _others(programs: StageEvaluator, settings: SQPSettings) -> int:
    """Parameters, scalars, and what is recorded of every iteration."""
    recorded = _SCALARS // 2 * settings.max_iter if settings.record else 0
    return programs.problem.n_params + _SCALARS + recorded
