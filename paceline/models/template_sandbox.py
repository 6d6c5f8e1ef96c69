"""A Jinja environment in which a model's chat template can neither hang nor fill the memory.

Templates come with weights from anywhere. Jinja's own sandbox keeps them from Python's internals; here sizes and steps
are bounded too. Not for what templates mean (`chat_template.py`).
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_CHARACTERS = 1 << 24
"""Of any text a template makes; more than the longest context holds."""
MOST_STEPS = 2_000_000
"""Lines of compiled template run for one prompt; a conversation of ten thousand messages takes a tenth."""
_LARGEST_ARGUMENT = 1 << 20
_HUGE_WIDTH = re.compile(r"\d{5,}|\*")


class TemplateTooLarge(TemplateError):
    """A template that would run or grow without end."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with bounds on texts and on numbers that make texts."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        # Without the optimiser, which would compute constant expressions while it compiles.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], optimized=False)
        self.filters = {name: _bounded(each) for name, each in self.filters.items()}
        self.concat = _join

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, where the result has a size to speak of."""
        _check_operands(operator, left, right)
        return _checked(super().call_binop(context, operator, left, right))

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """A call from a template; methods of texts take numbers too (``ljust``)."""
        _check_arguments(args, kwargs)
        return _checked(super().call(context, obj, *args, **kwargs))

    def compiled(self, source: str) -> Template:
        """The template, with the operator ``~`` bounded as well."""
        template = self.from_string(source)
        template.root_render_func.__globals__["str_join"] = lambda pieces: _join(map(str, pieces))
        return template


def render_bounded(template: Template, variables: dict[str, Any]) -> str:
    """The text of the template. Raises TemplateTooLarge beyond the bounds, and whatever the template raises."""
    with _counted_steps():
        return _join(template.generate(variables))


@contextmanager
def _counted_steps() -> Iterator[None]:
    """Let template code of this thread run `MOST_STEPS` lines."""
    steps = 0

    def in_template(frame: Any, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > MOST_STEPS:
            raise TemplateTooLarge("it runs without end")
        return in_template

    def on_call(frame: Any, event: str, arg: Any) -> Any:
        return in_template(frame, event, arg) if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


def _join(pieces: Iterable[str]) -> str:
    """All pieces in one text, as long as it is not too long."""
    taken, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > MOST_CHARACTERS:
            raise TemplateTooLarge("it makes a text without end")
        taken.append(piece)
    return "".join(taken)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses huge numbers and huge results; Jinja's marks on it are kept."""

    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(args, kwargs)
        return _checked(function(*args, **kwargs))

    return update_wrapper(bounded, function)


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str) and _HUGE_WIDTH.search(left):
        raise TemplateTooLarge("it formats numbers without end")
    sizes = [len(each) if isinstance(each, str | list | tuple) else each for each in (left, right)]
    if operator == "+" or not all(isinstance(size, int) for size in sizes):
        return
    if operator == "**" and abs(sizes[1]) * abs(sizes[0]).bit_length() > 64:
        raise TemplateTooLarge("it computes a number without end")
    if operator == "*" and abs(sizes[0] * sizes[1]) > MOST_CHARACTERS and sizes != [left, right]:
        raise TemplateTooLarge("it makes a text without end")


def _check_arguments(args: Iterable[Any], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > _LARGEST_ARGUMENT:
            raise TemplateTooLarge(f"it calls a function with {value}")


def _checked(result: Any) -> Any:
    if isinstance(result, str | list | tuple) and len(result) > MOST_CHARACTERS:
        raise TemplateTooLarge("it makes a text without end")
    return result
