"""The C enum of status codes has the values of the Python one."""

import re

import pytest

from warpmpc import Status
from warpmpc._conventions import INFINITY
from warpmpc.codegen.native.status import DEFINE_INFINITE, STATUS_ENUM, status_enum


def values(enum):
    """What C makes of an enum: a name without a value is one more than the name before."""
    inside = re.fullmatch(r"enum \{ (.*) \};", enum)
    assert inside
    found, before = {}, -1
    for entry in inside[1].split(", "):
        name, _, value = entry.partition(" = ")
        found[name] = before = int(value) if value else before + 1
    return found


def native_name(code):
    return "RUNNING" if code is Status.MAX_ITER else code.name


@pytest.mark.parametrize(
    "codes",
    [
        tuple(Status),
        (Status.SOLVED,),
        (Status.NON_FINITE, Status.INVALID_BOUNDS),
        (Status.SOLVED, Status.MAX_ITER, Status.NON_FINITE, Status.INVALID_BOUNDS),
    ],
)
def test_enum_has_the_values_of_python(codes):
    assert values(status_enum(codes)) == {native_name(code): int(code) for code in codes}


def test_default_enum_has_all_codes():
    assert values(STATUS_ENUM) == {native_name(code): int(code) for code in Status}


def test_infinite_is_the_limit_of_python():
    name, value = re.fullmatch(r"#define (\w+) \(SCALAR\)(\S+)\n", DEFINE_INFINITE).groups()
    assert name == "INFINITE"
    assert float(value) == INFINITY
