"""Every logits processor applies per tree node, with the path to the node as its history, and stays exact.

Two halves: the rational processors stay exact in the decode loop over every kind of draft; and the production warper
gives, at every history such a loop can reach, the law that the rational processors give.
"""

import random
from fractions import Fraction as F
from functools import cache

import numpy as np
import pytest

from paceline.sampling import Law, Randomness, TokenTree, resolve

from .rational_warper import RationalProcessors, logits
from .tables import PROMPT, Model, Prefix, decoded_law, drawn, ranked, target_law

PROCESSORS = {
    "temperature": RationalProcessors(power=2),
    "top-k": RationalProcessors(top_k=2),
    "top-p": RationalProcessors(top_p=F(3, 5)),
    "min-p": RationalProcessors(min_p=F(2, 7)),
    "repetition penalty": RationalProcessors(repetition=True),
    "presence penalty": RationalProcessors(presence=F(3)),
    "frequency penalty": RationalProcessors(frequency=F(5, 2)),
    "logit bias": RationalProcessors(bias={1: F(9, 4), 2: F(1, 9)}),
    "min tokens": RationalProcessors(min_tokens=2, end_ids=(2,)),
    "bad words": RationalProcessors(bad_words=((0, 1), (2,), (1, 1, 0))),
    "all together": RationalProcessors(
        bias={0: F(4)},
        repetition=True,
        presence=F(3, 2),
        frequency=F(7, 5),
        min_tokens=1,
        end_ids=(2,),
        bad_words=((0, 1),),
        power=2,
        min_p=F(1, 50),
        top_k=2,
        top_p=F(9, 10),
    ),
}
NUM_TOKENS = 3


def roots_model(seed: int):
    """Square roots of unnormalised weights, by the last token."""

    @cache
    def row(last: int) -> tuple[F, ...]:
        rng = random.Random(f"{seed} {last}")
        return tuple(F(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(3))

    return row


TARGET_ROOTS, DRAFT_ROOTS = roots_model(1), roots_model(2)


def warped(roots, processors: RationalProcessors) -> Model:
    def model(prefix: Prefix) -> Law:
        return processors.law(roots(prefix[-1]), PROMPT, prefix[len(PROMPT) :])

    return cache(model)


DRAFTS = {
    "chain": (lambda draft: drawn(draft, (1, 1)), "p/q"),
    "block": (lambda draft: drawn(draft, (1, 1)), "block"),
    "iid tree": (lambda draft: drawn(draft, (2, 1)), "p/q"),
    "tree without replacement": (lambda draft: drawn(draft, (2, 1), "without_replacement"), "p/q"),
    "ranked tree": (lambda draft: ranked(draft, (2, 2)), "p/q"),
    "matched": (lambda draft: ranked(draft, (2, 2)), "sample_and_match"),
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("name", PROCESSORS)
def test_decode_loop_has_the_processed_law(name: str, draft: str) -> None:
    target, drafter_model = (warped(roots, PROCESSORS[name]) for roots in (TARGET_ROOTS, DRAFT_ROOTS))
    drafter, rule = DRAFTS[draft]
    assert decoded_law(target, drafter(drafter_model), resolve(rule), NUM_TOKENS) == target_law(target, NUM_TOKENS)


@pytest.mark.parametrize("name", PROCESSORS)
def test_processor_changes_the_law(name: str) -> None:
    plain, processed = (warped(TARGET_ROOTS, p) for p in (RationalProcessors(), PROCESSORS[name]))
    assert target_law(plain, NUM_TOKENS) != target_law(processed, NUM_TOKENS)


@pytest.mark.parametrize("name", PROCESSORS)
def test_warper_agrees_with_the_rational_processors(name: str) -> None:
    """However much of the history is committed and how much is the path of a draft."""
    processors = PROCESSORS[name]
    for roots in (TARGET_ROOTS, DRAFT_ROOTS):
        model = warped(roots, processors)
        for length in range(NUM_TOKENS):
            for history in target_law(warped(roots, RationalProcessors()), length):
                exact = model(PROMPT + history)
                row = logits(roots((*PROMPT, *history)[-1]))
                for cut in range(length + 1):
                    law = processors.warper(PROMPT, history[:cut]).law(row, history[cut:])
                    assert law.tokens.tolist() == exact.tokens.tolist(), history
                    np.testing.assert_allclose(law.probs, exact.probs.astype(float), rtol=0, atol=1e-12)


def test_a_history_that_stops_at_the_root_changes_the_law() -> None:
    """The common mistake: penalties worked out once for the whole draft, from the committed tokens."""
    processors = PROCESSORS["frequency penalty"]
    draw_chain = drawn(warped(DRAFT_ROOTS, processors), (1, 1))
    committed: list[Prefix] = []

    def drafter(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        committed[:] = [prefix]
        return draw_chain(prefix, randomness, position)

    def careless(prefix: Prefix) -> Law:
        return processors.law(TARGET_ROOTS(prefix[-1]), PROMPT, committed[0][len(PROMPT) :])

    assert decoded_law(careless, drafter, resolve("p/q"), 2) != target_law(warped(TARGET_ROOTS, processors), 2)
