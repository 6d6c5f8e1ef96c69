"""The network that is trained says what the executor says of the same weights, and goes on as it says."""

import numpy as np
import pytest
import torch

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel
from paceline.models.torch_executor.heads.attention import Keys
from paceline.training.drafts.net import DraftNet, spread_layers
from paceline.training.drafts.texts import continued
from tests.fakes import RandomCheckpoint, mixture_config, small_config
from tests.training.drafts.tiny import TARGET, net


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logits_are_the_executors(family):
    checkpoint = RandomCheckpoint(small_config(family, tie_word_embeddings=family != "qwen2"))
    found = DraftNet(checkpoint)
    found.embedding = torch.from_numpy(checkpoint.tensor("model.embed_tokens.weight"))
    rng, texts = np.random.default_rng(0), []
    for length in (9, 21):
        texts.append(rng.integers(0, 131, length))
    states = found(torch.from_numpy(np.concatenate(texts)), [9, 21]).detach()
    model = TorchModel(checkpoint)
    rows = build_rows([Part([0], 0, texts[0].tolist()), Part([1, 2], 0, texts[1].tolist())])
    head = "model.embed_tokens.weight" if family != "qwen2" else "lm_head.weight"
    expected = model.forward(rows, model.new_cache(3)).logits
    np.testing.assert_allclose(states.numpy() @ checkpoint.tensor(head).T, expected, atol=2e-4)


def test_one_token_more_is_a_longer_text():
    draft, tokens = net((0, 2)), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    kept: list[Keys] = []
    draft(tokens[:6], [4, 2], kept)
    cache = [Keys(*(_by_document(one) for one in keys)) for keys in kept]
    with torch.no_grad():
        found = draft.step(tokens[6:], torch.tensor([4, 2]), cache)
        whole = draft(torch.tensor([3, 1, 4, 1, 2, 5, 9, 6]), [5, 3])
    torch.testing.assert_close(found, whole[[4, 7]])


def _by_document(rows):
    padded = torch.zeros(2, 6, *rows.shape[1:])
    padded[0, :4], padded[1, :2] = rows[:4], rows[4:]
    return padded


def test_a_draft_goes_on_by_its_own_law_and_ends():
    draft, prompts = net(), [np.array([1, 2, 3], np.int32), np.array([7], np.int32)]
    random = torch.Generator().manual_seed(0)
    found = continued(draft, prompts * 400, [2, 1] * 400, (5,), random)
    first = np.bincount([one[3] for one in found[::2]], minlength=30) / 400
    law = (draft(torch.tensor([1, 2, 3]), [3])[-1] @ draft.head.T).softmax(-1).detach().numpy()
    assert np.abs(first - law).sum() < 0.35 and np.abs(first - law).max() < 0.09
    assert all(len(one) == 2 for one in found[1::2])
    assert all(len(one) == 4 for one in found[::2] if one[3] == 5) and any(len(one) == 5 for one in found[::2])


def test_rows_that_pad_the_table_are_never_said():
    draft, random = net(), torch.Generator().manual_seed(0)
    found = continued(draft, [np.array([1], np.int32)] * 100, [2] * 100, (), random, vocab_size=5)
    assert max(int(one[1:].max()) for one in found) == 4


def test_layers_are_spread():
    assert spread_layers(30, 4) == [0, 10, 19, 29] and spread_layers(5, 1) == [0]
    assert spread_layers(3, 3) == [0, 1, 2]


def test_what_is_not_trained_is_refused():
    with pytest.raises(UnsupportedModel, match="without experts"):
        DraftNet(RandomCheckpoint(mixture_config()))
    with pytest.raises(InvalidParameter, match="count from 0 to 2"):
        DraftNet(TARGET, [7])
