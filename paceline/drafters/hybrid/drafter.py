"""`Hybrid`: several drafters; at each step the drafter with the most expected tokens per second is used.

Lookup drafters (suffix, prompt lookup), which are nearly free, always propose. A drafter with a model is asked only
where it is expected to give more tokens per second than the best free proposal. That proposal is then merged into its
tree as far as the budget allows and its nodes pay.

Exact under every exact rule: the choice of the drafter, its length and the merged proposal depend only on committed
tokens, before anything is drawn, and `sampling.tree.union` keeps the trials separate. For the rule ``block``, which
requires chains, pass ``unite=False``.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.drafters.base import DraftContext, read_along
from paceline.drafters.hybrid.child import Child, make_child
from paceline.drafters.hybrid.choice import NO_PART, NOTHING, Choice, Plan, Proposal, Request
from paceline.drafters.hybrid.step import LONGEST, Apart, StepPrices
from paceline.drafters.hybrid.track_record import TrackRecord
from paceline.drafters.hybrid.union import by_chance
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter
from paceline.sampling.law import Law
from paceline.sampling.tree import TokenTree, union
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.policies.base import one_more_pays
from paceline.speculation.records import DraftRates
from paceline.speculation.traits import DrafterTraits

_NODES_PER_CHILD = 1 << 16
"""Node numbers reserved for the draws of one child, so that no two children use the same noise."""
_MODEL_MEMORY = 0.95
"""Discount of the past in a model's acceptance rate. The rate changes little within a text, and a short memory would
switch a model off after a few unlucky drafts, with no later drafts to correct the estimate."""
_PRIOR_WEIGHT = 4.0
"""Weight, in drafts, of earlier requests' rates as the prior of a new request."""
_IN_A_ROW = 4
"""Largest number of new tokens since the latest draft for which a draft's time counts as drafting, not as prefill."""
_ADD = (
    "add --draft-model MODEL (model=...), or draft with the model's own head: --draft-option "
    """'drafters=["suffix", "head"]' (options={"drafters": [...]})"""
)
"""What a hybrid without a draft model needs."""


class Hybrid:
    """Drafts with `children`.

    Args:
        children: two or more.
        unite: merge free proposals with drawn ones into one tree; otherwise one child drafts at a time.
        clock: seconds, for timing the children's drafts.

    Raises:
        InvalidParameter: fewer than two children.
    """

    name = "hybrid"

    def __init__(
        self, children: Sequence[Child], unite: bool = True, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if len(children) < 2:
            raise InvalidParameter("drafters", f"{len(children)} given", "name at least two")
        self._children, self._unite, self._clock = tuple(children), unite, clock
        self._free = [at for at, child in enumerate(children) if child.is_free]
        self._models = [at for at, child in enumerate(children) if not child.is_free]
        self._choice = Choice(self._children, unite)
        self.traits = DrafterTraits(
            branches=unite or any(child.traits.branches for child in children),
            whole=True,
            natural_budget=max(child.traits.natural_budget for child in children),
            cost_ratio=max(child.traits.cost_ratio for child in children),
            deterministic=all(child.traits.deterministic for child in children),
            remembers=bool(self._models) or any(child.traits.remembers for child in children),
            chooses=True,
            prefers_coupled=any(child.traits.prefers_coupled for child in children),
            taps=tuple(dict.fromkeys(tap for child in children for tap in child.traits.taps)),
        )
        self.chosen_seconds = 0.0
        self._rates = {at: DraftRates() for at in self._models}
        self._requests: dict[str, Request] = {}
        self._read: dict[str, dict[int, int]] = {}
        """Of requests that do not decode yet, by child, the tokens that it has read."""

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One tree per context."""
        self.chosen_seconds = 0.0
        if not contexts:
            return []
        work = [(context, self._begin(context)) for context in contexts]
        step = StepPrices(self._children, contexts)
        for child in self._free:
            self._ask(child, [(*each, each[0].budget) for each in work], step)
        plans = [self._choice.plan(*each, step) for each in work]
        for child in self._models:
            asked = [
                (replace(context, guess=plan.guess), request, plan.length)
                for (context, request), plan in zip(work, plans, strict=True)
                if plan.drawing == child
            ]
            self._ask(child, asked, step)
        return [self._joined(request, plan, step) for (_, request), plan in zip(work, plans, strict=True)]

    def read_along(self, context: DraftContext) -> int:
        """See `ReadingDrafter`: the child that would draft, if the request decoded already, reads the text."""
        decoding = replace(context, budget=self.traits.natural_budget, max_depth=LONGEST)
        known = self._read.setdefault(context.request_id, {})
        request = Request([self._record(child) for child in range(len(self._children))], num_read=dict(known))
        child = self._choice.plan(decoding, request, StepPrices(self._children, [decoding])).drawing
        if child is None:
            return 0
        known[child] = read_along(self._children[child].drafter, context)
        return known[child]

    def observe(self, outcome: RequestOutcome) -> None:
        """Update the children's records from the committed tokens, and pass the outcome on to every child."""
        request = self._requests.get(outcome.request_id)
        if request is not None:
            self._judge(request, outcome.token_ids)
        for child in self._children:
            child.drafter.observe(outcome)
        if outcome.finished:
            self._forget(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request, here and in every child."""
        self._forget(request_id)
        for child in self._children:
            child.drafter.release(request_id)

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._read.pop(request_id, None)

    def _begin(self, context: DraftContext) -> Request:
        request = self._requests.get(context.request_id)
        if request is None or request.length > len(context.token_ids):
            records = [self._record(child) for child in range(len(self._children))]
            num_read = self._read.pop(context.request_id, {})
            request = self._requests[context.request_id] = Request(records, num_read=num_read)
        request.length, request.waiting = len(context.token_ids), []
        return request

    def _record(self, child: int) -> TrackRecord:
        """A new request's record of a child; for a model, the rates over earlier requests are its prior."""
        if child not in self._models:
            return TrackRecord()
        of_all = self._rates[child]
        return TrackRecord(_MODEL_MEMORY, of_all.as_prior(_PRIOR_WEIGHT), of_all)

    def _judge(self, request: Request, token_ids: Sequence[int]) -> None:
        """Add the step to every child's record: its proposal, or that it made none."""
        made = {proposal.child: proposal for proposal in request.waiting}
        emitted = token_ids[request.length :]
        for child, record in enumerate(request.records):
            proposal = made.get(child, NOTHING)
            record.learn(proposal.tree, emitted)
        request.length, request.waiting = len(token_ids), []

    def _ask(self, child: int, work: Sequence[tuple[DraftContext, Request, int]], step: StepPrices) -> None:
        """Let a child propose for each (context, request, budget); proposals are stored in the requests."""
        if not work:
            return
        drafter = self._children[child].drafter
        lent = [self._lent(child, context, request.records[child], budget, step) for context, request, budget in work]
        started = self._clock()
        trees = drafter.propose(lent)
        if child in self._models:
            seconds = self._clock() - started
            self.chosen_seconds += seconds
            self._learn_price(child, work, trees, seconds)
        for (context, request, budget), tree in zip(work, trees, strict=True):
            if child in self._free and tree.draw != "one_hot":
                problem = f"{drafter.name!r} has none and draws its tokens"
                raise InvalidParameter("cost_ratio", problem, "give it one, e.g. 0.1: free drafters must choose theirs")
            request.num_read[child] = len(context.token_ids)
            tree = tree.prune(budget, context.max_depth)
            chances = request.records[child].chances(tree)
            best = step.best_nodes(chances) if child in self._free else NO_PART
            request.waiting.append(Proposal(child, tree, chances, best))

    def _learn_price(
        self, child: int, work: Sequence[tuple[DraftContext, Request, int]], trees: Sequence[TokenTree], seconds: float
    ) -> None:
        """Learn the cost of a draft, unless one of the texts needed a prefill."""
        unread = max(len(context.token_ids) - request.num_read.get(child, 0) for context, request, _ in work)
        depths = [tree.depth for tree in trees if len(tree)]
        if depths and unread <= _IN_A_ROW:
            context = work[0][0].batch.mean_context
            self._children[child].learn_price(max(depths), len(depths), seconds, context)

    def _lent(
        self, child: int, context: DraftContext, record: TrackRecord, budget: int, step: StepPrices
    ) -> DraftContext:
        """The context for a child with a model: its own noise, and a draft that ends where it no longer pays.

        A free child draws nothing and gets the context unchanged.
        """
        if child in self._free:
            return context
        lent = replace(context, budget=budget, randomness=Apart(context.randomness, child * _NODES_PER_CHILD))
        if self._choice.takes_nodes(child, context):
            return replace(lent, asks_beliefs=True)  # the verified part is chosen after the chain is drafted
        prices, acceptance = step.of[child], record.rates.acceptance

        def keep(laws: Sequence[Law]) -> bool:
            drafted = len(laws)
            if drafted + 1 >= len(prices) or not context.keep_drafting(laws):
                return False
            return one_more_pays(laws, acceptance, prices[drafted], prices[drafted + 1])

        return replace(lent, keep_drafting=keep, asks_beliefs=True)

    def _joined(self, request: Request, plan: Plan, step: StepPrices) -> TokenTree:
        """The tree to verify."""
        drawing = next((p for p in request.waiting if p.child == plan.drawing), NOTHING)
        drawn, free = drawing.tree, plan.free
        if not len(drawn):
            return free.kept
        if drawn.chances is not None and self._unite:
            tree, levels = by_chance(drawn, drawing.chances, free.tree, free.chances), drawn.depth
            spent = step.of[drawing.child][levels] - step.rows[levels]
            return tree.prune(step.best_nodes(tree.chances or (), spent).size)
        if not len(plan.beside) or drawn.draw == "without_replacement":
            return drawn
        return union([plan.beside, drawn])


def make_hybrid(
    services: DraftServices,
    drafters: Sequence[str | Mapping[str, Any]] = ("suffix", "draft_model"),
    model: str | None = None,
    dtype: str | None = None,
    unite: bool = True,
) -> Hybrid:
    """A hybrid of several drafters.

    Args:
        drafters: names, or mappings as in `make_child`.
        model, dtype: defaults for the drafters with such options.
        unite: see `Hybrid`.

    Raises:
        InvalidParameter: an unknown drafter or option, fewer than two drafters, a negative cost.
        ModelNotFound, DownloadFailed, CorruptWeights, UnsupportedModel: see `resolve_model`.
    """
    if isinstance(drafters, str):
        raise InvalidParameter("drafters", f"{drafters!r} is one name", "give a list, e.g. ['suffix', 'draft_model']")
    if model is None and "draft_model" in drafters:
        raise InvalidParameter("model", "hybrid drafts with a smaller model, too, and none is named", _ADD)
    try:
        children = [make_child(services, wanted, model, dtype) for wanted in drafters]
    except InvalidParameter as error:
        raise InvalidParameter(error.field, f"in hybrid, {error.problem}", error.remedy) from None
    return Hybrid(children, unite, services.clock)
