"""A model by position is the same as one with --model, in every command that can have it."""

from types import SimpleNamespace
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.options.model_argument import NAME, model_by_position
from paceline.cli.train.command_line import command_line
from paceline.errors import InvalidParameter

runner = CliRunner()
Model = Annotated[str, typer.Option("--model", "-m")]


def commands(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_every_command_with_a_model_takes_it_both_ways_or_has_other_arguments():
    with_option, with_argument = set(), set()
    for name, command in commands(typer.main.get_command(app)):
        arguments = [each.name for each in command.params if each.param_type_name == "argument"]
        assert NAME not in arguments or any("-m" in each.opts for each in command.params), name
        if any("--model" in each.opts and "-m" in each.opts for each in command.params):
            assert arguments, name
            (with_argument if NAME in arguments else with_option).add(name)
    assert with_argument == {
        "chat", "serve", "demo", "bench", "advise", "audit", "tune", "profile", "train draft", "train memory",
        "train disco", "heads list",
    }  # fmt: skip
    assert with_option == {
        "generate", "batch", "tree", "layers", "train head", "train joint", "heads inspect", "heads convert",
        "heads verify",
    }  # fmt: skip


@pytest.fixture
def called():
    """An app with one command, and what it was called with."""
    found = SimpleNamespace(app=typer.Typer(), model=None, source=None, line=None)

    @found.app.command()
    @model_by_position
    def chat(context: typer.Context, model: Model = "usual", steps: Annotated[int, typer.Option("--steps")] = 1):
        found.model, found.source = model, context.get_parameter_source("model").name
        found.line = command_line(context)

    return found


@pytest.mark.parametrize(
    ("arguments", "model", "source"),
    [
        ([], "usual", "DEFAULT"),
        (["mine"], "mine", "COMMANDLINE"),
        (["-m", "mine"], "mine", "COMMANDLINE"),
        (["--steps", "3", "mine"], "mine", "COMMANDLINE"),
    ],
)
def test_the_command_cannot_tell_how_its_model_was_given(called, arguments, model, source):
    result = runner.invoke(called.app, arguments)
    assert result.exit_code == 0, result.output
    steps = " --steps 3" if "3" in arguments else ""
    assert (called.model, called.source) == (model, source)
    assert called.line == f"paceline train chat -m {model}{steps}"


def test_a_model_in_both_places_is_refused(called):
    result = runner.invoke(called.app, ["a", "-m", "b"])
    assert isinstance(result.exception, InvalidParameter)
    assert str(result.exception) == "model: 'a' is given beside --model b; leave one of the two out"
    assert called.model is None


def test_a_model_on_the_command_line_wins_over_the_environment_and_a_file(tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text("model: of-the-file\n")
    for arguments, env, named in (
        ([], {}, "of-the-file"),
        (["by-position"], {}, "by-position"),
        ([], {"PACELINE_MODEL": "of-the-environment"}, "of-the-environment"),
        (["by-position"], {"PACELINE_MODEL": "of-the-environment"}, "by-position"),
    ):
        result = runner.invoke(app, ["serve", "--port", "0", "--config", str(config), *arguments], env=env)
        assert f"model {named!r}" in str(result.exception)


def test_a_profile_needs_a_model():
    result = runner.invoke(app, ["profile", "--device", "h100"])
    assert isinstance(result.exception, InvalidParameter) and result.exception.field == "model"
