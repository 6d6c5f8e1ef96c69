"""An engine whose model launches every pass it can before it is asked for: the texts are the torch executor's."""

import gc
import random
import weakref

import pytest

pytest.importorskip("torch")

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.setup.build import build_engine
from paceline.models.base import PAGE_SIZE
from paceline.models.cuda_executor import CudaModel, foreseen, passes
from paceline.models.cuda_executor.begun import BegunPass
from paceline.models.cuda_executor.laws import answers_of, picks_of
from paceline.models.cuda_executor.paged_rows import num_splits
from paceline.models.cuda_executor.passes import Passes
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.models.torch_executor import TorchModel
from paceline.types import SamplingParams
from tests.fakes import ByteTokenizer, RandomCheckpoint, run_to_end, small_config

CHECKPOINT = RandomCheckpoint(small_config())
PAGE_BYTES = PAGE_SIZE * 2 * 4 * 3 * 2 * 16
GREEDY = ({}, {"stop": ["a", "e"]})
SAMPLED = (
    {}, {"temperature": 0.8}, {"temperature": 1.1, "min_p": 0.05}, {"temperature": 0.9, "n": 2},
    {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.9, "top_k": 5, "stop": ["a"]},
)  # fmt: skip
KINDS = (
    *GREEDY, *GREEDY, {"min_tokens": 8}, {"repetition_penalty": 1.2}, {"temperature": 0.8}, {"temperature": 0.9, "n": 2}
)  # fmt: skip


@pytest.fixture(scope="module")
def models():
    return CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position"), TorchModel(CHECKPOINT)


def engine_of(model, num_pages, speculative=None, **config):
    source = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]
    memory = num_pages * PAGE_BYTES
    config = EngineConfig(kv_cache_memory_bytes=memory, profile="none", **config)
    return build_engine(LoadedModel(source, model), config, speculative)


def texts(engine, requests):
    """What each of `requests`, (step of arrival, prompt, params, step of abortion or None), got that is not aborted.

    Of two engines one may end a request in the step in which it would be aborted by the other.
    """
    texts, step = {}, 0
    while engine.has_unfinished_requests or any(when >= step for when, *_ in requests):
        for number, (when, prompt, params, end) in enumerate(requests):
            if when == step:
                engine.add_request(str(number), prompt, params)
            if end == step:
                engine.abort(str(number))
        for output in engine.step():
            if output.finished and requests[int(output.request_id)][-1] is None:
                texts[output.request_id] = [each.token_ids for each in output.finished.outputs]
        step += 1
    return texts


def some_requests(rng, kinds, vocabulary=100):
    for _ in range(rng.randint(3, 8)):
        begin, length = random.Random(rng.randint(1, 3)), rng.choice([1, 2, 15, 16, 17, 33, 240])
        params = SamplingParams(
            **{"temperature": 0, "seed": 1, "max_tokens": rng.choice([8, 20, 45]), "ignore_eos": rng.random() < 0.5}
            | rng.choice(kinds)
        )
        when = rng.randint(0, 20)
        yield (
            when,
            [begin.randrange(vocabulary) for _ in range(length)],
            params,
            rng.choice([None, None, None, when + 9]),
        )


def in_reference_counts_alone(run):
    """Check that no launched pass outlives `run` for want of the garbage collector, but the latest."""
    gc.collect()
    gc.disable()
    try:
        before = len(launched_passes())
        run()
        assert len(launched_passes()) <= before + 1
    finally:
        gc.enable()


def launched_passes():
    return [each for each in gc.get_objects() if type(each) is BegunPass]


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        *((seed, KINDS) for seed in range(6)),
        *((seed, GREEDY) for seed in range(3)),
        *((seed, SAMPLED) for seed in range(3, 6)),
    ],
)
def test_requests_that_come_go_and_lose_their_pages(models, eager, seed, kinds, monkeypatch):
    if seed % 2:  # as with the kernels for races, whose twin is in their place
        monkeypatch.setattr(models[0], "_race", lambda *given: picks_of(answers_of(*given))[given[-1].places])
    rng = random.Random(seed)
    requests, pages = list(some_requests(rng, kinds)), rng.choice([20, 24, 40])
    config = {"scheduler": rng.choice(["stall_free", "sarathi", "orca"]), "prefix_caching": seed % 2 == 0}
    model, before = models[0], models[0]._foreseen.num_taken
    ours, theirs = (engine_of(each, pages, **config) for each in models)
    assert texts(ours, requests) == texts(theirs, requests)
    assert kinds is KINDS or model._foreseen.num_taken > before
    assert ours.scheduler.pool.num_free == pages


@pytest.fixture(scope="module")
def repetitive():
    """Models of few tokens, whose texts repeat themselves."""
    few = RandomCheckpoint(small_config(vocab_size=7))
    return CudaModel(few, "cpu", "float32", attention="by_position", deterministic=True), TorchModel(few)


@pytest.mark.parametrize("seed", range(6))
def test_requests_with_lookups_that_come_go_and_lose_their_pages(repetitive, eager, seed, monkeypatch):
    monkeypatch.setattr(foreseen, "FEW_ROWS", 64)
    rng = random.Random(seed)
    kinds = ({}, {}, {"n": 2, "temperature": 0.8}, {"stop_token_ids": [3]}, {"repetition_penalty": 1.2})
    requests, pages = list(some_requests(rng, kinds[: rng.choice([2, 4, 5])], 7)), rng.choice([20, 24, 40])
    config = {"scheduler": rng.choice(["stall_free", "sarathi", "orca"]), "prefix_caching": seed % 2 == 0}
    policy, most = rng.choice(["fixed", "fixed", "auto", "heuristic"]), rng.choice([1, 2, 4])
    drafts = SpeculativeConfig(
        "ngram", policy=policy, num_draft_tokens=most, options={"prompt_lookup_min": 1 + seed % 2}
    )
    model, before = repetitive[0], repetitive[0]._foreseen.num_taken
    ours, theirs = (
        engine_of(each, pages, spec, **config) for each, spec in zip(repetitive, (drafts, None), strict=True)
    )
    assert texts(ours, requests) == texts(theirs, requests)
    if policy == "fixed":  # others decide by the time that steps take
        assert ours.metrics.spec_decode_num_draft_tokens > 0
        assert model._foreseen.num_taken > before
    assert ours.scheduler.pool.num_free == pages


@pytest.mark.parametrize("spec", [None, SpeculativeConfig("ngram", policy="fixed", num_draft_tokens=2)])
def test_passes_that_are_over_are_freed_without_the_garbage_collector(repetitive, eager, spec):
    engine = engine_of(repetitive[0], 40, spec)
    requests = list(some_requests(random.Random(3), ({}, {}, {"temperature": 0.8}), 7))
    in_reference_counts_alone(lambda: texts(engine, requests))


def test_passes_ahead_are_recorded_though_nobody_asks_for_as_many_rows(repetitive, eager, monkeypatch):
    """One request of two drafts; a pass ahead has rows for drafts of both."""
    asked, run = [], Passes.run

    def noted(self, rows, cache, name, *args, **options):
        asked.append(passes._key(rows, name, num_splits(rows)))
        return run(self, rows, cache, name, *args, **options)

    monkeypatch.setattr(Passes, "run", noted)
    spec = SpeculativeConfig("ngram", policy="fixed", num_draft_tokens=3)
    engine = engine_of(repetitive[0], 40, spec)
    for number, drafts in enumerate((True, False, False)):
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, speculative=drafts)
        engine.add_request(str(number), [number, 5, 6] * 4, params)
    run_to_end(engine)
    assert len(set(asked)) > 2 and set(asked) <= engine.cache.graphs.keys()


def test_a_pass_whose_graph_is_not_there_yet(eager):
    model, other = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position"), TorchModel(CHECKPOINT)
    lengths = (249, 7, 5, 3, 1)  # one context grows beyond a split, and the others end one after another
    requests = [
        (0, [9 + place] * length, SamplingParams(temperature=0, max_tokens=6 + 3 * place, ignore_eos=True), None)
        for place, length in enumerate(reversed(lengths))
    ]
    ours, theirs = (texts(engine_of(each, 40), requests) for each in (model, other))
    assert ours == theirs
    assert model._foreseen.num_taken > 5


def test_an_engine_that_is_gone_leaves_no_cache_behind(models, eager):
    engine = engine_of(models[0], 40)
    texts(engine, [(0, [1, 2, 3], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), None)])
    kept = weakref.ref(engine.cache)
    del engine
    gc.collect()
    assert kept() is None
