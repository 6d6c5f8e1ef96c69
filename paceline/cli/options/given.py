"""Refusing options that were given but have no effect, since ignoring them would mislead the user.

What counts is whether an option was given, not whether its value is the default.
"""

from collections.abc import Collection
from dataclasses import fields

import typer

from paceline.errors import InvalidParameter

_GIVEN = ("COMMANDLINE", "ENVIRONMENT")


def options_of(*groups: type) -> set[str]:
    """Names of the options in dataclasses; see `groups.grouped`."""
    return {field.name for group in groups for field in fields(group)}


def refuse_given(context: typer.Context, names: Collection[str], problem: str, remedy: str) -> None:
    """Raise InvalidParameter, with the option's name, for the first of the parameters `names` that was given."""
    for parameter in context.command.params:
        if parameter.name not in names:
            continue
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name in _GIVEN:
            raise InvalidParameter(parameter.opts[0].lstrip("-").replace("-", "_"), problem, remedy)
