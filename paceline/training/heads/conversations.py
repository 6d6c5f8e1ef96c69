"""Prompts with the answers of the target, as token ids, on which draft heads are trained.

Whether a conversation is held out depends only on its prompt, so it is the same in every run. Not for hidden states
(`shards.py`) or for generating answers (`training/self_written.py`, `training_jobs/write_text.py`).
"""

import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

HELD_OUT_SHARE = 40
"""One prompt in so many is held out."""

NGRAM = 13
"""Number of consecutive words that a conversation may not share with a benchmark (Brown et al. 2020, appendix C)."""


@dataclass(frozen=True, eq=False, slots=True)
class Conversation:
    """A prompt with its template and the target's answer.

    Attributes:
        ids: [n] int32, prompt and answer.
        num_prompt: how many of them are the prompt.
        temperature: of the answer.
    """

    ids: np.ndarray
    num_prompt: int
    temperature: float

    @property
    def answer(self) -> np.ndarray:
        """Ids of the answer."""
        return self.ids[self.num_prompt :]

    @property
    def is_held_out(self) -> bool:
        """Whether it is for evaluation only, never for training."""
        return is_held_out(self.ids[: self.num_prompt])


def is_held_out(prompt: np.ndarray) -> bool:
    """Whether the conversation with these prompt ids is held out: decided by the CRC-32 of the ids' lower 16 bits."""
    return zlib.crc32(np.asarray(prompt).astype(np.uint16).tobytes()) % HELD_OUT_SHARE == 0


def arrays_of(conversations: Sequence[Conversation]) -> dict[str, np.ndarray]:
    """Arrays that files hold, by name: ``ids`` of all, and ``length``, ``prompt`` and ``temperature`` of each."""
    return {
        "ids": np.concatenate([one.ids for one in conversations]).astype(np.int32),
        "length": np.array([len(one.ids) for one in conversations], np.int32),
        "prompt": np.array([one.num_prompt for one in conversations], np.int32),
        "temperature": np.array([one.temperature for one in conversations], np.float32),
    }


def draft_vocabulary(counts: np.ndarray, size: int, always: Collection[int] = ()) -> np.ndarray:
    """[size] int32 ascending ids of the most frequent tokens; ids in `always` are included whatever their count.

    Args:
        counts: [vocabulary] number of occurrences of each token in the target's answers.
    """
    score = counts.astype(np.float64)
    score[list(always)] = np.inf
    size = min(size, len(counts))
    return np.sort(np.argsort(-score, kind="stable")[:size]).astype(np.int32)


def coverage(counts: np.ndarray, ids: np.ndarray) -> float:
    """Share of the counted tokens whose id is in `ids`; 1 where nothing was counted."""
    return float(counts[ids].sum() / max(counts.sum(), 1)) if counts.sum() else 1.0


def words(text: str) -> list[str]:
    """The words of `text`, in lower case; everything but letters and digits separates words."""
    return "".join(c if c.isalnum() else " " for c in text.lower()).split()


def ngrams(text: str, size: int = NGRAM) -> set[tuple[str, ...]]:
    """All sequences of `size` consecutive words."""
    found = words(text)
    return {tuple(found[i : i + size]) for i in range(len(found) - size + 1)}


def ngrams_of(texts: Iterable[str]) -> set[tuple[str, ...]]:
    """The n-grams of all texts, for `is_contaminated`."""
    return set().union(*map(ngrams, texts))


def is_contaminated(text: str, benchmark: set[tuple[str, ...]]) -> bool:
    """Whether `text` has an n-gram in common with the benchmark."""
    return bool(benchmark) and not benchmark.isdisjoint(ngrams(text))
