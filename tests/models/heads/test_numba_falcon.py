"""Falcon on the CPU kernels: against the formulas, in other company, after other histories, and in trees."""

import numpy as np
import pytest

from paceline.models.base import slot_of
from paceline.models.heads.nets import BlockOfRows
from paceline.models.numba_executor.heads.build import make_net
from paceline.models.numba_executor.heads.falcon import rows_of

from . import records, reference

TOKENS = np.random.default_rng(3).integers(0, 131, 90).astype(np.int32)
HIDDEN = np.random.default_rng(4).standard_normal((90, 96)).astype(np.float32)
PAGES = np.array([3, 0, 2, 1, 4, 5])
pytestmark = pytest.mark.usefixtures("own_weight_cache")

HEADS = {
    "falcon": records.falcon(),
    "three at once": records.falcon(block_tokens=3),
    "all rows": records.falcon(draft_vocab_size=131),
    "owns": records.falcon(owns_embedding=True, owns_head=True),
    "qwen3": records.falcon(layer=records.draft_layer(qk_norm=True, attention_bias=True)),
}


@pytest.fixture(scope="module")
def target():
    return records.load_target("float32")


@pytest.fixture(scope="module")
def fast_net():
    return make_net(records.falcon(), records.load_target("w8a8"))


def extend(net, cache, first, last, pages=PAGES):
    """The committed rows `first` .. `last` - 1 of the text."""
    places = np.arange(first, last)
    slots, before = slot_of(pages, places), np.where(places > 0, slot_of(pages, np.maximum(places - 1, 0)), -1)
    net.extend(TOKENS[first:last], HIDDEN[first:last], places, slots, before, cache)


def block_at(net, end, pages=PAGES):
    """The block that the last rows before `end` are."""
    places = np.arange(end)
    slots, size = slot_of(pages, places), net.record.config.block_tokens
    return BlockOfRows(slots[-size:], places[-size:], slots)


def draft(net, cache, *blocks):
    return [values.copy() for values in net.draft(blocks, cache)]


@pytest.mark.parametrize("name", HEADS)
def test_float32_equals_the_formulas(target, name):
    record = HEADS[name]
    net, (embedding, head) = make_net(record, target), records.tables(target, record)
    embedding, head = record.tensors.get("embed_tokens.weight", embedding), record.tensors.get("lm_head.weight", head)
    cache, ends = net.new_cache(6), (5, 33, 90)
    extend(net, cache, 0, 90)
    found = draft(net, cache, *(block_at(net, end) for end in ends))
    for i, end in enumerate(ends):
        expected = reference.falcon(record, embedding, head, TOKENS[:end], np.float64(HIDDEN[:end]))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.split(ours, len(ends))[i], theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "most"), [("w8a8", 0.1), ("int8", 0.05), ("bfloat16", 0.05)])
def test_other_dtypes_come_close(target, dtype, most):
    outputs = []
    for net in (make_net(HEADS["falcon"], records.load_target(dtype)), make_net(HEADS["falcon"], target)):
        cache = net.new_cache(6)
        extend(net, cache, 0, 90)
        outputs.append(draft(net, cache, block_at(net, 90))[1])
    assert np.abs(outputs[0] - outputs[1]).mean() < most * np.abs(outputs[1]).mean()


def test_a_block_is_bitwise_the_same_alone_and_in_any_batch(fast_net):
    cache, others = fast_net.new_cache(12), PAGES + 6
    for first, last in ((0, 1), (1, 8), (8, 31)):
        extend(fast_net, cache, first, last)
    places, ours = np.arange(31, 33), slot_of(PAGES, np.arange(30, 33))
    elsewhere = slot_of(others, np.arange(20))
    fast_net.extend(  # two texts in one call, their rows in turn
        np.concatenate([TOKENS[31:32], TOKENS[5:25], TOKENS[32:33]]),
        np.concatenate([HIDDEN[31:32], HIDDEN[5:25], HIDDEN[32:33]]),
        np.concatenate([places[:1], np.arange(20), places[1:]]),
        np.concatenate([ours[1:2], elsewhere, ours[2:]]),
        np.concatenate([ours[:1], [-1], elsewhere[:-1], ours[1:2]]),
        cache,
    )
    together = draft(fast_net, cache, block_at(fast_net, 20, others), block_at(fast_net, 33), block_at(fast_net, 14))
    fresh = fast_net.new_cache(6)
    extend(fast_net, fresh, 0, 33)
    for i, end in ((1, 33), (2, 14)):
        for ours, theirs in zip(draft(fast_net, fresh, block_at(fast_net, end)), together, strict=True):
            assert np.array_equal(ours, theirs[2 * i : 2 * i + 2])


def test_what_is_kept_after_any_history_is_that_of_a_fresh_prefill(fast_net):
    cache, rng, known = fast_net.new_cache(6), np.random.default_rng(5), 0
    while known < 80:
        new = int(rng.integers(2, 6))  # accepted tokens come with their true states, then a block is drafted and run
        extend(fast_net, cache, known, known + new)
        known += new
        _, hidden = draft(fast_net, cache, block_at(fast_net, known))
        slots = slot_of(PAGES, np.arange(known - 1, known + 2))
        fast_net.extend(TOKENS[:2], hidden, np.arange(known, known + 2), slots[1:], slots[:-1], cache)
    fresh, straight = fast_net.new_cache(6), np.arange(6)
    extend(fast_net, fresh, 0, known, straight)
    ours, theirs = slot_of(PAGES, np.arange(known)), np.arange(known)
    for one, other in zip(cache.read(ours), fresh.read(theirs), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(cache.states[ours], fresh.states[theirs])
    cache.move(ours[:20], ours[20:40])
    assert np.array_equal(cache.states[ours[20:40]], fresh.states[theirs[:20]])
    assert np.array_equal(cache.read(ours[20:40])[0], fresh.read(theirs[:20])[0])


def test_a_branch_of_a_tree_is_bitwise_its_path(fast_net):
    """Blocks of drafted rows in the places after each other's, each below the text or below another."""
    cache, parents, tokens = fast_net.new_cache(6), [-1, -1, 0, 1, 0], np.arange(11, 21, dtype=np.int32).reshape(5, 2)
    fed = np.random.default_rng(6).standard_normal((5, 2, 96)).astype(np.float32)
    extend(fast_net, cache, 0, 20)
    committed, visible, found = slot_of(PAGES, np.arange(20)), [], []
    for block, parent in enumerate(parents):
        above = committed if parent < 0 else visible[parent]
        slots = slot_of(PAGES, np.arange(20 + 2 * block, 22 + 2 * block))
        visible.append(np.concatenate([above, slots]))
        places = len(above) + np.arange(2)
        fast_net.extend(tokens[block], fed[block], places, slots, visible[-1][-3:-1], cache)
        found.append(BlockOfRows(slots, places, visible[-1]))
    assert rows_of(found).branch_slots.shape[1] == 4
    logits, _ = draft(fast_net, cache, *found)
    for block, parent in enumerate(parents):
        path = [block] if parent < 0 else [parent, block]
        fresh = fast_net.new_cache(6)
        extend(fast_net, fresh, 0, 20)
        end = 20 + 2 * len(path)
        places, slots = np.arange(20, end), slot_of(PAGES, np.arange(19, end))
        own = tokens[path].reshape(-1), fed[path].reshape(-1, 96)
        fast_net.extend(*own, places, slots[1:], slots[:-1], fresh)
        alone, _ = draft(fast_net, fresh, block_at(fast_net, end))
        assert np.array_equal(alone, logits[2 * block : 2 * block + 2])
