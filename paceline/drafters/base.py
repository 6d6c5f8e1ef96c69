"""The `Drafter` protocol: propose token trees, observe the outcome. And `DraftContext`, what a drafter gets."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeGuard

import numpy as np

from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Randomness
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.policies import DraftLaw
from paceline.speculation.records import BatchStats
from paceline.speculation.traits import DrafterTraits
from paceline.types import SamplingParams


class Belief:
    """The law of `DraftContext.rank` after a path, computed lazily when a length policy reads it."""

    def __init__(
        self, rank: Callable[[np.ndarray, Sequence[int]], Law], logits: np.ndarray, path: Sequence[int]
    ) -> None:
        self._rank, self._logits, self._path = rank, logits.copy(), path
        self._probs: np.ndarray | None = None

    @property
    def probs(self) -> np.ndarray:
        """Positive probabilities [k]."""
        if self._probs is None:
            self._probs = self._rank(self._logits, self._path).probs
        return self._probs


_ALONE = BatchStats()


def always(_: Sequence[DraftLaw]) -> bool:
    """Keep drafting until the budget is spent."""
    return True


@dataclass(eq=False, slots=True)
class DraftContext:
    """What a drafter gets of one request; read-only (not frozen, because that would cost ten microseconds each).

    Attributes:
        request_id: constant while the request runs.
        token_ids: committed tokens, prompt and output; the last one is the root of the tree to propose. A drafter must
            not keep or change it.
        num_prompt_tokens: length of the prompt.
        budget: largest number of nodes of the tree, at least 1.
        max_depth: largest number of its levels, at least 1; deeper ones would lie after the end of the output.
        warp: (logits [vocab], tokens drafted down to the node) to the request's warped law, for drafters with a
            distribution. With `ids` [k], the logits [k] are those of these tokens only.
        randomness: of the request; a drafter with a distribution draws node i of its tree through `draw_node`.
        coupled: the request is verified by the coupled rule, so draws use the target's noise.
        keep_drafting: called before each further draw with the draft laws so far, never with the token just drawn.
        rank: as `warp`, but returns the law that ranks candidates (`Warper.confidence_law`); None means `warp`.
        never_edits: `warp` applies nothing but the request's temperature, min-p, top-k and top-p.
        target_key: noise key of the target's draw at an absolute position (`CounterRandomness.key`); None where
            `coupled` does not hold, or token ids are not the target's.
        asks_beliefs: the length policy needs the draft's confidence, so greedy requests must pass it `belief`.
        asks_laws: the policy reads more of a belief than its largest probability.
        page_table: the target's pages of the request, in order of position. They hold the keys and values of all of
            `token_ids` but the last, read-only. The slots of the last token and of `budget` more are overwritten at
            verification; until then a drafter may use them. Do not keep the list.
        end_token_ids: tokens that end the output; nothing after them is emitted.
        guess: likely next tokens from a cheaper drafter, fewer than `budget`. A drafter with a model may compute them
            in the pass over the text, to have its laws ready should it draw the same tokens; it must not propose them
            for that reason.
        salt: texts of requests with another salt must not be used for this one (`cache_salt`).
    """

    request_id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    budget: int
    params: SamplingParams
    warp: Callable[..., Law]
    randomness: Randomness
    coupled: bool = False
    keep_drafting: Callable[[Sequence[DraftLaw]], bool] = always
    rank: Callable[..., Law] | None = None
    never_edits: bool = False
    target_key: Callable[[int], int] | None = None
    asks_beliefs: bool = False
    asks_laws: bool = False
    page_table: Sequence[int] = ()
    end_token_ids: Collection[int] = ()
    max_depth: int = 1 << 30
    batch: BatchStats = _ALONE
    guess: Sequence[int] = ()
    salt: bytes = b""

    @property
    def longest(self) -> int:
        """Largest length of a chain."""
        return min(self.budget, self.max_depth)

    @property
    def takes_argmax(self) -> bool:
        """Whether `warp` is one-hot at the largest logit, so that a drafter need not call it."""
        return self.never_edits and self.params.is_greedy

    def target_keys(self, num_levels: int) -> list[int]:
        """Noise keys of the target's next `num_levels` draws; empty where nothing is drawn, or with unknown noise."""
        if self.target_key is None or self.params.is_greedy:
            return []
        first = len(self.token_ids)
        return [self.target_key(first + level) for level in range(num_levels)]

    def over(self, ids: np.ndarray) -> "DraftContext":
        """The context for a drafter that scores only the tokens `ids` [k]: `warp` and `rank` take logits [k]."""
        rank = None if self.rank is None else partial(self.rank, ids=ids)
        return replace(self, warp=partial(self.warp, ids=ids), rank=rank)

    def draw_node(self, law: Law, position: int, node: int) -> int:
        """The token of tree node `node` at absolute `position`, drawn from the (warped) draft law."""
        if self.coupled:
            return self.randomness.draw(law, position, "target", ROOT)
        return self.randomness.draw(law, position, "draft", node)

    def belief(self, logits: np.ndarray, path: Sequence[int]) -> Belief | None:
        """The law to pass to `keep_drafting` instead of the warped law after `path`; None where that one will do.

        A greedy request's warped law is one-hot and carries no confidence for a length policy.
        """
        if self.rank is None or not (self.asks_beliefs and self.params.is_greedy):
            return None
        return Belief(self.rank, logits, path)

    def candidate_law(self, logits: np.ndarray, path: Sequence[int]) -> Law:
        """The law whose most probable tokens a deterministic tree should propose after `path`; see `raced`."""
        law = (self.rank or self.warp)(logits, path)
        return self.raced(law, len(self.token_ids) + len(path))

    def raced(self, law: Law, position: int) -> Law:
        """`law` given the target's noise: each probability divided by its token's noise, renormalised.

        Under the coupled rule the target picks argmin noise / p, so descending q / noise ranks the candidates by how
        likely they are to be picked. Unchanged where no noise is used.
        """
        if not self.coupled or self.params.is_greedy or law.is_one_hot:
            return law
        weights = law.probs / self.randomness.exponentials(law.tokens, position, "target", ROOT)
        return Law(law.tokens, weights / weights.sum())


class Drafter(Protocol):
    """Proposes token trees. One instance serves every request of an engine.

    Attributes:
        name: for display, logs and metrics.
        traits: static properties, for engine, scheduler and policies.
    """

    name: str
    traits: DrafterTraits

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One tree per context, empty when there is nothing worth verifying."""
        ...

    def observe(self, outcome: RequestOutcome) -> None:
        """Receive what a step did for a request; called once per request and step, with `finished` set at the end."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request: it finished, was aborted or was preempted."""
        ...


class ChoosingDrafter(Drafter, Protocol):
    """A drafter whose trait `chooses` holds.

    Attributes:
        chosen_seconds: seconds of the latest proposals without the choice between methods. Their cost was weighed by
            the drafter itself. For example, a head's prefill of a long text may take as long as ten passes, once, and
            pay off later; as part of the learned price of a proposal it would switch drafts off.
    """

    chosen_seconds: float


class ReadingDrafter(Drafter, Protocol):
    """A drafter that computes a request's text before it can draft, and can do so while the prompt is prefilled.

    Else its first draft computes the whole prompt, and all requests wait for that.
    """

    def read_along(self, context: DraftContext) -> int:
        """Compute a text that is still prefilled, a step's tokens or a few hundred at most.

        Args:
            context: `token_ids` are those that the target has computed; no draft is asked for. `batch` is the step,
                whose chunks are about as long as those of the step before.

        Returns:
            Tokens of the text, from its beginning, that need not be computed any more.
        """
        ...


def read_along(drafter: Drafter, context: DraftContext) -> int:
    """`ReadingDrafter.read_along` of a drafter that has it, for wrappers; 0 of others, which read nothing."""
    return drafter.read_along(context) if can_read_along(drafter) else 0


def can_read_along(drafter: Drafter) -> TypeGuard[ReadingDrafter]:
    """Whether the drafter is a `ReadingDrafter`."""
    return hasattr(drafter, "read_along")


class BaseDrafter:
    """An optional base class for drafters without state."""

    name: str = "unnamed"
    traits: DrafterTraits = DrafterTraits()

    def observe(self, outcome: RequestOutcome) -> None:
        """Do nothing."""

    def release(self, request_id: str) -> None:
        """Do nothing."""
