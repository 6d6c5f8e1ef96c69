"""Falcon: loss and step are the paper's, written out row by row; its mask, its glancing, its LSTM."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from paceline.training.heads.recipes.falcon import (
    GLANCE,
    NOISE,
    FalconRecipe,
    answered,
    block_parts,
    blocks_of,
    distillation,
    glanced,
    unshown,
)
from paceline.training.run.trainee import Moment
from tests.training.heads.tiny import VOCAB, tiny_store, tiny_target

IDS = np.arange(0, VOCAB, dtype=np.int32)
K = 2


def made():
    torch.manual_seed(0)
    target = tiny_target()
    target = replace(target, embedding=target.embedding.float(), head=target.head.float())
    recipe = FalconRecipe(target, IDS, 3)
    with torch.no_grad():
        for values in recipe.net.parameters():
            values.add_(torch.randn_like(values) * 0.2)
    return recipe


def outputs_of(net, tokens, states, offset):
    """Every row's output: torch's own LSTM, and a softmax over the rows that the relaxed mask lets a row see."""
    layer = net.layers[0]
    x, _ = net.lstm(torch.cat([states, net.shared_embedding[tokens]], dim=-1))
    found = []
    for i in range(len(tokens)):
        seen = [j for j in range(len(tokens)) if (j + offset) // K <= (i + offset) // K]
        keys, values = layer.self_attn.keys_values(x[seen], torch.tensor(seen))
        query = layer.self_attn.queries(x[i : i + 1], torch.tensor([i]))[0]
        groups = layer.self_attn.num_heads // layer.self_attn.num_key_heads
        mixed = [((keys[:, h // groups] @ one) / len(one) ** 0.5).softmax(0) @ values[:, h // groups]
                 for h, one in enumerate(query)]  # fmt: skip
        found.append(layer.leave(x[i : i + 1], torch.cat(mixed)[None])[0])
    return torch.stack(found)


def written_out(recipe, store, one, done, random):
    """Gao et al. 2024: two passes, N = lambda * Hamming pairs replaced, SmoothL1 + 0.1 (0.9 KL + 0.1 CE)."""
    ids, length = one.conversation.ids.astype(np.int64), one.num_rows
    states = torch.from_numpy(store.rows([one], [2])[:, 0].view(np.int16)).view(torch.bfloat16).float()
    fed = states + (torch.rand(states.shape, generator=random) * 2 - 1) * NOISE
    offset = int(torch.randint(0, K, (1,), generator=random))
    tokens, places = ids[1:].copy(), [i for i in range(length - K) if i + K + 1 > one.conversation.num_prompt]
    with torch.no_grad():
        named = (outputs_of(recipe.net, tokens, fed, offset) @ recipe.rows.T).argmax(-1)
    count = int(GLANCE * (1 - done) * sum(int(named[i]) != ids[i + K + 1] for i in places))
    start = int(torch.randint(0, len(places) - count + 1, (1,), generator=random))
    fed = fed.clone()
    for i in places[start : start + count]:
        tokens[i], fed[i] = ids[i + K + 1], states[i + K]
    outputs, total = outputs_of(recipe.net, tokens, fed, offset), torch.zeros(())
    left = places[:start] + places[start + count :]
    if (places[start] + offset) % K == 1 and places[start] - 1 in left:  # it sees its answer one row on
        left.remove(places[start] - 1)
    for i in left:
        wanted = states[i + K]
        p, log_q = (wanted @ recipe.rows.T).softmax(-1), (outputs[i] @ recipe.rows.T).log_softmax(-1)
        soft, hard = (p * (p.log() - log_q)).sum(), -log_q[p.argmax()]
        total = total + functional.smooth_l1_loss(outputs[i], wanted) + 0.1 * (0.9 * soft + 0.1 * hard)
    return total / len(left), count


@pytest.mark.parametrize("done", [0.0, 0.5])
def test_loss_and_step_are_the_papers(tmp_path, done):
    recipe, twin, store = made(), made(), tiny_store(tmp_path, tiny_target(), num=2)
    one = store.documents[0]
    found = recipe.loss(store, [one], Moment(done, 1.0, torch.Generator().manual_seed(3)))
    expected, count = written_out(twin, store, one, done, torch.Generator().manual_seed(3))
    assert count > 0
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    for (label, mine), other in zip(recipe.net.named_parameters(), twin.net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=label, atol=2e-5, rtol=1e-3)
        assert mine.grad.abs().max() > 0


def test_the_relaxed_mask_is_causal_between_blocks_and_whole_inside():
    [first, second] = block_parts([5, 3], blocks_of([5, 3], [0, 1], 2))
    assert first.visible.int().tolist() == [
        [1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]
    ]  # fmt: skip
    assert second.visible.int().tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 1]] and second.rows == slice(5, 8)


def test_as_many_neighbours_as_asked_are_shown():
    random, places = torch.Generator().manual_seed(0), torch.arange(3, 20)
    for count in (0, 1, 5, 17):
        shown = glanced(places, count, random)
        assert len(shown) == count and (torch.diff(shown) == 1).all()
    assert {int(glanced(places, 15, random)[0]) for _ in range(60)} == {3, 4, 5}


@pytest.mark.parametrize(("offset", "first", "left_out"), [(0, 7, [6]), (0, 8, []), (1, 7, []), (1, 8, [7])])
def test_who_sees_its_answer_takes_no_loss(offset, first, left_out):
    places, blocks = torch.arange(2, 12), blocks_of([12], [offset], 2)
    shown = torch.arange(first, 10)
    kept = unshown(places, shown, blocks, 2).tolist()
    assert sorted({*range(2, 12)} - set(kept)) == [*left_out, *shown.tolist()]
    assert unshown(places, shown[:0], blocks, 2).tolist() == places.tolist()


def test_nothing_is_shown_at_the_end_of_the_run(tmp_path, monkeypatch):
    counts: list[int] = []

    def counted(places, count, random):
        counts.append(count)
        return glanced(places, count, random)

    monkeypatch.setattr("paceline.training.heads.recipes.falcon.glanced", counted)
    recipe, store = made(), tiny_store(tmp_path, tiny_target(), num=2)
    for done in (0.0, 0.5, 1.0):
        recipe.loss(store, store.documents[:2], Moment(done, 1.0, torch.Generator().manual_seed(0)))
    assert counts[0] > counts[1] > counts[2] == 0


def test_labels_are_tokens_of_the_answer(tmp_path):
    store = tiny_store(tmp_path, tiny_target(), num=2)
    one = store.documents[0]
    places = answered([one, one], K)
    assert places[0] + K + 1 == one.conversation.num_prompt + 1
    assert places.max() + K == 2 * one.num_rows - 1 and len(places) == 2 * (len(one.conversation.answer) - 1)


def test_the_distillation_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 20, generator=generator, dtype=torch.float64).requires_grad_()
    p = torch.randn(4, 20, generator=generator, dtype=torch.float64).softmax(-1)
    log_q = logits.log_softmax(-1)
    best = log_q.gather(-1, p.argmax(-1, keepdim=True))[:, 0]
    expected = 0.1 * (0.9 * (p * (p.log() - log_q)).sum(-1) - 0.1 * best)
    expected.sum().backward()
    loss, acceptance, gradient = distillation(logits.detach(), p)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, logits.grad)
    torch.testing.assert_close(acceptance, torch.minimum(p, log_q.detach().exp()).sum(-1))


def test_texts_of_other_lengths_are_run_as_alone():
    net, random = made().net, torch.Generator().manual_seed(0)
    entered = torch.randn(12, 32, generator=random)
    found = net.run(entered, [3, 7, 2])
    for start, end in ((0, 3), (3, 10), (10, 12)):
        alone, (last, cell) = net.lstm(entered[start:end])
        torch.testing.assert_close(found.outputs[-1, start:end], alone)
        torch.testing.assert_close(found.outputs[:, end - 1], last)
        torch.testing.assert_close(found.cells[:, end - 1], cell)


def test_reading_whole_texts_is_running_through_them():
    net, lengths = made().net, [3, 7, 2]
    entered = torch.randn(12, 32, generator=torch.Generator().manual_seed(0))
    wanted = torch.randn(12, net.lstm.hidden_size, generator=torch.Generator().manual_seed(1))
    found = []
    for read in (net.run(entered, lengths).outputs[-1], net.read_whole(entered, lengths)):
        net.zero_grad()
        (read * wanted).sum().backward()
        found.append([read.detach(), *(one.grad.clone() for one in net.lstm.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
