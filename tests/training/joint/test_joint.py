"""Heads and target trained together: the papers' loss, a merged target that does the same, runs that go on."""

import numpy as np
import pytest
import torch

from paceline.models.heads.fingerprint import TargetPrint
from paceline.training.drafts.net import DraftNet
from paceline.training.heads.recipes import RECIPES
from paceline.training.heads.target import Target
from paceline.training.joint.recipe import LAMBDA_0, WARM_UP, JointRecipe
from paceline.training.lora import LoraLinear, add_lora, merged_state
from paceline.training.run.checkpoint import read_checkpoint
from paceline.training.run.loop import LoopSettings, Trainer
from paceline.training.run.trainee import Moment
from tests.training.drafts.tiny import CONFIG, LENGTH, PROMPT, TARGET, net, tiny_store

IDS = np.arange(0, 30, dtype=np.int32)
STEPS = 2


def made(family="medusa", ids=IDS, seed=0):
    torch.manual_seed(seed)
    target = net(None)
    about = TargetPrint("tiny", CONFIG.hidden_size, CONFIG.num_hidden_layers, CONFIG.vocab_size)
    tables = Target(about, CONFIG, target.embedding, target.head, torch.from_numpy(TARGET.tensor("model.norm.weight")))
    recipe = JointRecipe(target, RECIPES[family](tables, ids, STEPS), rank=3)
    with torch.no_grad():
        for parameter in recipe.net.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return recipe


def moment(done=WARM_UP):
    return Moment(done, 1.0, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ["medusa", "blockwise"])
@pytest.mark.parametrize("ids", [IDS, IDS[::2].copy()])
def test_loss_and_step_are_the_papers(tmp_path, family, ids):
    """mean over texts of mean over places of KL(p_original || p) + LAMBDA_0 sum of decay**k * -log p_k(y), k = 1, 2."""
    recipe, twin, store = made(family, ids), made(family, ids), tiny_store(tmp_path)
    documents = store.documents[:2]
    loss = recipe.loss(store, documents, moment())
    total, decay, known = torch.zeros(()), recipe.recipe.decay, ids.tolist()
    for one in documents:
        tokens = torch.from_numpy(one.conversation.ids.astype(np.int64))
        first = net(None)(tokens[:-1], [LENGTH - 1]).detach()
        states = twin._target(tokens[:-1], [LENGTH - 1])
        for place in range(PROMPT - 1, LENGTH - 1):
            p = (first[place] @ twin._target.head.T).softmax(-1)
            log_q = (states[place] @ twin._target.head.T).log_softmax(-1)
            at_place = (p * (p.log() - log_q)).sum()
            for k in range(STEPS):
                if place + 2 + k < LENGTH and int(tokens[place + 2 + k]) in known:
                    row = (twin._heads.read(k, states[place : place + 1]) @ twin.recipe.rows.T).log_softmax(-1)[0]
                    at_place = at_place - LAMBDA_0 * decay ** (k + 1) * row[known.index(int(tokens[place + 2 + k]))]
            total = total + at_place / (LENGTH - PROMPT) / len(documents)
    torch.testing.assert_close(loss, total)
    loss.backward()
    total.backward()
    theirs = dict(twin.net.named_parameters())
    trained = {name: one for name, one in recipe.net.named_parameters() if one.requires_grad}
    assert any(name.endswith(".up") for name in trained) and any(name.startswith("heads.") for name in trained)
    for name, mine in trained.items():
        torch.testing.assert_close(mine.grad, theirs[name].grad, msg=name, atol=1e-6, rtol=1e-3)


def test_what_the_number_format_of_the_text_did_is_neither_learnt_nor_called_drift(tmp_path):
    """A target that nothing was done to is where it was, whatever wrote the text."""
    recipe, store = made(), tiny_store(tmp_path)
    for layer in recipe._target.modules():
        if isinstance(layer, LoraLinear):
            layer.up.data.zero_()
    for rows in store._maps.values():
        assert rows.any()
    store._maps = {number: np.zeros_like(rows) for number, rows in store._maps.items()}
    assert recipe.loss(store, store.documents[:1], moment(0.0)).abs() < 1e-6
    drift = recipe.drift(store, store.documents)
    assert abs(drift["kl"]) < 1e-6 and drift["other_best_token"] == 0
    recipe._target.layers[0].self_attn.q_proj.up.data.fill_(1.0)
    assert recipe.drift(store, store.documents)["kl"] > 1e-4


@pytest.mark.parametrize("rounded", [-1e-7, -0.0])
def test_a_drift_is_never_below_0(tmp_path, rounded):
    """KL of equal laws is rounded to a little below 0, and a card said -0.0."""
    recipe, store = made(), tiny_store(tmp_path)
    recipe._criterion = lambda logits, target: (torch.full((len(logits),), rounded), logits, logits)
    assert str(recipe.drift(store, store.documents)["kl"]) == "0.0"


def test_heads_count_for_nothing_at_the_start(tmp_path):
    recipe, store = made(), tiny_store(tmp_path)
    recipe.loss(store, store.documents[:1], moment(0.0)).backward()
    assert all(not one.grad.any() for one in recipe._heads.parameters() if one.grad is not None)


def test_a_merged_network_does_the_same():
    torch.manual_seed(0)
    changed, plain = net(None), net(None)
    tokens = torch.arange(9)
    before = plain(tokens, [9])
    add_lora(changed, 2)
    torch.testing.assert_close(changed(tokens, [9]), before)
    for layer in changed.modules():
        if isinstance(layer, LoraLinear):
            layer.up.data.normal_(std=0.1)
    after = changed(tokens, [9])
    assert (after - before).abs().max() > 0.01
    plain.load_state_dict(merged_state(changed))
    torch.testing.assert_close(plain(tokens, [9]), after)


def run(folder, store, steps, family="medusa", **more):
    found = Trainer(made(family), store, LoopSettings(num_steps=steps, rows=60, share=1.0, **more), folder)
    return found


@pytest.mark.parametrize("family", ["medusa", "blockwise"])
def test_an_ended_run_goes_on_bit_for_bit(tmp_path, family):
    store = tiny_store(tmp_path / "taps")
    whole = run(tmp_path / "a", store, 5, family)
    whole.run()
    first = run(tmp_path / "b", store, 5, family)
    for _ in range(3):
        first.step()
    first.save()
    assert read_checkpoint(tmp_path / "b")["draft_ids"].tolist() == IDS.tolist()  # type: ignore[index]
    second = run(tmp_path / "b", store, 5, family)
    second.run()
    for name, values in whole.trainee.net.state_dict().items():
        assert torch.equal(values, second.trainee.net.state_dict()[name]), name


@pytest.mark.parametrize("family", ["medusa", "blockwise"])
def test_heads_and_target_learn_together_and_the_target_changes(tmp_path, quick_rise, family):
    """By heart: the heads name nine tokens of ten that the changed target says, and drift is told."""
    store = tiny_store(tmp_path / "taps", 2, 1, own_text=True)
    own = [one for one in store.documents if not one.conversation.is_held_out]
    found = run(tmp_path / "run", store, 60, family, rate=2e-2)
    before = found.trainee.evaluate(store, own)
    found.run()
    found.trainee.net.load_state_dict(found.mean.weights)
    after = found.trainee.evaluate(store, own)
    assert after.greedy[0] > 0.95 and after.replayed > before.replayed
    drift = found.trainee.drift(store, own)
    assert drift["kl"] > 0 and 0 <= drift["other_best_token"] <= 1
    ranks = found.trainee.rank_accuracies(store, own)
    assert len(ranks) == STEPS and all(sum(row) <= 1 + 1e-6 for row in ranks) and ranks[0][0] > 0.5
    merged, heads = found.trainee.split(found.mean.weights)
    plain = DraftNet(TARGET)
    plain.load_state_dict(merged)
    assert set(heads) == set(found.trainee._heads.state_dict())
