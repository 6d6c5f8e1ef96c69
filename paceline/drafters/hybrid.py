"""`Hybrid`: several drafters side by side; at each step those draft that promise most for their price.

Drafters that cost nothing (suffix, prompt lookup) always propose. A drafter with a model is asked only where it
promises more tokens per unit of time than the best free proposal; the free proposal then stands beside it in one tree
as far as the budget and its worth allow. Costs are constants, not measurements, so that a text does not depend on the
machine's mood.

Exact under every exact rule: who drafts, how much, and what stands beside it is settled from committed tokens before
anything is drawn, and `sampling.tree.union` keeps the trials apart. Under the rule ``block``, which takes chains only,
pass ``unite=False``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.hybrid_child import Child, make_child
from paceline.drafters.services import DraftServices
from paceline.drafters.track_record import TrackRecord
from paceline.errors import InvalidParameter
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Purpose, Randomness
from paceline.sampling.tree import TokenTree, union
from paceline.scheduling.length.steady import ROW_COST, Steady
from paceline.scheduling.stats import PRIOR_RATE, BatchStats, DraftRates, PrefixStats
from paceline.theory.acceptance import expected_tokens

_NODES_PER_CHILD = 1 << 16
"""Node numbers set aside for the draws of one child, so that no two children use the same noise."""
_LONGEST = 32
"""Longest draft considered for a child with a model."""
_SOON = 32
"""Tokens that any answer is taken to have left; one that said n tokens is taken to say n more besides."""
_MARGIN = 2.0
"""A text is read when that should save so many times its price: expectations are uncertain, the price is not, and some
of the answer will be had for nothing."""

_MODEL_MEMORY = 0.95
"""Weight of the past in a model's acceptance rate. It changes little within a text, and a model that a few unlucky
drafts brought down is not asked any more: nothing would tell that it was bad luck."""
_PRIOR_WEIGHT = 4.0
"""A model's acceptance by earlier requests counts as so many drafts of a new one."""
_EXPLORE_EVERY = 8
"""A child with a model that is not asked any more is tried after so many steps, then twice as many, and so on."""

_READ_COSTS = {"w8a8": 0.07, "int8": 0.2, "bfloat16": 0.12, "float32": 0.06}
"""What a row of a prompt costs by how weights are stored, as a share of a pass over one row."""

_ALONE = BatchStats()
"""A batch of one: prices are constants here, whoever shares the pass."""

EMPTY = TokenTree()


@dataclass(slots=True)
class _Proposal:
    """What a child proposed for a request, and the tokens that are expected of it."""

    child: int
    tree: TokenTree
    score: float | None
    expected: float


NOTHING = _Proposal(-1, EMPTY, None, 0.0)


@dataclass(slots=True)
class _Request:
    """A request's past with each child, and the proposals that wait for their verdict.

    Attributes:
        length: tokens committed when the waiting proposals were made.
        num_read: tokens that each child with a model had read when it was last asked.
        num_tries: how often in a row each child was asked only to see whether it does better by now.
    """

    records: list[TrackRecord]
    length: int = 0
    num_read: dict[int, int] = field(default_factory=dict)
    waiting: list[_Proposal] = field(default_factory=list)
    num_tries: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class _Plan:
    """Who drafts: `free` alone (perhaps nothing), or the child `drawing`, `length` tokens, with `beside` next to it."""

    free: _Proposal
    drawing: int | None = None
    length: int = 0
    beside: TokenTree = EMPTY

    @property
    def guess(self) -> tuple[int, ...]:
        """Free tokens that the child may read along, fewer than it drafts: nobody asks for the law behind the last."""
        tree = self.free.tree
        return tree.tokens_to(len(tree) - 1)[: self.length - 1] if len(tree) else ()


class Hybrid:
    """Drafts with `children`.

    Args:
        children: two or more.
        unite: put free proposals into one tree with drawn ones; otherwise one child drafts at a time.
        row_cost: what a further row adds to a target pass, as a share of a pass over one row.
        read_cost: what a row of a prompt that a model must read costs, as a share of its own pass over one row.

    Raises:
        InvalidParameter: fewer than two children, or a negative cost.
    """

    name = "hybrid"
    prices_itself = True
    """A model drafts only where that is worth its price, so the average price says nothing about the next draft."""

    def __init__(
        self, children: Sequence[Child], unite: bool = True, row_cost: float = ROW_COST, read_cost: float = 0.1
    ) -> None:
        if len(children) < 2:
            raise InvalidParameter("drafters", f"{len(children)} given", "name at least two")
        for name, cost in (("row_cost", row_cost), ("read_cost", read_cost)):
            if cost < 0:
                raise InvalidParameter(name, f"{cost} is negative", "give 0 or more")
        self._children, self._unite = tuple(children), unite
        self._row_cost, self._read_cost = row_cost, read_cost
        self.branches = unite or any(getattr(child.drafter, "branches", False) for child in children)
        self._free = [i for i, child in enumerate(children) if not child.cost_ratio]
        self._paces = {
            i: Steady(_LONGEST, child.cost_ratio, row_cost) for i, child in enumerate(children) if child.cost_ratio
        }
        self._rates = {child: DraftRates() for child in self._paces}
        self._requests: dict[str, _Request] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One tree per context."""
        work = [(context, self._begin(context)) for context in contexts]
        for child in self._free:
            self._ask(child, [(*each, each[0].budget) for each in work])
        plans = [self._plan(*each) for each in work]
        for child in self._paces:
            asked = [
                (replace(context, guess=plan.guess), request, plan.length)
                for (context, request), plan in zip(work, plans, strict=True)
                if plan.drawing == child
            ]
            self._ask(child, asked)
        return [self._joined(request, plan) for (_, request), plan in zip(work, plans, strict=True)]

    def observe(self, request_id: str, token_ids: Sequence[int], finished: bool) -> None:
        """Judge what was proposed by what was committed, and hand the news on."""
        request = self._requests.get(request_id)
        if request is not None:
            self._judge(request, token_ids)
        for child in self._children:
            child.drafter.observe(request_id, token_ids, finished)
        if finished:
            self._requests.pop(request_id, None)

    def release(self, request_id: str) -> None:
        """Forget a request, here and in every child."""
        self._requests.pop(request_id, None)
        for child in self._children:
            child.drafter.release(request_id)

    def _begin(self, context: DraftContext) -> _Request:
        request = self._requests.get(context.request_id)
        if request is None or request.length > len(context.token_ids):
            records = [self._record(child, context) for child in range(len(self._children))]
            request = self._requests[context.request_id] = _Request(records)
        request.length, request.waiting = len(context.token_ids), []
        return request

    def _record(self, child: int, context: DraftContext) -> TrackRecord:
        """A new request's record of a child. That of a model begins where earlier requests ended.

        Not where a seed's text could tell: under p/q and its like, what is drafted decides what noise is spent on.
        """
        if child not in self._paces:
            return TrackRecord()
        of_all = self._rates[child]
        known = of_all if context.coupled or context.params.is_greedy else DraftRates()
        return TrackRecord(_MODEL_MEMORY, known.as_prior(_PRIOR_WEIGHT), of_all)

    def _judge(self, request: _Request, token_ids: Sequence[int]) -> None:
        """Every child's record gains the step: its proposal, or that it made none."""
        made = {proposal.child: proposal for proposal in request.waiting}
        emitted = token_ids[request.length :]
        for child, record in enumerate(request.records):
            proposal = made.get(child, NOTHING)
            record.learn(proposal.tree, proposal.score, emitted, len(proposal.tree))
        request.length, request.waiting = len(token_ids), []

    def _ask(self, child: int, work: Sequence[tuple[DraftContext, _Request, int]]) -> None:
        """Let a child propose for (context, request, budget); what it proposes waits in the requests."""
        drafter = self._children[child].drafter
        lent = [self._lent(child, context, request.records[child], budget) for context, request, budget in work]
        for (context, request, budget), tree in zip(work, drafter.propose(lent) if lent else (), strict=True):
            if child in self._free and tree.draw != "one_hot":
                problem = f"{drafter.name!r} has none and draws its tokens"
                raise InvalidParameter("cost_ratio", problem, "give it one, e.g. 0.1: free drafters must choose theirs")
            score = self._children[child].score(context.request_id)
            request.num_read[child] = len(context.token_ids)
            tree = tree.prune(budget)
            request.waiting.append(_Proposal(child, tree, score, request.records[child].expected(tree, score)))

    def _lent(self, child: int, context: DraftContext, record: TrackRecord, budget: int) -> DraftContext:
        """The context as a child sees it: noise of its own; with a model, a draft that ends when it stops paying."""
        randomness = _Apart(context.randomness, child * _NODES_PER_CHILD)
        lent = replace(context, budget=budget, randomness=randomness)
        if child not in self._paces:
            return lent
        pace, prefix = self._paces[child], PrefixStats(record.stats, _ALONE, budget)

        def keep(laws: Sequence[Law]) -> bool:
            return context.keep_drafting(laws) and pace.keep_drafting(prefix, laws)

        return replace(lent, keep_drafting=keep, asks_beliefs=True)

    def _plan(self, context: DraftContext, request: _Request) -> _Plan:
        """Who drafts, from what is promised. Nothing has been drawn yet, and nothing drawn may change it."""
        free = max(request.waiting, key=lambda proposal: proposal.expected, default=NOTHING)
        worth = (1 + free.expected) / (1 + self._row_cost * len(free.tree))
        plan, worth = (_Plan(free), worth) if worth > 1 else (_Plan(NOTHING), 1.0)
        for child, pace in self._paces.items():
            stats = request.records[child].stats
            length = min(pace.best_length(stats.rates), context.budget)
            promised = float(expected_tokens(stats.rates.acceptance, length)) / pace.price(length)
            if self._should_ask(child, context, request, promised, worth):
                length = max(length, 1)
                tokens = float(expected_tokens(stats.rates.acceptance, length))
                beside = free.tree.prune(context.budget - length)
                if not self._is_worth_rows(free, beside, tokens, promised):
                    beside = EMPTY
                if not getattr(self._children[child].drafter, "branches", False):
                    length = context.budget - len(beside)  # a chain ends where its model is unsure
                plan = _Plan(free, child, length, beside)
                worth = max(promised, worth)
        return plan

    def _should_ask(self, child: int, context: DraftContext, request: _Request, promised: float, worth: float) -> bool:
        """Whether a child that promises so many tokens per target pass should draft where `worth` are had without it.

        Because it promises more, and will for long enough to be worth its reading. One that was not asked for so long
        that nobody knows is taken to promise what models do at first.
        """
        if promised > worth:
            request.num_tries[child] = 0
        elif request.records[child].stats.steps_since_draft >= _EXPLORE_EVERY << request.num_tries.get(child, 0):
            request.num_tries[child] = request.num_tries.get(child, 0) + 1
            promised = (1 + PRIOR_RATE) / self._paces[child].price(1)
        if promised <= worth:
            return False
        saved = (1 / worth - 1 / promised) * self._num_to_come(context)
        return saved > _MARGIN * self._reading(child, context, request)

    def _is_worth_rows(self, free: _Proposal, beside: TokenTree, tokens: float, promised: float) -> bool:
        """Whether `beside` adds tokens, where a draft of `tokens` a pass fails, cheaper than the step makes the others.

        A draft that fails early leaves its place to the free proposal: of `tokens` it would then have made one.
        """
        if not self._unite or not len(beside):
            return False
        added = free.expected * len(beside) / len(free.tree) / tokens
        return added > self._row_cost * len(beside) * promised

    def _joined(self, request: _Request, plan: _Plan) -> TokenTree:
        """The tree to verify."""
        drawn = next((p.tree for p in request.waiting if p.child == plan.drawing), EMPTY)
        if not len(drawn):
            return plan.free.tree
        if not len(plan.beside) or drawn.draw == "without_replacement":
            return drawn
        return union([plan.beside, drawn])

    def _reading(self, child: int, context: DraftContext, request: _Request) -> float:
        """What catching up with the text costs, in target passes: a child never asked must read the whole prompt."""
        num_unread = len(context.token_ids) - request.num_read.get(child, 0)
        return num_unread * self._read_cost * self._children[child].cost_ratio

    @staticmethod
    def _num_to_come(context: DraftContext) -> int:
        """Tokens that may still be said: answers end early as often as not, and long ones later."""
        num_said = len(context.token_ids) - context.num_prompt_tokens
        return min(max(1, context.params.max_tokens - num_said), _SOON + num_said)


@dataclass(frozen=True, eq=False, slots=True)
class _Apart:
    """A request's randomness with a child's node numbers moved away from its siblings'."""

    outer: Randomness
    first_node: int

    def coin(self, probability: Any, position: int, node: int) -> bool:
        return self.outer.coin(probability, position, node if node == ROOT else node + self.first_node)

    def draw(self, law: Law, position: int, purpose: Purpose, node: int = ROOT) -> int:
        return self.outer.draw(law, position, purpose, node if node == ROOT else node + self.first_node)

    def exponentials(self, tokens: np.ndarray, position: int, purpose: Purpose, node: int = ROOT) -> np.ndarray:
        return self.outer.exponentials(tokens, position, purpose, node if node == ROOT else node + self.first_node)


def make_hybrid(
    services: DraftServices,
    drafters: Sequence[str | Mapping[str, Any]] = ("suffix", "draft_model"),
    model: str | None = None,
    dtype: str | None = None,
    unite: bool = True,
    row_cost: float = ROW_COST,
    read_cost: float | None = None,
) -> Hybrid:
    """Several drafters as one.

    Args:
        drafters: names, or mappings as `make_child` takes them.
        model, dtype: handed to every drafter that takes a model, or how it is stored, and names none.
        unite, row_cost, read_cost: as of `Hybrid`; without a `read_cost` it goes by how the model is stored, for
            arithmetic is the same for all, and a pass over one row takes as long as its bytes.

    Raises:
        InvalidParameter: an unknown drafter or option, fewer than two drafters, a negative cost.
        ModelNotFound, DownloadFailed, CorruptWeights, UnsupportedModel: see `resolve_model`.
    """
    if isinstance(drafters, str):
        raise InvalidParameter("drafters", f"{drafters!r} is one name", "give a list, e.g. ['suffix', 'draft_model']")
    children = [make_child(services, wanted, model, dtype) for wanted in drafters]
    if read_cost is None:
        read_cost = _READ_COSTS.get(dtype or services.dtype, _READ_COSTS["bfloat16"])
    return Hybrid(children, unite, row_cost, read_cost)
