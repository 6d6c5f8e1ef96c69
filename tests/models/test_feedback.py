"""SPIRe's network: row by row as its equations say, many rows at once by as many passes, a memory of one size."""

import numpy as np
import pytest
import torch

from paceline.errors import CorruptWeights
from paceline.models.torch_executor.feedback import KEY, FeedbackNet, Sparse, feedback_net
from paceline.models.torch_executor.feedback_draft import SLACK, FeedbackDraft
from tests.training.drafts.tiny import TARGET

SPARSE = Sparse(window=4, num_sinks=2)
TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])


def net(layers=(0, 2), sparse=SPARSE, mixed=True):
    """With much of the memory from other layers."""
    torch.manual_seed(0)
    found = FeedbackNet(TARGET, layers, sparse)
    found.embedding, found.head = found.embedding.float(), found.head.float()
    if mixed:
        with torch.no_grad():
            found.mix.copy_(torch.randn_like(found.mix))
    return found


def row_by_row(made, tokens):
    """Fan et al. 2021, equation 2, with sinks and a window: a loop over rows, layers, heads and visible rows."""
    mix, states, found = made.mix.view(len(made.layers), -1).softmax(-1), [], []
    for t, token in enumerate(tokens.tolist()):
        x, place = [made.embedding[token]], torch.tensor([t])
        seen = [s for s in range(t) if s < SPARSE.num_sinks or t - s < SPARSE.window]
        for number, layer in enumerate(made.layers):
            attention, normed = layer.self_attn, layer.input_layernorm(x[-1])[None]
            keys, values = attention.keys_values(normed, place)
            for s in seen:
                memory = sum(weight * one for weight, one in zip(mix[number], states[s], strict=True))
                key, value = attention.keys_values(layer.input_layernorm(memory)[None], torch.tensor([s]))
                keys, values = torch.cat([keys, key]), torch.cat([values, value])
            mixed, groups = [], attention.num_heads // attention.num_key_heads
            for head, query in enumerate(attention.queries(normed, place)[0]):
                weights = (keys[:, head // groups] @ query / len(query) ** 0.5).softmax(0)
                mixed.append(weights @ values[:, head // groups])
            x.append(layer.leave(x[-1][None], torch.cat(mixed)[None])[0])
        states.append(x)
        found.append(made.norm(x[-1]))
    return torch.stack(found)


def test_as_many_passes_as_rows_are_the_loop_over_rows():
    made = net()
    torch.testing.assert_close(made(TOKENS, [len(TOKENS)], len(TOKENS)), row_by_row(made, TOKENS))


def test_passes_come_nearer_to_the_loop():
    made = net()
    exact = row_by_row(made, TOKENS)
    far = [float((made(TOKENS, [len(TOKENS)], passes) - exact).abs().max().detach()) for passes in (1, 3, 6)]
    assert far[0] > far[1] > far[2]


def test_texts_are_read_as_alone():
    made, parts = net(), [TOKENS[:4], TOKENS[4:]]
    together = made(TOKENS, [4, len(TOKENS) - 4])
    torch.testing.assert_close(together, torch.cat([made(part, [len(part)]) for part in parts]))


def test_it_begins_as_the_layers_it_was_made_from():
    """Own inputs alone as memory, and a window over everything: the pruned target, exactly."""
    from paceline.training.drafts.net import DraftNet

    made, plain = net((0, 2), Sparse(64, 0), mixed=False), DraftNet(TARGET, (0, 2))
    with torch.no_grad():
        made.mix.mul_(20)
    plain.embedding = plain.embedding.float()
    torch.testing.assert_close(made(TOKENS, [len(TOKENS)]), plain(TOKENS, [len(TOKENS)]), atol=1e-4, rtol=1e-4)


def test_steps_go_on_from_a_reading_and_are_the_loop():
    """A text that is read from its beginning by steps alone has the loop's logits, over sinks, window and ring."""
    made = net()
    draft = FeedbackDraft(made, 30)
    tokens = torch.cat([TOKENS] * 8)
    memory, expected = draft.new_memory(), row_by_row(made, tokens) @ made.head.T
    assert len(tokens) > SPARSE.num_sinks + SPARSE.window + SLACK
    found = [draft.step([memory], [token], [place])[0] for place, token in enumerate(tokens.tolist())]
    np.testing.assert_allclose(np.stack(found), expected.detach().numpy(), atol=2e-4)


def test_a_text_read_at_once_is_gone_on_with():
    """Near the loop: a few passes over the sinks and the window."""
    made = net(mixed=False)
    draft, memory, slow = FeedbackDraft(made, 30), None, None
    memory, slow = draft.new_memory(), draft.new_memory()
    tokens = TOKENS.tolist() * 2
    draft.read(memory, tokens)
    for place, token in enumerate(tokens):
        draft.step([slow], [token], [place])
    found, exact = (draft.step([one], [7], [len(tokens)])[0] for one in (memory, slow))
    assert np.corrcoef(found, exact)[0, 1] > 0.9
    assert sorted(one for one in memory.positions.tolist() if one >= 0)[:2] == [0, 1]


def test_rows_taken_back_leave_no_trace():
    draft = FeedbackDraft(net(), 30)
    one, other = draft.new_memory(), draft.new_memory()
    for place, token in enumerate(TOKENS.tolist()):
        draft.step([one, other], [token, token], [place, place])
    for place in range(len(TOKENS), len(TOKENS) + SLACK):
        draft.step([one], [8], [place])
    again = draft.step([one, other], [5, 5], [len(TOKENS)] * 2)
    np.testing.assert_array_equal(again[0], again[1])
    assert one.num_bytes == draft.new_memory().num_bytes


def test_a_written_memory_is_read_back_and_a_wrong_one_refused():
    made = net(None)
    again = feedback_net(TARGET, {KEY: made.card()})
    torch.testing.assert_close(again.mix, made.mix)
    assert again.sparse == SPARSE
    for card in ({}, {KEY: {"window": 4}}, {KEY: made.card() | {"mix": [1.0]}}):
        with pytest.raises(CorruptWeights, match="feedback"):
            feedback_net(TARGET, card)
