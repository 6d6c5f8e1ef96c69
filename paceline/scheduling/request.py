"""`RequestState`: the scheduler's state of a running request.

Written by the scheduler; the engine sets only a request's drafting options and `completes_stop`. The user's parameters
are `paceline.types.SamplingParams`; text belongs to the engine.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from paceline.errors import InvalidParameter
from paceline.speculation.records import DraftStats
from paceline.types import FinishReason, SamplingParams


def page_table_of(pages: Iterable[int] = ()) -> "array[int]":
    """A page table of these pages."""
    return array("i", pages)


class Status(Enum):
    """Status of a request."""

    WAITING = "waiting"
    """Holds no pages: not admitted yet, or preempted."""
    PREFILL = "prefill"
    """Holds pages; some of its tokens have no keys and values yet."""
    RUNNING = "running"
    """All tokens but the last are in the cache; every step emits at least one."""
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class RequestState:
    """One request from arrival to finish.

    Attributes:
        request_id: unique among the scheduler's unfinished requests.
        prompt_token_ids: at least one token.
        params: the user's parameters.
        arrival_time: seconds on the caller's clock.
        priority: smaller values run earlier, as in vLLM; equal ones run in order of arrival.
        deadline: time at which the request ends, in seconds on the caller's clock; None for never.
        leader: the request that computes the same prompt first, so that this one can share its pages (samples of one
            prompt).
        salt: pages and remembered texts are shared only among requests of the same salt (`pages.salt_of`).
        token_ids: prompt and committed output. One list that only grows, so that drafters may read it without copies.
        num_computed: leading tokens whose keys and values are in the cache. Committed tokens only.
        page_table: page ids in order of position, int32, so that rows are made without converting each; at least
            ``num_computed`` slots.
        num_cached_tokens: prompt tokens found in the cache at the first admission.
        output_limit: most output tokens: ``max_tokens``, limited by the model's length when the scheduler adds it.
        reserved_tokens: slots reserved at admission, by policies that do so.
        page_digests: chained digests of its full pages of computed tokens.
        completes_stop: callback, called in order with every committed token of a request with stop strings or a
            grammar; whether that token completes one of these. None when there is no text, as in simulations.
        sequence: number in which the scheduler added the request; breaks ties of arrival.
        drafts: whether drafts may be requested; False where the drafter failed, or the request wants none.
        most_drafts: the request's own limit on nodes of a draft; None leaves it to the length policy.
        fixed_drafts: nodes to draft at every step, whatever the length policy says.
        least_drafts: nodes to draft at the next step at least, for tokens that the grammar forces or the prediction
            gives.
        draft_stats: record of its drafts.
        followers: requests that wait for this one's prompt to be computed.
        first_scheduled_time, first_token_time, finish_time: seconds on the caller's clock; None until then.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival_time: float = 0.0
    priority: int = 0
    deadline: float | None = None
    leader: "RequestState | None" = field(default=None, repr=False)
    salt: bytes = b""
    status: Status = Status.WAITING
    token_ids: list[int] = field(init=False)
    num_computed: int = 0
    page_table: "array[int]" = field(default_factory=page_table_of)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    output_limit: int = field(init=False)
    reserved_tokens: int = 0
    page_digests: list[bytes] = field(default_factory=list, repr=False)
    completes_stop: Callable[[int], bool] | None = field(default=None, repr=False)
    drafts: bool = True
    most_drafts: int | None = None
    fixed_drafts: int = 0
    least_drafts: int = 0
    sequence: int = 0
    draft_stats: DraftStats = field(default_factory=DraftStats)
    followers: "list[RequestState]" = field(default_factory=list, repr=False)
    finish_reason: FinishReason | None = None
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finish_time: float | None = None

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise InvalidParameter("prompt_token_ids", "the prompt is empty", "give at least one token, e.g. BOS")
        self.prompt_token_ids = tuple(self.prompt_token_ids)
        self.token_ids = list(self.prompt_token_ids)
        self.output_limit = self.params.max_tokens

    @property
    def num_tokens(self) -> int:
        """Number of tokens, prompt and committed output."""
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Number of committed output tokens."""
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the committed output."""
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def num_to_compute(self) -> int:
        """Tokens without keys and values; 1 while decoding (the last token, root of the next draft)."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_to_prefill(self) -> int:
        """Tokens to compute before the request can decode. A new one computes its whole prompt, whose last row gives
        the first output token. A preempted one computes all but its last token, which it then decodes."""
        return self.num_to_compute - 1 if self.num_output_tokens else self.num_to_compute

    @property
    def num_output_left(self) -> int:
        """Largest number of further output tokens."""
        return self.output_limit - len(self.token_ids) + len(self.prompt_token_ids)

    @property
    def most_slots(self) -> int:
        """Largest number of cache slots the request can need; the last output token is never computed."""
        return self.num_prompt_tokens + self.output_limit - 1

    def draft_budget(self, wanted: int) -> int:
        """Nodes to draft, given that the length policy wants `wanted`."""
        nodes = max(wanted, self.fixed_drafts, self.least_drafts)
        return nodes if self.most_drafts is None else min(nodes, self.most_drafts)

    def withdraw(self) -> None:
        """Reset the state after the request's pages were released; it waits to be recomputed."""
        self.page_table, self.page_digests = page_table_of(), []
        self.num_computed = self.reserved_tokens = 0
        self.num_preemptions += 1
        self.draft_stats.num_unread = self.num_tokens
        self.status = Status.WAITING

    @property
    def order(self) -> tuple[int, float, int]:
        """Sort key of scheduling order; the request with the largest key is preempted first."""
        return self.priority, self.arrival_time, self.sequence
