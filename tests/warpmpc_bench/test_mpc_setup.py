"""What a row of the MPC benchmark solves, and rows of solves that are one launch."""

from __future__ import annotations

import inspect

import pytest

from warpmpc import systems
from warpmpc._errors import SettingsError
from warpmpc_bench.bench_command import benchmarks
from warpmpc_bench.common.sweep import Step
from warpmpc_bench.mpc import bench as mpc
from warpmpc_bench.mpc import bytes as mpc_bytes
from warpmpc_bench.mpc import phases as mpc_phases
from warpmpc_bench.mpc import report as mpc_report
from warpmpc_bench.mpc.bench import MPCBenchSettings
from warpmpc_bench.mpc.setup import MPCSetup
from warpmpc_bench.mpc.variants import VARIANTS, build_solver

# The table of what is to be measured: horizon, SQP and ADMM iterations.
WANTED = {
    "pendulum": (64, 5, 25),
    "car": (50, 1, 25),
    "cartpole": (100, 10, 50),
    "quadrotor": (40, 1, 25),
    "quadrotor_obstacles": (40, 1, 100),
    "linear": (40, 1, 25),
    "humanoid": (27, 1, 25),
}


class TestSetup:
    @pytest.mark.parametrize("name", list(systems.SYSTEMS))
    def test_sizes_of_the_benchmarks(self, name):
        horizon, sqp_iter, admm_iter = WANTED[name]
        known = inspect.signature(systems.SYSTEMS[name]).parameters
        made = {key: known[key].default for key in known} | MPCSetup(name).options
        assert made["horizon"] == horizon
        assert made.get("sqp_iter", 1) == sqp_iter
        assert made["admm_iter"] == admm_iter
        said = f"N = {horizon}, {sqp_iter} SQP x {admm_iter} ADMM"
        assert said in benchmarks()[name].help

    def test_given_sizes_win(self):
        setup = MPCSetup("pendulum", horizon=4, admm_iter=7)
        assert setup.options == {"horizon": 4, "sqp_iter": 5, "admm_iter": 7}
        system = setup.make()
        assert system.problem.horizon == 4
        assert system.settings.max_iter == 5
        assert system.settings.qp_settings("float32").max_iter == 7
        text = "warpmpc.systems.make('pendulum', horizon=4, sqp_iter=5, admm_iter=7)"
        assert str(setup) == text
        assert str(MPCSetup("cartpole")) == "warpmpc.systems.make('cartpole')"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"system": "boat"}, "Unknown system 'boat'; choose from"),
            ({"system": "car", "horizon": 0}, "horizon must be at least 1, got 0."),
            ({"system": "car", "sqp_iter": 0}, "sqp_iter must be at least 1, got 0."),
            ({"system": "car", "admm_iter": -1}, "admm_iter must be at least 1, got -1."),
            ({"system": "linear", "sqp_iter": 2}, "sqp_iter is no option of 'linear'"),
        ],
    )
    def test_mistakes(self, options, message):
        with pytest.raises(SettingsError, match=message):
            MPCSetup(**options)
        with pytest.raises(SettingsError, match=message):
            MPCBenchSettings(**options)


class TestOnchip:
    def test_variant_insists(self):
        built = build_solver("onchip", MPCSetup("pendulum", 3), "float32")
        assert built.solver.engine == "onchip"
        assert VARIANTS["onchip"].subject == VARIANTS["staged"].subject == "engine"

    def test_counted_bytes_are_those_of_one_launch(self):
        """z, d, s and y are read and written once per solve, however many iterations it has."""
        for sqp_iter in (1, 4):
            setup = MPCSetup("pendulum", 3, sqp_iter, 50)
            found = mpc_bytes.onchip_bytes(build_solver("onchip", setup, "float32").solver)
            n, m = 3 * 3 + 2, 2 + 3 * 3  # nodes and the last state; x0, dynamics and torques
            once = 4 * (2 * 2 * (n + m) + 2)
            assert found == {"onchip": -(-once // sqp_iter), "total": -(-once // sqp_iter)}

    def test_phases_by_cycles_inside_the_launch(self):
        events = [
            mpc_phases.Event("onchip_solve_1a2b3c4d_cuda_kernel_forward", 0, 8000),
            mpc_phases.Event("loop_add_fusion", 8000, 2000),
        ]
        row = mpc_phases.device_phases(events, 5)
        cycles = {"linearize": 1.0, "factor": 1.0, "couple": 0.0, "admm": 4.0}
        found = mpc_phases.split_launch(row, {**cycles, "report": 0.5, "search": 1.5})
        assert found["seconds"] == pytest.approx(
            {"linearize_factor": 2e-6, "admm": 4e-6, "line_search": 2e-6, "rest": 2e-6}
        )
        assert found["other_share"] == pytest.approx(0.6)
        unknown = mpc_phases.split_launch(row, dict.fromkeys(cycles, 0.0))
        assert "no clock inside it" in unknown["reason"]
        assert unknown["other_share"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pendulum", "car"])
def test_rows_of_both_engines(name):
    settings = MPCBenchSettings(
        (2,), variants=("onchip", "staged"), system=name, horizon=6, steps=2, sample=2, repeats=1
    )
    rows = list(mpc.run(settings))
    assert [row["settings"]["engine"] for row in rows] == ["onchip", "staged"]
    assert all(row["correct"] for row in rows)
    onchip, staged = rows
    assert set(onchip["counted"]) == {"onchip", "total"}
    assert set(staged["counted"]) == {*mpc_phases.PHASES, "total"}
    assert onchip["memory"]["storage_bytes"] < staged["memory"]["storage_bytes"]  # no factor
    assert "  onchip  " in mpc_report.line(onchip)


def test_on_chip_needs_less_memory():
    """What is refused for lack of memory, by engine: starts and results, twice or four times."""
    settings = MPCBenchSettings((1000,), system="pendulum", horizon=3, steps=1)
    runner = mpc.MPCRunner(settings)
    wanted = {
        name: runner.bytes_wanted(Step(name, 1000, "float32")) for name in ("onchip", "staged")
    }
    problem = settings.setup.make().problem
    state = 2 * (problem.n_vars + problem.n_cons) + problem.n_params
    assert wanted["staged"] - wanted["onchip"] == 1000 * 4 * 2 * state
