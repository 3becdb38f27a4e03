"""The scripts that draw the figures of the documentation still do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FIGURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_how_it_works(tmp_path):
    module = script("how_it_works")
    module.main(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} == set(module.FIGURES)
    assert all((FIGURES / path.name).exists() for path in tmp_path.glob("*.svg"))


def test_hero(tmp_path, monkeypatch):
    """With invented trajectories: the closed loops of the system have tests of their own."""
    module = script("hero")
    rng = np.random.default_rng(0)
    monkeypatch.setattr(module, "FRAMES", 3)
    monkeypatch.setattr(
        module, "closed_loops", lambda batch: rng.uniform(-1, 1, (batch, 5, 12)).cumsum(axis=1) / 9
    )
    module.main(tmp_path / "hero.gif")
    with Image.open(tmp_path / "hero.gif") as picture:
        assert picture.n_frames == 3
        assert picture.size == (480, 480)


@pytest.mark.slow
def test_solutions(tmp_path):
    module = script("solutions")
    module.main(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == set(module.PICTURES)
