"""Passes launched before they are asked for: what is taken is what a pass of its own gives, and nothing else is."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.models.base import PAGE_SIZE, Rows  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.foreseen import Foreseen, is_plain  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.sampling.answered import Question  # noqa: E402
from paceline.sampling.edits import Edits  # noqa: E402
from paceline.sampling.law import Law  # noqa: E402
from paceline.sampling.randomness import CounterRandomness  # noqa: E402
from tests.fakes import RandomCheckpoint, small_config  # noqa: E402

from .batches import tokens_of  # noqa: E402
from .current_device import CurrentDevice  # noqa: E402

CHECKPOINT = RandomCheckpoint(small_config())
NOISE = CounterRandomness(5)
GREEDY = Question(0.0, 0.0, 0, 1.0, None, 0)
PAGES = ((3, 0, -1), (5, 1, 7))


@pytest.fixture
def model():
    made = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position")
    made._foreseen = always(made)
    return made


def drawn_at(position, **law):
    """The question about the token at a position of one text."""
    keys = [NOISE.key(place, "target", -1) for place in (position, position + 1)]
    asked = Question(
        **({"temperature": 0.8, "min_p": 0.0, "top_k": 0, "top_p": 1.0, "edits": None, "key": keys[0]} | law)
    )
    return asked._replace(next_key=keys[1])


def always(model: CudaModel) -> Foreseen:
    """Passes of `model`, each launched ahead that can be."""
    foreseen = model._foresee()
    foreseen.gain.assume(1e9, 1.0, 1.0)
    return foreseen


def begun(model, lengths=(20, 9)):
    """A cache that holds the beginnings of two texts, and a function of the tokens after each to a batch of one row."""
    cache = model.new_cache(9)
    at = list(lengths)
    for pages, length in zip(PAGES, lengths, strict=True):
        model.forward(build_rows([Part(pages, 0, tokens_of(length))]), cache)
    for number in (1, 2):  # records the passes that follow: others are not launched ahead
        model.forward(build_rows([Part((8,), 0, [1]), Part((6,), 0, [1])][:number]), cache)

    def rows(tokens, only=(0, 1)):
        parts = [Part(PAGES[which], at[which], [token]) for which, token in zip(only, tokens, strict=True)]
        for which in only:
            at[which] += 1
        return build_rows(parts)

    return cache, rows


def answers(model, rows, cache):
    drawn = model.begin_drawn(rows, cache, (), [GREEDY] * len(rows.slots))()
    return [answer.pick for answer in drawn.answers]


def plain_texts(steps, lengths=(20, 9), start=(4, 60)):
    """The tokens after each text, by passes nobody foresees."""
    model = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position")
    cache, rows = begun(model, lengths)
    texts, tokens = [list(start)], list(start)
    for _ in range(steps):
        tokens = model.forward(rows(tokens), cache).logits.argmax(1).tolist()
        texts.append(tokens)
    return texts


def assert_says_the_plain_texts(model, steps, after_each=lambda: None):
    cache, rows = begun(model)
    texts, tokens = plain_texts(steps), [4, 60]
    for step in range(steps):
        tokens = answers(model, rows(tokens), cache)
        assert tokens == texts[step + 1]
        after_each()


def test_what_was_foreseen_is_what_would_have_been_computed(model):
    assert_says_the_plain_texts(model, 8)
    foreseen = model._foreseen
    assert (foreseen.num_foreseen, foreseen.num_taken) == (8, 7)


def test_a_pass_whose_rows_are_not_known_yet_is_not_taken(model):
    cache, rows = begun(model)
    finish = model.begin_drawn(rows([4, 60]), cache, (), [GREEDY] * 2)  # those who asked for it may leave
    ahead = model._foreseen._next
    assert ahead.places_of(ahead.rows, cache, (), ahead.questions) is None
    finish()
    assert ahead.places_of(ahead.rows, cache, (), ahead.questions).tolist() == [0, 1]


def test_rows_at_other_positions_and_other_taps_are_not_in_it(model):
    cache, rows = begun(model)
    answers(model, rows([4, 60]), cache)
    ahead = model._foreseen._next
    assert ahead.places_of(ahead.rows, cache, (), ahead.questions) is not None
    elsewhere = replace(ahead.rows, positions=ahead.rows.positions + 1)
    assert ahead.places_of(elsewhere, cache, (), ahead.questions) is None
    assert ahead.places_of(ahead.rows, cache, (0,), ahead.questions) is None


def test_requests_that_end_leave_the_rows_of_the_others(model):
    cache, rows = begun(model)
    texts, tokens = plain_texts(6), [4, 60]
    for _ in range(3):
        tokens = answers(model, rows(tokens), cache)
    for step in range(3, 6):
        tokens = answers(model, rows(tokens[-1:], only=(1,)), cache)
        assert tokens == texts[step + 1][1:]
    assert model._foreseen.num_taken == 5


@pytest.mark.parametrize("change", ["token", "moved", "another cache", "another pass", "page"])
def test_anything_else_is_computed(model, change):
    cache, rows = begun(model)
    tokens = answers(model, rows([4, 60]), cache)
    asked, where = rows(tokens), cache
    if change == "token":
        asked.token_ids[1] = (asked.token_ids[1] + 1) % 131
    elif change == "moved":
        cache.move([3 * PAGE_SIZE], [3 * PAGE_SIZE + 1])
    elif change == "another cache":
        where = model.new_cache(9)
        for kept, given in ((where.keys, cache.keys), (where.values, cache.values)):
            kept.copy_(given)
    elif change == "another pass":
        model.forward(build_rows([Part((8,), 0, [1])]), cache)
    else:
        asked.page_tables[1, 0] = 2
    fresh = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position")
    other = fresh.new_cache(9)
    for kept, given in ((other.keys, where.keys), (other.values, where.values)):
        kept.copy_(given)
    assert answers(model, asked, where) == fresh.forward(asked, other).logits.argmax(1).tolist()
    assert model._foreseen.num_taken == 0


def test_a_pass_between_takes_the_picks_from_the_device(model):
    """A pass over another cache writes its own picks where those of this one lay: the next must not begin with them."""
    between = build_rows([Part((0,), 0, [9, 8])])
    assert_says_the_plain_texts(model, 4, lambda: model.forward(between, model.new_cache(1)))
    assert (model._foreseen.num_foreseen, model._foreseen.num_taken) == (2, 2)


@pytest.mark.parametrize("lengths", [(31, 9), (20, 46)])
def test_nothing_is_begun_without_a_page_for_it(model, lengths):
    """The first text's third page is not known; the second has none after its third."""
    cache, rows = begun(model, lengths)
    answers(model, rows([4, 60]), cache)
    assert model._foreseen.num_foreseen == (0 if 31 in lengths else 1)
    answers(model, rows([4, 60]), cache)
    assert model._foreseen.num_foreseen == (0 if 31 in lengths else 1)


def test_a_pass_that_fails_ahead_fails_nobody_before_it_is_asked_for(model, monkeypatch):
    cache, rows = begun(model)
    texts, launch = plain_texts(2), model._foreseen._launch

    def fails_ahead(*given, is_foreseen=False, advance=None, keys=None):
        if is_foreseen:
            raise RuntimeError("out of memory")
        return launch(*given)

    monkeypatch.setattr(model._foreseen, "_launch", fails_ahead)
    tokens = answers(model, rows([4, 60]), cache)
    assert answers(model, rows(tokens), cache) == texts[2]
    assert model._foreseen.num_foreseen == 0


def picks_of_draws(model, steps, laws, change=lambda step, asked: asked):
    """What is drawn after both texts, step by step, each from the law in `laws`."""
    cache, rows = begun(model)
    tokens, texts = [4, 60], []
    for step in range(steps):
        asked = change(step, [drawn_at(step, **law) for law in laws])
        drawn = model.begin_drawn(rows(tokens), cache, (), asked)()
        tokens = [answer.pick for answer in drawn.answers]
        texts.append(tokens)
    return texts


LAWS = ({"temperature": 0.0, "key": 0}, {"temperature": 1.3, "min_p": 0.02}), ({"top_p": 0.8}, {"temperature": 1.5})


@pytest.mark.parametrize("laws", LAWS)
def test_drawn_tokens_are_foreseen_too(model, laws):
    plain = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position")
    assert picks_of_draws(model, 8, laws) == picks_of_draws(plain, 8, laws)
    assert model._foreseen.num_taken == 7
    assert plain._foreseen.num_foreseen == 0


@pytest.mark.parametrize("changed", [{"key": 3}, {"temperature": 0.5}, {"min_p": 0.3}, {"top_k": 2}, {"top_p": 0.4}])
def test_another_question_is_answered_by_a_pass_of_its_own(model, changed):
    def change(step, asked):
        return [asked[0], asked[1]._replace(**changed)] if step == 3 else asked

    plain = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position")
    assert picks_of_draws(model, 6, LAWS[1], change) == picks_of_draws(plain, 6, LAWS[1], change)
    assert model._foreseen.num_taken < 5


def test_a_key_by_which_nothing_is_drawn_does_not_matter(model):
    greedy = {"temperature": 0.0}
    picks_of_draws(model, 5, (greedy, greedy), lambda step, asked: [each._replace(key=7 * step) for each in asked])
    assert model._foreseen.num_taken == 4


def test_nothing_is_begun_where_the_next_key_is_unknown(model):
    picks_of_draws(model, 3, LAWS[1], lambda _, asked: [each._replace(next_key=None) for each in asked])
    assert model._foreseen.num_foreseen == 0


def test_draws_are_launched_on_the_models_own_device(model, monkeypatch):
    """Triton launches on the current device: on a machine with several, another one would read this one's logits."""
    current, launched_on = CurrentDevice(), []

    def race(logits, peaks, wide):
        launched_on.append(current.name)
        return peaks[wide.places, 0]

    monkeypatch.setattr("paceline.models.cuda_executor.model.on_device", current)
    model._race = race
    cache, rows = begun(model)
    drawn = [drawn_at(0), drawn_at(0)]
    model.begin_drawn(rows([4, 60]), cache, (), drawn)()  # and the pass after it, ahead
    model.begin_drawn(rows([5, 61]), cache, (), [drawn[0], None])()
    assert launched_on == ["cpu"] * 3


def test_only_plain_rows_are_foreseen():
    rows = build_rows([Part((0,), 0, [1]), Part((1,), 0, [1])])
    assert is_plain(rows, [GREEDY, GREEDY])
    assert not is_plain(rows, [GREEDY, None])
    sampled = Question(1.0, 0.0, 0, 1.0, None, 0)
    tried = Question(0.0, 0.0, 0, 1.0, None, 0, ((3, Law(np.array([3]), np.array([1.0]))),))
    none = np.zeros(0, np.int64)
    edited = Question(0.0, 0.0, 0, 1.0, Edits(none, none, none, none, 1.0, np.array([4]), None), 0)
    assert is_plain(rows, [GREEDY, sampled])
    for other in (tried, edited):
        assert not is_plain(rows, [GREEDY, other])
    assert not is_plain(build_rows([Part((0,), 0, [1, 2])]), [GREEDY, GREEDY])
    assert not is_plain(build_rows([Part((0,), 0, [1, 2], logits="last")]), [GREEDY])
    sparse = Rows(**{name: getattr(rows, name) for name in rows.__slots__ if name != "num_keys"},
                  num_keys=np.array([1, 1], np.int32))  # fmt: skip
    assert not is_plain(sparse, [GREEDY, GREEDY])
