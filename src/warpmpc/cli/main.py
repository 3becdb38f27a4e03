"""Entry point of `warpmpc`: parses the arguments and hands them to a subcommand.

A subcommand is a module with `HELP`, `EPILOG`, `add_arguments` and `run`.  Those of the library are
in `COMMANDS`; other packages add theirs by entry points of the group `warpmpc.commands`.
Modules import what they need inside `run`, so that `warpmpc --help` stays fast.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from types import FrameType
from typing import NoReturn, Protocol

from warpmpc._errors import WarpMPCError
from warpmpc.cli import info, learn
from warpmpc.cli.arguments import INTERRUPTED, USER_ERROR, Parser, epilog
from warpmpc.cli.environment import version_of

EXAMPLES = """\
  warpmpc info                    what works on this machine
  warpmpc demo cartpole           compile, simulate, draw: cartpole_demo.gif
  warpmpc solve pendulum          solve one batch and say what became of it
  warpmpc bench cartpole          measure, check and draw
  warpmpc learn quadrotor         imitate an MPC by a network, export it as C
  warpmpc COMMAND --help          options and examples of a command
"""


class Command(Protocol):
    """What a subcommand module provides."""

    HELP: str
    EPILOG: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Does the work and returns the exit code."""
        ...


COMMANDS: dict[str, Command] = {"info": info, "learn": learn}
COMMAND_GROUP = "warpmpc.commands"


def commands() -> dict[str, Command]:
    """The subcommands of the library and those that installed packages add."""
    return {**COMMANDS, **{entry.name: entry.load() for entry in entry_points(group=COMMAND_GROUP)}}


def build_parser(available: Mapping[str, Command] | None = None) -> argparse.ArgumentParser:
    """The parser with the given subcommands, or with all of them."""
    available = commands() if available is None else available
    parser = Parser(
        prog="warpmpc",
        description="Batched model predictive control on the GPU, and on the CPU where there is "
        "none.",
        epilog=epilog(EXAMPLES),
    )
    version = version_of("warpmpc") or "(source tree)"
    parser.add_argument("--version", action="version", version=f"warpmpc {version}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in available.items():
        one = subparsers.add_parser(
            name, help=command.HELP, description=command.HELP, epilog=command.EPILOG
        )
        command.add_arguments(one)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; a mistake of the user is one line on stderr, not a traceback."""
    available = commands()
    args = build_parser(available).parse_args(argv)
    with _noticed_interrupts() as interrupted:
        try:
            code = available[args.command].run(args)
            sys.stdout.flush()
        except KeyboardInterrupt:
            code = _interrupted(args.command)
        except BrokenPipeError:  # the reader (`| head`) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except (WarpMPCError, OSError) as error:  # a mistake, or a file that cannot be used
            print(f"warpmpc {args.command}: {error}", file=sys.stderr)
            code = USER_ERROR
        except Exception:
            # Ctrl-C inside of a function that XLA calls arrives as an error of XLA.
            if not interrupted.is_set():
                raise
            code = _interrupted(args.command)
    if code == INTERRUPTED and argv is None:
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """Ends the process while kernels may still run; a regular end would pull the ground from them.

    Only where this module was started as a program.
    """
    for found in gc.get_objects():
        if isinstance(found, tempfile.TemporaryDirectory):
            with suppress(OSError):
                found.cleanup()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _interrupted(command: str) -> int:
    print(f"\nwarpmpc {command}: interrupted", file=sys.stderr)
    return INTERRUPTED


@contextmanager
def _noticed_interrupts() -> Iterator[threading.Event]:
    """Tells whether Ctrl-C was pressed, whatever became of the exception it raised."""
    noticed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noticed  # signals belong to the main thread
        return

    def notice(number: int, frame: FrameType | None) -> None:
        noticed.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, notice)
    try:
        yield noticed
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
