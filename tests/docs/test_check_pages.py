"""The check of pages in a browser finds what it looks for, and says so where there is none."""

from __future__ import annotations

import check_pages
import pytest

GOOD = "<html><head><link rel='icon' href='data:,'></head><body><h1>A page</h1></body></html>"
BAD = {
    "image": ("<img src='missing.png'>", "broken image missing.png"),
    "wide": ("<div style='width:2000px'>wide</div>", "2008 px wide in a window of"),
    "thrown": (
        "<script>throw new Error('no luck')</script>",
        "error in the console: Error: no luck",
    ),
    "logged": ("<script>console.error('oh', 3)</script>", "error in the console: oh 3"),
    "elsewhere": (
        "<img src='http://192.0.2.1/a.png'>",
        "asks another host: http://192.0.2.1/a.png",
    ),
}


def test_without_a_browser_it_says_so(monkeypatch, tmp_path, capsys):
    (tmp_path / "index.html").write_text(GOOD)
    monkeypatch.setattr(check_pages, "find_browser", lambda: None)
    assert check_pages.main(["--site", str(tmp_path)]) == 0
    assert capsys.readouterr().out == check_pages.NO_BROWSER + "\n"
    assert check_pages.main(["--site", str(tmp_path), "--require"]) == 1


def test_without_pages_it_fails(tmp_path, capsys):
    assert check_pages.main(["--site", str(tmp_path)]) == 1
    assert "run `make docs` first" in capsys.readouterr().out


def test_a_chosen_browser_must_exist(monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/nonexistent/browser")
    assert check_pages.find_browser() is None


def test_events_become_sentences():
    event = {"method": "Log.entryAdded", "params": {"entry": {"level": "error", "text": "404"}}}
    sent = {"method": "Network.requestWillBeSent", "params": {"request": {"url": "http://b/"}}}
    own = {"method": "Network.requestWillBeSent", "params": {"request": {"url": "http://a/x"}}}
    found = check_pages.from_events([event, sent, own], "http://a/")
    assert found == ["error in the console: 404 ", "asks another host: http://b/"]


def test_addresses_of_pages(tmp_path):
    for name in ("index.html", "guide/index.html", "404.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(GOOD)
    assert check_pages.pages_of(tmp_path) == ["", "404.html", "guide/"]


@pytest.mark.slow
@pytest.mark.skipif(check_pages.find_browser() is None, reason=check_pages.NO_BROWSER)
def test_faults_are_found_in_a_browser(tmp_path):
    (tmp_path / "index.html").write_text(GOOD)
    for name, (body, _) in BAD.items():
        (tmp_path / f"{name}.html").write_text(GOOD.replace("<h1>", f"{body}<h1>"))
    program = check_pages.find_browser()
    assert program is not None
    faults = check_pages.check(tmp_path, program, tmp_path / "pictures")
    for name, (_, wanted) in BAD.items():
        for width in check_pages.WIDTHS:
            assert any(f.startswith(f"{name}.html at {width} px: {wanted}") for f in faults), faults
    assert not any(fault.startswith("index") for fault in faults)
    pictures = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"index_1280.png", "index_400.png"} <= pictures
