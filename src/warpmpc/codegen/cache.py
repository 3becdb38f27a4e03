"""Generated Python modules on disk, found by the hash of their content.

Reads: a key and a function that writes the source.  Produces: the imported module.  Files are
written atomically and checked when they are read, so that processes may share a folder and a
damaged file costs nothing but time.

Code that another user could have written is not run.  A folder is trusted if only this user and
root can change its entries, and if the same holds for all folders above it.  In a folder with the
sticky bit, such as /tmp, others cannot touch what is ours.  Group access counts as foreign, unless
the group is the user's private one, which has the user's name and no other member.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

from warpmpc._version import __version__

CACHE_VARIABLE = "WARPMPC_CACHE_DIR"
_SEAL = "# sha256 "
_ROOT = 0
_PRIVATE = 0o700


def cache_folder() -> Path:
    """Folder of generated modules: $WARPMPC_CACHE_DIR, or one below the user's cache folder."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser() / __version__
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "warpmpc" / __version__


def load_module(name: str, key: str, make_source: Callable[[], str]) -> ModuleType:
    """Module `name` whose content hashes to `key`; `make_source` makes it unless it is cached."""
    path = _trusted_folder() / f"{name}_{key[:24]}.py"
    text = _read(path)
    if text is None:
        text = _sealed(make_source())
        path = _write(path, text)
    return _import(f"warpmpc_generated_{name}_{key[:24]}", path, text)


def load_text(name: str, key: str, lost: str) -> str | None:
    """Source stored under a name and key, None if there is none.

    Args:
        name: Kind of source.
        key: Hash of what it belongs to.
        lost: What happens without it, for the warning about a damaged file.
    """
    text = _read(_source_path(name, key), lost)
    return None if text is None else text.rpartition(_SEAL)[0]


def store_text(name: str, key: str, text: str) -> None:
    """Stores source for later processes, or warns if that is impossible."""
    path = _source_path(name, key)
    try:
        _write_atomically(path, _sealed(text))
    except OSError as error:
        _warn(
            f"{path} cannot be written ({error}) and is lost afterwards.  Set {CACHE_VARIABLE} to "
            "a folder that can be written."
        )


def _source_path(name: str, key: str) -> Path:
    return _trusted_folder() / f"{name}_{key[:24]}.txt"


def _trusted_folder() -> Path:
    """The folder of generated modules, or a temporary one if others could write to it."""
    folder = cache_folder()
    reason = distrusted_folder(folder)
    if reason is None:
        return folder
    fallback = _temporary_folder()
    _warn(
        f"Code in {folder} is not run, because {reason}; generated code goes to {fallback} and is "
        f"lost afterwards.  Take the right to write from others (chmod go-w), or set "
        f"{CACHE_VARIABLE} to a folder of your own."
    )
    return fallback


def _sealed(text: str) -> str:
    return f"{text}{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n"


def _read(path: Path, lost: str = "its code is generated again") -> str | None:
    """Content of a file, None if there is none, if it is damaged, or if others could write it."""
    try:
        with path.open(encoding="utf-8") as file:
            writer = distrusted_file(os.fstat(file.fileno()))
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        _warn(f"{path} cannot be read ({error}); {lost}.")
        return None
    if writer is not None:
        _warn(f"{path} {writer}; {lost}.")
        return None
    content, seal, _ = text.rpartition(_SEAL)
    if not seal or _sealed(content) != text:
        _warn(f"{path} is damaged; {lost}.")
        return None
    return text


def _write(path: Path, text: str) -> Path:
    """Writes a file and returns its path: a temporary one where the folder is not writable."""
    try:
        return _write_atomically(path, text)
    except OSError as error:
        fallback = _temporary_folder()
        _warn(
            f"{path.parent} is not writable ({error}); generated code goes to {fallback} and is "
            f"lost afterwards.  Set {CACHE_VARIABLE} to a folder that can be written."
        )
        return _write_atomically(fallback / path.name, text)


def _write_atomically(path: Path, text: str) -> Path:
    make_private_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


@cache
def _temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="warpmpc_"))


def _import(name: str, path: Path, text: str) -> ModuleType:
    """Runs source as a module whose file is `path`, where Warp looks for it."""
    module = ModuleType(name)
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def distrusted_folder(folder: Path) -> str | None:
    """Other users who could change entries of a folder or replace it; None if there are none.

    Args:
        folder: A folder, or where one will be made: what does not exist yet is not looked at.
    """
    if not hasattr(os, "getuid"):  # another system, with other rules
        return None
    real = Path(os.path.realpath(folder))
    for part in (real, *real.parents):
        try:
            found = part.lstat()
        except OSError:
            continue
        sticky = part != real and bool(found.st_mode & stat.S_ISVTX)
        writer = _foreign_writer(found, sticky=sticky)
        if writer is not None:
            return f"{part} {writer}"
    return None


def distrusted_file(found: os.stat_result) -> str | None:
    """Other users who could write a file in a trusted folder; None if there are none.

    Args:
        found: Status of the opened file.
    """
    return _foreign_writer(found) if hasattr(os, "getuid") else None


def make_private_folder(folder: Path) -> None:
    """Makes a folder; those that are missing belong to this user alone.

    Raises:
        OSError: It cannot be made, or another user has been faster.
    """
    missing = [part for part in (folder, *folder.parents) if not part.exists()]
    for part in reversed(missing):
        part.mkdir(mode=_PRIVATE, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises where something else is in its place
    reason = distrusted_folder(folder)
    if reason is not None:
        raise PermissionError(reason)


def _foreign_writer(found: os.stat_result, *, sticky: bool = False) -> str | None:
    if found.st_uid not in (_ROOT, os.getuid()):
        return f"belongs to the user with number {found.st_uid}"
    if sticky:
        return None
    if found.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid):
        return f"can be written by the group with number {found.st_gid}"
    return None


@cache
def _is_private_group(number: int) -> bool:
    """Whether a group is root's, or has the user's name and no other member."""
    import grp
    import pwd

    if number == _ROOT:
        return True
    try:
        user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(number)
    except KeyError:  # a user or group without a name
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
