"""SPIRe's network: row by row as its equations say, many rows at once by as many passes; at work on every executor."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.errors import CorruptWeights
from paceline.models.base import PAGE_SIZE
from paceline.models.feedback import KEY, PASSES, FeedbackWeights, Sparse, read_card
from paceline.models.feedback_draft import SLACK, FeedbackDraft
from paceline.models.files.save_folder import CARD
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.torch_executor.feedback import FeedbackNet
from paceline.models.torch_executor.model import TorchModel
from tests.fakes import RandomCheckpoint, small_config

TARGET = RandomCheckpoint(
    small_config(vocab_size=30, hidden_size=32, intermediate_size=64, num_attention_heads=4, head_dim=16), seed=4
)
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
                size = [one.square().mean().sqrt() for one in states[s]]
                parts = [weight * one / own for weight, one, own in zip(mix[number], states[s], size, strict=True)]
                memory = size[number] * sum(parts)
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


class Written:
    """A network's layers as a checkpoint of their own, its card in a folder."""

    storage = "F32"

    def __init__(self, made, path):
        self.path, self.weight_files = path, (path,)
        (path / CARD).write_text(json.dumps({KEY: made.card()}))
        self._tensors = made.tensors(made.state_dict())
        self.config = replace(TARGET.config, num_hidden_layers=len(made.layers))
        parts = b"".join(each.tobytes() for each in self._tensors.values())
        self.fingerprint = hashlib.sha256(parts).hexdigest()

    def names(self):
        return tuple(self._tensors)

    def tensor(self, name):
        return self._tensors[name]


EXECUTORS = {"numba": lambda written: NumbaModel(written, "float32", num_threads=1), "torch": TorchModel}


@pytest.fixture(params=EXECUTORS)
def draft_of(request, tmp_path):
    """A network at work."""

    def at_work(made, num_texts=1):
        written = Written(made, tmp_path)
        sparse, mix = read_card(written)
        return FeedbackDraft(EXECUTORS[request.param](written), FeedbackWeights(written, mix), sparse, num_texts)

    return at_work


def test_steps_are_the_loop(draft_of):
    """A text that is read from its beginning by steps alone has the loop's logits, over sinks, window and ring."""
    made = net()
    draft, tokens = draft_of(made), torch.cat([TOKENS] * 9)
    memory, expected = draft.new_memory(), row_by_row(made, tokens) @ made.head.T
    assert len(tokens) > SPARSE.num_sinks + SPARSE.window + SLACK + PAGE_SIZE
    found = [draft.step([memory], [token], [place])[0].copy() for place, token in enumerate(tokens.tolist())]
    np.testing.assert_allclose(np.stack(found), expected.detach().numpy(), atol=2e-4)


@pytest.mark.parametrize("sparse", [Sparse(40, 4), Sparse(37, 0), Sparse(16, 20)])
def test_whole_pages_and_single_slots_are_the_window(draft_of, sparse):
    """The rows that are seen are those that the network lets be seen, wherever the window begins."""
    made, tokens = net(sparse=sparse), torch.cat([TOKENS] * 18)
    draft, size = draft_of(made), len(tokens)
    memory = draft.new_memory()
    for place in range(size):
        row = draft._row(memory, 0, place)
        pages = [slot for page in row.pages.tolist() for slot in range(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)]
        seen = torch.arange(place)[made.sees(torch.tensor([place]), torch.arange(place))[0]]
        assert sorted([*pages, *row.slots]) == sorted(draft._slots(memory, np.array([*seen.tolist(), place])).tolist())
        assert row.num_keys == len(pages)


@pytest.mark.parametrize("size", [1, 3, 6, 11, 30])
def test_a_text_read_at_once_has_the_networks_memory(draft_of, size):
    """The passes of `read` are those of training; a row after it sees what they left."""
    made = net()
    draft, memory, tokens = draft_of(made), None, torch.cat([TOKENS] * 3)[:size]
    memory, first = draft.new_memory(), max(size - SPARSE.window, 0)
    draft.read(memory, tokens.tolist())
    places = torch.tensor([*range(min(SPARSE.num_sinks, first)), *range(first, size)])
    _, kept = made.read(tokens[places], places, [len(places)], PASSES)
    keys, values = draft._cache.read(draft._slots(memory, places.numpy()).tolist())
    np.testing.assert_allclose(keys, torch.stack([one.keys for one in kept]).detach(), atol=1e-4)
    np.testing.assert_allclose(values, torch.stack([one.values for one in kept]).detach(), atol=1e-4)


def test_a_text_read_at_once_is_gone_on_with(draft_of):
    """Near the loop: a few passes over the sinks and the window."""
    draft, tokens = draft_of(net(mixed=False), 2), TOKENS.tolist() * 2
    memory, slow = draft.new_memory(), draft.new_memory()
    draft.read(memory, tokens)
    for place, token in enumerate(tokens):
        draft.step([slow], [token], [place])
    found, exact = (draft.step([one], [7], [len(tokens)])[0].copy() for one in (memory, slow))
    assert np.corrcoef(found, exact)[0, 1] > 0.9


def test_rows_taken_back_leave_no_trace(draft_of):
    draft = draft_of(net(), 2)
    one, other = draft.new_memory(), draft.new_memory()
    for place, token in enumerate(TOKENS.tolist()):
        draft.step([one, other], [token, token], [place, place])
    for place in range(len(TOKENS), len(TOKENS) + SLACK):
        draft.step([one], [8], [place])
    again = draft.step([one, other], [5, 5], [len(TOKENS)] * 2)
    np.testing.assert_array_equal(again[0], again[1])


def test_a_text_that_gets_shorter_after_a_reading_sees_nothing_that_was_not_read(draft_of):
    """The rows before the window of the reading are not there; others of the ring are of nobody."""
    draft, tokens = draft_of(net()), TOKENS.tolist() * 3
    memory = draft.new_memory()
    draft.read(memory, tokens)
    place = len(tokens) - SPARSE.window + 1
    row = draft._row(memory, 0, place)
    wanted = [*range(SPARSE.num_sinks), place - 1, place]
    assert row.slots == draft._slots(memory, np.array(wanted)).tolist() and not len(row.pages)


def test_room_grows_with_texts_and_is_given_back(draft_of):
    draft, made = draft_of(net()), []
    for number in range(5):
        made.append(draft.new_memory())
        for place, token in enumerate(TOKENS.tolist()):
            draft.step([made[-1]], [(token + number) % 30], [place])
    assert len({page for one in made for page in one.pages.tolist()}) == 5 * len(made[0].pages)
    alone = draft_of(net())
    for number, memory in enumerate(made):
        fresh = alone.new_memory()
        for place, token in enumerate(TOKENS.tolist()):
            alone.step([fresh], [(token + number) % 30], [place])
        expected = alone.step([fresh], [3], [len(TOKENS)])[0].copy()
        np.testing.assert_array_equal(draft.step([memory], [3], [len(TOKENS)])[0], expected)
        alone.release(fresh)
    size = draft._cache.num_pages
    for memory in made:
        draft.release(memory)
    assert {draft.new_memory().pages[0] for _ in range(5)} >= {memory.pages[0] for memory in made}
    assert draft._cache.num_pages == size


def test_a_part_of_the_vocabulary_is_scored_alike(tmp_path):
    """With half of the rows of its head the logits of these tokens are the same, whatever was scored before."""
    written = Written(net(), tmp_path)
    model = NumbaModel(written, "float32", num_threads=1)
    sparse, mix = read_card(written)
    drafts = [FeedbackDraft(model, FeedbackWeights(written, mix), sparse) for _ in range(2)]
    memories = [draft.new_memory() for draft in drafts]
    for place, token in enumerate(TOKENS.tolist()):
        drafts[1].score_with(model.with_vocabulary(15) if place % 2 else model)
        whole, part = (
            draft.step([memory], [token], [place])[0].copy() for draft, memory in zip(drafts, memories, strict=True)
        )
        np.testing.assert_array_equal(part, whole[: len(part)])
        assert len(part) == (15 if place % 2 else 30)


def test_a_written_memory_is_read_back_and_a_wrong_one_refused(tmp_path):
    made = net(None)
    written = Written(made, tmp_path)
    sparse, mix = read_card(written)
    np.testing.assert_array_equal(mix.reshape(-1), made.mix.detach().numpy())
    assert sparse == SPARSE
    changes = [
        {"mix": [1.0]}, {"mix": [float("nan")] * 12}, {"mix": "x"}, {"window": 0}, {"window": None}, {"num_sinks": -1},
        {"window": 10**9}, {"num_sinks": 10**30},
    ]  # fmt: skip
    cards = [{}, [], 3, {KEY: {"window": 4}}, {KEY: 3}, *({KEY: made.card() | each} for each in changes)]
    for text in ("{", "", "\ud800", *map(json.dumps, cards)):
        (tmp_path / CARD).write_text(text, errors="surrogatepass")
        with pytest.raises(CorruptWeights, match="feedback"):
            read_card(written)
    (tmp_path / CARD).unlink()
    for checkpoint, place in ((written, str(tmp_path)), (TARGET, "this draft")):
        with pytest.raises(CorruptWeights, match=f"^{place}: SPIRe needs .* no paceline.json beside it.*--sparse"):
            read_card(checkpoint)
