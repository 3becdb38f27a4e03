"""What `import warpmpc` offers."""

import inspect
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
    "diagnose",
    "from_jax",
    "plot",
    "rollout",
}


def test_names():
    assert set(wm.__all__) == PUBLIC
    assert len(wm.__all__) == len(PUBLIC), "a name is listed twice"


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_every_name_is_documented(name):
    assert inspect.getdoc(getattr(wm, name))
    assert getattr(wm, name).__module__.startswith("warpmpc.")


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
