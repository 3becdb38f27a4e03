"""Progress on a terminal: written to stderr, and removed when the work is done."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TextIO

from warpmpc.engines.runtime.announcing import ANNOUNCER
from warpmpc.sim.progress import CLEAR_LINE, bar


class Progress:
    """Shows how far a list of steps has come."""

    def __init__(self, total: int, stream: TextIO | None = None):
        """Counts to `total`; silent unless the stream is a terminal."""
        self._total, self._stream = total, stream or sys.stderr
        self._active = self._stream.isatty()

    def show(self, done: int, doing: str) -> None:
        """Draws the bar with the name of the step under way."""
        self._write(f"{CLEAR_LINE}{bar(done, self._total)} {doing}")

    def clear(self) -> None:
        """Removes the bar, so that a line can be printed in its place."""
        self._write(CLEAR_LINE)

    def _write(self, text: str) -> None:
        if self._active:
            self._stream.write(text)
            self._stream.flush()


class Activity:
    """Shows the phase under way and for how long it has been, or how much of it is done.

    ```python
    with Activity() as activity:
        activity.phase("compiling kernels")
        ...
    ```
    """

    def __init__(self, stream: TextIO | None = None, interval_s: float = 0.1):
        """Silent unless the stream is a terminal."""
        self._stream, self._interval = stream or sys.stderr, interval_s
        self._text, self._since, self._share = "", 0.0, ""
        self._muted = ExitStack()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Activity:
        """Begins to draw."""
        self._muted.enter_context(ANNOUNCER.muted())
        if self._stream.isatty():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Removes the line, whatever happened."""
        self._muted.close()
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._stream.write(CLEAR_LINE)
            self._stream.flush()

    def phase(self, text: str) -> None:
        """Begins a phase."""
        self._text, self._since, self._share = text, time.monotonic(), ""

    def report(self, done: int, total: int) -> None:
        """Reports how much of the phase is done."""
        self._share = bar(done, total)

    def _tick(self) -> None:
        """Work may not return to Python for long: the line is drawn by a thread."""
        while not self._done.wait(self._interval):
            seconds = time.monotonic() - self._since
            share = self._share or f"{seconds:5.1f} s"
            self._stream.write(f"{CLEAR_LINE}{share} {self._text}")
            self._stream.flush()
