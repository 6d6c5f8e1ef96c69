"""`StepPlan`: what one step computes for each request; `StepResult` and `Commit`: the results.

Records only; treat them as immutable. Those constructed per request and step are not frozen dataclasses, whose
construction is slow. The engine derives rows, slots and masks from them.
"""

from dataclasses import dataclass, field
from typing import Any

from paceline.scheduling.request import RequestState
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.records import BatchStats
from paceline.types import FinishReason


@dataclass(slots=True)
class Grant:
    """What one request may compute in a step: a prefill chunk, or a decode with a draft.

    The rows write to the slots of positions ``start`` .. ``start + num_rows - 1`` (node i of a tree to that of position
    ``start + 1 + i``, whatever its depth); the request's page table covers them.

    Attributes:
        num_prefill_tokens: tokens of the chunk; 0 for a decode.
        draft_budget: largest number of nodes of the draft tree; 0 for a prefill chunk.
        draft_depth: largest number of its levels; deeper tokens would lie after the end of the output.
        wanted_budget: nodes that the length policy asked for, before the step reduced them.
        start: position of the first row, the request's ``num_computed``.
        needs_logits: whether the step emits a token for this request: a decode, or the chunk that ends the prefill.
    """

    request: RequestState
    num_prefill_tokens: int = 0
    draft_budget: int = 0
    draft_depth: int = 0
    wanted_budget: int = 0
    start: int = 0
    needs_logits: bool = True

    @property
    def is_decode(self) -> bool:
        """Whether the grant is a decode, not a prefill chunk."""
        return self.num_prefill_tokens == 0

    @property
    def num_rows(self) -> int:
        """Largest number of rows: those of the chunk, or the root and its draft."""
        return self.num_prefill_tokens or 1 + self.draft_budget


def chunk_of(request: RequestState, num_tokens: int) -> Grant:
    """The next `num_tokens` tokens of a request's prefill, at most as many as are left."""
    says_first = num_tokens == request.num_to_prefill and not request.num_output_tokens
    return Grant(request, num_prefill_tokens=num_tokens, start=request.num_computed, needs_logits=says_first)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. Decodes come first, in scheduling order, then prefill chunks, in the order in which they got rows.

    Attributes:
        preempted: requests that lost their pages; they wait again and will be recomputed.
        expired: requests whose deadline has passed; they are finished.
        copies: (source, destination) pages whose keys and values to copy, in this order, before the rows run.
        batch: the statistics that the length policy received, with the final number of decodes.
        rows_left: rows that all drafts together may use.
        prompt_rows: rows of chunks, and as many more as their attention takes time.
    """

    grants: tuple[Grant, ...] = ()
    preempted: tuple[RequestState, ...] = ()
    batch: BatchStats = field(default_factory=BatchStats)
    expired: tuple[RequestState, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    rows_left: int = 0
    prompt_rows: int = 0

    @property
    def num_prefill_rows(self) -> int:
        """Rows of prefill chunks."""
        return sum([grant.num_prefill_tokens for grant in self.grants])

    @property
    def num_rows(self) -> int:
        """Largest number of rows of the pass, if drafts use all that they were granted."""
        return sum(grant.num_rows for grant in self.grants)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.grants


@dataclass(slots=True)
class StepResult:
    """What a pass produced for one granted request. Accepted keys and values are already at their positions' slots.

    Attributes:
        num_prefill_tokens: tokens of the chunk that was computed; 0 for a decode.
        token_ids: emitted tokens in order. Decode: the accepted path, then the target's own token. Prefill: the first
            token when the chunk ended the prefill, else nothing.
        num_draft_tokens, depth: nodes and levels verified.
        level_rejected: the target's own token replaced a drafted one (recovered, not bonus).
        num_rejected: nodes that were compared with the target and rejected.
        promised, tokens, parents, picks, taps, is_own: see `RequestOutcome`.
    """

    request_id: str
    num_prefill_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    num_draft_tokens: int = 0
    level_rejected: bool = False
    depth: int = 0
    num_rejected: int = 0
    promised: float = 0.0
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    picks: Any = None
    taps: Any = None
    is_own: bool = False


@dataclass(slots=True)
class Commit:
    """What was committed of one `StepResult`; statistics must count these, not the results.

    Attributes:
        token_ids: tokens appended to the output; what was emitted after a stop is not among them.
        outcome: the record for drafters, policies, prices and metrics.
        finish_reason: None while the request continues.
    """

    request: RequestState
    token_ids: tuple[int, ...]
    outcome: RequestOutcome
    finish_reason: FinishReason | None = None
