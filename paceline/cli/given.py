"""Options that were given where they have no say: they are refused, since silence would look like obedience.

Whether an option was given, not whether its value is the default one.
"""

from collections.abc import Collection
from dataclasses import fields

import typer

from paceline.errors import InvalidParameter

_GIVEN = ("COMMANDLINE", "ENVIRONMENT")


def options_of(*groups: type) -> set[str]:
    """Names of the options that dataclasses stand for; see `groups.grouped`."""
    return {field.name for group in groups for field in fields(group)}


def refuse_given(context: typer.Context, names: Collection[str], problem: str, remedy: str) -> None:
    """Raise InvalidParameter for the first of the parameters `names` that was given; it is called as it was written."""
    for parameter in context.command.params:
        if parameter.name not in names:
            continue
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name in _GIVEN:
            raise InvalidParameter(parameter.opts[0].lstrip("-").replace("-", "_"), problem, remedy)
