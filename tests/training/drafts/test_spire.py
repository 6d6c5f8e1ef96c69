"""SPIRe's draft in training: the loss of DistillSpec over its own rows, by heart, and on and off bit for bit."""

import numpy as np
import pytest
import torch

from paceline.errors import InvalidParameter
from paceline.models.feedback import Sparse
from paceline.models.torch_executor import feedback
from paceline.models.torch_executor.feedback import FeedbackNet
from paceline.training.drafts.distill import DistillRecipe
from paceline.training.run.loop import LoopSettings, Trainer
from paceline.training.run.trainee import Moment
from tests.models.test_feedback import SPARSE, row_by_row
from tests.training.drafts.tiny import LENGTH, PROMPT, TARGET, net, teacher, tiny_store

HEAD = torch.from_numpy(net().head.numpy())


def recipe(layers=(0,), sparse=SPARSE):
    made = FeedbackNet(TARGET, layers, sparse)
    made.embedding, made.head = made.embedding.float(), made.head.float()
    return DistillRecipe(made, HEAD, num_steps=3)


@pytest.mark.parametrize("kept", [8, 1], ids=["kept", "computed twice"])
def test_loss_and_step_are_the_equations(tmp_path, monkeypatch, kept):
    """E of 1 / |y| sum KL(p_t || q_t), q by the loop over rows, layers, heads (Zhou et al. 2024; Fan et al. 2021)."""
    store, made, twin = tiny_store(tmp_path), recipe((0, 2)), recipe((0, 2)).net
    monkeypatch.setattr(FeedbackNet.forward, "__defaults__", (LENGTH,))
    monkeypatch.setattr(feedback, "_MOST_KEPT", kept)
    [one] = store.documents[:1]
    loss = made.loss(store, [one], Moment(0.0, 1.0, torch.Generator().manual_seed(0)))
    normed = torch.from_numpy(store.rows([one], [1])[:, 0].view(np.int16)).view(torch.bfloat16).float()
    states = row_by_row(twin, torch.from_numpy(one.conversation.ids[:-1].astype(np.int64)))[PROMPT - 1 :]
    p, log_q = (normed[PROMPT - 1 :] @ HEAD.T).softmax(-1), (states @ HEAD.T).log_softmax(-1)
    expected = (p * (p.log() - log_q)).sum(-1).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for (name, mine), other in zip(made.net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=name, atol=1e-6, rtol=1e-3)
    assert made.net.mix.grad.abs().max() > 0


def run(folder, store, steps, layers=(0,), **more):
    return Trainer(recipe(layers), store, LoopSettings(num_steps=steps, rows=60, share=1.0, **more), folder)


def test_a_draft_learns_a_text_by_heart(tmp_path, quick_rise):
    store = tiny_store(tmp_path / "taps", 2, 1)
    own = [one for one in store.documents if not one.conversation.is_held_out]
    done = run(tmp_path / "run", store, 45, (0, 1), rate=2e-2)
    before = done.trainee.evaluate(store, own).sampled[0]
    done.run()
    done.trainee.net.load_state_dict(done.mean.weights)
    assert done.trainee.evaluate(store, own).sampled[0] > 0.95 > before


def test_an_ended_run_goes_on_bit_for_bit(tmp_path):
    store = tiny_store(tmp_path / "taps")
    whole = run(tmp_path / "a", store, 4)
    whole.run()
    first = run(tmp_path / "b", store, 4)
    first.step()
    first.step()
    first.save()
    second = run(tmp_path / "b", store, 4)
    second.run()
    for name, values in whole.trainee.net.state_dict().items():
        assert torch.equal(values, second.trainee.net.state_dict()[name]), name


def test_layers_of_the_target_draft_better_than_random_ones(tmp_path, quick_rise):
    """Pruned initialisation: after the same few updates."""
    store, found = tiny_store(tmp_path / "taps", 4, 2), []
    for is_pruned in (True, False):
        torch.manual_seed(0)
        done = run(tmp_path / str(is_pruned), store, 5, (0, 1), rate=2e-3)
        if not is_pruned:
            for one in done.trainee.net.layers.parameters():
                torch.nn.init.normal_(one, std=0.02) if one.ndim > 1 else None
        done.run()
        found.append(done.trainee.evaluate(store, store.documents).sampled[0])
    assert found[0] > found[1]


def test_texts_of_its_own_are_refused():
    with pytest.raises(InvalidParameter, match="memory"):
        DistillRecipe(FeedbackNet(TARGET, (0,), Sparse(4, 1)), HEAD, on_policy=0.5, teacher=teacher())
