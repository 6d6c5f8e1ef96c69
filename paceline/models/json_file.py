"""Reads the JSON files of a model folder, with a limit on their size and errors that name the file."""

import json
from pathlib import Path
from typing import Any

from paceline.errors import CorruptWeights

LARGEST_FILE = 1 << 28
"""Largest file in bytes; the largest tokenizers have a tenth of it."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file at `path`. Raises CorruptWeights when it holds anything else."""
    return parse_object(read_text(path), path)


def read_text(path: Path) -> str:
    """The text of a file. Raises CorruptWeights when it is not UTF-8, too large, or cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            raise CorruptWeights(f"{path}: is no file of at most {LARGEST_FILE} bytes; download the model again")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptWeights(f"{path}: is not text ({error}); download the model again") from None


def parse_object(text: str | bytes, path: object) -> dict[str, Any]:
    """The JSON object in `text`, which was read from `path`. Raises CorruptWeights when it is anything else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # also bytes that are not text, and too long integers
        raise CorruptWeights(f"{path}: is not JSON ({str(error)[:120]}); download the model again") from None
    if not isinstance(values, dict):
        raise CorruptWeights(f"{path}: is no JSON object; download the model again")
    return values
