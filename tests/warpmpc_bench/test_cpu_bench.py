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
from warpmpc_bench.cpu.baselines import SequentialOSQP
from warpmpc_bench.cpu.plot import plot_file

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="for the CPU")


def test_a_row_says_what_was_compared(tmp_path):
    settings = bench.CPUSettings(batches=(2,), variants=("pendulum",), repeats=2)
    threads = cpu_threads()
    (row,) = bench.run(settings)
    assert cpu_threads() == threads
    assert row["correct"]
    assert row["accuracy"] == {"same_bits": True, "finite": True}
    assert row["settings"]["threads"] == threads
    assert set(row["per_s"]) == {"one", "all", "osqp"}
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


def test_it_needs_the_cpu(monkeypatch):
    monkeypatch.setattr(bench, "host", lambda: None)
    with pytest.raises(SettingsError, match="set JAX_PLATFORMS=cpu on a machine with a GPU"):
        bench.CPUSettings()


def test_unknown_system():
    with pytest.raises(SettingsError, match="Unknown system 'boat'"):
        bench.CPUSettings(variants=("boat",))
