"""Recording the draft's law at every token of an answer, as it was before the token was known, and the noise of
requests whose drafters may know it."""

from collections.abc import Sequence

from paceline.drafters.base import DraftContext, Drafter, read_along
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Randomness
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome


class Recorder:
    """Wraps a drafter and records its proposals.

    Args:
        inner: the wrapped drafter.
    """

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.name, self.traits = inner, inner.name, inner.traits
        self._rounds: dict[str, list[tuple[int, TokenTree]]] = {}
        self._noise: dict[str, Randomness] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """See `Drafter`."""
        trees = self.inner.propose(contexts)
        for context, tree in zip(contexts, trees, strict=True):
            self.note(context, tree)
        return trees

    def read_along(self, context: DraftContext) -> int:
        """See `ReadingDrafter`."""
        return read_along(self.inner, context)

    def note(self, context: DraftContext, tree: TokenTree) -> None:
        """Record the part of a proposal that is verified."""
        kept = tree.prune(context.budget) if len(tree) > context.budget else tree
        self._rounds.setdefault(context.request_id, []).append((len(context.token_ids), kept))
        if context.coupled:
            self._noise[context.request_id] = context.randomness

    def forget(self, request_id: str) -> None:
        """Discard the proposals of a request."""
        self._rounds.pop(request_id, None)
        self._noise.pop(request_id, None)

    def take_noise(self, request_id: str) -> Randomness | None:
        """What a request under the coupled rule draws its tokens with; None under another rule. Discards it.

        Its drafters may know it, and then a draft is not fixed before the token.
        """
        return self._noise.pop(request_id, None)

    def observe(self, outcome: RequestOutcome) -> None:
        """See `Drafter`."""
        self.inner.observe(outcome)

    def release(self, request_id: str) -> None:
        """See `Drafter`; recorded proposals stay until they are read."""
        self.inner.release(request_id)

    def draft_laws(self, request_id: str, token_ids: Sequence[int], first: int) -> list[Law | None]:
        """[n] the draft's law at each of ``token_ids[first:]``; None where nothing was drafted. Discards the record.

        Of several siblings, the first one's law is taken. A position belongs to the last round that began at or before
        it, and has a law only if the text before it is a path in that round's tree.
        """
        laws: list[Law | None] = [None] * (len(token_ids) - first)
        rounds = self._rounds.pop(request_id, [])
        for number, (start, tree) in enumerate(rounds):
            end = rounds[number + 1][0] if number + 1 < len(rounds) else len(token_ids)
            node = ROOT
            for place in range(start, min(end, len(token_ids))):
                children = tree.children(node)
                if not children:
                    break
                if place >= first:
                    laws[place - first] = _law_of(tree, children[0])
                followed = [child for child in children if tree.tokens[child] == token_ids[place]]
                if not followed:
                    break
                node = followed[0]
        return laws


def _law_of(tree: TokenTree, node: int) -> Law:
    return Law.one_hot(tree.tokens[node]) if tree.draw == "one_hot" else tree.draft_law(node)
