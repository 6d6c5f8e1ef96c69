"""A head's logits in training equal those in serving, position by position."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.models.base import slot_of
from paceline.models.heads.nets import BlockOfRows
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.heads.build import net_of
from paceline.training.heads.batches import make_batch
from paceline.training.heads.losses import logits_of
from paceline.training.heads.recipes import RECIPES
from tests.training.heads.tiny import VOCAB, tiny_store, tiny_target

STEPS = 3


@pytest.fixture(params=list(RECIPES))
def case(request, tmp_path):
    """A recipe with random weights, the batch of two documents, and the net that serves it."""
    torch.manual_seed(0)
    target = tiny_target()
    target = type(target)(target.about, target.config, target.embedding.float(), target.head.float(), target.norm, 7)
    recipe = RECIPES[request.param](target, np.arange(0, VOCAB, 2, dtype=np.int32), STEPS)
    with torch.no_grad():
        for values in recipe.net.parameters():
            values.add_(torch.randn_like(values) * 0.1)
    store = tiny_store(tmp_path, target)
    batch = make_batch(store, store.documents[:2], recipe.config.taps, 1.0)
    net = net_of(recipe.record(recipe.net.state_dict(), {}), target.embedding, target.head)
    return recipe, batch, net


def test_logits_of_training_are_those_of_serving(case):
    recipe, batch, net = case
    with torch.no_grad():
        trained = [logits_of(read, recipe.rows).numpy() for read in recipe.read(batch)]
    serve = {
        "eagle3": served_chain, "eagle": served_chain, "p_eagle": served_chain, "dspark": served_block,
        "falcon": served_blocks,
    }.get(recipe.family, served_steps)  # fmt: skip
    found = np.stack([serve(net, batch, i) for i in range(len(batch.anchors))], axis=1)
    kept = np.stack([batch.labelled(step).numpy() for step in range(STEPS)])
    assert kept.sum() > 30
    np.testing.assert_allclose(np.stack(trained)[kept], found[kept], atol=2e-5)


def place(batch, i):
    """First row of the anchor's document, and the anchor's place in it."""
    starts = np.concatenate([[0], np.cumsum(batch.lengths)])
    start = starts[np.searchsorted(starts, int(batch.anchors[i]), side="right") - 1]
    return int(start), int(batch.anchors[i]) - int(start)


def served_chain(net, batch, i):
    """[steps, draft vocab]: true rows up to the anchor, then a row per drafted token, each fed with the one above."""
    start, anchor = place(batch, i)
    cache, pages = net.new_cache(4), list(range(4))
    taps = batch.taps[start : start + anchor + 1].float().flatten(1).numpy()
    tokens = batch.next_tokens[start : start + anchor + 1].tolist()
    out = net.forward(build_rows([Part(pages, 0, tokens, logits="last")]), net.project(taps), cache)
    found = [out.logits[0]]
    for step in range(1, STEPS):
        fed, token = out.hidden[-1:].copy(), int(batch.tokens(step)[i])
        out = net.forward(build_rows([Part(pages, anchor + step, [token])]), fed, cache)
        found.append(out.logits[0])
    return np.stack(found)


def served_block(net, batch, i):
    """[steps, draft vocab]: the context's keys, then one pass over a block whose rows see all of it."""
    start, anchor = place(batch, i)
    cache, pages = net.new_cache(4), list(range(4))
    positions = np.arange(anchor + 1)
    taps = batch.taps[start : start + anchor + 1].float().flatten(1).numpy()
    net.inject(taps, positions, slot_of(np.array(pages), positions), cache)
    mask = net.record.config.mask_token_id
    rows = build_rows([Part(pages, anchor + 1, [int(batch.tokens(0)[i])] + [mask] * (STEPS - 1))])
    lengths = np.full(STEPS, anchor + 1 + STEPS, np.int32)
    logits = net.forward(replace(rows, natural_lengths=lengths, num_keys=lengths), cache).logits
    before = np.array([int(batch.tokens(step)[i]) for step in range(STEPS)])
    return logits + net.bias(before)


def served_steps(net, batch, i):
    """[steps, draft vocab] from the state at the anchor and the tokens after it."""
    state, found = net.begin(batch.normed[batch.anchors[i : i + 1]].float().numpy()), []
    for step in range(STEPS):
        logits, state = net.step(step, state, batch.tokens(step)[i : i + 1].numpy())
        found.append(logits[0])
    return np.stack(found)


def served_blocks(net, batch, i):
    """[steps, draft vocab]: true rows up to the anchor, whose last two are a block; then the drafted tokens' rows."""
    start, anchor = place(batch, i)
    cache, slots = net.new_cache(4), np.arange(64)
    fed = batch.normed[start : start + anchor + 1].float().numpy()
    tokens = batch.next_tokens[start : start + anchor + 1].numpy()
    places = np.arange(anchor + 1)
    net.extend(tokens, fed, places, slots[: anchor + 1], places - 1, cache)
    end, found = anchor + 1, []
    while len(found) < STEPS:
        first = len(found)
        out = net.draft([BlockOfRows(slots[end - 2 : end], np.arange(end - 2, end), slots[:end])], cache)
        found += list(out.logits)
        own = np.array([int(batch.tokens(first + 1 + step)[i]) for step in range(2)])
        rows = np.arange(end, end + 2)
        net.extend(own, out.hidden, rows, slots[rows], rows - 1, cache)
        end += 2
    return np.stack(found[:STEPS])
