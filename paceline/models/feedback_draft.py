"""`FeedbackDraft`: runs a draft model with a feedback memory (SPIRe) on any executor.

A row runs in an ordinary pass: it attends to its own key and to the memory keys, which lie in the cache, of earlier
rows in its window. Afterwards its key and value in the cache are replaced by those of its memory. The cache of a text
has a fixed size: a slot for each sink, and a ring for the window plus `SLACK` rows, so that up to `SLACK` rejected rows
can be rolled back without needing anything they overwrote. Not for the drafting loop (`drafters/self_drafts/spire.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.models.base import PAGE_SIZE, CausalLM, ForwardOutput, Rows, TakesKeys, pages_for, slot_of
from paceline.models.feedback import PASSES, FeedbackWeights, Sparse
from paceline.models.overlay import Overlay, overlay_rows

SLACK = 64
"""Rows that can be rolled back."""


@dataclass(eq=False, slots=True)
class Memory:
    """The feedback memory of one text.

    Attributes:
        pages: [n] cache pages that hold it, those of the sinks first.
        first: the lowest position that it holds besides the sinks.
    """

    pages: np.ndarray
    first: int = 0


class FeedbackDraft:
    """Scores rows of texts with a feedback memory.

    Args:
        model: the draft model; its caches implement `TakesKeys`.
        weights: compute keys and values of the memory.
        sparse: window and sinks.
        num_texts: initial capacity, which grows as needed.
    """

    def __init__(self, model: CausalLM, weights: FeedbackWeights, sparse: Sparse, num_texts: int = 1) -> None:
        self._model, self._weights, self._sparse = model, weights, sparse
        self._taps = tuple(range(model.config.num_hidden_layers + 1))
        self._num_sink_pages = pages_for(sparse.num_sinks)
        self._num_ring_pages = pages_for(sparse.window + SLACK)
        self._num_pages = self._num_sink_pages + self._num_ring_pages
        self._reading = pages_for(sparse.num_sinks + sparse.window)
        """Scratch pages for the rows of a prompt that is read at once; the same number again holds their own keys."""
        self._cache, self._free = self._new_cache(0), list[int]()
        self._grow(num_texts)

    @property
    def slack(self) -> int:
        """Rows that can be rolled back."""
        return SLACK

    def new_memory(self) -> Memory:
        """The memory of an empty text."""
        if not self._free:
            self._grow(2 * self._num_texts)
        first = 2 * self._reading + self._free.pop() * self._num_pages
        return Memory(np.arange(first, first + self._num_pages, dtype=np.int32))

    def score_with(self, model: CausalLM) -> None:
        """Use another view of the same weights from now on, e.g. one with fewer layers; caches must be compatible."""
        self._model = model

    def release(self, memory: Memory) -> None:
        """Free the pages of `memory`."""
        self._free.append((int(memory.pages[0]) - 2 * self._reading) // self._num_pages)

    def read(self, memory: Memory, tokens: Sequence[int]) -> None:
        """Fill `memory` with a text from its beginning, in `PASSES` passes over its sinks and its last window."""
        memory.first = max(len(tokens) - self._sparse.window, 0)
        sinks = range(min(self._sparse.num_sinks, memory.first))
        positions = np.array([*sinks, *range(memory.first, len(tokens))], np.int32)
        if not len(positions):
            return
        ids, places = np.asarray(tokens, np.int32)[positions], np.arange(len(positions))
        for number in range(PASSES):
            out = self._model.forward(self._rows_at_once(ids, positions, number > 0), self._cache, self._taps)
            kept = self._memory_of(out, positions)
            self._cache.write(places if number + 1 < PASSES else self._slots(memory, positions), *kept)

    def step(self, memories: Sequence[Memory], tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """[n, vocab] logits of one more row for each of n texts; the rows are added to the memories.

        The logits are valid until the next step.
        """
        rows = [self._row(*each) for each in zip(memories, tokens, positions, strict=True)]
        out = self._model.forward(overlay_rows(rows), self._cache, self._taps)
        self._cache.write([row.slots[-1] for row in rows], *self._memory_of(out, np.array(positions)))
        return out.logits

    def _memory_of(self, out: ForwardOutput, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Memory keys and values [layers, n, key heads, D] that replace the rows' own."""
        return self._weights.keys_values(np.stack([out.taps[tap] for tap in self._taps]), positions)

    def _row(self, memory: Memory, token: int, position: int) -> Overlay:
        """A row that attends to ring pages inside its window as pages, and to the remaining keys as single slots."""
        sinks = self._sparse.num_sinks
        low = max(position - self._sparse.window + 1, memory.first, sinks)
        begin = -(-(low - sinks) // PAGE_SIZE)
        end = max((position - sinks) // PAGE_SIZE, begin)
        pages = memory.pages[self._num_sink_pages + np.arange(begin, end) % self._num_ring_pages]
        first, last = (min(sinks + block * PAGE_SIZE, position) for block in (begin, end))
        single = [*range(min(sinks, position)), *range(low, first), *range(last, position), position]
        return Overlay(token, pages, len(pages) * PAGE_SIZE, position, self._slots(memory, np.array(single)).tolist())

    def _rows_at_once(self, ids: np.ndarray, positions: np.ndarray, with_memory: bool) -> Rows:
        """Rows that attend to the rows before them.

        With a memory they attend to the memory keys of those rows, and their own keys go to separate slots.
        """
        places = np.arange(len(ids), dtype=np.int32)
        own = places + (self._reading * PAGE_SIZE if with_memory else 0)
        return Rows(
            token_ids=ids,
            positions=positions,
            slots=own,
            segments=np.zeros(len(ids), np.int32),
            page_tables=np.arange(self._reading, dtype=np.int32)[None],
            natural_lengths=places if with_memory else places + 1,
            branch_slots=own[:, None] if with_memory else np.empty((len(ids), 0), np.int32),
            logit_rows=np.empty(0, np.int32),
            num_keys=places + 1,
        )

    def _slots(self, memory: Memory, positions: np.ndarray) -> np.ndarray:
        """[n] cache slots of the rows at `positions`."""
        sinks = self._sparse.num_sinks
        ring = (positions - sinks) % (self._num_ring_pages * PAGE_SIZE)
        return slot_of(memory.pages, np.where(positions < sinks, positions, self._num_sink_pages * PAGE_SIZE + ring))

    def _grow(self, num_texts: int) -> None:
        """Enlarge the cache to `num_texts` texts in total; existing memories are kept."""
        before, self._cache = self._cache, self._new_cache(num_texts)
        slots = np.arange(before.num_pages * PAGE_SIZE)
        self._cache.write(slots, *before.read(slots.tolist()))
        self._free += range(num_texts - 1, (before.num_pages - 2 * self._reading) // self._num_pages - 1, -1)
        self._num_texts = num_texts

    def _new_cache(self, num_texts: int) -> TakesKeys:
        cache = self._model.new_cache(2 * self._reading + num_texts * self._num_pages)
        assert isinstance(cache, TakesKeys)
        return cache
