"""`paceline`: one module per command; this one puts them together and turns errors into messages."""

import sys
from importlib import import_module

import typer
from rich.console import Console

from paceline.errors import PacelineError

app = typer.Typer(
    name="paceline",
    help="Make a language model generate faster without changing what it says.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

COMMANDS = ("generate", "chat", "models", "demo", "tune", "tree", "place", "place-map", "simulate", "layers", "serve")
GROUPS = ("theory", "train")

for name in COMMANDS:
    function = name.replace("-", "_")
    app.command(name)(getattr(import_module(f"paceline.cli.{function}"), function))
for name in GROUPS:
    app.add_typer(import_module(f"paceline.cli.{name}").app, name=name)


def main() -> None:
    """Run the command line; a `PacelineError` becomes one line on standard error and exit code 2."""
    try:
        app()
    except PacelineError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
