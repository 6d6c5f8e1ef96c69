"""`DraftRunner`: computes the logits for growing draft trees with a draft model and its own KV cache.

One pass per level serves all requests. Committed tokens that the model has not seen yet (the prompt, the target's own
tokens) are computed in the pass that scores the root. Nodes of the tree are stored after the committed tokens, each
attending to its own branch only. After verification the accepted branch moves to the slots of its positions and the
rest is dropped, so the cache equals that of a fresh prefill of the committed tokens. The tokens of
`DraftContext.guess` are computed together with the last committed tokens; where the tree follows them, their laws are
available without a pass. Not the place for tree shapes (`trees/`) or page bookkeeping (`draft_pages.py`).
"""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.runners.draft_pages import DraftPages, Kept, common_prefix
from paceline.drafters.trees.growth import Growth
from paceline.models.base import PAGE_SIZE, CausalLM, slot_of
from paceline.models.chains import ChainDraft, DraftsChains, Draws
from paceline.models.rows import Logits, Part, build_rows, compaction
from paceline.models.state_book import HoldsStates, most_texts
from paceline.sampling.randomness import ROOT
from paceline.speculation.outcome import RequestOutcome

_STATES = 32
"""States that are kept of a model with recurrent layers."""
_FEW = 4
"""Most committed tokens in a pass with a guess, because logits are computed for all rows of that pass."""


class DraftRunner:
    """Scores trees with `model`.

    Args:
        model: shares the target's vocabulary (`load_draft` checks).
        num_pages: pages of its cache. Requests that do not fit together are processed in turns.
        max_prefill_rows: most rows of one prefill pass.
        vocab_size: logits of the target; None for as many as the model has. Embeddings may be padded to different
            lengths, and a draft law must be that of the tokens it is drawn from: what the target cannot emit is cut off
            before the draw, not refused after it.
    """

    def __init__(
        self, model: CausalLM, num_pages: int, max_prefill_rows: int = 512, vocab_size: int | None = None
    ) -> None:
        is_wider = vocab_size is not None and model.config.vocab_size > vocab_size
        self._cut = vocab_size if is_wider else None
        self._model, self.cache = model, model.new_cache(num_pages)
        states = self.cache if isinstance(self.cache, HoldsStates) else None
        self.can_chain = isinstance(model, DraftsChains) and not is_wider and states is None
        self.can_draw = self.can_chain
        if states is not None:
            states.hold(_STATES)
        self._most_texts = None if states is None else most_texts(_STATES)
        self.pages = DraftPages(num_pages, states)
        self._max_prefill = max_prefill_rows
        self._limit = model.config.max_position_embeddings
        self._most = num_pages * PAGE_SIZE

    def score_with(self, model: CausalLM) -> None:
        """Switch to another view of the same weights; the cache stays valid."""
        self._model = model

    def can_hold(self, growth: Growth) -> bool:
        """Whether text and tree fit into the model's context, and into an empty cache."""
        num_tokens = len(growth.context.token_ids)
        return num_tokens + growth.max_rows <= self._most and num_tokens + growth.context.budget <= self._limit

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """The leading ones of `growths` that fit into the cache together, at least one, with long prompts prefilled."""
        ids = [growth.context.request_id for growth in growths[: self._most_texts]]
        return growths[: self.pages.seat(ids, lambda place, victims: self._seat(growths[place], victims, ids[:place]))]

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """Run one pass: for each admitted growth the logits [len(nodes), vocab] after its `nodes`, valid until the
        next.

        A growth's first nodes are [ROOT]; others must be children of ROOT or of nodes scored before.
        """
        found = [self._found_ahead(growth, nodes) for growth, nodes in work]
        parts = [self._part(*each) for each, known in zip(work, found, strict=True) if known is None]
        asked = self._split(parts) if parts else iter(())
        return [
            self._scored(growth, nodes, next(asked)) if known is None else known
            for (growth, nodes), known in zip(work, found, strict=True)
        ]

    def draft_chains(self, growths: Sequence[Growth], num_tokens: int, draws: Draws | None = None) -> ChainDraft:
        """See `ChainRunner`, for a `DraftsChains` model; the last token is not computed."""
        kept = [self.pages[growth.context.request_id] for growth in growths]
        parts = [
            self._committed_part(own, growth.context.token_ids, "last")
            for own, growth in zip(kept, growths, strict=True)
        ]
        draft = cast(DraftsChains, self._model).draft_chains(build_rows(parts), self.cache, num_tokens, draws)
        for own, tokens in zip(kept, draft.tokens.tolist(), strict=True):
            self.pages.share(own)
            own.row_tokens, own.row_parents = tokens[:-1], list(range(-1, len(tokens) - 2))
        return draft

    def read(self, context: DraftContext) -> int:
        """See `ReadingDrafter`; nothing is read where pages are missing, or of a text that is too long to draft for."""
        token_ids, longest = context.token_ids, min(self._most, self._limit)
        if self._most_texts is not None or max(context.num_prompt_tokens, len(token_ids)) >= longest:
            return 0
        kept = self.pages.recall(context.request_id, token_ids, context.salt)
        if len(kept.tokens) < len(token_ids) and self.pages.extend(kept, len(token_ids), ()):
            text = token_ids[: len(kept.tokens) + max(self._max_prefill, context.batch.num_prefill_rows)]
            while len(kept.tokens) < len(text):
                self._forward([self._committed_part(kept, text, "none")])
            self.pages.share(kept)
        return len(kept.tokens)

    def observe(self, outcome: RequestOutcome) -> None:
        """Move the accepted branch to the slots of its positions, and drop the rest of the draft."""
        kept = self.pages.get(outcome.request_id)
        if kept is not None:
            self._settle(kept, outcome.token_ids)
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self.pages.release(request_id)

    def slots(self, request_id: str) -> tuple[list[int], list[int]]:
        """(committed tokens in the cache, their slots), for inspection."""
        kept = self.pages[request_id]
        return list(kept.tokens), [slot_of(kept.pages, i) for i in range(len(kept.tokens))]

    def _seat(self, growth: Growth, victims: Sequence[str], seated: Sequence[str]) -> bool:
        """Allocate pages for the request's text and tree, and prefill all but the end of a long text; False if full.

        The requests that are `seated` keep their states.
        """
        token_ids = growth.context.token_ids
        kept = self.pages.recall(growth.context.request_id, token_ids, growth.context.salt)
        if not self.pages.extend(kept, len(token_ids) + growth.max_rows + len(self._guess(growth)), victims):
            return False
        while len(token_ids) - len(kept.tokens) > self._max_prefill:
            self.pages.use(seated)
            self._forward([self._committed_part(kept, token_ids, "none")])
            self.pages.share(kept)
        return True

    def _found_ahead(self, growth: Growth, nodes: Sequence[int]) -> np.ndarray | None:
        """The logits after `nodes` if they follow the computed guess; None where a pass is needed."""
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
        """The logits after `nodes` among those of the growth's rows; with the root, those of the guess are stored."""
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
        """The guess to compute along; empty where the cache cannot hold it besides the tree."""
        context = growth.context
        return context.guess if len(context.token_ids) + growth.max_rows + len(context.guess) <= self._most else ()

    def _part(self, growth: Growth, nodes: Sequence[int]) -> Part:
        """The rows to compute for the logits after `nodes`: new tokens up to the root, or new tree nodes."""
        kept = self.pages[growth.context.request_id]
        if nodes[0] != ROOT:
            return kept.part_of(growth, nodes)
        part, guess = self._committed_part(kept, growth.context.token_ids, "last"), self._guess(growth)
        if not guess or len(part.tokens) > _FEW:
            return part
        return part._replace(tokens=[*part.tokens, *guess], logits="all")

    def _committed_part(self, kept: Kept, token_ids: Sequence[int], logits: Logits) -> Part:
        """Rows of the next committed tokens, as many as a pass may have; they are recorded as cached."""
        start = len(kept.tokens)
        tokens = list(token_ids[start : start + self._max_prefill])
        kept.tokens += tokens
        return Part(kept.pages, start, tokens, logits=logits)

    def _forward(self, parts: Sequence[Part]) -> np.ndarray:
        logits = self._model.forward(build_rows(parts), self.cache).logits
        return logits if self._cut is None else logits[:, : self._cut]

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
