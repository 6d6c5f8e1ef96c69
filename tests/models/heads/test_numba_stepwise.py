"""Heads without attention on the CPU kernels: against the formulas, in other company, and in chains."""

import numpy as np
import pytest

from paceline.errors import UnsupportedModel
from paceline.models.numba_executor.heads.build import make_net

from . import records, reference

TOKENS = np.random.default_rng(3).integers(0, 131, (3, 5)).astype(np.int32)
HIDDEN = np.random.default_rng(4).standard_normal((5, 96)).astype(np.float32)
pytestmark = pytest.mark.usefixtures("own_weight_cache")

OWN = {"owns_embedding": True, "owns_head": True}
VARIANTS = {
    "mlp": (records.mlp_speculator, {}),
    "mlp tied": (records.mlp_speculator, {"tied": True, "embedding_scale": 2.5, "inner_size": 96}),
    "mlp of its own": (records.mlp_speculator, OWN | {"scale_input": True}),
    "mlp tied of its own": (records.mlp_speculator, OWN | {"tied": True}),
    "medusa": (records.medusa, {}),
    "medusa of its own": (records.medusa, {"owns_head": True, "block_depth": 3, "fc_bias": False}),
    "medusa all rows": (records.medusa, {"draft_vocab_size": 131}),
    "hydra": (records.hydra, {}),
    "hydra of one layer": (records.hydra, {"block_depth": 1}),
    "blockwise": (records.blockwise, {}),
}
FORMULAS = {
    "mlp_speculator": reference.mlp_speculator, "medusa": reference.medusa, "hydra": reference.hydra,
    "blockwise": reference.blockwise,
}  # fmt: skip


@pytest.fixture(scope="module")
def target():
    return records.load_target("float32")


def run(net, hidden, tokens):
    """Logits of each level below `tokens` [levels, n]."""
    states, found = net.begin(hidden).copy(), []
    for level, above in enumerate(tokens):
        logits, below = net.step(level, states, above)
        found.append(logits.copy())
        states = below.copy()
    return np.stack(found)


@pytest.mark.parametrize("name", VARIANTS)
def test_float32_equals_the_formulas(target, name):
    make, changes = VARIANTS[name]
    record = make(**changes)
    expected = FORMULAS[record.config.family](record, *records.tables(target, record), HIDDEN, TOKENS)
    ours = run(make_net(record, target), HIDDEN, TOKENS)
    np.testing.assert_allclose(ours, np.stack(list(expected)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_chain_in_one_call_is_bitwise_that_of_many(target, name):
    make, changes = VARIANTS[name]
    net = make_net(make(**changes), target)
    draft = net.draft_chains(net.begin(HIDDEN), TOKENS[0], 3)
    tokens, probs = draft.tokens.copy(), draft.top_probs.copy()
    for i in range(len(HIDDEN)):
        above = np.array([TOKENS[0, i], *tokens[i, :2]], np.int32)
        for level, logits in enumerate(run(net, HIDDEN[i : i + 1], above[:, None])[:, 0]):
            law = np.exp(logits - logits.max())
            best = logits.argmax()
            assert tokens[i, level] == (best if net.record.draft_ids is None else net.record.draft_ids[best])
            assert probs[i, level] == pytest.approx(law.max() / law.sum(), rel=1e-5)


@pytest.mark.parametrize("make", [records.mlp_speculator, records.medusa, records.hydra])
def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(make):
    net = make_net(make(), records.load_target("w8a8"))
    together = run(net, HIDDEN, TOKENS)
    for i in range(len(HIDDEN)):
        assert np.array_equal(run(net, HIDDEN[i : i + 1], TOKENS[:, i : i + 1])[:, 0], together[:, i])


def test_forms_that_are_not_run_are_refused(target):
    with pytest.raises(UnsupportedModel, match=r"hydra_head_arch.*prefix-mlp"):
        make_net(records.hydra(variant="prefix-mlp", layer=records.draft_layer()), target)
