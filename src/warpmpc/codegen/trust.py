"""Whether files of a cache can be trusted: code that another user could write is not run.

Reads: owners and modes of a path and of the folders above it.  Produces: the reason why a path
cannot be trusted, or None.

A folder is trusted if only this user and root can change its entries, and if the same holds for all
folders above it.  In a folder with the sticky bit, such as /tmp, others cannot touch what is ours.
Group access counts as foreign, unless the group is the user's private one, which has the user's
name and no other member.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

ROOT = 0
PRIVATE = 0o700


def distrusted_folder(folder: Path) -> str | None:
    """Who else could change entries of a folder or replace it; None if nobody can.

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
    """Who else could write a file in a trusted folder; None if nobody can.

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
        part.mkdir(mode=PRIVATE, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises where something else is in its place
    reason = distrusted_folder(folder)
    if reason is not None:
        raise PermissionError(reason)


def _foreign_writer(found: os.stat_result, *, sticky: bool = False) -> str | None:
    if found.st_uid not in (ROOT, os.getuid()):
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

    if number == ROOT:
        return True
    try:
        user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(number)
    except KeyError:  # a user or group without a name
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
