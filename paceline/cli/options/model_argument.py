"""The model by position: a command with --model (-m) and no arguments of its own takes its model as an argument, too.

Not for what names of models mean (`model.py`).
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from paceline.errors import InvalidParameter

NAME = "model_argument"
"""Of the parameter that holds the argument; the command finds its value in `model`."""
_CONTEXT = "typer_context"

_Argument = Annotated[str | None, typer.Argument(metavar="MODEL", help="The model: the same as --model.")]


def model_by_position(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with its model as an argument beside --model; as it is where it has other arguments, or no -m."""
    hints = get_type_hints(command, include_extras=True)
    names_one = any("-m" in one.param_decls for one in _infos(hints.get("model"), OptionInfo))
    if not names_one or any(_infos(hint, ArgumentInfo) for hint in hints.values()):
        return command
    context_name = next((name for name, hint in hints.items() if hint is typer.Context), _CONTEXT)

    @wraps(command)
    def run(**values: Any) -> None:
        context = values[context_name] if context_name in own else values.pop(context_name)
        _take(context, values, values.pop(NAME))
        command(**values)

    own = inspect.signature(command).parameters
    hints.pop("return", None)
    hints = {NAME: _Argument, context_name: typer.Context} | hints
    defaults = {NAME: None} | {name: each.default for name, each in own.items()}
    run.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, inspect.Parameter.empty), annotation=hint
        )
        for name, hint in hints.items()
    ])  # fmt: skip
    run.__annotations__ = hints
    del run.__wrapped__
    return run


def _infos(hint: Any, kind: type) -> list[Any]:
    """What an annotation has of `kind`: typer's description of an option or of an argument."""
    return [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, kind)]


def _take(context: typer.Context, values: dict[str, Any], given: str | None) -> None:
    """Put the argument in the place of the option, in `values` and in what `context` knows of the call.

    Raises:
        InvalidParameter: the option is on the command line, too.
    """
    if given is None:
        return
    source = context.get_parameter_source("model")
    if source is not None and source.name == "COMMANDLINE":
        problem = f"{given!r} is given beside --model {values['model']}"
        raise InvalidParameter("model", problem, "leave one of the two out")
    values["model"] = context.params["model"] = given
    context.params[NAME] = None
    argument = context.get_parameter_source(NAME)
    assert argument is not None
    context.set_parameter_source("model", argument)
