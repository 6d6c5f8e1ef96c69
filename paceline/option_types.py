"""`check_types`: check options that users write against the annotations of a constructor.

Options of drafters and policies come from a command line, a configuration file or a program. Only their types are
checked here; the constructor checks their values.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from paceline.errors import InvalidParameter


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


_KINDS: dict[Any, tuple[str, Callable[[object], bool]]] = {
    int: ("a whole number", _is_whole),
    float: ("a finite number", _is_number),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("a text", lambda value: isinstance(value, str)),
    NoneType: ("nothing", lambda value: value is None),
}


def check_types(constructor: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check the values of `options` against the annotations of `constructor`, where these are plain types or unions.

    Raises:
        InvalidParameter: for the first option whose value has another type.
    """
    try:
        hints = get_type_hints(constructor.__init__ if isinstance(constructor, type) else constructor)
    except (NameError, TypeError):  # annotations that name types imported for type checkers only
        return
    for name, value in options.items():
        hint = hints.get(name, Any)
        wanted = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if all(kind in _KINDS for kind in wanted) and not any(_KINDS[kind][1](value) for kind in wanted):
            kinds = " or ".join(_KINDS[kind][0] for kind in wanted if kind is not NoneType)
            raise InvalidParameter(name, f"{value!r} is not {kinds}", f"give {kinds}")
