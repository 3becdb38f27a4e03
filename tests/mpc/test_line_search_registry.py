"""A line search that a user registers works in every engine that can run it."""

from __future__ import annotations

import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from mpc_cases import pendulum
from sqp_cases import FIXED

from warpmpc import LineSearchSettings, MPCSolver, SettingsError
from warpmpc.mpc.line_search import LINE_SEARCHES, LineSearch
from warpmpc.mpc.sqp import choice

LONGEST = 0.25
X0 = np.array([[0.3, -0.2], [0.1, 0.4], [-1.0, 0.2]])


def short_steps(trial, steps, settings):
    """Accepts every step that is short enough."""
    return jnp.broadcast_to(steps <= LONGEST, trial.there.cost.shape)


def short_condition(settings, dtype):
    return f"step <= (SCALAR){LONGEST}"


def settings_for(kind):
    search = LineSearchSettings(kind=kind, step_min=0.1)
    return replace(FIXED, line_search=search, record=True)


@pytest.fixture
def jax_only(monkeypatch):
    monkeypatch.setitem(LINE_SEARCHES, "short", LineSearch(short_steps))
    return settings_for("short")


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setitem(LINE_SEARCHES, "short", LineSearch(short_steps, short_condition))
    return settings_for("short")


def test_settings_list_what_is_registered(jax_only):
    with pytest.raises(SettingsError, match='kind must be "filter", "merit", "full" or "short"'):
        LineSearchSettings(kind="long")


def test_without_the_entry_it_is_refused():
    assert "short" not in LINE_SEARCHES
    with pytest.raises(SettingsError, match='"filter", "merit" or "full", got \'short\''):
        LineSearchSettings(kind="short")


class TestWithoutNativeCondition:
    def test_the_general_iteration_takes_it_and_the_log_says_so(self, jax_only, caplog):
        solver = MPCSolver(pendulum(3), jax_only, "float64", "staged")
        with caplog.at_level("INFO", logger=choice.__name__):
            found = solver.solve(X0)
        np.testing.assert_array_equal(found.history.step_length, LONGEST)
        (line,) = [m for m in caplog.messages if "SQP iteration" in m]
        assert re.search(r"general.*not three_launch, because line search \"short\" has no", line)

    @pytest.mark.parametrize(
        ("arguments", "fields", "wish"),
        [({"engine": "onchip"}, {}, 'engine="onchip"'), ({}, {"fused": True}, "fused=True")],
    )
    def test_kernels_refuse_it(self, jax_only, arguments, fields, wish):
        message = f'{wish} is not possible because line search "short" has no native condition'
        with pytest.raises(SettingsError, match=message):
            MPCSolver(pendulum(3), replace(jax_only, **fields), "float64", **arguments)


@pytest.mark.parametrize("arguments", [{"engine": "staged"}, {"engine": "onchip"}])
def test_with_a_native_condition_kernels_search_alike(native, arguments):
    general = MPCSolver(pendulum(3), replace(native, fused=False), "float64", "staged").solve(X0)
    found = MPCSolver(pendulum(3), native, "float64", **arguments).solve(X0)
    np.testing.assert_array_equal(found.history.step_length, LONGEST)
    np.testing.assert_allclose(found.z, general.z, atol=1e-10)


def test_full_steps_only(monkeypatch):
    monkeypatch.setitem(LINE_SEARCHES, "one", LineSearch(short_steps, full_step_only=True))
    assert LineSearchSettings(kind="one").ladder == (1.0,)
