"""Conversion of user input to dense CasADi SX columns, with errors that say what is wrong.

Reads: numbers, arrays, lists and CasADi matrices.  Produces: columns of expressions or of symbols,
the symbols that an expression uses, and checks that an expression can be translated and
differentiated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError

# What users may write where an expression is expected; lists may mix numbers and expressions.
ExpressionLike: TypeAlias = ca.SX | ca.DM | np.ndarray | float | Sequence[Any]

# Operations on scalars that have a translation and a derivative.  Those that are not smooth (fabs,
# fmax, floor, comparisons) count: their derivative is that of the branch taken.
_TRANSLATED_NAMES = """
    CONST INPUT OUTPUT ASSIGN LIFT ADD SUB MUL DIV NEG INV SQ TWICE SQRT POW CONSTPOW HYPOT
    EXP EXPM1 LOG LOG1P SIN COS TAN ASIN ACOS ATAN ATAN2 SINH COSH TANH ASINH ACOSH ATANH ERF ERFINV
    FABS SIGN COPYSIGN FMIN FMAX FLOOR CEIL FMOD REMAINDER LT LE EQ NE NOT AND OR IF_ELSE_ZERO
"""
_NAME_OF_CODE: dict[int, str] = {
    getattr(ca, name): name[3:] for name in dir(ca) if name.startswith("OP_")
}
TRANSLATED = {getattr(ca, f"OP_{name}") for name in _TRANSLATED_NAMES.split()}
_REPLACEMENT = {
    "CALL": "a call of a CasADi function that cannot be translated (an interpolant, with "
    "inline=True as well, an external or `never_inline` function); write it out in SX operations, "
    "a table of one argument as ca.pw_lin(x, points, values) or as a polynomial",
    "PRINTME": "printme; remove it",
}


def column(value: ExpressionLike | None, what: str) -> ca.SX:
    """Converts a value to a dense SX column; None becomes the empty column.

    Args:
        value: Number, array, list, DM or SX.
        what: Name of the value in error messages.
    """
    result = _as_sx(value, what)
    if result.is_empty():
        return ca.SX(0, 1)
    if result.shape[1] != 1:
        advice = "transpose it" if result.shape[0] == 1 else "stack its columns by `ca.vec`"
        raise ProblemError(
            f"{what} has shape {tuple(result.shape)} but must be a column; {advice}."
        )
    return ca.densify(result)


def _as_sx(value: Any, what: str) -> ca.SX:
    if value is None:
        return ca.SX(0, 1)
    if isinstance(value, ca.MX):
        raise ProblemError(f"{what} is an MX expression; build it with `ca.SX` instead.")
    if isinstance(value, bool | np.bool_):
        raise ProblemError(f"{what} must be a number or an SX expression, got {value!r}.")
    if isinstance(value, ca.SX | ca.DM):
        return ca.SX(value)
    if isinstance(value, Real):
        return ca.SX(float(value))
    if isinstance(value, list | tuple):
        return ca.vertcat(ca.SX(0, 1), *(_as_sx(entry, what) for entry in value))
    array = np.asarray(value)
    if array.dtype == object and array.ndim == 1 and array.size:
        return _as_sx(array.tolist(), what)
    if array.dtype.kind not in "iuf":
        raise ProblemError(
            f"{what} must be a number, an array or an SX expression, got {type(value).__name__}."
        )
    if array.ndim > 2:
        raise ProblemError(f"{what} has {array.ndim} axes but must be a column.")
    return ca.SX(ca.DM(array.astype(np.float64)))


def scalar(value: ExpressionLike, what: str) -> ca.SX:
    """Converts a value to a dense 1x1 SX expression."""
    result = column(value, what)
    if result.shape != (1, 1):
        raise ProblemError(f"{what} must be a scalar, got shape {tuple(result.shape)}.")
    return result


def sized_column(value: ExpressionLike, size: int, what: str, of: str) -> ca.SX:
    """Converts a value to a column of the given size, for which a scalar is repeated.

    Args:
        value: Number, array, list, DM or SX.
        size: Number of rows of the column.
        what: Name of the value in error messages.
        of: Name of the thing with that many rows in error messages.
    """
    result = column(value, what)
    if result.shape == (1, 1):
        return ca.repmat(result, size, 1)
    if result.numel() != size:
        raise ProblemError(
            f"{what} has {result.numel()} rows but {of} has {size}; give one value per row, or a "
            "scalar for all."
        )
    return result


def symbols(value: ExpressionLike | None, what: str) -> ca.SX:
    """Converts a value to a column of distinct symbols."""
    if value is not None and not isinstance(value, ca.SX | ca.MX | list | tuple):
        raise ProblemError(
            f"{what} must consist of SX symbols (`ca.SX.sym`), got {type(value).__name__}."
        )
    result = column(value, what)
    others = [str(entry) for entry in entries(result) if not entry.is_symbolic()]
    if others:
        raise ProblemError(
            f"{what} must consist of SX symbols (`ca.SX.sym`), but contains {others[0]}."
        )
    repeated = _first_repeated(symbol_keys(result), result)
    if repeated is not None:
        raise ProblemError(f"{what} contains the symbol {repeated!r} twice; list it once.")
    return result


def _first_repeated(keys: list[int], column_: ca.SX) -> str | None:
    seen: set[int] = set()
    for key, entry in zip(keys, entries(column_), strict=True):
        if key in seen:
            return entry.name()
        seen.add(key)
    return None


def entries(column_: ca.SX) -> list[ca.SX]:
    """The rows of a column."""
    rows: Any = column_.elements()  # CasADi's stubs call them SXElem; they are SX
    return rows


def symbol_keys(column_: ca.SX) -> list[int]:
    """One key per symbol of a column; keys are equal for the same symbol only."""
    return [entry.element_hash() for entry in entries(column_)]


def symbol_names(column_: ca.SX) -> list[str]:
    """Names of the symbols of a column."""
    return [entry.name() for entry in entries(column_)]


def used_symbols(expression: ca.SX) -> dict[int, str]:
    """Key and name of every symbol that an expression depends on."""
    return {entry.element_hash(): entry.name() for entry in ca.symvar(expression)}


def is_integer(value: Any, least: int, most: int) -> bool:
    """Whether a value is an integer within limits; a boolean is not."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and least <= int(value) <= most


def flag(value: Any, what: str) -> bool:
    """Returns True or False and refuses all other values."""
    if not isinstance(value, bool | np.bool_):
        raise ProblemError(f"{what} must be True or False, got {value!r}.")
    return bool(value)


def check_disjoint(columns: Mapping[str, ca.SX]) -> None:
    """Refuses columns of symbols that share a symbol."""
    owner: dict[int, str] = {}
    for what, symbols_ in columns.items():
        for key, name in zip(symbol_keys(symbols_), symbol_names(symbols_), strict=True):
            if key in owner:
                raise ProblemError(
                    f"The symbol {name!r} is in both {owner[key]} and {what}; "
                    "make separate symbols for them."
                )
            owner[key] = what


def check_independent(expression: ca.SX, of: ca.SX, what: str, advice: str) -> None:
    """Refuses an expression that depends on some symbols."""
    forbidden = set(symbol_keys(of))
    for key, name in used_symbols(expression).items():
        if key in forbidden:
            raise ProblemError(f"{what} depends on {name!r}; {advice}")


def constants(column_: ca.SX) -> np.ndarray:
    """Values of the constant entries; NaN where an entry depends on symbols."""
    values = [float(e) if e.is_constant() else np.nan for e in entries(column_)]
    return np.array(values, dtype=np.float64)


def check_expressions(expressions: Mapping[str, ca.SX]) -> None:
    """Refuses NaN constants and operations without a translation.

    Args:
        expressions: Columns, by their names in error messages.
    """
    if not any(True for _ in _offences(expressions.values())):
        return
    for what, expression in expressions.items():
        for row, entry in enumerate(entries(expression)):
            for offence in _offences([entry]):
                place = what if expression.numel() == 1 else f"{what}[{row}]"
                raise ProblemError(f"{place} contains {offence}.")


def _offences(expressions: Iterable[ca.SX]) -> Iterator[str]:
    outputs = list(expressions)
    arguments = ca.symvar(ca.vertcat(ca.SX(0, 1), *(ca.vec(e) for e in outputs)))
    function = ca.Function("checked", arguments, outputs)
    codes = operation_codes(function)
    for code in sorted(set(codes) - TRANSLATED):
        name = _NAME_OF_CODE.get(code, str(code))
        yield _REPLACEMENT.get(
            name,
            f"the CasADi operation {name.lower()}, which cannot be translated; write it with "
            "elementary operations",
        )
    if np.any(np.isnan(program_constants(function, codes))):
        yield "the constant NaN; check the numbers it is made of (log of a negative, inf - inf)"


def operation_codes(function: ca.Function) -> list[int]:
    """Operations of the straight-line program of an SX function, in order."""
    return [function.instruction_id(i) for i in range(function.n_instructions())]


def program_constants(function: ca.Function, codes: Sequence[int]) -> np.ndarray:
    """Constants of the program, in order."""
    places = [i for i, code in enumerate(codes) if code == ca.OP_CONST]
    return np.array([function.instruction_constant(i) for i in places], dtype=np.float64)
