"""Rounded weights, keys and values: texts and log-probabilities that depend on the request alone, bit for bit.

Not on drafts, on who else is served, on pages found in the cache, on chunks, or on having been put off for others.
"""

import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.setup.build import build_engine
from paceline.models.base import PAGE_SIZE
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config
from tests.models.tiny import as_gguf, gguf_name

CONFIG = small_config(head_dim=32, num_attention_heads=4)
STORED = [("gguf", "auto"), ("gguf", "int8"), ("w8a8", "auto"), ("w8a8", "int8"), ("bfloat16", "auto"),
          ("bfloat16", "int8")]  # fmt: skip
ASKED = {"max_tokens": 40, "ignore_eos": True, "logprobs": 3}
EACH = [SamplingParams(temperature=0, **ASKED), SamplingParams(temperature=0.9, top_p=0.95, seed=11, **ASKED)] * 2
"""One for each prompt."""
SUFFIX = {"method": "suffix", "policy": "fixed"}


def in_blocks(path):
    checkpoint = RandomCheckpoint(CONFIG)
    matrices = [name for name in checkpoint.names() if checkpoint.tensor(name).ndim == 2]
    storage = {gguf_name(CONFIG, name): "Q8_0" if "embed" in name else "Q4_1" for name in matrices}
    return GGUFCheckpoint(as_gguf(path, checkpoint, storage=storage))


@pytest.fixture(scope="module", params=STORED, ids=" ".join)
def make_engine(request, tmp_path_factory):
    """(speculative, **engine config) -> an engine around one model, of which `page_bytes` are known."""
    dtype, kept = request.param
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        checkpoint = in_blocks(folder / "model.gguf") if dtype == "gguf" else RandomCheckpoint(CONFIG)
        model = NumbaModel(checkpoint, dtype, num_threads=1, kv_cache_dtype=kept)
        source = ModelSource("stored", checkpoint, ByteTokenizer())  # type: ignore[arg-type]

        def make(speculative=None, pages=64, **config):
            room = pages * model.new_cache(1).num_bytes
            settings = EngineConfig(**{"kv_cache_memory_bytes": room} | config)
            return build_engine(LoadedModel(source, model), settings, SpeculativeConfig.of(speculative))

        yield make


def told(outputs):
    return [(output.token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.fixture(scope="module")
def plain(make_engine):
    return told(run_all(make_engine(prefix_caching=False), params=EACH))


@pytest.mark.parametrize("drafts", [None, SUFFIX], ids=["plain", "suffix"])
def test_a_request_says_the_same_alone_and_in_company(make_engine, plain, drafts):
    alone = [run_all(make_engine(drafts), [prompt], own)[0] for prompt, own in zip(PROMPTS, EACH, strict=True)]
    assert told(alone) == plain
    assert told(run_all(make_engine(drafts), params=EACH)) == plain
    assert drafts is None or sum(output.stats.num_draft_tokens for output in alone) > 0


def test_pages_found_in_the_cache_change_no_bit(make_engine):
    """The answers of a first round are prompts of the second, whose pages passes with drafts wrote."""
    engine = make_engine(SUFFIX)
    first = run_all(engine, params=EACH)
    longer = [[*output.prompt_token_ids, *output.token_ids] for output in first]
    again = run_all(engine, longer, EACH)
    assert sum(output.metrics.num_cached_tokens for output in again) >= 8 * PAGE_SIZE
    assert told(again) == told(run_all(make_engine(prefix_caching=False), longer, EACH))


def test_the_same_prompt_twice_has_the_same_bits(make_engine, plain):
    engine = make_engine(SUFFIX)
    assert told(run_all(engine, params=EACH)) == plain
    again = run_all(engine, params=EACH)
    assert told(again) == plain
    assert sum(output.stats.num_accepted_tokens for output in again) > 20  # the pool knows the answers by now


@pytest.mark.parametrize("rows", [3, 16])
def test_chunks_change_no_bit(make_engine, plain, rows):
    assert told(run_all(make_engine(SUFFIX, max_num_batched_tokens=rows), params=EACH)) == plain


def test_being_put_off_changes_no_bit(make_engine):
    longer = [SamplingParams(temperature=0, **ASKED | {"max_tokens": 70})] * 4
    engine = make_engine(SUFFIX, pages=9, max_model_len=9 * PAGE_SIZE)
    outputs = run_all(engine, params=longer)
    assert engine.metrics.num_preemptions > 0
    assert told(outputs) == told(run_all(make_engine(prefix_caching=False), params=longer))
