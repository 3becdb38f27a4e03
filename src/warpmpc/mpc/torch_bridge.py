"""PyTorch tensors in and out through DLPack: no copy as long as the device is the same.

torch is never imported unless a caller passes a tensor.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc._errors import ProblemError


def has_tensors(tree: Any) -> bool:
    """Whether any leaf is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and any(isinstance(a, torch.Tensor) for a in jax.tree.leaves(tree))


def to_jax(tree: Any) -> Any:
    """Tensors as JAX arrays on the same device and memory; other leaves stay."""
    return jax.tree.map(_to_jax, tree)


def to_torch(tree: Any) -> Any:
    """JAX arrays as tensors on the same device and memory."""
    return jax.tree.map(sys.modules["torch"].from_dlpack, tree)


def _to_jax(leaf: Any) -> Any:
    if not has_tensors(leaf):
        return leaf
    if leaf.requires_grad:
        raise ProblemError(
            "A tensor requires gradients, which do not flow through warpmpc in PyTorch: pass "
            "`tensor.detach()`, or differentiate in JAX."
        )
    return jnp.from_dlpack(leaf.contiguous())
