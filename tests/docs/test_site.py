"""The site is whole: every page is in its navigation, every public name in its reference."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import warpmpc as wm
from warpmpc.cli.main import build_parser

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))
LESSONS = [f"notebooks/{path.stem}.md" for path in ROOT.glob("notebooks/*.ipynb")]
FIGURES = sorted(
    path.name
    for path in (ROOT / "docs" / "figures").iterdir()
    if path.suffix in (".png", ".svg", ".gif")
)
LARGEST = {".png": 400_000, ".svg": 400_000, ".gif": 1_000_000}  # bytes
# Other names of something that is in the reference, and what needs no explanation.
NOT_LISTED = {"StepResult", "__version__"}


def settings() -> dict:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text().replace("!ENV ", ""))


def in_navigation(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in in_navigation(child)]


def test_every_page_is_in_the_navigation():
    navigation = settings()["nav"]
    assert sorted(in_navigation(navigation)) == sorted([*PAGES, *LESSONS])


def test_every_public_name_is_in_the_reference_once():
    text = "\n".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    listed = re.findall(r"^::: warpmpc\.(\w+)$", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(set(wm.__all__) - NOT_LISTED)


@pytest.mark.parametrize("package", ["learn", "robots", "systems", "viz"])
def test_public_names_of_packages_are_explained(package):
    """Registries and constants are named in a sentence, everything else has an entry."""
    names = import_module(f"warpmpc.{package}").__all__
    text = "\n".join(path.read_text() for path in (ROOT / "docs").glob("**/*.md"))
    listed = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}
    named = set(re.findall(rf"`(?:wm|warpmpc)\.{package}\.([A-Z]+)`", text))
    assert sorted(set(names) - listed - named) == []


def test_there_are_figures():
    assert {"pendulums.png", "pattern.svg", "stage_loop.svg", "tiles.svg"} <= set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_small_and_shown(name):
    path = ROOT / "docs" / "figures" / name
    assert path.stat().st_size < LARGEST[path.suffix]
    texts = [page.read_text() for page in ROOT.glob("docs/**/*.md")]
    texts.append((ROOT / "docs" / "overrides" / "home.html").read_text())
    assert any(f"figures/{name}" in text for text in texts)


@pytest.mark.parametrize("page", PAGES)
def test_commands_on_pages_parse(page):
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    for line in lines:
        words = line.partition("#")[0].split()
        if words[:1] == ["warpmpc"]:
            build_parser().parse_args(words[1:])
        elif words[:1] == ["python"]:
            assert (ROOT / words[1]).exists()


def test_the_front_page_has_the_code_of_the_readme():
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/index.md")]
    first, second = (re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) for text in texts)
    assert first == second


def test_the_site_asks_no_other_host():
    assert settings()["theme"]["font"] is False
    assert not re.search(r"https?:|@import", (ROOT / "docs" / "style.css").read_text())
