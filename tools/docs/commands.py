"""The reference of the command line, written by typer from the commands themselves.

`write(folder)` writes `commands.md`, which docs/cli.md includes; `overview()` is the table in that page itself, which
GitHub shows as well.
"""

import re
from pathlib import Path

import typer
from typer.cli import get_docs_for_click
from typer.core import TyperGroup

from paceline.cli.main import COMMANDS, GROUPS, app

_LISTED = re.compile(r"^\* `([\w-]+)`: .*$", re.MULTILINE)


def reference() -> str:
    """Markdown: a heading of level 2 per command, with its help, arguments and options."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    context = typer.Context(group, info_name="paceline")
    text = get_docs_for_click(obj=group, ctx=context, name="paceline")
    head, commands, rest = text.partition("**Commands**:\n")
    first_list, details = rest.split("\n## ", 1)
    linked = _LISTED.sub(
        lambda found: f"* [`{found[1]}`](#paceline-{found[1]}): {_first_line(group, found[1])}", first_list
    )
    whole = head.split("\n", 1)[1] + commands + linked + "\n## " + details
    return whole.replace("][", "]\\[")  # two optional parts of a name are no link


def _first_line(group: TyperGroup, name: str) -> str:
    help_text = group.commands[name].help or ""
    return help_text.strip().splitlines()[0]


def overview() -> str:
    """A table in Markdown: every command, by the headings of `paceline --help`, and the first line of its help."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    lines = []
    for heading in dict.fromkeys([*COMMANDS, *GROUPS]):
        lines += [f"| **{heading}** | |"] if lines else [f"| {heading} | |", "|---|---|"]
        for name in (*COMMANDS.get(heading, ()), *GROUPS.get(heading, ())):
            command = group.commands[name]
            inner = sorted(command.commands) if isinstance(command, TyperGroup) else []
            lines.append(f"| `paceline {name}` | {_first_line(group, name)} |")
            lines += [f"| `paceline {name} {each}` | {_first_line(command, each)} |" for each in inner]
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    """Write the reference into `folder`."""
    (folder / "commands.md").write_text(reference())
