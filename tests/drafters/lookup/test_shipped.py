"""Memories that come with the package: whole, small, and of the model they are named after."""

import pytest

from paceline.drafters.lookup.find import FILE_NAME, SHIPPED, find_memory
from paceline.drafters.lookup.memory import read_memory
from paceline.models.fetch.download import BUILTIN_MODELS
from paceline.models.resolve import resolve_model

LARGEST = 6_000_000


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_every_built_in_model_has_one(name):
    path = SHIPPED / name / FILE_NAME
    assert path.stat().st_size < LARGEST
    memory = read_memory(path)
    assert memory.info.model == name
    assert len(memory) > 100_000
    assert path.with_name("memory.md").read_text(encoding="utf-8").startswith("# Memory of")


@pytest.mark.weights
def test_auto_takes_it_for_the_default_model(tmp_path, monkeypatch):
    source = resolve_model("smollm2-135m")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    found = find_memory("auto", source)
    assert found is not None
    assert found.info.vocab_size == source.tokenizer.vocab_size
