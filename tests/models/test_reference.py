"""Named tuples by reference in compiled kernels."""

from typing import NamedTuple

import numpy as np
import pytest
from numba.core.errors import TypingError

from paceline.models.numba_executor.kernel import entry, kernel
from paceline.models.numba_executor.reference import LOADED_FIELDS, refer


class _Small(NamedTuple):
    values: np.ndarray
    size: int


class _Even(NamedTuple):
    """Fields of one type, which Numba stores as an array."""

    first: int
    second: int


class _Large(NamedTuple):
    a: int
    b: float
    c: bool
    d: np.ndarray
    e: int
    f: int
    g: int
    h: int
    last: _Small


class _Outer(NamedTuple):
    flag: bool
    nothing: None
    small: _Small
    even: _Even
    large: _Large
    table: np.ndarray


@kernel
def _read_large(large, out):
    out[4], out[5], out[6] = large.b, large.last.values[1], large.last.size
    large.d[0] = 7


@entry
def _read(outer, out):
    outer = refer(outer)
    small = outer.small
    out[0], out[1] = small.values[small.size - 1], outer.table[1, 0]
    out[2], out[3] = outer.even.first, outer.even[1]
    if not outer.flag and outer.nothing is None and not outer.large.c:
        _read_large(outer.large, out)


def _outer() -> _Outer:
    large = _Large(1, 0.5, False, np.zeros(2), 2, 3, 4, 5, _Small(np.array([10.0, 11.0]), 12))
    return _Outer(False, None, _Small(np.array([20.0, 21.0]), 2), _Even(30, 31), large, np.array([[1.0], [40.0]]))


def test_fields_are_read_through_a_reference() -> None:
    assert len(_Large._fields) > LOADED_FIELDS >= len(_Small._fields)  # both ways of reading a tuple in a tuple
    outer, out = _outer(), np.zeros(7)
    _read(outer, out)
    assert out.tolist() == [21, 40, 30, 31, 0.5, 11, 12]
    assert outer.large.d[0] == 7  # arrays are those of the caller


@entry
def _ask_for_more(outer):
    return refer(outer).absent


@entry
def _refer_to_a_number(number):
    return refer(number).field


def test_what_has_no_such_field_is_an_error() -> None:
    with pytest.raises(TypingError, match="absent"):
        _ask_for_more(_outer())
    with pytest.raises(TypingError):
        _refer_to_a_number(1)
