"""`Task`: an expert, a plant and where they start; all that learning from an MPC needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.mpc.solver import MPCSolver

Plant = Callable[[jax.Array, jax.Array], jax.Array]
Judge = Callable[[np.ndarray, np.ndarray], Any]


class Sampler(Protocol):
    """Draws initial states."""

    def __call__(self, batch: int, seed: int) -> np.ndarray:
        """Initial states ``[batch, n_x]``."""
        ...


@dataclass(frozen=True)
class Noise:
    """Noise of a closed loop: uniform in ellipsoids, drawn anew in each control step.

    Attributes:
        state: Half axes of what is added to the next state; empty: nothing.
        input: Half axes of what is added to the input; empty: nothing.
    """

    state: tuple[float, ...] = ()
    input: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Firmware:
    """How the firmware of a robot runs a policy.

    Attributes:
        rate: How often it calls the policy [Hz].
        plant: ``plant(x, u)``: states one such call later, a JAX function of whole batches.
        limit: What of the policy's inputs reaches the plant, likewise; None: all.
        app: From a `Policy` to the files of a folder, by name: C sources of the controller around
            it, of which one defines ``void act(const float *x, float *u)`` from states to limited
            inputs.  None: the policy alone.
    """

    rate: float
    plant: Plant
    limit: Callable[[jax.Array], jax.Array] | None = None
    app: Callable[[Any], dict[str, str]] | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """What is imitated, and where.

    Attributes:
        solver: The expert.
        plant: ``plant(x, u)``: states one control step later, a JAX function of whole batches.
        sampler: ``sampler(batch, seed)``: initial states ``[batch, n_x]``.
        steps: Control steps of a closed loop.
        control_dt: Time between two of them [s].
        noise: Noise of the closed loops that make data, and of the noisy evaluation.
        params: Parameters of the solver, the same in all closed loops.
        shift: Whether warm starts move by one node from step to step.
        cost: ``cost(x, u)`` of closed loops, NumPy arrays ``[batch, steps + 1, n_x]`` and
            ``[batch, steps, n_u]``: one value per instance.  None: no filter by cost.
        metrics: ``metrics(x, u)`` of the same arrays: a dictionary with "success" (booleans), and
            optionally "violation" and "input_excess", one value per instance each.  None: an
            instance succeeds if it stays finite.
        perturbed: A plant that differs from `plant`, for the evaluation; None: none.
        evaluation_steps: Control steps of the evaluation; None: as `steps`.
        names: Names of states and inputs, (states, inputs).
        units: Units of the states and inputs.
        notes: Conventions that a user of the exported policy must know, one sentence each.
        safe_input: What the policy returns for a state that is not finite; None: zeros.
        firmware: How a robot's firmware runs the policy; None: as the closed loops of the data.
        name: What the task is called in files and reports.
        factory: "module:function" that returns this task; workers on other machines call it.
    """

    solver: MPCSolver
    plant: Plant
    sampler: Sampler
    steps: int
    control_dt: float = 1.0
    noise: Noise = field(default_factory=Noise)
    params: Any = None
    shift: bool = True
    cost: Judge | None = None
    metrics: Judge | None = None
    perturbed: Plant | None = None
    evaluation_steps: int | None = None
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    units: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    notes: tuple[str, ...] = ()
    safe_input: tuple[float, ...] | None = None
    firmware: Firmware | None = None
    name: str = "task"
    factory: str | None = None

    def __post_init__(self) -> None:
        """Refuses sizes that do not belong together, before anything is compiled."""
        if not isinstance(self.solver, MPCSolver):
            raise ProblemError(f"solver must be an MPCSolver, got {type(self.solver).__name__}.")
        if self.solver.problem.u_rows is None:
            raise ProblemError("The problem does not say which variables are inputs; use an OCP.")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ProblemError(f"steps must be a positive integer, got {self.steps!r}.")
        sizes = (self.n_x, self.n_u)
        for what, given in (("names", self.names), ("units", self.units)):
            for part, size in zip(given, sizes, strict=True):
                if part and len(part) != size:
                    raise ProblemError(f"{what} needs {size} entries, got {len(part)}: {part}.")
                if what == "names" and len(set(part)) < len(part):
                    raise ProblemError(f"names must differ, because they name columns: {part}.")
        for what, given, size in (
            ("noise.state", self.noise.state, self.n_x),
            ("noise.input", self.noise.input, self.n_u),
            ("safe_input", self.safe_input, self.n_u),
        ):
            if given and len(given) != size:
                raise ProblemError(f"{what} needs {size} values, got {len(given)}.")

    @property
    def n_x(self) -> int:
        """Number of states."""
        return self.solver.problem.n_x0

    @property
    def n_u(self) -> int:
        """Number of inputs."""
        rows = self.solver.problem.u_rows
        assert rows is not None  # `__post_init__` refuses such problems
        return rows.shape[1]

    @property
    def dtype(self) -> str:
        """Numbers of states and inputs."""
        return self.solver.dtype

    @property
    def known_names(self) -> dict[str, list[str]]:
        """Names of states and inputs, as manifests and contracts hold them."""
        return {"state": list(self.state_names), "input": list(self.input_names)}

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the states."""
        return self.names[0] or tuple(f"x{i}" for i in range(self.n_x))

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return self.names[1] or tuple(f"u{i}" for i in range(self.n_u))

    def starts(self, batch: int, seed: int) -> jax.Array:
        """Initial states in the dtype of the solver."""
        x = np.asarray(self.sampler(batch, seed))
        if x.shape != (batch, self.n_x):
            raise ProblemError(
                f"sampler({batch}, seed) must return states [{batch}, {self.n_x}], got "
                f"{list(x.shape)}."
            )
        return jnp.asarray(x.astype(self.dtype))
