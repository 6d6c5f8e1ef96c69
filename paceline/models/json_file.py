"""Reads the JSON files of a model folder, with a limit on their size and errors that name the file."""

import json
from pathlib import Path
from typing import Any

from paceline.errors import CorruptWeights

LARGEST_FILE = 1 << 28
"""Largest file in bytes; the largest tokenizers have a tenth of it."""
_REMEDY = "download the model again"


def read_json(path: Path, remedy: str = _REMEDY) -> dict[str, Any]:
    """The object in the file at `path`. Raises CorruptWeights, with `remedy`, when it holds anything else."""
    return parse_object(read_text(path, remedy), path, remedy)


def read_text(path: Path, remedy: str = _REMEDY) -> str:
    """The text of a file. Raises CorruptWeights when it is not UTF-8, too large, or cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            raise CorruptWeights(f"{path}: is no file of at most {LARGEST_FILE} bytes; {remedy}")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptWeights(f"{path}: is not text ({error}); {remedy}") from None


def parse_object(text: str | bytes, path: object, remedy: str = _REMEDY) -> dict[str, Any]:
    """The JSON object in `text`, which was read from `path`. Raises CorruptWeights when it is anything else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # also bytes that are not text, and too long integers
        raise CorruptWeights(f"{path}: is not JSON ({str(error)[:120]}); {remedy}") from None
    if not isinstance(values, dict):
        raise CorruptWeights(f"{path}: is no JSON object; {remedy}")
    return values
