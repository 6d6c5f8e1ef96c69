"""The executor and its heads on a simulated device that is not the CPU: no operation mixes devices."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.models.chains import Draws  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.laws import answers_of, picks_of  # noqa: E402
from paceline.models.cuda_executor.laws.noise import exponentials, words  # noqa: E402
from paceline.models.heads.build import make_net  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.sampling import CounterRandomness, Law, TokenTree, Warper  # noqa: E402
from paceline.sampling.answered import question_about, questions_about  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint, mixture_config, small_config  # noqa: E402
from tests.far_device import FAR, FarTensor, far_device, without_waiting  # noqa: E402
from tests.models.heads import records  # noqa: E402

from .batches import mixed_batch, tokens_of  # noqa: E402

FAMILIES = {
    "plain": small_config("qwen2"),
    "gemma": small_config("gemma2", windows=(5, 0, 7), attention_softcap=3.0, post_norms=True, qk_norm=False),
    "experts": mixture_config(),
    "sinks": small_config(attention_sinks=True),
    "learned": small_config("gpt2", norm="layer", mlp="gelu_tanh", position_embedding="learned", mlp_bias=True),
}


def pair(checkpoint, **options):
    """The model there and here."""
    there, here = (CudaModel(checkpoint, name, "float32", **options) for name in (FAR.type, "cpu"))
    assert all(isinstance(one, FarTensor) for one in there.stack.parameters())
    return there, here


def draws_of(count):
    """Three draws for each of `count` requests."""
    half = np.full(count, 0.5)
    return Draws(half, 0 * half, 0 * half, half, np.arange(3 * count, dtype=np.uint64).reshape(count, 3))


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["by_position", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_passes_and_chains(family, attention):
    rows = mixed_batch(30)
    chained = build_rows([Part((2, 0), 0, tokens_of(7), logits="last"), Part((1,), 0, tokens_of(4, 1), logits="last")])
    with far_device():
        both = pair(RandomCheckpoint(FAMILIES[family]), attention=attention)
        caches = [model.new_cache(16) for model in both]
        ours, theirs = (model.forward(rows, cache, (1,)) for model, cache in zip(both, caches, strict=True))
        close(ours.logits, theirs.logits)
        close(ours.taps[1], theirs.taps[1])
        for draws in (None, draws_of(2)):
            drafts = [model.draft_chains(chained, model.new_cache(3), 3, draws) for model in both]
            assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
        for cache in caches:
            cache.move([1, 2], [5, 6])
            assert cache.read([5])[0].shape[1] == 1


def test_answers_to_questions_of_every_kind():
    noise, laws = CounterRandomness(3), Law(np.array([4, 9]), np.array([0.25, 0.75]))
    settings = (
        {"temperature": 0}, {"temperature": 0, "repetition_penalty": 1.3}, {"temperature": 1.0, "top_k": 20},
        {"temperature": 0.7, "top_p": 0.9, "min_p": 0.02, "logit_bias": {3: 5.0}},
    )  # fmt: skip
    rows = build_rows([Part((0,), 0, tokens_of(5))])
    warpers = [Warper(SamplingParams(**values), token_ids=[3, 4], num_prompt_tokens=2) for values in settings]
    asked = [
        question_about(each, (5,), noise.key(i, "target", -1), ((4, laws),) if each.params.temperature else ())
        for i, each in enumerate(warpers)
    ]
    with far_device():
        outputs = [
            model.begin_drawn(rows, model.new_cache(1), (2,), [*asked, None])()
            for model in pair(RandomCheckpoint(FAMILIES["plain"]), deterministic=True, attention="by_position")
        ]
    assert [one and one.pick for one in outputs[0].answers] == [one and one.pick for one in outputs[1].answers]
    close(outputs[0].logits, outputs[1].logits)


def test_noise_there_is_the_hosts():
    key = CounterRandomness(3).key(7, "target", -1)
    with far_device():
        there = exponentials(torch.from_numpy(words([key])).to(FAR), torch.arange(97).to(FAR)).cpu().numpy()
    np.testing.assert_array_max_ulp(there[0], CounterRandomness(3).exponentials(np.arange(97), 7, "target"), 1)


@pytest.mark.parametrize("law", [{"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.8}])
def test_drawn_passes_that_are_launched_ahead(law, monkeypatch):
    """With the twin in the kernels' place; drawing does not wait for the device, which would end all being ahead."""

    def drawn_without_waiting(*given):
        with without_waiting():
            return answers_of(*given)

    monkeypatch.setattr("paceline.models.cuda_executor.model.answers_of", drawn_without_waiting)
    noise, warper = CounterRandomness(3), Warper(SamplingParams(**law))
    picks = []
    with far_device():
        for model in pair(RandomCheckpoint(FAMILIES["plain"]), attention="by_position"):
            model._race = lambda logits, peaks, wide: picks_of(answers_of(logits, peaks, wide))[wide.places]
            foreseen, cache, own = model._foreseen, model.new_cache(1), [7]
            foreseen.gain.assume(1e9, 1.0, 1.0)
            for step in range(8):
                [question] = questions_about(TokenTree(), warper, noise, step + 1, "draws")
                drawn = model.begin_drawn(build_rows([Part((0,), step, own[-1:])]), cache, (), [question])()
                own.append(drawn.answers[0].pick)
            assert foreseen.num_taken > 4
            picks.append(own)
    assert picks[0] == picks[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [records.eagle3, records.dspark, records.mlp_speculator, records.medusa,
                                  records.falcon, records.p_eagle])  # fmt: skip
def test_heads(make, dtype):
    checkpoint, record = RandomCheckpoint(records.TARGET), make()
    source = ModelSource("random", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    taps = np.random.default_rng(1).standard_normal((6, 96 * len(record.config.taps))).astype(np.float32)
    with far_device():
        models = [CudaModel(checkpoint, name, dtype, attention="by_position") for name in (FAR.type, "cpu")]
        found = [run(make_net(record, LoadedModel(source, model)), taps) for model in models]
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def run(net, taps):
    """What a net of any shape says of six rows, and of a chain below them where it drafts those."""
    rows, tokens = build_rows([Part((0,), 0, tokens_of(6), logits="last")]), np.array(tokens_of(6), np.int32)
    if hasattr(net, "extend"):
        cache, places = net.new_cache(1), np.arange(6)
        net.extend(tokens, net.project(taps), places, places, places - 1, cache)
        from paceline.models.heads.nets import BlockOfRows

        return list(net.draft([BlockOfRows(places[-2:], places[-2:], places)], cache))
    if hasattr(net, "project"):
        cache, fed = net.new_cache(1), net.project(taps)
        drafts = [*net.draft_chains(rows, fed, cache, 3), *drawn(net, 1, rows, fed, cache, 3)]
        return [*drafts, *(one.copy() for one in net.forward(rows, fed, cache))]
    if hasattr(net, "inject"):
        cache = net.new_cache(2)
        net.inject(taps, np.arange(6), np.arange(16, 22), cache)
        outputs = [one.copy() for one in net.forward(rows, cache)]
        more = net.bias(tokens), net.confidence(outputs[1], tokens)
        return [*outputs, *more, *net.draft_chains(rows, cache), *drawn(net, 1, rows, cache)]
    begun = net.begin(taps)
    drafts = [*net.draft_chains(begun, tokens, 3), *drawn(net, len(tokens), begun, tokens, 3)]
    return [begun, *net.step(0, begun, tokens), *drafts]


def drawn(net, count, *given):
    """A drawn chain for each of `count` requests; nothing from a net that cannot draw."""
    return net.draft_chains(*given, draws_of(count)) if net.draws_chains else []
