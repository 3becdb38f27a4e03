"""SQP, ADMM and filter line search of PROBLEMS.md (section A) in plain NumPy and SciPy, float64.

The oracle for the whole SQP layer: one instance, loops over stages, dense Jacobians by complex
steps, LU factors.  Nothing of the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import reference_models as models
import scipy.sparse as sp
from scipy.sparse.linalg import splu

COMPLEX_STEP = 1e-30
NO_ROWS = np.zeros(0)
Function = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Problem:
    """Euler dynamics, diagonal quadratic cost, z_k = (x, u) at all nodes, u_N = 0.

    `path` and `terminal` map z to rows; bounds are ``[N, rows]`` and ``[rows]``.
    """

    n_x: int
    n_u: int
    dt: np.ndarray
    xdot: Function
    weights: np.ndarray
    path: Function
    path_lower: np.ndarray
    path_upper: np.ndarray
    terminal: Function = field(default=lambda z: z[..., :0])
    terminal_lower: np.ndarray = field(default_factory=lambda: NO_ROWS)
    terminal_upper: np.ndarray = field(default_factory=lambda: NO_ROWS)

    def cost(self, z):
        return 0.5 * np.sum(self.weights * self.nodes(z) ** 2)

    def nodes(self, z):
        return z.reshape(len(self.dt) + 1, self.n_x + self.n_u)

    def flow(self, z, dt):
        """Euler steps from each of the nodes given."""
        x, u = z[..., : self.n_x], z[..., self.n_x :]
        return x + dt[:, None] * self.xdot(x, u)

    def rows(self, z, x_init):
        """g, lower, upper in the order of the stages."""
        nodes, n_x = self.nodes(z), self.n_x
        dynamics = nodes[1:, :n_x] - self.flow(nodes[:-1], self.dt)
        g = [nodes[0, :n_x] - x_init]
        lower, upper = [np.zeros(n_x)], [np.zeros(n_x)]
        for k, path in enumerate(self.path(nodes[:-1])):
            g += [dynamics[k], path]
            lower += [np.zeros(n_x), self.path_lower[k]]
            upper += [np.zeros(n_x), self.path_upper[k]]
        g += [nodes[-1, n_x:], self.terminal(nodes[-1])]
        lower += [np.zeros(self.n_u), self.terminal_lower]
        upper += [np.zeros(self.n_u), self.terminal_upper]
        return np.concatenate(g), np.concatenate(lower), np.concatenate(upper)

    def jacobian(self, z):
        """Dense Jacobian of the rows."""
        nodes, n_x, n_z = self.nodes(z), self.n_x, self.n_x + self.n_u
        flow = complex_jacobian(lambda w: self.flow(w, self.dt), nodes[:-1])
        path = complex_jacobian(self.path, nodes[:-1])
        last = complex_jacobian(lambda w: self.terminal(w), nodes[-1:])[0]
        blocks = [(0, np.eye(n_x, n_z))]
        for k in range(len(self.dt)):
            dynamics = np.hstack([-flow[k], np.eye(n_x, n_z)])
            blocks += [(k, dynamics), (k, path[k])]
        blocks += [(len(self.dt), np.eye(n_z)[n_x:]), (len(self.dt), last)]
        A, row = np.zeros((sum(len(b) for _, b in blocks), z.size)), 0
        for k, block in blocks:
            A[row : row + len(block), k * n_z : k * n_z + block.shape[1]] = block
            row += len(block)
        return A


def complex_jacobian(function, nodes):
    """Jacobian at every node of a function of one node."""
    columns = []
    for j in range(nodes.shape[1]):
        moved = nodes.astype(complex)
        moved[:, j] += 1j * COMPLEX_STEP
        columns.append(function(moved).imag / COMPLEX_STEP)
    return np.stack(columns, axis=-1)


@dataclass(frozen=True)
class Options:
    """Parameters of the method; names as in PROBLEMS.md."""

    sqp_iter: int
    admm_iter: int
    step_min: float = 0.1
    rho: float = 0.1
    rho_equality: float = 1.0
    relaxation: float = 1.6
    sigma: float = 1e-6
    scale: float = 0.1
    g_max: float = 1e-1
    g_min: float = 1e-3
    gamma: float = 1e-3
    armijo: float = 1e-4


@dataclass(frozen=True)
class Result:
    """After one control step; the scalars are those of the last iteration, alphas of all."""

    z: np.ndarray
    y: np.ndarray
    cost: float
    theta: float
    alphas: list[float]
    accepted: bool
    primal: float
    dual: float


def admm(P, q, A, lower, upper, start, options):
    """Fixed number of iterations; returns x, s, y."""
    x, s, y = start
    rho = np.where(upper - lower < 1e-4, options.rho_equality, 1.0) * options.rho
    K = sp.bmat([[sp.diags(P + options.sigma), A.T], [A, sp.diags(-1 / rho)]], format="csc")
    factor, n, a = splu(K), q.size, options.relaxation
    for _ in range(options.admm_iter):
        w = s - y / rho
        solution = factor.solve(np.concatenate([options.sigma * x - q, w]))
        relaxed = a * (w + solution[n:] / rho) + (1 - a) * s
        x = a * solution[:n] + (1 - a) * x
        s = np.clip(relaxed + y / rho, lower, upper)
        y = y + rho * (relaxed - s)
    return x, s, y


def accepts(trial, here, slope, o):
    """The filter's test of one step; `trial` and `here` are (cost, theta)."""
    (cost, theta), (cost_0, theta_0) = trial, here
    if theta > o.g_max:
        return theta < (1 - o.gamma) * theta_0
    if theta < o.g_min and theta_0 < o.g_min and slope < 0:
        return cost < cost_0 + o.armijo * slope
    return cost < cost_0 - o.gamma * theta_0 or theta < (1 - o.gamma) * theta_0


def line_search(problem, z, d, slope, x_init, o):
    """Step length and whether it was accepted."""

    def point(z):
        g, lower, upper = problem.rows(z, x_init)
        below, above = np.maximum(lower - g, 0), np.minimum(upper - g, 0)
        return problem.cost(z), o.scale * np.sqrt(np.sum(below**2) + np.sum(above**2))

    here, alpha = point(z), 1.0
    while True:
        trial = point(z + alpha * d)
        accepted = bool(accepts(trial, here, slope, o))
        if accepted or alpha / 2 < o.step_min:
            return alpha, accepted, trial
        alpha /= 2


def control_step(problem, z, state, x_init, o):
    """All SQP iterations of one control step; returns the result and the state of the QP."""
    alphas = []
    for _ in range(o.sqp_iter):
        g, lower, upper = problem.rows(z, x_init)
        dense = problem.jacobian(z)
        A, P = sp.csc_matrix(dense), problem.weights.ravel()
        q = P * z
        d, s, y = state = admm(P, q, A, lower - g, upper - g, state, o)
        primal = np.abs(A @ d - s).max()
        dual = np.abs(P * d + q + A.T @ y).max()
        alpha, accepted, (cost, theta) = line_search(problem, z, d, q @ d, x_init, o)
        z = z + alpha * d
        alphas.append(alpha)
    return Result(z, y, cost, theta, alphas, accepted, primal, dual), state


def closed_loop(problem, guess, plant, x_init, steps, options):
    """Control steps with warm starts; returns the results and the states of the plant."""
    z, states = guess, [x_init]
    m = problem.rows(z, x_init)[0].size
    state = (np.zeros(z.size), np.zeros(m), np.zeros(m))
    results = []
    for _ in range(steps):
        result, state = control_step(problem, z, state, states[-1], options)
        z = result.z
        results.append(result)
        u = z[problem.n_x : problem.n_x + problem.n_u]
        states.append(plant(states[-1], u))
    return results, np.array(states)


def cartpole(horizon):
    """Section 3."""
    w, tube = models.CARTPOLE_W, models.cartpole_tube(horizon)
    weights = 0.1 * np.vstack([np.tile(w[:5], (horizon, 1)), [*w[5:9], 0.0]])
    bounds = np.stack([9 - w[11] * tube, 0.35 - w[12] * tube], axis=1)
    return Problem(
        n_x=4,
        n_u=1,
        dt=np.full(horizon, 0.1),
        xdot=models.cartpole_xdot,
        weights=weights,
        path=lambda z: z[..., [4, 0]],
        path_lower=-bounds[:-1],
        path_upper=bounds[:-1],
        terminal=lambda z: z[..., :1],
        terminal_lower=-bounds[-1, 1:],
        terminal_upper=bounds[-1, 1:],
    )


def quadrotor(horizon, *, cylinders=False):
    """Sections 4 and 4b."""
    dt = 0.01 * 1.05 ** np.arange(horizon)
    stage = np.concatenate([models.QUADROTOR_Q, models.QUADROTOR_R])
    last = np.concatenate([models.QUADROTOR_Q, np.zeros(4)])
    common = {
        "n_x": 12,
        "n_u": 4,
        "dt": dt,
        "xdot": models.quadrotor_xdot,
        "weights": np.vstack([dt[:, None] * stage, last]),
    }
    motors = np.zeros((horizon, 4)), np.full((horizon, 4), 0.18)
    if not cylinders:
        return Problem(
            **common,
            path=lambda z: models.quadrotor_motors(z[..., 12:]),
            path_lower=motors[0],
            path_upper=motors[1],
        )
    least = 20 * (models.CYLINDERS[:, 2] + 0.1) ** 2
    return Problem(
        **common,
        path=lambda z: np.concatenate(
            [models.quadrotor_motors(z[..., 12:]), models.cylinder_rows(z)], axis=-1
        ),
        path_lower=np.hstack([motors[0], np.tile(least, (horizon, 1))]),
        path_upper=np.hstack([motors[1], np.full((horizon, 4), np.inf)]),
        terminal=models.cylinder_rows,
        terminal_lower=least,
        terminal_upper=np.full(4, np.inf),
    )
