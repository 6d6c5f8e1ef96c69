"""`Drafting`: calls the drafter and confines its errors to the request that caused them.

A drafter that raises or proposes an invalid tree is switched off for that request, with a warning. The output is
unaffected, since drafts never decide it. Not for deciding which requests draft.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import index
from typing import Any, TypeVar, cast

from paceline.drafters.base import ChoosingDrafter, DraftContext, Drafter, can_read_along, read_along
from paceline.engine.loop.inputs import draft_context
from paceline.engine.loop.live import LiveSample
from paceline.engine.loop.speculation import Speculation
from paceline.errors import DrafterWarning, error_text, warn_safely
from paceline.sampling import TokenTree
from paceline.scheduling.batch import Grant, StepPlan
from paceline.scheduling.request import RequestState
from paceline.speculation import RequestOutcome

_NOTHING = TokenTree()
_CHANGED = "changed token_ids, which is the request's own text"
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request to be drafted for: its grant and sample, and the context that the drafter gets."""

    grant: Grant
    sample: LiveSample
    context: DraftContext


def _says_chances(tree: TokenTree) -> bool:
    """Whether `tree` is empty or gives acceptance probabilities for its nodes (`chances`)."""
    return tree.chances is not None or not len(tree)


class Drafting:
    """The drafter of one engine, with its errors confined to single requests.

    Args:
        speculation: holds the drafter and its length policy.
        vocab_size: proposed token ids must be below it.
    """

    def __init__(self, speculation: Speculation, vocab_size: int) -> None:
        self._speculation, self._vocab_size = speculation, vocab_size
        self.drafter: Drafter = speculation.drafter
        self._chooser = cast(ChoosingDrafter, self.drafter) if self.drafter.traits.chooses else None
        self.own: dict[str, TokenTree] = {}
        """Drafts of the latest step that came from the requests themselves (grammar or prediction), by request id."""

    def propose(self, plan: StepPlan, live: dict[str, LiveSample]) -> dict[str, TokenTree]:
        """Draft trees, possibly empty, by request id, for the requests that were granted a draft budget."""
        self.own, asked = {}, list[_Asked]()
        for grant in plan.grants:
            if not grant.draft_budget:
                continue
            sample = live[grant.request.request_id]
            if own := sample.own_draft(min(grant.draft_budget, grant.draft_depth)):
                self.own[grant.request.request_id] = TokenTree.chain(own)
            else:
                asked.append(_Asked(grant, sample, draft_context(sample, grant, plan.batch, self._speculation)))
        if not asked:
            return dict(self.own)
        trees = self._worth([each.grant.request for each in asked], plan, self._proposals(asked))
        return trees | self.own

    @property
    def chosen_seconds(self) -> float:
        """Seconds of the latest proposals whose cost the drafter had already weighed itself (`ChoosingDrafter`).

        0 for a drafter that does not choose between methods. A drafter that returns an invalid time is warned about
        once and counts as 0 from then on.
        """
        if self._chooser is None:
            return 0.0
        try:
            seconds = float(self._chooser.chosen_seconds)
            if not 0 <= seconds < inf:
                raise ValueError(f"{seconds} seconds")
        except Exception as error:
            self._chooser = None
            warn_safely(f"drafter {self._name} does not say what its drafts took: {error_text(error)}", DrafterWarning)
            return 0.0
        return seconds

    def read_along(self, plan: StepPlan, live: dict[str, LiveSample]) -> bool:
        """Let a drafter that computes texts compute those of prompts, as far as the target has; whether it did.

        Not where their drafts would not pay (`LengthPolicy.reads_along`).
        """
        if not can_read_along(self.drafter):
            return False
        reading = [
            grant
            for grant in plan.grants
            if grant.num_prefill_tokens and grant.start > 1 and self._should_read(grant.request, plan)
        ]
        for grant in reading:
            sample = live[grant.request.request_id]
            self._guarded(sample, self._read, grant, sample, plan)
        return bool(reading)

    def observe(self, outcome: RequestOutcome, sample: LiveSample) -> None:
        """Report the outcome of a step to the drafter, for one request."""
        if sample.state.drafts:
            told = outcome.without_draft() if outcome.is_own else outcome
            self._guarded(sample, self._tell, told, sample)

    def release(self, request_id: str) -> None:
        """Let the drafter forget a request; an error there becomes a warning."""
        try:
            self.drafter.release(request_id)
        except Exception as error:
            warn_safely(f"drafter {self._name} could not release {request_id!r}: {error_text(error)}", DrafterWarning)

    def _proposals(self, asked: Sequence[_Asked]) -> dict[str, TokenTree]:
        """Proposals for all requests in one call; when that fails, one call per request, to isolate the failing one."""
        try:
            trees = [self._checked(*each) for each in zip(asked, self._trees(asked), strict=True)]
        except Exception:
            trees = [self._guarded(each.sample, self._propose_one, each) for each in asked]
        return {
            each.sample.state.request_id: each.sample.trimmed(tree)
            for each, tree in zip(asked, trees, strict=True)
            if tree is not None
        }

    def _worth(
        self, requests: Sequence[RequestState], plan: StepPlan, trees: dict[str, TokenTree]
    ) -> dict[str, TokenTree]:
        """The trees, with those that give acceptance probabilities cut to the nodes that the policy wants verified."""
        told = [
            (state, tree)
            for state in requests
            if not state.fixed_drafts and _says_chances(tree := trees.get(state.request_id, _NOTHING))
        ]
        if not told:
            return trees
        drafted = sum([len(tree) for tree in (trees | self.own).values()])
        others = drafted - sum([len(tree) for _, tree in told])
        batch = plan.batch
        if others and not batch.is_full:
            batch = replace(batch, num_prefill_rows=batch.num_prefill_rows + others)
        counts = self._speculation.policy.trim(
            [tree.chances or () for _, tree in told], [state.draft_stats for state, _ in told], batch
        )
        worth = [(state, tree, max(n, state.least_drafts)) for (state, tree), n in zip(told, counts, strict=True)]
        return trees | {state.request_id: tree.prune(n) for state, tree, n in worth}

    def _should_read(self, request: RequestState, plan: StepPlan) -> bool:
        will_draft = request.drafts and request.num_output_left > 1 + (not request.num_output_tokens)
        return will_draft and self._speculation.policy.reads_along(request.draft_stats, plan.batch)

    def _read(self, grant: Grant, sample: LiveSample, plan: StepPlan) -> None:
        context = draft_context(sample, grant, plan.batch, self._speculation)
        context = replace(context, token_ids=context.token_ids[: grant.start])
        num_read = read_along(self.drafter, context)
        stats = grant.request.draft_stats
        stats.num_unread = min(stats.num_unread, max(0, grant.request.num_tokens - num_read))

    def _propose_one(self, asked: _Asked) -> TokenTree:
        trees = list(self._trees([asked]))
        if len(trees) != 1:
            raise ValueError(f"propose returned {len(trees)} trees for 1 context; return one for each, in order")
        return self._checked(asked, trees[0])

    def _trees(self, asked: Sequence[_Asked]) -> Sequence[TokenTree]:
        """The drafter's proposals. Raises ValueError, after restoring the texts, when it changed one's length."""
        texts = [each.grant.request.token_ids for each in asked]
        lengths = [len(text) for text in texts]
        try:
            return self.drafter.propose([each.context for each in asked])
        finally:
            if lengths != [len(text) for text in texts]:
                for each in asked:
                    each.sample.restore()
                raise ValueError(_CHANGED)

    def _tell(self, outcome: RequestOutcome, sample: LiveSample) -> None:
        """Pass `outcome` to the drafter. Raises ValueError, after restoring the text, when it changed its length."""
        text = sample.state.token_ids
        length = len(text)
        try:
            self.drafter.observe(outcome)
        finally:
            if len(text) != length:
                sample.restore()
                raise ValueError(_CHANGED)

    def _checked(self, asked: _Asked, tree: TokenTree) -> TokenTree:
        """`tree` cut to what was granted. Raises ValueError or TypeError for an invalid tree or unknown token ids."""
        if not isinstance(tree, TokenTree):
            raise ValueError(f"proposed a {type(tree).__name__}, not a TokenTree")
        if not all([type(token) is int for token in tree.tokens]):  # numpy's integers would reach the user's output
            tree = replace(tree, tokens=tuple(index(token) for token in tree.tokens))
        if type(tree.parents) is not tuple or type(tree.chances) not in (tuple, type(None)):
            chances = None if tree.chances is None else tuple(map(float, tree.chances))
            tree = replace(tree, parents=tuple(map(index, tree.parents)), chances=chances)
        if tree.tokens and not (min(tree.tokens) >= 0 and max(tree.tokens) < self._vocab_size):
            raise ValueError(f"proposed tokens outside the vocabulary of {self._vocab_size}")
        # the limits of the grant, because the drafter may have changed its context
        return tree.prune(asked.grant.draft_budget, asked.grant.draft_depth)

    def _guarded(self, sample: LiveSample, act: Callable[..., Answer], *given: Any) -> Answer | None:
        """Return `act(*given)`. When it raises, switch the drafter off for the sample, warn and return None."""
        try:
            return act(*given)
        except Exception as error:
            sample.state.drafts = False
            message = f"drafter {self._name} failed for request {sample.request_id!r} and is switched off for it"
            warn_safely(f"{message}: {error_text(error)}", DrafterWarning)
            self.release(sample.state.request_id)
            return None

    @property
    def _name(self) -> str:
        return repr(getattr(self.drafter, "name", type(self.drafter).__name__))
