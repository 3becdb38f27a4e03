"""The published structure of the humanoid's rows (PROBLEMS.md, 5.5), entry by entry.

Columns are named: ("q", i), ("dq", i), ("tau", i), ("F", i) of a node and ("q+", i), ("dq+", i) of
the next one.  Nothing here comes from the package under test.
"""

from __future__ import annotations

Entry = tuple[str, int]
Row = set[Entry]
# Joints of each limb by their number, and the contact forces that reach it.
LEGS = {"R": (range(5), (0, 1, 2, 6, 7, 8)), "L": (range(5, 10), (3, 4, 5, 9, 10, 11))}
ARMS = {"R": range(10, 14), "L": range(14, 18)}
# How many joints of the leg move a point, and of the arm ("hand").
REACH = {"hip": 3, "knee": 4, "shank": 4, "ankle": 5, "heel": 5, "toe": 5, "hand": 4}
_PAIRS = """Rankle-Lankle Rshank-Lshank Rknee-Lknee Rankle-Lshank Lankle-Rshank Rshank-Lknee
Lshank-Rknee Rtoe-Lankle Rtoe-Lshank Ltoe-Rankle Ltoe-Rshank Rheel-Lankle Rheel-Lshank Lheel-Rankle
Lheel-Rshank Lheel-Rtoe Rheel-Ltoe Rhip-Rhand Lhip-Lhand"""
PAIRS = [tuple(pair.split("-")) for pair in _PAIRS.split()]


def _of(name: str, numbers) -> Row:
    return {(name, i) for i in numbers}


def _joints(name: str, numbers) -> Row:
    return _of(name, (6 + i for i in numbers))


def _base_dynamics() -> list[Row]:
    row = _of("q", range(3, 24)) | _of("dq", range(24)) | _of("F", range(12))
    return [row | _of("dq+", range(24)) for _ in range(6)]


def _joint_dynamics() -> list[Row]:
    rows: list[Row] = []
    for joints, forces in LEGS.values():
        moving = _of("dq", range(6)) | _joints("dq", joints)
        moving |= _of("dq+", range(6)) | _joints("dq+", joints)
        common = _of("q", (3, 4, 5)) | _joints("q", joints) | _of("F", forces) | moving
        rows += [common | {("tau", i)} for i in joints]
    for joints in ARMS.values():
        moving = _of("dq", range(6)) | _joints("dq", joints)
        moving |= _of("dq+", range(6)) | _joints("dq+", joints)
        rows += [_of("q", (3, 4)) | _joints("q", joints) | moving | {("tau", i)} for i in joints]
    return rows


def _integrator() -> list[Row]:
    linear = _of("dq", (3, 4, 5)) | _of("dq+", (3, 4, 5))
    angular = _of("q", (3, 4, 5)) | _of("dq", (0, 1, 2)) | _of("dq+", (0, 1, 2))
    rows = [{("q", i), ("q+", i)} | _of("q", (3, 4, 5)) | linear for i in (0, 1)]
    rows.append({("q", 2), ("q+", 2)} | _of("q", (3, 4)) | linear)
    rows += [angular | {("q+", i)} for i in (3, 4, 5)]
    rows += [{("q", i), ("dq", i), ("q+", i), ("dq+", i)} for i in range(6, 24)]
    return rows


def _point(point: str) -> Row:
    side, name = point[0], point[1:]
    joints = ARMS[side] if name == "hand" else LEGS[side][0]
    return _joints("q", joints[: REACH[name]])


def _kinematic() -> list[Row]:
    rows = [{("q", i)} for i in range(6, 24)] + [{("dq", i)} for i in range(6, 24)]
    for first, second in PAIRS:
        rows.append(_of("q", range(6)) | _point(first) | _point(second))
    rows.append({("q", 6), ("q", 11)})
    rows += [_of("q", (2, 3, 4, 5)) | _joints("q", LEGS[side][0]) for side in "RLRL"]
    for _ in "xy":
        for side in "RLRL":
            leg = LEGS[side][0]
            turned = _of("q", (3, 4, 5)) | _joints("q", leg)
            rows.append(turned | _of("dq", range(6)) | _joints("dq", leg))
    return rows


def _force() -> list[Row]:
    rows = [_of("F", range(3 * c, 3 * c + 3)) for c in range(4)]
    return rows + [{("F", 3 * c + axis)} for axis in range(3) for c in range(4)]


def _torque() -> list[Row]:
    return [{("tau", i)} for _ in range(2) for i in range(18)]


def rows(k: int, last: int) -> list[Row]:
    """Columns of each row of stage k."""
    found: list[Row] = []
    if k == 0:
        found += [{("q", i)} for i in range(24)] + [{("dq", i)} for i in range(24)]
    if k < last:
        found += _base_dynamics() + (_joint_dynamics() if k < 2 else []) + _integrator()
    if k:
        found += _kinematic()
    if k < last:
        found += _force()
    return found + (_torque() if k < 2 else [])


def columns(k: int, last: int) -> list[Entry]:
    """Names of the variables of stage k and of the next one, in their order."""
    sizes = {"q": 24, "dq": 24, "tau": 18 if k < 2 else 0, "F": 12 if k < last else 0}
    own = [(name, i) for name, size in sizes.items() for i in range(size)]
    if k == last:
        return own
    sizes = {"q+": 24, "dq+": 24, "tau+": 18 if k < 1 else 0, "F+": 12 if k + 1 < last else 0}
    return own + [(name, i) for name, size in sizes.items() for i in range(size)]
