"""Entry point of `warpmpc`: parses the arguments and hands them to a subcommand.

A subcommand is a module with `HELP`, `add_arguments` and `run`; add it to `COMMANDS`.  Modules
import what they need inside `run`, so that `warpmpc --help` stays fast.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from warpmpc._errors import WarpMPCError
from warpmpc.cli import bench, demo, info
from warpmpc.cli.environment import version_of

USER_ERROR = 2  # what argparse exits with, too


class Command(Protocol):
    """What a subcommand module provides."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Does the work and returns the exit code."""
        ...


COMMANDS: dict[str, Command] = {
    "info": info,
    "demo": demo,
    "bench": bench,
}


def build_parser() -> argparse.ArgumentParser:
    """The parser with all registered subcommands."""
    parser = argparse.ArgumentParser(
        prog="warpmpc", description="Batched model predictive control on the GPU."
    )
    version = version_of("warpmpc") or "(source tree)"
    parser.add_argument("--version", action="version", version=f"warpmpc {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(
            commands.add_parser(name, help=command.HELP, description=command.HELP)
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; a mistake of the user is one line on stderr, not a traceback."""
    args = build_parser().parse_args(argv)
    try:
        code = COMMANDS[args.command].run(args)
        sys.stdout.flush()
    except WarpMPCError as error:
        print(f"warpmpc {args.command}: {error}", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a file that cannot be written or read
        print(f"warpmpc {args.command}: {error}", file=sys.stderr)
        return USER_ERROR
    return code


if __name__ == "__main__":
    sys.exit(main())
