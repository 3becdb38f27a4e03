"""Code in README and documentation runs, and its comments `# = value` give the results.

Blocks of a page share their names, as if typed one after the other into an interpreter with JAX's
own settings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest

from warpmpc.mpc.line_search import LINE_SEARCHES
from warpmpc.problem.integrators import INTEGRATORS
from warpmpc.qp.loops.registry import LOOPS
from warpmpc.symbolic.ordering import ORDERINGS
from warpmpc.systems import SYSTEMS
from warpmpc_bench.mpc.baselines import BASELINES

ROOT = Path(__file__).parents[2]
REGISTRIES: list[dict[str, Any]] = [
    INTEGRATORS, ORDERINGS, LINE_SEARCHES, LOOPS, SYSTEMS, BASELINES,
]  # fmt: skip
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
)
# Each of these compiles more than a few kernels.
SLOW = {
    "docs/closed_loop.md",
    "docs/converged.md",
    "docs/debugging.md",
    "docs/gradients.md",
    "docs/learn.md",
    "docs/mpc.md",
    "docs/own_problem.md",
    "docs/qp.md",
    "docs/quickstart.md",
    "docs/robots.md",
}
# Minimum of compared values: a page that loses its comments would pass without a check.
COMPARED = {
    "README.md": 0,
    "docs/closed_loop.md": 5,
    "docs/converged.md": 3,
    "docs/cpu.md": 1,
    "docs/debugging.md": 3,
    "docs/extending.md": 8,
    "docs/gradients.md": 3,
    "docs/humanoid.md": 6,
    "docs/index.md": 0,
    "docs/ldl.md": 1,
    "docs/learn.md": 7,
    "docs/mpc.md": 2,
    "docs/onchip.md": 8,
    "docs/own_problem.md": 7,
    "docs/problems.md": 13,
    "docs/qp.md": 4,
    "docs/quickstart.md": 4,
    "docs/robots.md": 5,
    "docs/settings.md": 5,
}
# What a page prints that has no such comments.
PRINTED = dict.fromkeys(("README.md", "docs/index.md"), "200 instances: 200 CONVERGED\n")


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run_page(page: str) -> int:
    """Runs the blocks of a page; returns how many values were compared."""
    names: dict[str, Any] = {"__name__": "page"}
    compared = 0
    for number, text in enumerate(blocks(page, "python")):
        exec(compile(text, f"{page} block {number}", "exec"), names)
        for expression, value in re.findall(r"^(\S.*?)  # = (.*)$", text, flags=re.MULTILINE):
            assert repr(eval(expression, names)) == value, expression
            compared += 1
    return compared


@pytest.fixture
def as_a_user(monkeypatch, tmp_path):
    """JAX's own settings, a folder to write into, and tables that pages may change."""
    monkeypatch.chdir(tmp_path)
    before = [dict(registry) for registry in REGISTRIES]
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(entries)


def test_every_page_with_code_has_an_entry():
    assert {page for page in PAGES if blocks(page, "python")} == set(COMPARED)


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.slow] * (p in SLOW)) for p in sorted(COMPARED)]
)
def test_page_runs(page, as_a_user, capsys):
    assert run_page(page) >= COMPARED[page]
    assert capsys.readouterr().out == PRINTED.get(page, "")


def test_a_wrong_value_is_noticed(monkeypatch, tmp_path):
    (tmp_path / "page.md").write_text("```python\n1 + 1  # = 3\n```\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"1 \+ 1"):
        run_page("page.md")
