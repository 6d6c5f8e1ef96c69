"""`ServedRing`: the latest served texts with the target's hidden states, in a folder of bounded size.

It is a `TapStore` whose oldest files are deleted. Only its owner can read the folder, because it contains the texts as
token ids.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paceline.disk import writing
from paceline.errors import InvalidParameter
from paceline.training.heads.conversations import Conversation
from paceline.training.heads.origins import NOT_KEPT, SERVED, Origin
from paceline.training.heads.shards import TapStore, is_of_store

MAX_TOKENS = 100_000
_REMEDY = "name a new folder, or one that a server kept texts in: old texts of a ring are deleted"


class ServedRing:
    """A ring buffer of served texts on disk.

    Args:
        folder: created when missing, for its owner only; a folder with other files is refused.
        taps: hidden states of a row, in order.
        max_tokens: most rows that are kept; whole files are deleted, but never the latest.
        shard_rows: rows of a file, at most a quarter of `max_tokens`; texts stay in memory until there are as many.
        target: digest of the model's weights, see `TapStore`.

    Raises:
        InvalidParameter: a size out of range, a folder with other files, other hidden states, texts that were not
            served or states of another model, or one that cannot be written.
    """

    def __init__(self, folder: Path, taps: Sequence[int], max_tokens: int = MAX_TOKENS, shard_rows: int = 4096,
                 target: str = "") -> None:  # fmt: skip
        if max_tokens < 1:
            raise InvalidParameter("max_tokens", f"{max_tokens} is less than 1", "give at least 1")
        with writing("keep_served", folder):
            others = [path.name for path in folder.iterdir() if not is_of_store(path)] if folder.is_dir() else []
            if others:
                raise InvalidParameter("keep_served", f"{folder} holds other things ({min(others)})", _REMEDY)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        self.store = TapStore(folder, taps, target)
        if any(one.origin not in (Origin(SERVED), NOT_KEPT) for one in self.store.documents):
            raise InvalidParameter("keep_served", f"{folder} holds texts that were not served", _REMEDY)
        self._max_tokens, self._shard_rows = max_tokens, min(shard_rows, max(max_tokens // 4, 1))
        self._waiting: list[tuple[Conversation, np.ndarray]] = []

    def add(self, conversation: Conversation, states: np.ndarray) -> None:
        """Add a text of n ids with its states [n - 1, taps, hidden] uint16 (`to_bfloat16`)."""
        self._waiting.append((conversation, states))
        if sum(len(one) for _, one in self._waiting) >= self._shard_rows:
            self.flush()

    def flush(self) -> None:
        """Write the texts in memory, and delete the oldest files beyond `max_tokens` rows."""
        if self._waiting:
            conversations, states = zip(*self._waiting, strict=True)
            self._waiting = []
            self.store.add(conversations, states, Origin(SERVED))
        self.store.drop_oldest(self._max_tokens)
