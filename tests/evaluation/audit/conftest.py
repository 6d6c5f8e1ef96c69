"""A small random model that decodes plainly, prompts that repeat themselves, and a lookup that drafts on them."""

import pytest

from paceline.config import EngineConfig
from paceline.engine.llm import LLM

PROMPTS = [list(b"abcabcabcabc"), list(b"one two one two one"), list(b"xyxyxyxy"), list(b"the cat the cat")]
NGRAM = {"method": "ngram", "options": {"prompt_lookup_min": 1}, "num_draft_tokens": 4, "policy": "fixed"}


@pytest.fixture
def plain(tiny):
    config = EngineConfig(dtype="float32", kv_cache_memory_bytes=1 << 21, profile="none")
    llm = LLM.from_loaded(tiny, config)
    return llm
