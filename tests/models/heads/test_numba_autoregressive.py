"""Autoregressive heads on the CPU kernels: against the formulas, against themselves in other company, and in chains."""

import numpy as np
import pytest

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.heads.build import make_net as build_net
from paceline.models.numba_executor.heads.build import make_net
from paceline.models.rows import Part, build_rows

from . import records, reference

TOKENS = np.random.default_rng(3).integers(0, 131, 40).tolist()
TAPS = np.random.default_rng(4).standard_normal((40, 3 * 96)).astype(np.float32)
pytestmark = pytest.mark.usefixtures("own_weight_cache")

HEADS = {
    "eagle3": records.eagle3(),
    "eagle3.1": records.eagle3(fc_norm=True, norm_output=True),
    "flags": records.eagle3(norm_before_fc=True, fc_bias=True, norm_before_residual=True),
    "owns": records.eagle3(owns_embedding=True, owns_head=True),
    "all rows": records.eagle3(draft_vocab_size=131),
    "two layers": records.eagle3(num_layers=2),
    "qwen3": records.eagle3(layer=records.draft_layer(qk_norm=True, attention_bias=True)),
    "eagle": records.reduced("eagle", fc_bias=True),
    "mtp": records.reduced("mtp"),
}
FORMULAS = {"eagle3": reference.eagle3, "eagle": reference.eagle, "mtp": reference.mtp}


@pytest.fixture(scope="module")
def target():
    return records.load_target("float32")


def hidden_states(net):
    """What rows are fed, from as many hidden states of the target as the head reads."""
    return net.project(TAPS[:, : 96 * len(net.record.config.taps)]).copy()


def run(net, cache, hidden, *parts):
    out = net.forward(build_rows(list(parts)), hidden, cache)
    return out.logits.copy(), out.hidden.copy()


def matrices(target, record):
    """Embedding and output rows of the head, whoever owns them."""
    embedding, rows = records.tables(target, record)
    return record.tensors.get("embed_tokens.weight", embedding), record.tensors.get("lm_head.weight", rows)


@pytest.mark.parametrize("name", HEADS)
def test_float32_equals_the_formulas(target, name):
    record = HEADS[name]
    net, (embedding, head) = make_net(record, target), matrices(target, record)
    hidden = hidden_states(net)
    if record.config.family == "eagle3":
        np.testing.assert_allclose(hidden, reference.projected(record, TAPS), atol=1e-4, rtol=1e-4)
    logits, states = run(net, net.new_cache(4), hidden, Part(range(4), 0, TOKENS))
    expected = FORMULAS[record.config.family](record, embedding, head, TOKENS, np.float64(hidden))
    np.testing.assert_allclose(logits, expected[0], atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(states, expected[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_a_chain_in_one_call_is_the_chain_of_the_formulas(target, name):
    record = HEADS[name]
    net, (embedding, head) = make_net(record, target), matrices(target, record)
    hidden, formula = hidden_states(net), FORMULAS[record.config.family]
    draft = net.draft_chains(build_rows([Part(range(4), 0, TOKENS, logits="last")]), hidden, net.new_cache(4), 4)
    tokens, probs = reference.rollout(
        lambda tokens, hidden: formula(record, embedding, head, tokens, hidden), TOKENS, hidden, 4, record.draft_ids
    )
    assert draft.tokens.tolist() == [tokens]
    np.testing.assert_allclose(draft.top_probs[0], probs, atol=1e-4)


@pytest.fixture(scope="module")
def fast_net():
    """EAGLE-3.1 as it is served: 8-bit products."""
    return make_net(records.eagle3(fc_norm=True, norm_output=True), records.load_target("w8a8"))


def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(fast_net):
    hidden = hidden_states(fast_net)
    together = run(fast_net, fast_net.new_cache(4), hidden, Part(range(4), 0, TOKENS))
    assert np.array_equal(hidden[7:8], fast_net.project(TAPS[7:8]))
    cache = fast_net.new_cache(16)
    for start, end in ((0, 1), (1, 8), (8, 9), (9, 40)):
        other = Part([8, 9, 10], 0, TOKENS[5:20])
        mine = Part([7, 2, 5, 1], start, TOKENS[start:end])
        logits, states = run(fast_net, cache, np.concatenate([hidden[:15], hidden[start:end]]), other, mine)
        assert np.array_equal(logits[15:], together[0][start:end])
        assert np.array_equal(states[15:], together[1][start:end])


@pytest.mark.parametrize("name", ["eagle3", "eagle3.1"])
def test_a_chain_in_one_call_is_bitwise_that_of_many(target, fast_net, name):
    net = fast_net if name == "eagle3.1" else make_net(records.eagle3(), target, "float32")
    hidden, starts = hidden_states(net), (13, 29, 40)
    parts = [Part(range(4 * i, 4 * i + 4), 0, TOKENS[:n], logits="last") for i, n in enumerate(starts)]
    fed = np.concatenate([hidden[:n] for n in starts])
    draft = net.draft_chains(build_rows(parts), fed, net.new_cache(12), 3)
    tokens, probs = draft.tokens.copy(), draft.top_probs.copy()
    for i, count in enumerate(starts):
        cache = net.new_cache(4)
        logits, states = run(net, cache, hidden[:count], Part(range(4), 0, TOKENS[:count], logits="last"))
        for level in range(3):
            law = np.exp(logits[0] - logits[0].max())
            assert tokens[i, level] == net.record.draft_ids[logits[0].argmax()]
            assert probs[i, level] == pytest.approx(law.max() / law.sum(), rel=1e-5)
            logits, states = run(net, cache, states[-1:], Part(range(4), count + level, [tokens[i, level]]))


def test_keys_and_values_after_any_history_are_those_of_a_fresh_prefill(fast_net):
    hidden, rng, pages = hidden_states(fast_net), np.random.default_rng(5), [3, 0, 2, 1]
    cache, known = fast_net.new_cache(4), 0
    while known < 32:
        new = int(rng.integers(1, 5))  # accepted tokens come with their true hidden states, then a chain is drafted
        rows = build_rows([Part(pages, known, TOKENS[known : known + new], logits="last")])
        fast_net.draft_chains(rows, hidden[known : known + new], cache, int(rng.integers(1, 5)))
        known += new
    fresh = fast_net.new_cache(4)
    run(fast_net, fresh, hidden[:known], Part(range(4), 0, TOKENS[:known]))
    slots = np.array([pages[i // 16] * 16 + i % 16 for i in range(known)])
    for ours, theirs in zip(cache.read(slots), fresh.read(np.arange(known)), strict=True):
        assert np.array_equal(ours, theirs)


def test_a_branch_of_a_tree_is_bitwise_its_path(fast_net):
    hidden, parents, tokens = hidden_states(fast_net), [-1, 0, 0, 1, 2, 2], [11, 12, 13, 14, 15, 16]
    states = np.random.default_rng(6).standard_normal((6, 96)).astype(np.float32)
    cache = fast_net.new_cache(4)
    run(fast_net, cache, hidden[:20], Part(range(4), 0, TOKENS[:20]))
    branched, _ = run(fast_net, cache, states, Part(range(4), 20, tokens, parents))
    for row in range(len(tokens)):
        path, node = [], row
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        fresh = fast_net.new_cache(4)
        run(fast_net, fresh, hidden[:20], Part(range(4), 0, TOKENS[:20]))
        alone, _ = run(fast_net, fresh, states[path], Part(range(4), 20, [tokens[i] for i in path], logits="last"))
        assert np.array_equal(alone[0], branched[row])


def test_p_eagle_drafts_all_levels_at_once_and_one_by_one_alike(target):
    """Against EAGLE-3's formulas over masks, and in one pass for several requests."""
    record = records.p_eagle()
    net, (embedding, head) = make_net(record, target), matrices(target, record)
    hidden, starts = hidden_states(net), (13, 29)
    mask = reference.projected(record, record.tensors["mask_hidden"][None])
    rows = build_rows([Part(range(4 * i, 4 * i + 4), 0, TOKENS[:n], logits="last") for i, n in enumerate(starts)])
    draft = net.draft_chains(rows, np.concatenate([hidden[:n] for n in starts]), net.new_cache(8), 3)
    for i, count in enumerate(starts):
        tokens, states = [*TOKENS[:count], 129, 129], np.concatenate([hidden[:count], mask, mask])
        expected, _ = reference.eagle3(record, embedding, head, tokens, np.float64(states))
        assert draft.tokens[i].tolist() == record.draft_ids[expected[-3:].argmax(axis=1)].tolist()
        laws = np.exp(expected[-3:] - expected[-3:].max(axis=1, keepdims=True))
        np.testing.assert_allclose(draft.top_probs[i], 1 / laws.sum(axis=1), atol=1e-4)
        cache = net.new_cache(4)
        logits, below = run(net, cache, hidden[:count], Part(range(4), 0, TOKENS[:count], logits="last"))
        for level in range(3):
            np.testing.assert_allclose(logits[0], expected[count - 1 + level], atol=1e-4, rtol=1e-4)
            logits, below = run(net, cache, below[-1:], Part(range(4), count + level, [draft.tokens[i, level]]))


def test_what_the_kernels_do_not_cover_is_refused_with_the_way_out(target):
    with pytest.raises(InvalidParameter, match=r"dtype.*float8"):
        make_net(records.eagle3(), target, "float8")
    with pytest.raises(UnsupportedModel, match=r"head_dim: 16.*torch"):
        make_net(records.eagle3(layer=records.draft_layer(head_dim=16, num_attention_heads=4)), target, "w8a8")


def test_where_nobody_says_heads_are_stored_as_their_drafts_are_quickest(target):
    """But for those that read all rows of the target's head, which are there in its own format, and odd widths."""
    of_all, odd = (
        records.reduced("eagle"),
        records.eagle3(layer=records.draft_layer(head_dim=16, num_attention_heads=4)),
    )
    own = target.model.dtype_choice.name
    for record, dtype in ((HEADS["eagle3.1"], "w8a8"), (of_all, own), (odd, own)):
        net = build_net(record, target, None)
        assert net._machine.dtype == dtype
