"""The drafter that never drafts: plain decoding through the same engine, the baseline of comparisons."""

from collections.abc import Sequence

from paceline.drafters.base import BaseDrafter, DraftContext
from paceline.sampling.tree import TokenTree


class Plain(BaseDrafter):
    """Proposes nothing and remembers nothing."""

    name = "plain"

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """Empty trees."""
        return [TokenTree()] * len(contexts)
