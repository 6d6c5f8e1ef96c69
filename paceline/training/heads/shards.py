"""Conversations with the target's hidden states on disk: memory-mapped, in bfloat16, some ten thousand rows a file.

A conversation of n tokens has n - 1 rows: the hidden states after each token but the last. A shard is two files:
``shard-NNNN.npz`` (ids and their origin) and ``taps-NNNN.npy`` (uint16, the upper half of a float32). Not for torch
(`batches.py`).
"""

import hashlib
import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock

from paceline.disk import in_one_move, writing
from paceline.errors import CorruptWeights, InvalidParameter
from paceline.training.heads.conversations import Conversation, arrays_of
from paceline.training.heads.origins import NOT_KEPT, Origin, read_origin

_INDEX, _LOCK = "taps.json", "taps.lock"
_NAME = re.compile(r"(shard-\d+\.npz|taps-\d+\.npy|taps\.(json|lock)|partial-.*)")


@dataclass(frozen=True, eq=False, slots=True)
class Document:
    """A conversation and the location of its rows.

    Attributes:
        shard, start: number of its shard, and its first row in it.
        origin: of its text.
    """

    conversation: Conversation
    shard: int
    start: int
    origin: Origin

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the document within its store."""
        return self.shard, self.start

    @property
    def num_rows(self) -> int:
        """Rows of hidden states."""
        return len(self.conversation.ids) - 1


def is_of_store(path: Path) -> bool:
    """Whether the name is one of a store's files."""
    return _NAME.fullmatch(path.name) is not None


class TapStore:
    """The shards of one folder. Several programs may add to it: each takes the next free number.

    Args:
        folder: created when missing.
        taps: hidden states of a row, in order; None takes those that the folder names.
        target: digest of the weights of the model that computed the states; empty where it is unknown.

    Raises:
        InvalidParameter: the folder holds other hidden states than `taps`, or those of another model; it is empty and
            `taps` is None; or it cannot be written.
        CorruptWeights: a file in it is damaged.
    """

    def __init__(self, folder: Path, taps: Sequence[int] | None = None, target: str = "") -> None:
        self.folder, index = folder, folder / _INDEX
        known, of = _index(index) if index.exists() else (None, "")
        if known is None and taps is None:
            raise InvalidParameter("folder", f"{folder} holds no hidden states", "write some first")
        if target and of and target != of:
            raise InvalidParameter("work", f"{folder} holds hidden states of another model", "use another folder")
        if known is not None and taps is not None and known != tuple(taps):
            problem = f"{folder} holds hidden states {list(known)}, not {list(taps)}"
            raise InvalidParameter("taps", problem, "use another folder")
        self.taps: tuple[int, ...] = known or tuple(taps or ())
        if known is None:
            _write_index(index, {"taps": list(self.taps), **({"target": target} if target else {})})
        self.documents: list[Document] = []
        self._maps: dict[int, np.ndarray] = {}
        self.refresh()

    def refresh(self) -> None:
        """Add the shards that were written since the last look."""
        for number, path in sorted(_shards(self.folder).items()):
            if number not in self._maps:
                self._take(number, path)

    def keep_first(self, count: int) -> None:
        """Keep only the first `count` documents in memory; files on disk are not changed."""
        self.documents = self.documents[:count]

    def _take(self, number: int, path: Path) -> None:
        states = self._taps_path(number)
        try:
            rows, documents = np.load(states, mmap_mode="r"), _documents(number, path)
            if sum(one.num_rows for one in documents) > len(rows):
                raise ValueError("the one has fewer rows than the other")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            if not path.exists():
                return  # a `ServedRing` has deleted it in the meantime
            remedy = "delete both, and that part of the text is written anew"
            raise CorruptWeights(f"{path} and {states.name}: cannot be read ({error}); {remedy}") from None
        self._maps[number] = rows
        self.documents += documents

    def add(self, conversations: Sequence[Conversation], states: Sequence[np.ndarray],
            origin: Origin = NOT_KEPT) -> None:  # fmt: skip
        """Write one shard.

        Args:
            states: per conversation [ids - 1, taps, hidden], uint16 (`to_bfloat16`).
            origin: of all these conversations.

        Raises:
            InvalidParameter: it cannot be written; earlier shards are unchanged.
        """
        with writing("work", self.folder), FileLock(self.folder / _LOCK):
            self._write(max(_shards(self.folder), default=-1) + 1, conversations, states, origin)
        self.refresh()

    def _write(self, number: int, conversations: Sequence[Conversation], states: Sequence[np.ndarray],
               origin: Origin) -> None:  # fmt: skip
        with in_one_move(self._taps_path(number)) as file:
            np.save(file, np.concatenate(states))
        with in_one_move(self.folder / f"shard-{number:04d}.npz") as file:
            rows = np.array([len(one) for one in states], np.int32)
            np.savez(file, **arrays_of(conversations), rows=rows, origin=np.array(origin.to_json()))  # type: ignore[arg-type]

    def drop_oldest(self, max_rows: int) -> None:
        """Delete the oldest shards while more than `max_rows` rows are stored; the latest shard is always kept."""
        while len(self._maps) > 1 and sum(map(len, self._maps.values())) > max_rows:
            number = min(self._maps)
            del self._maps[number]
            self.documents = [one for one in self.documents if one.shard != number]
            (self.folder / f"shard-{number:04d}.npz").unlink(missing_ok=True)
            self._taps_path(number).unlink(missing_ok=True)

    def rows(self, documents: Sequence[Document], columns: Sequence[int]) -> np.ndarray:
        """[rows of all documents, len(columns), hidden] uint16 states; `columns` are indices into `taps`."""
        parts = [self._maps[one.shard][one.start : one.start + one.num_rows] for one in documents]
        return np.concatenate([part[:, list(columns)] for part in parts])

    def digest(self) -> str:
        """SHA-256 of all token ids, in order."""
        digest = hashlib.sha256()
        for one in self.documents:
            digest.update(one.conversation.ids.tobytes() + b".")
        return digest.hexdigest()

    @property
    def width(self) -> int | None:
        """Size of a hidden state; None while the store is empty."""
        return next((int(rows.shape[2]) for rows in self._maps.values()), None)

    @property
    def num_answer_tokens(self) -> int:
        """Number of answer tokens in all documents."""
        return sum(len(one.conversation.answer) for one in self.documents)

    def counts(self, vocab_size: int) -> np.ndarray:
        """[vocab_size] number of occurrences of each token in answers that are not held out."""
        total = np.zeros(vocab_size, np.int64)
        for one in self.documents:
            if not one.conversation.is_held_out:
                total += np.bincount(one.conversation.answer, minlength=vocab_size)
        return total

    def _taps_path(self, number: int) -> Path:
        return self.folder / f"taps-{number:04d}.npy"


def _shards(folder: Path) -> dict[int, Path]:
    """Paths of shards by number, with or without a file of states; files with other names are ignored."""
    names = (path for path in folder.glob("shard-*.npz") if is_of_store(path))
    return {int(path.stem.removeprefix("shard-")): path for path in names}


def _index(path: Path) -> tuple[tuple[int, ...], str]:
    """The taps, and the digest of the model (empty where the index has none)."""
    try:
        values = json.loads(path.read_text())
        return tuple(int(tap) for tap in values["taps"]), str(values.get("target", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = f"delete {path.parent}, and the text is written anew"
        raise CorruptWeights(f"{path}: cannot be read ({error}); {remedy}") from None


def _write_index(path: Path, values: dict[str, object]) -> None:
    with writing("work", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / _LOCK), in_one_move(path) as file:
            file.write_text(json.dumps(values))


def _documents(number: int, path: Path) -> list[Document]:
    with np.load(path) as data:
        ids, lengths, kept = data["ids"], data["length"], data["rows"]
        prompts, temperatures = data["prompt"], data["temperature"]
        origin = read_origin(str(data["origin"])) if "origin" in data else NOT_KEPT
    documents, start, row = [], 0, 0
    for length, prompt, temperature, rows in zip(lengths, prompts, temperatures, kept, strict=True):
        own = ids[start : start + length].astype(np.int32)
        documents.append(Document(Conversation(own, int(prompt), float(temperature)), number, row, origin))
        start, row = start + length, row + int(rows)
    return documents
