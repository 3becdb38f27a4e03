"""Numbers of the MIT humanoid: joints, inertias, limits, friction, points (PROBLEMS.md, section 5).

Everything else of this package reads them from here, so that the model of the MPC and the robot in
MuJoCo are one.  Coordinates: q is position, roll, pitch and yaw of the base, then 18 joints; dq is
angular and linear velocity of the base in its own axes, then the rates of the joints.  Legs come
before arms, right before left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

GRAVITY = 9.81
N_Q, N_JOINTS, N_FORCE = 24, 18, 12
N_X = 2 * N_Q
LEG_JOINTS = 10  # the first joints are those of both legs
Vector = tuple[float, float, float]
Inertia = tuple[float, float, float, float, float, float]  # xx, yy, zz, xy, xz, yz


@dataclass(frozen=True)
class Part:
    """One joint and the link behind it.

    Attributes:
        name: Name of the joint and of the link.
        parent: Link before it.
        axis: "x", "y" or "z".
        origin: Origin of the joint in the frame of the parent [m].
        pitch: Fixed rotation about y before the joint [rad].
        mass: Mass of the link [kg].
        center: Its centre of mass, in the frame of the joint [m].
        inertia: About the centre of mass, in the axes of the joint [kg m^2].
    """

    name: str
    parent: str
    axis: str
    origin: Vector
    pitch: float
    mass: float
    center: Vector
    inertia: Inertia

    def on(self, side: str) -> Part:
        """The part of one side; the table has those of the right one ("R"), "L" mirrors them."""
        sign = 1.0 if side == "R" else -1.0
        xx, yy, zz, xy, xz, yz = self.inertia
        return Part(
            f"{side} {self.name}",
            self.parent if self.parent == "base" else f"{side} {self.parent}",
            self.axis,
            mirrored(self.origin, sign),
            self.pitch,
            self.mass,
            mirrored(self.center, sign),
            (xx, yy, zz, sign * xy, xz, sign * yz),
        )


def mirrored(vector: Vector, sign: float) -> Vector:
    """The vector of the other side if `sign` is -1."""
    x, y, z = vector
    return x, sign * y, z


BASE_MASS, BASE_CENTER = 8.52, (0.009896, 0.004771, 0.100522)
BASE_INERTIA = (0.172699, 0.105949, 0.091906, 0.001419, 0.004023, -0.001672)
LEG = (
    Part(
        "hip yaw", "base", "z", (-0.00565, -0.082, -0.05735), -0.174533, 0.84563,
        (-0.064842, 3.6e-5, -0.06309),
        (1.5373e-3, 1.4252e-3, 1.2028e-3, -1.1e-6, 5.578e-4, -2.4e-6),
    ),
    Part(
        "hip roll", "hip yaw", "x", (-0.06435, 0.0, -0.07499), 0.436332, 1.20868,
        (0.067232, 0.013018, 1.831e-4),
        (1.7535e-3, 3.338e-3, 1.9927e-3, 6.3e-6, -8e-5, 1.3e-5),
    ),
    Part(
        "hip pitch", "hip roll", "y", (0.071, 0.0018375, 0.0), -0.261799, 2.64093,
        (0.0132054, -0.0269864, -0.096021),
        (0.0243761, 0.0259015, 0.0038929, -9.96e-5, 6.548e-4, -2.6713e-3),
    ),
    Part(
        "knee", "hip pitch", "y", (0.0, 0.0, -0.267), 0.0, 0.35435,
        (0.00528, -0.0014762, -0.13201),
        (3.051e-3, 3.033e-3, 2.529e-4, 0.0, 8.73e-5, -3.93e-5),
    ),
    Part(
        "ankle", "knee", "y", (0.0, 0.0, -0.2785), 0.0, 0.280951,
        (0.022623, 0.0, -0.012826),
        (8.42e-5, 7.959e-4, 7.681e-4, 0.0, -4.88e-5, 0.0),
    ),
)  # fmt: skip
ARM = (
    Part(
        "shoulder pitch", "base", "y", (0.01346, -0.17608, 0.24657), 0.0, 0.788506,
        (0.009265, -0.052623, -1.249e-4),
        (1.3678e-3, 7.392e-4, 8.84e-4, -2.66e-5, 2.1e-6, 1.2e-6),
    ),
    Part(
        "shoulder roll", "shoulder pitch", "x", (0.0, -0.0575, 0.0), 0.0, 0.80125,
        (6.041e-4, -1.221e-4, -0.082361),
        (1.1524e-3, 1.1921e-3, 1.2386e-3, -7e-7, 3.96e-5, -1.4e-6),
    ),
    Part(
        "shoulder yaw", "shoulder roll", "z", (0.0, 0.0, -0.1025), 0.0, 0.905588,
        (1.703e-4, 0.016797, -0.06),
        (1.2713e-3, 1.7477e-3, 8.191e-4, -1e-6, -8e-6, 2.25e-5),
    ),
    Part(
        "elbow", "shoulder yaw", "y", (0.0, 0.0, -0.1455), 0.0, 0.34839,
        (-0.0059578, -1.11e-4, -0.0426735),
        (1.57e-3, 1.6167e-3, 6.19e-5, -2e-7, 3.35e-5, -3e-6),
    ),
)  # fmt: skip
PARTS = tuple(part.on(side) for limb in (LEG, ARM) for side in "RL" for part in limb)
MASS = BASE_MASS + sum(part.mass for part in PARTS)

# Points: name, link, and place in its frame on the right side.
HEEL, TOE = (-0.05, 0.0, -0.041), (0.1, 0.0, -0.041)
_POINTS: tuple[tuple[str, str, Vector], ...] = (
    ("hip", "hip pitch", (0.0, -0.04, -0.05)),
    ("knee", "knee", (0.0, 0.0, 0.0)),
    ("shank", "knee", (0.0, 0.0, -0.13925)),
    ("ankle", "ankle", (0.0, 0.0, 0.0)),
    ("heel", "ankle", HEEL),
    ("toe", "ankle", TOE),
    ("hand", "elbow", (0.0, 0.0, -0.26)),
)
POINTS: dict[str, tuple[str, Vector]] = {
    side + name: (f"{side} {link}", mirrored(at, sign))
    for side, sign in (("R", 1.0), ("L", -1.0))
    for name, link, at in _POINTS
}
CONTACTS = ("Rheel", "Lheel", "Rtoe", "Ltoe")
_PAIRS = """
    Rankle-Lankle Rshank-Lshank Rknee-Lknee Rankle-Lshank Lankle-Rshank Rshank-Lknee Lshank-Rknee
    Rtoe-Lankle Rtoe-Lshank Ltoe-Rankle Ltoe-Rshank Rheel-Lankle Rheel-Lshank Lheel-Rankle
    Lheel-Rshank Lheel-Rtoe Rheel-Ltoe Rhip-Rhand Lhip-Lhand
"""
PAIRS = [tuple(pair.split("-")) for pair in _PAIRS.split()]
RADIUS = 0.06  # every point has a sphere of this size [m]

# Friction of the legs: torque = B dq + C tanh(2 dq), with blocks where a gear drives two joints.
DAMPING, DRY_FRICTION = np.zeros((N_JOINTS, N_JOINTS)), np.zeros((N_JOINTS, N_JOINTS))
for _joint, _damping, _dry in (
    (0, 0.0001264174342179987, 0.3358821811983523),
    (1, 1.518888917868889e-05, 0.3890907737374462),
    (2, 2.74955313475986e-06, 1.286945467188001),
    (5, 0.01852217343626969, 0.3915417961193746),
    (6, 0.002642651301401557, 0.4474341227090388),
    (7, 0.0005149300394242827, 0.9361021119074371),
):
    DAMPING[_joint, _joint], DRY_FRICTION[_joint, _joint] = _damping, _dry
DAMPING[3:5, 3:5] = [
    [0.07934650407442555, 0.002648033303694042],
    [0.04576404967800515, 0.04497515811665917],
]
DRY_FRICTION[3:5, 3:5] = [
    [2.362905130234155, 0.3106583324730124],
    [0.6606878149660689, 0.3412011615254915],
]
DAMPING[8:10, 8:10] = [
    [0.01253410050843409, -0.0119434561624879],
    [0.01414297371157412, 0.04612700653293491],
]
DRY_FRICTION[8:10, 8:10] = [
    [2.970698956425139, 0.3202558860653637],
    [0.8057162138365367, 0.2721264529739443],
]
FRICTION_SLOPE = 2.0
# Arms have friction in the simulated robot only; the MPC does not know of it.
ARM_DAMPING, ARM_DRY_FRICTION = 0.1, 1.0

# Limits: torques [N m], torques at a voltage of 60 V (V0 - S dq), angles [rad], rates [rad/s].
_LEG_TORQUES, _ARM_TORQUES = [13.998, 25.998, 72, 195.996, 51.996], [13.998, 13.998, 13.998, 20.997]
TORQUES = np.array(_LEG_TORQUES * 2 + _ARM_TORQUES * 2)
_HIP, _PITCH, _ELBOW = 6 * 60 / 4.6, 6 * 60 / 2.88, 9 * 60 / 4.6
_LEG_VOLTAGE = [_HIP, _HIP, _PITCH, 406.5217391304, 156.5217391304]
VOLTAGE = np.array(_LEG_VOLTAGE * 2 + [_HIP, _HIP, _HIP, _ELBOW] * 2)
SLOPE = np.zeros((N_JOINTS, N_JOINTS))
_HIP_SLOPE, _ANKLE_SLOPE = 36 * 0.20835 / 4.6, 6.5222608696
for _first in (0, 5):
    SLOPE[_first, _first] = SLOPE[_first + 1, _first + 1] = _HIP_SLOPE
    SLOPE[_first + 2, _first + 2] = 36 * 0.2565 / 2.88
    SLOPE[_first + 3 : _first + 5, _first + 3 : _first + 5] = [
        [19.3472608696, _ANKLE_SLOPE],
        [_ANKLE_SLOPE, _ANKLE_SLOPE],
    ]
for _first in (10, 14):
    SLOPE[range(_first, _first + 4), range(_first, _first + 4)] = [_HIP_SLOPE] * 3 + [3.6687717391]
_LEG_LOWER, _LEG_UPPER = (-30, -60, -120, 10, -80), (30, 60, 60, 180, 80)
LOWER = np.radians([*_LEG_LOWER, *_LEG_LOWER, -90, -90, -90, -130, -90, -2.5, -45, -130])
UPPER = np.radians([*_LEG_UPPER, *_LEG_UPPER, 80, 2.5, 45, 0, 80, 90, 90, 0])
RATES = np.array([50.0] * LEG_JOINTS + [25.0] * 8)
YAW_DIFFERENCE = np.radians(45)  # left hip minus right hip
CONE, CONE_SCALE = 0.7, 0.005  # friction coefficient, and factor on the rows

_LEG_HOME = (0.0, 0.0, -0.724757, 1.412282, -0.68752)
_ARMS_HOME = (0.0, -0.1, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0)
HOME = np.array([0, 0, 0.61, 0, 0, 0, *_LEG_HOME, *_LEG_HOME, *_ARMS_HOME])

# Weights of the cost, without a factor 1/2.
Q_WEIGHT = np.array([0, 0, 8000, 300, 600, 300, *[20, 20, 0.05, 0.05, 0.05] * 2, *[100] * 8])
DQ_WEIGHT = np.array(
    [100, 100, 100, 800, 800, 100, *[5, 5, 0.12, 0.12, 0.12] * 2, *[0.4, 0.4, 0.4, 0.3] * 2]
)
DDQ_WEIGHT = np.array([0.001] * LEG_JOINTS + [0.002] * 8)
FORCE_WEIGHT = np.full(N_FORCE, 0.005)
TORQUE_WEIGHT = np.array([0.5, 0.5, 0.01, 0.01, 0.01] * 2 + [0.5] * 8)
# Vertical reference of each contact that carries: twice the weight on two feet, as published [N].
STANCE_FORCE = 24.868527 * GRAVITY / 2
