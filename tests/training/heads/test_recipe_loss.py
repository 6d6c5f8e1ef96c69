"""The loss that most recipes share, and one step of it, written out in plain torch place by place.

Logits are those of the networks, which `test_served_as_trained.py` and `tests/models/heads` hold against formulas.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional

from paceline.training.heads.batches import make_batch
from paceline.training.heads.losses import logits_of
from paceline.training.heads.recipes import RECIPES, Recipe
from paceline.training.heads.shards import TapStore
from paceline.training.run.optimiser import Optimiser
from paceline.training.run.trainee import Moment
from tests.training.heads.tiny import TAPS, VOCAB, conversation, states_of, tiny_store, tiny_target

STEPS, IDS = 3, np.arange(0, VOCAB, 2, dtype=np.int32)
SHARED = [name for name, kind in RECIPES.items() if kind.step_loss is Recipe.step_loss and kind.loss is Recipe.loss]


def made(name):
    torch.manual_seed(0)
    recipe = RECIPES[name](tiny_target(torch.float32), IDS, STEPS)
    with torch.no_grad():
        for values in recipe.net.parameters():
            values.add_(torch.randn_like(values) * 0.1)
    return recipe


def written_out(recipe, batch, done):
    """1 / anchors * sum over steps j of decay**j times -sum p log q; from 60 % of the run lam times that and 1 - lam
    times 1 - a, a = sum min(p, q), lam = exp(-3 a) without a gradient (2602.23881); where steps count as they are
    reached, times (1 + a) / 2 of every step before; DSpark's confidence besides."""
    total, confidences, reached = torch.zeros(()), [], [1.0] * len(batch.anchors)
    reads = recipe.read(batch)
    for step, read in enumerate(reads):
        logits, losses = logits_of(read, recipe.rows), []
        for place in range(len(batch.anchors)):
            row = int(batch.anchors[place]) + 1 + step
            if row >= int(batch.ends[place]):
                continue
            p = (batch.normed[row].float() @ recipe.target.head.T).softmax(-1)[torch.from_numpy(IDS).long()]
            p = p / p.sum()
            log_q = logits[place].log_softmax(-1)
            a = torch.minimum(p, log_q.exp()).sum()
            cross, lam = -(p * log_q).sum(), torch.exp(-3 * a.detach()) if done >= 0.6 else 1.0
            weight = recipe.decay**step * reached[place] / len(batch.anchors)
            total = total + weight * (lam * cross + (1 - lam) * (1 - a))
            if recipe.as_reached:
                reached[place] *= (1 + float(a.detach())) / 2
            if recipe.family == "dspark":
                token = batch.tokens(step)[place : place + 1]
                says = recipe.net.confidence(read.hidden[place : place + 1].detach(), token)[0]
                losses.append(functional.binary_cross_entropy_with_logits(says, a.detach()))
        confidences += [torch.stack(losses).mean()] if losses else []
    return total + torch.stack(confidences).mean() if confidences else total


@pytest.mark.parametrize("done", [0.0, 0.8])
@pytest.mark.parametrize("name", SHARED)
def test_loss_and_step_are_written_out(tmp_path, name, done):
    recipe, twin, store = made(name), made(name), tiny_store(tmp_path, tiny_target(), num=2)
    found = recipe.loss(store, store.documents[:2], Moment(done, 1.0, torch.Generator()))
    expected = written_out(twin, make_batch(store, store.documents[:2], twin.config.taps, 1.0), done)
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    for (label, mine), other in zip(recipe.net.named_parameters(), twin.net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=label, atol=2e-5, rtol=2e-3)


@pytest.mark.parametrize("length", [7, 5])
@pytest.mark.parametrize("name", RECIPES)
def test_texts_that_are_shorter_than_the_draft_have_a_loss(tmp_path, name, length):
    """After a prompt of 4 tokens, 7 leave two anchors and no third step, 5 no anchor at all."""
    recipe, store, target = made(name), TapStore(tmp_path, TAPS), tiny_target()
    texts = [conversation(i, False, length=length) for i in range(2)]
    store.add(texts, [states_of(one, target) for one in texts])
    loss = recipe.loss(store, store.documents, Moment(0.8, 1.0, torch.Generator()))
    assert torch.isfinite(loss)
    loss.backward()
    assert recipe.evaluate(store, store.documents).eal >= 1


def test_there_are_such_recipes():
    assert set(SHARED) == {"eagle3", "eagle3_one_norm", "p_eagle", "dspark", "mlp_speculator", "medusa", "blockwise"}


def test_only_rows_of_named_tokens_learn_a_bias(tmp_path):
    torch.manual_seed(0)
    recipe, store = (
        RECIPES["dspark"](tiny_target(torch.float32), IDS, STEPS),
        tiny_store(tmp_path, tiny_target(), num=2),
    )
    optimiser, table = Optimiser(recipe.net), recipe.net.markov_head.markov_w1.weight
    named = torch.zeros(VOCAB, dtype=torch.bool)
    named[torch.from_numpy(IDS).long()] = True
    before = table.detach().clone()
    for _ in range(2):  # the first moves the other half of the product, which begins at 0
        recipe.loss(store, store.documents[:2], Moment(0.0, 1.0, torch.Generator())).backward()
        optimiser.step(0.01)
    assert not table[~named].any() and bool((table[named] != before[named]).any())
