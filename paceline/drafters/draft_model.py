"""`DraftModel`: a second, smaller model with the target's vocabulary drafts a chain, token by token.

Leviathan et al. 2023; Chen et al. 2023. Exact with every exact rule: tokens are drawn from the draft's own law, warped
as the target's is, and the law is handed on. Costs one draft pass per drafted token, shared by all requests that draft.
Use it when the draft is several times cheaper than the target and agrees with it.

The draft keeps keys and values of its own. A request's committed tokens that the draft has not seen yet (the prompt,
the target's own tokens) are fed in the same pass as the first draw; rejected tokens are rolled back by forgetting the
length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.drafters.base import DraftContext
from paceline.drafters.services import DraftServices
from paceline.errors import UnsupportedModel
from paceline.models.base import PAGE_SIZE, CausalLM
from paceline.models.rows import Part, build_rows
from paceline.sampling.law import Law
from paceline.sampling.tree import TokenTree


@dataclass(slots=True)
class _Stored:
    """What of a request lies in the draft's cache."""

    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Chain:
    """A draft in the making."""

    context: DraftContext
    stored: _Stored
    pending: list[int]
    tokens: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)


class DraftModel:
    """Drafts with `model`.

    Args:
        model: scores rows; must share the target's vocabulary (the engine checks).
        num_pages: pages of the draft's own cache. A request that finds no room is not drafted for.
        max_prefill_rows: most rows of one draft pass while it catches up with a prompt.
    """

    name = "draft_model"

    def __init__(self, model: CausalLM, num_pages: int, max_prefill_rows: int = 512) -> None:
        self._model = model
        self._cache = model.new_cache(num_pages)
        self._free = list(range(num_pages))
        self._max_rows = max_prefill_rows
        self._limit = model.config.max_position_embeddings
        self._requests: dict[str, _Stored] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        chains = [self._begin(context) for context in contexts]
        active = [chain for chain in chains if chain is not None]
        self._catch_up(active)
        while active:
            logits = self._pass([(chain, chain.pending) for chain in active], "last")
            active = [chain for chain, row in zip(active, logits, strict=True) if self._extend(chain, row)]
        return [TokenTree() if c is None else TokenTree.chain(c.tokens, c.laws) for c in chains]

    def observe(self, request_id: str, token_ids: Sequence[int], finished: bool) -> None:
        """Keep what the draft has stored and the target has confirmed; forget the rest."""
        stored = self._requests.get(request_id)
        if stored is not None:
            self._truncate(stored, _common_prefix(stored.tokens, token_ids))
        if finished:
            self.release(request_id)

    def release(self, request_id: str) -> None:
        stored = self._requests.pop(request_id, None)
        if stored is not None:
            self._free += stored.pages

    def _begin(self, context: DraftContext) -> _Chain | None:
        """A chain for the request, with pages for its tokens and its drafts; None when there is no room."""
        stored = self._requests.setdefault(context.request_id, _Stored())
        self._truncate(stored, min(_common_prefix(stored.tokens, context.token_ids), len(context.token_ids) - 1))
        length = len(context.token_ids) + context.budget
        missing = -(-length // PAGE_SIZE) - len(stored.pages)
        if missing > len(self._free) or length > self._limit:
            return None
        stored.pages += [self._free.pop() for _ in range(missing)]
        return _Chain(context, stored, list(context.token_ids[len(stored.tokens) :]))

    def _catch_up(self, chains: Sequence[_Chain]) -> None:
        """Feed long pending tokens in chunks, so that the draws start with short passes."""
        for chain in chains:
            while len(chain.pending) > self._max_rows:
                chunk, chain.pending = chain.pending[: self._max_rows], chain.pending[self._max_rows :]
                self._pass([(chain, chunk)], "none")

    def _pass(self, work: Sequence[tuple[_Chain, list[int]]], logits):
        """One draft pass over some tokens of each chain; they count as stored."""
        parts = [Part(c.stored.pages, len(c.stored.tokens), tokens, logits=logits) for c, tokens in work]
        output = self._model.forward(build_rows(parts), self._cache)
        for chain, tokens in work:
            chain.stored.tokens += tokens
        return output.logits

    def _extend(self, chain: _Chain, logits) -> bool:
        """Draw the next token of a chain; whether the chain goes on."""
        context = chain.context
        node = len(chain.tokens)
        law = context.warp(logits, chain.tokens)
        chain.laws.append(law)
        token = context.draw_node(law, len(context.token_ids) + node, node)
        chain.tokens.append(token)
        chain.pending = [token]
        return len(chain.tokens) < context.budget and context.keep_drafting(chain.laws)

    def _truncate(self, stored: _Stored, length: int) -> None:
        """Forget everything behind `length` tokens and return whole pages behind it."""
        del stored.tokens[length:]
        needed = -(-length // PAGE_SIZE)
        self._free += stored.pages[needed:]
        del stored.pages[needed:]


def make_draft_model(services: DraftServices, model: str, max_prefill_rows: int = 512) -> DraftModel:
    """The drafter around the model called `model`, as large a cache as the target's.

    Raises:
        UnsupportedModel: the model has another vocabulary than the target.
    """
    draft, target = services.load(model), services.target.source
    if not target.tokenizer.same_vocabulary(draft.source.tokenizer):
        raise UnsupportedModel(
            f"model: {model} has another vocabulary than {target.name}, so its tokens mean something else; "
            "draft with method='cross_vocabulary', choose a draft model of the same family, or use ngram or suffix"
        )
    return DraftModel(draft.model, services.num_pages, max_prefill_rows)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    length = min(len(a), len(b))
    if list(a[:length]) == list(b[:length]):  # the usual case, at the speed of C
        return length
    return next((i for i in range(length) if a[i] != b[i]), length)
