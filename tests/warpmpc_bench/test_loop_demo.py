"""Closed-loop demos: what they measure, print, draw and refuse."""

from __future__ import annotations

import webbrowser
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from PIL import Image
from system_names import SMALL
from terminals import Terminal

from warpmpc import SettingsError, systems
from warpmpc.cli import arguments
from warpmpc.cli.main import main
from warpmpc.cli.progress import Activity
from warpmpc.systems import pendulum
from warpmpc.viz.scene import check_suffix, write_scene
from warpmpc_bench.demo_command import demos
from warpmpc_bench.demos import loop as loop_demo
from warpmpc_bench.demos.loop import LoopDemo, LoopOptions, device_name, run_demo
from warpmpc_bench.demos.loop_summary import format_demo
from warpmpc_bench.demos.scenes import scene_of

BATCH, STEPS = 5, 6


class Heard:
    """Remembers what it was told."""

    def __init__(self):
        self.phases, self.reports = [], []

    def phase(self, text):
        self.phases.append(text)

    def report(self, done, total):
        self.reports.append((done, total))


@cache
def made_up(name) -> LoopDemo:
    """A loop that was never simulated: starts that move to the goal in a straight line."""
    system = systems.make(name)
    x0 = system.sample(BATCH)
    end = 1.0 if name == "humanoid" else 0.0  # its goal is where it stands
    x = x0[:, None] * np.linspace(1, end, STEPS + 1)[None, :, None]
    u = np.random.default_rng(0).normal(size=(BATCH, STEPS, system.n_u))
    return LoopDemo(
        options=LoopOptions(name, BATCH, STEPS), system=system, device="a test", engine="staged",
        x=x, u=u, metrics=system.metrics(x, u), statuses={"CONVERGED": 1.0},
        iterations=BATCH * STEPS, compile_s=2.0, run_s=0.5,
    )  # fmt: skip


@pytest.fixture(scope="module")
def small():
    """A real run with a short horizon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_demo.systems, "make", lambda name: pendulum.make(4))
        heard = Heard()
        loop = run_demo(LoopOptions("pendulum", batch=3, steps=4, seed=1), heard)
    return loop, heard


def test_run(small):
    loop, heard = small
    assert loop.x.shape == (3, 5, 2)
    assert loop.u.shape == (3, 4, 1)
    np.testing.assert_allclose(loop.x[:, 0], pendulum.sample(3, 1), rtol=1e-6)
    following = jax.vmap(pendulum.simulate)(loop.x[:, :-1], loop.u)
    np.testing.assert_allclose(loop.x[:, 1:], following, atol=1e-4)
    assert loop.iterations == 3 * 4 * 5
    assert loop.iterations_per_s == pytest.approx(60 / loop.run_s)
    assert loop.solves_per_s == pytest.approx(12 / loop.run_s)
    assert sum(loop.statuses.values()) == pytest.approx(1)
    assert len(heard.phases) == 3
    assert heard.reports[-1] == (4, 4)
    assert loop.compile_s > 0
    assert not loop.whole
    assert loop.correct  # finite; too short to be judged otherwise


def test_verdict():
    loop = made_up("pendulum")
    assert loop.correct
    lost = np.array(loop.x)
    lost[0, 1] = np.nan
    assert not replace(loop, x=lost).correct
    full = replace(loop, u=np.zeros((BATCH, loop.system.steps, 1)))
    assert full.whole
    assert full.correct
    assert not replace(full, metrics={"success": np.zeros(BATCH, dtype=bool)}).correct


def test_text():
    text = format_demo(made_up("cartpole"))
    for part in (
        "5 x cartpole in closed loop on a test", "505 variables, 606 rows", "10 SQP x 50 ADMM",
        "compile      2.0 s;", "60  MPC problems/s", "(0 of 5)", "a full loop has 100 steps",
        "keep all state constraints", "100.0% CONVERGED", "as it should be",
    ):  # fmt: skip
        assert part.replace("  ", " ") in text.replace("  ", " "), part
    wrong = replace(made_up("cartpole"), x=np.full((BATCH, STEPS + 1, 4), np.nan))
    assert "WRONG RESULT" in format_demo(wrong)


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_scene(name, tmp_path):
    """Every scene shows all times, counts who is there, and can be written."""
    loop = made_up(name)
    scene = scene_of(loop)
    scene.show(0)
    begin = scene._counter.get_text()
    scene.show(STEPS)
    end = scene._counter.get_text()
    assert begin.startswith("t = 0.00 s")
    assert end.endswith("5 of 5")
    assert scene.there(STEPS).all()
    lines = [len(trace._lines.get_segments()) for trace in scene._traces]
    assert lines == [BATCH, BATCH]
    ends = [trace._lines.get_segments()[0][-1, 0] for trace in scene._traces]
    assert max(ends) == pytest.approx(STEPS * loop.system.control_dt)
    path = write_scene(scene, STEPS, loop.system.control_dt, tmp_path / f"{name}.png")
    image = np.asarray(Image.open(path).convert("RGB")) / 255
    assert 0.01 < (image < 0.99).any(axis=2).mean() < 0.5  # neither blank nor flooded


def test_scene_is_drawn_from_the_states():
    loop = made_up("cartpole")
    scene = scene_of(loop)
    scene.show(2)
    poles = np.array(scene._poles.get_segments())
    x = loop.x[scene.drawn, 2]
    np.testing.assert_allclose(poles[:, 0, 0], x[:, 0])
    np.testing.assert_allclose(np.linalg.norm(poles[:, 1] - poles[:, 0], axis=1), 0.6696171)
    np.testing.assert_allclose(poles[:, 1, 1], 0.6696171 * np.cos(x[:, 2]))
    scene.show_still()  # 0.4 of 6 steps; traces until the end
    assert scene._counter.get_text().startswith("t = 0.20 s")
    assert len(scene._traces[0]._lines.get_segments()[0]) == STEPS + 1


def test_animation(tmp_path):
    loop, heard = made_up("pendulum"), Heard()
    path = tmp_path / "new" / "a.gif"
    write_scene(scene_of(loop), STEPS, 0.05, path, heard.report)
    assert heard.reports[-1] == (STEPS + 1, STEPS + 1)
    with Image.open(path) as image:
        assert image.n_frames == STEPS + 1
        assert image.size == (968, 519)
        durations = []
        for frame in range(image.n_frames):
            image.seek(frame)
            durations.append(image.info["duration"])
    assert sum(durations[:-1]) == pytest.approx(5000 * STEPS / (STEPS + 1), rel=0.02)
    assert durations[-1] == 2000
    assert list(path.parent.iterdir()) == [path]


def test_interrupted_animation_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(self, path, **options):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_scene(scene_of(made_up("car")), 1, 0.1, tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []


def test_command(monkeypatch, capsys, tmp_path):
    seen, opened = [], []
    monkeypatch.setattr(
        loop_demo, "run_demo", lambda options, _: seen.append(options) or made_up(options.name)
    )
    monkeypatch.setattr(webbrowser, "open", lambda uri: opened.append(uri))
    path = tmp_path / "car.png"
    options = ["--batch", "5", "--steps", "6", "--seed", "3", "--device", "cpu", "--show"]
    assert main(["demo", "car", *options, "--out", str(path)]) == 0
    wanted = LoopOptions("car", 5, 6, 3, jax.devices("cpu")[0])
    assert seen == [wanted]
    assert opened == [path.as_uri()]
    text = capsys.readouterr().out
    assert str(path) in text
    assert "open the file yourself" in text  # the viewer said that there is none
    assert path.exists()


def test_plain_demo_lists_all(capsys):
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text and title in text for name, title in demos().items())
    assert len(demos()) == len(systems.SYSTEMS) + 2
    assert "obstacles" in demos()  # the short name of quadrotor_obstacles


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["cartpol"], "Did you mean 'cartpole'?"),
        (["car", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["car", "--seed", "-2"], "--seed must be at least 0, got -2"),
        (["car", "--out", "a.mp4"], "a.mp4 must end in one of .gif, .png"),
        (["car", "--out", "/dev/null/a.gif"], "a.gif cannot be written: Not a directory."),
        (["qp", "--seed", "1"], "--seed is for closed loops: pendulum"),
        (["qp", "--out", "a.gif"], "demo qp does not move"),
    ],
)
def test_mistakes(capsys, options, message):
    assert main(["demo", *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_missing_device_is_explained(monkeypatch):
    def none(kind=None):
        raise RuntimeError("Unknown backend")

    monkeypatch.setattr(jax, "devices", none)
    with pytest.raises(SettingsError, match="--device cuda: there is none"):
        arguments.device_of("cuda")


def test_unknown_name_of_a_loop():
    with pytest.raises(SettingsError, match="Unknown demo 'boat'"):
        LoopOptions("boat")
    assert check_suffix("a.GIF").name == "a.GIF"
    assert "CPU core" in device_name(jax.devices("cpu")[0])


@pytest.mark.parametrize("tty", [True, False])
def test_activity(tty):
    stream = Terminal(tty=tty)
    with Activity(stream, interval_s=0.01) as activity:
        activity.phase("compiling kernels")
        while tty and "0.0 s compiling kernels" not in stream.text:
            pass
        activity.report(1, 4)
        while tty and "[######..................] 1/4 compiling kernels" not in stream.text:
            pass
    assert bool(stream.text) == tty
    assert not tty or stream.text.endswith("\r\033[K")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_whole_demo(name, tmp_path, capsys):
    path = tmp_path / f"{name}.gif"
    assert main(["demo", name, "--batch", "32", "--out", str(path)]) == 0
    assert "as it should be" in capsys.readouterr().out
    with Image.open(path) as image:
        assert image.n_frames > 50
