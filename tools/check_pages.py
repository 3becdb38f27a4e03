"""Open every page of the built site in headless Chromium and report what goes wrong there.

    python tools/check_pages.py [--site site] [--screenshots FOLDER] [--require]

Each page is loaded at a wide and at a narrow window.  A page fails if an image is broken, if it is
wider than the window, if the console has an error, or if it asks another host for something.  The
tool talks to the browser through a pipe (Chrome DevTools Protocol), so it needs nothing but the
standard library and a Chromium or Chrome.  Without one it says so and succeeds, unless `--require`
is given.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = (1280, 400)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NO_BROWSER = (
    "check_pages: no Chromium or Chrome on this machine, so no page was opened. "
    "Install one (apt-get install chromium) or set CHROMIUM to its path."
)
# Scrolls through the page, so that images that load late do, and reports what is wrong with it.
LOOK = """(async () => {
  for (let y = 0; y < document.body.scrollHeight; y += 800) {
    window.scrollTo(0, y);
    await new Promise(done => setTimeout(done, 15));
  }
  window.scrollTo(0, 0);
  const images = [...document.images];
  await Promise.all(images.map(image => image.complete ? 0 : new Promise(done => {
    image.addEventListener('load', done); image.addEventListener('error', done);
    setTimeout(done, 5000);
  })));
  const shown = image => image.getClientRects().length > 0 && !image.naturalWidth;
  return {
    broken: images.filter(shown).map(image => image.getAttribute('src')),
    width: document.documentElement.scrollWidth,
    window: document.documentElement.clientWidth,
    height: document.documentElement.scrollHeight,
    protruding: [...document.querySelectorAll('body *')].filter(one => {
      const box = one.getBoundingClientRect();
      if (box.width === 0 || box.right <= document.documentElement.clientWidth + 1) return false;
      for (let up = one.parentElement; up; up = up.parentElement)
        if (getComputedStyle(up).overflowX !== 'visible' && up !== document.body
            && up !== document.documentElement) return false;
      return getComputedStyle(one).position !== 'fixed';
    }).slice(0, 3).map(one => one.tagName.toLowerCase() + '.' + one.className),
  };
})()"""


def find_browser() -> str | None:
    """The path of a Chromium or Chrome; `CHROMIUM` comes first."""
    if chosen := os.environ.get("CHROMIUM"):
        return shutil.which(chosen)
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


class Browser:
    """A headless browser that is driven through a pipe.

    Attributes:
        events: What the browser has reported since the list was last cleared.
    """

    def __init__(self, program: str, profile: str) -> None:
        """Starts the browser with an empty profile in the folder `profile`."""
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # The browser reads from 3 and writes to 4; high copies cannot be in the way of those.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_read, to_write)]

        def hand_over() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        command = [program, "--headless=new", "--remote-debugging-pipe", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--no-first-run", "--disable-gpu"]
        command += ["--disable-dev-shm-usage", "--disable-background-networking"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses root otherwise
        self._process = subprocess.Popen(
            command, pass_fds=(3, 4), preexec_fn=hand_over, stderr=subprocess.DEVNULL
        )
        for end in (to_read, to_write, *ends):
            os.close(end)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, event: str) -> None:
        """Reads events until one of this name has come."""
        while not any(one.get("method") == event for one in self.events):
            self.events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise RuntimeError("The browser has ended.")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._to)
        os.close(self._from)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log line per request."""

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder on this machine; yields the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


def from_events(events: list[dict[str, Any]], address: str) -> list[str]:
    """What the events of one page say is wrong."""
    found = []
    for event in events:
        data = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = data["exceptionDetails"]
                text = details.get("exception", {}).get("description", details["text"])
                found.append(f"error in the console: {text.splitlines()[0]}")
            case "Runtime.consoleAPICalled" if data["type"] in ("error", "assert"):
                words = [str(one.get("value", one.get("description"))) for one in data["args"]]
                found.append(f"error in the console: {' '.join(words)}")
            case "Log.entryAdded" if data["entry"]["level"] == "error":
                entry = data["entry"]
                found.append(f"error in the console: {entry['text']} {entry.get('url', '')}")
            case "Network.requestWillBeSent":
                url = data["request"]["url"]
                if not url.startswith((address, "data:", "blob:", "about:")):
                    found.append(f"asks another host: {url}")
    return found


def look_at(browser: Browser, url: str, width: int, address: str) -> tuple[list[str], int]:
    """Opens a page in a window of a width; returns what is wrong, and how high the page is."""
    browser.events.clear()
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=width < 600,
    )
    browser.call("Page.navigate", url=url)
    browser.wait_for("Page.loadEventFired")
    answer = browser.call(
        "Runtime.evaluate", expression=LOOK, awaitPromise=True, returnByValue=True
    )
    seen = answer["result"]["value"]
    found = [f"broken image {source}" for source in seen["broken"]]
    if seen["width"] > seen["window"] or seen["protruding"]:
        names = ", ".join(seen["protruding"]) or "something"
        found.append(f"{seen['width']} px wide in a window of {seen['window']} px: {names}")
    return found + from_events(browser.events, address), seen["height"]


def photograph(browser: Browser, width: int, height: int, path: Path) -> None:
    """Writes a picture of the whole page."""
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 16000), "scale": 1}
    picture = browser.call(
        "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(picture["data"]))


def pages_of(site: Path) -> list[str]:
    """Addresses of all pages, relative to the site."""
    found = (path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return sorted(name.removesuffix("index.html") for name in found)


def check(site: Path, program: str, screenshots: Path | None = None) -> list[str]:
    """Opens all pages at all widths; returns one line per fault."""
    faults = []
    with tempfile.TemporaryDirectory() as profile, served(site) as address:
        browser = Browser(program, profile)
        try:
            for page in pages_of(site):
                for width in WIDTHS:
                    found, height = look_at(browser, address + page, width, address)
                    faults += [f"{page or 'index'} at {width} px: {one}" for one in found]
                    if screenshots:
                        name = page.strip("/").replace("/", "_").removesuffix(".html") or "index"
                        photograph(browser, width, height, screenshots / f"{name}_{width}.png")
        finally:
            browser.close()
    return faults


def main(arguments: list[str] | None = None) -> int:
    """Checks the site and prints the faults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="folder of the built site")
    parser.add_argument("--screenshots", type=Path, help="folder to write pictures of all pages to")
    parser.add_argument("--require", action="store_true", help="fail where there is no browser")
    options = parser.parse_args(arguments)
    if not pages_of(options.site):
        sys.stdout.write(f"check_pages: {options.site} has no pages; run `make docs` first.\n")
        return 1
    program = find_browser()
    if program is None:
        sys.stdout.write(NO_BROWSER + "\n")
        return 1 if options.require else 0
    faults = check(options.site, program, options.screenshots)
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    count = len(pages_of(options.site))
    sizes = " and ".join(map(str, WIDTHS))
    sys.stdout.write(f"check_pages: {count} pages at {sizes} px, {len(faults)} faults.\n")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
