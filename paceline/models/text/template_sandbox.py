"""A Jinja environment in which a model's chat template can neither hang nor exhaust the memory.

Templates come with weights from untrusted sources. Jinja's sandbox denies access to Python's internals; this module
limits sizes and steps as well. Not for the limits themselves (`template_meter.py`), nor for chats (`chat_template.py`).
"""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.models.text.template_meter import (
    TemplateTooLarge,
    charged,
    check_arguments,
    check_method,
    check_operands,
    joined,
    metered,
    text_size,
)

_DROPPED = ("striptags", "urlize", "xmlattr", "wordwrap", "pprint", "filesizeformat", "random")
"""Removed filters: they are for web pages and display, and some take quadratic time."""
_OF_TEXTS = ("replace", "indent", "trim", "join", "format", "tojson", "string", "center")
"""Filters that convert their input, which may be a list of long texts, to one text."""


class _Code(CodeGenerator):
    """Compiles slices to calls of `BoundedEnvironment.cut`; Jinja compiles them to Python's slices."""

    def visit_Getitem(self, node: nodes.Getitem, frame: Any) -> None:
        if not isinstance(node.arg, nodes.Slice):
            return super().visit_Getitem(node, frame)
        self.write("environment.cut(")
        self.visit(node.node, frame)
        self.write(", slice(")
        for part in (node.arg.start, node.arg.stop, node.arg.step):
            if part is None:
                self.write("None")
            else:
                self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Generation(Extension):
    """The block ``{% generation %}``, which marks the assistant's tokens for training; here its content is rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """See `Extension`."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits on the sizes of texts, lists and numbers."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})
    code_generator_class = _Code

    def __init__(self) -> None:
        # Without the optimiser, which would compute constant expressions while it compiles.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=_output,
                         extensions=["jinja2.ext.loopcontrols", _Generation])  # fmt: skip
        for name, each in list(self.filters.items()):
            self.add_filter(name, each)
        for name in _DROPPED:
            del self.filters[name]
        del self.globals["lipsum"]
        self.concat = joined

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Register the filter `function` with limits on its arguments and result."""
        self.filters[name] = _bounded(name, function)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, with limits on the size of the result."""
        check_operands(operator, left, right)
        return charged(super().call_binop(context, operator, left, right))

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """A call from a template, with limits on its arguments and result."""
        check_arguments((*args, *kwargs.values()))
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            args = (list(args[0]), *args[1:]) if name == "join" and args else args
            check_method(name, owner, (*args, *kwargs.values()))
        return charged(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's sandboxed ``str.format``, with a limit on the size of the result."""
        formats = super().wrap_str_format(value)
        if formats is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            check_method("format", value.__self__, (*args, *kwargs.values()))
            return charged(formats(*args, **kwargs))

        return bounded

    def cut(self, value: Any, part: slice) -> Any:
        """A slice of a value, counted by the meter."""
        return charged(value[part])

    def compiled(self, source: str) -> Template:
        """The compiled template, with limits on the operator ``~`` as well."""
        template = self.from_string(source)
        template.root_render_func.__globals__["str_join"] = lambda pieces: joined(map(_as_text, pieces))
        return template


def render_bounded(template: Template, variables: dict[str, Any]) -> str:
    """The rendered text. Raises TemplateTooLarge beyond the limits, and whatever the template raises."""
    with metered():
        return joined(template.generate(variables))


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        text_size(value)
    return str(value)


def _output(value: Any) -> Any:
    """`value`, after checking that its text is not too large. Raises TemplateTooLarge."""
    if isinstance(value, str):
        return value
    text_size(value)
    return value


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `function` with limits on its arguments and result; Jinja's attributes of it are kept."""

    def bounded(*args: Any, **kwargs: Any) -> Any:
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja passes its context as the first argument
        args = _with_list(args, first) if name == "join" else args
        value, others = args[first : first + 1], (*args[first + 1 :], *kwargs.values())
        check_arguments(others)
        if name in _OF_TEXTS:
            _check_text_filter(name, value, others, kwargs)
        if name == "sum" and not all(isinstance(each, int | float | str | None) for each in others):
            raise TemplateTooLarge("it sums up lists, which takes the square of their number")
        return charged(function(*args, **kwargs))

    return update_wrapper(bounded, function)


def _with_list(args: tuple[Any, ...], at: int) -> tuple[Any, ...]:
    """`args` with the iterable at index `at` as a list, since it may be an iterator."""
    return (*args[:at], *(list(each) for each in args[at : at + 1]), *args[at + 1 :])


def _check_text_filter(name: str, value: tuple[Any, ...], others: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    text_size((value, others), _written_per_item(others, kwargs) if name == "tojson" else 0)
    if name == "join":
        between = others[0] if others and isinstance(others[0], str) else ""
        check_method("join", between, value)
    elif value and isinstance(value[0], str):
        if name == "format":
            check_operands("%", value[0], kwargs or others)
        else:
            check_method(name, value[0], others)


def _written_per_item(others: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Characters that ``tojson`` writes around an item: indent (a number or a text) and separators."""
    named = dict(zip(("ensure_ascii", "indent", "separators"), others, strict=False)) | kwargs
    indent, separators = named.get("indent"), named.get("separators")
    width = len(indent) if isinstance(indent, str) else indent if isinstance(indent, int) else 0
    return width + (text_size(separators) if separators else 0)
