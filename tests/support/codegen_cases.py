"""Tables of the tests of code generation: every elementary operation, arguments at the edges.

CasADi's own evaluation is the oracle.
"""

from __future__ import annotations

from functools import cache

import casadi as ca
import numpy as np

from warpmpc.codegen.ir import BINARY, Op

OPERATIONS = {
    Op.ADD: lambda x, y: x + y,
    Op.SUB: lambda x, y: x - y,
    Op.MUL: lambda x, y: x * y,
    Op.DIV: lambda x, y: x / y,
    Op.NEG: lambda x: -x,
    Op.EXP: ca.exp,
    Op.LOG: ca.log,
    Op.POW: lambda x, y: x**y,
    Op.SQRT: ca.sqrt,
    Op.SQ: lambda x: x * x,
    Op.TWICE: lambda x: 2 * x,
    Op.SIN: ca.sin,
    Op.COS: ca.cos,
    Op.TAN: ca.tan,
    Op.ASIN: ca.asin,
    Op.ACOS: ca.acos,
    Op.ATAN: ca.atan,
    Op.LT: lambda x, y: x < y,
    Op.LE: lambda x, y: x <= y,
    Op.EQ: lambda x, y: x == y,
    Op.NE: lambda x, y: x != y,
    Op.NOT: ca.logic_not,
    Op.AND: ca.logic_and,
    Op.OR: ca.logic_or,
    Op.FLOOR: ca.floor,
    Op.CEIL: ca.ceil,
    Op.FMOD: ca.fmod,
    Op.FABS: ca.fabs,
    Op.SIGN: ca.sign,
    Op.COPYSIGN: ca.copysign,
    Op.IF_ELSE_ZERO: lambda x, y: ca.if_else(x, y, 0),
    Op.ERF: ca.erf,
    Op.FMIN: ca.fmin,
    Op.FMAX: ca.fmax,
    Op.INV: lambda x: 1 / x,
    Op.SINH: ca.sinh,
    Op.COSH: ca.cosh,
    Op.TANH: ca.tanh,
    Op.ASINH: ca.asinh,
    Op.ACOSH: ca.acosh,
    Op.ATANH: ca.atanh,
    Op.ATAN2: ca.atan2,
    Op.ERFINV: ca.erfinv,
    Op.LOG1P: ca.log1p,
    Op.EXPM1: ca.expm1,
    Op.HYPOT: ca.hypot,
    Op.REMAINDER: ca.remainder,
}

_EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 3, -3, 100, -100, 1e5, 1e10]
_EDGES += [0.5, -0.5, 2.5, -2.5, 0.3, -0.3, 1.7, -1.7, 1e-9, -1e-9]
EDGES = {
    "float32": np.array([*_EDGES, 1e30, -1e30, 1e-30, -1e-30], dtype=np.float32),
    "float64": np.array([*_EDGES, 1e300, -1e300, 1e-300, -1e-300]),
}
RELATIVE = {"float32": 1e-6, "float64": 1e-13}  # eight units in the last place, and a thousand
# CasADi's own approximation is the less accurate one.
CASADI_ERFINV = 1e-9


def expression(op: Op, x: ca.SX, y: ca.SX) -> ca.SX:
    """One operation of the symbols."""
    return OPERATIONS[op](x, y) if op in BINARY else OPERATIONS[op](x)


@cache
def all_operations() -> ca.Function:
    """``[x, y] -> `` one output per operation, in the order of `Op`."""
    xy = ca.SX.sym("xy", 2)
    return ca.Function("all", [xy], [ca.vertcat(*(expression(op, xy[0], xy[1]) for op in Op))])


def edge_pairs(dtype: str) -> np.ndarray:
    """All pairs of edge values, ``[n, 2]``."""
    edges = EDGES[dtype]
    return np.stack([a.ravel() for a in np.meshgrid(edges, edges)], axis=1)


@cache
def casadi_at_edges(dtype: str) -> np.ndarray:
    """What CasADi computes in float64, rounded: ``[n, number of operations]``."""
    pairs = edge_pairs(dtype).astype(np.float64)
    values = np.array(all_operations().map(len(pairs))(pairs.T)).T
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def differences(got: np.ndarray, op: Op, dtype: str) -> list[tuple[float, ...]]:
    """Arguments at which an operation differs from CasADi, with both results.

    Results that are subnormal or not finite in the dtype count as zero: XLA flushes them.
    """
    want = casadi_at_edges(dtype)[:, op]
    tiny = np.finfo(dtype).tiny
    relative = CASADI_ERFINV if op is Op.ERFINV else 0.0
    with np.errstate(invalid="ignore"):
        equal = np.isclose(
            got, want, rtol=max(RELATIVE[dtype], relative), atol=tiny, equal_nan=True
        )
        equal &= (np.signbit(got) == np.signbit(want)) | np.isnan(want)
    if op in (Op.FMIN, Op.FMAX):  # C does not say which zero is the smaller one
        equal |= (got == 0) & (want == 0)
    bad = np.flatnonzero(~equal)
    pairs = edge_pairs(dtype)
    return [(*map(float, pairs[i]), float(got[i]), float(want[i])) for i in bad]
