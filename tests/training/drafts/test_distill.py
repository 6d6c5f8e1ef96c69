"""DistillSpec: its loss and one step are the paper's, it learns by heart, ends and goes on bit for bit, and drafts."""

import numpy as np
import pytest
import torch

from paceline.errors import InvalidParameter
from paceline.training.drafts.distill import DistillRecipe, runs_of
from paceline.training.drafts.divergences import DIVERGENCES
from paceline.training.lora import add_lora
from paceline.training.run.loop import LoopSettings, Trainer
from paceline.training.run.trainee import Moment
from tests.training.drafts.test_divergences import FORMULAS
from tests.training.drafts.tiny import LENGTH, PROMPT, net, teacher, tiny_store

HEAD = torch.from_numpy(net().head.numpy())


def recipe(divergence="forward_kl", on_policy=0.0, layers=(0,), lora_rank=None):
    draft = net(layers)
    if lora_rank is not None:
        torch.manual_seed(0)
        add_lora(draft, lora_rank)
    return DistillRecipe(draft, HEAD, divergence, on_policy, teacher(), (29,), num_steps=3)


def moment(share=1.0):
    return Moment(0.0, share, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", list(FORMULAS))
def test_loss_and_step_are_those_of_equation_3(tmp_path, name):
    """1 / documents * sum over them of 1 / |y| * sum over t of D(p_t, q_t), with automatic gradients of plain torch."""
    store = tiny_store(tmp_path)
    documents, made, plain = store.documents[:3], recipe(name), net()
    made.loss(store, documents, moment()).backward()
    total = torch.zeros(())
    for one in documents:
        ids = one.conversation.ids
        normed = torch.from_numpy(store.rows([one], [1])[:, 0].view(np.int16)).view(torch.bfloat16).float()
        states = plain(torch.from_numpy(ids[:-1].astype(np.int64)), [LENGTH - 1])[PROMPT - 1 :]
        p, q = (normed[PROMPT - 1 :] @ HEAD.T).softmax(-1), (states @ HEAD.T).softmax(-1)
        total = total + FORMULAS[name](p, q).mean() / len(documents)
    total.backward()
    torch.testing.assert_close(made.loss(store, documents, moment()).detach(), total.detach())
    for (mine, theirs), known in zip(made.net.named_parameters(), dict(plain.named_parameters()).values(), strict=True):
        torch.testing.assert_close(theirs.grad, known.grad, msg=mine, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(theirs - 0.1 * theirs.grad, known - 0.1 * known.grad)


def test_whole_texts_are_learnt_from_where_they_are_asked_for(tmp_path):
    """Every row takes a loss then, at the place after the first token too; on-policy texts as well."""
    store = tiny_store(tmp_path)
    for on_policy in (0.0, 1.0):
        made = DistillRecipe(net(), HEAD, "forward_kl", on_policy, teacher(), (29,), 3, whole_texts=True)
        texts = made._texts(store, store.documents[:3], moment())
        assert texts.labelled.tolist() == list(range(sum(texts.lengths)))
        torch.testing.assert_close(texts.weights.sum(), torch.tensor(1.0))
    assert len(recipe()._texts(store, store.documents[:3], moment()).labelled) == 3 * (LENGTH - PROMPT)


def test_on_policy_texts_are_the_drafts_own_under_the_targets_law(tmp_path):
    store, made = tiny_store(tmp_path), recipe(on_policy=1.0)
    texts = made._texts(store, store.documents[:4], moment())
    given = [one.conversation.ids[:PROMPT].tolist() for one in store.documents[:4]]
    own = np.split(texts.tokens.numpy(), np.cumsum(texts.lengths)[:-1])
    assert [one[:PROMPT].tolist() for one in own] == given
    assert any(one.tolist() != store.documents[i].conversation.ids[:-1].tolist() for i, one in enumerate(own))
    torch.testing.assert_close(texts.normed, teacher()(own))
    torch.testing.assert_close(texts.weights.sum(), torch.tensor(1.0))


def trained(tmp_path, store, divergence, on_policy, steps, layers=(0,), lora_rank=None, **more):
    made, settings = recipe(divergence, on_policy, layers, lora_rank), LoopSettings(num_steps=steps, rows=100, **more)
    run = Trainer(made, store, settings, tmp_path)
    run.run()
    return run


@pytest.mark.parametrize(
    ("divergence", "on_policy", "lora_rank", "steps"),
    [("forward_kl", 0.0, None, 40), ("tvd++", 0.5, None, 40), ("forward_kl", 0.5, 16, 80),
     ("reverse_kl", 0.0, None, 60), ("jsd", 0.0, None, 60), ("tvd", 0.0, None, 40)],
)  # fmt: skip
def test_a_draft_learns_a_text_by_heart(tmp_path, quick_rise, divergence, on_policy, lora_rank, steps):
    store = tiny_store(tmp_path / "taps", 2, 1)
    own = [one for one in store.documents if not one.conversation.is_held_out]
    before = recipe(layers=(0, 1)).evaluate(store, own).sampled[0]
    run = trained(tmp_path / "run", store, divergence, on_policy, steps, (0, 1), lora_rank, rate=2e-2, share=1.0)
    run.trainee.net.load_state_dict(run.mean.weights)
    assert run.trainee.evaluate(store, own).sampled[0] > 0.95 > 1.15 * before


@pytest.mark.parametrize(("on_policy", "lora_rank"), [(0.0, None), (0.5, None), (0.5, 2)])
def test_an_ended_run_goes_on_bit_for_bit(tmp_path, on_policy, lora_rank):
    store = tiny_store(tmp_path / "taps")
    whole = trained(tmp_path / "a", store, "jsd", on_policy, 5, lora_rank=lora_rank)
    first = Trainer(
        recipe("jsd", on_policy, lora_rank=lora_rank), store, LoopSettings(num_steps=5, rows=100), tmp_path / "b"
    )
    for _ in range(3):
        first.step()
    first.save()
    second = trained(tmp_path / "b", tiny_store(tmp_path / "taps2"), "jsd", on_policy, 5, lora_rank=lora_rank)
    assert second.progress.step == 5
    for name, values in whole.trainee.net.state_dict().items():
        assert torch.equal(values, second.trainee.net.state_dict()[name]), name


def test_figures_are_one_less_the_distance(tmp_path):
    store, made = tiny_store(tmp_path), recipe("tvd")
    sampled = [one for one in store.documents if one.conversation.temperature]
    found = made.evaluate(store, store.documents)
    distance = np.mean([float(made.loss(store, [one], moment()).detach()) for one in sampled])
    assert found.sampled == pytest.approx([1 - distance] * 3, abs=1e-5)
    assert len(found.greedy) == 3 and 1 <= found.replayed <= 4


def test_runs_of_hits():
    hits = torch.tensor([True, False, True])
    assert runs_of(hits, 2).tolist() == [[1, 0], [0, 1], [1, -1]]


@pytest.mark.parametrize("name", DIVERGENCES)
def test_every_distance_trains(tmp_path, name):
    made, store = recipe(name, 1.0), tiny_store(tmp_path, 2, 1)
    made.loss(store, store.documents, moment(0.5)).backward()
    assert all(torch.isfinite(one.grad).all() for one in made.net.parameters())


def test_bad_wishes_are_refused():
    with pytest.raises(InvalidParameter, match="from 0 to 1"):
        DistillRecipe(net(), HEAD, on_policy=2.0)
    with pytest.raises(InvalidParameter, match="target's states"):
        DistillRecipe(net(), HEAD, on_policy=0.5)
    with pytest.raises(InvalidParameter, match="same family"):
        DistillRecipe(net(), torch.zeros(31, 32))
