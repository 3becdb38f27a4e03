"""Addresses come from one place, and the README of the archives has only links that work."""

from __future__ import annotations

import re

import links

TEXT = (
    "![a picture](docs/a.png)\n\nSee [the `page`](docs/a.md#part) and [OSQP](https://osqp.org/).\n"
)


def test_without_an_address_words_stay_and_pictures_go():
    text = links.readme_for_index(TEXT, None, "1.2.3")
    assert text == "\n\nSee the `page` and [OSQP](https://osqp.org/).\n"


def test_without_an_address_nothing_is_said_about_pictures():
    shown = "<!-- pictures -->\n![one](a.png)\n\nThis is one.\n<!-- end of pictures -->"
    text = f"Words.\n\n{shown}\n\nMore."
    assert links.readme_for_index(text, None, "1.2.3") == "Words.\n\nMore."
    assert "This is one." in links.readme_for_index(text, "https://github.com/some/one", "1.2.3")


def test_with_an_address_links_are_absolute():
    text = links.readme_for_index(TEXT, "https://github.com/some/one", "1.2.3")
    assert "![a picture](https://github.com/some/one/raw/v1.2.3/docs/a.png)" in text
    assert "[the `page`](https://github.com/some/one/blob/v1.2.3/docs/a.md#part)" in text
    assert "[OSQP](https://osqp.org/)" in text


def test_the_readme_has_no_relative_link_on_an_index():
    readme = (links.ROOT / "README.md").read_text()
    for address in (None, "https://github.com/some/one"):
        text = links.readme_for_index(readme, address, "1.2.3")
        targets = re.findall(r"\]\(([^)]+)\)", text)
        assert targets
        assert [one for one in targets if not one.startswith(("http", "#"))] == []


def test_the_address_of_the_project(monkeypatch):
    monkeypatch.setattr(links, "project", lambda: {"urls": {"Repository": "https://a.org/b/"}})
    assert links.repository() == "https://a.org/b"
    monkeypatch.setattr(links, "project", dict)
    assert links.repository() is None
