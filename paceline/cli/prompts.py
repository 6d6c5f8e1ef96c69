"""Prompts from a file, for commands that need many."""

import json
from pathlib import Path

from paceline.errors import InvalidParameter


def read_prompts(path: Path) -> list[str]:
    """The prompts of `path`: one per line, or in a .jsonl file the ``prompt`` (or the first of ``turns``) of each line.

    Raises:
        InvalidParameter: the file cannot be read or has none, or a line is not as said.
    """
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise InvalidParameter("prompts", f"{path} cannot be read: {error.strerror}", "give a text file") from error
    if not lines:
        raise InvalidParameter("prompts", f"{path} is empty", "give at least one prompt")
    if path.suffix != ".jsonl":
        return lines
    return [_prompt_of(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _prompt_of(line: str, place: str) -> str:
    try:
        record = json.loads(line)
        return record["turns"][0] if "turns" in record else record["prompt"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        remedy = 'write {"prompt": ...} or {"turns": [...]} on each line'
        raise InvalidParameter("prompts", f"{place} holds no prompt", remedy) from error
