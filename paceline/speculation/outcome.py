"""`StepOutcome`: the counts, tokens and seconds of one step; the only record from which other parts learn.

Drafters receive the outcome of each request, prices, policies and metrics that of the step. Only committed tokens
count: what lies after a stop was never emitted. Not for deciding anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ROOT = -1
"""Parent of a drafted tree's first level."""


@dataclass(slots=True)
class RequestOutcome:
    """What a step did for one request; plain data, one object per request and step.

    Attributes:
        request_id: of the request.
        token_ids: prompt and output so far. A drafter must neither keep nor change it.
        num_new: tokens that this step committed, the last of `token_ids`.
        num_prefill_tokens: prompt tokens that the step computed; 0 for a decode.
        num_draft_tokens, depth: nodes and levels of the verified draft tree; 0 for a plain decode.
        tokens, parents: that tree, as in `TokenTree`; empty in simulations without token ids.
        num_accepted: drafted tokens among the new ones.
        promised: accepted tokens that the drafter expected of that tree; 0 where it gives no estimates.
        num_rejected: drafted nodes that were compared with the target and rejected.
        level_rejected: all siblings of some level were rejected.
        wanted: nodes that the length policy asked for.
        asked: the drafter was asked for a draft to verify.
        in_a_row: the previous step drafted for this request too, so the drafter had no other tokens to catch up with.
        picks: [1 + nodes] the target's most probable token at the root and each node, for drafters with `watches`.
        taps: tap to the hidden states [n, hidden] of the committed tokens that this step computed, for drafters with
            taps; else None.
        first_tapped: position of the first of these tokens.
        num_prompt_tokens, temperature, salt: of the request, set together with taps: prompt length, sampling
            temperature, and the `cache_salt` that limits whose texts may be shared.
        finished: these are the request's last tokens.
        is_own: the draft came from the request's grammar or prediction, and says nothing about the drafter.
    """

    request_id: str
    token_ids: Sequence[int] = ()
    num_new: int = 0
    num_prefill_tokens: int = 0
    num_draft_tokens: int = 0
    depth: int = 0
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    num_accepted: int = 0
    promised: float = 0.0
    num_rejected: int = 0
    level_rejected: bool = False
    wanted: int = 0
    asked: bool = False
    in_a_row: bool = False
    picks: Any = None
    taps: Any = None
    first_tapped: int = 0
    num_prompt_tokens: int = 0
    temperature: float = 0.0
    salt: bytes = b""
    finished: bool = False
    is_own: bool = False

    def without_draft(self) -> "RequestOutcome":
        """The outcome as if the same tokens had been decoded without a draft, with the states that were computed."""
        return RequestOutcome(
            self.request_id, self.token_ids, self.num_new, self.num_prefill_tokens, taps=self.taps,
            first_tapped=self.first_tapped, num_prompt_tokens=self.num_prompt_tokens, temperature=self.temperature,
            salt=self.salt, finished=self.finished,
        )  # fmt: skip

    @property
    def new_tokens(self) -> Sequence[int]:
        """The tokens that this step committed."""
        return self.token_ids[len(self.token_ids) - self.num_new :]


@dataclass(slots=True)
class StepSeconds:
    """Seconds of a step by phase.

    What comes after the commit (text, counting) is in the phase of the next step that ends first: `scheduling`, or
    `verifying` where the next pass was started before.

    Attributes:
        chosen: the part of `drafting` that is not the cost of this step's drafts: what a drafter had already weighed
            itself (`DrafterTraits.chooses`), and texts that it read along with prompts (`ReadingDrafter`).
    """

    scheduling: float = 0.0
    drafting: float = 0.0
    chosen: float = 0.0
    verifying: float = 0.0
    committing: float = 0.0

    @property
    def total(self) -> float:
        """Sum of the phases; `chosen` is part of `drafting`."""
        return self.scheduling + self.drafting + self.verifying + self.committing


@dataclass(slots=True)
class StepOutcome:
    """One step of an engine.

    Attributes:
        requests: one entry per request that got rows.
        num_prefill_rows: rows of prompt chunks in the pass.
        mean_context: tokens in the cache before a decode's row, on average.
        seconds: of each phase.
        is_complete: False when the pass or a request's verification failed, so that some rows that took time are not
            in `requests`.
        prompt_rows: rows of prompts, and as many more as their attention takes time, where one filled the step; else 0.
    """

    requests: list[RequestOutcome] = field(default_factory=list)
    num_prefill_rows: int = 0
    mean_context: float = 0.0
    seconds: StepSeconds = field(default_factory=StepSeconds)
    is_complete: bool = True
    prompt_rows: int = 0

    @property
    def num_decodes(self) -> int:
        """Requests that decoded."""
        return sum([not one.num_prefill_tokens for one in self.requests])

    @property
    def num_draft_tokens(self) -> int:
        """Drafted nodes verified."""
        return sum([one.num_draft_tokens for one in self.requests])

    @property
    def num_tokens(self) -> int:
        """Tokens committed."""
        return sum([one.num_new for one in self.requests])

    @property
    def only_decodes(self) -> bool:
        """Whether the step had no prefill rows."""
        return not self.num_prefill_rows


def followed(tokens: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> tuple[int, bool]:
    """(length of the longest prefix of `text` that is a path from the root, whether that path has children).

    Args:
        tokens, parents: of the tree's nodes, parents first.
        text: tokens that followed the root.
    """
    here = {ROOT}
    for depth, token in enumerate(text):
        below = {node for node, parent in enumerate(parents) if parent in here and tokens[node] == token}
        if not below:
            return depth, any(parent in here for parent in parents)
        here = below
    return len(text), any(parent in here for parent in parents)
