"""Several requests with one seed, whose drafts depend on earlier texts: the text of each has the target's law.

Two requests with the same seed read the same noise. A drafter or a length policy that remembers the first one then
decides the second one's drafts by what that noise said, and a rule that tosses coins judges them with the same noise
again. `judge` gives such rules a stream for each request; the tests of what was wrong before show that the checks here
would notice. Requests share their prompt too, the hardest case: every key of one is a key of the other.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from paceline.drafters.base import BaseDrafter, DraftContext, Drafter
from paceline.drafters.hybrid.child import Child
from paceline.drafters.hybrid.drafter import Hybrid
from paceline.sampling import RULES, CounterRandomness, Judge, Law, TokenTree, judge, resolve
from paceline.speculation import BatchStats, DrafterTraits, DraftStats, FixedPrices, LengthPolicy, StepOutcome
from paceline.testing.table_model import TableModel, Tokens, run

from .enumerator import law_of
from .tables import PROMPT, Model, Prefix, law, table_model, target_law

NUM_TOKENS = 2
NUM_REQUESTS = 3
FIRST_SEED, NUM_SEEDS = 1_000_000, 350
BUDGET = 3
FREE_ROWS = FixedPrices(lambda _rows, _context: 1.0)
DRAWING = 0.3
"""Passes that a drawn token costs: a hybrid draws two, which leaves room for one remembered token beside them."""
_OF_8 = 26.1
"""Chi-square of 8 degrees of freedom that is exceeded once in a thousand times."""

JudgeOf = Callable[[int, int], Judge]
"""(seed, number of the request) to how it is judged."""


class Table(TableModel):
    """A table of `tables.py` as the target of the decode loop in `paceline.testing`."""

    def __init__(self, model: Model, exact: bool = False) -> None:
        super().__init__()
        self._model, self._exact = model, exact

    def law(self, prefix) -> Law:
        key = tuple(prefix[-self.order :])
        if key not in self._rows:
            row = self._model(key)
            self._rows[key] = row if self._exact else Law(row.tokens, row.probs.astype(float))
        return self._rows[key]


def falling(prefix: Prefix) -> Law:
    """5 : 3 : 2 after odd tokens, the reverse after even ones."""
    return law(5, 3, 2) if prefix[-1] % 2 else law(2, 3, 5)


def rising(prefix: Prefix) -> Law:
    """The other way round: a draft of one token stands with a chance of 0.7."""
    return law(2, 3, 5) if prefix[-1] % 2 else law(5, 3, 2)


TARGET, DRAFT = Table(falling), Table(rising)


class Remembers(BaseDrafter):
    """Proposes what the request before said after the same text, as suffix decoding does, and at first token 0.

    Args:
        score: tokens that it expects to stand.
    """

    name = "remembers"
    traits = DrafterTraits(deterministic=True, remembers=True, estimates=True)

    def __init__(self, score: float = 0.3) -> None:
        self._score = score
        self._next: dict[Tokens, int] = {}

    def propose(self, contexts):
        return [self._chain(tuple(context.token_ids), context.longest) for context in contexts]

    def observe(self, outcome) -> None:
        text = tuple(outcome.token_ids)
        if outcome.finished:
            self._next |= {text[:end]: text[end] for end in range(len(PROMPT), len(text))}

    def _chain(self, text: Tokens, longest: int) -> TokenTree:
        tokens: Tokens = ()
        while len(tokens) < longest:
            tokens += (self._next.get(text + tokens, 0),)
        return replace(TokenTree.chain(tokens), chances=(self._score / longest,) * longest)


class Draws(BaseDrafter):
    """Draws a chain from another table."""

    name = "draws"

    def __init__(self, model: Table = DRAFT) -> None:
        self._model = model

    def propose(self, contexts):
        return [self._chain(context) for context in contexts]

    def _chain(self, context: DraftContext) -> TokenTree:
        tokens: list[int] = []
        laws: list[Law] = []
        while len(tokens) < context.longest and (not laws or context.keep_drafting(laws)):
            laws.append(self._model.law([*context.token_ids, *tokens]))
            tokens.append(context.draw_node(laws[-1], len(context.token_ids) + len(tokens), len(tokens)))
        return TokenTree.chain(tokens, laws)


class AfterZeros(Draws):
    """Draws one token where the request before said 0 after the same text, and nothing elsewhere."""

    name = "after zeros"

    def __init__(self) -> None:
        super().__init__()
        self._zeros: set[Tokens] = set()

    def propose(self, contexts):
        return [self._draw(context) for context in contexts]

    def observe(self, outcome) -> None:
        text = tuple(outcome.token_ids)
        if outcome.finished:
            self._zeros = {text[:end] for end in range(len(PROMPT), len(text)) if text[end] == 0}

    def _draw(self, context: DraftContext) -> TokenTree:
        return self._chain(replace(context, budget=1)) if tuple(context.token_ids) in self._zeros else TokenTree()


def hybrid(score: float = 0.3, unite: bool = True) -> Hybrid:
    """Of the two, at prices that do not change: its clock stands still."""
    children = [Child(Remembers(score), FREE_ROWS), Child(Draws(), FREE_ROWS, DRAWING)]
    return Hybrid(children, unite, clock=lambda: 0.0)


class AfterSuccess(LengthPolicy):
    """Drafts for a request only if all drafts of the request before were accepted."""

    def __init__(self) -> None:
        self._drafts = self._all_accepted = True

    def budgets(self, requests, batch) -> list[int]:
        return [int(self._drafts)] * len(requests)

    def observe(self, step: StepOutcome) -> None:
        for one in step.requests:
            self._all_accepted &= one.num_accepted == one.num_draft_tokens
            if one.finished:
                self._drafts, self._all_accepted = self._drafts and self._all_accepted, True


class Metered(BaseDrafter):
    """A drafter that drafts as long as a policy says, in an engine of one request at a time."""

    name = "metered"

    def __init__(self, drafter: Drafter, policy: LengthPolicy) -> None:
        self._drafter, self._policy = drafter, policy

    def propose(self, contexts):
        [budget] = self._policy.budgets([DraftStats()], BatchStats())
        if not budget:
            return [TokenTree()] * len(contexts)
        return self._drafter.propose([replace(context, budget=budget) for context in contexts])

    def observe(self, outcome) -> None:
        self._policy.observe(StepOutcome([outcome]))
        self._drafter.observe(outcome)


MEMORIES: dict[str, Callable[[], Drafter]] = {
    "remembering drafter": Remembers,
    "hybrid": hybrid,
    "remembering policy": lambda: Metered(Draws(), AfterSuccess()),
}


def drafter_of(memory: str, rule: str) -> Callable[[], Drafter]:
    """Block verification takes chains, so there the hybrid drafts what is remembered, which it is sure of."""
    return (lambda: hybrid(2.0, unite=False)) if (memory, rule) == ("hybrid", "block") else MEMORIES[memory]


def as_the_engine_does(rule: str) -> JudgeOf:
    verifier = resolve(rule)
    return lambda seed, number: judge(rule, verifier, seed, number)


def with_one_noise(rule: str) -> JudgeOf:
    """What was wrong: every request reads its seed's own noise."""
    verifier = resolve(rule)
    return lambda seed, number: Judge(verifier, CounterRandomness(seed), rule == "coupled", RULES[rule])


def in_sequence(make: Callable[[], Drafter], judged: list[Judge], target: Table = TARGET) -> list[Tokens]:
    """The texts of requests that one drafter serves one after the other."""
    drafter = make()
    return [
        run(target, drafter, how.verify, how.randomness, NUM_TOKENS, prompt=PROMPT, request_id=str(number),
            coupled=how.coupled, budget=BUDGET)
        for number, how in enumerate(judged)
    ]  # fmt: skip


def chi_squares(make: Callable[[], Drafter], judge_of: JudgeOf) -> list[float]:
    """[NUM_REQUESTS] by the request's place: how far its texts over all seeds lie from the target's law."""
    expected = {text: float(chance) * NUM_SEEDS for text, chance in target_law(falling, NUM_TOKENS).items()}
    assert len(expected) == 9
    assert min(expected.values()) > 5
    counts = [dict.fromkeys(expected, 0) for _ in range(NUM_REQUESTS)]
    for seed in range(FIRST_SEED, FIRST_SEED + NUM_SEEDS):
        judged = [judge_of(seed, number) for number in range(NUM_REQUESTS)]
        for place, text in enumerate(in_sequence(make, judged)):
            counts[place][text] += 1
    wanted = np.array(list(expected.values()))
    return [float(((np.array(list(said.values())) - wanted) ** 2 / wanted).sum()) for said in counts]


@pytest.mark.parametrize("rule", ["auto", "coupled", "p/q", "block", "rejection_sampling"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_the_text_of_every_request_has_the_targets_law(memory: str, rule: str) -> None:
    assert max(chi_squares(drafter_of(memory, rule), as_the_engine_does(rule))) < _OF_8


@pytest.mark.parametrize(
    ("memory", "rule"),
    [*product(MEMORIES, ["p/q"]), ("remembering drafter", "block"), ("remembering policy", "auto")],
)
def test_one_noise_for_all_requests_of_a_seed_would_be_noticed(memory: str, rule: str) -> None:
    first, *later = chi_squares(drafter_of(memory, rule), with_one_noise(rule))
    assert first < _OF_8
    assert max(later) > 1.5 * _OF_8


def test_rejection_sampling_needs_noise_for_each_request_too() -> None:
    """Whether it accepted says nothing of the token, so only a memory of tokens can tie texts together."""
    assert max(chi_squares(AfterZeros, as_the_engine_does("rejection_sampling"))) < _OF_8
    assert max(chi_squares(AfterZeros, with_one_noise("rejection_sampling"))) > 1.5 * _OF_8


@pytest.mark.parametrize("rule", ["auto", "coupled", "sample_and_match"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_where_the_target_picks_all_requests_of_a_seed_say_plain_samplings_text(memory: str, rule: str) -> None:
    for seed in range(40):
        plain = run(TARGET, Metered(Draws(), Never()), resolve("p/q"), CounterRandomness(seed), NUM_TOKENS)
        judged = [as_the_engine_does(rule)(seed, number) for number in range(NUM_REQUESTS)]
        assert in_sequence(MEMORIES[memory], judged) == [plain] * NUM_REQUESTS


class Never(LengthPolicy):
    """Plain decoding."""

    def budgets(self, requests, batch) -> list[int]:
        return [0] * len(requests)


@pytest.mark.parametrize("rule", ["auto", "p/q", "block", "rejection_sampling"])
@pytest.mark.parametrize("memory", ["remembering drafter", "remembering policy"])
def test_with_noise_of_their_own_texts_are_independent_of_each_other(memory: str, rule: str) -> None:
    """Enumerated: no memory of other requests ties a text to theirs, and each has exactly the target's law."""
    target, draft = table_model(1, 2), Table(table_model(2, 2), exact=True)
    make = Remembers if memory == "remembering drafter" else lambda: Metered(Draws(draft), AfterSuccess())
    verifier = resolve(rule)

    def texts(randomness) -> tuple[Tokens, ...]:
        judged = [Judge(verifier, randomness, False, RULES[rule])] * 2
        return tuple(in_sequence(make, judged, Table(target, exact=True)))

    alone = target_law(target, NUM_TOKENS)
    assert law_of(texts) == {(a, b): alone[a] * alone[b] for a, b in product(alone, alone)}


def test_the_hybrid_did_put_what_was_remembered_beside_what_was_drawn() -> None:
    drafter = Remembers(), Draws()
    seen: list[TokenTree] = []

    class Watched(Hybrid):
        def propose(self, contexts):
            seen.extend(super().propose(contexts))
            return seen[-len(contexts) :]

    def make() -> Drafter:
        return Watched([Child(each, FREE_ROWS, cost) for each, cost in zip(drafter, (0, DRAWING), strict=True)])

    in_sequence(make, [as_the_engine_does("p/q")(0, number) for number in range(NUM_REQUESTS)])
    first = seen[0]
    assert (first.draw, len(first.children(-1))) == ("iid", 2)
    assert [first.draft_law(node).is_one_hot for node in first.children(-1)] == [True, False]
