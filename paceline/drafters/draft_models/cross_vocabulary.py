"""`CrossVocabulary`: drafting with a model that has another vocabulary than the target.

An inner, ordinary draft model sees the text in its own tokens (`retokenize.py`). This wrapper translates contexts into
its vocabulary and proposals back into the target's. Two modes, both exact under every exact rule:

- ``intersection``: the draft's law is restricted to tokens that both vocabularies have (`shared_tokens.py`),
  renormalised inside them, and warped as the target's is. Tokens are drawn and verified by p/q. Token-level
  intersection of Timor et al. 2025. What the target spells with a token of its own only is never drafted.
- ``string``: the draft's greedy text is retokenised with the target's tokenizer and proposed deterministically.
  String-level exact match of Timor et al. 2025. Any text can be drafted, but a proposed token x is accepted with
  probability p(x) only, which is less under sampling.

Costs the inner draft model's passes, plus retokenising new text. Use it when there is no small model of the target's
family; within a family `draft_model` has a higher acceptance rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from paceline.drafters.base import DraftContext, Drafter
from paceline.drafters.draft_models.draft_model import DraftModel
from paceline.drafters.draft_models.load import without_memory
from paceline.drafters.draft_models.retokenize import Continuing, Follower, Respeller
from paceline.drafters.draft_models.shared_tokens import SharedTokens
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.options import TreeName, tree_shape
from paceline.errors import InvalidParameter
from paceline.models.resolve import ModelSource
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Purpose, Randomness
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome

Mode = Literal["intersection", "string"]


class Bridge(Protocol):
    """One mode of drafting across vocabularies: the translation of contexts and proposals."""

    def inside(self, context: DraftContext, tokens: Sequence[int]) -> DraftContext:
        """The context for the inner draft model; `tokens` is the text in its vocabulary."""
        ...

    def outside(self, context: DraftContext, tree: TokenTree) -> TokenTree:
        """The inner model's proposal in the target's vocabulary."""
        ...


class CrossVocabulary:
    """Drafts with `inner` across vocabularies.

    Args:
        inner: drafts in the vocabulary of `draft`.
        target, draft: the two models; their tokenizers are used.
        mode: how proposals are translated; see the module's docstring.

    Raises:
        InvalidParameter: an unknown mode, or ``intersection`` of vocabularies without common tokens.
    """

    name = "cross_vocabulary"

    def __init__(self, inner: Drafter, target: ModelSource, draft: ModelSource, mode: Mode = "intersection") -> None:
        if mode not in _BRIDGES:
            raise InvalidParameter("mode", f"{mode!r} is unknown", "use 'intersection' or 'string'")
        self._inner = inner
        self._bridge: Bridge = _BRIDGES[mode](target, draft)
        branches = mode == "intersection" and inner.traits.branches
        self.traits = replace(
            inner.traits, branches=branches, deterministic=False, at_once=False, prefers_coupled=False
        )
        self._target, self._encode = target.tokenizer, Continuing(draft.tokenizer)
        self._texts: dict[str, Follower] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One tree per context; empty while its text ends inside a character."""
        texts = [self._caught_up(context) for context in contexts]
        ready = [i for i, text in enumerate(texts) if text.is_whole and text.tokens]
        unknown = {"guess": (), "never_edits": False, "target_key": None}  # the law and the ids are not the draft's own
        inside = [self._bridge.inside(replace(contexts[i], **unknown), texts[i].tokens) for i in ready]
        drafted = self._inner.propose(inside)
        trees = [TokenTree()] * len(contexts)
        for i, tree in zip(ready, drafted, strict=True):
            trees[i] = self._bridge.outside(contexts[i], tree)
        return trees

    def observe(self, outcome: RequestOutcome) -> None:
        """Pass the committed text on, so that the draft model keeps its cache of the accepted tokens."""
        text, token_ids = self._texts.get(outcome.request_id), outcome.token_ids
        if text is not None and not outcome.finished and text.continues(token_ids):
            text.extend(token_ids)
            self._inner.observe(RequestOutcome(outcome.request_id, text.tokens))
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """See `Drafter`."""
        if self._texts.pop(request_id, None) is not None:
            self._inner.release(request_id)

    def _caught_up(self, context: DraftContext) -> Follower:
        """The request's text in the draft's tokens, extended; restarted when the text is not a continuation."""
        text = self._texts.get(context.request_id)
        if text is None or not text.continues(context.token_ids):
            text = self._texts[context.request_id] = Follower(self._target, self._encode)
        text.extend(context.token_ids)
        return text


class Intersection:
    """Laws over shared tokens, drawn by the request's own randomness under the target's ids and positions."""

    def __init__(self, target: ModelSource, draft: ModelSource) -> None:
        self.shared = SharedTokens(target, draft)
        if not len(self.shared):
            problem = f"{draft.name} and {target.name} share no token"
            raise InvalidParameter("mode", problem, "use mode='string', or another draft model")

    def inside(self, context: DraftContext, tokens: Sequence[int]) -> DraftContext:
        """The context for the draft model, with laws over the shared tokens."""
        shift = len(context.token_ids) - len(tokens)
        return replace(
            context,
            token_ids=tokens,
            num_prompt_tokens=0,
            warp=self._warping(context.warp),
            rank=context.rank and self._warping(context.rank),
            randomness=_OfTheTarget(context.randomness, self.shared, shift),
            end_token_ids=self.shared.shared_of(context.end_token_ids),
        )

    def _warping(self, outer: Callable[[np.ndarray, Sequence[int]], Law]) -> Callable[[np.ndarray, Sequence[int]], Law]:
        """Adapt `outer`, the target's warping, to logits and paths in the draft's vocabulary."""
        shared = self.shared

        def warp(logits: np.ndarray, path: Sequence[int]) -> Law:
            spread = shared.spread(logits)
            try:
                law = outer(spread, [shared.to_target(token) for token in path])
            except InvalidParameter:  # no shared token is allowed here: draft one that will be rejected
                law = Law.one_hot(int(np.argmax(spread)))
            return shared.law_to_draft(law)

        return warp

    def outside(self, context: DraftContext, tree: TokenTree) -> TokenTree:
        """The draft's tree in the target's ids."""
        tokens = tuple(self.shared.to_target(token) for token in tree.tokens)
        laws = tree.draft_laws and tuple(self.shared.law_to_target(law) for law in tree.draft_laws)
        return replace(tree, tokens=tokens, draft_laws=laws)


class String:
    """Greedy text of the draft model, retokenised for the target."""

    def __init__(self, target: ModelSource, draft: ModelSource) -> None:
        self._respell = Respeller(target, draft)

    def inside(self, context: DraftContext, tokens: Sequence[int]) -> DraftContext:
        """The context for the draft model, which makes it draft greedily."""
        laws: list[Law] = []  # the draft's own laws, for the length policy; the warped laws are one-hot

        def warp(logits: np.ndarray, path: Sequence[int]) -> Law:
            weights = np.exp((logits - logits.max()).astype(np.float64))
            laws.append(Law.from_dense(weights / weights.sum()))
            return Law.one_hot(int(np.argmax(logits)))

        keep: Callable[[Any], bool] = lambda _: context.keep_drafting(laws)  # noqa: E731
        return replace(
            context, token_ids=tokens, num_prompt_tokens=0, warp=warp, rank=None, keep_drafting=keep, end_token_ids=()
        )

    def outside(self, context: DraftContext, tree: TokenTree) -> TokenTree:
        """The drafted text in the target's tokens, as a chain."""
        return TokenTree.chain(self._respell(context.token_ids, tree.tokens)[: context.longest])


@dataclass(frozen=True, eq=False, slots=True)
class _OfTheTarget:
    """The request's randomness for draws of draft ids, with noise and positions of the target's tokens."""

    outer: Randomness
    shared: SharedTokens
    shift: int

    def coin(self, probability: Any, position: int, node: int) -> bool:
        return self.outer.coin(probability, position + self.shift, node)

    def draw(self, law: Law, position: int, purpose: Purpose, node: int = ROOT) -> int:
        token = self.outer.draw(self.shared.law_to_target(law), position + self.shift, purpose, node)
        return self.shared.to_draft(token)

    def exponentials(self, tokens: np.ndarray, position: int, purpose: Purpose, node: int = ROOT) -> np.ndarray:
        renamed = np.array([self.shared.to_target(int(token)) for token in tokens], dtype=np.int64)
        return self.outer.exponentials(renamed, position + self.shift, purpose, node)


_BRIDGES: dict[str, Callable[[ModelSource, ModelSource], Bridge]] = {"intersection": Intersection, "string": String}


def make_cross_vocabulary(
    services: DraftServices,
    model: str,
    mode: Mode = "intersection",
    max_prefill_rows: int = 512,
    tree: TreeName = "chain",
    expansion: Sequence[int] | None = None,
    paths: Sequence[Sequence[int]] | None = None,
    topk: int | None = None,
    depth: int | None = None,
    replacement: bool | None = None,
) -> CrossVocabulary:
    """A drafter with the model called `model`, whatever its vocabulary.

    Args:
        mode: ``intersection`` or ``string``; see the module's docstring.
        max_prefill_rows, tree, expansion, paths, topk, depth, replacement: as in `make_draft_model`; ``string`` drafts
            chains only.

    Raises:
        InvalidParameter: an unknown mode, vocabularies without a common token, options that describe no tree, or a
            draft with a feedback memory.
        ModelNotFound, DownloadFailed, CorruptWeights, UnsupportedModel: see `resolve_model`.
    """
    shape = tree_shape(tree, expansion=expansion, paths=paths, topk=topk, depth=depth, replacement=replacement)
    if mode == "string" and tree != "chain":
        raise InvalidParameter("tree", f"mode='string' writes one text, not tree={tree!r}", "use mode='intersection'")
    draft = without_memory(services.load(model), model)
    cost_ratio = services.cost_ratio([(draft, None)])
    inner = DraftModel(draft.model, services.num_pages, max_prefill_rows, shape, cost_ratio)
    return CrossVocabulary(inner, services.target.source, draft.source, mode)
