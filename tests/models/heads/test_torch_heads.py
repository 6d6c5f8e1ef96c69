"""Heads in torch against the formulas spelled out in numpy."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import CorruptWeights, InvalidParameter, UnsupportedModel
from paceline.models.base import slot_of
from paceline.models.heads.build import make_net
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.models.rows import Part, build_rows
from tests.fakes import ByteTokenizer, RandomCheckpoint
from tests.models.heads import records, reference

pytest.importorskip("torch")

RNG = np.random.default_rng(5)
TOKENS = RNG.integers(0, 131, 20).astype(np.int32)
TAPS = RNG.standard_normal((20, 3 * 96)).astype(np.float32)


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def target():
    from paceline.models.torch_executor import TorchModel

    checkpoint = RandomCheckpoint(records.TARGET)
    return LoadedModel(ModelSource("random", checkpoint, ByteTokenizer()), TorchModel(checkpoint))  # type: ignore[arg-type]


CHAINS = {
    "eagle3": records.eagle3(),
    "eagle3.1": records.eagle3(fc_norm=True, norm_output=True),
    "normed before": records.eagle3(norm_before_fc=True, norm_before_residual=True, fc_bias=True),
    "two layers": records.eagle3(layer=records.draft_layer(num_hidden_layers=2), num_layers=2),
    "tables of its own": records.eagle3(owns_embedding=True, owns_head=True),
    "eagle": records.reduced("eagle", fc_bias=True),
}
P_EAGLE = records.p_eagle(fc_norm=True)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_equals_the_formulas(target, name):
    record = CHAINS[name]
    config, tensors, net = record.config, record.tensors, make_net(record, target)
    embedding, head = records.tables(target, record)
    embedding, head = tensors.get("embed_tokens.weight", embedding), tensors.get("lm_head.weight", head)
    taps = TAPS[:, : 96 * len(config.taps)]
    hidden = net.project(taps)
    if config.family == "eagle3":
        close(hidden, reference.projected(record, taps))
    cache = net.new_cache(4)
    first = net.forward(build_rows([Part(range(4), 0, TOKENS[:12])]), hidden[:12], cache)
    rest = net.forward(build_rows([Part(range(4), 12, TOKENS[12:])]), hidden[12:], cache)
    formula = reference.eagle if config.family == "eagle" else reference.eagle3
    logits, states = formula(record, embedding, head, TOKENS, np.float64(hidden))
    close(np.concatenate([first.logits, rest.logits]), logits)
    close(np.concatenate([first.hidden, rest.hidden]), states)


def test_rows_of_masks_equal_the_formulas_level_by_level_and_at_once(target):
    """A row fed the mask state is one of the mask token, and every row hands on the mask state."""
    net, (embedding, _) = make_net(P_EAGLE, target), records.tables(target, P_EAGLE)
    mask = reference.projected(P_EAGLE, P_EAGLE.tensors["mask_hidden"][None])
    hidden, head, pages = net.project(TAPS[:12]), P_EAGLE.tensors["lm_head.weight"], range(4)
    fed = np.float64(np.concatenate([hidden, mask, mask]))
    expected, _ = reference.eagle3(P_EAGLE, embedding, head, [*TOKENS[:12], 129, 129], fed)
    cache, rows = net.new_cache(4), build_rows([Part(pages, 0, TOKENS[:12])])
    out = net.forward(rows, hidden, cache)
    close(out.logits, expected[:12])
    for level in range(2):
        close(out.hidden, np.broadcast_to(mask, out.hidden.shape))
        out = net.forward(build_rows([Part(pages, 12 + level, [7])]), out.hidden[-1:], cache)
        close(out.logits[0], expected[12 + level])
    draft = net.draft_chains(build_rows([Part(pages, 0, TOKENS[:12], logits="last")]), hidden, net.new_cache(4), 3)
    assert draft.tokens[0].tolist() == P_EAGLE.draft_ids[expected[-3:].argmax(axis=1)].tolist()


@pytest.mark.parametrize("record", [records.dspark(), records.dflash()], ids=["dspark", "dflash"])
def test_a_block_equals_the_formulas(target, record):
    config, tensors, net = record.config, record.tensors, make_net(record, target)
    positions, taps = np.arange(13), TAPS[:13, : 96 * len(config.taps)]
    cache = net.new_cache(4)
    net.inject(taps, positions, slot_of(np.arange(4), positions), cache)
    rows = build_rows([Part(range(4), 13, [7, *[config.mask_token_id] * (config.block_size - 1)])])
    lengths = np.full(config.block_size, 13 + config.block_size, np.int32)
    out = net.forward(replace(rows, natural_lengths=lengths, num_keys=lengths), cache)
    logits, states = reference.block(record, *records.tables(target, record), taps, rows.token_ids)
    close(out.hidden, states)
    close(out.logits, logits)
    tokens = np.array([5, 60])
    if not config.markov_rank:
        assert not net.bias(tokens).any() and (net.confidence(out.hidden[:2], tokens) == 1).all()
        return
    before = tensors["markov_head.markov_w1.weight"][tokens]
    close(net.bias(tokens), before @ tensors["markov_head.markov_w2.weight"].T)
    read = np.concatenate([states[:2], before], axis=1)
    score = read @ tensors["confidence_head.proj.weight"][0] + tensors["confidence_head.proj.bias"]
    close(net.confidence(out.hidden[:2], tokens), 1 / (1 + np.exp(-score)))


STEPS = {
    "mlp": records.mlp_speculator(scale_input=True, embedding_scale=2.0),
    "mlp tied": records.mlp_speculator(tied=True, owns_embedding=True, owns_head=True),
    "medusa": records.medusa(block_depth=2),
    "medusa of its own": records.medusa(owns_head=True, fc_bias=False),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_equal_the_formulas(target, name):
    record = STEPS[name]
    net, levels = make_net(record, target), RNG.integers(0, 131, (record.config.num_steps, 20))
    state, found = net.begin(TAPS[:, :96]), []
    for level, tokens in enumerate(levels):
        logits, state = net.step(level, state, tokens)
        found.append(logits)
    formula = getattr(reference, record.config.family)
    expected = list(formula(record, *records.tables(target, record), TAPS[:, :96], levels))
    close(np.stack(found), np.stack(expected))


def test_what_does_not_run_is_refused(target):
    with pytest.raises(UnsupportedModel, match="executor='numba'"):
        make_net(records.reduced("mtp"), target)
    with pytest.raises(UnsupportedModel, match="Markov"):
        make_net(records.dspark(variant="gated"), target)
    with pytest.raises(InvalidParameter, match="float32"):
        make_net(CHAINS["eagle3"], target, "w8a8")
    with pytest.raises(InvalidParameter, match="mask_token_id"):
        make_net(records.p_eagle(mask_token_id=None), target)
    record = CHAINS["eagle3"]
    tensors = {name: values for name, values in record.tensors.items() if name != "fc.weight"}
    with pytest.raises(CorruptWeights, match=r"fc\.weight"):
        make_net(replace(record, tensors=tensors), target)
