"""The benchmark models once more, as plain NumPy formulas of PROBLEMS.md; nothing of the package.

Formulas work on arrays ``[..., n]`` of any dtype, complex ones included, so that derivatives can be
taken by complex steps.
"""

from __future__ import annotations

import numpy as np

CARTPOLE_W = np.array(
    [
        *(4.87491613111937, 1.0e-4, 0.19748506311671338, 0.053314181866045744),
        *(0.010968784540611266, 1825.9080085069231, 1e4, 695.2242355039175, 9.132100349037795),
        *(3.7141252051386218, 1.9962829285664576e-05, 0.2512645737717601, 0.06702144014521097),
    ]
)
QUADROTOR_Q = np.array([200, 200, 100, 1, 1, 1000, 1, 1, 1, 1, 1, 10]) / 200
QUADROTOR_R = np.array([200, 200, 10, 100]) / 200
CYLINDERS = np.array(
    [[0.58, 0.42, 0.17], [-0.62, 0.56, 0.22], [0.55, -0.62, 0.15], [-0.78, -0.35, 0.19]]
)


def cartpole_xdot(x, u):
    h1, h2, h4, h7 = 0.55569701, 0.0664261871, 0.0431050190, 0.6516408952  # rounded: for 1e-9 only
    m_rod, m_tip, length = 0.01840051, 0.09, 0.6696171
    m = m_rod + m_tip
    lever = (m_rod * length / 2 + m_tip * length) / m
    exact = (0.4472965 + m, m * lever, m_rod * length**2 / 3 + m_tip * length**2, m * lever * 9.81)
    np.testing.assert_allclose(exact, (h1, h2, h4, h7), rtol=1e-8)
    h1, h2, h4, h7 = exact
    friction = 0.00172243
    v, theta, w = x[..., 1], x[..., 2], x[..., 3]
    s, c = np.sin(theta), np.cos(theta)
    force = -3.918722 * v + 0.5374264 * u[..., 0]
    D = h1 * h4 - h2**2 * c**2
    v_dot = (h2 * h4 * w**2 * s - h2 * h7 * c * s + h4 * force - h2 * c * friction * w) / D
    w_dot = -(h2**2 * w**2 * c * s - h1 * h7 * s + h2 * c * force + h1 * friction * w) / D
    return np.stack([v, v_dot, w, w_dot], axis=-1)


def cartpole_tube(horizon):
    s, decay = [0.0], np.exp(-CARTPOLE_W[9] * 0.1)
    for _ in range(horizon):
        s.append(decay * s[-1] + (1 - decay) * CARTPOLE_W[10] / CARTPOLE_W[9])
    return np.array(s)


def quadrotor_xdot(x, u):
    m, g, ixx, iyy, izz, b = 0.0402, 9.8066, 1.8e-5, 1.8e-5, 3.6e-5, 5e-6
    phi, th, psi = x[..., 3], x[..., 4], x[..., 5]
    wx, wy, wz = x[..., 9], x[..., 10], x[..., 11]
    mx, my, mz, thrust = 1e-2 * u[..., 0], 1e-2 * u[..., 1], 1e-3 * u[..., 2], u[..., 3] + m * g
    r3 = [
        np.cos(psi) * np.sin(th) * np.cos(phi) + np.sin(psi) * np.sin(phi),
        np.sin(psi) * np.sin(th) * np.cos(phi) - np.cos(psi) * np.sin(phi),
        np.cos(th) * np.cos(phi),
    ]
    return np.stack(
        [
            x[..., 6],
            x[..., 7],
            x[..., 8],
            wx + np.sin(phi) * np.tan(th) * wy + np.cos(phi) * np.tan(th) * wz,
            np.cos(phi) * wy - np.sin(phi) * wz,
            (np.sin(phi) * wy + np.cos(phi) * wz) / np.cos(th),
            r3[0] * thrust / m,
            r3[1] * thrust / m,
            r3[2] * thrust / m - g,
            (mx - (izz - iyy) * wy * wz - b * wx) / ixx,
            (my - (ixx - izz) * wx * wz - b * wy) / iyy,
            (mz - (iyy - ixx) * wx * wy - b * wz) / izz,
        ],
        axis=-1,
    )


def quadrotor_motors(u):
    a, kappa = 0.0325, 0.0051648627905205285
    mixer = np.array(
        [
            [-1 / a, -1 / a, -1 / kappa, 1],
            [-1 / a, 1 / a, 1 / kappa, 1],
            [1 / a, 1 / a, -1 / kappa, 1],
            [1 / a, -1 / a, 1 / kappa, 1],
        ]
    )
    wrench = u * np.array([1e-2, 1e-2, 1e-3, 1.0]) + np.array([0, 0, 0, 0.0402 * 9.8066])
    return wrench @ mixer.T / 4


def cylinder_rows(x):
    return 20 * (
        (x[..., 0, None] - CYLINDERS[:, 0]) ** 2 + (x[..., 1, None] - CYLINDERS[:, 1]) ** 2
    )
