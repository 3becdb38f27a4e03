"""What the subcommands share: help that teaches, names with suggestions, devices, exit codes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NoReturn

from warpmpc._errors import SettingsError

DONE, WRONG_RESULT, USER_ERROR, INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = """\
exit codes:
  0    done, and the result is right
  1    done, but a result is wrong or an instance failed
  2    wrong usage, an unknown name, or a file that cannot be written (one line on stderr)
  130  interrupted by Ctrl-C; no half-written file is left
"""
DEVICES = ("cpu", "cuda")
_INVALID_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest what was probably meant."""

    def __init__(self, **options: Any):
        """Keeps the line breaks of help texts."""
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Adds a suggestion to an error about a name."""
        found = _INVALID_CHOICE.search(message)
        if found:
            names = [name.strip(" '") for name in found[2].split(",")]
            message += suggestion(found[1], names)
        super().error(message)


def epilog(examples: str) -> str:
    """Help after the options: examples, and the exit codes of all commands."""
    return f"examples:\n{examples}\n{EXIT_CODES}"


def suggestion(name: str, names: Iterable[str]) -> str:
    """Which of some names was probably meant, as the end of a message; may be empty."""
    close = get_close_matches(name, list(names), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_name(name: str, names: Iterable[str], what: str) -> None:
    """Refuses an unknown name, and lists the known ones."""
    known = list(names)
    if name not in known:
        listed = ", ".join(known)
        raise SettingsError(
            f"Unknown {what} {name!r}; there are {listed}.{suggestion(name, known)}"
        )


def short_names() -> dict[str, str]:
    """Systems by their names on the command line: the alias of a system, if it has one."""
    from warpmpc import systems

    return {systems.describe(name).alias or name: name for name in systems.SYSTEMS}


def full_name(name: str) -> str:
    """The key of a system in `SYSTEMS` if the name is its alias, otherwise the name itself."""
    return short_names().get(name) or name


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declares --device."""
    parser.add_argument(
        "--device", choices=DEVICES, help="where to run (default: cuda if there is one, else cpu)"
    )


def device_of(name: str | None) -> Any:
    """The first JAX device of a kind; None: the default one."""
    import jax

    if name is None:
        return jax.devices()[0]
    try:
        return jax.devices("gpu" if name == "cuda" else name)[0]
    except RuntimeError:
        from warpmpc.cli.environment import features

        reason = next(f.detail for f in features(on_cuda=False) if f.name == "CUDA")
        raise SettingsError(f"--device {name}: there is none.  {reason}") from None
