"""The stage functions of a problem as kernels over all stages and tiles.

Reads: an `MPCProblem` and a `HessianRule`.  Produces: `StageEvaluator`: the QP at a point, cost and
violation, and the way of cotangents back to variables and parameters.  All arrays are tiles
``[tiles, rows, 32]``; each call is one launch.

Projection of Hessian blocks onto semidefinite matrices, online.

Most Hessians are semidefinite by form (`symbolic.derivatives.stage_model`); what is left are small
dense blocks whose eigenvalues depend on the point.  Negative eigenvalues become zero; a block
without any keeps its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.from_casadi import derivation, kept_program, translate
from warpmpc.codegen.kernel_source import KernelSource
from warpmpc.engines.runtime.stage_kernels import StageCase, StageKernels
from warpmpc.mpc.parameters import Parameters, ParameterSplit
from warpmpc.problem.mpc_problem import MPCProblem, array_digest, digest
from warpmpc.qp.products import total
from warpmpc.qp.scaling import QPData
from warpmpc.symbolic.derivatives.assembly import Assembly, BlockSet, Overlap
from warpmpc.symbolic.derivatives.stage_model import HessianRule, StageModel
from warpmpc.symbolic.pattern import IntArray


class BlockProjection:
    """Adds the projected blocks of a problem to P."""

    def __init__(self, assembly: Assembly):
        """Keeps the tables."""
        self._sets = assembly.block_sets

    def __call__(self, P: jax.Array, raw: jax.Array) -> jax.Array:
        """P with the projections of the raw blocks added, both in tiles."""
        for blocks in self._sets:
            dense = jnp.moveaxis(raw[:, blocks.values], -1, 1)  # [tiles, lanes, blocks, size, size]
            i, j = np.tril_indices(blocks.values.shape[-1])
            values = jnp.moveaxis(_projected(dense)[..., i, j], 1, -1)
            P = _with_blocks(P, values, blocks)
        return P

    def moved(self, P: jax.Array, raw: jax.Array) -> jax.Array:
        """Change of P with those of the raw blocks: the transpose of `raw_bars`."""
        for blocks in self._sets:
            i, j = np.tril_indices(blocks.values.shape[-1])
            P = _with_blocks(P, raw[:, blocks.values[:, i, j]], blocks)
        return P

    def raw_bars(self, P_bar: jax.Array, size: int) -> jax.Array:
        """Cotangents of the raw blocks: the projection counts as a constant shift.

        The derivative of a projection does not exist where an eigenvalue is zero or double.
        """
        source = np.zeros(size, dtype=np.int32)
        for blocks in self._sets:
            i, j = np.tril_indices(blocks.values.shape[-1])
            source[blocks.values[:, i, j]] = blocks.upper
        return P_bar[:, source]


def _with_blocks(P: jax.Array, values: jax.Array, blocks: BlockSet) -> jax.Array:
    """P with the lower triangles of blocks added, ``[tiles, blocks, values, 32]``."""
    for parity in (0, 1):  # neighbours share entries; every other stage shares none
        mine = blocks.parity == parity
        if mine.any():
            rows = values[:, mine].reshape(P.shape[0], -1, P.shape[2])
            P = P.at[:, blocks.upper[mine].ravel()].add(rows, unique_indices=True)
    return P


# Least eigenvalue of a projected block, in units of machine precision times its largest one.  Zeros
# would be negative as often as positive after rounding, and multipliers can be very large.
_FLOOR = 32.0


def _projected(blocks: jax.Array) -> jax.Array:
    """Nearest matrices that are semidefinite for sure.

    Blocks that are not finite stay so and do not stop others.
    """
    finite = jnp.isfinite(blocks).all(axis=(-2, -1), keepdims=True)
    eigenvalues, vectors = jnp.linalg.eigh(jnp.where(finite, blocks, 0))
    largest = jnp.abs(eigenvalues).max(axis=-1, keepdims=True)
    lifted = jnp.maximum(eigenvalues, _FLOOR * float(np.finfo(blocks.dtype).eps) * largest)
    positive = (vectors * lifted[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)
    convex = (eigenvalues[..., :1, None] >= 0) | ~finite
    return jnp.where(convex, blocks, positive)


Tables = Sequence[Any]
Vectors = Parameters | jax.Array  # parameters in tiles; an array where nothing is common


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Evaluation:
    """Cost and violations of instances, ``[tiles, 1, 32]`` each.

    Attributes:
        cost: Cost, including the penalties of soft rows.
        squares: Sum of squared violations of hard rows.
        absolute: Sum of violations.
        worst: Largest violation.
    """

    cost: jax.Array
    squares: jax.Array
    absolute: jax.Array
    worst: jax.Array


class StageEvaluator:
    """Kernels of one problem; each is built with its first use."""

    def __init__(
        self,
        problem: MPCProblem,
        rule: HessianRule,
        dtype: str,
        split: ParameterSplit | None = None,
        models: Sequence[StageModel] | None = None,
    ):
        """Differentiates every group of equal stages.

        Args:
            problem: The stages.
            rule: Choice of the Hessian of the QP.
            dtype: "float32" or "float64".
            split: Which parameters are common to all instances; None: none.
            models: Derivatives of the groups, if they are known already.
        """
        self.problem, self.rule, self.dtype = problem, rule, dtype
        if models is None:
            models = [StageModel.build(problem, group.stage, rule) for group in problem.groups]
        self.models = list(models)
        self.assembly = Assembly(problem, self.models)
        self._projection = BlockProjection(self.assembly)
        self._split = split
        self._of_splits: dict[ParameterSplit, StageEvaluator] = {}

    def for_split(self, split: ParameterSplit) -> StageEvaluator:
        """The evaluator for a split of parameters into own and common ones; one per split."""
        if not split.common.size:
            return self
        if split not in self._of_splits:
            common = np.isin(np.arange(self.problem.n_params), split.common)
            models = [
                replace(model, common=np.flatnonzero(common[rows[0]]))
                for model, rows in zip(self.models, self.assembly.p_rows, strict=True)
            ]
            given = (self.problem, self.rule, self.dtype, split, models)
            with jax.ensure_compile_time_eval():  # constants outlive the program being traced
                self._of_splits[split] = StageEvaluator(*given)
        return self._of_splits[split]

    @property
    def soft_rows(self) -> Any:
        """Rows with penalties instead of hard bounds."""
        return self.assembly.soft_rows

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Rows of each contribution to the QP that has any."""
        at, m = self.assembly, self.problem.n_cons
        sizes = {
            "P": at.P_overlap.n_rows,
            "q": at.q_overlap.n_rows,
            "A": at.A_pattern.nnz,
            "lower": m,
            "upper": m,
            "soft": 4 * at.soft_rows.size,
            "blocks": sum(rows.size for rows in at.block_rows),
        }
        return {name: size for name, size in sizes.items() if size}

    @cached_property
    def _written(self) -> dict[str, Tables]:
        """Rows of each contribution as kernels write it."""
        at = self.assembly
        return {
            "P": at.P_rows,
            "q": at.q_rows,
            "A": at.A_rows,
            "lower": at.g_rows,
            "upper": at.g_rows,
            "soft": at.penalty_rows,
            "blocks": at.block_rows,
        }

    def kernels(
        self,
        name: str,
        function: Callable[[StageModel, str], Any],
        inputs: dict[str, Tables],
        outputs: dict[str, tuple[int, Tables]],
    ) -> StageKernels:
        """Kernels of one function per group.

        Args:
            name: Name of the kernels.
            function: Makes the CasADi function of a group.
            inputs: Rows of each input array, per group.
            outputs: Number of rows of each output array, and its rows per group.
        """
        cases = [
            StageCase(
                program=kept_program(
                    self._program_key(f"{name}_{i}", (*inputs, *outputs)),
                    lambda i=i, model=model: translate(function(model, f"{name}_{i}")),
                ),
                stages=self.assembly.stages[i],
                in_rows=tuple(rows[i] for rows in inputs.values()),
                out_rows=tuple(rows[i] for _, rows in outputs.values()),
            )
            for i, model in enumerate(self.models)
        ]
        sizes = {array: size for array, (size, _) in outputs.items()}
        return StageKernels(f"{name}_stages", cases, list(inputs), sizes, self.dtype)

    def _program_key(self, name: str, arrays: tuple[str, ...]) -> str:
        """Hash of all that decides about a program: problem, rule, split and how it is derived."""
        split = self._split
        common = () if split is None else (array_digest(split.own), array_digest(split.common))
        return digest([repr((derivation(), self._problem_hash, self.rule, common, name, arrays))])

    @cached_property
    def _problem_hash(self) -> str:
        return self.problem.hash

    @property
    def point_rows(self) -> dict[str, Tables]:
        """Inputs of the stage functions at a point: name of each array, and its rows per group.

        This property and `point_arrays` are the only places that list the inputs.  Kernels read
        array i of tile t from tile ``t % tiles_i``: what all instances share has one tile.
        """
        point = self.cost_rows
        return {**point, "y": self.assembly.g_rows} if self._needs_y else point

    @property
    def cost_rows(self) -> dict[str, Tables]:
        """Inputs of functions without multipliers."""
        at, split = self.assembly, self._split
        if split is None:
            return {"z": at.w_rows, "p": at.p_rows}
        return {
            "z": at.w_rows,
            "p": _places(at.p_rows, split.own),
            "common": _places(at.p_rows, split.common),
        }

    @property
    def parameter_sizes(self) -> dict[str, int]:
        """Values per instance in each array of parameters of `point_rows`."""
        split = self._split
        if split is None:
            return {"p": self.problem.n_params}
        return {"p": split.own.size, "common": split.common.size}

    @property
    def _needs_y(self) -> bool:
        return self.rule.kind == "exact" and self.problem.n_cons > 0

    @property
    def has_blocks(self) -> bool:
        """Whether eigenvalues of Hessian blocks are looked at online."""
        return "blocks" in self._sizes

    @cached_property
    def linearize_functions(self) -> tuple[list[Any], list[str]]:
        """CasADi functions of the inputs at a point, one per group, and what they return."""
        names = list(self._sizes)
        return [m.linearize(f"linearize_{i}", names) for i, m in enumerate(self.models)], names

    @cached_property
    def evaluate_functions(self) -> list[Any]:
        """CasADi functions to cost and violations, one per group."""
        return [m.evaluate(f"evaluate_{i}") for i, m in enumerate(self.models)]

    @cached_property
    def _linearize(self) -> StageKernels:
        names = list(self._sizes)
        outputs = {name: (self._sizes[name], self._written[name]) for name in names}
        return self.kernels(
            "linearize", lambda m, n: m.linearize(n, names), self.point_rows, outputs
        )

    def to_load(self) -> list[tuple[KernelSource, int]]:
        """The kernels of an iteration with their threads per block, for `load_all`."""
        return [*self._evaluate.to_load(), *self._linearize.to_load()]

    def linearize(self, z: jax.Array, p: Vectors, y: jax.Array) -> QPData:
        """The QP at a point; y are multipliers for the exact Hessian."""
        found = dict(zip(self._sizes, self._linearize(*self.point_arrays(z, p, y)), strict=True))
        return self._qp_data(found, z, self._projection)

    def _qp_data(self, found: dict[str, jax.Array], z: jax.Array, add_blocks: Any) -> QPData:
        """Contributions of the stages as the data of a QP."""
        P = added(found["P"], self.assembly.P_overlap)
        if "blocks" in found:
            P = add_blocks(P, found["blocks"])
        nothing = jnp.zeros((z.shape[0], 0, z.shape[2]), dtype=z.dtype)
        rows = [found.get(name, nothing) for name in ("A", "lower", "upper")]
        soft = {"soft": found["soft"]} if "soft" in found else {}
        return QPData(P, added(found["q"], self.assembly.q_overlap), *rows, **soft)

    def point_arrays(self, z: jax.Array, p: Vectors, y: jax.Array) -> list[jax.Array]:
        """The arrays of a point, in the order of `point_rows`."""
        return [*cost_arrays(z, p), y] if self._needs_y else cost_arrays(z, p)

    @cached_property
    def _evaluate(self) -> StageKernels:
        rows, size = self.assembly.stage_rows, self.problem.horizon + 1
        outputs: dict[str, tuple[int, Tables]] = dict.fromkeys(
            ("cost", "squares", "absolute", "worst"), (size, rows)
        )
        return self.kernels("evaluate", StageModel.evaluate, self.cost_rows, outputs)

    def evaluate(self, z: jax.Array, p: Vectors) -> Evaluation:
        """Cost and violations; z may have a multiple of the tiles of p."""
        cost, squares, absolute, worst = self._evaluate(*cost_arrays(z, p))
        return Evaluation(
            total(cost), total(squares), total(absolute), worst.max(axis=1, keepdims=True)
        )

    def pull_back(
        self, z: jax.Array, p: Vectors, y: jax.Array, bars: dict[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Cotangents of z and p from those of the QP: P, q, A, lower, upper, soft."""
        given = self._bars(bars)
        z_bar, p_bar = self._pull_back(*self.point_arrays(z, p, y), *given.values())
        return added(z_bar, self.assembly.w_joined[1]), self._summed(p_bar)

    def pull_back_params(
        self, z: jax.Array, p: Vectors, y: jax.Array, bars: dict[str, jax.Array]
    ) -> jax.Array:
        """Cotangents of p alone, from those of q, A, lower, upper and soft at a fixed point."""
        given = {name: bar for name, bar in self._bars(bars).items() if name not in _HESSIAN}
        (p_bar,) = self._pull_back_params(*self.point_arrays(z, p, y), *given.values())
        return self._summed(p_bar)

    def push_forward(
        self, z: jax.Array, p: Vectors, y: jax.Array, z_dot: jax.Array, p_dot: jax.Array
    ) -> QPData:
        """Change of the QP for changes of z and of whole parameter vectors."""
        found = self._push_forward(*self.point_arrays(z, p, y), z_dot, p_dot)
        return self._qp_data(dict(zip(self._sizes, found, strict=True)), z, self._projection.moved)

    def push_forward_params(
        self, z: jax.Array, p: Vectors, y: jax.Array, p_dot: jax.Array
    ) -> QPData:
        """Change of q, A, lower, upper and soft for one of the parameters; of P it is zero."""
        found = self._push_forward_params(*self.point_arrays(z, p, y), p_dot)
        named = dict(zip(self._without_hessian, found, strict=True))
        named["P"] = jnp.zeros((z.shape[0], self._sizes["P"], z.shape[2]), dtype=z.dtype)
        return self._qp_data(named, z, self._projection.moved)

    def cost_pull_back(self, z: jax.Array, p: Vectors) -> tuple[jax.Array, jax.Array]:
        """Gradients of the cost with respect to z and p."""
        z_bar, p_bar = self._cost_pull_back(*cost_arrays(z, p))
        return added(z_bar, self.assembly.w_joined[1]), self._summed(p_bar)

    def _bars(self, bars: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Cotangents in the order of the kernels' inputs; of blocks, those of their entries."""
        found = {name: bars[name] for name in self._sizes if name != "blocks"}
        if "blocks" in self._sizes:
            found["blocks"] = self._projection.raw_bars(bars["P"], self._sizes["blocks"])
        return found

    @cached_property
    def _read(self) -> dict[str, Tables]:
        """Rows of each contribution in arrays whose overlaps are already added."""
        return {**self._written, "P": self.assembly.P_places, "q": self.assembly.q_places}

    def _pulling(self, name: str, which: list[str], *, of_z: bool) -> StageKernels:
        inputs = {**self.point_rows, **{f"{bar}_bar": self._read[bar] for bar in which}}
        outputs = self._gradient_outputs() if of_z else {"p_bar": self._gradient_outputs()["p_bar"]}
        return self.kernels(name, lambda m, n: m.pull_back(n, which, of_w=of_z), inputs, outputs)

    def _gradient_outputs(self) -> dict[str, tuple[int, Tables]]:
        at, problem = self.assembly, self.problem
        rows, overlap = at.w_joined
        common = problem.n_x0 + problem.n_shared
        own = problem.n_params - common
        return {
            "z_bar": (overlap.n_rows, rows),
            "p_bar": (common * (problem.horizon + 1) + own, at.p_bar_rows),
        }

    @cached_property
    def _pull_back(self) -> StageKernels:
        return self._pulling("pull_back", list(self._sizes), of_z=True)

    @cached_property
    def _pull_back_params(self) -> StageKernels:
        return self._pulling("pull_back_params", self._without_hessian, of_z=False)

    @property
    def _without_hessian(self) -> list[str]:
        return [name for name in self._sizes if name not in _HESSIAN]

    def _pushing(self, name: str, which: list[str], *, of_z: bool) -> StageKernels:
        moves = {"z_dot": self.assembly.w_rows} if of_z else {}
        inputs = {**self.point_rows, **moves, "p_dot": self.assembly.p_rows}
        outputs = {name: (self._sizes[name], self._written[name]) for name in which}
        return self.kernels(name, lambda m, n: m.push_forward(n, which, of_w=of_z), inputs, outputs)

    @cached_property
    def _push_forward(self) -> StageKernels:
        return self._pushing("push_forward", list(self._sizes), of_z=True)

    @cached_property
    def _push_forward_params(self) -> StageKernels:
        return self._pushing("push_forward_params", self._without_hessian, of_z=False)

    @cached_property
    def _cost_pull_back(self) -> StageKernels:
        return self.kernels(
            "cost_pull_back", StageModel.cost_pull_back, self.cost_rows, self._gradient_outputs()
        )

    def _summed(self, p_bar: jax.Array) -> jax.Array:
        """Sums the shares of all stages in what they have in common."""
        stages, tiles, lanes = self.problem.horizon + 1, p_bar.shape[0], p_bar.shape[2]
        common = self.problem.n_x0 + self.problem.n_shared
        shares = p_bar[:, : common * stages].reshape(tiles * common, stages, lanes)
        summed = total(shares).reshape(tiles, common, lanes)
        return jnp.concatenate([summed, p_bar[:, common * stages :]], axis=1)


_HESSIAN = ("P", "blocks")


def cost_arrays(z: jax.Array, p: Vectors) -> list[jax.Array]:
    """The arrays of a point without multipliers, in the order of `StageEvaluator.cost_rows`."""
    return [z, *p.arrays] if isinstance(p, Parameters) else [z, p]


def _places(p_rows: Tables, entries: IntArray) -> Tables:
    """Where stages find those of their parameters that are among some entries."""
    there = [rows[:, np.isin(rows[0], entries)] for rows in p_rows]
    return [np.searchsorted(entries, rows).astype(np.int32) for rows in there]


def added(rows: jax.Array, overlap: Overlap) -> jax.Array:
    """Entries with second contributions added."""
    if not overlap.targets.size:
        return rows
    entries, more = rows[:, : overlap.size], rows[:, overlap.size :]
    return entries.at[:, overlap.targets].add(more, unique_indices=True)
