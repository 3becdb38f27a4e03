"""Files that are there as a whole or not at all, whatever interrupts the writer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from warpmpc._errors import SettingsError


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """A file to write in place of `path`, which changes only once everything is written.

    ```python
    with replaced("rows.json") as partial:
        partial.write_text(text)
    ```

    Args:
        path: The file; its folder is made if need be.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the last step is a rename; the same suffix, because writers look
    # at it.
    partial = path.with_name(f".{path.stem}-{uuid4().hex[:8]}{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """Raises if a file cannot be written, before the work is done.

    Args:
        path: The file; its folder is made if need be.
    """
    path = Path(path)
    probe = path.with_name(f".{path.stem}-{uuid4().hex[:8]}{path.suffix}")
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}.") from error
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; name a file.")
