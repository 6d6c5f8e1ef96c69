"""`RequestState`: everything that changes while a request runs.

Only the scheduler writes here. What the user asked for is `paceline.types.SamplingParams`; text belongs to the engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from paceline.errors import InvalidParameter
from paceline.speculation.records import DraftStats
from paceline.types import FinishReason, SamplingParams


class Status(Enum):
    """Where a request stands."""

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
        request_id: unique among the requests the scheduler knows.
        prompt_token_ids: at least one token.
        params: what was asked for.
        arrival_time: seconds on the caller's clock.
        priority: smaller runs earlier, as in vLLM; equal priorities run in order of arrival.
        deadline: when its time is up, in seconds on the caller's clock; None for never.
        leader: the request that computes the same prompt first, so that this one can share its pages (samples of one
            prompt).
        salt: requests with another one never share pages or remembered texts with it (`pages.salt_of`).
        token_ids: prompt and committed output. One list that only grows, so that drafters may read it without copies.
        num_computed: leading tokens whose keys and values are in the cache. Committed tokens only.
        page_table: page ids in order of position; at least ``num_computed`` slots.
        num_cached_tokens: prompt tokens found in the cache at its first admission.
        output_limit: most output tokens; ``max_tokens`` cut to the model's length when the scheduler takes it in.
        reserved_tokens: slots kept for it whatever its length (policies that reserve at admission).
        page_digests: chained digests of its full pages that hold computed tokens.
        completes_stop: whether the token just committed completes its grammar or one of its stop strings; asked once
            for every committed token of a request with either, in order. None when nobody reads its text.
        sequence: order in which the scheduler took requests in; breaks ties of arrival.
        drafts: whether drafts may be asked for; switched off where its drafter failed, or where it wants none.
        most_drafts: most nodes of a draft that the request wants; None leaves that to the length policy.
        fixed_drafts: nodes it wants each time, whatever the length policy says.
        least_drafts: nodes that it wants now, whatever the length policy says: the engine knows tokens that will almost
            surely follow.
        draft_stats: what became of its drafts.
        followers: requests that wait for this one's prompt to be computed.
        first_scheduled_time, first_token_time, finish_time: seconds on the caller's clock, None until it happened.
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
    page_table: list[int] = field(default_factory=list)
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
        """Prompt and committed output."""
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Committed output."""
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        """Committed output, a copy."""
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def num_to_compute(self) -> int:
        """Tokens without keys and values; 1 while decoding (the last token, root of the next draft)."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_to_prefill(self) -> int:
        """Tokens to compute before it can decode. One that was preempted computes all but its last token and then goes
        on exactly where it stood; a new one emits its first token at the end of its prompt."""
        return self.num_to_compute - 1 if self.num_output_tokens else self.num_to_compute

    @property
    def num_output_left(self) -> int:
        """Output tokens that may still come."""
        return self.output_limit - len(self.token_ids) + len(self.prompt_token_ids)

    @property
    def most_slots(self) -> int:
        """Cache slots it can ever need: the last output token is never computed."""
        return self.num_prompt_tokens + self.output_limit - 1

    def draft_budget(self, wanted: int) -> int:
        """Nodes to draft where the length policy wants `wanted`."""
        nodes = max(wanted, self.fixed_drafts, self.least_drafts)
        return nodes if self.most_drafts is None else min(nodes, self.most_drafts)

    def withdraw(self) -> None:
        """Its pages are gone: it waits, and everything so far will be computed again."""
        self.page_table, self.page_digests = [], []
        self.num_computed = self.reserved_tokens = 0
        self.num_preemptions += 1
        self.draft_stats.num_unread = self.num_tokens
        self.status = Status.WAITING

    @property
    def order(self) -> tuple[int, float, int]:
        """Sort key: who comes first. The largest is preempted first."""
        return self.priority, self.arrival_time, self.sequence
