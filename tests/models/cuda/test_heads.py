"""Heads beside a target on the device: the torch heads' numbers, chains in graphs, and plain's texts in an engine."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.config import EngineConfig, SpeculativeConfig  # noqa: E402
from paceline.engine.setup.build import build_engine  # noqa: E402
from paceline.errors import InvalidParameter, UnsupportedModel  # noqa: E402
from paceline.models.base import slot_of  # noqa: E402
from paceline.models.chains import Draws  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.graphs import EagerGraphs  # noqa: E402
from paceline.models.cuda_executor.heads.autoregressive import CudaAutoregressiveNet  # noqa: E402
from paceline.models.cuda_executor.heads.nets import CudaBlockNet, CudaStepNet  # noqa: E402
from paceline.models.cuda_executor.laws import chains  # noqa: E402
from paceline.models.files.gguf_file import GGUFCheckpoint  # noqa: E402
from paceline.models.heads.build import make_net  # noqa: E402
from paceline.models.heads.nets import NetOutput  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.models.torch_executor.heads.nets import TorchAutoregressiveNet, TorchParallelEagle  # noqa: E402
from paceline.sampling import CounterRandomness, Warper  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint, run_to_end  # noqa: E402
from tests.models.heads import records  # noqa: E402

from ..tiny import as_gguf, gguf_name  # noqa: E402
from .current_device import CurrentDevice  # noqa: E402

RNG = np.random.default_rng(5)
TOKENS = RNG.integers(0, 131, 20).tolist()
TAPS = RNG.standard_normal((20, 3 * 96)).astype(np.float32)
CHECKPOINT = RandomCheckpoint(records.TARGET)
SOURCE = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]


def on_device(attention="by_position", dtype="float32", **options):
    return LoadedModel(SOURCE, CudaModel(CHECKPOINT, "cpu", dtype, attention=attention, **options))


@pytest.fixture(scope="module")
def in_torch():
    return LoadedModel(SOURCE, TorchModel(CHECKPOINT))  # type: ignore[arg-type]


def both(in_torch, record, **options):
    return make_net(record, on_device(**options)), make_net(record, in_torch)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)


EAGLES = {
    "eagle3": records.eagle3(),
    "eagle3.1": records.eagle3(fc_norm=True, norm_output=True),
    "two layers": records.eagle3(layer=records.draft_layer(num_hidden_layers=2), num_layers=2),
    "tables of its own": records.eagle3(owns_embedding=True, owns_head=True),
    "eagle": records.reduced("eagle", fc_bias=True),
}


HOT = SamplingParams(temperature=0.9, top_k=30, min_p=0.01)


def draws_of(num_requests, num_tokens):
    """Draws of `HOT` requests for `drawn`."""
    noise = CounterRandomness(7)
    keys = [[noise.key(10 * i + level, "target", -1) for level in range(num_tokens)] for i in range(num_requests)]
    values = [np.full(num_requests, getattr(HOT, name)) for name in ("temperature", "min_p", "top_k", "top_p")]
    return Draws(*values, np.array(keys, np.uint64))


def drawn(logits, ids, request, level):
    """The token that the host draws from a net's logits."""
    law = Warper(HOT, token_ids=[], num_prompt_tokens=0).law(logits, ids=ids)
    return CounterRandomness(7).draw(law, 10 * request + level, "target")


def likeliest(logits, ids, request, level):
    return int(logits.argmax()) if ids is None else int(ids[logits.argmax()])


WAYS = pytest.mark.parametrize(
    ("pick", "asked"), [(likeliest, lambda *_: None), (drawn, draws_of)], ids=["greedy", "drawn"]
)


def chain_of(net, pages, texts, fed, num_tokens, pick):
    """Chains by passes of a net that hands out logits."""
    ids, tokens, probs = net.record.draft_ids, [], []
    for request, (own_pages, text, hidden) in enumerate(zip(pages, texts, fed, strict=True)):
        cache, at, rows, own, sure = net.new_cache(8), len(text), text, [], []
        for level in range(num_tokens):
            part = Part(own_pages, 0 if not level else at + level - 1, rows, logits="last")
            logits, states = net.forward(build_rows([part]), hidden, cache)
            heat = HOT.temperature if pick is drawn else 1
            sure.append(1 / np.exp((logits[0] - logits[0].max()) / heat).sum())
            own.append(pick(logits[0], ids, request, level))
            rows, hidden = own[-1:], states[-1:]
        tokens.append(own)
        probs.append(sure)
    return tokens, probs


@WAYS
@pytest.mark.parametrize("name", EAGLES)
def test_heads_that_feed_on_themselves(in_torch, name, pick, asked):
    record = EAGLES[name]
    ours, theirs = both(in_torch, record)
    assert isinstance(ours, CudaAutoregressiveNet)
    taps = TAPS[:, : 96 * len(record.config.taps)]
    hidden = ours.project(taps)
    close(hidden, theirs.project(taps))
    rows = build_rows([Part(range(4), 0, TOKENS[:12])])
    for found, want in zip(*(net.forward(rows, hidden[:12], net.new_cache(4)) for net in (ours, theirs)), strict=True):
        close(found, want)
    pages, texts, fed = ((2, 0), (1, 3)), (TOKENS[:14], TOKENS[5:20]), (hidden[:14], hidden[5:20])
    tokens, probs = chain_of(theirs, pages, texts, fed, 4, pick)
    parts = [Part(own, 0, text, logits="last") for own, text in zip(pages, texts, strict=True)]
    draft = ours.draft_chains(build_rows(parts), np.concatenate(fed), ours.new_cache(4), 4, asked(2, 4))
    assert draft.tokens.tolist() == tokens
    close(draft.top_probs, probs)


@WAYS
@pytest.mark.parametrize("record", [records.dspark(), records.dflash()], ids=["dspark", "dflash"])
def test_heads_that_draft_a_block(in_torch, record, pick, asked):
    ours, theirs = both(in_torch, record)
    assert isinstance(ours, CudaBlockNet)
    config, taps = record.config, TAPS[:13, : 96 * len(record.config.taps)]
    size, first = config.block_size, 0 if config.sample_from_anchor else 1
    parts = [Part(own, 13, [7 + own[0], *[config.mask_token_id] * (size - 1)]) for own in ((2, 0), (1, 3))]
    rows = build_rows(parts)
    lengths = np.full(2 * size, 13 + size, np.int32)
    rows, caches = replace(rows, natural_lengths=lengths, num_keys=lengths), []
    for net in (ours, theirs):
        caches.append(net.new_cache(4))
        for part in parts:
            net.inject(taps, np.arange(13), slot_of(np.array(part.pages), np.arange(13)), caches[-1])
    found, want = (net.forward(rows, cache) for net, cache in zip((ours, theirs), caches, strict=True))
    close(found.logits, want.logits)
    close(found.hidden, want.hidden)
    tokens = np.array([5, 60])
    close(ours.bias(tokens), theirs.bias(tokens))
    close(ours.confidence(want.hidden[:2], tokens), theirs.confidence(want.hidden[:2], tokens))
    places = first + np.arange(3) + size * np.arange(2)[:, None]
    drafting = replace(rows, logit_rows=places.reshape(-1).astype(np.int32))
    draft = ours.draft_chains(drafting, caches[0], asked(2, 3))
    assert draft.tokens.tolist() == _below(theirs, want.logits.reshape(2, size, -1)[:, first:], (9, 8), pick)


def _below(net, blocks, anchors, pick):
    tokens = []
    for request, (logits, before) in enumerate(zip(blocks, anchors, strict=True)):
        own = []
        for level, place in enumerate(logits[:3]):
            before = pick(place + net.bias(np.array([before]))[0], net.record.draft_ids, request, level)
            own.append(before)
        tokens.append(own)
    return tokens


@WAYS
@pytest.mark.parametrize("make", [records.mlp_speculator, records.medusa, records.blockwise])
def test_heads_without_attention(in_torch, make, pick, asked):
    record = make()
    ours, theirs = both(in_torch, record)
    assert isinstance(ours, CudaStepNet)
    begun, above = ours.begin(TAPS[:3, :96]), np.array(TOKENS[:3])
    close(begun, theirs.begin(TAPS[:3, :96]))
    states, tokens, want = begun, above, []
    for level in range(3):
        logits, states = theirs.step(level, states, tokens)
        close(ours.step(level, begun, above)[0], theirs.step(level, begun, above)[0])
        tokens = np.array([pick(row, record.draft_ids, request, level) for request, row in enumerate(logits)])
        want.append(tokens.tolist())
    assert ours.draft_chains(begun, above, 3, asked(3, 3)).tokens.T.tolist() == want
    assert ours.draft_chains(begun[:2], above[:2], 3, asked(2, 3)).tokens.T.tolist() == [own[:2] for own in want]


def test_a_chain_is_one_graph_whatever_is_accepted():
    capture = EagerGraphs()
    net = make_net(EAGLES["eagle3"], on_device(capture=capture))
    hidden, cache = net.project(TAPS), net.new_cache(4)
    for start, count in ((0, 4), (4, 3), (7, 1), (8, 6)):
        part = Part((2, 0), start, TOKENS[start : start + count], logits="last")
        net.draft_chains(build_rows([part]), hidden[start : start + count], cache, 3)
    assert capture.num_captured == 1


@pytest.mark.parametrize("name", ["eagle3", "eagle"])
def test_kernels_draw_what_the_host_draws(in_torch, name, monkeypatch):
    """With a draft vocabulary, whose columns are other tokens, and without."""
    pytest.importorskip("triton")
    monkeypatch.setattr("tests.models.cuda.test_heads.HOT", SamplingParams(temperature=0.9, min_p=0.01))
    ours, theirs = both(in_torch, EAGLES[name], attention="triton")
    assert ours.kernels is not None
    hidden = theirs.project(TAPS[:, : 96 * len(ours.record.config.taps)])
    pages, texts, fed = ((2, 0), (1, 3)), (TOKENS[:14], TOKENS[5:20]), (hidden[:14], hidden[5:20])
    tokens, probs = chain_of(theirs, pages, texts, fed, 4, drawn)
    rows = build_rows([Part(own, 0, text, logits="last") for own, text in zip(pages, texts, strict=True)])
    draft = ours.draft_chains(rows, np.concatenate(fed), ours.new_cache(4), 4, draws_of(2, 4))
    assert draft.tokens.tolist() == tokens
    close(draft.top_probs, probs)


@pytest.mark.parametrize("rows", [[2, 3, 4], [0, 2, 3], [3, 1]])
def test_listed_rows_of_input_states_are_those_of_their_taps(rows):
    net = make_net(EAGLES["eagle3"], on_device())
    taps = TAPS[:, : 96 * len(net.record.config.taps)]
    close(np.asarray(net.project(taps)[1:][rows]), np.asarray(net.project(taps[1:][rows])))


@pytest.mark.parametrize("family", ["dspark", "medusa", "eagle3"])
def test_tokens_are_picked_on_the_heads_own_device(family, monkeypatch):
    """Triton launches on the current device: on a machine with several, another one would read this one's logits."""
    current, picked_on = CurrentDevice(), []

    def rank(logits):
        picked_on.append(current.name)
        return chains.likeliest(logits)

    for module in ("heads.nets", "passes", "heads.autoregressive"):
        monkeypatch.setattr(f"paceline.models.cuda_executor.{module}.on_device", current)
    target = on_device()
    net = make_net({"dspark": records.dspark, "medusa": records.medusa, "eagle3": records.eagle3}[family](), target)
    net.kernels = chains.Kernels(rank, None)
    width = 96 * len(net.record.config.taps)
    if family == "dspark":
        size = net.record.config.num_steps + 1
        net.draft_chains(build_rows([Part((0,), 0, TOKENS[:size], logits="all")]), net.new_cache(1))
    elif family == "medusa":
        net.draft_chains(net.begin(TAPS[:1, :width]), np.array([5]), 2)
    else:
        rows = build_rows([Part((0,), 0, TOKENS[:4], logits="last")])
        net.draft_chains(rows, net.project(TAPS[:4, :width]), net.new_cache(1), 3)
    assert set(picked_on) == {"cpu"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("make", [records.eagle3, records.dspark, records.mlp_speculator, records.medusa])
def test_halves_are_stored_and_nothing_meets_another_format(in_torch, make, dtype):
    record = make()
    net, exact = make_net(record, on_device(dtype=dtype)), make_net(record, in_torch)
    stored = {name: one.dtype for name, one in net.net.state_dict().items() if one.ndim == 2}
    assert set(stored.values()) == {getattr(torch, dtype)}
    if make in (records.eagle3, records.dspark):
        taps = TAPS[:, : 96 * len(record.config.taps)]
        rows, caches = build_rows([Part(range(2), 0, TOKENS[:5])]), (net.new_cache(2), exact.new_cache(2))
        if make is records.eagle3:
            fed = exact.project(taps)[:5]
            outputs = [_kept(one.forward(rows, fed, cache)) for one, cache in zip((net, exact), caches, strict=True)]
            last = replace(rows, logit_rows=rows.logit_rows[-1:])
            net.draft_chains(last, fed, net.new_cache(2), 3)
        else:
            for one, cache in zip((net, exact), caches, strict=True):
                one.inject(taps[:3], np.arange(3), np.arange(16, 19), cache)
            outputs = [_kept(one.forward(rows, cache)) for one, cache in zip((net, exact), caches, strict=True)]
            net.bias(np.array([3]))
            net.confidence(outputs[0].hidden[:1], np.array([3]))
            net.draft_chains(replace(rows, logit_rows=rows.logit_rows[:4]), caches[0])
        found, want = outputs[0].logits, outputs[1].logits
    else:
        begun = exact.begin(TAPS[:3, :96])
        found, want = (one.step(0, begun, np.array([4, 5, 6]))[0] for one in (net, exact))
        net.draft_chains(begun, np.array([4, 5, 6]), 2)
    assert np.corrcoef(found.ravel(), want.ravel())[0, 1] > 0.99


FUSED = EAGLES | {
    "norm before the residual": records.eagle3(norm_before_residual=True, fc_norm=True, norm_output=True),
    "biases and norms of heads": records.eagle3(
        layer=records.draft_layer(attention_bias=True, attention_out_bias=True, qk_norm=True)
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_few_rows_take_kernels_that_say_what_the_modules_say(name):
    pytest.importorskip("triton")
    record = FUSED[name]
    ours, modules = (make_net(record, on_device(kind, "float16")) for kind in ("triton", "by_position"))
    assert ours._fused is not None and modules._fused is None
    hidden = modules.project(TAPS[:, : 96 * len(record.config.taps)])
    hidden = hidden[:5]
    rows = build_rows([Part((2, 0), 0, TOKENS[:2]), Part((1, 3), 0, TOKENS[2:5])])
    outputs = [_kept(net.forward(rows, hidden, net.new_cache(4))) for net in (ours, modules)]
    for found, want in zip(*outputs, strict=True):
        apart = np.abs(found - want) / np.abs(want).max()
        assert apart.max() < 1.5e-2 and apart.mean() < 1.5e-3
    last = replace(rows, logit_rows=np.array([1, 4], np.int32))
    drafts = [net.draft_chains(last, hidden, net.new_cache(4), 2) for net in (ours, modules)]
    np.testing.assert_allclose(drafts[0].top_probs[:, 0], drafts[1].top_probs[:, 0], rtol=0.1)
    assert drafts[0].tokens[:, 0].tolist() == drafts[1].tokens[:, 0].tolist()


def test_many_rows_take_the_modules():
    pytest.importorskip("triton")
    net = make_net(EAGLES["eagle3"], on_device("triton", "float16"))
    assert net._kernels_for(torch.zeros(32)) is not None
    assert net._kernels_for(torch.zeros(33)) is None


@pytest.mark.parametrize("record", [records.dspark(), records.dflash(embedding_scale=9.8)], ids=["dspark", "dflash"])
def test_blocks_take_kernels_that_say_what_the_modules_say(record):
    pytest.importorskip("triton")
    nets = [make_net(record, on_device(kind, "float16")) for kind in ("triton", "by_position")]
    size, taps = record.config.block_size, TAPS[:13, : 96 * len(record.config.taps)]
    rows = build_rows([Part((2, 0), 13, [7, *[record.config.mask_token_id] * (size - 1)])])
    ends = np.full(size, 13 + size, np.int32)
    outputs = []
    for net in nets:
        cache = net.new_cache(4)
        net.inject(taps, np.arange(13), slot_of(np.array((2, 0)), np.arange(13)), cache)
        outputs.append(_kept(net.forward(replace(rows, natural_lengths=ends, num_keys=ends), cache)))
    assert nets[0]._fused is not None
    for found, want in zip(*outputs, strict=True):
        np.testing.assert_allclose(found, want, atol=4e-3 * np.abs(want).max())


def _kept(output):
    """A copy: results hold until the next call of the net."""
    return NetOutput(output.logits.copy(), output.hidden.copy())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", ["by_position", "triton"])
def test_tables_that_the_target_stores_in_blocks_are_widened(tmp_path, attention, tied):
    if attention == "triton":
        pytest.importorskip("triton")
    plain = RandomCheckpoint(replace(records.TARGET, tie_word_embeddings=tied))
    names = ["model.embed_tokens.weight"] if tied else ["model.embed_tokens.weight", "lm_head.weight"]
    storage = {gguf_name(plain.config, name): "Q8_0" for name in names}
    checkpoint = GGUFCheckpoint(as_gguf(tmp_path / "blocks.gguf", plain, storage=storage))
    source = ModelSource("random", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    model = CudaModel(checkpoint, "cpu", "gguf", attention=attention)
    rows = build_rows([Part((3, 0), 0, TOKENS[:18])])
    found, want = (
        net.forward(rows, TAPS[:18, :96], net.new_cache(5))
        for net in (make_net(EAGLES["eagle"], LoadedModel(source, each)) for each in (model, TorchModel(checkpoint)))
    )
    close(found.logits, want.logits)


def test_what_runs_as_in_torch_and_what_is_refused():
    assert type(make_net(EAGLES["eagle3"], on_device("sdpa"))) is TorchAutoregressiveNet
    assert type(make_net(records.p_eagle(), on_device())) is TorchParallelEagle
    assert not hasattr(make_net(records.falcon(), on_device()), "draft_chains")
    with pytest.raises(InvalidParameter, match="dtype"):
        make_net(EAGLES["eagle3"], on_device(), "int8")
    with pytest.raises(UnsupportedModel, match="hydra"):
        make_net(records.hydra(), on_device())


AT_ONCE = ("eagle3", "dspark", "mlp_speculator", "medusa")
PROMPTS = [RNG.integers(3, 120, n).tolist() for n in (1, 9, 40)]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
SEEDED = SamplingParams(temperature=1, seed=11, max_tokens=16, ignore_eos=True)


def texts(target, params, family=None, **options):
    name = "tests.drafters.heads.random_heads:make_random_head"
    spec = None if family is None else SpeculativeConfig(name, policy="fixed", options={"family": family} | options)
    config = EngineConfig(executor="cuda", kv_cache_memory_bytes=1 << 22, profile="none", max_num_batched_tokens=24)
    engine = build_engine(target, config, spec)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, params)
    found = {name: done.outputs[0].token_ids for name, done in run_to_end(engine).items()}
    if family is not None:
        assert engine.metrics.spec_decode_num_draft_tokens > 0
        assert engine.drafter.traits.prefers_coupled == ("tree" not in options and family in AT_ONCE)
    return found


@pytest.fixture(scope="module")
def plain(in_torch):
    return {name: texts(in_torch, params) for name, params in (("greedy", GREEDY), ("seeded", SEEDED))}


@pytest.mark.parametrize("family", ["eagle3", "p_eagle", "dspark", "mlp_speculator", "medusa", "falcon"])
def test_texts_are_the_cpus(plain, family):
    target = on_device(deterministic=True)
    assert texts(target, GREEDY, family) == plain["greedy"]
    assert texts(target, SEEDED, family) == plain["seeded"]


def test_trees_too(plain):
    target = on_device(deterministic=True)
    assert texts(target, GREEDY, "eagle3", tree="dynamic", topk=2, depth=3) == plain["greedy"]
