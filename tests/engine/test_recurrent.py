"""Models with recurrent layers: texts and log-probabilities that depend on the request alone, bit for bit.

Not on drafts of any kind, on who else is served, on prefixes found in the cache, on chunks, on having been put off, or
on states that were given up.
"""

from dataclasses import replace

import numpy as np
import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.llm import LLM
from paceline.engine.loop import memory
from paceline.engine.setup import build, pass_costs
from paceline.engine.setup.load import load_executor
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.evaluation import tune
from paceline.evaluation.advise.candidates import Wanted, check_replayable
from paceline.evaluation.layer_search import search_skipped_layers
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.base import PAGE_SIZE
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.models.rows import Part, build_rows
from paceline.models.state_book import StateLost, StateStore
from paceline.models.torch_executor import TorchModel
from paceline.speculation import CostProfile
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import ByteTokenizer, RandomCheckpoint, no_drafter_fails, small_config

LAYERS = {"num_hidden_layers": 4, "head_dim": 32, "num_attention_heads": 4}
CONVOLUTIONS = Recurrence("short_convolution", (0, 2, 3), kernel=3, channels=64)
DELTAS = Recurrence(
    "gated_delta_net", (0, 1, 3), 4, 2 * 2 * 16 + 4 * 32, key_heads=2, value_heads=4, key_dim=16, value_dim=32
)
GATED = small_config(**LAYERS, recurrence=DELTAS, attention_gate=True)
SPACES = Recurrence(
    "state_space", (0, 2, 3), 4, 4 * 32 + 2 * 2 * 16, key_heads=2, value_heads=4, key_dim=16, value_dim=32,
    conv_bias=True,
)  # fmt: skip
SPACED = small_config(**LAYERS, recurrence=SPACES, residual_scale=0.4, layers_without_mlp=(0,))
KINDS = {
    "convolutions": (small_config(**LAYERS, hidden_size=64, recurrence=CONVOLUTIONS), "float32"),
    "deltas": (GATED, "float32"),
    "deltas-w8a8": (GATED, "w8a8"),
    "spaces": (SPACED, "w8a8"),  # in float32 by test_numba_families
}
ASKED = {"max_tokens": 40, "ignore_eos": True, "logprobs": 3}
EACH = [SamplingParams(temperature=0, **ASKED), SamplingParams(temperature=0.9, top_p=0.95, seed=11, **ASKED)] * 2
"""One for each prompt."""
SUFFIX = {"method": "suffix", "policy": "fixed"}
DRAFTS = {
    "suffix": SUFFIX,
    "chain": {"method": "draft_model", "model": "other", "policy": "fixed", "num_draft_tokens": 6},
    "tree": {"method": "draft_model", "model": "other", "policy": "fixed", "options": {"tree": "dynamic", "topk": 2}},
    "lookahead": {"method": "lookahead", "policy": "fixed"},
    "layer_skip": {"method": "layer_skip", "policy": "fixed", "options": {"skip_layers": [1, 2]}},
}


class Noisy(RandomCheckpoint):
    """Almost the weights of another: a draft that is right about half of the time."""

    def __init__(self, config):
        super().__init__(config)
        self.fingerprint += "-noisy"
        rng = np.random.default_rng(1)
        self._tensors = {
            n: t + np.float32(0.05) * rng.standard_normal(t.shape, np.float32) for n, t in self._tensors.items()
        }


class Maker:
    """(speculative, **engine config) -> an engine around one model, with a draft model that is called ``other``."""

    def __init__(self, config, dtype):
        self.models = [NumbaModel(one(config), dtype, num_threads=1) for one in (RandomCheckpoint, Noisy)]
        self.source = ModelSource("random", RandomCheckpoint(config), ByteTokenizer())  # type: ignore[arg-type]

    def load(self, *_):
        return LoadedModel(self.source, self.models[1])

    def __call__(self, speculative=None, room=1 << 22, **config):
        settings = EngineConfig(**{"kv_cache_memory_bytes": room, "profile": "none"} | config)
        loaded = LoadedModel(self.source, self.models[0])
        return build.build_engine(loaded, settings, SpeculativeConfig.of(speculative))


@pytest.fixture(scope="module", params=KINDS)
def make_engine(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        make = Maker(*KINDS[request.param])
        patch.setattr(build, "load", make.load)
        yield make


def told(outputs):
    return [(output.token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.fixture(scope="module")
def plain(make_engine):
    return told(run_all(make_engine(prefix_caching=False), params=EACH))


@pytest.mark.parametrize("drafts", DRAFTS)
def test_drafts_and_company_change_no_bit(make_engine, plain, drafts):
    with no_drafter_fails():
        alone = [run_all(make_engine(DRAFTS[drafts]), [p], own)[0] for p, own in zip(PROMPTS, EACH, strict=True)]
        together = run_all(make_engine(DRAFTS[drafts]), params=EACH)
    assert told(alone) == plain
    assert told(together) == plain
    assert sum(output.stats.num_draft_tokens for output in alone) > 0
    if drafts in ("chain", "tree"):
        accepted = sum(output.stats.num_accepted_tokens for output in together)
        assert 2 < accepted < 0.9 * sum(output.stats.num_draft_tokens for output in together)


def test_prefixes_found_in_the_cache_change_no_bit(make_engine):
    """The answers of a first round are prompts of the second, whose pages passes with drafts wrote."""
    engine = make_engine(SUFFIX)
    first = run_all(engine, params=EACH)
    longer = [[*output.prompt_token_ids, *output.token_ids] for output in first]
    again = run_all(engine, longer, EACH)
    assert sum(output.metrics.num_cached_tokens for output in again) >= 6 * PAGE_SIZE
    assert told(again) == told(run_all(make_engine(prefix_caching=False), longer, EACH))


@pytest.mark.parametrize("drafts", ["suffix", "chain"])
@pytest.mark.parametrize("rows", [3, 16])
def test_chunks_change_no_bit(make_engine, plain, rows, drafts):
    assert told(run_all(make_engine(DRAFTS[drafts], max_num_batched_tokens=rows), params=EACH)) == plain


def test_being_put_off_changes_no_bit(make_engine, monkeypatch):
    monkeypatch.setattr(memory, "_SPARE_STATES", 0)
    longer = [SamplingParams(temperature=0, **ASKED | {"max_tokens": 350})] * 4
    cache = make_engine.models[0].new_cache(1)
    room = max(25 * cache.num_bytes + 8 * cache.state_bytes, 2 * 8 * cache.state_bytes)
    engine = make_engine(SUFFIX, room, max_num_seqs=4, max_model_len=25 * PAGE_SIZE)
    outputs = run_all(engine, params=longer)
    assert engine.metrics.num_preemptions > 0
    assert told(outputs) == told(run_all(make_engine(prefix_caching=False), params=longer))


def test_several_samples_of_a_prompt_are_those_of_separate_requests(make_engine):
    prompt, asked = (
        list(b"the cat sat on the mat, the cat sat"),
        {"temperature": 0.9, "max_tokens": 20, "ignore_eos": True},
    )
    [whole] = run_all(make_engine(SUFFIX), [prompt], [SamplingParams(n=3, seed=5, **asked)])
    [plain] = run_all(make_engine(prefix_caching=False), [prompt], [SamplingParams(n=3, seed=5, **asked)])
    assert [one.token_ids for one in whole.outputs] == [one.token_ids for one in plain.outputs]


def test_lost_states_are_computed_again(make_engine, plain):
    """Fewer states than the scheduler was told of: passes fail for want of them, and no text changes."""
    engine = make_engine(SUFFIX)
    lost = 0

    def plan(rows, whole=True, real=engine.cache.store.book.plan):
        nonlocal lost
        if lost < 3 and rows.positions.max() > 20 + 10 * lost:
            lost += 1
            raise StateLost("as if it had been given up")
        return real(rows, whole)

    engine.cache.store.book.plan = plan
    assert told(run_all(engine, params=EACH)) == plain
    assert lost == 3


def test_drafts_with_some_layers_leave_few_states_to_the_texts(make_engine, monkeypatch):
    cache = make_engine.models[0].new_cache(1)
    room = 2 * max(8 * cache.state_bytes, 24 * cache.num_bytes)
    engine = make_engine(DRAFTS["layer_skip"] | {"num_draft_tokens": 20}, room, max_num_seqs=3, max_model_len=96)
    engine.cache.hold(8)
    monkeypatch.setattr(engine, "_start_over", lambda inside, error: pytest.fail(str(error)))
    drafted = sum(output.stats.num_draft_tokens for output in run_all(engine, params=EACH))
    assert drafted > 1000


def test_a_state_that_is_lost_every_time_ends_the_requests_with_an_error(make_engine):
    engine = make_engine(SUFFIX)

    def plan(rows, whole=True):
        raise StateLost("never there")

    engine.cache.store.book.plan = plan
    outputs = run_all(engine, PROMPTS[:1], [EACH[0]])
    assert outputs[0].outputs[0].finish_reason == "error"


def test_a_cache_of_few_bytes_runs_fewer_requests(make_engine):
    cache = make_engine.models[0].new_cache(1)
    engine = make_engine(room=max(6 * cache.state_bytes + cache.num_bytes, 12 * cache.state_bytes), max_model_len=1)
    assert engine.cache.store.book.num_states >= 6
    few = make_engine(room=200 * cache.state_bytes + 64 * cache.num_bytes, max_num_seqs=200)
    held = few.cache.store.book.num_states
    assert few.scheduler.config.max_num_seqs == (held - 2) // 2 < 200
    assert held * cache.state_bytes + few.cache.num_bytes <= 200 * cache.state_bytes + 64 * cache.num_bytes


def test_the_torch_executor_says_the_same(make_engine, plain):
    checkpoint = make_engine.source.checkpoint
    loaded = LoadedModel(make_engine.source, TorchModel(checkpoint))
    if make_engine.models[0].dtype_choice.name != "float32":
        pytest.skip("rounded weights are another model")
    settings = EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none")
    for drafts in (None, SUFFIX):
        engine = build.build_engine(loaded, settings, SpeculativeConfig.of(drafts))
        [output] = run_all(engine, PROMPTS[:1], EACH[:1])
        assert output.token_ids == plain[0][0]


@pytest.mark.parametrize("executor", ["torch", "cuda"])
def test_several_processes_refuse_recurrent_layers(make_engine, executor):
    how = {"executor": executor, "tensor_parallel_size": 2}
    with pytest.raises(UnsupportedModel, match="recurrent layers, which run in one process"):
        load_executor(make_engine.source.checkpoint, EngineConfig(**how), "random", lambda *_: None)


def test_a_draft_that_reads_a_window_of_keys_is_refused(make_engine):
    with pytest.raises(InvalidParameter, match="recurrent"):
        make_engine({"method": "sparse_cache"})


def test_drafts_that_are_too_long_to_be_taken_back_are_refused(make_engine):
    with pytest.raises(InvalidParameter, match="num_draft_tokens: a model with recurrent layers"):
        make_engine(SUFFIX | {"num_draft_tokens": 65})


def test_requests_that_save_states_in_the_same_pass_lose_none(make_engine, monkeypatch):
    """Many equal texts, which come to the ends of their pages together."""
    engine = make_engine(SUFFIX, None)
    monkeypatch.setattr(engine, "_start_over", lambda inside, error: pytest.fail(str(error)))
    asked = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    outputs = run_all(engine, ["the cat sat on the mat. the cat sat on"] * 30, asked)
    assert len({tuple(output.token_ids) for output in outputs}) == 1


@pytest.mark.parametrize(("size", "rows"), [(12, 8), (120, 16)])
def test_a_draft_model_with_few_states_drafts_for_many_requests(make_engine, size, rows):
    """More texts than it has states for, and long ones that are read in many passes, before it drafts for the first."""
    count = 40 if size < 100 else 12
    engine = make_engine(DRAFTS["chain"], 1 << 24, max_num_seqs=64, max_num_batched_tokens=512)
    engine.drafter.runner._max_prefill = rows
    prompts = np.random.default_rng(0).integers(0, 128, (count, size)).tolist()
    outputs = run_all(engine, prompts, SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
    assert all(output.stats.num_draft_tokens >= 9 for output in outputs)


def test_costs_are_measured_in_caches_with_room_for_states(make_engine, monkeypatch):
    monkeypatch.setattr(pass_costs, "_EACH", 0.0)
    monkeypatch.setattr(tune, "OVERHEAD_CACHE", 1)
    loaded, config = LoadedModel(make_engine.source, make_engine.models[0]), EngineConfig(profile="none")
    costs = pass_costs.pass_costs(make_engine(), loaded, config)
    assert max(costs["prefill_seconds"][0]) == costs["token_budget"] == 128
    assert tune.measure_overhead(loaded, config, CostProfile({1: 1e-9})) > 0


def test_a_cache_without_room_for_keys_says_what_the_states_take(make_engine):
    with pytest.raises(InvalidParameter, match=r"hold 0 tokens besides \d+ bytes of states, not the 16 of a request"):
        make_engine(room=8000)


def test_states_without_memory_are_told_by_the_field_of_the_cache(make_engine, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(StateStore, "hold", fail)
    with pytest.raises(InvalidParameter, match=r"kv_cache_memory_bytes: .* cannot be allocated"):
        make_engine()


def test_layers_are_not_searched_where_states_are_kept_of_few_tokens(make_engine):
    with pytest.raises(UnsupportedModel, match=r"layers: .* recurrent layers .*; compare some with paceline bench"):
        search_skipped_layers(make_engine.models[0], [[1, 2, 3]])


def test_drafts_that_continue_from_the_text_s_states_are_not_replayed(make_engine):
    loaded = LoadedModel(make_engine.source, make_engine.models[0])
    llm = LLM.from_loaded(loaded, EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none"))
    check_replayable(llm, [Wanted("suffix", 4, SUFFIX)])
    with pytest.raises(InvalidParameter, match=r"'layer_skip' continues from states .*; measure it"):
        check_replayable(llm, [Wanted("layer_skip", 4, DRAFTS["layer_skip"])])


def test_branches_load_what_their_own_thread_saved():
    """The state after a tree's root is saved, and loaded for each branch, in one pass, by many heads at once."""
    heads = 15
    shared = replace(DELTAS, channels=2 * 16 + heads * 32, key_heads=1, value_heads=heads)
    checkpoint = RandomCheckpoint(small_config(**LAYERS, recurrence=shared, attention_gate=True))
    models = [NumbaModel(checkpoint, "float32", num_threads=threads) for threads in (1, 2)]
    text, tree, branches = list(range(3, 13)), (-1, 0, 0, 0, 0, 0), [7, 8, 9, 10, 11]
    found = []
    for model in [models[0], *[models[1]] * 100]:
        cache = model.new_cache(1)
        model.forward(build_rows([Part((0,), 0, text[:5], logits="last")]), cache)
        for at in range(5, 9):
            model.forward(build_rows([Part((0,), at, [text[at]])]), cache)
        found.append(model.forward(build_rows([Part((0,), 9, [text[9], *branches], tree)]), cache).logits.copy())
    assert all(np.array_equal(found[0], each) for each in found[1:])
