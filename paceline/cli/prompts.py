"""Prompts as commands take them: from a file or the command line, plain or in the model's chat template."""

import json
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.models.tokenizer import Tokenizer


def prompt_ids(tokenizer: "Tokenizer", text: str, raw: bool) -> list[int]:
    """Token ids of a prompt: a user's message in the chat template of a model that has one, unless `raw`."""
    if raw or not tokenizer.has_chat_template:
        return tokenizer.encode(text)
    return tokenizer.encode_chat([{"role": "user", "content": text}])


def prompts_of(arguments: Iterable[str]) -> list[str]:
    """The arguments themselves, and for each ``@FILE`` among them the prompts of that file (see `read_prompts`)."""
    return [
        prompt
        for each in arguments
        for prompt in (read_prompts(Path(each[1:])) if each.startswith("@") else [argument_text("prompts", each)])
    ]


def argument_text(field: str, text: str) -> str:
    """`text`, given as an argument. Raises InvalidParameter if its bytes were not UTF-8 (Python makes surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"the argument is not UTF-8 (its character {error.start})"
        raise InvalidParameter(field, problem, "convert it") from None
    return text


def read_prompts(path: Path) -> list[str]:
    """The prompts of `path`: one per line, or in a .jsonl file the ``prompt`` (or the first of ``turns``) of each line.

    Raises:
        InvalidParameter: the file cannot be read or has none, or a line is not as said.
    """
    lines = [line.removesuffix("\r") for line in read_text("prompts", path).split("\n") if line.strip()]
    if not lines:
        raise InvalidParameter("prompts", f"{path} is empty", "give at least one prompt")
    if path.suffix != ".jsonl":
        return lines
    return [_prompt_of(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def read_text(field: str, path: Path) -> str:
    """The text of the file given by the option `field`. Raises InvalidParameter if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(field, f"{path} cannot be read ({error})", "name a text file in UTF-8") from None


def read_standard_input() -> str:
    """The text of standard input. Raises InvalidParameter if it is closed or is not UTF-8."""
    if sys.stdin is None:
        raise InvalidParameter("prompt", "standard input is closed", "give the prompt as an argument")
    try:
        return sys.stdin.buffer.read().decode("utf-8") if isinstance(sys.stdin, TextIOWrapper) else sys.stdin.read()
    except UnicodeDecodeError as error:
        problem = f"standard input is not UTF-8 (byte {error.start} is {error.object[error.start]:#x})"
        raise InvalidParameter("prompt", problem, "convert it") from None


def _prompt_of(line: str, place: str) -> str:
    try:
        record = json.loads(line)
        return record["turns"][0] if "turns" in record else record["prompt"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        remedy = 'write {"prompt": ...} or {"turns": [...]} on each line'
        raise InvalidParameter("prompts", f"{place} holds no prompt", remedy) from error
