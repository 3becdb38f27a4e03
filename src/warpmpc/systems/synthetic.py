"""Functions of any length for tests and benchmarks of code generation.

Produces: `synthetic_function`, a CasADi SX function of eight states and eight inputs that repeats
one round of elementary operations, each round on other entries.
"""

from __future__ import annotations

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError

SIZE = 8
_INSTRUCTIONS_PER_ROUND = 30
SPREAD = 0.1  # inputs are drawn from [-SPREAD, SPREAD]


def synthetic_function(target: int) -> ca.Function:
    """Function ``(x, u) -> s`` with at least `target` instructions, few more than necessary."""
    if target < 1:
        raise ProblemError(f"The number of instructions must be positive, got {target}.")
    rounds = -(-target // _INSTRUCTIONS_PER_ROUND)
    function = _rounds(rounds)
    while function.n_instructions() < target:
        rounds = -(-rounds * target // function.n_instructions())
        function = _rounds(rounds)
    return function


def _rounds(rounds: int) -> ca.Function:
    x, u = ca.SX.sym("x", SIZE), ca.SX.sym("u", SIZE)
    s, inputs = ca.vertsplit(x), ca.vertsplit(u)
    for k in range(rounds):
        i, j, m = k % SIZE, (5 * k + 1) % SIZE, (7 * k + 3) % SIZE
        a, b, c = s[i], s[j], inputs[m]
        t = ca.sin(0.1 * a + c) + ca.cos(0.2 * b - c) + ca.tanh(0.01 * a * b)
        t += ca.sqrt(t**2 + 1)
        t += ca.atan2(a + 1, c + 2) + 0.01 * ca.fmin(a, b) + 0.02 * ca.fmax(b, c)
        s[i] = 0.91 * a + 0.07 * t + 0.02 * b
    return ca.Function(f"synthetic_{rounds}", [x, u], [ca.vertcat(*s)], ["x", "u"], ["s"])


def sample(rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Random arguments, ``[batch, 8]`` each."""
    x, u = rng.uniform(-SPREAD, SPREAD, (2, batch, SIZE))
    return x, u


def evaluate(function: ca.Function, x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """What CasADi itself computes in float64, ``[batch, 8]``."""
    return np.array(function.map(len(x))(x.T, u.T)).T
