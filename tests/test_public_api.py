"""What `import warpmpc` offers."""

import dataclasses
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import warpmpc as wm

PUBLIC = {
    "ADMMSettings",
    "CodegenError",
    "Diagnosis",
    "FactorStatus",
    "GradientStatus",
    "LDLFactor",
    "LDLSettings",
    "LDLSolver",
    "LineSearchSettings",
    "MPCProblem",
    "MPCSolver",
    "MPCStatus",
    "MPCWarmStart",
    "OCP",
    "PatternError",
    "ProblemError",
    "QPSolution",
    "QPSolver",
    "QPState",
    "QPWarmStart",
    "Rollout",
    "RowClass",
    "SQPSettings",
    "SettingsError",
    "Soft",
    "Solution",
    "Stage",
    "StageGroup",
    "StagedSettings",
    "Status",
    "StepResult",
    "WarpMPCError",
    "__version__",
    "cpu_threads",
    "diagnose",
    "from_jax",
    "plot",
    "rollout",
    "set_cpu_threads",
}


def test_names():
    assert set(wm.__all__) == PUBLIC
    assert len(wm.__all__) == len(PUBLIC), "a name is listed twice"


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_every_name_is_documented(name):
    assert inspect.getdoc(getattr(wm, name))
    assert getattr(wm, name).__module__.startswith("warpmpc.")


def callables_of(name):
    """Functions and methods that a public name offers, by their full names."""
    public = getattr(wm, name)
    if not inspect.isclass(public):
        return {name: public}
    found = {}
    for member in dir(public):
        attribute = inspect.getattr_static(public, member)
        function = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
        own = getattr(inspect.unwrap(function), "__module__", None) or ""
        is_public = not member.startswith("_") or member in ("__init__", "__call__", "__getitem__")
        generated = getattr(function, "__qualname__", "").startswith("__create_fn__")
        is_ours = own.startswith("warpmpc") and not generated
        if is_public and is_ours and inspect.isfunction(inspect.unwrap(function)):
            found[f"{name}.{member}"] = inspect.unwrap(function)
    if dataclasses.is_dataclass(public):
        found.pop(f"{name}.__init__", None)  # generated from annotated fields
    return found


CALLABLES = {
    name: function
    for public in sorted(PUBLIC - {"__version__"})
    for name, function in callables_of(public).items()
}


def test_walk_finds_methods():
    """Or the tests below would test nothing."""
    wanted = {"MPCSolver.solve", "MPCSolver.__init__", "OCP.subject_to", "Solution.x", "rollout"}
    assert wanted <= set(CALLABLES)
    assert len(CALLABLES) > 60


@pytest.mark.parametrize("name", CALLABLES)
def test_public_callables_have_docstrings_and_types(name):
    function = CALLABLES[name]
    assert inspect.getdoc(function), f"{name} has no docstring"
    signature = inspect.signature(function)
    bare = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
    ]
    assert bare == []
    constructs = name.endswith("__init__")
    assert constructs or signature.return_annotation is not signature.empty


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_fields_of_public_classes_are_described(name):
    public = getattr(wm, name)
    if not dataclasses.is_dataclass(public):
        return
    text = inspect.getdoc(public)
    for field in dataclasses.fields(public):
        assert re.search(rf"\b{field.name}\b", text), f"{name}.{field.name} is not described"


def test_version_is_that_of_the_project():
    project = Path(__file__).parents[1] / "pyproject.toml"
    assert wm.__version__ == tomllib.loads(project.read_text())["project"]["version"]


def test_import_is_silent():
    command = [sys.executable, "-W", "error", "-c", "import warpmpc"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout == ""
    assert result.stderr == ""


def test_import_leaves_jax_alone():
    """64-bit mode and the choice of a device belong to the user."""
    code = "import jax, warpmpc; print(jax.config.jax_enable_x64, jax._src.xla_bridge._backends)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.split() == ["False", "{}"]


def test_import_is_light():
    """Nothing that draws, no CUDA context, and soon done: three seconds where nothing else runs."""
    code = """
import sys, time
begin = time.process_time()
import warpmpc
loaded = sorted({"matplotlib", "mujoco", "PIL", "torch"} & set(sys.modules))
import warp
print(loaded, warp._src.context.runtime is None, time.process_time() - begin < 4)
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "[] True True"
