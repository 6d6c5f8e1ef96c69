"""Replaying a text with a real drafter: it proposes after each prefix, and tokens equal to the text are accepted.

At temperature 0, and for deterministic drafts at any, these are the rounds of a real run with a fixed length, for any
stateful drafter: chains, trees, heads with the target's hidden states, hybrids, models on the target's own cache. With
the target's noise (the coupled rule) they are too, since a drafted token is accepted exactly if it is the target's
pick. A lookup that ranks its guesses by that noise knows it only where the text has a seed; elsewhere it guesses
without, and its rounds are a few per cent too many. For p/q a chain is drawn along the text, and each token is accepted
with probability min(1, q(x)/p(x)). Not for draft models that need no walk (`replay.py`), nor for drafters that use the
target's outputs off the text (lookahead, jacobi).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.drafters.base import DraftContext, Drafter
from paceline.evaluation.advise.noise import AlongText
from paceline.evaluation.advise.reading import Reader, Reading
from paceline.evaluation.advise.replay import Offer, Rounds, Text, expected_rounds
from paceline.models.base import KVCache, slot_of
from paceline.sampling import CounterRandomness, TokenTree, Warper
from paceline.speculation import BatchStats, RequestOutcome
from paceline.speculation.outcome import followed
from paceline.types import SamplingParams

Clock = Callable[[], float]
GREEDY = SamplingParams(temperature=0)
NOTHING_READ = Reading()


def replay_lookup(
    drafter: Drafter, texts: Sequence[Text], most: int, params: SamplingParams = GREEDY,
    clock: Clock = time.perf_counter,
) -> list[Rounds]:  # fmt: skip
    """The rounds of every text, in order, so that a drafter can use earlier answers.

    Args:
        drafter: new; proposes from text alone.
        most: largest number of nodes of a draft.
        params: of the requests.
        clock: seconds.
    """
    return [
        Walk(drafter, f"text-{number}", text, most, params, clock=clock).rounds() for number, text in enumerate(texts)
    ]


def replay_drafter(
    drafter: Drafter, reader: Reader, texts: Sequence[Text], most: int, params: SamplingParams, coupled: bool,
    clock: Clock = time.perf_counter,
) -> list[Rounds]:  # fmt: skip
    """The rounds of every text for a drafter that needs hidden states, keys and values, or laws.

    Args:
        reader: fills the cache that the drafter uses.
        params: of the requests.
        coupled: sampled texts are verified by the coupled rule; else by p/q, and the drafter draws chains.
    """
    found = []
    for number, text in enumerate(texts):
        reading = reader.read(text, coupled)
        walk = Walk(drafter, f"text-{number}", text, most, params, reading, reader.cache, clock)
        found.append(walk.rounds() if coupled or params.is_greedy else walk.expected())
        reader.release(reading)
    return found


def offers_along(
    drafter: Drafter, reader: Reader | None, texts: Sequence[Text], most: int, params: SamplingParams, coupled: bool
) -> list[list[Offer]]:
    """The offer at every position of every text: a trace, valid for any length up to `most`. Arguments as above."""
    found = []
    for number, text in enumerate(texts):
        reading = reader.read(text, coupled) if reader else NOTHING_READ
        walk = Walk(drafter, f"text-{number}", text, most, params, reading, reader.cache if reader else None)
        found.append(walk.offers(is_drawn=reader is not None and not coupled and not params.is_greedy))
        if reader:
            reader.release(reading)
    return found


class Walk:
    """The replay of one text.

    Args:
        drafter: proposes in every round.
        name: id of the request.
        text: the text.
        most: largest number of nodes of a draft.
        params: of the request.
        reading: the target's prefill of the text.
        cache: of the reading's pages; a drafter may overwrite the slots after the current prefix.
        clock: seconds, for timing proposals.
    """

    def __init__(
        self, drafter: Drafter, name: str, text: Text, most: int, params: SamplingParams = GREEDY,
        reading: Reading = NOTHING_READ, cache: KVCache | None = None, clock: Clock = time.perf_counter,
    ) -> None:  # fmt: skip
        self._drafter, self._name, self._text, self._most = drafter, name, text, most
        self._reading, self._cache, self._clock = reading, cache, clock
        self._whole, self._rounds = [*text.prompt, *text.output], Rounds(text.num_decoded)
        self._said = self._whole[: len(text.prompt) + 1]
        self._params = replace(params, max_tokens=max(1, len(text.output)))
        self._warper = Warper(self._params, token_ids=self._said, num_prompt_tokens=len(text.prompt))
        self._seconds, self._asked, self._is_drafting = 0.0, 0, False
        self._target_key = None if text.seed is None else CounterRandomness(text.seed).target_key

    def rounds(self) -> Rounds:
        """Replay the whole text, accepting exactly the drafted tokens that equal it."""
        self.begin()
        while not self.is_over:
            self.play(self.proposal())
        return self.end()

    def play(self, tree: TokenTree) -> None:
        """Play one round with the draft `tree`."""
        kept, goes_on = followed(tree.tokens, tree.parents, self._whole[len(self._said) :])
        self._rounds.add(len(tree), kept, goes_on)
        self._commit(kept, tree, goes_on)

    def end(self) -> Rounds:
        """The rounds played; releases the request at the drafter."""
        self._rounds.draft_seconds = self._seconds
        self._drafter.release(self._name)
        return self._rounds

    def expected(self) -> Rounds:
        """The expected rounds with chains drawn and verified by p/q, from a proposal at every position."""
        offers = self.offers(is_drawn=True)
        rounds = expected_rounds(self._text.num_decoded, lambda place: offers[place])
        rounds.draft_seconds = self._seconds / max(1, self._asked) * rounds.count
        return rounds

    def offers(self, is_drawn: bool) -> list[Offer]:
        """The offer at every position after the first token; the drafter observes rejections only.

        Args:
            is_drawn: chains are drawn along the text and verified by p/q; else tokens equal to the text are accepted.
        """
        offers: list[Offer] = []
        self.begin()
        while not self.is_over:
            tree = self.proposal(AlongText(self._whole) if is_drawn else None)
            offers.append((len(tree), self._stands(tree) if is_drawn else self._followed(tree)))
            self._commit(0, TokenTree(), False)
        self._drafter.release(self._name)
        return offers

    def _followed(self, tree: TokenTree) -> list[float]:
        """1 for every level that follows the text, then 0 if the next one does not."""
        kept, goes_on = followed(tree.tokens, tree.parents, self._whole[len(self._said) :])
        return [1.0] * kept + [0.0] * goes_on

    @property
    def is_over(self) -> bool:
        """Whether the end of the text is reached."""
        return len(self._said) >= len(self._whole)

    @property
    def _depth(self) -> int:
        """Largest number of levels that an engine would allow here."""
        left = len(self._whole) - len(self._said) - 1
        return min(self._most, left) if self._text.is_cut else self._most

    def begin(self) -> None:
        """Tell the drafter of the prefill and the first token."""
        first = len(self._text.prompt)
        taps = self._reading.taps_of(0, first)
        self._drafter.observe(
            RequestOutcome(
                self._name, self._said, 1, num_prefill_tokens=first, taps=taps, finished=self.is_over
            )
        )  # fmt: skip

    def proposal(self, along: AlongText | None = None) -> TokenTree:
        """The drafter's proposal after the current prefix.

        Args:
            along: randomness whose draws follow the text; None for the request's own.
        """
        depth = self._depth
        if depth < 1:
            return TokenTree()
        context = self._context(depth, along)
        saved = self._save()
        began = self._clock()
        [tree] = self._drafter.propose([context])
        self._seconds += self._clock() - began
        self._asked += 1
        self._restore(saved)
        return tree.prune(self._most, depth)

    def _context(self, depth: int, along: AlongText | None) -> DraftContext:
        reading, warper = self._reading, self._warper
        return DraftContext(
            self._name, self._said, len(self._text.prompt), self._most, self._params, warper.law,
            along or reading.randomness, reading.coupled and along is None, never_edits=warper.never_edits,
            target_key=None if along else self._target_key,
            rank=warper.confidence_law, page_table=reading.pages, max_depth=depth,
            batch=BatchStats(1, 0, self._most, len(self._said) - 1),
        )  # fmt: skip

    def _stands(self, tree: TokenTree) -> list[float]:
        """Acceptance probabilities of the drafted tokens that follow the text, then 0 for the first that does not."""
        stands, first = [], len(self._said) - len(self._text.prompt)
        for node, (token, p) in enumerate(zip(tree.tokens, self._reading.probs[first:], strict=False)):
            if token != self._whole[len(self._said) + node]:
                return [*stands, 0.0]
            q = 1.0 if tree.draw == "one_hot" else float(tree.draft_law(node).prob(token))
            stands.append(min(1.0, q / p) if p else 0.0)
        return stands

    def _commit(self, kept: int, tree: TokenTree, goes_on: bool) -> None:
        """Advance by `kept` + 1 tokens of the text and tell the drafter the outcome."""
        root, was_asked = len(self._said) - 1, self._depth > 0
        self._said += self._whole[root + 1 : root + 2 + kept]
        taps = self._reading.taps_of(root, len(self._said) - 1)
        self._drafter.observe(
            RequestOutcome(
                self._name, self._said, len(self._said) - root - 1, num_draft_tokens=len(tree),
                depth=tree.depth, tokens=tree.tokens, parents=tree.parents, num_accepted=kept,
                num_rejected=int(goes_on), level_rejected=goes_on, asked=was_asked, in_a_row=self._is_drafting,
                taps=taps, first_tapped=root, finished=self.is_over,
            )
        )  # fmt: skip
        self._is_drafting = bool(len(tree))

    def _save(self) -> tuple[list[int], list[int]] | None:
        """Copy keys and values that a drafter may overwrite, those from the last token on, to spare slots.

        Returns:
            (their slots, the spare slots); None without a cache.
        """
        pages, root, end = self._reading.pages, len(self._said) - 1, len(self._whole)
        if self._cache is None or not pages:
            return None
        count = min(self._most + 1, end - root)
        own = [slot_of(pages, root + i) for i in range(count)]
        spare = [slot_of(pages, end + self._most + 1 + i) for i in range(count)]
        self._cache.move(own, spare)
        return own, spare

    def _restore(self, saved: tuple[list[int], list[int]] | None) -> None:
        if saved is not None and self._cache is not None:
            self._cache.move(saved[1], saved[0])
