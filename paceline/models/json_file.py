"""Reading the JSON files of a model folder, for its weights and its tokenizer alike."""

import json
from pathlib import Path
from typing import Any

from paceline.errors import CorruptWeights


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file at `path`. Raises CorruptWeights when it holds anything else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CorruptWeights(f"{path}: is not JSON ({error}); download the model again") from None
    if not isinstance(values, dict):
        raise CorruptWeights(f"{path}: is no JSON object; download the model again")
    return values
