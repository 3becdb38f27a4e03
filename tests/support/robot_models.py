"""Robots for tests, written for them: 1 to 35 velocities, all kinds of joints.

Values are chosen so that no rotation, offset or inertia is special unless that is the point.
"""

from __future__ import annotations

INERTIAL = '<inertial pos="{pos}" mass="{mass}" fullinertia="{inertia}"/>'


def inertial(pos: str, mass: float, inertia: str) -> str:
    return INERTIAL.format(pos=pos, mass=mass, inertia=inertia)


def mjcf(body: str, more: str = "", option: str = "") -> str:
    return (
        '<mujoco><compiler angle="radian" autolimits="true"/>'
        f"<option {option}/><worldbody>{body}</worldbody>{more}</mujoco>"
    )


PENDULUM = mjcf(
    '<body name="bob" pos="0.1 0 1"><joint name="swing" axis="0 1 0" damping="0.1" '
    'armature="0.02"/>'
    '<geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.03"/>'
    '<site name="tip" pos="0 0.02 -0.5" euler="0.3 0 0.1"/></body>'
)
SKEWED_HINGE = mjcf(
    '<body name="wheel" pos="0.2 -0.1 0.7" euler="0.4 -0.3 0.9">'
    '<joint name="turn" axis="1 2 3" pos="0.05 0.02 -0.03" ref="0.4" stiffness="3" '
    'springref="0.1"/>'
    + inertial("0.1 0.2 -0.1", 1.7, "0.09 0.08 0.07 0.01 -0.02 0.015")
    + "</body>",
    option='gravity="1 -2 -9"',
)
CART_DOUBLE_PENDULUM = mjcf(
    '<body name="cart"><joint name="rail" type="slide" axis="1 0 0" damping="0.3" range="-2 2"/>'
    '<geom type="box" size="0.2 0.1 0.05" mass="1"/>'
    '<body name="first"><joint name="lower" axis="0 -1 0" armature="0.001"/>'
    '<geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.02" mass="0.2"/>'
    '<body name="second" pos="0 0 0.5"><joint name="upper" axis="0 -1 0"/>'
    '<geom type="capsule" fromto="0 0 0 0 0 0.4" size="0.02" mass="0.1"/>'
    '<site name="tip" pos="0 0 0.4"/></body></body></body>',
    '<actuator><motor name="motor" joint="rail" gear="20" ctrlrange="-1 1"/></actuator>',
)
BALL_CHAIN = mjcf(
    '<body name="upper" pos="0 0.1 1" euler="0.2 0.1 0"><joint name="shoulder" type="ball" '
    'pos="0.01 0.02 0.03" damping="0.2" armature="0.01"/>'
    + inertial("0.05 0.01 -0.2", 1.2, "0.05 0.06 0.02 0.001 -0.002 0.003")
    + '<body name="lower" pos="0.02 0.03 -0.4" euler="0 0.3 0.2"><joint name="elbow" type="ball"/>'
    + inertial("0.02 -0.03 -0.1", 0.7, "0.02 0.03 0.02 0.002 0.001 -0.001")
    + '<site name="hand" pos="0.01 0 -0.3" euler="0.1 0.2 0.3"/></body></body>'
)
FREE_BODY = mjcf(
    '<body name="drone" pos="1 2 3" euler="0.1 0.2 0.3"><freejoint name="flight"/>'
    + inertial("0.03 -0.02 0.01", 2.1, "0.05 0.06 0.07 0.004 -0.003 0.002")
    + '<site name="camera" pos="0.1 0 -0.05" euler="0 0.5 0"/></body>'
)
# Three joints on one body, a slide among them, and a second one behind it.
SEVERAL_JOINTS = mjcf(
    '<body name="stage" pos="0.1 0.2 0.3" euler="0.2 -0.4 0.1">'
    '<joint name="along" type="slide" axis="1 1 0" damping="0.4" stiffness="2" springref="0.2"/>'
    '<joint name="across" type="slide" axis="0 0.6 -0.8" armature="0.3"/>'
    '<joint name="round" axis="0.3 0.4 0.5" pos="0.1 0 0.2" armature="0.05"/>'
    + inertial("0.1 -0.05 0.02", 1.5, "0.06 0.05 0.04 0.005 -0.004 0.003")
    + '<body name="arm" pos="0.3 0.1 0"><joint name="pitch" axis="0 0 -1"/>'
    '<joint name="reach" type="slide" axis="-1 0 0" pos="0.1 0.2 0.3" ref="0.2"/>'
    + inertial("0.2 0.03 0.01", 0.8, "0.01 0.02 0.025 0.001 0.002 -0.001")
    + '<body name="plate" pos="0 0 0.1" euler="0 0 0.7"><geom type="box" size="0.1 0.05 0.01"/>'
    '<site name="end" pos="0.1 0 0"/></body></body></body>',
    '<actuator><motor name="m1" joint="along" gear="3" ctrlrange="-1 2" forcerange="-1.5 1.5"/>'
    '<position name="p1" joint="round" kp="5" kv="0.5" gear="2" forcerange="-4 4"/>'
    '<velocity name="v1" joint="pitch" kv="2"/></actuator>',
)
# All kinds of joints in one tree with branches, on a free base.
CREATURE = mjcf(
    '<body name="trunk" pos="0 0 1"><freejoint/>'
    + inertial("0.02 0.01 0.03", 5.0, "0.2 0.3 0.25 0.01 -0.02 0.015")
    + '<body name="neck" pos="0.2 0 0.1" euler="0 0.3 0"><joint name="neck" type="ball"/>'
    + inertial("0.05 0.01 0.1", 0.9, "0.02 0.01 0.015 0.001 0.002 -0.001")
    + '<body name="jaw" pos="0.1 0 0.1"><joint name="jaw" axis="0.6 0.8 0" armature="0.01"/>'
    + inertial("0.05 0 0.01", 0.3, "0.002 0.003 0.002 0.0001 0 0.0002")
    + '</body></body><body name="tail" pos="-0.2 0 0" euler="0.1 0.2 0.4">'
    '<joint name="tail" type="slide" axis="0.2 0.3 -0.9" damping="1"/>'
    + inertial("-0.1 0.02 0.01", 0.6, "0.01 0.02 0.02 0.001 0.002 0.003")
    + '<body name="tip" pos="-0.2 0.01 0"><joint name="wag" axis="0 0.8 0.6"/>'
    '<joint name="twist" axis="1 0 0" pos="0 0.01 0"/>'
    + inertial("-0.05 0.01 0", 0.2, "0.002 0.001 0.002 0.0001 0 0.0002")
    + '<site name="end" pos="-0.1 0 0"/></body></body></body>'
)
TWO_TREES = mjcf(
    '<body name="left" pos="0 1 0"><joint name="l1" axis="0 0 1"/>'
    '<geom size="0.1" pos="0.2 0 0.1"/><body name="left2" pos="0.3 0 0">'
    '<joint name="l2" axis="1 0 0"/>'
    '<geom type="box" size="0.1 0.02 0.05" pos="0 0.1 0.02"/></body></body>'
    '<body name="table"><geom type="box" size="1 1 0.05" pos="0 0 -2"/></body>'
    '<body name="right" pos="0 -1 0"><joint name="r1" type="slide" axis="0 1 0"/>'
    '<geom size="0.1"/></body>'
)


def arm(actuated: bool = True) -> str:
    """Seven hinges with axes along z and y in turn; sizes as those of a light arm."""
    offsets = [
        "0 0 0.15",
        "0 0 0.19",
        "0 0 0.21",
        "0 0 0.19",
        "0 0 0.21",
        "0 0 0.19",
        "0 0.01 0.08",
    ]
    masses = [3.4, 3.5, 4.0, 3.0, 2.7, 1.8, 0.6]
    limits = [2.9, 2.0, 2.9, 2.0, 2.9, 2.0, 3.0]
    torques = [170, 170, 100, 100, 100, 40, 40]
    text, close = "", ""
    for i, (offset, mass) in enumerate(zip(offsets, masses, strict=True)):
        axis = "0 0 1" if i % 2 == 0 else "0 1 0"
        inertia = (
            f"{0.02 * mass / 3} {0.018 * mass / 3} {0.008 * mass / 3} "
            f"{0.0005 * mass} {-0.0003 * mass} {0.0007 * mass}"
        )
        text += (
            f'<body name="link{i + 1}" pos="{offset}"><joint name="joint{i + 1}" axis="{axis}" '
            f'range="{-limits[i]} {limits[i]}" damping="0.5" armature="0.1"/>'
            + inertial(f"{0.003 * (i + 1)} {0.03 - 0.01 * i} {0.12 - 0.01 * i}", mass, inertia)
            + f'<geom type="capsule" fromto="0 0 0 0 0 {0.18 - 0.01 * i}" size="{0.06 - 0.004 * i}"'
            ' contype="0" conaffinity="0"/>'
        )
        close += "</body>"
    text += '<site name="flange" pos="0 0 0.05"/>' + close
    motors = "".join(
        f'<motor name="motor{i + 1}" joint="joint{i + 1}" ctrlrange="{-limit} {limit}"/>'
        for i, limit in enumerate(torques)
    )
    return mjcf(text, f"<actuator>{motors}</actuator>" if actuated else "")


# Parent, name, offset, axis and orientation of the body, mass: legs of six, a waist of three and
# arms of seven hinges.  Some frames of the hips are inclined, as in real machines.
_LEG = [
    ("hip_pitch", "0 {s}0.064 -0.10", "0 1 0", "0 0 0", 1.35),
    ("hip_roll", "0 {s}0.052 -0.03", "1 0 0", "0 -0.175 0", 1.52),
    ("hip_yaw", "0.025 0 -0.124", "0 0 1", "0 0 0", 1.70),
    ("knee", "-0.078 {s}0.002 -0.177", "0 1 0", "0 0.175 0", 1.93),
    ("ankle_pitch", "0 0 -0.30", "0 1 0", "0 0 0", 0.07),
    ("ankle_roll", "0 0 -0.018", "1 0 0", "0 0 0", 0.61),
]
_WAIST = [
    ("waist_yaw", "-0.004 0 0.044", "0 0 1", "0 0 0", 0.21),
    ("waist_roll", "0 0 0.035", "1 0 0", "0 0 0", 0.09),
    ("torso", "0 0 0.019", "0 1 0", "0 0 0", 7.8),
]
_ARM = [
    ("shoulder_pitch", "0.004 {s}0.10 0.24", "0 1 0", "{s}0.28 0 0", 0.72),
    ("shoulder_roll", "0 {s}0.038 -0.014", "1 0 0", "-{s}0.28 0 0", 0.64),
    ("shoulder_yaw", "0 {s}0.006 -0.10", "0 0 1", "0 0 0", 0.73),
    ("elbow", "0.016 0 -0.081", "0 1 0", "0 0 0", 0.60),
    ("wrist_roll", "0.10 {s}0.002 -0.01", "1 0 0", "0 0 0", 0.085),
    ("wrist_pitch", "0.038 0 0", "0 1 0", "0 0 0", 0.48),
    ("wrist_yaw", "0.046 0 0", "0 0 1", "0 0 0", 0.25),
]


def _chain(parts: list[tuple[str, str, str, str, float]], side: str, inside: str = "") -> str:
    """Bodies in a row; side is "l", "r" or "" and `inside` goes into the last one."""
    sign = "-" if side == "r" else ""
    text = ""
    for i, (name, offset, axis, euler, mass) in enumerate(parts):
        name = f"{side}_{name}" if side else name
        offset = offset.format(s=sign).replace("--", "")
        euler = euler.format(s=sign).replace("--", "")
        inertia = " ".join(
            f"{value * mass:.6g}" for value in (2e-3, 1.8e-3, 1.1e-3, 8e-5, -6e-5 - 1e-5 * i, 5e-5)
        )
        text += (
            f'<body name="{name}" pos="{offset}" euler="{euler}">'
            f'<joint name="{name}" axis="{axis}" armature="0.01" range="-1.5 1.5"/>'
            + inertial(f"{0.01 + 0.002 * i} {0.004 * i - 0.01} {-0.03 - 0.005 * i}", mass, inertia)
        )
    return text + inside + "</body>" * len(parts)


def humanoid() -> str:
    """A free base with 29 hinges: 35 velocities."""
    legs = "".join(
        _chain(_LEG, side, f'<site name="{side}_foot" pos="0.03 0 -0.03"/>') for side in "lr"
    )
    arms = "".join(_chain(_ARM, side, f'<site name="{side}_hand"/>') for side in "lr")
    waist = _chain(_WAIST, "", arms)
    pelvis = inertial("0.01 0.002 -0.07", 3.8, "0.011 0.009 0.008 0.0002 -0.0001 0.0003")
    joints = [part[0] for part in _WAIST] + [
        f"{side}_{part[0]}" for side in "lr" for part in _LEG + _ARM
    ]
    motors = "".join(f'<motor joint="{name}" ctrlrange="-60 60"/>' for name in joints)
    body = f'<body name="pelvis" pos="0 0 0.8"><freejoint name="base"/>{pelvis}{legs}{waist}</body>'
    return mjcf(body, f"<actuator>{motors}</actuator>")


# A branching robot with thirty hinges at a fixed base.
THIRTY = mjcf(
    '<body name="root" pos="0 0 0.5"><joint name="root" axis="0 0 1"/>'
    + inertial("0.01 0.02 0.03", 2.0, "0.02 0.03 0.025 0.001 0.002 -0.001")
    + _chain(_LEG, "l", _chain(_WAIST, ""))
    + _chain(_LEG, "r")
    + _chain(_ARM, "l")
    + _chain(_ARM, "r")
    + "</body>"
)

MODELS: dict[str, str] = {
    "pendulum": PENDULUM,
    "skewed_hinge": SKEWED_HINGE,
    "cart_double_pendulum": CART_DOUBLE_PENDULUM,
    "ball_chain": BALL_CHAIN,
    "free_body": FREE_BODY,
    "several_joints": SEVERAL_JOINTS,
    "creature": CREATURE,
    "two_trees": TWO_TREES,
    "arm": arm(),
    "thirty": THIRTY,
    "humanoid": humanoid(),
}
