"""P-EAGLE: what a chain reads, written out for one anchor at a time over a whole sequence with a mask of its own."""

import numpy as np
import pytest
import torch

from paceline.training.heads.batches import make_batch
from paceline.training.heads.recipes import RECIPES
from paceline.training.run.trainee import Moment
from tests.training.heads.tiny import VOCAB, tiny_store, tiny_target

IDS = np.arange(0, VOCAB, 2, dtype=np.int32)


def made(num_steps, dtype=torch.float32):
    torch.manual_seed(0)
    recipe = RECIPES["p_eagle"](tiny_target(dtype), IDS, num_steps)
    with torch.no_grad():
        for values in recipe.net.parameters():
            values.add_(torch.randn_like(values) * 0.2)
    return recipe


def mixed(attention, x, positions, visible):
    """[n, heads * D] softmax(q k / sqrt(D)) v of each head by itself, over the rows that `visible` [n, n] allows."""
    queries, (keys, values) = attention.queries(x, positions), attention.keys_values(x, positions)
    shared, heads = attention.num_heads // attention.num_key_heads, []
    for head in range(attention.num_heads):
        scores = queries[:, head] @ keys[:, head // shared].T / attention.head_dim**0.5
        heads.append(scores.masked_fill(~visible, -torch.inf).softmax(-1) @ values[:, head // shared])
    return torch.cat(heads, dim=-1)


def chain_of(net, tokens, taps, anchor, num_steps):
    """[num_steps, hidden] read by the chain of `anchor`: the text's rows, all of them, then masks at anchor + 1, .."""
    count, masks = len(tokens), num_steps - 1
    hidden = torch.cat(
        [net.project(taps), net.project(net.mask_hidden.view(1, taps.shape[1], -1).expand(masks, -1, -1))]
    )
    embedded = net.embed(torch.cat([tokens, torch.full((masks,), net.config.mask_token_id)]))
    positions = torch.cat([torch.arange(count), anchor + 1 + torch.arange(masks)])
    visible = torch.ones(count + masks, count + masks, dtype=torch.bool).tril()
    visible[count:, anchor + 1 : count] = False  # masks do not see what the text goes on with
    first, *further = net.layers
    normed = first.hidden_norm(hidden)
    x = torch.cat([first.input_layernorm(embedded), normed], dim=-1)
    y = first.leave(hidden, mixed(first.self_attn, x, positions, visible))
    for layer in further:
        y = layer.leave(y, mixed(layer.self_attn, layer.input_layernorm(y), positions, visible))
    return net.norm(torch.cat([y[anchor : anchor + 1], y[count:]]))


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_chains_and_their_gradients_are_those_of_one_at_a_time(tmp_path, num_steps):
    recipe, twin, store = made(num_steps), made(num_steps), tiny_store(tmp_path, tiny_target(), num=2)
    batch = make_batch(store, store.documents[:2], recipe.config.taps, 1.0)
    found = torch.stack([read.hidden for read in recipe.read(batch)], dim=1)
    starts, expected = np.concatenate([[0], np.cumsum(batch.lengths)]), []
    for anchor in batch.anchors.tolist():
        document = int(np.searchsorted(starts, anchor, side="right")) - 1
        rows = slice(int(starts[document]), int(starts[document + 1]))
        expected.append(chain_of(twin.net, batch.next_tokens[rows], batch.taps[rows], anchor - rows.start, num_steps))
    expected = torch.stack(expected)
    assert len(batch.ends.unique()) == 2 and len(recipe.net.layers) == 2
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for (label, mine), other in zip(recipe.net.named_parameters(), twin.net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=label, atol=5e-4, rtol=2e-3)
        assert mine.grad.abs().max() > 0 or (label == "mask_hidden" and num_steps == 1)


def test_the_tables_are_the_targets_and_stay_as_they_are(tmp_path):
    recipe, store = made(3, torch.bfloat16), tiny_store(tmp_path, tiny_target(), num=2)
    recipe.loss(store, store.documents[:2], Moment(0.0, 1.0, torch.Generator())).backward()
    names = dict(recipe.net.named_parameters())
    assert not any(name.startswith(("embed_tokens", "lm_head")) for name in names)
    assert names["mask_hidden"].shape == (3 * recipe.target.config.hidden_size,)
    assert all(values.grad is not None for values in names.values())
    assert recipe.config.mask_token_id == recipe.target.mask_token_id
