"""Building a memory for lookups: n-grams that occurred more than once in a model's answers, with their probabilities.

Sequences are counted order by order on sorted arrays, never in Python objects: ten million tokens take half a minute
and a few hundred megabytes. Probabilities are smoothed by interpolated absolute discounting (Ney, Essen and Kneser
1994; Chen and Goodman 1998). c is the count of a sequence, C the count of its context (all tokens but the last), T the
number of different tokens after that context, and P' the probability after a context one token shorter:

    P = (max(c - DISCOUNT, 0) + (DISCOUNT * T + PRIOR) * P') / (C + PRIOR)

When space is limited, nodes with the largest c * P * |log(P / P0)| are kept, P0 the probability without the node, after
Stolcke's pruning by relative entropy (1998). Not for the file (`drafters/lookup/memory.py`) or for generating answers
(`self_written.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.drafters.lookup.memory import (
    MOST_CHILDREN,
    Memory,
    MemoryInfo,
    child_blocks,
    stored_chances,
)
from paceline.errors import InvalidParameter

DISCOUNT = 0.8
PRIOR = 2.0
_REMAINS = 0.5
"""Share of a token's probability after the shorter context that remains where the longer context does not list it."""
_UNSEEN = 1e-4
_SEPARATOR = -1


@dataclass(frozen=True, eq=False, slots=True)
class _Level:
    """Sequences of one length, one per row.

    Attributes:
        tokens: last token.
        parents: row, in the level of shorter sequences, of the sequence without its last token.
        counts: occurrences.
        chances: probability of the last token after the others.
        remains: that probability if the row were removed.
    """

    tokens: np.ndarray
    parents: np.ndarray
    counts: np.ndarray
    chances: np.ndarray
    remains: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: np.ndarray, parents: np.ndarray) -> "_Level":
        """The level with only `rows`, and with new parents."""
        named = (self.tokens, self.counts, self.chances, self.remains)
        tokens, counts, chances, remains = (values[rows] for values in named)
        return _Level(tokens, parents, counts, chances, remains)


def build_memory(
    texts: Sequence[np.ndarray],
    info: MemoryInfo,
    most_bytes: int | None = None,
    least_count: int = 2,
) -> Memory:
    """Build a memory from texts.

    Args:
        texts: token ids of each text; no sequence spans two texts.
        info: `order` is the length of the longest sequences, `vocab_size` is larger than any id.
        most_bytes: largest size of the arrays; None keeps everything.
        least_count: sequences that occur less often are left out.

    Raises:
        InvalidParameter: no text, an id outside the vocabulary, or a number out of range.
    """
    for field, value, least in (("order", info.order, 1), ("min_count", least_count, 1), ("max_bytes", most_bytes, 1)):
        if value is not None and value < least:
            raise InvalidParameter(field, f"{value} is less than {least}", f"give {least} or more")
    ids = _joined(texts, info.vocab_size)
    levels = _levels(ids, info.order, info.vocab_size, least_count)
    most = None if most_bytes is None else int(most_bytes / _node_bytes(info.vocab_size))
    return _packed(_pruned(levels, most), info)


def _joined(texts: Sequence[np.ndarray], vocab_size: int) -> np.ndarray:
    """All texts in one array, a separator after each."""
    parts = [np.append(np.asarray(text, dtype=np.int64), _SEPARATOR) for text in texts]
    ids = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if not (ids >= 0).any():
        raise InvalidParameter("answers", "hold no token", "give at least one answer")
    if ids.min() < _SEPARATOR or ids.max() >= vocab_size:
        problem = f"hold token {ids.max()}, and the model has {vocab_size}"
        raise InvalidParameter("answers", problem, "give answers of this very model")
    return ids


def _levels(ids: np.ndarray, order: int, vocab_size: int, least_count: int) -> list[_Level]:
    """Sequences of 1, 2, ... tokens that occur at least `least_count` times; siblings adjacent, most probable first.

    `at` holds, per position of `ids`, the row of the sequence that begins there, or -1 where it is not kept.
    """
    levels: list[_Level] = []
    at, size = np.zeros(len(ids), np.int64), 1
    while len(levels) < order and size:
        length = len(levels) + 1
        places = np.flatnonzero(at[: len(ids) - length + 1] >= 0)
        places = places[ids[places + length - 1] != _SEPARATOR]
        keys = at[places] * vocab_size + ids[places + length - 1]
        found, first, which, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        shorter = at[places[first] + 1] if levels else np.full(len(found), -1)
        level = _smoothed(found // vocab_size, found % vocab_size, counts, levels, shorter, size, vocab_size)
        rows = np.flatnonzero(counts >= least_count)
        rows = rows[np.lexsort((-level.chances[rows], level.parents[rows]))]
        levels.append(level.take(rows, level.parents[rows]))
        row_of = np.full(len(found), -1, np.int64)
        row_of[rows] = np.arange(len(rows))
        at = np.full(len(ids), -1, np.int64)
        at[places] = row_of[which]
        size = len(rows)
    return levels


def _smoothed(
    parents: np.ndarray, tokens: np.ndarray, counts: np.ndarray, levels: list[_Level], shorter: np.ndarray, size: int,
    vocab_size: int,
) -> _Level:  # fmt: skip
    """The level of all sequences found; `shorter` [rows] is the row of each without its first token, -1 for none."""
    total = np.bincount(parents, weights=counts, minlength=size)[parents]
    followers = np.bincount(parents, minlength=size)[parents]
    if levels:
        lower = np.where(shorter >= 0, levels[-1].chances[shorter], _UNSEEN)
    else:
        lower = np.full(len(counts), 1 / vocab_size)
    mass = DISCOUNT * followers + PRIOR
    chances = (np.maximum(counts - DISCOUNT, 0) + mass * lower) / (total + PRIOR)
    remains = np.maximum(_REMAINS * lower, _UNSEEN) if levels else np.full(len(counts), _UNSEEN)
    return _Level(tokens, parents, counts, chances, remains)


def _pruned(levels: Sequence[_Level], most: int | None) -> list[_Level]:
    """At most `MOST_CHILDREN` per parent, the most probable, and `most` rows in all, by `_missed`."""
    ranks = [np.arange(len(level)) - np.searchsorted(level.parents, level.parents) for level in levels]
    ranks[0][:] = 0  # single tokens have no parent
    kept = _kept(levels, [rank < MOST_CHILDREN for rank in ranks])
    if most is None or most >= sum(map(len, kept)):
        return kept
    missed = _missed(kept)
    everything = np.concatenate(missed)
    least = np.partition(everything, -most)[-most]
    return _kept(kept, [values >= least for values in missed])


def _missed(levels: Sequence[_Level]) -> list[np.ndarray]:
    """The pruning score of each sequence; a prefix scores at least as much as its extensions."""
    missed = [level.counts * level.chances * np.abs(np.log(level.chances / level.remains)) for level in levels]
    for below in range(len(levels) - 1, 0, -1):
        np.maximum.at(missed[below - 1], levels[below].parents, missed[below])
    return missed


def _kept(levels: Sequence[_Level], wanted: Sequence[np.ndarray]) -> list[_Level]:
    """The wanted rows whose parents are kept."""
    kept: list[_Level] = []
    row_of = np.zeros(1, np.int64)
    for level, mask in zip(levels, wanted, strict=True):
        parents = row_of[level.parents]
        rows = np.flatnonzero(mask & (parents >= 0))
        row_of = np.full(len(level), -1, np.int64)
        row_of[rows] = np.arange(len(rows))
        kept.append(level.take(rows, parents[rows]))
    return kept


def _packed(levels: Sequence[_Level], info: MemoryInfo) -> Memory:
    """The memory with all levels concatenated; parents are stored as numbers of children."""
    sizes = [len(level) for level in levels]
    children = [np.bincount(below.parents, minlength=size) for below, size in zip(levels[1:], sizes, strict=False)]
    counts = np.concatenate([*children, np.zeros(sizes[-1], np.int64)]).astype(np.uint8)
    kind = np.uint16 if info.vocab_size <= 1 << 16 else np.uint32
    tokens = np.concatenate([level.tokens for level in levels]).astype(kind)
    chances = stored_chances(np.concatenate([level.chances for level in levels]))
    return Memory(info, tokens, chances, counts, child_blocks(counts, sizes[0]))


def _node_bytes(vocab_size: int) -> float:
    return (2 if vocab_size <= 1 << 16 else 4) + 2 + 4 / 32
