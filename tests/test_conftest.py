"""The rules that `conftest.py` promises."""

from __future__ import annotations

from pathlib import Path

import gpu_rule
import jax
import jax.numpy as jnp
import pytest

GPU_TEST = """
import pytest

@pytest.mark.gpu
def test_on_device():
    pass

def test_on_host():
    pass
"""


@pytest.mark.parametrize(
    ("present", "required", "verdict"),
    [
        (True, True, "run"),
        (True, False, "run"),
        (False, False, "skip"),
        (False, True, "fail"),
    ],
)
def test_gpu_verdict(present, required, verdict):
    assert gpu_rule.gpu_verdict(present=present, required=required) == verdict


@pytest.mark.parametrize(
    ("present", "require", "outcome"),
    [
        (True, "1", {"passed": 2}),
        (False, "", {"passed": 1, "skipped": 1}),
        (False, "0", {"passed": 1, "skipped": 1}),
        (False, "1", {"passed": 1, "errors": 1}),
    ],
)
def test_gpu_marker(pytester, monkeypatch, present, require, outcome):
    monkeypatch.setattr(gpu_rule, "cuda_device_present", lambda: present)
    monkeypatch.setenv(gpu_rule.REQUIRE_GPU, require)
    pytester.makeini("[pytest]\nmarkers = gpu\n")
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(GPU_TEST)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(**outcome)
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if "errors" in outcome else 0)


def test_float64_is_on():
    assert jnp.ones(1, dtype="float64").dtype == jnp.float64


def test_rank_promotion_raises():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)


def test_gpu_detection_agrees_with_jax():
    assert gpu_rule.cuda_device_present() == (jax.default_backend() == "gpu")


@pytest.mark.parametrize(("limit", "released"), [("1", 1), ("10**9", 0)])
def test_programs_are_released_between_modules(pytester, monkeypatch, limit, released):
    calls = []
    monkeypatch.setattr(jax, "clear_caches", lambda: calls.append(1))
    text = (Path(__file__).parent / "conftest.py").read_text()
    pytester.makeconftest(text.replace("MAPS_TO_RELEASE = 20_000", f"MAPS_TO_RELEASE = {limit}"))
    test = "def test_one():\n    pass\n\ndef test_two():\n    pass\n"
    pytester.makepyfile(test_first=test, test_second=test)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)
    assert len(calls) == released
