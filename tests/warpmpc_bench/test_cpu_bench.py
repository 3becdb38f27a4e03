"""The benchmark of the CPU: rows, their ratios, and QPs that OSQP solves to the same point."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from warpmpc import MPCSolver, SettingsError, cpu_threads, systems
from warpmpc.qp.types import ADMMSettings
from warpmpc_bench.common.record import read_rows
from warpmpc_bench.cpu import bench, report
from warpmpc_bench.cpu.baselines import (
    BASELINES,
    ConvergedByCasADi,
    ParallelOSQP,
    SequentialOSQP,
)
from warpmpc_bench.cpu.plot import plot_file

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="for the CPU")


def test_a_row_says_what_was_compared(tmp_path):
    settings = bench.CPUSettings(
        batches=(2,),
        variants=("pendulum",),
        repeats=2,
        baselines=("osqp", "hpipm"),
        lanes=True,
        engines=("boat",),
    )
    threads = cpu_threads()
    (row,) = bench.run(settings)
    assert cpu_threads() == threads
    assert row["correct"]
    widths = {f"lanes_{lanes}" for lanes in (1, 8, 16, 32)}
    alike = row["accuracy"].pop("largest_difference")
    assert row["accuracy"] == {"same_bits": True, "finite": True}
    assert alike.keys() == widths
    assert max(alike.values()) < 1e-3
    assert row["settings"]["threads"] == threads
    assert row["settings"]["lanes"] == 8
    assert set(row["per_s"]) == {"one", "all", "osqp", *widths}
    assert row["left_out"].keys() == {"boat", "hpipm"}
    assert "can be installed" in row["left_out"]["hpipm"]
    for share in ("share_of_cache_bandwidth", "share_of_peak"):
        assert 0 < row["roofline"][share] < 1
    for name in ("all_over_one", "one_over_osqp", "all_over_osqp"):
        found = row["ratios"][name]
        assert 0 < found["low"] <= found["median"] <= found["high"]
    assert row["free_cores"]["median"] > 0
    assert row["memory"]["peak_bytes"] > 1e7
    assert report.line(row).startswith("pendulum")
    assert f"least gain by {threads} threads" in report.summary([row])
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert len(read_rows(path)) == 1
    assert plot_file(path, tmp_path / "rates.png").stat().st_size > 1000


def test_different_bits_are_wrong():
    settings = bench.CPUSettings(batches=(1,), variants=("pendulum",), baselines=False)
    (step,) = bench.plan(settings)
    made = bench._Measurement(step, settings, 2)
    one = made._solve(1)
    assert made._verdict({"one": one, "all": one})[0]
    assert not made._verdict({"one": one, "all": replace(one, cost=one.cost + 1)})[0]
    missing = replace(one, z=one.z * np.nan)
    assert not made._verdict({"one": missing, "all": missing})[0]


def test_osqp_solves_the_same_qps():
    system = systems.make("pendulum", horizon=10)
    qp = ADMMSettings(max_iter=3000, check_every=0)
    settings = replace(system.settings, max_iter=1, qp=qp)
    solver = MPCSolver(system.problem, settings, "float64")
    x0 = system.sample(3, 0)
    osqp = SequentialOSQP(solver, x0)
    osqp.solve()
    ours = np.asarray(solver.solve(x0).warm_start.qp.d)
    np.testing.assert_allclose(ours, osqp.x, atol=1e-4 * np.abs(osqp.x).max())


@pytest.mark.parametrize("plugin", ["ipopt", "fatrop"])
def test_casadi_solves_the_same_problems(plugin):
    if BASELINES[plugin].obstacle() is not None:
        pytest.skip(f"CasADi has no {plugin}")
    system = systems.make("pendulum", horizon=10)
    solver = MPCSolver(system.problem, system.converged_settings, "float64")
    x0 = system.sample(2, 0)
    peer = ConvergedByCasADi(plugin, solver, x0)
    peer.solve()
    assert peer.solved == 2
    np.testing.assert_allclose(peer.z, solver.solve(x0).z, atol=1e-2 * np.abs(peer.z).max())


def test_soft_rows_are_refused():
    system = systems.make("car")
    with pytest.raises(SettingsError, match="fatrop is measured on problems without soft rows"):
        ConvergedByCasADi("fatrop", MPCSolver(system.problem), system.sample(1, 0))


@pytest.mark.slow
def test_processes_solve_the_same_qps():
    system = systems.make("pendulum", horizon=10)
    solver = MPCSolver(system.problem, replace(system.settings, max_iter=1))
    osqp = ParallelOSQP(solver, system.sample(3, 0), 2, qps=6)
    assert osqp.batch == 12
    assert osqp.solve() == 0
    osqp.close()


def test_it_needs_the_cpu(monkeypatch):
    monkeypatch.setattr(bench, "host", lambda: None)
    with pytest.raises(SettingsError, match="set JAX_PLATFORMS=cpu on a machine with a GPU"):
        bench.CPUSettings()


def test_unknown_system():
    with pytest.raises(SettingsError, match="Unknown system 'boat'"):
        bench.CPUSettings(variants=("boat",))
