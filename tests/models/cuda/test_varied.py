"""Layers of different sizes (Gemma 4) on the GPU's executor: the reference's logits and texts."""

from dataclasses import replace

import gguf
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.setup.build import build_engine
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import NORMED
from paceline.models.cuda_executor import CudaModel
from paceline.models.cuda_executor.fused_layers import FusedBesideDense, FusedVariedAttention
from paceline.models.files.checkpoint import StoredBlocks
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel
from paceline.types import SamplingParams
from tests.fakes import ByteTokenizer, RandomCheckpoint, run_to_end, varied_config, varied_mixture_config

from .batches import TREE, mixed_batch, tokens_of

CONFIGS: dict[str, ModelConfig] = {
    name: replace(config, windows=tuple(window and 6 for window in config.windows))
    for name, config in (("dense", varied_config()), ("mixture", varied_mixture_config()))
}


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request):
    return RandomCheckpoint(CONFIGS[request.param])


def close(ours, want):
    np.testing.assert_allclose(ours, want, atol=5e-4, rtol=0)


@pytest.mark.parametrize("attention", ["triton", "sdpa", "by_position"])
def test_a_batch_of_everything_has_the_references_logits(checkpoint, attention):
    model, theirs = CudaModel(checkpoint, "cpu", "float32", attention=attention), TorchModel(checkpoint)
    rows = mixed_batch(18)
    found, want = (each.forward(rows, each.new_cache(16), (0, 2, NORMED)) for each in (model, theirs))
    close(found.logits, want.logits)
    for tap, states in found.taps.items():
        close(states, want.taps[tap])
    assert model.num_bytes == theirs.num_bytes


def test_chunks_decodes_and_trees_can_be_recorded_and_sum_in_one_order(checkpoint):
    model = CudaModel(checkpoint, "cpu", "float32", attention="triton", deterministic=True)
    theirs, tokens = TorchModel(checkpoint), tokens_of(10)
    assert model.passes.records
    caches, found = [each.new_cache(6) for each in (model, theirs)], []

    def both(*parts):
        rows = build_rows(list(parts))
        ours, want = (each.forward(rows, cache).logits for each, cache in zip((model, theirs), caches, strict=True))
        close(ours, want)
        return ours.copy()

    for first, last in ((0, 8), (8, 9), (9, 10)):
        found.append(both(Part((3, 0), first, tokens[first:last], logits="last"))[-1])
    both(Part((3, 0), 10, tokens_of(len(TREE), 1), TREE))
    for each in caches:
        each.move([49, 50], [80, 81])
    for ours, want in zip(*(each.read([80, 81]) for each in caches), strict=True):
        close(ours, want)
    whole = both(Part((2,), 0, tokens))
    assert np.array_equal(whole[7:], np.stack(found))


def test_attention_and_feed_forward_are_fused():
    stack = CudaModel(RandomCheckpoint(CONFIGS["mixture"]), "cpu", "float32", attention="triton").stack
    for layer in stack.layers.values():
        assert isinstance(layer.attention, FusedVariedAttention)
        assert isinstance(layer.feed_forward, FusedBesideDense)


class InBlocks(RandomCheckpoint):
    """Random weights whose matrices are stored in blocks of 32 numbers of 8 bits."""

    storage, storages = "Q8_0", frozenset({"Q8_0", "F32"})

    def blocks(self, name):
        values = self._tensors[name]
        if values.ndim != 2:
            return None
        return StoredBlocks("Q8_0", gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0), 34)

    def tensor(self, name):
        stored = self.blocks(name)
        if stored is None:
            return super().tensor(name)
        return gguf.quants.dequantize(stored.rows, gguf.GGMLQuantizationType.Q8_0)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("attention", ["triton", "sdpa"])
def test_blocks_of_a_file(name, attention):
    checkpoint, rows = InBlocks(CONFIGS[name]), mixed_batch(18)
    ours, theirs = CudaModel(checkpoint, "cpu", "gguf", attention=attention), TorchModel(checkpoint)
    assert ours.num_bytes < theirs.num_bytes / 2
    close(*(each.forward(rows, each.new_cache(16)).logits for each in (ours, theirs)))


DRAFTERS = {"plain": None, "layer_skip": SpeculativeConfig(method="layer_skip", num_draft_tokens=2)}


@pytest.mark.parametrize("name", DRAFTERS)
def test_passes_that_are_launched_ahead_know_the_layers_own_inputs(eager, name, monkeypatch):
    checkpoint, texts, ahead, launch = RandomCheckpoint(CONFIGS["dense"]), [], [], CudaModel.launch

    def spied(*args, is_foreseen=False, **named):
        ahead.append(is_foreseen)
        return launch(*args, is_foreseen=is_foreseen, **named)

    monkeypatch.setattr(CudaModel, "launch", spied)
    models = CudaModel(checkpoint, "cpu", "float32", attention="by_position"), TorchModel(checkpoint)
    for model in models:
        source = ModelSource("random", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
        engine = build_engine(LoadedModel(source, model), EngineConfig(profile="none"), DRAFTERS[name])
        for number in range(2):
            params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            engine.add_request(str(number), tokens_of(5 + number, number), params)
        texts.append({name: output.outputs[0].token_ids for name, output in run_to_end(engine).items()})
    assert texts[0] == texts[1]
    assert any(ahead) or name != "plain"
