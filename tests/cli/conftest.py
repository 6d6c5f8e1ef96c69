"""A tiny model file without a chat template, as base models are."""

import pytest

from paceline.models.numba_executor import weights
from tests.fakes import RandomCheckpoint, small_config


@pytest.fixture(scope="session")
def base_model(tmp_path_factory):
    """The path of a GGUF file with a vocabulary, random weights and no chat template."""
    pytest.importorskip("gguf")
    from tests.models.tiny import as_gguf
    from tests.models.vocabularies import byte_level_gguf

    vocabulary = {key: value for key, value in byte_level_gguf().items() if key != "tokenizer.chat_template"}
    config = small_config(vocab_size=len(vocabulary["tokenizer.ggml.tokens"]))
    folder = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        yield str(as_gguf(folder / "base.gguf", RandomCheckpoint(config), vocabulary))
