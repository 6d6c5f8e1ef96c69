"""Chains drafted on the device: the tokens of level-by-level passes, in one graph, with nothing else written."""

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.config import EngineConfig, SpeculativeConfig  # noqa: E402
from paceline.drafters.draft_models.draft_model import DraftModel  # noqa: E402
from paceline.engine.setup.build import build_engine  # noqa: E402
from paceline.models.chains import DraftsChains, Draws  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.graphs import EagerGraphs  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.sampling import CounterRandomness, Warper  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint, mixture_config, run_to_end, small_config  # noqa: E402

from .batches import tokens_of  # noqa: E402

CHECKPOINT = RandomCheckpoint(small_config())
PAGES = ((3, 0, 5), (1, 2, 6))
TEXTS = (tokens_of(13), tokens_of(15, 1))


def model_of(checkpoint=CHECKPOINT, attention="by_position", **options):
    return CudaModel(checkpoint, "cpu", "float32", attention=attention, **options)


def rows_of(texts=TEXTS):
    return build_rows([Part(pages, 0, text, logits="last") for pages, text in zip(PAGES, texts, strict=True)])


def level_by_level(model, num_tokens):
    """Chains and probabilities by whole passes of a reference, one request at a time."""
    tokens, probs = [], []
    for text in TEXTS:
        text, own = list(text), []
        for _ in range(num_tokens):
            logits = model.forward(build_rows([Part(range(4), 0, text, logits="last")]), model.new_cache(4)).logits[0]
            weights = np.exp(logits - logits.max())
            own.append(weights.max() / weights.sum())
            text.append(int(logits.argmax()))
        tokens.append(text[-num_tokens:])
        probs.append(own)
    return tokens, probs


@pytest.mark.parametrize("options", [{}, {"attention": "sdpa"}, {"deterministic": True}], ids=str)
def test_chains_are_those_of_whole_passes(options):
    model = model_of(**options)
    tokens, probs = level_by_level(TorchModel(CHECKPOINT), 4)
    for count in (1, 4):
        draft = model.draft_chains(rows_of(), model.new_cache(7), count)
        assert draft.tokens.tolist() == [own[:count] for own in tokens]
        np.testing.assert_allclose(draft.top_probs, [own[:count] for own in probs], rtol=1e-4)
        assert draft.tokens.dtype == np.int32


DRAWN = (
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.7, top_k=5, min_p=0.02, seed=3),
    SamplingParams(temperature=1.3, top_p=0.8, seed=3),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, min_p=0.05, seed=3),
)


def draws_of(params, num_tokens, texts=TEXTS):
    noise = CounterRandomness(3)
    keys = [[noise.key(len(text) + level, "target", -1) for level in range(num_tokens)] for text in texts]
    values = [np.array([getattr(own, name) for own in params]) for name in ("temperature", "min_p", "top_k", "top_p")]
    return Draws(*values, np.array(keys, np.uint64))


def drawn_by_the_host(model, params, num_tokens):
    """Chains of whole passes of a reference, drawn from the host's laws with the target's noise."""
    tokens = []
    for text, own in zip(TEXTS, params, strict=True):
        text, warper = list(text), Warper(own, token_ids=list(text), num_prompt_tokens=len(text))
        for _ in range(num_tokens):
            logits = model.forward(build_rows([Part(range(4), 0, text, logits="last")]), model.new_cache(4)).logits[0]
            text.append(CounterRandomness(3).draw(warper.law(logits), len(text), "target"))
        tokens.append(text[-num_tokens:])
    return tokens


@pytest.mark.parametrize("options", [{}, {"attention": "sdpa"}], ids=str)
def test_drawn_chains_are_the_hosts(options):
    model, reference = model_of(**options), TorchModel(CHECKPOINT)
    for pair in (*pairwise(DRAWN), (DRAWN[0], DRAWN[3]), (DRAWN[4], DRAWN[0])):
        for count in (1, 4):
            draft = model.draft_chains(rows_of(), model.new_cache(7), count, draws_of(pair, count))
            assert draft.tokens.tolist() == drawn_by_the_host(reference, pair, count)


@pytest.mark.parametrize("pair", [(DRAWN[4], DRAWN[3]), (DRAWN[1], DRAWN[0])], ids=["no law is cut", "one is"])
def test_kernels_draw_the_hosts_chains(pair):
    pytest.importorskip("triton")
    checkpoint = RandomCheckpoint(small_config(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1))
    model, reference = model_of(checkpoint, "triton"), TorchModel(checkpoint)
    draft = model.draft_chains(rows_of(), model.new_cache(7), 2, draws_of(pair, 2))
    assert draft.tokens.tolist() == drawn_by_the_host(reference, pair, 2)


def test_largest_probabilities_are_those_at_the_temperature():
    model, pair = model_of(), (DRAWN[2], DRAWN[3])
    logits = TorchModel(CHECKPOINT).forward(rows_of(), TorchModel(CHECKPOINT).new_cache(7)).logits
    draft = model.draft_chains(rows_of(), model.new_cache(7), 1, draws_of(pair, 1))
    for found, row, temperature in zip(draft.top_probs, logits, (1.3, 1.0), strict=True):
        np.testing.assert_allclose(found, 1 / np.exp((row - row.max()) / temperature).sum(), rtol=1e-4)


def test_the_smallest_temperatures_draw_the_argmax_with_a_probability():
    model, cold = model_of(), [SamplingParams(temperature=1e-300, seed=3), SamplingParams(temperature=1e-5, seed=3)]
    draft = model.draft_chains(rows_of(), model.new_cache(7), 4, draws_of(cold, 4))
    assert draft.tokens.tolist() == level_by_level(TorchModel(CHECKPOINT), 4)[0]
    assert (draft.top_probs > 0.5).all() and (draft.top_probs <= 1).all()


def test_a_token_is_drawn_from_the_candidates(monkeypatch):
    """With one candidate every draw is the argmax."""
    monkeypatch.setattr("paceline.models.cuda_executor.laws.chains.CANDIDATES", 1)
    model, hot = model_of(), [SamplingParams(temperature=50.0, seed=3)] * 2
    draft = model.draft_chains(rows_of(), model.new_cache(7), 4, draws_of(hot, 4))
    assert draft.tokens.tolist() == level_by_level(TorchModel(CHECKPOINT), 4)[0]


def test_the_loop_is_one_graph_that_serves_other_texts():
    capture = EagerGraphs()
    model, fresh = model_of(capture=capture), model_of()
    cache, texts = model.new_cache(7), [list(text) for text in TEXTS]
    model.forward(rows_of(), cache)
    captured = capture.num_captured
    for _ in range(3):
        rows = build_rows([
            Part(pages, len(text) - 1, text[-1:]) for pages, text in zip(PAGES, texts, strict=True)
        ])  # fmt: skip
        found = model.draft_chains(rows, cache, 4).tokens
        whole = fresh.draft_chains(rows_of(texts), fresh.new_cache(7), 4).tokens
        assert found.tolist() == whole.tolist()
        texts = [[*text, int(own[0])] for text, own in zip(texts, found, strict=True)]
    assert capture.num_captured == captured + 1


def test_chains_write_nothing_but_their_own_slots():
    model = model_of()
    cache = model.new_cache(7)
    before = model.forward(rows_of(), cache)
    read = [slot for pages, text in zip(PAGES, TEXTS, strict=True) for slot in slots(pages, len(text))]
    kept = cache.read(read)
    model.draft_chains(build_rows([Part(PAGES[0], 12, TEXTS[0][12:])]), cache, 4)
    written = np.abs(cache.read(range(7 * 16))[0]).sum((0, 2, 3)) > 0
    assert set(np.flatnonzero(written)) == {*read, *slots(PAGES[0], 16)}
    for ours, theirs in zip(cache.read(read), kept, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert len(before.logits) == 2


def slots(pages, count):
    return [pages[at // 16] * 16 + at % 16 for at in range(count)]


@pytest.mark.parametrize("attention", ["by_position", "triton"])
def test_mixtures_draft_chains_and_need_the_kernels_for_graphs(attention):
    if attention == "triton":
        pytest.importorskip("triton")
    checkpoint = RandomCheckpoint(mixture_config(num_hidden_layers=1))
    model, reference = CudaModel(checkpoint, "cpu", "float32", attention=attention), TorchModel(checkpoint)
    cache = model.new_cache(7)
    assert model.draft_chains(rows_of(), cache, 3).tokens.tolist() == level_by_level(reference, 3)[0]
    assert bool(cache.graphs) == (attention == "triton")


def test_half_the_layers_draft_too():
    model, reference = model_of().with_layers([0, 2]), TorchModel(CHECKPOINT).with_layers([0, 2])
    assert model.draft_chains(rows_of(), model.new_cache(7), 3).tokens.tolist() == level_by_level(reference, 3)[0]


PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    "seeded": SamplingParams(temperature=1, seed=5, max_tokens=20, ignore_eos=True),
    "cut": SamplingParams(temperature=1.2, top_p=0.9, seed=5, max_tokens=20, ignore_eos=True),
    "edited": SamplingParams(temperature=1, frequency_penalty=0.5, seed=5, max_tokens=20, ignore_eos=True),
}


def answers(target, params, drafter=None):
    """Texts of three prompts together."""
    source = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]
    config = EngineConfig(executor="cuda", kv_cache_memory_bytes=1 << 22, profile="none")
    spec = SpeculativeConfig("plain", policy="fixed", num_draft_tokens=4 if drafter else 0)
    engine = build_engine(LoadedModel(source, target), config, spec, drafter=drafter)
    for number in range(3):
        engine.add_request(str(number), tokens_of(6 + 9 * number, number), params)
    found = {name: done.outputs[0].token_ids for name, done in run_to_end(engine).items()}
    return found, engine


@pytest.mark.parametrize("kind", PARAMS)
def test_texts_are_the_cpus_with_a_draft_model_on_the_device(kind, monkeypatch):
    target = model_of(deterministic=True)
    plain, _ = answers(TorchModel(CHECKPOINT), PARAMS[kind])
    drafter, calls = DraftModel(model_of(), 64), []
    whole = drafter.runner.draft_chains
    monkeypatch.setattr(drafter.runner, "draft_chains", lambda *given: calls.append(given) or whole(*given))
    assert drafter.traits.prefers_coupled
    found, engine = answers(target, PARAMS[kind], drafter)
    assert found == plain
    assert engine.metrics.spec_decode_num_draft_tokens > 20
    assert engine.metrics.spec_decode_num_accepted_tokens > 0.8 * engine.metrics.spec_decode_num_draft_tokens
    assert bool(calls) == (kind != "edited")
    drafter.runner.pages.check_integrity()


def test_models_that_hand_out_logits_only_are_asked_level_by_level():
    assert isinstance(model_of(), DraftsChains)
    assert not isinstance(TorchModel(CHECKPOINT), DraftsChains)
    assert not DraftModel(TorchModel(CHECKPOINT), 4).traits.at_once
