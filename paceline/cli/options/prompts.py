"""Prompts as commands take them: from a file or the command line, plain or in the model's chat template."""

import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.models.text.tokenizer import Tokenizer


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
    """`text`, given as an argument, whose bytes are UTF-8 whatever the locale's encoding is.

    Python makes surrogates of bytes that its encoding lacks: of all beyond ASCII with LC_ALL=C and PYTHONUTF8=0.

    Raises:
        InvalidParameter: they are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    try:
        return os.fsencode(text).decode()
    except UnicodeError as error:
        problem = f"the argument is not UTF-8 (its byte {getattr(error, 'start', 0)})"
        raise InvalidParameter(field, problem, "convert it") from None


def read_prompts(path: Path) -> list[str]:
    """The prompts of `path`, as `evaluation.prompts.read_file`: one on each line.

    Raises:
        InvalidParameter: as it, or the file has none.
    """
    from paceline.evaluation.prompts import read_file

    found = [one.text for one in read_file(path)]
    if not found:
        raise InvalidParameter("prompts", f"{path} is empty", "give at least one prompt")
    return found


def read_text(field: str, path: Path) -> str:
    """The text of the file given by the option `field`. Raises InvalidParameter if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
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
