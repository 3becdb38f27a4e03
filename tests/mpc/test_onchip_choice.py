"""Problems and settings that the on-chip engine takes, and its reasons where it cannot."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mpc_cases import pendulum
from sqp_cases import FIXED, FIXED_QP

from warpmpc import ADMMSettings, MPCSolver, SettingsError, StagedSettings
from warpmpc.engines.onchip import launch as onchip_engine
from warpmpc.mpc.sqp import choice
from warpmpc.mpc.sqp import onchip as module
from warpmpc.systems import car, cartpole, quadrotor
from warpmpc.systems import pendulum as pendulum_system

IMPOSSIBLE = {
    "fused=True is for engines of several launches": {"fused": True},
    "fused=False is for engines of several launches": {"fused": False},
    "QPs are scaled": {"qp": replace(FIXED_QP, scaling=2)},
    "rho is adapted": {"qp": ADMMSettings(scaling=0, check_every=5)},
    "QPs are polished": {"qp": replace(FIXED_QP, polish=True)},
    "Hessian blocks are projected": {"hessian": "exact", "convexify": "project"},
}


class TestRefusals:
    @pytest.mark.parametrize("reason", IMPOSSIBLE)
    def test_settings(self, reason):
        settings = replace(FIXED, **IMPOSSIBLE[reason])
        with pytest.raises(
            SettingsError, match=f'engine="onchip" is not possible because {reason}'
        ):
            MPCSolver(pendulum(3), settings, "float64", "onchip")

    def test_kernels_of_another_engine(self):
        with pytest.raises(SettingsError, match="`staged` is for kernels of another engine"):
            MPCSolver(pendulum(3), FIXED, "float64", "onchip", staged=StagedSettings(sides=2))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_too_large(self, dtype):
        """A quadrotor: the message names the resource and how much of it is missing."""
        made = quadrotor.make(horizon=70)
        message = r"needs ([\d.]+) KB of shared memory, ([\d.]+) KB more than a multiprocessor has"
        with pytest.raises(SettingsError, match=message) as refused:
            MPCSolver(made.problem, made.settings, dtype, "onchip")
        needed, missing = map(float, re.search(message, str(refused.value)).groups())
        assert 0 < missing < needed  # a few hundred bytes must not be called nothing

    def test_checks_need_no_more_room(self, monkeypatch):
        monkeypatch.setattr(choice, "has_gpu", lambda: True)
        made = cartpole.make()
        checked = replace(made.settings, qp=replace(made.settings.qp, check_every=25))
        settings = (made.settings, checked)
        engines = [MPCSolver(made.problem, s, "float32").engine for s in settings]
        assert engines == ["onchip", "onchip"]
        for where in (module, onchip_engine):
            monkeypatch.setattr(where, "shared_memory_limit", lambda: 40 * 1024)
        engines = [MPCSolver(made.problem, s, "float32").engine for s in settings]
        assert engines == ["staged", "staged"]
        message = "needs 42.4 KB of shared memory, 2.4 KB more than a multiprocessor has"
        for s in settings:
            with pytest.raises(SettingsError, match=message):
                MPCSolver(made.problem, s, "float32", "onchip")

    def test_long_programs(self, monkeypatch):
        monkeypatch.setattr(module, "_LONGEST_PROGRAM", 20)
        with pytest.raises(SettingsError, match=r"a stage has \d+ operations, more than 20"):
            MPCSolver(pendulum(3), FIXED, "float64", "onchip")

    def test_advice(self):
        with pytest.raises(SettingsError, match='use engine="auto"'):
            MPCSolver(pendulum(3), dtype="float64", engine="onchip")


def test_parameters_take_no_room_from_problems(monkeypatch):
    """They are copied unless fewer problems are held, or kernels may not declare as much."""
    made = cartpole.make()
    programs = MPCSolver(made.problem, made.settings, "float32", "staged").programs
    memory = module.lane_memory(programs)
    assert memory.held == programs.parameter_sizes
    size = onchip_engine.shared_bytes(memory, "float32")
    with monkeypatch.context() as patch:
        patch.setattr(module, "STATIC_SHARED", size - 1)
        assert not module.lane_memory(programs).held
    room = onchip_engine.problems_held(memory, "float32") * (size + 2048) - 1024
    for limit, is_held in ((room, True), (room - 1, False)):
        monkeypatch.setattr(onchip_engine, "shared_memory_limit", lambda limit=limit: limit)
        assert bool(module.lane_memory(programs).held) == is_held


def test_nothing_to_tune():
    with pytest.raises(SettingsError, match='Nothing to tune: engine="onchip" has one shape'):
        MPCSolver(pendulum(3), FIXED, "float64", "onchip").tune(100)


def test_no_phases():
    solver = MPCSolver(pendulum(3), FIXED, "float64", "staged")
    start = solver.cold_start(solver.z_guess(np.zeros((1, 2))))
    with pytest.raises(SettingsError, match='Only engine="onchip" has phases inside a launch'):
        solver.phase_cycles(np.zeros((1, 2)), start)


class TestChoice:
    """What `auto` takes; whether it is fast is counted, not measured."""

    def test_without_a_gpu(self):
        assert MPCSolver(pendulum(3), FIXED, "float32").engine == "staged"

    @pytest.mark.parametrize("system", [pendulum_system, cartpole, car])
    def test_small_systems_have_no_drawback(self, system, monkeypatch):
        made = system.make()
        monkeypatch.setattr(choice, "has_gpu", lambda: True)
        checked = replace(made.settings, qp=replace(made.settings.qp, check_every=25))
        for settings in (made.settings, checked):
            assert MPCSolver(made.problem, settings, "float32").engine == "onchip"

    def test_large_ones_stay_staged_and_say_why(self, monkeypatch, caplog):
        made = quadrotor.make()
        monkeypatch.setattr(choice, "has_gpu", lambda: True)
        solver = MPCSolver(made.problem, made.settings, "float32")
        assert solver.engine == "staged"
        with caplog.at_level("INFO", logger=choice.__name__):
            assert solver.bytes_per_instance > 0
        (line,) = caplog.messages
        assert re.search(r"SQP iteration: .*; not onchip, because a .* needs .*\d+", line)

    def test_wishes_come_first(self, monkeypatch):
        monkeypatch.setattr(choice, "has_gpu", lambda: True)
        for wish in ({"engine": "staged"}, {"staged": StagedSettings(sides=1)}):
            assert MPCSolver(pendulum(3), FIXED, "float32", **wish).engine == "staged"
        assert MPCSolver(pendulum(3), replace(FIXED, fused=True)).engine == "staged"
        assert MPCSolver(pendulum(3)).engine != "onchip"  # its QPs are scaled


def test_table_of_the_page_is_what_its_code_says():
    """The code itself runs with all other pages."""
    page = (Path(__file__).parents[2] / "docs" / "onchip.md").read_text()
    said = re.findall(r"^count\((\w+)\.make\(horizon=(\d+)\)\)  # = \((.*)\)$", page, re.MULTILINE)
    shown = re.findall(r"^\| (\w+), N = (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert len(said) == 4
    assert [(name, n, row.replace(" ", "").replace("|", ", ")) for name, n, row in shown] == said
