"""A drafter as a user would write one: it is found by its path and proposes the last token again."""

from collections.abc import Sequence

from paceline.drafters.base import BaseDrafter, DraftContext
from paceline.sampling import TokenTree
from paceline.speculation import DrafterTraits


class Silent(BaseDrafter):
    """Says that it chooses, and not what its drafts took."""

    name = "silent"
    traits = DrafterTraits(chooses=True)

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        return [TokenTree() for _ in contexts]


class Deep(Silent):
    """Wants hidden states."""

    def __init__(self, tap: int) -> None:
        self.traits = DrafterTraits(taps=(tap,))


class Half:
    """Proposes, and cannot be told anything."""

    name, traits = "half", DrafterTraits()

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        return [TokenTree() for _ in contexts]


class Nameless(Half):
    """Forgets to say what it is called."""

    name = None

    def observe(self, outcome) -> None:
        """Nothing to learn."""

    def release(self, request_id) -> None:
        """Nothing to forget."""


ALONE = Nameless()


class Repeat(BaseDrafter):
    """Proposes the last token again, up to `times` times."""

    name = "repeat"

    def __init__(self, times: int) -> None:
        self.times = times

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        return [TokenTree.chain([c.token_ids[-1]] * min(self.times, c.budget)) for c in contexts]
