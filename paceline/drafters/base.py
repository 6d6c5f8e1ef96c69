"""The contract of a drafter: it proposes token trees, and is told what became of them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

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
    """`DraftContext.rank`'s law below a path, computed when a length policy reads it."""

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
    """What a drafter may know of one request; to be read only (freezing it would cost ten microseconds each).

    Attributes:
        request_id: stable while the request lives.
        token_ids: committed tokens, prompt and output; the last one is the root of the tree to propose. A drafter must
            not keep or change it.
        num_prompt_tokens: how many of them are the prompt.
        budget: most nodes the tree may have, at least 1.
        max_depth: most levels it may have, at least 1: deeper ones would lie after the end of the output.
        warp: (logits [vocab], tokens drafted down to the node) to the request's warped law, so that a drafter with a
            distribution can warp it as the target's is. With `ids` [k] the logits are of these tokens alone.
        randomness: the request's own; a drafter with a distribution draws node i of its tree through `draw_node`.
        coupled: the request is verified under the coupled rule, so draws share the target's noise.
        keep_drafting: asked before each further draw with the draft laws so far, never with the token just drawn.
        rank: as `warp`, to the law that ranks candidates (`Warper.confidence_law`); None takes `warp`.
        takes_argmax: `warp` puts everything on the largest logit, so a drafter need not ask it.
        asks_beliefs: the length policy reads how sure the draft is, so greedy requests must hand it `belief`.
        asks_laws: it reads more of a belief than its largest probability.
        page_table: the target's own pages of the request, in order of position; all of `token_ids` but the last have
            their keys and values there, to be read, never written. The slots after them, of the last token and of
            `budget` more, are overwritten when the draft is verified: a drafter may use them until then. Not to be
            kept.
        end_token_ids: tokens that end the answer: nothing after them is ever emitted.
        guess: tokens that may well follow, from somebody cheaper. A drafter with a model may read them along with the
            text, to know its laws after them should it draw the same; never a reason to propose them. Fewer than
            `budget`.
        salt: texts of requests with another one must not be used for this one (`cache_salt`).
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
    takes_argmax: bool = False
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
        """Most tokens of a chain."""
        return min(self.budget, self.max_depth)

    def over(self, ids: np.ndarray) -> "DraftContext":
        """The same for who scores the tokens `ids` [k] alone: `warp` and `rank` take logits [k]."""
        rank = None if self.rank is None else partial(self.rank, ids=ids)
        return replace(self, warp=partial(self.warp, ids=ids), rank=rank)

    def draw_node(self, law: Law, position: int, node: int) -> int:
        """The token of tree node `node` at absolute `position`, drawn from the (warped) draft law."""
        if self.coupled:
            return self.randomness.draw(law, position, "target", ROOT)
        return self.randomness.draw(law, position, "draft", node)

    def belief(self, logits: np.ndarray, path: Sequence[int]) -> Belief | None:
        """What `keep_drafting` should be told in place of the law below `path`; None where the law itself will do.

        A greedy request's warped law is certain of everything and tells a length policy nothing.
        """
        if self.rank is None or not (self.asks_beliefs and self.params.is_greedy):
            return None
        return Belief(self.rank, logits, path)

    def candidate_law(self, logits: np.ndarray, path: Sequence[int]) -> Law:
        """The law whose most probable tokens a deterministic tree should propose below `path`; see `raced`."""
        law = (self.rank or self.warp)(logits, path)
        return self.raced(law, len(self.token_ids) + len(path))

    def raced(self, law: Law, position: int) -> Law:
        """`law` as it looks to who knows the target's noise: each probability divided by its token's noise.

        Under the coupled rule the target picks argmin noise / p, so the order of q / noise is the order in which the
        draft expects its candidates to win, the winner of its own race first. Unchanged where no noise is used.
        """
        if not self.coupled or self.params.is_greedy or law.is_one_hot:
            return law
        weights = law.probs / self.randomness.exponentials(law.tokens, position, "target", ROOT)
        return Law(law.tokens, weights / weights.sum())


class Drafter(Protocol):
    """Proposes token trees. One instance serves every request of an engine.

    Attributes:
        name: for people, logs and metrics.
        traits: what everybody else must know of it.
    """

    name: str
    traits: DrafterTraits

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One tree per context, empty when there is nothing worth verifying."""
        ...

    def observe(self, outcome: RequestOutcome) -> None:
        """What a step did for a request, once per request and step; `finished` on its last call."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request: it finished, was aborted or was preempted."""
        ...


class ChoosingDrafter(Drafter, Protocol):
    """A drafter whose trait `chooses` holds.

    Attributes:
        chosen_seconds: what the latest proposals took beyond the choice between ways to draft. A text that has never
            been read by a head may be read for ten passes' time, once, because the drafts after it pay for that; were
            it part of the price of asking, nobody would be asked again.
    """

    chosen_seconds: float


class BaseDrafter:
    """What a drafter that knows nothing of its past does; a convenient base class, not a necessary one."""

    name: str = "unnamed"
    traits: DrafterTraits = DrafterTraits()

    def observe(self, outcome: RequestOutcome) -> None:
        """Nothing to learn."""

    def release(self, request_id: str) -> None:
        """Nothing to forget."""
