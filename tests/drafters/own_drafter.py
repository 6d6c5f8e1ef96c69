"""A drafter as a user would write one: it is found by its path and proposes the last token again."""

from collections.abc import Sequence

from paceline.drafters.base import BaseDrafter, DraftContext
from paceline.sampling import TokenTree


class Repeat(BaseDrafter):
    """Proposes the last token again, up to `times` times."""

    name = "repeat"

    def __init__(self, times: int) -> None:
        self.times = times

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        return [TokenTree.chain([c.token_ids[-1]] * min(self.times, c.budget)) for c in contexts]
