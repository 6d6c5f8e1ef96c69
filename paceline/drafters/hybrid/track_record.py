"""`TrackRecord`: acceptance record of one drafter for one request, verified or not.

It reads committed tokens only, so decisions based on it do not change the output's law. Not the place for deciding
(`hybrid/`).
"""

from collections.abc import Sequence

from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import followed
from paceline.speculation.records import ENGINE_MEMORY, MEMORY, DraftRates, Estimates


class TrackRecord:
    """Acceptance of one drafter by one request.

    Attributes:
        rates: of its proposals, verified or not.
        estimates: record of the drafter's own estimates.
        steps_since_draft: steps since it last proposed something.

    Args:
        memory: discount of the past in the rates, per proposal.
        rates: the prior.
        of_all: rates of all requests together, updated as well.
    """

    def __init__(
        self, memory: float = MEMORY, rates: DraftRates | None = None, of_all: DraftRates | None = None
    ) -> None:
        self.rates = rates or DraftRates()
        self.steps_since_draft = 0
        self._memory, self._of_all = memory, of_all
        self.estimates = Estimates()

    def chances(self, tree: TokenTree) -> list[float]:
        """[nodes] estimated acceptance probability of each node of a free proposal, descending.

        The drafter's own estimates with a correction; without estimates, the expected tokens of the node's level
        divided among its nodes.
        """
        if not len(tree):
            return []
        if tree.chances is None:
            depths = tree.depths
            rates = self.rates.survival(max(depths)).tolist()
            return [rates[depth - 1] / depths.count(depth) for depth in depths]
        correction = self.estimates.correction
        return [chance * correction for chance in tree.chances]

    def learn(self, tree: TokenTree, emitted: Sequence[int]) -> None:
        """Compare a proposal with the tokens committed after its root, whichever drafter proposed them."""
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
        if tree.chances:
            seen = num_kept / tree.depth if goes_on and not refused else 1.0  # how much of it could be judged
            self.estimates.learn(sum(tree.chances) * seen, num_kept)
