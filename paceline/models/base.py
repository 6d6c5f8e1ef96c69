"""The contract between the engine and whatever runs a model: flat rows in, logits out.

Everything a pass computes is a row: a prompt token of a prefill chunk, the last token of a decoding request, a node of
a draft tree. Executors (`numba_executor/`, `torch_executor/`) implement `CausalLM`; nothing here knows about requests,
schedulers or drafters.

Keys and values live in pages of `PAGE_SIZE` token slots; slot s is place s % PAGE_SIZE of page s // PAGE_SIZE. A row at
position P attends to the P + 1 logical positions 0..P. The first `natural_lengths[row]` of them lie where the
segment's page table says; the rest (tree branches) lie in the slots `branch_slots[row]`, in order of position. Keys
carry their rotation, so a row may as well attend to fewer keys than it has positions before it (`num_keys`): the page
table then names the pages it reads, in order of position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.config import ModelConfig
from paceline.sampling.answered import Answer, Question
from paceline.theory.distributed_draft import Chip

PAGE_SIZE = 16
"""Token slots per page of keys and values."""


NORMED = -1
"""The tap after the final norm, where tap `num_hidden_layers` is the state before it."""


def pages_for(num_tokens: int) -> int:
    """Pages that hold the keys and values of `num_tokens` tokens."""
    return -(-num_tokens // PAGE_SIZE)


def slot_of(pages: Any, position: Any) -> Any:
    """The cache slot of a `position` in a request with these `pages`; [n] int for an array of each."""
    return pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """One flat batch of M rows over S segments (one segment per request).

    Attributes:
        token_ids: [M] int32.
        positions: [M] int32, absolute position of each row's token (depth-based inside a tree).
        slots: [M] int32, cache slot that receives the row's key and value.
        segments: [M] int32, segment of each row, non-decreasing.
        page_tables: [S, max_pages] int32, page ids of each segment in order of position; -1 after the end.
        natural_lengths: [M] int32, leading logical positions that lie at their page-table slots (the row's own
            position included when it does).
        branch_slots: [M, D] int32, slots of the logical positions natural_lengths[row] .. positions[row]; -1 after
            the end. D is 0 when the batch holds no branches.
        logit_rows: [K] int32, rows whose logits are asked for, ascending.
        num_keys: [M] int32, keys each row attends to, its own included; None for positions + 1, the whole context.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    segments: np.ndarray
    page_tables: np.ndarray
    natural_lengths: np.ndarray
    branch_slots: np.ndarray
    logit_rows: np.ndarray
    num_keys: np.ndarray | None = None

    @property
    def lengths(self) -> np.ndarray:
        """[M] keys each row attends to."""
        return self.positions + 1 if self.num_keys is None else self.num_keys

    def key_slots(self, row: int) -> np.ndarray:
        """[lengths[row]] cache slots that `row` attends to, in order of position."""
        natural = int(self.natural_lengths[row])
        pages = self.page_tables[self.segments[row]]
        branch = self.branch_slots[row][: int(self.lengths[row]) - natural]
        return np.concatenate([slot_of(pages, np.arange(natural)), branch])


@dataclass(frozen=True, eq=False, slots=True)
class ForwardOutput:
    """What a pass says.

    Attributes:
        logits: [K, vocab] float32 of the asked rows.
        taps: hidden states [M, hidden] float32 by tapped layer.
        peaks: K places of the largest logits, the first on ties and -1 where that is not known; None where the model
            does not look for them.
    """

    logits: np.ndarray
    taps: dict[int, np.ndarray] = field(default_factory=dict)
    peaks: Sequence[int] | None = None


class KVCache(Protocol):
    """Paged keys and values of one model."""

    @property
    def num_pages(self) -> int:
        """Pages of `PAGE_SIZE` slots each."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory of all keys and values, in bytes."""
        ...

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy the keys and values of slots `sources` to slots `destinations`, all reads before any write."""
        ...

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [layers, len(slots), kv_heads, head_dim] float32, for tests and inspection."""
        ...


@runtime_checkable
class TakesKeys(KVCache, Protocol):
    """A cache that others may write to."""

    def write(self, slots: Sequence[int] | np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """Put keys, rotated, and values [layers, len(slots), kv_heads, head_dim] float32 into `slots`; see `read`."""
        ...


class CausalLM(Protocol):
    """A model that scores rows."""

    @property
    def config(self) -> ModelConfig:
        """The architecture and its sizes."""
        ...

    def new_cache(self, num_pages: int) -> KVCache:
        """An empty cache of `num_pages` pages for this model."""
        ...

    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """One pass: writes the rows' keys and values, returns the asked logits.

        `taps` names hidden states: tap i enters layer i, i = num_hidden_layers leaves the last layer, and `NORMED` is
        the state after the final norm.
        """
        ...


@dataclass(frozen=True, eq=False, slots=True)
class DrawnOutput:
    """What a pass says whose laws were drawn from where its logits are.

    Attributes:
        answers: one for each asked row of logits, None where the row itself was wanted.
        logits: [wanted rows, vocab] float32, in order.
        taps: as of `ForwardOutput`.
    """

    answers: list[Answer | None]
    logits: np.ndarray
    taps: dict[int, np.ndarray] = field(default_factory=dict)


@runtime_checkable
class DrawsLaws(Protocol):
    """What a `CausalLM` has besides when it can answer questions about laws without handing out their logits."""

    def forward_drawn(
        self, rows: Rows, cache: KVCache, taps: tuple[int, ...], questions: Sequence[Question | None]
    ) -> DrawnOutput:
        """One pass as `CausalLM.forward`, with one question for each asked row of logits; None wants the row."""
        ...


@runtime_checkable
class RecordsPasses(Protocol):
    """What a `CausalLM` has besides when the first pass of each shape takes longer than the others.

    Attributes:
        records_passes: it does so in this run.
    """

    records_passes: bool


@runtime_checkable
class LooksAhead(Protocol):
    """What a `CausalLM` has besides when it begins passes that it foresees before they are asked for.

    Attributes:
        num_lookahead_slots: slots after each request's last token that it needs pages for.
    """

    num_lookahead_slots: int


@runtime_checkable
class SkipsLayers(Protocol):
    """What a `CausalLM` has besides when it can leave layers out, as self-speculation does."""

    def with_layers(self, layers: Sequence[int]) -> CausalLM:
        """The same weights with only `layers` run: a layer that is left out hands its input on.

        Caches are those of the whole model; a pass writes and reads the keys and values of its own layers there. With
        all layers named, logits are bitwise those of the whole model. Layers that are left out have no taps.

        Raises:
            InvalidParameter: see `checked_layers`.
        """
        ...


@runtime_checkable
class NarrowsVocabulary(Protocol):
    """What a `CausalLM` has besides when it can score the first ids of its vocabulary alone, for drafting."""

    def with_vocabulary(self, size: int) -> CausalLM:
        """The same weights whose passes score the ids below `size` only: their logits are [K, size].

        Any token may be read, caches are those of the whole model, and each logit is bitwise the whole model's. `size`
        is at least 1; the whole vocabulary where it has no more.
        """
        ...


@runtime_checkable
class WeighsPages(Protocol):
    """What a `CausalLM` has besides when it can tell where its attention goes, as page selection needs to know."""

    def page_attention(self, rows: Rows, cache: KVCache) -> np.ndarray:
        """[M, max_pages] float32: the share of each row's attention on each page of its table, one pass.

        The mean over layers and heads, so a row sums to 1 less what goes to branch slots; those are to lie outside the
        table.
        """
        ...


@runtime_checkable
class RunsInParts(Protocol):
    """What a `CausalLM` has besides when it cuts a pass into parts, so that several stages work on it at once."""

    def keep_passes_whole(self) -> None:
        """Cut none from now on: where other passes keep the stages busy, each part only reads all weights again."""
        ...

    def when_first_stage_is_free(self, call: Callable[[], None]) -> None:
        """`call` from now on, on the thread that asked for a pass, as soon as the first stage is done with it."""
        ...


@runtime_checkable
class RunsOnRanks(Protocol):
    """What a `CausalLM` has besides when several processes share each of its layers.

    Attributes:
        tensor_parallel_size: how many.
    """

    tensor_parallel_size: int

    def can_share(self, config: ModelConfig) -> bool:
        """Whether the layers of another model can be shared by as many."""
        ...

    def chip(self) -> Chip:
        """The devices and the links between them, as some passes of this model found them."""
        ...


@runtime_checkable
class RunsHeads(Protocol):
    """What a `CausalLM` has besides when draft heads can run beside it.

    Attributes:
        head_builder: module with `make_net(record, target, dtype)` and `draft_dtype(record)`; see
            `models/heads/build.py`.
    """

    head_builder: str


def checked_layers(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """`layers` in ascending order.

    Raises:
        InvalidParameter: none, one twice, or one that a model of `num_layers` does not have.
    """
    ordered = tuple(sorted(layers))
    if not ordered:
        raise InvalidParameter("layers", "is empty", "keep at least one layer")
    if len(set(ordered)) < len(ordered):
        raise InvalidParameter("layers", f"{list(layers)} names a layer twice", "name each layer once")
    if not 0 <= ordered[0] <= ordered[-1] < num_layers:
        raise InvalidParameter("layers", f"{list(layers)} leaves the model", f"count from 0 to {num_layers - 1}")
    return ordered
