"""One system and one baseline registered from outside: every command knows and runs them."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from toy_system import REST, TOY

from warpmpc import ProblemError, SettingsError, systems
from warpmpc.cli.main import build_parser, main
from warpmpc.systems.recipe import check_options, default_sizes
from warpmpc_bench.common.record import read_rows
from warpmpc_bench.mpc import baselines
from warpmpc_bench.mpc.bench import MPCBenchSettings
from warpmpc_bench.mpc.ipopt import WholeProgram, closed_loops


def plain(horizon=5):
    """A toy that is a plain function."""
    return TOY(horizon)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(systems.SYSTEMS, "toy", TOY)
    monkeypatch.setitem(systems.SYSTEMS, "plain", plain)


def help_of(capsys, *words):
    with pytest.raises(SystemExit):
        build_parser().parse_args([*words, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("registered")
class TestSystem:
    def test_help_lists_it(self, capsys):
        assert "t toys stand up" in help_of(capsys, "solve")
        assert "plain A toy that is a plain function" in help_of(capsys, "solve")
        assert "t toys stand up" in help_of(capsys, "demo")
        assert "t: 5, plain: 256" in help_of(capsys, "demo")
        text = help_of(capsys, "bench")
        assert "toy (t) closed loops: toys stand up (N = 4, 2 SQP x 50 ADMM)" in text
        assert "A toy that is a plain function (N = 5)" in text

    @pytest.mark.parametrize("name", ["toy", "t", "plain"])
    def test_solve(self, name, capsys):
        assert main(["solve", name, "--batch", "3", "--mode", "fixed", "--engine", "sparse"]) == 0
        shown = {"toy": "3 x toy", "t": "3 x toy", "plain": "3 x plain"}[name]
        assert shown in capsys.readouterr().out

    def test_bench(self, tmp_path):
        rows = tmp_path / "rows.jsonl"
        small = ["--batch", "2", "--sample", "2", "--repeats", "1", "--steps", "2"]
        small += ["--json", str(rows), "--plot", str(tmp_path / "toy.png"), "--no-profile"]
        assert main(["bench", "t", *small, "--no-full-loops"]) == 0
        (row,) = read_rows(rows)
        assert row["correct"]
        assert (row["system"]["name"], row["system"]["horizon"]) == ("toy", 4)

    @pytest.mark.parametrize("name", ["toy", "plain"])
    def test_demo_draws_the_generic_scene(self, name, tmp_path, capsys):
        path = tmp_path / "toy.png"
        options = ["--batch", "4", "--steps", "2", "--out", str(path)]
        assert main(["demo", name, *options]) == 0
        assert f"4 x {name} in closed loop" in capsys.readouterr().out
        image = np.asarray(Image.open(path).convert("RGB")) / 255
        assert 0.01 < (image < 0.99).any(axis=2).mean() < 0.5

    def test_sizes(self):
        assert default_sizes(TOY) == {"horizon": 6, "sqp_iter": 2, "admm_iter": 50}
        made = systems.make("toy", horizon=3, admm_iter=7)
        assert made.problem.horizon == 3
        assert made.settings.qp_settings("float32").max_iter == 7
        assert systems.make("plain").problem.horizon == 5

    @pytest.mark.parametrize(
        ("name", "option", "known"),
        [("toy", "free", "horizon, sqp_iter, admm_iter"), ("plain", "sqp_iter", "horizon")],
    )
    def test_unknown_options(self, name, option, known):
        text = f"{option} is no option of system '{name}'; its options are {known}."
        with pytest.raises(ProblemError, match=re.escape(text)):
            systems.make(name, **{option: 1})

    def test_functions_with_any_options_are_not_checked(self):
        check_options("any", lambda **options: plain(), {"whatever": 1})

    def test_metrics_that_lack_something(self):
        system = plain()
        object.__setattr__(system, "metrics", lambda x, u: {"success": np.ones(2, dtype=bool)})
        with pytest.raises(ProblemError, match="'toy' lack satisfied, violation, input_excess"):
            system.judged(np.zeros((2, 2, 2)), np.zeros((2, 1, 1)))


@pytest.mark.usefixtures("registered")
class TestBaseline:
    @pytest.fixture
    def baseline(self, monkeypatch):
        monkeypatch.setitem(baselines.BASELINES, "rest", REST)

    @pytest.mark.usefixtures("baseline")
    def test_bench_runs_it(self, tmp_path, capsys):
        assert "installed: ipopt, rest (default: none" in help_of(capsys, "bench", "toy")
        rows = tmp_path / "rows.jsonl"
        small = ["--batch", "2", "--sample", "2", "--repeats", "1", "--steps", "2"]
        small += ["--json", str(rows), "--plot", str(tmp_path / "toy.png")]
        small += ["--no-profile", "--no-full-loops", "--baselines", "rest,ipopt"]
        assert main(["bench", "toy", *small]) == 0
        text = capsys.readouterr().out
        assert "rests: " in text
        assert "IPOPT through CasADi, one CPU core: " in text
        found = {row["solver"]: row for row in read_rows(rows)}
        assert set(found) == {"rest", "ipopt", "default"}
        assert all(row["correct"] for row in found.values())
        assert len({frozenset(row) for row in found.values()}) == 1
        assert found["ipopt"]["batch"] == baselines.IPOPT_BATCH
        assert found["ipopt"]["accuracy"]["loop"]["solved"] == 1.0
        assert found["rest"]["sqp"] is None
        assert found["default"]["solve"] is None

    def test_names_are_checked(self):
        with pytest.raises(SettingsError, match="Unknown baseline 'snopt'; choose from"):
            MPCBenchSettings((2,), system="toy", baselines=("snopt",))


def test_ipopt_finds_the_solution_of_the_converged_solver():
    """The same program, soft rows included, as `MPCSolver` in float64."""
    from warpmpc import MPCSolver

    system = systems.make("car", horizon=8)
    x0 = system.sample(3)
    loop = closed_loops(system, WholeProgram(system.problem), x0, 2)
    assert loop.solved.all()
    assert loop.violation.max() < 1e-6
    solver = MPCSolver(system.problem, system.converged_settings, dtype="float64")
    found = solver.solve(x0)
    np.testing.assert_allclose(loop.u[:, 0], np.asarray(found.u)[:, 0], atol=1e-4)
    after = np.asarray(system.simulate(jnp.asarray(x0), jnp.asarray(loop.u[:, 0])))
    np.testing.assert_allclose(loop.x[:, 1], after, rtol=1e-12)


def test_wrong_loops_of_a_baseline_are_told():
    system = plain()

    class Case:
        def __init__(self):
            self.system, self.batch = system, 2

    x, u, nothing = np.zeros((2, 3, 2)), np.zeros((2, 2, 1)), np.zeros((2, 2))
    judged = baselines.judge_loop(Case(), x, u, nothing == 0, nothing)
    assert judged.correct
    assert judged.loop["success"] is None  # shorter than the loops of the system
    late = baselines.judge_loop(Case(), x, u, nothing != 0, nothing)
    assert late.failed == ["solved"]
    off = baselines.judge_loop(Case(), x, u, nothing == 0, nothing + 1e-3)
    assert off.failed == ["plan_violation"]
    assert not baselines.judge_loop(Case(), x + np.nan, u, nothing == 0, nothing).correct
