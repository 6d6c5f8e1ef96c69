"""EAGLE-1 and HASS: loss and step are those of their papers, written out row by row in plain torch."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from paceline.models.heads.files import read_head, save_head
from paceline.models.torch_executor.heads.attention import Keys, attend, parts_of
from paceline.training.heads.recipes import RECIPES
from paceline.training.heads.recipes.eagle import NOISE, top_cross_entropy
from paceline.training.run.trainee import Moment
from tests.training.heads.tiny import VOCAB, tiny_store, tiny_target

STEPS, IDS = 3, np.arange(0, VOCAB, dtype=np.int32)


def made(name):
    torch.manual_seed(0)
    target = tiny_target()
    target = type(target)(target.about, target.config, target.embedding.float(), target.head.float(), target.norm, 7)
    recipe = RECIPES[name](target, IDS, STEPS)
    with torch.no_grad():
        for values in recipe.net.parameters():
            values.add_(torch.randn_like(values) * 0.2)
    return recipe


def chain_of(net, tokens, states, anchor, steps, detached):
    """The states that a chain of `steps` tokens gives, a row at a time with a softmax over the keys there are."""
    layer, keys, found, fed = net.layers[0], [], [], None
    for place in range(anchor + steps):
        hidden = states[place] if place <= anchor else fed
        x = net.fc(torch.cat([net.shared_embedding[tokens[place + 1]], hidden]))
        position = torch.tensor([place])
        keys.append([one[0] for one in layer.self_attn.keys_values(x[None], position)])
        if place < anchor:
            continue
        query = layer.self_attn.queries(x[None], position)[0]
        groups = layer.self_attn.num_heads // layer.self_attn.num_key_heads
        mixed = []
        for head, one in enumerate(query):
            k, v = (torch.stack([pair[part][head // groups] for pair in keys]) for part in (0, 1))
            mixed.append(((k @ one) / one.shape[0] ** 0.5).softmax(0) @ v)
        y = layer.leave(x[None], torch.cat(mixed)[None])[0]
        found.append(y)
        fed = y.detach() if detached else y
    return found


def written_out(recipe, name, store, one, generator):
    """Mean over anchors of the sum over steps of SmoothL1 + 0.1 CE + 1.0 * CE over the 10 most probable (HASS)."""
    ids, length = one.conversation.ids.astype(np.int64), one.num_rows
    states = torch.from_numpy(store.rows([one], [2])[:, 0].view(np.int16)).view(torch.bfloat16).float()
    noise = torch.zeros_like(states)
    if name == "eagle":
        torch.rand(0, generator=generator)
        noise = (torch.rand(states.shape, generator=generator) * 2 - 1) * NOISE
    steps, total, anchors = STEPS if name == "hass" else 1, torch.zeros(()), 0
    for anchor in range(one.conversation.num_prompt - 1, length - 1):
        anchors += 1
        reach = min(steps, length - 1 - anchor)
        for step, f in enumerate(chain_of(recipe.net, ids, states + noise, anchor, reach, True)):
            wanted = states[anchor + 1 + step]
            p, log_q = (wanted @ recipe.rows.T).softmax(-1), (f @ recipe.rows.T).log_softmax(-1)
            total = total + functional.smooth_l1_loss(f, wanted) - 0.1 * (p * log_q).sum()
            if name == "hass":
                top = p.topk(10)
                total = total - (top.values * log_q[top.indices]).sum()
    return total / anchors


@pytest.mark.parametrize("name", ["eagle", "hass"])
def test_loss_and_step_are_the_papers(tmp_path, name):
    recipe, twin, store = made(name), made(name), tiny_store(tmp_path, tiny_target(), num=2)
    one = store.documents[0]
    found = recipe.loss(store, [one], Moment(0.0, 1.0, torch.Generator().manual_seed(3)))
    expected = written_out(twin, name, store, one, torch.Generator().manual_seed(3))
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    for (label, mine), other in zip(recipe.net.named_parameters(), twin.net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=label, atol=2e-5, rtol=1e-3)
        assert mine.grad.abs().max() > 0


def test_the_top_tokens_weigh_more():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 20, generator=generator, dtype=torch.float64).requires_grad_()
    p = torch.randn(4, 20, generator=generator, dtype=torch.float64).softmax(-1)
    q = logits.softmax(-1)
    top = torch.zeros_like(p).scatter(1, p.argsort(descending=True)[:, :10], 1.0)
    expected = -((0.1 + top) * p * q.log()).sum(-1)
    expected.sum().backward()
    loss, acceptance, gradient = top_cross_entropy(logits.detach(), p, 1.0)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, logits.grad)
    torch.testing.assert_close(acceptance, torch.minimum(p, q.detach()).sum(-1))


def test_weights_of_visible_keys_add_up_to_one():
    """HASS's published code lets hidden keys keep a share of the softmax."""
    anchors, parts = torch.tensor([1, 3, 5]), parts_of(torch.tensor([1, 3, 5]), [4, 3])
    rows = Keys(torch.randn(7, 2, 4), torch.ones(7, 2, 4))
    own = Keys(torch.randn(3, 2, 2, 4), torch.ones(3, 2, 2, 4))
    mixed = attend(torch.randn(len(anchors), 4, 4), rows, own, parts)
    torch.testing.assert_close(mixed, torch.ones(3, 16))


def test_later_steps_train_no_earlier_state(tmp_path):
    """A step of HASS is not trained by what later ones make of its state, one of EAGLE-3 is."""
    from paceline.training.heads.batches import make_batch
    from paceline.training.heads.rollout import rollout

    store = tiny_store(tmp_path, tiny_target(), num=2)
    for detached in (True, False):
        recipe = made("hass")
        batch = make_batch(store, store.documents[:1], recipe.config.taps, 1.0)
        steps = rollout(recipe.net, batch, 2, detached)
        steps[0].retain_grad()
        steps[1].sum().backward()
        assert (steps[0].grad is None) == detached


def test_a_draft_vocabulary_is_kept_in_our_files_and_left_out_of_copies(tmp_path):
    from paceline.models.heads.layouts.base import TargetTables

    target = tiny_target()
    recipe = RECIPES["hass"](target, np.arange(0, VOCAB, 2, dtype=np.int32), STEPS)
    record = recipe.record(recipe.net.state_dict(), {"licence": "none"})
    found = read_head(save_head(record, tmp_path / "own"))
    np.testing.assert_array_equal(found.draft_ids, recipe.draft_ids)
    assert found.config.family == "eagle" and found.config.draft_vocab_size == VOCAB // 2
    tables = TargetTables(target.embedding.float().numpy(), target.head.float().numpy())
    copy = save_head(record, tmp_path / "copy", tables=tables)
    import safetensors

    with safetensors.safe_open(copy / "model.safetensors", "numpy") as file:
        assert "d2t" not in file.keys()  # noqa: SIM118
