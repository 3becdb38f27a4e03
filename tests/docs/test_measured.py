"""The page of measured figures agrees with the rows, and the front pages with the page."""

from __future__ import annotations

import re
from pathlib import Path

import measured
import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_agrees_with_the_rows():
    assert measured.main(["--check"]) == 0


def test_a_changed_figure_is_noticed(monkeypatch, tmp_path, capsys):
    page = tmp_path / "measured.md"
    page.write_text(measured.PAGE.read_text().replace("6.4 million", "6.5 million"))
    monkeypatch.setattr(measured, "PAGE", page)
    assert measured.main(["--check"]) == 1
    assert "differs from the rows" in capsys.readouterr().err
    assert measured.main([]) == 0
    assert measured.main(["--check"]) == 0


def test_every_file_of_rows_is_listed():
    assert {path.stem for path in measured.RESULTS.glob("*.jsonl")} == set(measured.FILES)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_three_numbers_are_those_of_the_rows(page):
    numbers = re.findall(r"\*\*([\d.]+ \w+)\*\*", (ROOT / page).read_text())
    assert numbers == [" ".join(value.split()[:2]) for _, value, _ in measured.headlines()]


def test_the_table_of_the_readme_is_that_of_the_rows():
    """Rates of the correct rows of the two systems, as the README rounds them."""
    table = re.findall(r"^\|.*\| warpmpc \|(.*)\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    shown = [[one.strip() for one in line.split("|")] for line in table]
    rates = []
    for name, system in (("onchip_h200", "cartpole"), ("sweep_h200", "quadrotor")):
        rows = {row["batch"]: row for row in measured.rows_of(name) if row["correct"]
                and row["system"]["name"] == system and row["dtype"] == "float32"}  # fmt: skip
        rates.append([rows[batch]["sqp"]["per_s"] for batch in (1000, 10_000, 100_000)])
    assert shown == [
        [f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.0f} k" for rate in line]
        for line in rates
    ]
