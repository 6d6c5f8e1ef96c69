"""The contract between the engine and whatever runs a model: flat rows in, logits out.

Everything a pass computes is a row: a prompt token of a prefill chunk, the last token of a decoding request, a node of
a draft tree. Executors (`numba_executor/`, `torch_executor/`, `cuda_executor/`) implement `CausalLM`; nothing here
knows about requests, schedulers or drafters.

Keys and values live in pages of `PAGE_SIZE` token slots; slot s is place s % PAGE_SIZE of page s // PAGE_SIZE. A row at
position P attends to the P + 1 logical positions 0..P. The first `natural_lengths[row]` of them lie where the
segment's page table says; the rest (tree branches) lie in the slots `branch_slots[row]`, in order of position. Keys
carry their rotation, so a row may as well attend to fewer keys than it has positions before it (`num_keys`): the page
table then names the pages it reads, in order of position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.models.dtypes import DtypeChoice
from paceline.models.states import States
from paceline.sampling.answered import Answer, Question
from paceline.theory.distributed_draft import Chip

PAGE_SIZE = 16
"""Token slots per page of keys and values."""


NORMED = -1
"""The tap after the final norm; tap `num_hidden_layers` is the state before it."""


def pages_for(num_tokens: int) -> int:
    """Pages that hold the keys and values of `num_tokens` tokens."""
    return -(-num_tokens // PAGE_SIZE)


def slot_of(pages: Any, position: Any) -> Any:
    """The cache slot of a `position` in a request with these `pages`; [n] slots for arrays of pages and positions."""
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
        logit_rows: [K] int32, rows whose logits are requested, ascending.
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
    """What a pass returns.

    Attributes:
        logits: [K, vocab] float32 of the rows `Rows.logit_rows`.
        taps: hidden states [M, hidden] float32 by tapped layer.
        peaks: K indices of the largest logits, the first on ties and -1 where unknown; None where the model does not
            compute them.
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
    """A cache whose keys and values can be written directly."""

    def write(self, slots: Sequence[int] | np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """Store rotated keys and values [layers, len(slots), kv_heads, head_dim] float32 in `slots`; see `read`."""
        ...


class CausalLM(Protocol):
    """A model that scores rows."""

    @property
    def config(self) -> ModelConfig:
        """The architecture and its sizes."""
        ...

    @property
    def is_row_invariant(self) -> bool:
        """Whether a row's logits are bitwise the same whatever rows share its pass."""
        ...

    def new_cache(self, num_pages: int) -> KVCache:
        """An empty cache of `num_pages` pages for this model."""
        ...

    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """One pass: writes the rows' keys and values, returns the requested logits.

        `taps` names hidden states to return: tap i is the input of layer i, tap num_hidden_layers the output of the
        last layer, and `NORMED` the state after the final norm.
        """
        ...


@runtime_checkable
class HasDtype(Protocol):
    """A `CausalLM` whose weights may be stored in several dtypes.

    Attributes:
        dtype_choice: the dtype of this one, and why it was chosen.
    """

    dtype_choice: DtypeChoice


@runtime_checkable
class HasThreads(Protocol):
    """A `CausalLM` that says how many threads compute a pass."""

    @property
    def num_threads(self) -> int:
        """That number."""
        ...


@runtime_checkable
class HasDevice(Protocol):
    """A `CausalLM` of tensors on a device.

    Attributes:
        device: a `torch.device`.
    """

    device: Any


@runtime_checkable
class HasDescription(Protocol):
    """A `CausalLM` that may run on several devices."""

    @property
    def description(self) -> str:
        """Its executor, with the parallel degrees."""
        ...


@runtime_checkable
class HasProcesses(Protocol):
    """A `CausalLM` with threads or processes of its own."""

    def close(self) -> None:
        """End them; no pass can run afterwards."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class DrawnOutput:
    """What a pass returns whose tokens were sampled on the device that holds the logits.

    Attributes:
        answers: one for each of `Rows.logit_rows`; None where the question was None.
        logits: [rows without a question, vocab] float32, in order.
        taps: as of `ForwardOutput`, but on the device.
    """

    answers: list[Answer | None]
    logits: np.ndarray
    taps: Mapping[int, States] = field(default_factory=dict)


@runtime_checkable
class DrawsLaws(Protocol):
    """A `CausalLM` that can sample and verify on its own device, without returning logits."""

    def begin_drawn(
        self, rows: Rows, cache: KVCache, taps: tuple[int, ...], questions: Sequence[Question | None]
    ) -> Callable[[], DrawnOutput]:
        """Start a pass as `CausalLM.forward` runs one; the returned function waits for it.

        `questions` has one entry per logit row, None to return that row's logits. A pass need not be waited for.
        """
        ...


@runtime_checkable
class RecordsPasses(Protocol):
    """A `CausalLM` whose first pass of each shape may be recorded (CUDA graphs) and then takes longer than the others.

    Attributes:
        records_passes: whether passes are recorded in this run.
        recorded_sizes: numbers of rows that recorded passes are padded to, in ascending order.
    """

    records_passes: bool
    recorded_sizes: Sequence[int]


@runtime_checkable
class LooksAhead(Protocol):
    """A `CausalLM` that starts the next pass it expects before `forward` asks for it.

    Attributes:
        num_lookahead_slots: slots after each request's last token that must have pages for this.
    """

    num_lookahead_slots: int


@runtime_checkable
class LooksUp(Protocol):
    """A cache of a model that `LooksAhead`, beside which steps with drafts by prompt lookup are started early too."""

    def look_up(self, longest: int, shortest: int, earliest: bool, num_drafts: int) -> int:
        """Keep the tokens of all passes from now on, and look them up as `NGram` does, whose options these are.

        Args:
            num_drafts: the longest draft of a step.

        Returns:
            Lookahead slots that this needs besides those without drafts: such a step begins up to `num_drafts` tokens
            later, and has as many. 0 where steps will not be started early.
        """
        ...


@runtime_checkable
class SkipsLayers(Protocol):
    """A `CausalLM` that can skip layers, as self-speculation does."""

    def with_layers(self, layers: Sequence[int]) -> CausalLM:
        """A model of the same weights that runs only `layers`; a skipped layer passes its input on.

        Caches are those of the whole model; a pass writes and reads the keys and values of its own layers there. With
        all layers named, logits are bitwise those of the whole model. Skipped layers have no taps.

        Raises:
            InvalidParameter: see `checked_layers`.
        """
        ...


@runtime_checkable
class RacesRows(Protocol):
    """A `CausalLM` that can draw from a row of logits faster than by computing its law."""

    def race(self, logits: np.ndarray, best: int, question: Question) -> int | None:
        """The pick of `question`, which has a temperature and no trials; None if the law is needed.

        Args:
            logits: [vocab], a row of a pass, float32, or float64 where its edits are applied to it.
            best: index of its largest.
        """
        ...


@runtime_checkable
class NarrowsVocabulary(Protocol):
    """A `CausalLM` that can compute the logits of only the first ids of its vocabulary, for drafting."""

    def with_vocabulary(self, size: int) -> CausalLM:
        """A model of the same weights that computes logits of the ids below `size` only, [K, size].

        Input tokens may be any; caches are those of the whole model, and each logit is bitwise the whole model's.
        `size` is at least 1; from the vocabulary's size on, the whole vocabulary is scored.
        """
        ...


@runtime_checkable
class WeighsPages(Protocol):
    """A `CausalLM` that can return its attention per page, which page selection needs."""

    def page_attention(self, rows: Rows, cache: KVCache) -> np.ndarray:
        """Run one pass and return [M, max_pages] float32: the share of each row's attention on each page of its table.

        Shares are means over layers and heads. A row sums to 1 minus the attention on branch slots, which must lie
        outside the table.
        """
        ...


@runtime_checkable
class Saturates(Protocol):
    """A `CausalLM` that prefills nearly as fast with few rows in a pass as with many.

    Attributes:
        saturating_rows: rows of a pass that are enough for that. More rows take proportionally longer, and only delay
            the requests that decode in the same pass.
        balanced_context: tokens before a row with which its attention takes as long as its products with weights.
    """

    saturating_rows: int
    balanced_context: float


@runtime_checkable
class RunsInParts(Protocol):
    """A `CausalLM` that splits a pass into micro-batches, so that several pipeline stages work on it at once."""

    def keep_passes_whole(self) -> None:
        """Stop splitting passes: when other passes keep the stages busy, a split only reads all weights again."""
        ...

    def when_first_stage_is_free(self, call: Callable[[], None]) -> None:
        """Invoke `call` from now on whenever the first stage has finished a pass, on the thread that asked for it."""
        ...


@runtime_checkable
class RunsOnRanks(Protocol):
    """A `CausalLM` that runs on several processes.

    Attributes:
        tensor_parallel_size: processes that share each layer.
        largest_cache_share: share of a KV cache that the process with the largest part of it holds.
        least_free_bytes: memory that was free on the device with the least, once the weights were loaded, without that
            of this process; None where processes have no devices of their own.
    """

    tensor_parallel_size: int
    largest_cache_share: float
    least_free_bytes: int | None

    def can_share(self, config: ModelConfig) -> bool:
        """Whether the layers of another model can be split among the same number of processes."""
        ...

    def chip(self) -> Chip:
        """The speed of the devices and of the links between them, as measured with some passes of this model."""
        ...


@runtime_checkable
class RunsHeads(Protocol):
    """A `CausalLM` that draft heads can run with.

    Attributes:
        head_builder: module with `make_net(record, target, dtype)` and `draft_dtype(record)`; see
            `models/heads/build.py`.
    """

    head_builder: str


def checked_layers(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """`layers` in ascending order.

    Raises:
        InvalidParameter: `layers` is empty, names a layer twice, or one that a model of `num_layers` does not have.
    """
    ordered = tuple(sorted(layers))
    if not ordered:
        raise InvalidParameter("layers", "is empty", "keep at least one layer")
    if len(set(ordered)) < len(ordered):
        raise InvalidParameter("layers", f"{list(layers)} names a layer twice", "name each layer once")
    if not 0 <= ordered[0] <= ordered[-1] < num_layers:
        raise InvalidParameter("layers", f"{list(layers)} leaves the model", f"count from 0 to {num_layers - 1}")
    return ordered
