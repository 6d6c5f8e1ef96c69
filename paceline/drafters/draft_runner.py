"""`DraftRunner`: a model that drafts, with keys and values of its own, scores the frontiers of growing trees.

One pass per level serves all requests. A request's committed tokens that the model has not seen yet (the prompt, the
target's own tokens) are fed in the pass that scores the root. Nodes of the tree lie after the committed tokens, each
seeing its own branch only; once the verdict is known, the accepted branch moves to its natural place and the rest is
forgotten, so the cache is that of a fresh prefill of the committed tokens. A guess at what follows is read along with
the last committed tokens: where the tree goes the same way, its laws are there without a pass. Not the place for the
shapes of trees (`trees/`) or for who holds which page (`draft_pages.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, cast

import numpy as np

from paceline.drafters.draft_pages import DraftPages, Kept, common_prefix
from paceline.drafters.draft_ranks import DraftRanks, ranks_of_draft
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.growth import Growth
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.base import PAGE_SIZE, CausalLM, slot_of
from paceline.models.chains import DraftsChains, GreedyDraft
from paceline.models.feedback import has_memory
from paceline.models.loaded import LoadedModel
from paceline.models.rows import Logits, Part, build_rows, compaction
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT
from paceline.sampling.warp import NothingAllowed
from paceline.speculation.outcome import RequestOutcome

_FEW = 4
"""Committed tokens that may lie before a guess in its pass: logits are computed for all of these rows."""


class DraftRunner:
    """Scores trees with `model`.

    Args:
        model: shares the target's vocabulary (`load_draft` checks).
        num_pages: pages of its cache. Requests that do not fit together take turns.
        max_prefill_rows: most rows of one pass while it catches up with a prompt.
    """

    def __init__(self, model: CausalLM, num_pages: int, max_prefill_rows: int = 512) -> None:
        self._model, self.can_chain = model, isinstance(model, DraftsChains)
        self.cache = model.new_cache(num_pages)
        self.pages = DraftPages(num_pages)
        self._max_prefill = max_prefill_rows
        self._limit = model.config.max_position_embeddings
        self._most = num_pages * PAGE_SIZE

    def score_with(self, model: CausalLM) -> None:
        """Go on with another view of the same weights, whose caches are the same."""
        self._model = model

    def can_hold(self, growth: Growth) -> bool:
        """Whether the text and its tree fit into the model's positions, and into the cache when it is empty."""
        num_tokens = len(growth.context.token_ids)
        return num_tokens + growth.max_rows <= self._most and num_tokens + growth.context.budget <= self._limit

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """The first of `growths` that find room together, at least one, their long prompts read but for the end."""
        ids = [growth.context.request_id for growth in growths]
        return growths[: self.pages.seat(ids, lambda place, victims: self._seat(growths[place], victims))]

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """One pass: for each admitted growth the logits [len(nodes), vocab] below its `nodes`, good until the next.

        A growth's first nodes are [ROOT]; others must be children of ROOT or of nodes scored before.
        """
        found = [self._found_ahead(growth, nodes) for growth, nodes in work]
        parts = [self._part(*each) for each, known in zip(work, found, strict=True) if known is None]
        asked = self._split(parts) if parts else iter(())
        return [
            self._scored(growth, nodes, next(asked)) if known is None else known
            for (growth, nodes), known in zip(work, found, strict=True)
        ]

    def draft_greedy(self, growths: Sequence[Growth], num_tokens: int) -> GreedyDraft:
        """Chains of `num_tokens` likeliest tokens, in one call of a model that can; the last one's row is not run."""
        kept = [self.pages[growth.context.request_id] for growth in growths]
        parts = [
            self._committed_part(own, growth.context.token_ids, "last")
            for own, growth in zip(kept, growths, strict=True)
        ]
        draft = cast(DraftsChains, self._model).draft_greedy(build_rows(parts), self.cache, num_tokens)
        for own, tokens in zip(kept, draft.tokens.tolist(), strict=True):
            self.pages.share(own)
            own.row_tokens, own.row_parents = tokens[:-1], list(range(-1, len(tokens) - 2))
        return draft

    def observe(self, outcome: RequestOutcome) -> None:
        """Keep what lies in the cache and was committed, each token at its place; forget the rest."""
        kept = self.pages.get(outcome.request_id)
        if kept is not None:
            self._settle(kept, outcome.token_ids)
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self.pages.release(request_id)

    def slots(self, request_id: str) -> tuple[list[int], list[int]]:
        """(committed tokens in the cache, their slots), to look at."""
        kept = self.pages[request_id]
        return list(kept.tokens), [slot_of(kept.pages, i) for i in range(len(kept.tokens))]

    def _seat(self, growth: Growth, victims: Sequence[str]) -> bool:
        """Make room for the request's tokens and its tree, and read a long prompt's beginning; False: no room."""
        token_ids = growth.context.token_ids
        kept = self.pages.recall(growth.context.request_id, token_ids, growth.context.salt)
        if not self.pages.extend(kept, len(token_ids) + growth.max_rows + len(self._guess(growth)), victims):
            return False
        while len(token_ids) - len(kept.tokens) > self._max_prefill:
            self._forward([self._committed_part(kept, token_ids, "none")])
            self.pages.share(kept)
        return True

    def _found_ahead(self, growth: Growth, nodes: Sequence[int]) -> np.ndarray | None:
        """The logits below `nodes` where a guess that was read along went their way; None where a pass is needed."""
        kept = self.pages[growth.context.request_id]
        if nodes[0] == ROOT or len(nodes) > 1 or not kept.ahead:
            return None
        [node] = nodes
        parent = growth.parents[node]
        row = kept.guessed(-1 if parent == ROOT else kept.row_of_node[parent], growth.tokens[node])
        if row is None:
            return None
        kept.row_of_node[node] = row
        return kept.ahead[row][None]

    def _scored(self, growth: Growth, nodes: Sequence[int], logits: np.ndarray) -> np.ndarray:
        """Of the logits of its rows those below `nodes`; with the root, what was read along is noted."""
        if nodes[0] != ROOT:
            return logits
        kept = self.pages[growth.context.request_id]
        self.pages.share(kept)
        if len(logits) == 1:
            return logits
        below_root = len(logits) - 1 - len(self._guess(growth))
        kept.read_along(self._guess(growth), logits[below_root + 1 :].copy())
        return logits[below_root : below_root + 1]

    def _guess(self, growth: Growth) -> Sequence[int]:
        """What may be read along, nothing where the cache cannot hold it besides the tree."""
        context = growth.context
        return context.guess if len(context.token_ids) + growth.max_rows + len(context.guess) <= self._most else ()

    def _part(self, growth: Growth, nodes: Sequence[int]) -> Part:
        """The rows below which `nodes` ask: the tokens up to the root, or tree nodes after those run before."""
        kept = self.pages[growth.context.request_id]
        if nodes[0] == ROOT:
            part, guess = self._committed_part(kept, growth.context.token_ids, "last"), self._guess(growth)
            if not guess or len(part.tokens) > _FEW:
                return part
            return replace(part, tokens=[*part.tokens, *guess], logits="all")
        num_computed = len(kept.row_tokens)
        for node in nodes:
            parent = growth.parents[node]
            kept.row_of_node[node] = len(kept.row_tokens)
            kept.row_tokens.append(growth.tokens[node])
            kept.row_parents.append(-1 if parent == ROOT else kept.row_of_node[parent])
        return Part(kept.pages, len(kept.tokens), kept.row_tokens, kept.row_parents, "all", num_computed)

    def _committed_part(self, kept: Kept, token_ids: Sequence[int], logits: Logits) -> Part:
        """The next committed tokens, as many as a pass may have; they count as kept."""
        start = len(kept.tokens)
        tokens = list(token_ids[start : start + self._max_prefill])
        kept.tokens += tokens
        return Part(kept.pages, start, tokens, logits=logits)

    def _forward(self, parts: Sequence[Part]) -> np.ndarray:
        return self._model.forward(build_rows(parts), self.cache).logits

    def _split(self, parts: Sequence[Part]) -> Iterator[np.ndarray]:
        """The logits [rows asked, vocab] of each part, from one pass."""
        sizes = [len(part.tokens) - part.num_computed if part.logits == "all" else 1 for part in parts]
        return iter(np.split(self._forward(parts), np.cumsum(sizes)[:-1]))

    def _settle(self, kept: Kept, token_ids: Sequence[int]) -> None:
        same = common_prefix(kept.tokens, token_ids)
        if same == len(kept.tokens):
            rows = kept.accepted_rows(token_ids)
            sources, destinations = compaction(kept.pages, same, rows)
            if sources:
                self.cache.move(sources, destinations)
            kept.tokens += [kept.row_tokens[row] for row in rows]
            same = len(kept.tokens)
        self.pages.truncate(kept, same)


class Runner(Protocol):
    """What scores trees as `DraftRunner` does."""

    def can_hold(self, growth: Growth) -> bool:
        """Whether one growth fits in, text and tree, when nothing else is there."""
        ...

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """The first of `growths` that find room together, at least one; the others wait for the next turn."""
        ...

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """For each admitted growth the logits [len(nodes), vocab] below its `nodes`."""
        ...


def grow_all(runners: Sequence[Runner], growths: Sequence[Growth]) -> None:
    """Grow every growth to its end, runner i as source i, one pass per level and runner.

    Growths that do not fit into every runner together take turns, so that none is left out for the company it is in.
    One that some runner cannot hold by itself stays empty.
    """
    waiting = [growth for growth in growths if all(runner.can_hold(growth) for runner in runners)]
    while waiting:
        seated: Sequence[Growth] = waiting
        for runner in runners:
            seated = runner.admit(seated)
        assert seated, "an empty cache holds each of them"
        _grow_together(runners, seated)
        waiting = waiting[len(seated) :]


def _grow_together(runners: Sequence[Runner], growths: Sequence[Growth]) -> None:
    """Grow growths that every runner has admitted."""
    active = list(growths)
    while active:
        laws: list[list[Law | None]] = [[] for _ in active]
        for source, runner in enumerate(runners):
            _score_frontiers(runner, source, active, laws)
        for growth, found in zip(active, laws, strict=True):
            growth.frontier = [want for want, law in zip(growth.frontier, found, strict=True) if law is not None]
            if growth.frontier:
                growth.grow([law for law in found if law is not None])
        active = [growth for growth in active if growth.frontier]


def _score_frontiers(runner: Runner, source: int, growths: Sequence[Growth], laws: list[list[Law | None]]) -> None:
    """Append to `laws` the laws of `runner` below the nodes that each growth wants from `source`.

    None where the runner knows no token that is allowed there: that branch has ended.
    """
    nodes = [[want.node for want in growth.frontier if want.source == source] for growth in growths]
    asked = [i for i, wanted in enumerate(nodes) if wanted]
    if not asked:
        return
    scored = runner.score([(growths[i], nodes[i]) for i in asked])
    for i, logits in zip(asked, scored, strict=True):
        laws[i] += [_law_below(growths[i], node, row) for node, row in zip(nodes[i], logits, strict=True)]


def _law_below(growth: Growth, node: int, logits: np.ndarray) -> Law | None:
    try:
        return growth.law_below(node, logits)
    except NothingAllowed:
        return None


def load_plain_draft(
    services: DraftServices, name: str, dtype: str | None = None, ranks: DraftRanks = 1
) -> LoadedModel:
    """`load_draft` of a model that drafts by its layers alone.

    Raises:
        InvalidParameter: as it, or a draft whose layers read a feedback memory.
    """
    draft = load_draft(services, name, dtype, ranks)
    if has_memory(draft.source.checkpoint):
        problem = f"{name} drafts with a feedback memory, which plain layers do not read"
        raise InvalidParameter("model", problem, "draft with method='spire'")
    return draft


def load_draft(services: DraftServices, name: str, dtype: str | None = None, ranks: DraftRanks = 1) -> LoadedModel:
    """The draft model called `name`, its weights stored as `dtype` (None: as the target's).

    Args:
        ranks: that share its layers, see `ranks_of_draft`.

    Raises:
        UnsupportedModel: it has another vocabulary than the target.
        InvalidParameter: ranks that it cannot be shared by.
    """
    chosen = ranks_of_draft(services.target.model, dtype or services.dtype, ranks)
    draft = services.load(name, dtype, chosen) if ranks != 1 else services.load(name, dtype)
    target = services.target.source
    if not target.tokenizer.same_vocabulary(draft.source.tokenizer):
        raise UnsupportedModel(
            f"model: {name} has another vocabulary than {target.name}, so its tokens mean something else; "
            "draft with method='cross_vocabulary', choose a draft model of the same family, or use ngram or suffix"
        )
    return draft
