"""The expert, and mixtures of it with a network, as controllers that `rollout` can drive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc.learn.network import Network, apply_policy
from warpmpc.mpc.solver import MPCSolver
from warpmpc.mpc.types import MPCWarmStart, QPState

# What the expert leaves in its memory for whoever records it.
RECORDED = ("label", "expert_theta", "expert_primal", "expert_dual", "expert_status")


@dataclass(frozen=True)
class Expert:
    """An MPC as a controller with a memory: its warm start, and what validity is judged by.

    Attributes:
        solver: The solver.
        shift: Whether warm starts move by one node from step to step.
    """

    solver: MPCSolver
    shift: bool = True

    @property
    def dtype(self) -> str:
        """Numbers of states and inputs."""
        return self.solver.dtype

    def start(self, x: jax.Array, params: Any) -> dict[str, jax.Array]:
        """The guess of the problem."""
        warm = self.solver.cold_start(self.solver.z_guess(x, params))
        rows = self.solver.problem.u_rows
        assert rows is not None  # `Task` refuses such problems
        nothing = jnp.zeros_like(x[:, :1])
        scalars = dict.fromkeys(RECORDED[1:4], nothing)
        status = jnp.zeros(nothing.shape, jnp.int32)
        label = jnp.zeros((x.shape[0], rows.shape[1]), x.dtype)
        return {**_arrays(warm), **scalars, "label": label, "expert_status": status, "plan": warm.z}

    def act(
        self, x: jax.Array, memory: dict[str, jax.Array], params: Any
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The first input of the solution."""
        names = ("d", "s", "y")
        start = MPCWarmStart(memory["z"], QPState(*(memory[name] for name in names)))
        solution = self.solver.solve(x, params, start)
        warm, u = solution.warm_start, solution.u[:, 0]
        after = {
            **_arrays(self.solver.shift(warm) if self.shift else warm),
            "label": u,
            "expert_theta": solution.theta[:, None],
            "expert_primal": solution.primal_residual[:, None],
            "expert_dual": solution.dual_residual[:, None],
            "expert_status": solution.status[:, None].astype(jnp.int32),
            "plan": solution.z,
        }
        return u, after


@dataclass(frozen=True)
class Mixture:
    """Applies (1 - beta) times the expert's input plus beta times the network's; DAgger.

    The label in its memory is always the expert's.  Parameters are a dictionary of "expert" (those
    of the solver), "policy" (`Policy.data`) and "beta".
    """

    expert: Expert
    network: Network

    @property
    def dtype(self) -> str:
        """Numbers of states and inputs."""
        return self.expert.dtype

    def start(self, x: jax.Array, params: dict[str, Any]) -> dict[str, jax.Array]:
        """That of the expert."""
        return self.expert.start(x, params["expert"])

    def act(
        self, x: jax.Array, memory: dict[str, jax.Array], params: dict[str, Any]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The mixed input."""
        label, memory = self.expert.act(x, memory, params["expert"])
        own = apply_policy(self.network, params["policy"], x).astype(label.dtype)
        beta = params["beta"].astype(label.dtype)
        return (1 - beta) * label + beta * own, memory


@dataclass(frozen=True)
class NetworkController:
    """A network as a controller; its weights are the parameters, so that they compile nothing."""

    network: Network
    dtype: str = "float32"

    def start(self, x: jax.Array) -> tuple[()]:
        """Networks have no memory."""
        return ()

    def act(self, x: jax.Array, memory: tuple[()], params: Any) -> tuple[jax.Array, tuple[()]]:
        """The input."""
        return apply_policy(self.network, params, x).astype(self.dtype), memory


def _arrays(warm: MPCWarmStart) -> dict[str, jax.Array]:
    return {"z": warm.z, "d": warm.qp.d, "s": warm.qp.s, "y": warm.qp.y}
