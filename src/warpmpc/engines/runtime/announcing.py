"""Says what is built while a caller waits for the first call of a solver.

A first call compiles kernels and a program, which takes seconds.  On a terminal a line on standard
error shows what is under way and for how long; it appears only after a second and is removed at
the end.  Elsewhere one line goes to the log.  Calls for which everything is there cost nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

QUIET_VARIABLE = "WARPMPC_QUIET"
CLEAR_LINE = "\r\033[K"
_LOG = logging.getLogger(__name__)


class Announcer:
    """The calls under way, and the kernels that they have loaded or built.

    Attributes:
        built: Kernels that this process has compiled.
    """

    def __init__(self, stream: TextIO | None = None, delay_s: float = 1.0, interval_s: float = 0.1):
        """Draws on a stream.

        Args:
            stream: None: standard error, as it is when a call begins.
            delay_s: What is faster shows nothing.
            interval_s: Time between two pictures of the line.
        """
        self._given, self._delay, self._interval = stream, delay_s, interval_s
        self._lock = threading.RLock()
        self._depth, self._muted = 0, 0
        self.built = 0
        self._ready: list[str] = []
        self._new: list[str] = []
        self._doing: list[str] = []
        self._afterwards: list[Callable[[], None]] = []
        self._since = 0.0
        self._ticker: _Ticker | None = None

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of a solver, which may load kernels; calls inside of calls belong to it."""
        with self._lock:
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if not self._depth and (self._ready or self._afterwards):
                    self._finish()

    def afterwards(self, action: Callable[[], None]) -> bool:
        """Has an action done once when the call under way ends; False if there is none."""
        with self._lock:
            if self._depth and action not in self._afterwards:
                self._afterwards.append(action)
            return self._depth > 0

    @contextmanager
    def kernel(self, name: str, *, is_new: bool) -> Iterator[None]:
        """The loading of a kernel.

        Args:
            name: Its name.
            is_new: Whether it has to be compiled.
        """
        with self.call():
            with self._lock:
                self._begin()
                self._ready.append(name)
                if is_new:
                    self._new.append(name)
                    self._doing.append(name)
            try:
                yield
                self.built += is_new
            finally:
                if is_new:
                    self._doing.remove(name)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Nothing is drawn: a command has a display of its own."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    def line(self) -> str:
        """What is under way."""
        doing = list(self._doing)
        seconds = time.monotonic() - self._since
        if doing:
            what = f"compiling kernel {len(self._new)}: {doing[0]}"
        else:
            what = f"{len(self._ready)} kernels are ready, preparing the first call"
        return f"warpmpc: {what} ({seconds:.0f} s)"

    def _begin(self) -> None:
        if self._ready:
            return
        self._since = time.monotonic()
        stream = self._given or sys.stderr
        if _is_quiet() or self._muted or stream is None or not stream.isatty():
            return
        self._ticker = _Ticker(self.line, stream, self._delay, self._interval)

    def _finish(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        if self._new and not _is_quiet():
            _LOG.info(
                "compiled %d of %d kernels for the first call in %.1f s; later processes find "
                "them in the cache: %s",
                *(len(self._new), len(self._ready), time.monotonic() - self._since),
                ", ".join(self._new),
            )
        self._ticker = None
        self._ready, self._new = [], []
        while self._afterwards:
            self._afterwards.pop()()


class _Ticker:
    """Draws a line from a thread of its own, because compilers do not return to Python for long."""

    def __init__(self, line: Callable[[], str], stream: TextIO, delay_s: float, interval_s: float):
        self._line, self._stream = line, stream
        self._delay, self._interval = delay_s, interval_s
        self._done, self._drawn = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Removes the line."""
        self._done.set()
        self._thread.join()
        if self._drawn:
            self._write(CLEAR_LINE)

    def _run(self) -> None:
        wait = self._delay
        while not self._done.wait(wait):
            self._drawn, wait = True, self._interval
            self._write(f"{CLEAR_LINE}{self._line()}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone, which must not end a solve
            self._done.set()


def _is_quiet() -> bool:
    return os.environ.get(QUIET_VARIABLE, "") not in ("", "0")


ANNOUNCER = Announcer()
