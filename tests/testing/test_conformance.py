"""The conformance suite passes drafters that keep the contract, and names the promise that a wrong one breaks."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.drafters.base import BaseDrafter
from paceline.drafters.hybrid.child import Child
from paceline.drafters.hybrid.drafter import Hybrid
from paceline.drafters.registry import make_drafter
from paceline.drafters.self_drafts.lookahead import Lookahead
from paceline.errors import InvalidParameter
from paceline.sampling import Law, TokenTree
from paceline.speculation import DrafterTraits, FixedPrices
from paceline.testing import CHECKS, DrafterConformance, NotConforming, check_drafter, law_of


class Bigram(BaseDrafter):
    """Draws a chain from a fixed bigram law over three tokens, as the contract asks."""

    name = "bigram"

    def propose(self, contexts):
        return [self._chain(context) for context in contexts]

    def law(self, token):
        weights = np.array([0.6, 0.3, 0.1])
        return Law.from_dense(np.roll(weights, token % 3))

    def _chain(self, context):
        tokens, laws = [], []
        while len(tokens) < context.budget and (not laws or context.keep_drafting(laws)):
            laws.append(self.law([*context.token_ids, *tokens][-1]))
            tokens.append(context.draw_node(laws[-1], len(context.token_ids) + len(tokens), len(tokens)))
        return TokenTree.chain(tokens, laws)


PRICES = FixedPrices(lambda rows, _context: 1 + 0.05 * (rows - 1))
SERVICES = SimpleNamespace(target=SimpleNamespace(source=SimpleNamespace(eos_token_ids=())))
GOOD = {
    "plain": lambda: make_drafter("plain"),
    "ngram": lambda: make_drafter("ngram"),
    "suffix path": lambda: make_drafter("suffix", mode="path"),
    "suffix published": lambda: make_drafter("suffix", scoring="published"),
    "suffix tree": lambda: make_drafter("suffix", mode="tree"),
    "lookahead": lambda: Lookahead(SERVICES, 2, 3, 2),  # type: ignore[arg-type]
    "jacobi": lambda: make_drafter("jacobi"),
    "bigram": Bigram,
    "hybrid": lambda: Hybrid([Child(make_drafter("suffix"), PRICES), Child(Bigram(), PRICES, 0.1)], clock=lambda: 0.0),
}


@pytest.mark.parametrize("name", GOOD)
def test_drafters_that_keep_the_contract_pass(name):
    report = check_drafter(GOOD[name])
    assert report.num_tokens == 60
    assert (report.num_draft_tokens > 0) == (name != "plain")
    assert (report.num_passes < 60) == (name != "plain")


class Traitless(Bigram):
    """Does not declare what it is."""

    traits = None


class TooMany(Bigram):
    def _chain(self, context):
        return TokenTree.chain([0] * (context.budget + 1))


class TooDeep(Bigram):
    """A tree that heeds its budget of nodes and not of levels."""

    traits = DrafterTraits(branches=True)


class Remembering(Bigram):
    """Proposes what it saw last in whatever request, and does not say so."""

    def __init__(self):
        self.last = 0

    def observe(self, outcome):
        self.last = outcome.token_ids[-1] if outcome.finished else self.last

    def propose(self, contexts):
        return [TokenTree.chain([self.last]) for _ in contexts]


class Miscounting(Bigram):
    def propose(self, contexts):
        return super().propose(contexts)[:1]


class Changing(Bigram):
    def observe(self, outcome):
        outcome.token_ids.append(0)


class Keeping(Bigram):
    """Holds on to the engine's list and goes by it."""

    def __init__(self):
        self._texts = {}

    def observe(self, outcome):
        self._texts[outcome.request_id] = outcome.token_ids

    def release(self, request_id):
        self._texts.pop(request_id, None)

    def _chain(self, context):
        kept = self._texts.get(context.request_id, [0])
        return TokenTree.chain(kept[-1:])


class Sociable(Bigram):
    """Proposes more the more requests there are."""

    def propose(self, contexts):
        return [TokenTree.chain([0] * min(len(contexts), c.budget)) for c in contexts]


class Forgetful(Bigram):
    """Forgets to forget."""

    def __init__(self):
        self.seen = {}

    def propose(self, contexts):
        self.seen |= {c.request_id: len(c.token_ids) for c in contexts}
        return super().propose(contexts)


class Stale(Bigram):
    """Remembers a text under a name of its own making."""

    def __init__(self):
        self.lengths = {}

    def propose(self, contexts):
        for context in contexts:
            self.lengths.setdefault(hash(context.request_id), len(context.token_ids))
        return [TokenTree.chain([0] * min(self.lengths[hash(c.request_id)], c.budget)) for c in contexts]


class Unprepared(Bigram):
    """Counts on having seen every step."""

    def __init__(self):
        self.lengths = {}

    def observe(self, outcome):
        request_id, length = outcome.request_id, len(outcome.token_ids)
        if length < 30 and length - self.lengths.get(request_id, 2) > 10:
            raise KeyError(request_id)
        self.lengths[request_id] = length

    def propose(self, contexts):
        for context in contexts:
            if len(context.token_ids) == 14 and context.request_id not in self.lengths:
                raise KeyError(context.request_id)
        return [TokenTree() for _ in contexts]

    def release(self, request_id):
        self.lengths.pop(request_id, None)


class Peeking(Bigram):
    """Draws with the target's own noise, so it knows what the target will say."""

    def _chain(self, context):
        law = self.law(context.token_ids[-1])
        token = context.randomness.draw(law, len(context.token_ids), "target")
        return TokenTree.chain([token], [law])


class Rolling(Bigram):
    """Rolls its own dice."""

    def __init__(self):
        self._dice = random.Random(4)

    def _chain(self, context):
        return TokenTree.chain([self._dice.randrange(3) for _ in range(context.budget)])


class RollingFreshly(Rolling):
    """Rolls dice that nobody can reproduce."""

    def __init__(self):
        self._dice = random.SystemRandom()


class Ranked(Bigram):
    """Its most probable token, handed over as a draw."""

    def _chain(self, context):
        law = self.law(context.token_ids[-1])
        return TokenTree.chain([law.mode], [law])


class Choosy(Bigram):
    """Throws away what it drew when it is not the most probable token."""

    def _chain(self, context):
        law = self.law(context.token_ids[-1])
        token = context.draw_node(law, len(context.token_ids), 0)
        return TokenTree.chain([token], [law]) if token == law.mode else TokenTree()


class Mistaken(Bigram):
    """Hands over another law than the one it drew from."""

    def _chain(self, context):
        tree = super()._chain(context)
        return TokenTree.chain(tree.tokens, [Law.from_dense(np.array([0.4, 0.3, 0.3]))] * len(tree))


WRONG = {
    Traitless: "has traits",
    Miscounting: "one tree per context: 1 for 3",
    TooMany: "budget of 1",
    TooDeep: "levels proposed .* max_depth of 1",
    Remembering: "trait remembers",
    Changing: "token_ids is changed",
    Keeping: "earlier call",
    Sociable: "other requests of the step",
    Forgetful: "Forgetful.seen .* still holds the request",
    Stale: "former text",
    Peeking: "'target'",
    RollingFreshly: "two proposals",
    Ranked: "said with probability",
    Choosy: "said with probability",
    Mistaken: "said with probability",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_drafter_is_caught_by_name_of_its_promise(wrong):
    with pytest.raises(NotConforming, match=WRONG[wrong]):
        check_drafter(wrong)


def test_a_drafter_that_must_have_seen_everything_is_caught():
    with pytest.raises(KeyError):
        CHECKS["preemption"](Unprepared)


def test_what_is_no_tree_is_caught():
    class Lists(Bigram):
        def propose(self, contexts):
            return [[0] for _ in contexts]

    with pytest.raises(NotConforming, match="not list"):
        check_drafter(Lists)


def test_checks_can_be_left_out_by_name():
    check_drafter(Forgetful, skip=("release",))
    with pytest.raises(InvalidParameter, match="skip: there is no check 'relase'"):
        check_drafter(Forgetful, skip=("relase",))


class TestBigram(DrafterConformance):
    def make_drafter(self):
        return Bigram()


def test_the_class_has_a_test_for_every_check():
    assert {name for name in dir(DrafterConformance) if name.startswith("test_")} == {f"test_{name}" for name in CHECKS}
    with pytest.raises(NotImplementedError):
        DrafterConformance().make_drafter()


def test_enumeration_says_when_there_is_too_much_of_it():
    fair = Law.from_dense(np.full(10, 0.1))
    with pytest.raises(RuntimeError, match="more than 50 outcomes"):
        law_of(lambda r: (r.draw(fair, 0, "draft"), r.draw(fair, 1, "draft")), most=50)
    assert law_of(lambda r: r.coin(0.25, 0, 0)) == {True: 0.25, False: 0.75}
