"""`tools/grow_head.py`: a grown head says what the smaller one said."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.models.heads.record import HeadRecord
from paceline.models.heads.shapes import head_shapes
from paceline.models.torch_executor.heads.dspark import DSpark
from paceline.models.torch_executor.heads.medusa import Medusa
from paceline.models.torch_executor.heads.mlp_speculator import MlpSpeculator
from paceline.training.heads.batches import make_batch
from paceline.training.heads.losses import Read, logits_of
from paceline.training.heads.recipes import RECIPES
from paceline.training.heads.recipes.dspark import block_states
from tests.training.heads.tiny import VOCAB, tiny_store, tiny_target

sys.path.append(str(Path(__file__).parents[3] / "tools"))

import grow_head  # type: ignore[import-not-found]

IDS, STEPS = np.arange(0, VOCAB, 2, dtype=np.int32), 3


@pytest.fixture
def batch(tmp_path):
    store = tiny_store(tmp_path, tiny_target(), num=3)
    return lambda taps: make_batch(store, store.documents[:3], taps, 1.0)


def wanted(family):
    return RECIPES[family](tiny_target(torch.float32), IDS, STEPS).config


def random_record(config):
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in head_shapes(config).items()}
    return HeadRecord(config, tensors, IDS)


def logits(record, batch):
    """[steps, anchors, named tokens], and how sure the head is where it says so."""
    target = tiny_target(torch.float32)
    rows, data = target.head[torch.from_numpy(IDS).long()], batch(record.config.taps)
    kind = {"dspark": DSpark, "mlp_speculator": MlpSpeculator, "medusa": Medusa}[record.config.family]
    net = kind(record.config, target.embedding, rows)
    net.load_state_dict({name: torch.from_numpy(values) for name, values in record.tensors.items()})
    found = []
    with torch.no_grad():
        if record.config.family == "dspark":
            states = block_states(net, data, STEPS)
            for step in range(STEPS):
                found.append(logits_of(Read(states[:, step]), rows) + net.bias(data.tokens(step)))
                found.append(net.confidence(states[:, step], data.tokens(step))[:, None].expand_as(found[0]))
        elif record.config.family == "medusa":
            hidden = data.normed[data.anchors]
            found = [logits_of(Read(net.read(step, hidden)), rows) for step in range(STEPS)]
        else:
            state = net.begin(data.normed[data.anchors])
            for step in range(STEPS):
                state = net.step(step, state, data.tokens(step))
                found.append(logits_of(Read(net.read(step, state)), rows))
    return torch.stack(found)


def test_further_blocks_of_medusa_change_nothing(batch):
    whole = wanted("medusa")
    record = random_record(replace(whole, block_depth=1))
    grown = grow_head.grown(record, whole)
    assert grown.config == whole and whole.block_depth > 1
    assert {name: values.shape for name, values in grown.tensors.items()} == dict(head_shapes(whole))
    torch.testing.assert_close(logits(grown, batch), logits(record, batch))


def test_key_heads_and_a_bias_of_higher_rank_change_nothing(batch):
    whole = wanted("dspark")
    small = replace(whole, layer=replace(whole.layer, num_key_value_heads=2), markov_rank=whole.markov_rank // 2)
    record = random_record(small)
    record.tensors["markov_head.markov_w1.weight"][1::2] = 0  # what is not named loses its bias
    grown = grow_head.grown(record, whole)
    assert {name: values.shape for name, values in grown.tensors.items()} == dict(head_shapes(whole))
    assert grown.config == whole
    torch.testing.assert_close(logits(grown, batch), logits(record, batch))
    assert not grown.tensors["markov_head.markov_w1.weight"][1::2].any()


def test_a_state_twice_as_wide_changes_nothing_but_for_what_tells_copies_apart(batch, monkeypatch):
    whole = wanted("mlp_speculator")
    half = whole.inner_size // 2
    record = random_record(replace(whole, inner_size=half, embedding_scale=whole.embedding_scale * 2**0.5))
    near = logits(grow_head.grown(record, whole), batch)
    monkeypatch.setattr(grow_head, "_APART", 0.0)
    grown, expected = grow_head.grown(record, whole), logits(record, batch)
    assert grown.config == whole
    torch.testing.assert_close(logits(grown, batch), expected)
    assert 0 < float((near - expected).abs().mean()) < 0.1 * float(expected.std())
    weight = grown.tensors["head_proj.weight"]
    assert not np.allclose(weight[:, :half].sum(), weight[:, half:].sum())  # copies are read apart


def test_steps_that_are_to_share_weights_take_those_of_the_first(batch):
    whole = wanted("mlp_speculator")
    record = random_record(replace(whole, tied=False))
    grown = grow_head.grown(record, whole)
    assert {name: values.shape for name, values in grown.tensors.items()} == dict(head_shapes(whole))
    np.testing.assert_allclose(grown.tensors["ln.0.bias"], record.tensors["ln.0.bias"])
    np.testing.assert_allclose(grown.tensors["proj.1.weight"], record.tensors["proj.1.weight"], atol=1e-6)


def test_other_families_are_refused():
    with pytest.raises(ValueError, match="family blockwise have not grown"):
        grow_head.grown(HeadRecord(wanted("blockwise"), {}), wanted("medusa"))
