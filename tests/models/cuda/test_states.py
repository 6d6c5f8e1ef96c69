"""Hidden states that stay on the device: they are the arrays they would be, and a head reads them where they are."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.config import EngineConfig, SpeculativeConfig  # noqa: E402
from paceline.engine.setup.build import build_engine  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.states import concatenate  # noqa: E402
from paceline.models.torch_executor.device_states import DeviceStates  # noqa: E402
from paceline.sampling.answered import LARGEST  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint, run_to_end  # noqa: E402
from tests.far_device import FAR, far_device, without_waiting  # noqa: E402
from tests.models.heads import records  # noqa: E402

from .batches import tokens_of  # noqa: E402

CHECKPOINT = RandomCheckpoint(records.TARGET)
SOURCE = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]
NUMBERS = np.arange(60, dtype=np.float32).reshape(10, 6)


def test_parts_of_a_table_are_those_of_the_array():
    with far_device():
        states = DeviceStates(torch.from_numpy(NUMBERS).to(FAR))
        with without_waiting():
            first, second, third = states.by_column(2)
            parts = {
                "slice of a slice": (states[2:8][1:-1], NUMBERS[3:7]),
                "last": (first[-1:], NUMBERS[-1:, :2]),
                "none": (states[4:4], NUMBERS[4:4]),
                "listed": (second[3:][[0, 4, 2]], NUMBERS[[3, 7, 5], 2:4]),
                "listed, a run": (second[3:][[1, 2, 3]], NUMBERS[4:7, 2:4]),
                "listed, two runs": (second[3:][[0, 1, 4, 5]], NUMBERS[[3, 4, 7, 8], 2:4]),
                "below each other": (concatenate([third[:2], third[6:]]), NUMBERS[[0, 1, 6, 7, 8, 9], 4:]),
                "side by side": (concatenate([first[1:3], third[1:3]], axis=1), NUMBERS[1:3][:, [0, 1, 4, 5]]),
                "all columns": (concatenate([one[5:] for one in (first, second, third)], axis=1), NUMBERS[5:]),
                "a copy": (states[1:2].copy(), NUMBERS[1:2]),
            }
        mixed = concatenate([NUMBERS[:2], states[2:]])
        assert isinstance(mixed, DeviceStates)
        for name, (found, wanted) in (parts | {"with an array": (mixed, NUMBERS)}).items():
            assert len(found) == len(wanted), name
            np.testing.assert_array_equal(np.asarray(found), wanted, err_msg=name)
            np.testing.assert_array_equal(np.stack([found, found], axis=1)[:, 1], wanted, err_msg=name)


def test_columns_side_by_side_are_joined_without_an_operation():
    table = torch.from_numpy(NUMBERS)
    columns = DeviceStates(table).by_column(2)
    assert concatenate([one[2:5] for one in columns], axis=1).tensor().data_ptr() == table[2].data_ptr()


@pytest.mark.parametrize("attention", ["by_position", "sdpa"])
def test_states_of_a_pass_stay_what_they_were(attention):
    """Graphs write every pass to the same tensors."""
    model = CudaModel(CHECKPOINT, "cpu", "float32", attention=attention)
    cache, kept, wanted = model.new_cache(1), [], []
    for step, token in enumerate(tokens_of(6)):
        rows = build_rows([Part((0,), step, [token])])
        wanted.append(model.forward(rows, model_with(cache, model), (0, 2)).taps)
        kept.append(model.begin_drawn(rows, cache, (0, 2), [LARGEST])().taps)
    for found, want in zip(kept, wanted, strict=True):
        for tap in (0, 2):
            np.testing.assert_array_equal(np.asarray(found[tap]), want[tap])


def model_with(cache, model):
    """A cache of the same contents."""
    other = model.new_cache(1)
    for copied, own in ((other.keys, cache.keys), (other.values, cache.values)):
        copied.copy_(own)
    return other


@pytest.mark.parametrize("taps", [(), (0, 2), (1, -1)])
def test_passes_with_taps_are_launched_ahead(taps):
    """Two texts, the first of which ends: the other's states are among those of the pass that has both."""
    model, alone = (CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position", deterministic=True) for _ in "ab")
    foreseen = model._foreseen
    foreseen.gain.assume(1e9, 1.0, 1.0)
    caches, kept, wanted = [model.new_cache(2), alone.new_cache(2)], [], []
    for number in (2, 1):  # recorded: other passes are not launched ahead
        rows = build_rows([Part((page,), 0, [5]) for page in range(number)])
        for each, cache in zip((model, alone), caches, strict=True):
            each.forward(rows, cache, taps)
    tokens = [[5], [9]]
    for step in range(8):
        texts = (0, 1) if step < 4 else (1,)
        rows = build_rows([Part((text,), step, tokens[text][-1:]) for text in texts])
        drawn = model.begin_drawn(rows, caches[0], taps, [LARGEST] * len(texts))()
        want = alone.forward(rows, caches[1], taps)
        assert [one.pick for one in drawn.answers] == want.logits.argmax(1).tolist()
        for text, one in zip(texts, drawn.answers, strict=True):
            tokens[text].append(one.pick)
        kept.append(drawn.taps)
        wanted.append(want.taps)
    assert foreseen.num_taken == 7
    for found, want in zip(kept, wanted, strict=True):
        assert found.keys() == want.keys() == set(taps)
        for tap in taps:
            np.testing.assert_array_equal(np.asarray(found[tap]), want[tap])


def test_a_pass_launched_ahead_with_other_taps_is_not_taken():
    model = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position")
    model._foreseen.gain.assume(1e9, 1.0, 1.0)
    cache, said = model.new_cache(1), [7]
    for step in range(6):
        taps = (0,) if step < 3 else (0, 2)
        drawn = model.begin_drawn(build_rows([Part((0,), step, said[-1:])]), cache, taps, [LARGEST])()
        assert set(drawn.taps) == set(taps)
        said.append(drawn.answers[0].pick)
    assert 0 < model._foreseen.num_taken < 5


GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def answers(model, family, policy="fixed", prompts=((3, 4, 5) * 3, (8, 9)), params=GREEDY):
    """(texts of an engine that drafts with a random head, the engine)."""
    name = "tests.drafters.heads.random_heads:make_random_head"
    spec = None if family is None else SpeculativeConfig(name, policy=policy, options={"family": family})
    config = EngineConfig(executor="cuda", kv_cache_memory_bytes=1 << 22, profile="none", prefix_caching=False)
    engine = build_engine(LoadedModel(SOURCE, model), config, spec)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), list(prompt), params)
    return {name: done.outputs[0].token_ids for name, done in run_to_end(engine).items()}, engine


@pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, temperature=0.8, seed=3)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("family", ["eagle3", "dspark", "mlp_speculator", "medusa"])
def test_chains_of_a_head_fetch_no_states(family, params, monkeypatch):
    model = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position", deterministic=True)
    plain, _ = answers(model, None, params=params)

    def fetched(*_, **__):
        raise AssertionError("states were fetched")

    monkeypatch.setattr(DeviceStates, "__array__", fetched)
    found, engine = answers(model, family, params=params)
    assert found == plain
    assert engine.metrics.spec_decode_num_draft_tokens > 0


@pytest.mark.parametrize("family", ["eagle3", "mlp_speculator", "falcon"])
def test_engines_with_heads_on_a_device_that_is_not_the_cpu(family):
    params = replace(GREEDY, max_tokens=9)
    plain, _ = answers(CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position"), None, params=params)
    with far_device():
        there = CudaModel(CHECKPOINT, FAR.type, "float32", attention="by_position")
        found, engine = answers(there, family, params=params)
    assert found == plain
    assert engine.metrics.spec_decode_num_draft_tokens > 0


def test_a_head_that_is_not_asked_leaves_passes_launched_ahead():
    model = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position")
    plain, _ = answers(model, None)
    foreseen = model._foreseen
    foreseen.gain.assume(1e9, 1.0, 1.0)
    found, engine = answers(model, "eagle3", params=replace(GREEDY, speculative=False))
    assert found == plain and engine.drafter.traits.taps
    assert foreseen.num_taken > 10
