"""`DraftRunner`: a model that drafts, with keys and values of its own, scores the frontiers of growing trees.

One pass per level serves all requests. A request's committed tokens that the model has not seen yet (the prompt, the
target's own tokens) are fed in the pass that scores the root. Nodes of the tree lie behind the committed tokens, each
seeing its own branch only; once the verdict is known, the accepted branch moves to its natural place and the rest is
forgotten, so the cache is that of a fresh prefill of the committed tokens. Not the place for the shapes of trees
(`trees/`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from paceline.drafters.services import DraftServices
from paceline.drafters.trees.growth import Growth
from paceline.errors import UnsupportedModel
from paceline.models.base import CausalLM, pages_for, slot_of
from paceline.models.rows import Part, build_rows, compaction
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT


@dataclass(slots=True)
class _Stored:
    """What of a request lies in the cache: committed tokens, and behind them tree nodes in the order they were run."""

    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    row_tokens: list[int] = field(default_factory=list)
    row_parents: list[int] = field(default_factory=list)
    row_of_node: dict[int, int] = field(default_factory=dict)

    def accepted_rows(self, token_ids: Sequence[int]) -> list[int]:
        """Rows of the tree that `token_ids` goes through, in order of depth."""
        keys = zip(self.row_parents, self.row_tokens, strict=True)
        children = {key: row for row, key in enumerate(keys)}
        rows, above = [], -1
        for token in token_ids[len(self.tokens) :]:
            row = children.get((above, token))
            if row is None:
                break
            rows.append(row)
            above = row
        return rows

    def forget_rows(self) -> None:
        self.row_tokens, self.row_parents, self.row_of_node = [], [], {}


class DraftRunner:
    """Scores trees with `model`.

    Args:
        model: shares the target's vocabulary (`load_draft` checks).
        num_pages: pages of its cache. A request that finds no room is not admitted.
        max_prefill_rows: most rows of one pass while it catches up with a prompt.
    """

    def __init__(self, model: CausalLM, num_pages: int, max_prefill_rows: int = 512) -> None:
        self._model = model
        self.cache = model.new_cache(num_pages)
        self._free = list(range(num_pages))
        self._max_rows = max_prefill_rows
        self._limit = model.config.max_position_embeddings
        self._requests: dict[str, _Stored] = {}

    def admit(self, growth: Growth) -> bool:
        """Make room for the request's tokens and its tree and read a long prompt's beginning; False: no room."""
        context = growth.context
        stored = self._requests.setdefault(context.request_id, _Stored())
        self._truncate(stored, min(_common_prefix(stored.tokens, context.token_ids), len(context.token_ids) - 1))
        missing = pages_for(len(context.token_ids) + growth.max_rows) - len(stored.pages)
        if missing > len(self._free) or len(context.token_ids) + context.budget > self._limit:
            return False
        stored.pages += [self._free.pop() for _ in range(missing)]
        while len(context.token_ids) - len(stored.tokens) > self._max_rows:
            self._forward([self._committed_part(stored, context.token_ids, self._max_rows, "none")])
        return True

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """One pass: for each admitted growth the logits [len(nodes), vocab] below its `nodes`, good until the next.

        A growth's first nodes are [ROOT]; others must be children of ROOT or of nodes scored before.
        """
        logits = self._forward([self._part(growth, nodes) for growth, nodes in work])
        return np.split(logits, np.cumsum([len(nodes) for _, nodes in work])[:-1])

    def observe(self, request_id: str, token_ids: Sequence[int], finished: bool) -> None:
        """Keep what lies in the cache and was committed, each token at its place; forget the rest."""
        stored = self._requests.get(request_id)
        if stored is not None:
            self._settle(stored, token_ids)
        if finished:
            self.release(request_id)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        stored = self._requests.pop(request_id, None)
        if stored is not None:
            self._free += stored.pages

    def slots(self, request_id: str) -> tuple[list[int], list[int]]:
        """(committed tokens in the cache, their slots), to look at."""
        stored = self._requests[request_id]
        at = range(len(stored.tokens))
        return list(stored.tokens), [slot_of(stored.pages, i) for i in at]

    def _part(self, growth: Growth, nodes: Sequence[int]) -> Part:
        """The rows below which `nodes` ask: the tokens up to the root, or tree nodes behind those run before."""
        stored = self._requests[growth.context.request_id]
        if nodes[0] == ROOT:
            return self._committed_part(stored, growth.context.token_ids, self._max_rows, "last")
        num_computed = len(stored.row_tokens)
        for node in nodes:
            parent = growth.parents[node]
            stored.row_of_node[node] = len(stored.row_tokens)
            stored.row_tokens.append(growth.tokens[node])
            stored.row_parents.append(-1 if parent == ROOT else stored.row_of_node[parent])
        return Part(stored.pages, len(stored.tokens), stored.row_tokens, stored.row_parents, "all", num_computed)

    def _committed_part(self, stored: _Stored, token_ids: Sequence[int], most: int, logits) -> Part:
        """The next committed tokens, at most `most`; they count as stored."""
        start = len(stored.tokens)
        tokens = list(token_ids[start : start + most])
        stored.tokens += tokens
        return Part(stored.pages, start, tokens, logits=logits)

    def _forward(self, parts: Sequence[Part]) -> np.ndarray:
        return self._model.forward(build_rows(parts), self.cache).logits

    def _settle(self, stored: _Stored, token_ids: Sequence[int]) -> None:
        same = _common_prefix(stored.tokens, token_ids)
        if same == len(stored.tokens):
            rows = stored.accepted_rows(token_ids)
            sources, destinations = compaction(stored.pages, same, rows)
            if sources:
                self.cache.move(sources, destinations)
            stored.tokens += [stored.row_tokens[row] for row in rows]
            same = len(stored.tokens)
        self._truncate(stored, same)

    def _truncate(self, stored: _Stored, length: int) -> None:
        """Forget tree nodes and everything behind `length` tokens, and return whole pages behind it."""
        stored.forget_rows()
        del stored.tokens[length:]
        needed = pages_for(length)
        self._free += stored.pages[needed:]
        del stored.pages[needed:]


class Runner(Protocol):
    """What scores trees as `DraftRunner` does."""

    def admit(self, growth: Growth) -> bool: ...

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]: ...


def grow_all(runners: Sequence[Runner], growths: Sequence[Growth]) -> None:
    """Grow every growth to its end, runner i as source i, one pass per level and runner.

    A growth that some runner has no room for stays empty.
    """
    active = [growth for growth in growths if all(runner.admit(growth) for runner in runners)]
    while active:
        laws: list[list[Law]] = [[] for _ in active]
        for source, runner in enumerate(runners):
            _score_frontiers(runner, source, active, laws)
        for growth, found in zip(active, laws, strict=True):
            growth.grow(found)
        active = [growth for growth in active if growth.frontier]


def _score_frontiers(runner: Runner, source: int, growths: Sequence[Growth], laws: list[list[Law]]) -> None:
    """Append to `laws` what `runner` says below the nodes that each growth wants from `source`."""
    nodes = [[want.node for want in growth.frontier if want.source == source] for growth in growths]
    asked = [i for i, wanted in enumerate(nodes) if wanted]
    if not asked:
        return
    scored = runner.score([(growths[i], nodes[i]) for i in asked])
    for i, logits in zip(asked, scored, strict=True):
        laws[i] += [growths[i].law_below(node, row) for node, row in zip(nodes[i], logits, strict=True)]


def load_draft(services: DraftServices, name: str, dtype: str | None = None) -> CausalLM:
    """The draft model called `name`, its weights stored as `dtype` (None: as the target's).

    Raises:
        UnsupportedModel: it has another vocabulary than the target.
    """
    draft = services.load(name, dtype)
    target = services.target.source
    if not target.tokenizer.same_vocabulary(draft.source.tokenizer):
        raise UnsupportedModel(
            f"model: {name} has another vocabulary than {target.name}, so its tokens mean something else; "
            "draft with method='cross_vocabulary', choose a draft model of the same family, or use ngram or suffix"
        )
    return draft.model


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    length = min(len(a), len(b))
    if list(a[:length]) == list(b[:length]):  # the usual case, at the speed of C
        return length
    return next((i for i in range(length) if a[i] != b[i]), length)
