"""Errors of data sets and policies on disk."""

from __future__ import annotations

from warpmpc._errors import WarpMPCError


class DataError(WarpMPCError):
    """A data set, a checkpoint or a policy on disk cannot be used or written."""
