"""`StepOutcome`: what one step did, as counts, tokens and seconds; the one record that everybody who learns is told.

Drafters hear of their requests one by one, prices, policies and metrics of the step. Only committed tokens count: what
lies after a stop was never emitted. Not for deciding anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ROOT = -1
"""Parent of a drafted tree's first level."""


@dataclass(slots=True)
class RequestOutcome:
    """What a step did for one request; plain data, one made per request and step.

    Attributes:
        request_id: of the request.
        token_ids: prompt and output so far. A drafter must neither keep nor change it.
        num_new: how many of them this step committed.
        num_prefill_tokens: prompt tokens that the step computed, 0 for a decode.
        num_draft_tokens, depth: nodes and levels of the drafted tree that was verified; 0 for a plain decode.
        tokens, parents: that tree, as of `TokenTree`; empty where tokens are only simulated.
        num_accepted: drafted tokens among the new ones.
        promised: accepted tokens that the drafter expected of that tree; 0 where it estimates nothing.
        num_refused: drafted nodes that were compared with the target and refused.
        level_refused: all siblings of a level were.
        wanted: nodes that the length policy asked for.
        asked: the drafter was asked for a draft to verify.
        in_a_row: the step before drafted for this request too, so the drafter had nothing else to read.
        picks: [1 + nodes] the target's most probable token at the root and at every node, for drafters that watch.
        taps: tap to the hidden states [n, hidden] of the committed tokens that this step computed, for drafters that
            name taps; None where nobody does.
        first_tapped: position of the first of them.
        num_prompt_tokens, temperature, salt: of the request, told with taps: how much of `token_ids` is its prompt, how
            its answer is drawn, and whose texts must not be used for others (`cache_salt`).
        finished: these tokens are its last.
        is_own: the draft was the request's own (a prediction), and says nothing about the drafter.
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
    num_refused: int = 0
    level_refused: bool = False
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
        """The same as a plain decode of as many tokens."""
        return RequestOutcome(
            self.request_id, self.token_ids, self.num_new, self.num_prefill_tokens, finished=self.finished
        )

    @property
    def new_tokens(self) -> Sequence[int]:
        """What this step committed."""
        return self.token_ids[len(self.token_ids) - self.num_new :]


@dataclass(slots=True)
class StepSeconds:
    """Where a step's time went.

    Attributes:
        chosen: the part of `drafting` that went into drafts whose price the drafter had weighed itself (`chooses`).
    """

    scheduling: float = 0.0
    drafting: float = 0.0
    chosen: float = 0.0
    verifying: float = 0.0
    committing: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.scheduling + self.drafting + self.verifying + self.committing


@dataclass(slots=True)
class StepOutcome:
    """One step of an engine.

    Attributes:
        requests: one entry per request that got rows.
        num_prefill_rows: rows of prompt chunks in the pass.
        mean_context: tokens in the cache before a decode's row, on average.
        seconds: where the time went.
        is_complete: False when the pass, or the verdict on one of its requests, failed: rows are missing here that took
            their time.
    """

    requests: list[RequestOutcome] = field(default_factory=list)
    num_prefill_rows: int = 0
    mean_context: float = 0.0
    seconds: StepSeconds = field(default_factory=StepSeconds)
    is_complete: bool = True

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
        """Whether no prompt was read, so that the seconds are those of decoding alone."""
        return not self.num_prefill_rows


def followed(tokens: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> tuple[int, bool]:
    """How many tokens of `text` lie on one path of a tree from its root, and whether the tree goes on below that path.

    Args:
        tokens, parents: of the tree's nodes, parents first.
        text: what came after the root, wherever it came from.
    """
    here = {ROOT}
    for depth, token in enumerate(text):
        below = {node for node, parent in enumerate(parents) if parent in here and tokens[node] == token}
        if not below:
            return depth, any(parent in here for parent in parents)
        here = below
    return len(text), any(parent in here for parent in parents)
