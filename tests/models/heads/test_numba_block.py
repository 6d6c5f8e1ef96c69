"""Block heads on the CPU kernels: against the formulas, in other company, after other histories, and in chains."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import UnsupportedModel
from paceline.models.base import slot_of
from paceline.models.numba_executor.heads.build import make_net
from paceline.models.rows import Part, build_rows

from . import records, reference

TAPS = np.random.default_rng(4).standard_normal((40, 2 * 96)).astype(np.float32)
PAGES = [3, 0, 2, 1]
HEADS = {
    "dspark": records.dspark(),
    "no bias": records.dspark(markov_rank=0, confidence=False, fc_bias=True),
    "plain confidence": records.dspark(confidence_markov=False, owns_head=True),
    "dflash": records.dflash(),
    "scaled embeddings": records.dflash(embedding_scale=9.8),
}
pytestmark = pytest.mark.usefixtures("own_weight_cache")


@pytest.fixture(scope="module")
def target():
    return records.load_target("float32")


@pytest.fixture(scope="module")
def fast_net():
    return make_net(records.dspark(), records.load_target("w8a8"))


def inject(net, cache, pages, first, last):
    positions = np.arange(first, last)
    taps = TAPS[first:last, : 96 * len(net.record.config.taps)]
    net.inject(taps, positions, slot_of(np.asarray(pages), positions), cache)


def block_rows(net, *starts):
    """Blocks after that many committed tokens, each with an anchor and pages of its own; logits of drafting places."""
    config = net.record.config
    size, first = config.block_size, config.block_size - config.num_steps
    parts = [
        Part([4 * i + page for page in PAGES], start, [7 + start, *[config.mask_token_id] * (size - 1)])
        for i, start in enumerate(starts)
    ]
    rows = build_rows(parts)
    lengths = np.repeat(np.array(starts, np.int32) + size, size)
    asked = [i for i in range(len(lengths)) if i % size >= first]
    return replace(rows, natural_lengths=lengths, num_keys=lengths, logit_rows=np.array(asked, np.int32))


def filled(net, *starts):
    """A cache with the context of each block in pages of its own."""
    cache = net.new_cache(4 * len(starts))
    for i, start in enumerate(starts):
        inject(net, cache, [4 * i + page for page in PAGES], 0, start)
    return cache


@pytest.mark.parametrize("name", HEADS)
def test_float32_equals_the_formulas(target, name):
    record, tensors = HEADS[name], HEADS[name].tensors
    net, rows = make_net(record, target), None
    embedding, head = records.tables(target, record)
    rows = block_rows(net, 21)
    out = net.forward(rows, filled(net, 21))
    logits, states = out.logits.copy(), out.hidden.copy()
    taps = TAPS[:21, : 96 * len(record.config.taps)]
    expected = reference.block(record, embedding, tensors.get("lm_head.weight", head), taps, rows.token_ids)
    np.testing.assert_allclose(states, expected[1], atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(logits, expected[0][rows.logit_rows], atol=1e-4, rtol=1e-4)
    tokens, bias, sure = np.array([5, 60], np.int32), np.zeros((2, logits.shape[1])), np.ones(2)
    if record.config.markov_rank:
        before = tensors["markov_head.markov_w1.weight"][tokens]
        bias = before @ tensors["markov_head.markov_w2.weight"].T
    np.testing.assert_allclose(net.bias(tokens), bias, atol=1e-4)
    if record.config.confidence:
        read = np.concatenate([states[:2], before], axis=1) if record.config.confidence_markov else states[:2]
        score = read @ tensors["confidence_head.proj.weight"][0] + tensors["confidence_head.proj.bias"]
        sure = 1 / (1 + np.exp(-score))
    np.testing.assert_allclose(net.confidence(states[:2], tokens), sure, atol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_a_chain_in_one_call_is_that_of_many(target, name):
    net, starts = make_net(HEADS[name], target), (13, 30, 17)
    cache, rows = filled(net, *starts), block_rows(net, *starts)
    draft = net.draft_chains(rows, cache)
    logits = net.forward(rows, cache).logits.copy().reshape(3, net.record.config.num_steps, -1)
    for i, start in enumerate(starts):
        above = 7 + start
        for place, found in enumerate(logits[i]):
            found = found + net.bias(np.array([above], np.int32))[0]
            law, best = np.exp(found - found.max()), found.argmax()
            above = best if net.record.draft_ids is None else net.record.draft_ids[best]
            assert draft.tokens[i, place] == above
            assert draft.top_probs[i, place] == pytest.approx(law.max() / law.sum(), rel=1e-4)


def test_a_block_is_bitwise_the_same_alone_and_in_any_batch(fast_net):
    starts = (13, 30, 17)
    together = fast_net.forward(block_rows(fast_net, *starts), filled(fast_net, *starts))
    logits, states = (np.split(values.copy(), 3) for values in together)
    drafts = fast_net.draft_chains(block_rows(fast_net, *starts), filled(fast_net, *starts))
    for i, start in enumerate(starts):
        rows, cache = block_rows(fast_net, start), filled(fast_net, start)
        alone = fast_net.forward(rows, cache)
        assert np.array_equal(alone.logits, logits[i])
        assert np.array_equal(alone.hidden, states[i])
        again = fast_net.draft_chains(rows, cache)
        assert np.array_equal(again.tokens[0], drafts.tokens[i])
        assert np.array_equal(again.top_probs[0], drafts.top_probs[i])


def test_keys_and_values_after_any_history_are_those_of_a_fresh_prefill(fast_net):
    cache, rng, known = fast_net.new_cache(4), np.random.default_rng(5), 0
    while known < 32:
        new = int(rng.integers(1, 5))  # accepted tokens come with their true states, then a block is drafted after them
        inject(fast_net, cache, PAGES, known, known + new)
        known += new
        fast_net.draft_chains(block_rows(fast_net, known), cache)
    fresh = fast_net.new_cache(4)
    inject(fast_net, fresh, range(4), 0, known)
    slots = slot_of(np.array(PAGES), np.arange(known))
    for ours, theirs in zip(cache.read(slots), fresh.read(np.arange(known)), strict=True):
        assert np.array_equal(ours, theirs)


def test_forms_that_are_not_run_are_refused(target):
    with pytest.raises(UnsupportedModel, match=r"markov_head_type.*gated"):
        make_net(records.dspark(variant="gated"), target)
    with pytest.raises(UnsupportedModel, match=r"markov_rank: 24.*torch"):
        make_net(records.dspark(markov_rank=24), target)
