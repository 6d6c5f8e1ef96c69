"""Files of conversations as token ids, without hidden states: ``.npz`` in one of two layouts.

- As in the shards of draft heads: ``ids`` (prompts with their template, each followed by its answer, concatenated) and
  per conversation ``length`` (of prompt and answer), ``prompt`` (ids of the prompt) and ``temperature``.
- Prompts and answers in separate arrays: ``prompt``, ``answer``, ``prompt_len``, ``answer_len`` and ``temperature``.

Not for hidden states (`heads/shards.py`).
"""

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline.disk import in_one_move
from paceline.errors import InvalidParameter
from paceline.training.heads.conversations import Conversation, arrays_of


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file. Raises InvalidParameter where it cannot be read or has neither layout."""
    try:
        with np.load(path) as file:
            ids, numbers = _together(file) if "prompt_len" in file else (_ids(file, "ids", "length"), file["prompt"])
            each = zip(ids, numbers, file["temperature"], strict=True)
            return [Conversation(own, int(number), float(temperature)) for own, number, temperature in each]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        remedy = "give .npz files as docs/memory.md describes them"
        raise InvalidParameter("answers", f"{path} holds no answers ({error})", remedy) from None


def read_all(paths: Iterable[Path]) -> list[Conversation]:
    """The conversations of files, and of all such files in folders. Raises as `read_conversations`."""
    files = [file for path in paths for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]
    return [one for file in files for one in read_conversations(file)]


def write_conversations(path: Path, conversations: Sequence[Conversation]) -> None:
    """Write a file atomically, in the first layout."""
    with in_one_move(path) as file:
        np.savez(file, **arrays_of(conversations))  # type: ignore[arg-type]


def _together(file: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    prompts, answers = _ids(file, "prompt", "prompt_len"), _ids(file, "answer", "answer_len")
    ids = [np.concatenate(pair) for pair in zip(prompts, answers, strict=True)]
    return ids, file["prompt_len"]


def _ids(file: Mapping[str, np.ndarray], name: str, lengths: str) -> list[np.ndarray]:
    """Split the concatenated ids `file[name]` into one array per conversation, with sizes `file[lengths]`."""
    ids, sizes = file[name], file[lengths]
    if ids.ndim != 1 or ids.dtype.kind not in "ui" or sizes.ndim != 1 or sizes.dtype.kind not in "ui":
        raise ValueError(f"{name} and {lengths} are not rows of whole numbers")
    if len(sizes) and (int(sizes.min()) < 0 or int(sizes.sum(dtype=np.int64)) != len(ids)):
        raise ValueError(f"{lengths} add up to {sizes.sum()}, and there are {len(ids)} {name}")
    return np.split(ids.astype(np.int32), np.cumsum(sizes)[:-1]) if len(sizes) else []
