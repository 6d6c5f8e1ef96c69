"""Pages of a draft model: shared, given up, found again; never lost, never read for a text that is not theirs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.base import DraftContext
from paceline.drafters.draft_models.draft_model import DraftModel
from paceline.drafters.draft_models.specinfer import SpecInfer
from paceline.drafters.runners.draft_pages import DraftPages, common_prefix
from paceline.drafters.trees.options import tree_shape
from paceline.models.base import PAGE_SIZE, ForwardOutput
from paceline.models.rows import Part, build_rows
from paceline.sampling import CounterRandomness, Warper
from paceline.types import SamplingParams
from tests.fakes import CountingList, small_config, tell

BEGINNING = [5, 9, 2] * 16  # three pages
SHAPES = [{}, {"tree": "static", "expansion": (2, 2, 1)}, {"tree": "sampled", "expansion": (2, 1, 1)}]


class Text(dict):
    """A text, the one object for it: the texts one token longer by that token, and the logits of what follows."""

    def __init__(self, parent=None, tokens=()):
        super().__init__()
        self.parent = parent
        self.logits = np.random.default_rng([*tokens, 1]).normal(size=11)
        self.tokens = tokens

    def __missing__(self, token):
        return self.setdefault(token, Text(self, (*self.tokens, token)))


EMPTY = Text()


class Slots(dict):
    """Slot to the text (up to and including its own token) whose keys and values lie there."""

    def move(self, sources, destinations):
        self.update(zip(destinations, [self[source] for source in sources], strict=True))


class Remembering:
    """A model whose next tokens follow from the whole text; a row that reads another text's keys is an error."""

    config = small_config(vocab_size=11)

    def __init__(self):
        self.num_rows = 0

    def new_cache(self, num_pages):
        return Slots()

    def forward(self, rows, cache, taps=()):
        self.num_rows += len(rows.token_ids)
        texts, keys = [], [rows.key_slots(row).tolist() for row in range(len(rows.token_ids))]
        for token, own, slot in zip(rows.token_ids.tolist(), keys, rows.slots.tolist(), strict=True):
            texts.append((cache[own[-2]] if len(own) > 1 else EMPTY)[token])
            cache[slot] = texts[-1]
        for text, own in zip(texts, keys, strict=True):  # once all are written, as executors do it
            for slot in reversed(own):
                assert cache[slot] is text, "keys of another text"
                text = text.parent
            assert text is EMPTY
        return ForwardOutput(np.array([texts[row].logits for row in rows.logit_rows], np.float32).reshape(-1, 11))


def context(request_id, tokens, budget=4):
    warper = Warper(SamplingParams(temperature=0.8))
    return DraftContext(
        request_id, list(tokens), 1, budget, warper.params, warper.law, CounterRandomness(len(tokens)),
        rank=warper.confidence_law,
    )  # fmt: skip


def draft_model(num_pages, shape=None, **options):
    return DraftModel(Remembering(), num_pages, shape=tree_shape(**(shape or {})), **options)  # type: ignore[arg-type]


def propose(drafter, *contexts):
    trees = drafter.propose(contexts)
    drafter.runner.pages.check_integrity()
    return trees


def alone(*contexts, shape=None):
    return [tree for each in contexts for tree in draft_model(64, shape).propose([each])]


def same(trees, others):
    return [(tree.tokens, tree.parents) for tree in trees] == [(tree.tokens, tree.parents) for tree in others]


@settings(deadline=None, max_examples=60)
@given(rng=st.randoms(use_true_random=False), num_pages=st.integers(6, 14), shape=st.sampled_from(SHAPES))
def test_random_traffic_drafts_as_each_alone_and_leaks_nothing(rng, num_pages, shape):
    drafter = draft_model(num_pages, shape, max_prefill_rows=rng.choice((7, 512)))
    texts, count = {}, 0
    for _ in range(12):
        while len(texts) < 5 and rng.random() < 0.6:
            texts[str(count)] = [
                *BEGINNING[: rng.randint(1, 48)],
                *(rng.randrange(11) for _ in range(rng.randint(0, 9))),
            ]
            count += 1
        asked = [context(each, text) for each, text in texts.items() if rng.random() < 0.8]
        trees = propose(drafter, *asked)
        assert same(trees, alone(*asked, shape=shape))
        for each, tree in zip(asked, trees, strict=True):
            _commit(rng, drafter, each.request_id, tree, texts)
    for each in texts:
        drafter.release(each)
    drafter.runner.pages.check_integrity()
    assert drafter.runner.pages.pool.num_held == 0


def _commit(rng, drafter, name, tree, texts):
    """Some branch of the tree stands; then the request goes on, loses its memory, or ends."""
    texts[name] += [*tree.tokens_to(rng.randrange(-1, len(tree))), rng.randrange(11)]
    fate = rng.random()
    if fate < 0.1:
        drafter.release(name)
        return
    ends = fate < 0.3 or len(texts[name]) > 70
    tell(drafter, name, texts[name], ends)
    if ends:
        del texts[name]


def test_keys_of_another_text_are_noticed():
    model = Remembering()
    cache = model.new_cache(4)
    model.forward(build_rows([Part([0], 0, [1, 2, 3])]), cache)
    model.forward(build_rows([Part([1], 0, [7, 7])]), cache)
    cache.move([17], [1])
    with pytest.raises(AssertionError, match="another text"):
        model.forward(build_rows([Part([0], 3, [4])]), cache)


def test_requests_that_do_not_fit_together_take_turns():
    drafter = draft_model(5)
    asked = [context(name, [*BEGINNING, place]) for place, name in enumerate("abc")]
    unlike = [context(name, [place, *BEGINNING]) for place, name in enumerate("de")]
    assert same(propose(drafter, *asked, *unlike), alone(*asked, *unlike))
    assert [len(tree) for tree in propose(drafter, *unlike, *asked)] == [4] * 5


def test_every_model_of_a_pool_may_seat_others():
    drafter = SpecInfer([Remembering(), Remembering()], [(1, 1), (2, 1)], 5)  # type: ignore[list-item]
    drafter.runners[1].pages = DraftPages(4)
    trees = drafter.propose([context(name, [place, *BEGINNING], 6) for place, name in enumerate("abc")])
    assert [len(tree) for tree in trees] == [6, 6, 6]


def test_a_common_beginning_is_read_once():
    drafter = draft_model(20)
    propose(drafter, context("a", [*BEGINNING, 1, 2]))
    before = drafter.runner._model.num_rows
    propose(drafter, context("b", [*BEGINNING, 3, 4]))
    assert drafter.runner._model.num_rows == before + 2 + 3  # two committed tokens, three drafted ones
    assert drafter.runner.pages["a"].pages[:3] == drafter.runner.pages["b"].pages[:3]


def test_requests_that_read_the_same_side_by_side_share_it_from_then_on():
    drafter = draft_model(20)
    propose(drafter, *(context(name, [*BEGINNING, 1]) for name in "abcd"))
    assert drafter.runner.pages.pool.num_held == 3 + 4


def test_a_preempted_request_finds_its_text_again():
    drafter = draft_model(20)
    propose(drafter, context("a", [*BEGINNING, 1]))
    tell(drafter, "a", [*BEGINNING, 1, 2], False)
    drafter.release("a")
    assert drafter.runner.pages.pool.num_held == 0
    before = drafter.runner._model.num_rows
    assert same(propose(drafter, context("a", [*BEGINNING, 1, 2])), alone(context("a", [*BEGINNING, 1, 2])))
    assert drafter.runner._model.num_rows == before + 2 + 3


def test_the_one_whose_turn_is_longest_ago_is_given_up():
    drafter = draft_model(8)
    for place, name in enumerate("abac"):
        propose(drafter, context(name, [place % 2 if name != "c" else 7, *BEGINNING[:40]]))
    assert list(drafter.runner.pages) == ["a", "c"]


def test_a_text_that_is_cut_back_leaves_shared_pages_alone():
    drafter = draft_model(20)
    for name in "ab":
        propose(drafter, context(name, [*BEGINNING, 1]))
    shorter = BEGINNING[: PAGE_SIZE + 3]
    changed, again, new = (
        context("b", [*shorter, 8, 8, 8]),
        context("a", [*BEGINNING, 1]),
        context("c", [*BEGINNING, 1]),
    )
    for each in (changed, again, new):
        assert same(propose(drafter, each), alone(each))


@pytest.mark.parametrize("cut", [0, 1, 17, 300, 5000])
@pytest.mark.parametrize("change", ["none", "last", "cut"])
def test_the_common_beginning_of_two_states_of_a_text_is_found_near_its_end(cut: int, change: str):
    text = np.random.default_rng(0).integers(0, 1000, 20_000).tolist()
    kept, same = text[: len(text) - cut], len(text) - cut
    if change != "none":
        same -= 1 if change == "last" else 1000
        kept[same:] = [token + 1 for token in kept[same:]]
    kept, longer = CountingList(kept), CountingList(text)
    assert common_prefix(kept, longer) == same
    assert kept.num_read == longer.num_read <= (256 if change == "none" else 8 * (len(kept) - same) + 8 * 256)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40), st.integers(0, 600))
def test_the_common_beginning_is_that_of_comparing_one_by_one(one, other, num_shared):
    one, other = [7] * num_shared + one, tuple([7] * num_shared + other)
    slow = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    assert common_prefix(one, other) == slow
