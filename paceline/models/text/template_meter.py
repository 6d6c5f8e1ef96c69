"""Limits of a chat template while it renders one text: steps, characters produced, seconds of processor time.

Operations whose result can be much larger than their input (``replace``, ``join``) are checked before they run. Not for
the Jinja environment that calls these checks (`template_sandbox.py`).
"""

import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

MOST_CHARACTERS = 1 << 24
"""Longest text that a template may produce; more than the longest context holds."""
MOST_MADE = 1 << 28
"""Most characters of all intermediate texts; enough to join a conversation of 400,000 message by message."""
MOST_ITEMS = 1 << 20
"""Longest list."""
MOST_STEPS = 2_000_000
"""Lines of compiled template run for one prompt; a conversation of ten thousand messages takes a tenth."""
MOST_SECONDS = 10.0
"""Processor time of the thread; an ordinary prompt takes a thousandth."""
_STEPS_PER_LOOK = 64
_LARGEST_ARGUMENT = 1 << 20
_LARGEST_NUMBER, _LARGEST_POWER = 4096, 64
"""Bits of a product and of a power."""
_ITEM = 2
"""Characters that an item of a list counts for, and the least that any value adds to a text."""
_OTHER = 64
_NUMBER = re.compile(r"\d+")
_MOST_COMPARED = 1 << 30
"""Characters of a text times characters to strip from it."""


class TemplateTooLarge(TemplateError):
    """A template exceeds a limit of this module."""


class _Meter(threading.local):
    """Usage of the text that this thread renders."""

    made = 0
    deadline = float("inf")


_METER = _Meter()


@contextmanager
def metered() -> Iterator[None]:
    """A context in which template code of this thread is metered for one text; it raises `TemplateTooLarge`."""
    steps = 0

    def in_template(frame: Any, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > MOST_STEPS:
            raise TemplateTooLarge("it runs without end")
        if steps % _STEPS_PER_LOOK == 0:
            check_time()
        return in_template

    def on_call(frame: Any, event: str, arg: Any) -> Any:
        return in_template(frame, event, arg) if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    _METER.made, _METER.deadline = 0, time.thread_time() + MOST_SECONDS
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)
        _METER.deadline = float("inf")


def check_time() -> None:
    """Raise `TemplateTooLarge` after `MOST_SECONDS`."""
    if time.thread_time() > _METER.deadline:
        raise TemplateTooLarge("it runs without end")


def charged(result: Any) -> Any:
    """`result`, after adding its size to the total. Raises TemplateTooLarge if either is too large."""
    check_time()
    if isinstance(result, str):
        _charge(len(result), MOST_CHARACTERS)
    elif isinstance(result, list | tuple):
        _charge(_ITEM * len(result), _ITEM * MOST_ITEMS)
    elif isinstance(result, bytes | bytearray):
        raise TemplateTooLarge("it makes bytes, which no text needs")
    return result


def _charge(size: int, most: int) -> None:
    _METER.made += size
    if size > most or _METER.made > MOST_MADE:
        raise TemplateTooLarge("it makes a text without end")


def fits(size: int) -> None:
    """Raise `TemplateTooLarge` if a result of `size` characters would be too large."""
    if size > MOST_CHARACTERS:
        raise TemplateTooLarge("it makes a text without end")


def joined(pieces: Iterable[str]) -> str:
    """The pieces joined into one text. Raises TemplateTooLarge."""
    taken, size = [], 0
    for piece in pieces:
        size += len(piece)
        fits(size)
        taken.append(piece)
    return charged("".join(taken))


def text_size(value: Any, indent: int = 0) -> int:
    """Approximate length of `value` as text, with `indent` more per item and level. Raises TemplateTooLarge."""
    total, items, left = 0, 0, [(value, 0)]
    while left:
        one, depth = left.pop()
        items += 1
        inner: list[Any] = []
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, int):
            total += one.bit_length() // 3
        elif isinstance(one, Namespace):
            inner = [one._Namespace__attrs]
        elif isinstance(one, Mapping):
            inner = [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            inner = list(one)
        else:
            total += _OTHER
        total += _ITEM + indent * depth + len(inner)
        fits(total if items <= MOST_ITEMS else MOST_CHARACTERS + 1)
        left += [(each, depth + 1) for each in inner]
    return total


def check_arguments(values: Iterable[Any]) -> None:
    """Refuse huge numbers as arguments: they produce huge texts (``ljust``). Raises TemplateTooLarge."""
    for value in values:
        if isinstance(value, int) and abs(value) > _LARGEST_ARGUMENT:
            raise TemplateTooLarge(f"it calls a function with {shortened(value)}")


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse `left operator right` if its result would be too large. Raises TemplateTooLarge."""
    if operator == "%" and isinstance(left, str):
        check_format("%", left, right)
    sizes = [len(each) if isinstance(each, str | list | tuple) else each for each in (left, right)]
    if operator not in ("*", "**") or not all(isinstance(size, int) for size in sizes):
        return
    bits = [abs(size).bit_length() for size in sizes]
    if operator == "**" and abs(sizes[1]) * bits[0] > _LARGEST_POWER:
        raise TemplateTooLarge("it computes a number without end")
    if sizes == [left, right]:
        if sum(bits) > _LARGEST_NUMBER:
            raise TemplateTooLarge("it computes a number without end")
        return
    fits(abs(sizes[0] * sizes[1]))


def check_format(sign: str, form: str, values: Any) -> None:
    """Refuse a format string whose fields, which begin with `sign`, could expand `values` beyond the limit."""
    if sign == "%" and "*" in form:
        raise TemplateTooLarge("it formats with a width that is asked for")
    widths = [len(number) for number in _NUMBER.findall(form)]
    if max(widths, default=0) > len(str(_LARGEST_ARGUMENT)):
        raise TemplateTooLarge("it formats numbers without end")
    width = max(map(int, _NUMBER.findall(form)), default=0)
    given = sum(value for value in values if isinstance(value, int)) if isinstance(values, tuple) else 0
    fits(len(form) + form.count(sign) * (width + abs(given) + text_size(values)))


def check_method(name: str, text: str, args: tuple[Any, ...]) -> None:
    """Refuse a method of `text` (or the filter of that name) whose result or running time would be too large."""
    if name in ("format", "format_map"):
        check_format("{", text, args)
    elif name == "join":
        fits(text_size(args[0]) + len(args[0]) * len(text))
    elif name == "replace" and all(isinstance(each, str) for each in args[:2]):
        fits(len(text) + text.count(args[0]) * max(0, len(args[1]) - len(args[0])))
    elif name == "translate":
        fits(len(text) * text_size(args))
    elif name in ("expandtabs", "indent"):
        counted = text.count("\t" if name == "expandtabs" else "\n")
        fits(len(text) + counted * max([8, *(each if isinstance(each, int) else len(each) for each in args)]))
    elif name in ("strip", "lstrip", "rstrip", "trim") and args and isinstance(args[0], str):
        if len(text) * len(args[0]) > _MOST_COMPARED:
            raise TemplateTooLarge("it strips a text without end")
    elif name == "striptags":
        raise TemplateTooLarge("it strips tags, which takes the square of their number")


def shortened(value: object) -> str:
    """`value` as text for an error message, at most about 200 characters."""
    if isinstance(value, int) and value.bit_length() > _LARGEST_NUMBER:
        return f"a number of {value.bit_length()} bits"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
