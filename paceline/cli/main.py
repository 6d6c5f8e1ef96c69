"""`paceline`: one module per command; this one puts them together and turns errors into messages."""

import errno
import os
import re
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from paceline.cli.options.model_argument import NAME as MODEL_ARGUMENT
from paceline.cli.options.model_argument import model_by_position
from paceline.cli.terminal.streams import messages, tell_warning
from paceline.errors import InvalidParameter, PacelineError
from paceline.vllm_names import refuse_option

_ELSEWHERE = {
    "run": "generate, or paceline chat", "complete": "generate", "list": "models", "ls": "models", "show": "models",
    "download": "pull", "rm": "models --remove-unused DAYS", "server": "serve",
}  # fmt: skip
"""Commands of other programs, and ours for the same work."""


class _Commands(TyperGroup):
    """The commands; options that vLLM has and we have not are refused with what to write instead."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Raises InvalidParameter for an option of vLLM's."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            kind = type(error).__name__  # click's; newer versions of typer have click inside
            if kind == "NoSuchOption":
                self._refuse(error)
            if kind.startswith(("NoSuch", "UsageError")) and error.ctx is not None:  # type: ignore[attr-defined]
                error.message += self._advice(error)  # type: ignore[attr-defined]
            raise

    def _refuse(self, error: Any) -> None:
        """Raise InvalidParameter for an option of another program, with ours and the commands that have it."""
        try:
            refuse_option(error.option_name)
        except InvalidParameter as refused:
            ours = re.findall(r"--[a-z-]+[a-z]", refused.remedy)
            own = {option for one in error.ctx.command.params for option in one.opts} if error.ctx else set(ours)
            elsewhere = [f"{option} is of paceline {', '.join(self._having(option))}" for option in ours
                         if option not in own and self._having(option)]  # fmt: skip
            raise InvalidParameter(refused.field, refused.problem, "; ".join([refused.remedy, *elsewhere])) from None

    def _having(self, option: str) -> list[str]:
        """The commands that have an option."""
        return [name for name, each in self.commands.items() if any(option in one.opts for one in each.params)]

    def _advice(self, error: Any) -> str:
        """What a usage error of click's is followed by: what to write instead, or nothing."""
        said = str(error.message)
        if "unexpected extra argument" in said:
            return _where_it_goes(error.ctx)
        if said.startswith("No such command"):
            name = next(iter(re.findall("'([^']*)'", said)), "")
            is_known = name in _ELSEWHERE and error.ctx.command is self
            return f" Here it is: paceline {_ELSEWHERE[name]}." if is_known else ""
        option = getattr(error, "option_name", None)
        having = self._having(option) if option else []
        return f"; commands that have it: {', '.join(having)}" if having else ""


def _where_it_goes(context: typer.Context) -> str:
    """How a command with other arguments is told its model, or one of planning its case; empty for others."""
    parameters = context.command.params
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = {option for one in parameters for option in one.opts}
    if "--case" in options:
        return f"; the case goes to --case: {context.command_path} --case FILE"
    if any(one.name == MODEL_ARGUMENT for one in arguments) or "-m" not in options:
        return ""
    shown = " ".join(one.metavar or (one.name or "").upper() for one in arguments)
    return f"; the model goes to -m: {context.command_path} -m MODEL {shown}"


app = typer.Typer(
    name="paceline",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"paceline {version('paceline')}")
        raise typer.Exit


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
        made(model_by_position(getattr(import_module(f"paceline.cli.{function}"), function)))
for panel, names in GROUPS.items():
    for name in names:
        app.add_typer(import_module(f"paceline.cli.{name}").app, name=name, rich_help_panel=panel)


@app.callback()
def root(
    asks_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Make a language model generate faster without changing what it says."""


def main() -> None:
    """Run the command line; errors of ours (exit code 2) and warnings become one line each on standard error."""
    warnings.showwarning = tell_warning
    if sys.stdout is None:  # closed by whoever called (>&-): what is printed there is an error, and nothing else
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a character must not end an answer
    try:
        app()
        sys.stdout.flush()
    except PacelineError as error:
        _tell_error(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EBADF, errno.EIO):
            raise
        _end_output()
        _tell_error(f"the output cannot be written ({error.strerror})")
        sys.exit(2)


def _tell_error(text: str) -> None:
    with suppress(OSError):
        messages.print(Text.assemble(("error:", "bold red"), " ", text), soft_wrap=True)


def _end_output() -> None:
    """Send what is still in the buffer of standard output nowhere: writing it failed, and would again at the exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


if __name__ == "__main__":
    main()
