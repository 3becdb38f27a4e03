"""Everything warpmpc raises on purpose.

User mistakes raise one of these before anything is compiled; numerical outcomes never raise, they
are a status per instance.
"""


class WarpMPCError(Exception):
    """Base class of all errors raised by warpmpc."""


class ProblemError(WarpMPCError):
    """The problem or the data handed to a solver is wrong (shape, dtype, value, name)."""


class PatternError(WarpMPCError):
    """A sparsity pattern cannot be used: not square, unsymmetric, duplicate or missing entries."""


class CodegenError(WarpMPCError):
    """A kernel could not be generated, built or loaded."""


class SettingsError(WarpMPCError):
    """A setting is out of range, unknown, or not honoured by the chosen backend."""
