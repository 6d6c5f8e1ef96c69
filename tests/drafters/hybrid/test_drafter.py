"""Who drafts when, by hand: prices, promises, exploration, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from paceline.drafters.base import BaseDrafter
from paceline.drafters.hybrid.child import Child
from paceline.drafters.hybrid.drafter import Hybrid
from paceline.drafters.hybrid.step import StepPrices
from paceline.drafters.registry import make_drafter
from paceline.errors import InvalidParameter
from paceline.sampling import Law, TokenTree
from paceline.speculation import BatchStats, DrafterTraits, FixedPrices
from paceline.types import SamplingParams
from tests.drafters.contexts import context
from tests.fakes import tell

LONG = SamplingParams(max_tokens=2000)
PRICES = FixedPrices(lambda rows, _context: 1 + 0.05 * (rows - 1))
"""Passes in which a further row costs a twentieth of a pass over one."""


class Fixed(BaseDrafter):
    """Always the same chain, cut to its budget; counts how often it was asked."""

    name = "fixed"
    traits = DrafterTraits(reads=True)

    def __init__(self, tokens, drawn=False):
        self.tokens, self.drawn, self.budgets, self.released = tokens, drawn, [], []

    def propose(self, contexts):
        self.budgets += [c.budget for c in contexts]
        return [self._chain(self.tokens[: c.budget]) for c in contexts]

    def _chain(self, tokens):
        return TokenTree.chain(tokens, [Law.one_hot(t) for t in tokens] if self.drawn else None)

    def release(self, request_id):
        self.released.append(request_id)


class Sure(Fixed):
    """Estimates its own proposals: `score` tokens of them will be accepted."""

    traits = DrafterTraits(estimates=True, reads=True)

    def __init__(self, tokens, score):
        super().__init__(tokens)
        self.score = score

    def _chain(self, tokens):
        return replace(super()._chain(tokens), chances=(self.score / max(1, len(self.tokens)),) * len(tokens))


def stopped():
    """A clock that stands still: nothing is learned of what drafts take."""
    return 0.0


def pair(free, model, cost_ratio=0.2, prices=PRICES, clock=stopped, **options):
    return Hybrid([Child(free, prices), Child(model, prices, cost_ratio)], clock=clock, **options)


def step(hybrid, text, emitted, budget=8, **fields):
    """One proposal after `text`, and the news that `emitted` followed; the proposal."""
    [tree] = hybrid.propose([replace(context(text, budget), params=LONG, **fields)])
    text += emitted
    tell(hybrid, "r", text, finished=False)
    return tree


def test_a_sure_free_proposal_leaves_the_model_unasked():
    model = Fixed([7] * 8, drawn=True)
    tree = step(pair(Sure([1, 2, 3, 4], 3.8), model), [0], [1])
    assert tree.tokens == (1, 2, 3, 4)
    assert model.budgets == []


def test_an_unsure_one_stands_beside_the_models_draft():
    model = Fixed([7] * 8, drawn=True)
    tree = step(pair(Sure([1, 2], 0.9), model, 0.02), [0], [7])
    drawn = len(tree) - 2
    assert tree.tokens == (1, 2, *[7] * drawn)
    assert tree.parents[:3] == (-1, 0, -1)
    assert model.budgets == [drawn]


def test_a_model_may_read_the_free_proposal_along():
    seen = []

    class Reading(Fixed):
        def propose(self, contexts):
            seen.extend(tuple(each.guess) for each in contexts)
            return super().propose(contexts)

    step(pair(Sure([1, 2, 3], 0.2), Reading([7] * 8, drawn=True), 0.02), [0], [7], budget=3)
    assert seen == [(1, 2)]  # the law after a third token is not needed for a draft of three


def test_without_union_one_drafts_at_a_time():
    hybrid = pair(Sure([1, 2], 0.9), Fixed([7] * 8, drawn=True), 0.02, unite=False)
    assert set(step(hybrid, [0], [7]).tokens) == {7}
    assert not hybrid.traits.branches


def test_the_budget_holds_both():
    for budget in range(1, 9):
        hybrid = pair(Sure([1, 2, 3], 1.2), Fixed([7] * 8, drawn=True), 0.01)
        assert 1 <= len(step(hybrid, [0], [7], budget)) <= budget


def test_a_hopeless_neighbour_is_left_out():
    assert set(step(pair(Sure([1, 2], 0.01), Fixed([7] * 8, drawn=True)), [0], [7]).tokens) == {7}


def test_nothing_is_verified_that_is_not_worth_its_row():
    assert len(step(pair(Sure([1, 2], 0.01), Fixed([7], drawn=True), 5.0), [0], [7])) == 0


def test_a_model_that_keeps_failing_is_left_alone_and_tried_again():
    model, text = Fixed([7] * 8, drawn=True), [0]
    hybrid = pair(Sure([], 0.0), model, 0.3)
    for _ in range(80):
        step(hybrid, text, [3])
    tries = len(model.budgets)
    assert 3 <= tries < 20
    for _ in range(70):
        step(hybrid, text, [3])
    assert 1 <= len(model.budgets) - tries <= 3


def test_a_free_drafter_that_promises_too_much_loses_its_place():
    model, text = Fixed([7] * 8, drawn=True), [0]
    hybrid = pair(Sure([1, 2, 3, 4], 3.8), model, 0.1)
    for _ in range(12):
        step(hybrid, text, [7, 7, 7])
    assert model.budgets
    assert step(hybrid, text, [7, 7]).tokens[-1] == 7


def asked(num_prompt, num_said, max_tokens, hybrid=None):
    """Whether the model drafts after such a text; of ten tokens it drafts seven stand, a token costs 0.2 passes."""
    hybrid = hybrid or pair(Sure([], 0.0), Fixed([7] * 8, drawn=True), 0.2)
    text = context([0] * (num_prompt + num_said))
    [tree] = hybrid.propose([replace(text, num_prompt_tokens=num_prompt, params=SamplingParams(max_tokens=max_tokens))])
    return len(tree) > 0


def test_a_long_prompt_is_not_read_for_a_short_answer():
    """Reading 4000 tokens costs 40 passes here; an answer that has just begun is not taken to be long."""
    assert asked(72, 28, 128)
    assert not asked(4000, 28, 128)
    assert not asked(4000, 28, 4000)
    assert asked(4000, 2000, 8000)
    assert not asked(4000, 2000, 2100)


class Reading(Fixed):
    """Reads along, and notes how much."""

    def __init__(self, tokens):
        super().__init__(tokens, drawn=True)
        self.num_read = []

    def read_along(self, context):
        self.num_read.append(len(context.token_ids))
        return len(context.token_ids)


def read_along(hybrid, num_prompt, max_tokens, num_computed=128):
    text = replace(context([0] * num_computed), num_prompt_tokens=num_prompt, budget=0, max_depth=0)
    return hybrid.read_along(replace(text, params=SamplingParams(max_tokens=max_tokens)))


def test_the_child_that_would_draft_reads_a_prompt_along():
    model = Reading([7] * 8)
    hybrid = pair(Sure([], 0.0), model, 0.2)
    assert read_along(hybrid, 200, 128) == 128 and model.num_read == [128]
    assert not hybrid._requests, "it does not decode yet: what it says later is nothing that a child left unproposed"
    assert asked(200, 0, 128, hybrid) and hybrid._requests["r"].num_read == {0: 200, 1: 200} and not hybrid._read


def test_what_was_read_along_need_not_pay_any_more():
    """Few tokens are to follow, which do not pay for 4000 that would have to be read, but for 72 of them."""
    model = Reading([7] * 8)
    hybrid = pair(Sure([], 0.0), model, 0.2)
    assert not asked(4000, 0, 4000, pair(Sure([], 0.0), model, 0.2))
    assert read_along(hybrid, 4000, 4000) == 0 and not model.num_read, "a beginning of a prompt is not worth more"
    hybrid._read["r"] = {1: 3928}
    assert asked(4000, 0, 4000, hybrid)


def test_a_child_that_does_not_read_along_is_left_alone():
    assert read_along(pair(Sure([], 0.0), Fixed([7] * 8, drawn=True), 0.2), 200, 128) == 0


class Unsure(Fixed):
    """A chain whose every token its model gives `chance`; drafts while it is told to go on."""

    def __init__(self, chance, drawn=True):
        super().__init__([7] * 8, drawn)
        self.law = Law(np.array([3, 7]), np.array([1 - chance, chance]))

    def propose(self, contexts):
        return [self._chain(self.tokens[: self._length(each)]) for each in contexts]

    def _length(self, text):
        laws = [self.law]
        while len(laws) < text.longest and text.keep_drafting(laws):
            laws.append(self.law)
        return len(laws)


@pytest.mark.parametrize(("chance", "longest", "shortest"), [(0.99, 8, 6), (0.8, 4, 3), (0.55, 2, 1)])
def test_a_chain_is_as_long_as_its_model_is_sure(chance, longest, shortest):
    assert shortest <= len(step(pair(Sure([], 0.0), Unsure(chance)), [0], [7])) <= longest


def test_models_are_asked_what_they_believe_where_laws_are_points():
    seen = []

    class Asked(Fixed):
        def propose(self, contexts):
            seen.extend(each.asks_beliefs for each in contexts)
            return super().propose(contexts)

    step(pair(Sure([], 0.0), Asked([7], drawn=True)), [0], [7])
    assert seen == [True]


@pytest.mark.parametrize(
    ("params", "coupled"), [(SamplingParams(temperature=0), False), (SamplingParams(), True), (SamplingParams(), False)]
)
def test_a_request_begins_with_what_earlier_ones_accepted(params, coupled):
    """After answers that refused every draft, a new one is not drafted for at first; a fresh hybrid drafts at once."""
    model = Fixed([7] * 8, drawn=True)
    hybrid = pair(Sure([], 0.0), model, 0.3)

    def begin(name):
        text = replace(context([0]), request_id=name, params=params, coupled=coupled)
        [tree] = hybrid.propose([text])
        tell(hybrid, name, [0, 3], finished=True)
        return len(tree)

    assert begin("first") > 0
    for number in range(40):
        begin(f"{number}")
    assert begin("last") == 0
    lengths = [len(step(hybrid, text, [3])) for text in [[0]] for _ in range(40)]
    assert any(lengths), "a model is tried again in the course of an answer"


def test_a_model_that_failed_is_tried_less_and_less():
    model, text = Fixed([7] * 8, drawn=True), [0]
    hybrid = pair(Sure([], 0.0), model, 0.3)
    tries = []
    for _ in range(40 + 32 + 64 + 128):
        before = len(model.budgets)
        step(hybrid, text, [3])
        tries.append(len(model.budgets) > before)
    late = [at for at, tried in enumerate(tries) if tried and at > 30]
    gaps = [b - a for a, b in pairwise(late)]
    assert len(gaps) >= 2
    assert all(b > 1.9 * a for a, b in pairwise(gaps))


def test_the_best_of_several_free_proposals_is_taken():
    hybrid = Hybrid([Child(Sure([1], 0.5), PRICES), Child(Sure([2, 3], 1.5), PRICES)])
    assert step(hybrid, [0], [2, 3]).tokens == (2, 3)


def test_requests_are_forgotten_everywhere():
    free, model = Fixed([1]), Fixed([7], drawn=True)
    hybrid = pair(free, model)
    step(hybrid, [0], [1])
    hybrid.release("r")
    assert (free.released, model.released) == (["r"], ["r"])
    assert not hybrid._requests
    step(hybrid, [0], [1])
    tell(hybrid, "r", [0, 1, 2], finished=True)
    assert not hybrid._requests
    for forget in (lambda: hybrid.release("r"), lambda: tell(hybrid, "r", [0], finished=True)):
        hybrid._read["r"] = {1: 5}
        forget()
        assert not hybrid._read


def test_a_request_that_comes_back_shorter_begins_anew():
    hybrid = pair(Fixed([1]), Fixed([7], drawn=True))
    step(hybrid, [0, 1, 2, 3], [1])
    first = hybrid._requests["r"]
    hybrid.propose([context([0, 1])])
    assert hybrid._requests["r"] is not first


def flat(rows, _context):
    return 1.0


def steep(rows, _context):
    return 1 + 0.5 * (rows - 1)


def test_the_target_says_what_rows_cost():
    """A free proposal of two tokens of which 0.9 are expected pays where rows are cheap, and only there."""
    lengths = [len(step(pair(Sure([1, 2], 0.9), Fixed([7]), 5.0, FixedPrices(p)), [0], [1])) for p in (flat, steep)]
    assert lengths == [2, 0]


def test_where_rows_are_free_a_hopeless_neighbour_stands_beside_a_draft():
    """Where they are not it is left out; see above."""
    tree = step(pair(Sure([1, 2], 0.01), Fixed([7] * 8, drawn=True), prices=FixedPrices(flat)), [0], [7])
    assert tree.tokens == (1, 2, 7, 7, 7, 7, 7, 7)


def test_reading_costs_what_the_target_takes_for_more_rows():
    """4000 unread tokens cost a model nothing where the target's rows cost nothing."""

    def drafts(prices):
        return asked(4000, 28, 128, pair(Sure([], 0.0), Fixed([7] * 8, drawn=True), 0.2, prices))

    assert drafts(FixedPrices(flat))
    assert not drafts(PRICES)


def test_rows_of_the_whole_batch_are_priced():
    """64 requests that draft fill a pass which one alone would not: nothing is drafted that pays only alone."""
    prices = FixedPrices(lambda rows, _context: max(1.0, rows / 64))
    alone, among_many = (
        step(pair(Sure([1, 2], 0.9), Fixed([7]), 5.0, prices), [0], [1], batch=BatchStats(num_decodes=size))
        for size in (1, 64)
    )
    assert (len(alone), len(among_many)) == (2, 0)


def test_requests_of_a_batch_share_draft_steps_and_the_pass():
    """A level is one draft step of four rows, and four rows more to verify, also beside two rows of a prompt."""
    model = Child(Fixed([7]), FixedPrices(lambda rows, context: rows + context), 0.5)
    batch = BatchStats(num_decodes=4, num_prefill_rows=2, mean_context=10.0)
    assert model.draft_seconds(batch, 2) == [0.0, 7.0, 14.0]
    free = Child(Fixed([7]), FixedPrices(lambda rows, context: rows + context))
    assert free.draft_seconds(batch, 2) == [0.0, 0.0, 0.0]
    step = StepPrices([free, model], [replace(context([0], 2), batch=batch)])
    assert [step.plain_seconds * price for price in step.rows] == [14.0, 18.0, 22.0]
    assert [step.plain_seconds * price for price in step.of[1]] == [14.0, 18.0 + 7.0, 22.0 + 14.0]


def test_a_model_whose_drafts_take_longer_than_it_declares_is_asked_no_more():
    """A clock says that a draft step takes three passes, where 0.1 were declared."""
    ticks = [0.0]

    class Slow(Fixed):
        def propose(self, contexts):
            ticks[0] += 3.0 * max(c.budget for c in contexts)
            return super().propose(contexts)

    for model, expected in ((Slow([7] * 8, drawn=True), 3), (Fixed([7] * 8, drawn=True), 12)):
        hybrid, text = pair(Sure([], 0.0), model, 0.1, clock=lambda: ticks[0]), [0]
        for _ in range(12):
            step(hybrid, text, [7, 7])
        assert len(model.budgets) == expected


def test_reading_a_prompt_is_not_taken_for_the_price_of_a_draft():
    """The first draft of a long text includes its reading: it does not count."""
    ticks = [0.0]

    class Reader(Fixed):
        def propose(self, contexts):
            ticks[0] += 50.0 if not self.budgets else 0.1
            return super().propose(contexts)

    model, chosen = Reader([7] * 8, drawn=True), []
    hybrid, text = pair(Sure([], 0.0), model, 0.1, clock=lambda: ticks[0]), [0] * 100
    for _ in range(12):
        step(hybrid, text, [7, 7])
        chosen.append(hybrid.chosen_seconds)
    assert len(model.budgets) == 12
    assert chosen == pytest.approx([50.0] + [0.1] * 11)  # for the engine, which prices asking without it


def test_a_draft_is_no_longer_than_what_may_still_be_said():
    for deepest in (1, 2, 5):
        tree = step(pair(Sure([], 0.0), Unsure(0.99), 0.01), [0], [7], max_depth=deepest)
        assert len(tree) == deepest


class Watcher(Fixed):
    traits = DrafterTraits(watches=True)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Hybrid([Child(Fixed([1]), PRICES)]), "drafters"),
        (lambda: Child(Watcher([1]), PRICES), "drafters"),
        (lambda: Child(Fixed([1]), PRICES, -0.1), "cost_ratio"),
        (lambda: step(pair(Fixed([1], drawn=True), Fixed([1]), 0.0), [0], [1]), "cost_ratio"),
        (lambda: make_drafter("hybrid"), "services"),
        (lambda: make_drafter("hybrid", object(), drafters="suffix"), "drafters"),  # type: ignore[arg-type]
        (lambda: make_drafter("hybrid", object(), drafters=[{"mode": "path"}, "ngram"]), "method"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused(build, field):
    with pytest.raises(InvalidParameter, match=field):
        build()


def test_what_a_child_lacks_is_said_of_the_hybrid():
    with pytest.raises(InvalidParameter, match=r"model: in hybrid, drafter 'cross_vocabulary' .*--draft-model"):
        make_drafter("hybrid", object(), drafters=["cross_vocabulary", "ngram"])  # type: ignore[arg-type]


@pytest.mark.parametrize("drafters", [{}, {"drafters": ["draft_model", "ngram"]}])
def test_without_a_draft_model_it_says_what_to_add(drafters):
    added = r"""add --draft-model MODEL \(model=...\), or .* --draft-option 'drafters=\["suffix", "head"\]'"""
    with pytest.raises(InvalidParameter, match=f"^model: hybrid drafts with a smaller model, too, .*{added}"):
        make_drafter("hybrid", object(), **drafters)  # type: ignore[arg-type]
