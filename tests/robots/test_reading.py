"""Files that are wrong or contain more than a tree are named; files are changed as asked."""

from __future__ import annotations

import warnings

import casadi as ca
import mujoco
import numpy as np
import pytest
import robot_oracle as oracle
from robot_models import CART_DOUBLE_PENDULUM, MODELS, PENDULUM, arm, mjcf

from warpmpc import ProblemError, SettingsError
from warpmpc.robots import RobotWarning, left_out, load, reading

TWO = (
    '<body name="one"><joint name="a" axis="0 0 1"/><geom name="g" size="0.1"/>'
    '<site name="s1" pos="0.1 0 0"/></body>'
    '<body name="two" pos="1 0 0"><joint name="b"/><geom size="0.1"/><site name="s2"/></body>'
)
URDF = """<robot name="r">
<link name="base"><inertial><mass value="2"/><origin xyz="0 0 0.1"/>
<inertia ixx="0.01" iyy="0.012" izz="0.01" ixy="0.001" ixz="0" iyz="0"/></inertial></link>
<link name="link"><inertial><mass value="1"/><origin xyz="0.1 0 0.1"/>
<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="elbow" type="revolute"><parent link="base"/><child link="link"/>
<origin xyz="0 0 0.2" rpy="0.1 0.2 0.3"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1.5" effort="30" velocity="4"/>
<dynamics damping="0.3" friction="0.1"/></joint></robot>"""

ERRORS = {
    "missing mesh": (
        "<mujoco><asset><mesh name='hull' file='hull.obj'/></asset><worldbody><body><joint/>"
        "<geom type='mesh' mesh='hull'/></body></worldbody></mujoco>",
        r"hull\.obj",
    ),
    "zero mass": (mjcf('<body name="light"><joint name="j"/></body>'), "mass.*'light'"),
    "unknown joint": (
        mjcf(TWO, '<actuator><motor name="m" joint="elbow"/></actuator>'),
        "unknown transmission target 'elbow'.*'m'",
    ),
    "unknown type of joint": (mjcf('<body><joint type="screw"/></body>'), "'screw'.*'joint'"),
    "broken XML": ("<mujoco><worldbody>", "cannot be read"),
    "loop": (
        mjcf(TWO, '<equality><connect name="ring" site1="s1" site2="s2"/></equality>'),
        r"equality 'ring' \(connect\) closes a loop",
    ),
    "coupling": (
        mjcf(TWO, '<equality><joint joint1="a" joint2="b"/></equality>'),
        r"equality number 0 \(joint\).*couples joints",
    ),
    "no joint": (mjcf('<body><geom size="0.1"/></body>'), "has no joint"),
    "flexible body": (
        mjcf(
            TWO + '<flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" dim="2" '
            'mass="1" radius="0.01"><edge equality="true"/></flexcomp>'
        ),
        "flexible body 'cloth'",
    ),
    # MuJoCo 4 has no composites any more; before, their forces came with a plugin.
    "composite": (
        mjcf('<composite type="cable" count="4 1 1"><geom size="0.1"/></composite>'),
        "composite",
    ),
}
WARNINGS = {
    "tendon": (
        mjcf(
            TWO,
            '<tendon><spatial name="rope"><site site="s1"/><site site="s2"/></spatial></tendon>',
        ),
        "tendon 'rope'",
    ),
    "actuator at a tendon": (
        mjcf(
            TWO,
            '<tendon><fixed name="pair"><joint joint="a" coef="1"/></fixed></tendon>'
            '<actuator><motor name="winch" tendon="pair"/></actuator>',
        ),
        "actuator 'winch' does not act on a joint",
    ),
    "actuator with a state": (
        mjcf(TWO, '<actuator><general name="slow" joint="a" dyntype="filter"/></actuator>'),
        "actuator 'slow' has a state of its own",
    ),
    "muscle": (
        mjcf(
            TWO,
            '<actuator><general name="m" joint="a" gaintype="affine" gainprm="1 2 3"/></actuator>',
        ),
        "actuator 'm' has a gain that is not constant",
    ),
    "gravity compensation": (
        mjcf('<body name="held" gravcomp="1"><joint/><geom size="0.1"/></body>'),
        "gravity compensation of body 'held'",
    ),
    "medium": (mjcf(TWO, option='density="1.2"'), "medium"),
    "spring of a ball": (
        mjcf('<body><joint name="hip" type="ball" stiffness="2"/><geom size="0.1"/></body>'),
        "spring of joint 'hip'",
    ),
    "range of a ball": (
        mjcf('<body><joint name="hip" type="ball" range="0 1"/><geom size="0.1"/></body>'),
        "range of joint 'hip'",
    ),
    "motion capture": (
        mjcf(TWO + '<body name="target" mocap="true"><geom size="0.1"/></body>'),
        "body 'target' is moved by motion capture",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_bad_files_name_the_element(name):
    text, message = ERRORS[name]
    with pytest.raises(ProblemError, match=message):
        load(text)


@pytest.mark.parametrize("name", WARNINGS)
def test_what_is_left_out_is_named(name):
    text, message = WARNINGS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(text)
    found = [str(warning.message) for warning in caught if warning.category is RobotWarning]
    assert any(message in text for text in found), found
    assert {warning.filename for warning in caught} == {__file__}


def test_forces_of_plugins_are_refused():
    """MuJoCo 4 has no plugin of cables, so a stand-in has the fields of an older model."""

    class WithPlugin:
        body_plugin = np.array([-1, 0, -1])

        def __getattr__(self, name):
            return getattr(model, name)

    model = load(mjcf(TWO)).mujoco_model
    with pytest.raises(ProblemError, match="file: body 'one' has forces of a plugin"):
        left_out.check(WithPlugin(), "file")


def test_models_of_the_tests_leave_nothing_out():
    for text in MODELS.values():
        load(text)


def test_inactive_equalities_do_not_matter():
    text = '<equality><connect active="false" site1="s1" site2="s2"/></equality>'
    assert load(mjcf(TWO, text)).nv == 2


def test_paths_and_specs(tmp_path):
    file = tmp_path / "arm.xml"
    file.write_text(arm())
    spec = mujoco.MjSpec.from_string(arm())
    assert load(file).nv == load(str(file)).nv == load(spec, locked=["joint2"]).nv + 1 == 7
    assert len(spec.joints) == 7, "the caller's MjSpec has changed"
    with pytest.raises(ProblemError, match=r"There is no file .*none\.xml"):
        load(tmp_path / "none.xml")
    with pytest.raises(ProblemError, match="got int"):
        load(3)
    bad = tmp_path / "bad.xml"
    bad.write_text("<mujoco")
    with pytest.raises(ProblemError, match=r"bad\.xml cannot be read"):
        load(bad)


def test_orientation_is_checked():
    with pytest.raises(SettingsError, match="orientation must be one of"):
        load(PENDULUM, orientation="rpy")


def test_without_mujoco_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mujoco", None)
    with pytest.raises(SettingsError, match=r"warpmpc\[robots\]"):
        load(PENDULUM)


def test_locked_joints_stay_where_the_file_has_them():
    """The robot with locked joints is the full one with these coordinates at their reference."""
    full, rest = load(arm()), load(arm(), locked=["joint2", "joint5"])
    kept = [0, 2, 3, 5, 6]
    assert [joint.name for joint in rest.joints] == [f"joint{i + 1}" for i in kept]
    assert rest.nu == 5
    rng = np.random.default_rng(0)
    q, v, a = np.zeros((3, 7))
    q[kept], v[kept], a[kept] = rng.normal(size=(3, 5))
    torques = []
    for robot, values in ((full, [q, v, a]), (rest, [q[kept], v[kept], a[kept]])):
        symbols = [*robot.symbols(), ca.SX.sym("a", robot.nv)]
        torques.append(oracle.evaluated(robot.inverse_dynamics(*symbols), symbols, values))
    assert np.allclose(torques[0][kept], torques[1], rtol=1e-9)


def test_locking_takes_keyframes_sensors_and_couplings_along():
    more = (
        '<equality><joint joint1="a" joint2="b"/></equality>'
        '<sensor><jointpos joint="a"/></sensor><keyframe><key qpos="1 2"/></keyframe>'
    )
    assert [joint.name for joint in load(mjcf(TWO, more), locked=["a"]).joints] == ["b"]


def test_locking_an_unknown_joint():
    with pytest.raises(ProblemError, match=r"no joint 'jointX'.*'rail', 'lower', 'upper'"):
        load(CART_DOUBLE_PENDULUM, locked=["jointX"])
    with pytest.raises(ProblemError, match=r"pass \['rail'\]"):
        load(CART_DOUBLE_PENDULUM, locked="rail")


def test_floating_base():
    inside = '<body name="leg"><joint name="hip"/><geom size="0.1" pos="0 0 1"/></body>'
    text = mjcf(f'<body name="trunk" pos="0 0 1"><geom size="0.2"/>{inside}</body>')
    fixed, free = load(text), load(text, floating=True)
    assert (fixed.nv, free.nv, free.nq) == (1, 7, 8)
    assert free.joints[0].kind == "free"
    assert np.allclose(free.q0, [0, 0, 1, 1, 0, 0, 0, 0])
    assert free.mass > fixed.mass


def test_floating_base_errors():
    with pytest.raises(ProblemError, match="free joint already"):
        load(MODELS["free_body"], floating=True)
    with pytest.raises(ProblemError, match=r"one body at the world.*\['one', 'two'\]"):
        load(mjcf(TWO), floating=True)
    with pytest.raises(ProblemError, match=r"body 'cart'.*joint 'rail'"):
        load(CART_DOUBLE_PENDULUM, floating=True)


@pytest.mark.parametrize("floating", [False, True])
def test_urdf(floating, tmp_path):
    file = tmp_path / "robot.urdf"
    file.write_text(URDF)
    for source in (file, URDF):
        robot = load(source, floating=floating)
        joint = robot.joints[-1]
        assert robot.nv == (7 if floating else 1)
        assert (joint.lower, joint.upper, joint.velocity) == (-1.0, 1.5, 4.0)
        assert (joint.torque, joint.damping, joint.friction) == ((-30.0, 30.0), 0.3, 0.1)
        model = oracle.without_constraints(robot.mujoco_model)
        (q, v), a = robot.symbols(), ca.SX.sym("a", robot.nv)
        expression = robot.inverse_dynamics(q, v, a)
        for state in oracle.random_states(model):
            found = oracle.evaluated(expression, [q, v, a], [state.qpos, state.v, state.a])
            wanted = oracle.inverse(model, state)
            assert np.abs(found - wanted).max() < 1e-9 * np.abs(wanted).max()


TOOL = """
<link name="tool"/><joint name="flange" type="fixed"><parent link="link"/><child link="tool"/>
<origin xyz="0 0.1 0.3" rpy="0.2 0 0"/></joint></robot>"""


def test_links_at_fixed_joints_of_urdf_keep_their_names():
    robot = load(URDF.replace("</robot>", TOOL))
    q, _ = robot.symbols()
    assert robot.nv == 1
    tool, link = (robot.pose(name, q) for name in ("tool", "link"))
    expected = link.position + link.rotation @ ca.DM([0, 0.1, 0.3])
    difference = ca.Function("f", [q], [tool.position - expected])
    assert np.abs(difference(0.7).full()).max() < 1e-14
    assert robot.mass == load(URDF).mass


def test_a_base_without_mass_carries_links_at_fixed_joints():
    base = '<link name="root"/><joint name="fix" type="fixed"><parent link="root"/>'
    base += '<child link="base"/></joint></robot>'
    robot = load(URDF.replace("</robot>", base), floating=True)
    assert robot.nv == 7
    assert robot.mass == pytest.approx(3)


def test_a_robot_says_what_it_is():
    text = repr(load(URDF))
    assert text.startswith("Robot(nq=1, nv=1, 1 kg, joints: elbow (hinge); 0 actuators; ")
    assert "link" in text


def test_gravity_can_be_switched_off():
    robot = load(
        mjcf(TWO, option="").replace("<option />", '<option><flag gravity="disable"/></option>')
    )
    assert not robot.tree.gravity.any()


def test_names_without_a_frame():
    robot = load(MODELS["arm"])
    q, _ = robot.symbols()
    with pytest.raises(ProblemError, match=r"no body or site 'hand'.*'flange'"):
        robot.pose("hand", q)
    twice = load(mjcf('<body name="x"><joint/><geom size="0.1"/><site name="x"/></body>'))
    with pytest.raises(ProblemError, match="'x' is a body and a site"):
        twice.pose("x", twice.symbols()[0])


def test_sizes_are_checked():
    robot = load(PENDULUM)
    (q, v), two = robot.symbols(), ca.SX.sym("two", 2)
    with pytest.raises(ProblemError, match="a has 2 rows, the robot needs 1"):
        robot.inverse_dynamics(q, v, two)
    with pytest.raises(ProblemError, match="'bob' has 2 rows; give 3, or 6"):
        robot.forward_dynamics(q, v, v, {"bob": two})
    with pytest.raises(ProblemError, match="control has 2 rows"):
        robot.actuation(two, q, v)


def test_description_of_a_source():
    assert reading.described("  <mujoco/>") == "The robot in the string"
    assert reading.described("a.xml") == "a.xml"
