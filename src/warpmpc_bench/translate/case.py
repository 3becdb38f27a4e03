"""One synthetic function with a batch of arguments, and the check of what was computed.

Reads: `systems.synthetic`.  Produces: device arrays, and the difference to CasADi's own evaluation
on a sample of instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import jax
import numpy as np

from warpmpc.systems.synthetic import SIZE, evaluate, sample, synthetic_function
from warpmpc_bench.common.checking import finite_max, rows_of, spread

CHECKED = 64  # instances that CasADi evaluates as well
ACCURACY_LIMIT = {"float32": 5e-5, "float64": 1e-12}


@dataclass(frozen=True)
class Accuracy:
    """How well a batch was evaluated.

    Attributes:
        difference: Largest ``||s - s_CasADi|| / ||s_CasADi||`` (max norm) of the checked instances.
        checked: Number of instances checked, first and last among them.
        limit: Largest allowed `difference`.
    """

    difference: float | None
    checked: int
    limit: float

    @property
    def correct(self) -> bool:
        """Whether the checked instances agree with CasADi."""
        return self.difference is not None and self.difference <= self.limit


@cache
def function_of(length: int) -> Any:
    """The CasADi function with at least `length` instructions."""
    return synthetic_function(length)


class Case:
    """A function and its arguments on the device, or on the host for CasADi itself."""

    def __init__(self, length: int, batch: int, dtype: str, *, on_host: bool = False):
        """Draws the arguments."""
        self.length, self.batch, self.dtype = length, batch, dtype
        self.function = function_of(length)
        self.generator = f"numpy.random.default_rng({1 + batch})"
        drawn = sample(np.random.default_rng(1 + batch), batch)
        arguments = tuple(array.astype(dtype) for array in drawn)
        self.arguments = arguments if on_host else jax.device_put(arguments)

    @cached_property
    def _checked(self) -> tuple[np.ndarray, np.ndarray]:
        """Instances, and CasADi's results for the given values."""
        instances = spread(self.batch, CHECKED)
        x, u = (rows_of(array, instances) for array in self.arguments)
        return instances, evaluate(self.function, x, u)

    def accuracy(self, s: Any) -> Accuracy:
        """Checks results ``[batch, 8]``."""
        instances, reference = self._checked
        found = rows_of(s, instances).reshape(-1, SIZE)
        size = np.abs(reference).max(axis=1)
        differences = np.abs(found - reference).max(axis=1) / size
        limit = ACCURACY_LIMIT[self.dtype]
        return Accuracy(finite_max(differences.tolist()), instances.size, limit)
