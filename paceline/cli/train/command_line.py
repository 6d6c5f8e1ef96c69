"""The command line that made a head or a draft, as its card keeps it. Not for what was measured."""

import shlex
from pathlib import Path
from typing import Any

import typer

_LEFT_OUT = {"output", "work", "plot", "threads", "as_json", "help"}
"""Options of paths and output, which do not change the result."""
_ALWAYS = {"model", "time_budget"}


def command_line(context: typer.Context) -> str:
    """The running command with its non-default options and those of `_ALWAYS`; paths are reduced to file names."""
    arguments, options = [], []
    for parameter in context.command.params:
        name = parameter.name or ""
        value = context.params.get(name)
        is_default = value is None or value == parameter.default
        is_for_text_alone = name == "time_budget" and is_default and context.params.get("steps") is not None
        if name in _LEFT_OUT or is_for_text_alone:
            continue
        if parameter.param_type_name == "argument":
            arguments += [] if value is None else [str(value)]
        elif name in _ALWAYS or not is_default:
            options += [min(parameter.opts, key=len), *([] if value is True else [_word(name, value)])]
    return shlex.join(["paceline", "train", context.info_name or "", *arguments, *options])


def _word(name: str, value: Any) -> str:
    is_file = isinstance(value, Path) or (name in ("model", "resume", "begin_with") and Path(value).exists())
    return Path(value).name if is_file else str(value)
