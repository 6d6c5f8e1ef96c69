"""Drafting on the target's own cache: which pages are seen, where drafts go, and that nothing is spoiled."""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.drafters.base import DraftContext
from paceline.drafters.self_drafts.layer_skip import inner_layers, make_layer_skip
from paceline.drafters.self_drafts.self_draft import SelfDraft, WholeContext
from paceline.drafters.self_drafts.snapkv import MostLookedAt
from paceline.drafters.self_drafts.sparse_cache import SinksAndWindow, make_sparse_cache
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.overlay import Overlay, overlay_rows
from paceline.models.rows import Part, build_rows
from paceline.sampling import CounterRandomness, Law
from paceline.scheduling.pages import PagePool
from paceline.types import SamplingParams
from tests.fakes import RandomCheckpoint, small_config

BUDGET = 8
TOKENS = np.random.default_rng(5).integers(0, 131, 120).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        yield NumbaModel(RandomCheckpoint(small_config()), "float32", num_threads=2)


@pytest.fixture
def services(model):
    """A target that has read two requests of 41 and 20 tokens."""
    pool, cache = PagePool(16, PAGE_SIZE), model.new_cache(16)
    lent = SimpleNamespace(
        target=SimpleNamespace(model=model), cache=cache, pool=pool, tables={}, own_cost_ratio=lambda *_: 1.0
    )
    for name, count in (("a", 41), ("b", 20)):
        lent.tables[name] = pool.allocate(pool.pages_for(count + 1 + BUDGET))
        model.forward(build_rows([Part(lent.tables[name], 0, TOKENS[:count], logits="none")]), cache)
    return lent


def context(services, request_id, count, budget=4):
    return DraftContext(
        request_id=request_id, token_ids=TOKENS[: count + 1], num_prompt_tokens=1, budget=budget,
        params=SamplingParams(temperature=0), warp=lambda logits, path: Law.one_hot(int(np.argmax(logits))),
        randomness=CounterRandomness(0), page_table=services.tables[request_id],
    )  # fmt: skip


def greedy(model, tokens, count):
    text = list(tokens)
    for _ in range(count):
        text.append(int(model.forward(build_rows([Part(range(16), 0, text)]), model.new_cache(16)).logits[-1].argmax()))
    return tuple(text[len(tokens) :])


def test_rows_on_an_overlay_are_bitwise_rows_of_their_own(model):
    """A path of two tokens after 37 that lie in somebody else's pages, and another request's in the same pass."""
    cache = model.new_cache(16)
    pages = np.array([5, 2, 9], np.int32)
    model.forward(build_rows([Part(pages, 0, TOKENS[:37], logits="none")]), cache)
    first = overlay_rows([Overlay(7, pages, 37, 37, [200]), Overlay(TOKENS[20], pages[:2], 20, 20, [220])])
    one = model.forward(first, cache).logits.copy()
    two = model.forward(overlay_rows([Overlay(8, pages, 37, 38, [200, 211])]), cache).logits
    alone = model.forward(build_rows([Part(range(3), 0, [*TOKENS[:37], 7, 8])]), model.new_cache(3)).logits
    assert np.array_equal(one[0], alone[37])
    assert np.array_equal(two[0], alone[38])
    short = model.forward(build_rows([Part(range(3), 0, TOKENS[:21])]), model.new_cache(3)).logits
    assert np.array_equal(one[1], short[20])


def test_drafts_of_a_batch_are_the_models_own_tokens(model, services):
    drafter = SelfDraft("whole", services, model)
    trees = drafter.propose([context(services, "a", 41), context(services, "b", 20, budget=6)])
    assert trees[0].tokens == greedy(model, TOKENS[:42], 4)
    assert trees[1].tokens == greedy(model, TOKENS[:21], 6)


def test_drafts_go_where_they_will_be_verified_and_nowhere_else(services):
    before = services.cache.read(range(PAGE_SIZE * 16))
    drafter = make_layer_skip(services, skip_layers=[1])
    drafter.propose([context(services, "a", 41, budget=4), context(services, "b", 20, budget=BUDGET)])
    granted = [
        services.tables[name][place // PAGE_SIZE] * PAGE_SIZE + place % PAGE_SIZE
        for name, root, budget in (("a", 41, 4), ("b", 20, BUDGET))
        for place in range(root, root + budget + 1)
    ]
    others = [slot for slot in range(PAGE_SIZE * 16) if slot not in granted]
    for old, new in zip(before, services.cache.read(range(PAGE_SIZE * 16)), strict=True):
        assert np.array_equal(old[:, others], new[:, others])
        assert not np.array_equal(old, new)


def test_a_full_cache_does_not_keep_anybody_from_drafting(services):
    services.pool.allocate(services.pool.num_free)
    trees = make_layer_skip(services).propose([context(services, "a", 41), context(services, "b", 20)])
    assert [len(tree) for tree in trees] == [4, 4]


def test_a_request_without_slots_for_its_tree_is_not_drafted_for(services):
    services.tables["b"].pop()
    trees = make_layer_skip(services).propose([context(services, "a", 41), context(services, "b", 20, budget=BUDGET)])
    assert [len(tree) for tree in trees] == [4, 0]


def test_skipped_layers_draft_with_the_rest_on_the_targets_keys(model, services):
    """The first draft is what the kept layers say of the root, its context's keys being the whole model's."""
    [tree] = make_layer_skip(services, skip_layers=[1]).propose([context(services, "a", 41, budget=1)])
    cache = model.new_cache(4)
    model.forward(build_rows([Part(range(4), 0, TOKENS[:41], logits="none")]), cache)
    logits = model.with_layers([0, 2]).forward(build_rows([Part(range(4), 41, [TOKENS[41]])]), cache).logits
    assert tree.tokens == (int(logits[0].argmax()),)


def test_inner_layers_are_spread_and_leave_the_ends():
    assert inner_layers(1, 3) == [1]
    assert inner_layers(4, 6) == [1, 2, 3, 4]
    assert inner_layers(10, 30) == [2, 5, 8, 10, 13, 16, 19, 22, 24, 27]
    for count in range(1, 29):
        chosen = inner_layers(count, 30)
        assert len(set(chosen)) == count
        assert set(chosen) <= set(range(1, 29))
    for count in (0, 29):
        with pytest.raises(InvalidParameter, match="skip_layers"):
            inner_layers(count, 30)


def test_an_executor_that_runs_whole_models_only_is_refused(services):
    services.target.model = object()
    with pytest.raises(UnsupportedModel, match="numba or torch"):
        make_layer_skip(services)


def seen(sight, num_keys, pages=range(100, 120)):
    view = sight.view(DraftContext("r", range(num_keys + 1), 1, 1, SamplingParams(), None, None, page_table=pages))  # type: ignore[arg-type]
    return view.pages.tolist(), view.num_keys


@pytest.mark.parametrize(
    ("num_keys", "expected"),
    [
        (1, ([100], 1)),
        (64, ([100, 101, 102, 103], 64)),  # exactly the budget
        (65, ([100, 102, 103, 104], 49)),  # one page too many: the second goes
        (100, ([100, 104, 105, 106], 52)),
        (112, ([100, 104, 105, 106], 64)),
    ],
)
def test_sinks_and_window_are_kept(num_keys, expected):
    assert seen(SinksAndWindow(budget=4, sinks=1), num_keys) == expected


def test_a_budget_above_the_context_is_the_whole_context():
    for num_keys in range(1, 200, 7):
        assert seen(SinksAndWindow(budget=20, sinks=1), num_keys) == seen(WholeContext(), num_keys)


class Looking:
    """A model whose attention is told to it; remembers what it was asked."""

    def __init__(self, shares):
        self.shares, self.asked = shares, []

    def page_attention(self, rows, cache):
        self.asked.append((rows.token_ids.tolist(), rows.positions.tolist(), rows.natural_lengths.tolist()))
        assert len(rows.logit_rows) == 0
        return np.tile(np.array(self.shares, np.float32)[: rows.page_tables.shape[1]], (len(rows.token_ids), 1))


def most_looked_at(model, pool=None, **changes):
    values = {"budget": 5, "sinks": 1, "latest": 2, "window": 3, "interval": 10}
    return MostLookedAt(model, None, pool or PagePool(4, PAGE_SIZE), **(values | changes))  # type: ignore[arg-type]


def test_pages_that_are_looked_at_most_are_kept_between_sinks_and_the_latest():
    model = Looking([0, 5, 1, 9, 2, 7, 8, 8, 8])
    pages, num_keys = seen(most_looked_at(model), num_keys=140)  # nine pages, twelve keys in the last
    assert pages == [100, 103, 106, 107, 108]
    assert num_keys == 140 - 4 * PAGE_SIZE
    assert model.asked == [([137, 138, 139], [137, 138, 139], [137, 137, 137])]


def test_a_context_within_the_budget_is_seen_whole_and_not_measured():
    model = Looking([])
    assert seen(most_looked_at(model), 80) == seen(WholeContext(), 80)
    assert model.asked == []


def test_attention_is_measured_anew_after_an_interval_or_a_release():
    model = Looking([0, 5, 1, 9, 2, 7, 8, 8, 8, 8])
    sight = most_looked_at(model)
    for num_keys in (140, 145, 149, 150):
        seen(sight, num_keys)
    assert [positions[-1] for _, positions, _ in model.asked] == [139, 149]
    sight.release("r")
    seen(sight, 151)
    assert len(model.asked) == 3


def test_borrowed_pages_come_back_and_none_free_means_the_latest():
    pool, model = PagePool(2, PAGE_SIZE), Looking([0, 5, 1, 9, 2, 7, 8, 8, 8])
    seen(most_looked_at(model, pool), 140)
    pool.check_integrity([])
    pool.allocate(2)
    assert seen(most_looked_at(model, pool), 140)[0] == [100, 105, 106, 107, 108]
    assert len(model.asked) == 1


def test_an_executor_that_does_not_tell_attention_is_refused(services):
    services.target.model = object()
    with pytest.raises(UnsupportedModel, match="selection='window'"):
        make_sparse_cache(services, selection="snapkv")
