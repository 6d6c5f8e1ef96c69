"""`TrackRecord`: what one drafter's proposals were worth to one request so far, and what is expected of the next one.

Reads committed tokens only, so a decision that rests on it leaves the law of the text alone. Not the place for deciding
(`hybrid.py`).
"""

from collections.abc import Sequence

from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import followed
from paceline.speculation.records import ENGINE_MEMORY, MEMORY, DraftRates

_PRIOR = 2.0
"""A drafter's own estimates begin as if this many tokens had been expected, and accepted."""


class TrackRecord:
    """Acceptance of one drafter by one request.

    Attributes:
        rates: of its proposals, verified or not.
        steps_since_draft: steps in which it proposed nothing, since it last did.

    Args:
        memory: weight of the past in its acceptance rate, per proposal.
        rates: where that rate begins.
        of_all: rates of all requests together, which learn as well.
    """

    def __init__(
        self, memory: float = MEMORY, rates: DraftRates | None = None, of_all: DraftRates | None = None
    ) -> None:
        self.rates = rates or DraftRates()
        self.steps_since_draft = 0
        self._memory, self._of_all = memory, of_all
        self._accepted = self._expected = _PRIOR

    def expected(self, tree: TokenTree, score: float | None) -> float:
        """Tokens of `tree` that are likely to stand.

        Args:
            score: the drafter's own estimate, corrected by how its estimates turned out; None for drafters that have
                none, whose acceptance rates by level are taken.
        """
        if not len(tree):
            return 0.0
        depth = max(tree.depths)
        if score is None:
            return float(self.rates.survival(depth).sum())
        return min(score * self._accepted / self._expected, float(depth))

    def learn(self, tree: TokenTree, score: float | None, emitted: Sequence[int]) -> None:
        """Compare a proposal with the tokens that were committed after its root, wherever they came from."""
        if not emitted:
            return
        if not len(tree):
            self.steps_since_draft += 1
            return
        self.steps_since_draft = 0
        num_kept, goes_on = followed(tree.tokens, tree.parents, emitted)
        refused = goes_on and num_kept < len(emitted)
        self.rates.learn(len(tree), num_kept, refused, memory=self._memory)
        if self._of_all is not None:
            self._of_all.learn(len(tree), num_kept, refused, memory=ENGINE_MEMORY)
        if score:
            seen = num_kept / max(tree.depths) if goes_on and not refused else 1.0  # how much of it could be judged
            self._accepted = MEMORY * self._accepted + num_kept
            self._expected = MEMORY * self._expected + score * seen
