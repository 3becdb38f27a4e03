"""`Policy`: a trained network with its normalisation, limits and names; on disk one .npz file."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.learn.controllers import NetworkController
from warpmpc.learn.errors import DataError
from warpmpc.learn.files import write_bytes
from warpmpc.learn.network import Network, apply_policy

U_LIMIT = 8.0  # standard deviations that an output may be away from the mean of the labels
ARRAYS = ("x_mean", "x_std", "u_mean", "u_std", "x_low", "x_high", "safe")


@dataclass(frozen=True, eq=False)
class Policy:
    """A network that stands in for an MPC.

    Attributes:
        network: Sizes and activation.
        weights: Weights of each layer, (weight ``[out, in]``, bias), float32.
        x_mean: Mean of the states in the training data.
        x_std: Standard deviation of the states.
        u_mean: Mean of the labels.
        u_std: Standard deviation of the labels.
        x_low: Least states in the training data.
        x_high: Largest states in the training data.
        x_limit: Standardised states are held to this interval around 0, which contains all training
            data.
        safe: The input for a state that is not finite.
        contract: What a user must know: task, names, units, notes, hash of the problem.
        history: Losses of the training, by name.
    """

    network: Network
    weights: tuple[tuple[np.ndarray, np.ndarray], ...]
    x_mean: np.ndarray
    x_std: np.ndarray
    u_mean: np.ndarray
    u_std: np.ndarray
    x_low: np.ndarray
    x_high: np.ndarray
    x_limit: float
    safe: np.ndarray
    contract: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[float]] = field(default_factory=dict)

    @property
    def n_x(self) -> int:
        """Number of states."""
        return self.network.sizes[0]

    @property
    def n_u(self) -> int:
        """Number of inputs."""
        return self.network.sizes[-1]

    @property
    def x_scale(self) -> np.ndarray:
        """What centred states are multiplied by."""
        return (1 / self.x_std).astype(np.float32)

    @cached_property
    def data(self) -> dict[str, Any]:
        """All values as arrays on the device, as `apply_policy` reads them."""
        vectors = {name: getattr(self, name) for name in ("x_mean", "u_mean", "u_std", "safe")}
        limits = {"x_limit": np.float32(self.x_limit), "u_limit": np.float32(U_LIMIT)}
        parameters = self.network.parameters(self.weights)
        tree = {**vectors, **limits, "x_scale": self.x_scale, "parameters": parameters}
        return jax.tree.map(partial(jnp.asarray, dtype=jnp.float32), tree)

    @property
    def controller(self) -> NetworkController:
        """For `rollout(policy.controller, ..., params=policy.data)`."""
        return NetworkController(self.network)

    # A policy is itself a controller, with its weights as constants of the program.
    dtype = "float32"

    def start(self, x: jax.Array) -> tuple[()]:
        """Policies have no memory."""
        return ()

    def act(self, x: jax.Array, memory: tuple[()]) -> tuple[jax.Array, tuple[()]]:
        """Inputs of the plant."""
        return apply_policy(self.network, self.data, x), memory

    def __call__(self, x: Any) -> jax.Array:
        """Inputs ``[..., n_u]`` at states ``[..., n_x]``, in float32."""
        x = jnp.asarray(x, dtype=jnp.float32)
        if x.ndim < 1 or x.shape[-1] != self.n_x:
            raise ProblemError(
                f"The policy needs states [..., {self.n_x}], got shape {list(x.shape)}."
            )
        return _apply(self.network, self.data, x)

    def outside(self, x: np.ndarray) -> np.ndarray:
        """Which states ``[..., n_x]`` lie outside of the box of the training data."""
        return np.asarray(~((x >= self.x_low) & (x <= self.x_high)).all(axis=-1))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides about the inputs."""
        total = hashlib.sha256(repr((self.network, self.x_limit)).encode())
        for array in jax.tree.leaves((self.weights, [getattr(self, name) for name in ARRAYS])):
            total.update(np.ascontiguousarray(array, dtype=np.float32).tobytes())
        return total.hexdigest()

    def save(self, path: str | Path) -> Path:
        """Writes one .npz file, whole or not at all."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        for i, (weight, bias) in enumerate(self.weights):
            arrays |= {f"weight_{i}": weight, f"bias_{i}": bias}
        about = {
            "sizes": self.network.sizes,
            "activation": self.network.activation,
            "x_limit": self.x_limit,
            "contract": self.contract,
            "history": self.history,
        }
        buffer = io.BytesIO()
        np.savez(buffer, about=np.array(json.dumps(about)), **arrays)
        path = Path(path)
        write_bytes(path, buffer.getvalue())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Reads what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = json.loads(str(arrays.pop("about")))
            network = Network(tuple(about["sizes"]), about["activation"])
            layers = range(len(network.sizes) - 1)
            weights = tuple((arrays[f"weight_{i}"], arrays[f"bias_{i}"]) for i in layers)
            vectors = {name: arrays[name] for name in ARRAYS}
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DataError(f"{path} is no policy that `Policy.save` wrote: {error}") from error
        rest = {name: about[name] for name in ("x_limit", "contract", "history")}
        return cls(network=network, weights=weights, **vectors, **rest)


@partial(jax.jit, static_argnums=0)
def _apply(network: Network, data: dict[str, Any], x: jax.Array) -> jax.Array:
    return apply_policy(network, data, x)
