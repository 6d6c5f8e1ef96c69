"""Adaptive lengths do not change the law: enumerated for every policy; a policy that sees drawn tokens is caught."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from fractions import Fraction

import numpy as np
import pytest

from paceline.sampling import Law, Randomness, TokenTree, verify
from paceline.speculation import (
    BatchStats,
    DraftStats,
    Fixed,
    FixedPrices,
    Goodput,
    Heuristic,
    PrefixStats,
    RequestOutcome,
    StepOutcome,
    StepSeconds,
)
from paceline.speculation.policies import Cascade, Classifier, Confidence, Disco, LengthPolicy
from paceline.speculation.policies.disco import FEATURES

from .enumerator import law_of
from .tables import PROMPT, Model, Prefix, TextLaw, law, table_model, target_law

TARGET, DRAFT = table_model(1, 3), table_model(2, 3)
MOST = 3
Draft = Callable[[LengthPolicy, PrefixStats, Prefix, Randomness], TokenTree]


def classifier() -> Classifier:
    weights = np.zeros((1, len(FEATURES)))
    weights[0, 0] = 8.0
    return Classifier([0.5] + [0.0] * (len(FEATURES) - 1), [1.0] * len(FEATURES), [(weights, np.zeros(1))])


def goodput() -> Goodput:
    return Goodput(FixedPrices(lambda rows, _: 1 + 0.2 * rows), num_draft_tokens=MOST, explore=0.3)


def whole_goodput() -> Goodput:
    """Price such that refused drafts soon end drafting, and exploring begins it again."""
    return Goodput(FixedPrices(lambda rows, _: 1 + 0.5 * rows), num_draft_tokens=MOST, explore=0.3, whole=True)


POLICIES: dict[str, Callable[[], LengthPolicy]] = {
    "fixed": lambda: Fixed(2),
    "heuristic": lambda: Heuristic(start=1, num_draft_tokens=MOST),
    "confidence": lambda: Confidence(MOST, threshold=0.5),
    "disco": lambda: Disco(classifier(), MOST),
    "goodput": goodput,
    "goodput, whole drafts": whole_goodput,
    "cascade": lambda: Cascade(MOST, trial_steps=1, set_steps=1, base_steps=1),
}


def chain(model: Model = DRAFT) -> Draft:
    """Draws as a draft model does: the policy is asked before each further draw, with the laws so far."""

    def draft(policy: LengthPolicy, prefix: PrefixStats, text: Prefix, randomness: Randomness) -> TokenTree:
        tokens: list[int] = []
        laws: list[Law] = []
        while len(tokens) < prefix.budget and (not laws or policy.keep_drafting(prefix, laws)):
            laws.append(model((*text, *tokens)))
            tokens.append(randomness.draw(laws[-1], len(text) + len(tokens), "draft", len(tokens)))
        return TokenTree.chain(tokens, laws)

    return draft


def peeking_chain(model: Model) -> Draft:
    """Asks about the token just drawn and drops it when the answer is no."""

    def draft(policy: LengthPolicy, prefix: PrefixStats, text: Prefix, randomness: Randomness) -> TokenTree:
        drawn = model(text)
        token = randomness.draw(drawn, len(text), "draft", 0)
        chance = float(drawn.prob(token))
        seen = Law.from_dense(np.array([chance] + [(1 - chance) / 9] * 9))
        return TokenTree.chain([token], [drawn]) if policy.keep_drafting(prefix, [seen]) else TokenTree()

    return draft


def adaptive_law(
    policy: LengthPolicy, draft: Draft, target: Model, num_tokens: int, prompt: Prefix = PROMPT, lengths=None
) -> TextLaw:
    """The law of the first tokens of a loop in which `policy` sees its own past, stats and steps, on every branch."""
    batch = BatchStats()

    def turn(policy: LengthPolicy, budget: int, stats: DraftStats, text: Prefix, randomness: Randomness):
        tree = TokenTree()
        if budget:
            tree = draft(policy, PrefixStats(stats, batch, budget), text, randomness)
        verdict = verify(tree, lambda node: target((*text, *tree.tokens_to(node))), randomness, len(text))
        tokens = (*(tree.tokens[node] for node in verdict.path), verdict.token)
        return tokens, len(tree), verdict.kind == "recovered"

    def follow(policy: LengthPolicy, stats: DraftStats, text: Prefix, wanted: int) -> TextLaw:
        total: TextLaw = {}
        policy = deepcopy(policy)
        (budget,) = policy.budgets([stats], batch)
        outcomes = law_of(lambda randomness: turn(policy, budget, stats, text, randomness))
        for (tokens, drafted, rejected), chance in outcomes.items():
            if lengths is not None:
                lengths.add(drafted)
            head = tokens[:wanted]
            tails: Sequence[tuple[Prefix, Fraction]] = [((), Fraction(1))]
            if len(head) < wanted:
                later, after = deepcopy(policy), deepcopy(stats)
                outcome = RequestOutcome(
                    "r", num_new=len(tokens), num_draft_tokens=drafted, depth=drafted, num_accepted=len(tokens) - 1,
                    level_rejected=rejected, wanted=budget, asked=budget > 0,
                )  # fmt: skip
                later.observe(StepOutcome([outcome], seconds=StepSeconds(verifying=1 + 0.1 * drafted)))
                after.learn(outcome)
                tails = list(follow(later, after, text + head, wanted - len(head)).items())
            for tail, tail_chance in tails:
                total[head + tail] = total.get(head + tail, Fraction(0)) + chance * tail_chance
        return total

    return follow(policy, DraftStats(), prompt, num_tokens)


@pytest.mark.parametrize("name", POLICIES)
def test_the_text_has_the_targets_law_under_every_policy(name):
    assert adaptive_law(POLICIES[name](), chain(), TARGET, 4) == target_law(TARGET, 4)


@pytest.mark.parametrize("name", ["heuristic", "confidence", "disco", "cascade"])
def test_the_policies_did_adapt(name):
    lengths: set[int] = set()
    adaptive_law(POLICIES[name](), chain(), TARGET, 4, lengths=lengths)
    assert len(lengths) >= 2


P = law("1/2", "3/10", "1/5")


@pytest.mark.parametrize("make", [lambda: Confidence(1, 0.4), lambda: Disco(classifier(), 1, threshold=0.4)])
def test_a_stop_that_sees_the_drawn_token_bends_the_law(make):
    def always(text: Prefix) -> Law:
        return P

    bent = adaptive_law(make(), peeking_chain(always), always, 1, prompt=())
    assert bent == {(0,): Fraction(3, 4), (1,): Fraction(3, 20), (2,): Fraction(1, 10)}
    assert adaptive_law(make(), chain(always), always, 1, prompt=()) == target_law(always, 1, prompt=())
