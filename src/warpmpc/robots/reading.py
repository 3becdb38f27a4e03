"""Robot files: read, changed as the caller wants, and compiled by MuJoCo.

Reads: MJCF or URDF, as a file, a string or an `MjSpec`.  Produces: a compiled `MjModel`, or an
error that names the element that is wrong.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from warpmpc._errors import ProblemError, SettingsError

# A path, XML, or a `mujoco.MjSpec`, which is not imported here.
Source: TypeAlias = str | Path | Any


def import_mujoco() -> Any:
    """The package `mujoco`, which is imported when a robot is loaded, not with warpmpc."""
    try:
        import mujoco
    except ImportError as error:
        raise SettingsError(
            "warpmpc.robots needs MuJoCo: `pip install 'warpmpc[robots]'`."
        ) from error
    return mujoco


def compiled(source: Source, floating: bool, locked: Sequence[str]) -> Any:
    """The `MjModel` of a file with a free base added and joints removed.

    Args:
        source: A path, XML, or an `MjSpec`, which stays as it is.
        floating: Whether the base gets a free joint.
        locked: Names of joints to remove; their bodies stay where the file has them.
    """
    mujoco = import_mujoco()
    what = described(source)
    try:
        spec = _spec(mujoco, source)
    except ValueError as error:
        raise ProblemError(f"{what} cannot be read: {_one_line(error)}") from error
    if locked or floating:
        for key in list(spec.keys):  # their length would no longer fit
            spec.delete(key)
    _lock(spec, locked, what)
    if floating:
        _set_free(mujoco, spec, what)
    try:
        return spec.compile()
    except ValueError as error:
        raise ProblemError(f"{what} cannot be compiled: {_one_line(error)}") from error


def described(source: Source) -> str:
    """What the caller knows a source by, for errors."""
    if _is_xml(source):
        return "The robot in the string"
    if isinstance(source, str | Path):
        return f"{source}"
    return f"The MjSpec {getattr(source, 'modelname', '')!r}"


def velocity_limits(source: Source) -> dict[str, float]:
    """Velocity limits by joint: URDF has them, and MuJoCo does not read them."""
    found: dict[str, float] = {}
    root = _urdf(source)
    for joint in () if root is None else root.iter("joint"):
        limit = joint.find("limit")
        if limit is not None and "velocity" in limit.attrib and "name" in joint.attrib:
            found[joint.attrib["name"]] = float(limit.attrib["velocity"])
    return found


def _urdf(source: Source) -> ET.Element | None:
    """The root of a readable URDF file; None for other sources."""
    if not isinstance(source, str | Path):
        return None
    root = ET.fromstring(str(source) if _is_xml(source) else Path(source).read_text())
    return root if root.tag == "robot" else None


def _is_xml(source: Source) -> bool:
    return isinstance(source, str) and source.lstrip().startswith("<")


def _spec(mujoco: Any, source: Any) -> Any:
    if isinstance(source, mujoco.MjSpec):
        return source.copy()
    if not isinstance(source, str | Path):
        raise ProblemError(
            f"load needs a path, XML or a mujoco.MjSpec, got {type(source).__name__}."
        )
    if _is_xml(source):
        spec = mujoco.MjSpec.from_string(source)
    elif Path(source).is_file():
        spec = mujoco.MjSpec.from_file(str(source))
    else:
        raise ProblemError(f"There is no file {source}.")
    if _urdf(source) is not None:
        # MuJoCo would drop links at fixed joints, such as the frame of a tool, with their names.
        spec.compiler.fusestatic = False
    return spec


def _lock(spec: Any, locked: Sequence[str], what: str) -> None:
    if isinstance(locked, str):
        raise ProblemError(f"locked must be a list of names; pass [{locked!r}].")
    known = [joint.name for joint in spec.joints]
    for name in locked:
        if name not in known:
            raise ProblemError(f"{what} has no joint {name!r} to lock; its joints are {known}.")
        for actuator in list(spec.actuators):
            if actuator.target == name:
                spec.delete(actuator)
        for equality in list(spec.equalities):
            if name in (equality.name1, equality.name2):
                spec.delete(equality)
        for sensor in list(spec.sensors):
            if sensor.objname == name:
                spec.delete(sensor)
        spec.delete(spec.joint(name))


def _set_free(mujoco: Any, spec: Any, what: str) -> None:
    free = mujoco.mjtJoint.mjJNT_FREE
    moving = [body for body in spec.worldbody.bodies if _joints_below(body)]
    names = [body.name for body in moving]
    if any(joint.type == free for joint in spec.joints):
        raise ProblemError(f"{what} has a free joint already; load it with floating=False.")
    if len(moving) != 1:
        raise ProblemError(
            f"floating=True needs one body at the world that carries all joints; {what} has "
            f"{names}."
        )
    if moving[0].joints:
        raise ProblemError(
            f"floating=True needs a base without joints of its own, but body {names[0]!r} of "
            f"{what} has the joint {moving[0].joints[0].name!r}; put a body around it."
        )
    moving[0].add_freejoint()


def _joints_below(body: Any) -> bool:
    return bool(body.joints) or any(_joints_below(child) for child in body.bodies)


def _one_line(error: Exception) -> str:
    """MuJoCo's sentence, with its name of the element, in one line."""
    lines = [line.strip().removeprefix("Error:").strip() for line in str(error).splitlines()]
    return "; ".join(line for line in lines if line)
