"""A model written as transformers has it is read back the same, by us and by transformers, tokenizer included."""

import json
from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import CorruptWeights, UnsupportedModel
from paceline.models.files.save_folder import save_model
from paceline.models.resolve import resolve_model
from paceline.models.text.tokenizer import Tokenizer
from paceline.models.text.tokenizer_folder import tokenizer_from_folder
from tests.fakes import RandomCheckpoint, mixture_config, small_config

from .vocabularies import SAMPLES, byte_level_gguf, sentencepiece_gguf

TOKENIZER = Tokenizer.from_gguf(byte_level_gguf())


def saved(folder, config, tensors=None):
    checkpoint = RandomCheckpoint(config)
    tensors = tensors or {name: checkpoint.tensor(name) for name in checkpoint.names()}
    return save_model(folder, config, tensors, TOKENIZER, {"began_as": "nothing"})


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_model_is_read_back(tmp_path, family):
    size = TOKENIZER.vocab_size
    config = small_config(family, vocab_size=size, bos_token_id=1, eos_token_ids=(2, 5), tie_word_embeddings=False)
    found = resolve_model(str(saved(tmp_path, config)))
    assert found.checkpoint.config == config and found.tokenizer.same_vocabulary(TOKENIZER)
    for name in found.checkpoint.names():
        np.testing.assert_allclose(found.checkpoint.tensor(name), RandomCheckpoint(config).tensor(name), rtol=2**-8)
    assert json.loads((tmp_path / "paceline.json").read_text()) == {"began_as": "nothing"}


def test_transformers_says_the_same(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from paceline.models.rows import Part, build_rows
    from paceline.models.torch_executor import TorchModel

    saved(tmp_path, small_config(vocab_size=TOKENIZER.vocab_size))
    ids = TOKENIZER.encode("the cat sat on the mat")
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(torch.tensor([ids])).logits[0]
    model = TorchModel(resolve_model(str(tmp_path)).checkpoint)
    ours = model.forward(build_rows([Part([0], 0, ids)]), model.new_cache(1)).logits
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path).encode("the cat  sat") == TOKENIZER.encode("the cat  sat")


@pytest.mark.parametrize("vocabulary", [byte_level_gguf, sentencepiece_gguf])
def test_a_tokenizer_is_read_back(tmp_path, vocabulary):
    before = Tokenizer.from_gguf(vocabulary())
    for name, text in before.files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    after = tokenizer_from_folder(tmp_path)
    assert after.same_vocabulary(before) and after.eos_token_ids == before.eos_token_ids
    assert after.chat_template_digest == before.chat_template_digest
    for text in SAMPLES:
        ids = before.encode(text)
        assert after.encode(text) == ids and after.decode(ids) == before.decode(ids)


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="cannot be written"):
        saved(tmp_path, mixture_config())
    with pytest.raises(UnsupportedModel, match="plain rotary"):
        saved(tmp_path, replace(small_config(), rope_inv_freq_scale=(0.5,) * 8))
    with pytest.raises(CorruptWeights, match="missing"):
        saved(tmp_path, small_config(), {"model.norm.weight": np.ones(96, np.float32)})
    assert not list(tmp_path.iterdir())
