"""`StartedStep`: a step whose target pass may be under way, and `StepOutput`: what a step gives its callers.

Not for the order of their parts (`engine.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from paceline.engine.loop.target_pass import PassOutput
from paceline.sampling import TokenTree
from paceline.scheduling.batch import Commit, StepPlan
from paceline.speculation import RequestOutcome, StepSeconds
from paceline.types import CompletionOutput, RequestOutput, TokenOutput, TokenProvenance


@dataclass(frozen=True, slots=True)
class StartedStep:
    """A planned step with its drafts.

    Attributes:
        trees: drafts by request id.
        own: ids of the requests whose draft is their own, from their grammar or prediction.
        scores: waits for the pass, and returns its outputs by request id; it raises what kept the pass from running.
        seconds: of each phase, as far as they have ended.
    """

    plan: StepPlan
    trees: dict[str, TokenTree]
    own: frozenset[str]
    scores: Callable[[], dict[str, PassOutput]]
    seconds: StepSeconds

    @property
    def rows(self) -> "PassRows":
        """The rows of its pass."""
        batch = self.plan.batch
        return PassRows(self.plan.num_prefill_rows, batch.num_decodes, sum(map(len, self.trees.values())))


class PassRows(NamedTuple):
    """Numbers of rows of one pass by kind, over all requests."""

    prefill: int
    decode: int
    draft: int


class VerifiedDraft(NamedTuple):
    """The draft tree that a step verified for one sample, and the rows of that pass.

    Attributes:
        tokens, parents: of its nodes, as in `TokenTree`.
        num_accepted: accepted nodes among the committed tokens; they form a path from the root.
        is_own: the draft came from the request's own grammar or prediction, not from the drafter.
        rows: of the whole pass, all requests together.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    num_accepted: int
    is_own: bool
    rows: PassRows


@dataclass(slots=True)
class StepOutput:
    """What a step committed for one sample of a request. Not frozen, which would make it slow to construct.

    Attributes:
        completion: the finished sample, when these are its last tokens.
        finished: the request's output, when this was its last unfinished sample.
        draft: the verified draft; None where nothing was drafted.
        tail: text that none of the tokens has: it was held back, and the sample ended from outside, not by a token.
    """

    request_id: str
    tokens: tuple[TokenOutput, ...]
    finished: RequestOutput | None = None
    index: int = 0
    completion: CompletionOutput | None = None
    draft: VerifiedDraft | None = None
    tail: str = ""


def verified_draft(outcome: RequestOutcome, rows: PassRows) -> VerifiedDraft | None:
    """The draft that a step verified; `rows` are those of its pass."""
    if not outcome.num_draft_tokens:
        return None
    return VerifiedDraft(outcome.tokens, outcome.parents, outcome.num_accepted, outcome.is_own, rows)


def provenance_of(commit: Commit) -> list[TokenProvenance]:
    """The provenance of each committed token."""
    outcome = commit.outcome
    own: TokenProvenance = "target"
    if outcome.num_draft_tokens:
        own = "recovered" if outcome.level_rejected else "bonus" if outcome.num_accepted else "target"
    kinds: list[TokenProvenance] = ["drafted"] * outcome.num_accepted
    kinds.append(own)
    return kinds[: outcome.num_new]
