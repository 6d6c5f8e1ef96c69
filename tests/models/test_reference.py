"""Named tuples by reference in compiled kernels."""

from typing import NamedTuple

import numpy as np
import pytest
from numba.core.errors import TypingError

from paceline.models.compiled.kernel import entry, kernel
from paceline.models.numba_executor.reference import LOADED_FIELDS, Kept, refer


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
def _read_kept(outer, out):
    out[2], out[3] = outer.even.first, outer.even[1]
    out[0], out[1] = outer.small.values[outer.small.size - 1], outer.table[1, 0]
    if not outer.flag and outer.nothing is None and not outer.large.c:
        _read_large(outer.large, out)


def test_a_kept_tuple_is_read_by_one_pass_after_another() -> None:
    outer, out = _outer(), np.zeros(7)
    kept = Kept(outer)
    for d, more in ((0.0, 0), (3.0, 5)):
        outer.large.d[0], outer.table[1, 0] = d, 40 + more  # what arrays hold may change
        _read_kept(kept, out)
        assert out.tolist() == [21, 40 + more, 30, 31, 0.5, 11, 12]
        assert outer.large.d[0] == 7
    _read_kept(Kept(outer._replace(even=_Even(1, 2))), out)
    assert out[2:4].tolist() == [1, 2]


class _Odd(NamedTuple):
    """Numbers of different sizes, in an order that needs padding before, inside and after."""

    head: bool
    inner: tuple[bool, np.float32]
    middle: np.int32
    wide: float
    tail: bool


@entry
def _read_odd(pair, out):
    odd = pair.first
    out[0], out[1], out[2], out[3], out[4] = odd.wide, odd.middle, odd.inner[1], odd.head, odd.tail
    out[5], out[6] = pair.second.middle, pair.second.tail


def test_numbers_of_different_sizes_lie_where_kernels_read_them() -> None:
    class Pair(NamedTuple):
        first: _Odd
        second: _Odd

    one = _Odd(True, (False, np.float32(0.25)), np.int32(-7), 1e300, True)
    out = np.zeros(7)
    _read_odd(Kept(Pair(one, one._replace(middle=np.int32(9), tail=False))), out)
    assert out.tolist() == [1e300, -7, 0.25, 1, 1, 9, 0]


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
