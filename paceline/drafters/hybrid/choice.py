"""`Choice`: which of a hybrid's children drafts for a request, how far, and what is verified beside its draft.

A choice depends only on committed tokens and on free proposals, before anything is drawn, as exactness requires. Not
for the prices of a step (`step.py`), or for asking the children (`drafter.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.drafters.base import DraftContext
from paceline.drafters.hybrid.child import Child
from paceline.drafters.hybrid.step import Best, StepPrices
from paceline.drafters.hybrid.track_record import TrackRecord
from paceline.sampling.tree import TokenTree
from paceline.speculation.best_draft import READING_MARGIN
from paceline.speculation.records import PRIOR_RATE, tokens_to_come

_MORE = 1
"""Tokens beyond the best length that a chain drafted in one call gets, for where its model is confident."""
_EXPLORE_EVERY = 8
"""A child with a model that no longer pays is tried again after 8 steps, then after twice as many, and so on."""

EMPTY, NO_PART = TokenTree(), Best(0, 0.0, 1.0)


@dataclass(slots=True)
class Proposal:
    """What a child proposed for a request.

    Attributes:
        tree, chances: the whole tree, and the acceptance probabilities of its nodes.
        best: for a free child, the part that is worth verifying.
    """

    child: int
    tree: TokenTree
    chances: Sequence[float] = ()
    best: Best = NO_PART

    @property
    def kept(self) -> TokenTree:
        """For a free child, the part of the tree that is worth verifying."""
        return self.tree.prune(self.best.size)


NOTHING = Proposal(-1, EMPTY)


@dataclass(slots=True)
class Request:
    """A request's record with each child, and the proposals of the current step.

    Attributes:
        length: committed tokens when the waiting proposals were made.
        num_read: by child, the length of the text when it was last asked, or as much as it read along with the prompt.
        num_tries: by child, consecutive trial drafts.
    """

    records: list[TrackRecord]
    length: int = 0
    num_read: dict[int, int] = field(default_factory=dict)
    waiting: list[Proposal] = field(default_factory=list)
    num_tries: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """Which drafter is used: `free` only (maybe empty), or child `drawing` for `length` tokens merged with `beside`."""

    free: Proposal
    drawing: int | None = None
    length: int = 0
    beside: TokenTree = EMPTY

    @property
    def guess(self) -> tuple[int, ...]:
        """Tokens of the free proposal to pass as `DraftContext.guess`, fewer than `length`."""
        tree = self.free.kept
        return tree.tokens_to(len(tree) - 1)[: self.length - 1] if len(tree) else ()


class Choice:
    """Chooses among `children`; with `unite` free proposals may be merged with drawn drafts into one tree."""

    def __init__(self, children: Sequence[Child], unite: bool) -> None:
        self._children, self._unite = children, unite
        self._models = [at for at, child in enumerate(children) if not child.is_free]

    def plan(self, context: DraftContext, request: Request, step: StepPrices) -> Plan:
        """Choose the drafter by expected tokens per second. It must not depend on drawn tokens; none are drawn yet."""
        free = max(request.waiting, key=lambda proposal: proposal.best.worth, default=NOTHING)
        plan, worth = Plan(free), free.best.worth
        for child in self._models:
            beside = free.best if self.takes_nodes(child, context) else None
            best = step.best(child, request.records[child].rates, context.longest, beside)
            if self._should_ask(child, context, request, step, best.worth if best.size else 0.0, worth):
                plan = self._drawing(child, context, free, step, best)
                worth = max(best.worth, worth)
        return plan

    def takes_nodes(self, child: int, context: DraftContext) -> bool:
        """Whether the child drafts a greedy chain with acceptance probabilities, whose nodes can be dropped singly."""
        return self._unite and self._children[child].traits.at_once and context.takes_argmax

    def _drawing(self, child: int, context: DraftContext, free: Proposal, step: StepPrices, best: Best) -> Plan:
        """The plan in which `child` drafts, merged with the free proposal where that is worth its rows."""
        length = max(best.size, 1)
        if self.takes_nodes(child, context):
            return Plan(free, child, min(length + _MORE, context.budget))
        beside = free.kept.prune(context.budget - length)
        if not self._is_worth_rows(free, beside, step, best):
            beside = EMPTY
        traits = self._children[child].traits
        if traits.at_once:
            length = min(length + _MORE, context.budget - len(beside))
        elif not traits.branches:
            length = context.budget - len(beside)  # `keep_drafting` ends the chain
        return Plan(free, child, length, beside)

    def _should_ask(
        self, child: int, context: DraftContext, request: Request, step: StepPrices, promised: float, worth: float
    ) -> bool:
        """Whether a child with expected gain `promised` should draft, where `worth` is available without it.

        Both are rates relative to plain decoding. The gain over the expected rest of the answer must also pay for the
        child's prefill. A child that was not asked for long is tried with the gain of the prior acceptance rate.
        """
        if promised > worth:
            request.num_tries[child] = 0
        elif request.records[child].steps_since_draft >= _EXPLORE_EVERY << request.num_tries.get(child, 0):
            request.num_tries[child] = request.num_tries.get(child, 0) + 1
            promised = (1 + PRIOR_RATE) / step.of[child][1]
        if promised <= worth:
            return False
        num_said = max(0, len(context.token_ids) - context.num_prompt_tokens)
        saved = (1 / worth - 1 / promised) * tokens_to_come(num_said, context.params.max_tokens - num_said)
        unread = max(len(context.token_ids), context.num_prompt_tokens) - request.num_read.get(child, 0)
        reading = step.size * self._children[child].reading(unread) / step.plain_seconds
        return saved > READING_MARGIN * reading

    def _is_worth_rows(self, free: Proposal, beside: TokenTree, step: StepPrices, best: Best) -> bool:
        """Whether the tokens that `beside` is expected to add are worth the cost of its rows, at the step's rate.

        They count only where the draft's first token is rejected, with estimated probability 1 / (1 + `best.tokens`).
        """
        if not self._unite or not len(beside):
            return False
        added = free.best.tokens * len(beside) / free.best.size / (1 + best.tokens)
        return added > (step.rows[best.size + len(beside)] - step.rows[best.size]) * max(best.worth, 1.0)
