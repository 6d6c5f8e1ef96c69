"""Both executors run the same head: results within 1e-4 in float32, for each family that both have."""

import numpy as np
import pytest

from paceline.models.heads.nets import BlockOfRows
from paceline.models.numba_executor.heads.build import make_net
from paceline.models.rows import Part, build_rows

from . import records
from .test_numba_block import block_rows, filled

RNG = np.random.default_rng(11)
TOKENS = RNG.integers(0, 131, 30).tolist()
TAPS = RNG.standard_normal((30, 3 * 96)).astype(np.float32)
pytestmark = pytest.mark.usefixtures("own_weight_cache")
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def target():
    return records.load_target("float32")


def both(target, record):
    """The head on the CPU kernels and in torch."""
    from paceline.models.torch_executor.heads import build

    return make_net(record, target), build.make_net(record, target)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("flags", [{}, {"fc_norm": True, "norm_output": True}, {"norm_before_residual": True}])
def test_eagle3(target, flags):
    nets, rows = both(target, records.eagle3(**flags)), build_rows([Part(range(2), 0, TOKENS)])
    hidden = [net.project(TAPS).copy() for net in nets]
    close(*hidden)
    outputs = [net.forward(rows, hidden[0], net.new_cache(2)) for net in nets]
    for ours, theirs in zip(*outputs, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("flags", [{}, {"fc_norm": True}, {"norm_before_residual": True}])
def test_p_eagle(target, flags):
    nets, rows = both(target, records.p_eagle(**flags)), build_rows([Part(range(2), 0, TOKENS[:20], logits="last")])
    hidden = nets[0].project(TAPS[:20]).copy()
    caches = [net.new_cache(2) for net in nets]
    outputs = [net.forward(rows, hidden, cache) for net, cache in zip(nets, caches, strict=True)]
    for level in range(3):
        for ours, theirs in zip(*outputs, strict=True):
            close(ours, theirs)
        below = build_rows([Part(range(2), 20 + level, [TOKENS[20 + level]])])
        outputs = [
            net.forward(below, out.hidden[-1:].copy(), cache)
            for net, out, cache in zip(nets, outputs, caches, strict=True)
        ]
    ours, theirs = (net.draft_chains(rows, hidden, net.new_cache(2), 4) for net in nets)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    close(ours.top_probs, theirs.top_probs)


@pytest.mark.parametrize("flags", [{}, {"embedding_scale": 9.8}])
def test_dspark(target, flags):
    nets, tokens = both(target, records.dspark(**flags)), np.array([5, 60, 7, 7], np.int32)
    outputs = [net.forward(block_rows(net, 21), filled(net, 21)) for net in nets]
    states = outputs[0].hidden.copy()
    for ours, theirs in zip(*outputs, strict=True):
        close(ours, theirs)
    close(*(net.bias(tokens) for net in nets))
    close(*(net.confidence(states, tokens) for net in nets))


def test_falcon(target):
    nets, tokens, slots = both(target, records.falcon()), np.array(TOKENS, np.int32), np.arange(32)
    caches, fed = [net.new_cache(2) for net in nets], TAPS[:20, :96]
    for end in (20, 22, 24):  # a prompt, then the rows of the tokens that a block names, fed with its outputs
        rows = slots[end - len(fed) : end]
        block, outputs = BlockOfRows(slots[end - 2 : end], slots[end - 2 : end], slots[:end]), []
        for net, cache in zip(nets, caches, strict=True):
            net.extend(tokens[rows], fed, rows, rows, rows - 1, cache)
            outputs.append(net.draft([block], cache))
        for ours, theirs in zip(*outputs, strict=True):
            close(ours, theirs)
        fed = outputs[1].hidden


@pytest.mark.parametrize("make", [records.mlp_speculator, records.medusa, records.blockwise])
def test_heads_without_attention(target, make):
    nets, above = both(target, make()), np.array(TOKENS[:5], np.int32)
    states = [net.begin(TAPS[:5, :96]).copy() for net in nets]
    for level in range(3):
        found = [net.step(level, own, above) for net, own in zip(nets, states, strict=True)]
        close(found[0][0], found[1][0])
        states = [below.copy() for _, below in found]
