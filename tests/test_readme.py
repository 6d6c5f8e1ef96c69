"""The README's commands and programs work as they are written.

Those that need weights run with fewer tokens; servers, measurements and installations, which take minutes or never end,
are parsed to the last option instead, and what they read is read.
"""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from paceline.cli.main import app

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True) for kind, block in BLOCKS if kind == "sh" for line in block.splitlines() if line
]
OURS = [command[1:] for command in COMMANDS if command[0] == "paceline"]


def named(commands):
    return {"argnames": "arguments", "argvalues": commands, "ids": [" ".join(each)[:50] for each in commands]}


def option_value(arguments, name):
    return arguments[arguments.index(name) + 1]


@pytest.mark.parametrize(**named(OURS))
def test_every_command_is_understood(arguments):
    context = typer.main.get_command(app).make_context("paceline", list(arguments), resilient_parsing=False)
    with context:
        group = context.command
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        assert command.make_context(name, rest, parent=context).params


def test_the_plan_of_the_readme_can_be_made_and_served(tmp_path, monkeypatch):
    from paceline.cli.options.serving import named_models
    from paceline.serving.cluster.plan import read_plan

    (place,) = [each for each in OURS if each[0] == "place"]
    (serve,) = [each for each in OURS if "--cluster" in each]
    monkeypatch.chdir(tmp_path)
    case = ROOT / option_value(place, "--case")
    result = CliRunner().invoke(app, [str(case) if each == option_value(place, "--case") else each for each in place])
    assert result.exit_code == 0, result.output
    plan = read_plan(Path(option_value(serve, "--cluster")))
    weights = [serve[i + 1] for i, each in enumerate(serve) if each == "--weights"]
    assert {model.name for model in plan.with_paths(named_models("weights", weights)).models} == {"chat", "code"}


def test_make_targets_exist():
    targets = [command[1] for command in COMMANDS if command[0] == "make"]
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_extras_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"(?:paceline|\.)\[([\w,]+)\]", TEXT)
    assert named
    assert {extra for each in named for extra in each.split(",")} <= set(extras)


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)", TEXT):
        assert "://" in link or (ROOT / link).exists(), link


@pytest.mark.weights
@pytest.mark.parametrize(**named([each for each in OURS if each[0] == "generate"]))
def test_generate_answers(arguments):
    result = CliRunner().invoke(app, [*arguments, "-n", "12"])
    assert result.exit_code == 0, result.output
    assert len(result.stdout.split()) > 3


@pytest.mark.weights
@pytest.mark.parametrize("program", [block for kind, block in BLOCKS if kind == "python"])
def test_programs_run(program, capsys):
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.strip()
