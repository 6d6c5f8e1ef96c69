"""`paceline`: one module per command; this one puts them together and turns errors into messages."""

import sys
import warnings
from importlib import import_module

import typer
from rich.text import Text

from paceline.cli.terminal import messages, tell_warning
from paceline.errors import PacelineError

app = typer.Typer(
    name="paceline",
    help="Make a language model generate faster without changing what it says.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

COMMANDS = {
    "Use a model": ("generate", "chat", "serve", "batch", "pull", "models", "demo"),
    "Choose and measure": ("bench", "advise", "audit", "tune", "tree", "layers"),
    "Plan many models on many devices": ("profile", "place", "place-map", "simulate", "capacity", "export"),
}
GROUPS = {"Choose and measure": ("theory", "train", "heads")}

for panel, names in COMMANDS.items():
    for name in names:
        function = name.replace("-", "_")
        context = {"auto_envvar_prefix": "PACELINE"} if name == "serve" else None
        made = app.command(name, rich_help_panel=panel, context_settings=context)
        made(getattr(import_module(f"paceline.cli.{function}"), function))
for panel, names in GROUPS.items():
    for name in names:
        app.add_typer(import_module(f"paceline.cli.{name}").app, name=name, rich_help_panel=panel)


def main() -> None:
    """Run the command line; errors of ours (exit code 2) and warnings become one line each on standard error."""
    warnings.showwarning = tell_warning
    try:
        app()
    except PacelineError as error:
        messages.print(Text.assemble(("error:", "bold red"), " ", str(error)), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
