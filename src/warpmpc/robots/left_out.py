"""What a file can contain that the symbolic functions do not have.

Reads: a compiled `MjModel`.  Raises where the tree would be another robot (loops, couplings,
deformable bodies), and warns, with the name of the element, where a force is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.robots.reading import import_mujoco


class RobotWarning(UserWarning):
    """Something in a robot file is left out of the symbolic model."""


def check(model: Any, what: str) -> None:
    """Raises or warns.

    Args:
        model: The compiled model.
        what: What the caller knows the file by.
    """
    if model.nv == 0:
        raise ProblemError(f"{what} has no joint; there is nothing to control.")
    for reason in _errors(model):
        raise ProblemError(f"{what}: {reason}")
    for reason in _warnings(model):
        warnings.warn(f"{what}: {reason}", RobotWarning, stacklevel=3)


def _errors(model: Any) -> Iterator[str]:
    mujoco = import_mujoco()
    for i in range(model.nflex):
        name = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_FLEX, i)
        yield f"the flexible body {name!r} cannot be modelled by joints; remove it."
    for i in range(model.neq):
        if model.eq_active0[i]:
            kind = mujoco.mjtEq(int(model.eq_type[i])).name.removeprefix("mjEQ_").lower()
            yield (
                f"the equality {_name(model.eq(i), i)} ({kind}) closes a loop or couples joints, "
                "which a tree cannot have; remove it, or lock the joints that it holds."
            )
    for i in range(model.nbody):
        if model.body_plugin[i] >= 0:
            yield (
                f"body {_name(model.body(i), i)} has forces of a plugin (a composite cable, say), "
                "which cannot be modelled; remove it."
            )


def _warnings(model: Any) -> Iterator[str]:
    for i in range(model.ntendon):
        yield f"forces and limits of the tendon {_name(model.tendon(i), i)} are left out."
    for i in np.flatnonzero(model.body_gravcomp).tolist():
        yield f"the gravity compensation of body {_name(model.body(i), i)} is left out."
    for i in np.flatnonzero(model.body_mocapid >= 0).tolist():
        yield f"body {_name(model.body(i), i)} is moved by motion capture; here it stands still."
    if model.opt.density or model.opt.viscosity:
        yield "forces of the medium (density, viscosity) are left out."
    for i in range(model.njnt):
        yield from _joint_warnings(model, i)


def _joint_warnings(model: Any, i: int) -> Iterator[str]:
    mujoco = import_mujoco()
    turning = (int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL))
    name, turns = _name(model.joint(i), i), int(model.jnt_type[i]) in turning
    if turns and model.jnt_stiffness[i]:
        yield f"the spring of joint {name} is left out: it is a ball or free joint."
    if turns and model.jnt_limited[i]:
        yield f"the range of joint {name} is left out: it is a ball or free joint."
    # These came with later releases of MuJoCo.
    if np.any(getattr(model, "jnt_stiffnesspoly", np.zeros((model.njnt, 1)))[i]):
        yield f"the nonlinear stiffness of joint {name} is left out."
    dof = model.jnt_dofadr[i]
    if np.any(getattr(model, "dof_dampingpoly", np.zeros((model.nv, 1)))[dof]):
        yield f"the nonlinear damping of joint {name} is left out."
    if np.any(getattr(model, "jnt_springyield", np.zeros(model.njnt))[i]):
        yield f"the yielding of the spring of joint {name} is left out."


def _name(element: Any, i: int) -> str:
    """The name of an element, or its number."""
    return repr(element.name) if element.name else f"number {i}"
