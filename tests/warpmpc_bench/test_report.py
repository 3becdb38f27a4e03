"""What demos and `warpmpc solve` say about their results."""

from __future__ import annotations

import pytest

from warpmpc import MPCStatus, Status
from warpmpc._conventions import FactorStatus
from warpmpc_bench.common.report import demo_result, status_note


@pytest.mark.parametrize("kind", [MPCStatus, Status, FactorStatus])
def test_every_status_is_explained(kind):
    """All but success, which speaks for itself."""
    success, *others = (status.name for status in kind)
    assert status_note([success]) == ""
    for name in others:
        assert status_note([success, name]).startswith(f"; {name}: ")
    note = status_note(others)
    assert note.count("; ") == len(others)


def test_fixed_numbers_of_iterations():
    assert "as the settings fix their number" in status_note(["MAX_ITER"], fixed=True)
    assert "not converged within the allowed" in status_note(["MAX_ITER"])


def test_results_in_plain_words():
    assert demo_result(correct=True) == "as it should be: all checks of this demo hold"
    assert demo_result(correct=False).startswith("WRONG RESULT: a check of this demo fails")
