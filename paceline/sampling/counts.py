"""`OutputCounts`: how often a request has emitted each token, kept while its text grows.

Every committed token is counted once, so the cost of a penalised law depends on the number of distinct tokens, not on
the length of the text. Not for applying penalties (`warp.py`).
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

_FIRST_CAPACITY = 64


class OutputCounts:
    """Counts of one request's output tokens.

    Args:
        token_ids: prompt and output of the request: its own list, which only grows.
        num_prompt_tokens: length of the prompt.
        with_prompt: include the prompt's tokens in `totals`; their counts are still those in the output.
    """

    def __init__(self, token_ids: Sequence[int], num_prompt_tokens: int, with_prompt: bool) -> None:
        self._token_ids = token_ids
        self._num_read = num_prompt_tokens
        prompt = np.unique(np.asarray(token_ids[:num_prompt_tokens] if with_prompt else (), dtype=np.int64))
        self._slots: dict[int, int] = {token: slot for slot, token in enumerate(prompt.tolist())}
        self._ids = np.concatenate([prompt, np.zeros(_FIRST_CAPACITY, np.int64)])
        self._counts = np.zeros(len(self._ids), np.int64)

    def totals(self, path: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Distinct tokens [k], unordered, and their counts [k]: 0 for tokens of the prompt only. Do not modify them.

        Args:
            path: drafted tokens after the committed ones, counted for this call only.
        """
        self._catch_up()
        size = len(self._slots)
        ids, counts = self._ids[:size], self._counts[:size]
        if not path:
            return ids, counts
        counts, new = counts.copy(), Counter[int]()
        for token in path:
            slot = self._slots.get(token)
            if slot is None:
                new[token] += 1
            else:
                counts[slot] += 1
        if not new:
            return ids, counts
        return np.concatenate([ids, list(new)]), np.concatenate([counts, list(new.values())])

    def _catch_up(self) -> None:
        """Count the tokens committed since the last call."""
        if self._num_read == len(self._token_ids):
            return
        for token in self._token_ids[self._num_read :]:
            slot = self._slots.get(token)
            if slot is None:
                slot = self._add(token)
            self._counts[slot] += 1
        self._num_read = len(self._token_ids)

    def _add(self, token: int) -> int:
        """A slot for a token seen for the first time."""
        slot = self._slots[token] = len(self._slots)
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        return slot
