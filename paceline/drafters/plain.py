"""The drafter that never drafts: plain decoding through the same engine, the yardstick of every comparison."""

from collections.abc import Sequence

from paceline.drafters.base import DraftContext
from paceline.sampling.tree import TokenTree


class Plain:
    """Proposes nothing and remembers nothing."""

    name = "plain"

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One empty tree per context."""
        return [TokenTree() for _ in contexts]

    def observe(self, request_id: str, token_ids: Sequence[int], finished: bool) -> None:
        """Nothing to learn."""

    def release(self, request_id: str) -> None:
        """Nothing to forget."""
