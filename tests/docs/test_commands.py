"""Commands in the pages: every `paceline ...` names a command that exists, with options that it takes."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from paceline.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

_FENCE = re.compile(r"^```(?:sh|console)?\n(.*?)^```|^((?: {4}.+\n)+)", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*paceline (?=[a-z])(.*)$", re.MULTILINE)


def calls(page: str) -> list[list[str]]:
    """The words after `paceline` of every command in a code block; quoted text is one word, comments are none."""
    blocks = (fenced or indented for fenced, indented in _FENCE.findall(page))
    lines = (line for block in blocks for line in _CALL.findall(re.sub(r"\\\n(?:> )?\s*", "", _unindented(block))))
    return [shlex.split(re.split(r" \| | > | 2>|;", line)[0], comments=True) for line in lines]


def _unindented(block: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in block.splitlines())


def unknown(words: list[str]) -> list[str]:
    """Commands and options among `words` that the command line does not have."""
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return [words[0]]
        command, words = command.commands[words[0]], words[1:]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [option for option in used if option not in {*options, "--help"}]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_a_page_exist(path):
    assert [(words, wrong) for words in calls(path.read_text()) if (wrong := unknown(words))] == []


def test_commands_are_found_in_the_pages():
    found = [words[0] for path in PAGES for words in calls(path.read_text())]
    assert {"generate", "tune", "serve", "place", "theory"} <= set(found)
    assert len(found) > 30


def test_a_wrong_command_or_option_is_found():
    page = "```sh\npaceline generate --chatt -m x \\\n  --nope=1 'a --b' | cat\n```\n\n    paceline theory tabel\n"
    assert [unknown(words) for words in calls(page)] == [["--chatt", "--nope"], ["tabel"]]
