"""An engine whose heads' drafts are verified before the host knows them: the texts are the torch executor's."""

import gc
import random
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.config import SpeculativeConfig  # noqa: E402
from paceline.drafters.heads.head import HeadDrafter, make_runner  # noqa: E402
from paceline.drafters.heads.hidden_states import HiddenStates  # noqa: E402
from paceline.engine.setup.build import build_engine  # noqa: E402
from paceline.models.chains import Draws  # noqa: E402
from paceline.models.cuda_executor import CudaModel, verdicts  # noqa: E402
from paceline.models.cuda_executor.foreseen import Foreseen  # noqa: E402
from paceline.models.cuda_executor.passes import Passes  # noqa: E402
from paceline.models.heads.build import make_net  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.sampling.answered import LARGEST  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from tests.engine import test_foreseen_passes as foreseen_passes  # noqa: E402
from tests.engine.test_foreseen_passes import GREEDY, KINDS, SAMPLED, some_requests, texts  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint  # noqa: E402
from tests.far_device import FAR, far_device, may_wait, without_waiting  # noqa: E402
from tests.models.heads import records  # noqa: E402

CHECKPOINT = RandomCheckpoint(records.TARGET)
SOURCE = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]
HEADS = {"eagle3": records.eagle3(), "dspark": records.dspark(), "medusa": records.medusa()}


def model_of(device="cpu"):
    return CudaModel(CHECKPOINT, device, "float32", attention="by_position", deterministic=True)


def engine_of(model, pages, spec=None, drafter=None, **config):
    bytes_each = 16 * 2 * 4 * records.TARGET.num_hidden_layers * records.TARGET.num_key_value_heads * 32
    config = foreseen_passes.EngineConfig(kv_cache_memory_bytes=pages * bytes_each, profile="none", **config)
    return build_engine(LoadedModel(SOURCE, model), config, spec, drafter=drafter)


def with_head(model, record, pages, policy="fixed", most=3, **config):
    """An engine that drafts with `record`."""
    net = make_net(record, LoadedModel(SOURCE, model))
    states = HiddenStates(record.config.taps, model, None)  # type: ignore[arg-type]
    drafter = HeadDrafter("head", make_runner(net, states, pages, records.TARGET.vocab_size), record)
    spec = SpeculativeConfig("plain", policy=policy, num_draft_tokens=most)
    engine = engine_of(model, pages, spec, drafter, **config)
    states._cache = engine.cache
    return engine


def requests_of(kinds, count=3, max_tokens=24):
    return [
        (0, [9 + place] * (3 + 7 * place),
         SamplingParams(**{"temperature": 0, "seed": place, "max_tokens": max_tokens, "ignore_eos": True} | kind), None)
        for place, kind in zip(range(count), kinds, strict=False)
    ]  # fmt: skip


@pytest.mark.parametrize("kinds", [
    [{}] * 3, [{"temperature": 0.8}] * 3, [{}, {"temperature": 0.9, "top_p": 0.9}, {"temperature": 1.1, "top_k": 5}],
], ids=["greedy", "drawn", "mixed"])  # fmt: skip
@pytest.mark.parametrize("head", HEADS)
def test_passes_are_launched_before_their_drafts_are_known(head, kinds):
    model, requests = model_of(), requests_of(kinds)
    engine = with_head(model, HEADS[head], 40)
    assert texts(engine, requests) == texts(engine_of(TorchModel(CHECKPOINT), 40), requests)
    foreseen = model._foreseen
    assert foreseen.num_foreseen > 10 and foreseen.num_taken >= foreseen.num_foreseen - 1  # one request ends earlier
    assert engine.scheduler.pool.num_free == 40


@pytest.mark.parametrize(
    ("seed", "kinds"), [*((seed, KINDS) for seed in range(5)), (0, GREEDY), (1, GREEDY), (2, SAMPLED), (3, SAMPLED)]
)
def test_requests_that_come_go_and_lose_their_pages(seed, kinds):
    rng = random.Random(seed)
    requests, pages = list(some_requests(rng, kinds)), rng.choice([20, 24, 40])
    config = {"scheduler": rng.choice(["stall_free", "sarathi", "orca"]), "prefix_caching": seed % 2 == 0}
    head, policy = rng.choice(sorted(HEADS)), rng.choice(["fixed", "fixed", "heuristic"])
    ours = with_head(model_of(), HEADS[head], pages, policy, rng.choice([1, 3]), **config)
    said, wanted = (texts(each, requests) for each in (ours, engine_of(TorchModel(CHECKPOINT), pages, **config)))
    for name in {*said, *wanted} - {str(i) for i, (*_, aborted) in enumerate(requests) if aborted is not None}:
        assert said[name] == wanted[name]
    assert ours.scheduler.pool.num_free == pages


def test_passes_that_verify_other_drafts_than_the_engine_asks_for_become_rare(monkeypatch):
    model, requests = model_of(), requests_of([{}], 1, 60)
    verify, verify_after = Foreseen.verify, Foreseen.verify_after

    def wrongly_after(self, pending, draft, draws):
        return verify_after(self, pending, draft._replace(tokens=draft.tokens + 1), draws) and None

    monkeypatch.setattr(Foreseen, "verify", lambda self, drafts, draws: verify(self, drafts + 1, draws) and None)
    monkeypatch.setattr(Foreseen, "verify_after", wrongly_after)
    engine = with_head(model, HEADS["eagle3"], 40)
    assert texts(engine, requests) == texts(engine_of(TorchModel(CHECKPOINT), 40), requests)
    assert 1 < model._foreseen.num_foreseen < 8 and not model._foreseen.num_taken


def after_a_pass(count=2):
    """A model that has answered a pass over one row for each of some requests, and its cache."""
    model = model_of()
    model.expect_drafts()
    cache = model.new_cache(8)
    parts = [Part((2 * i, 2 * i + 1), 0, [5 + i], logits="last") for i in range(count)]
    model.begin_drawn(build_rows(parts), cache, (), [LARGEST] * count)()
    return model, cache


DRAFTS = torch.tensor([[11, 12], [13, 14]], dtype=torch.float64)
DRAWN = Draws(*np.ones((4, 2)), np.arange(6, dtype=np.uint64).reshape(2, 3))


def test_a_draft_for_the_requests_of_the_latest_pass_is_verified():
    model, _cache = after_a_pass()
    model.passes.has_recorded = lambda *_: True
    told = model.verify_early(DRAFTS, None)
    assert told is not None
    told(np.array([[11, 13], [12, 14]]))
    assert model._foreseen._next.rows.token_ids.reshape(2, 3)[:, 1:].tolist() == [[11, 13], [12, 14]]
    launched = model._foreseen._next
    assert model.verify_early(DRAFTS + 1, None) is not None  # the first was the draft of another verdict
    assert model._foreseen._next is not launched and model._foreseen.num_foreseen == 2


@pytest.mark.parametrize("why", ["another number", "moved", "no graph", "unknown key", "gone", "no page", "too many"])
def test_what_cannot_be_verified_early_waits(why):
    model, cache = after_a_pass()
    has, drafts, draws = why != "no graph", DRAFTS, DRAWN
    if why == "another number":
        drafts = DRAFTS[:, :1]
    elif why == "moved":
        cache.move([1], [2])
    elif why == "unknown key":
        draws = DRAWN._replace(keys=DRAWN.keys[:, :2])
    elif why == "gone":
        del cache
        gc.collect()
    elif why == "no page":
        drafts = torch.zeros(29, 2)
    elif why == "too many":
        drafts = torch.zeros(200, 2)
    model.passes.has_recorded = lambda *_: has
    assert model.verify_early(drafts, draws) is None
    assert not model._foreseen.num_foreseen


def test_nothing_is_verified_in_the_slots_of_a_pass_that_is_under_way():
    model, cache = after_a_pass()
    model.passes.has_recorded = lambda *_: True
    model._foreseen.gain.assume(1e9, 1.0, 1.0)
    model.begin_drawn(build_rows([Part((2 * i, 2 * i + 1), 1, [6]) for i in range(2)]), cache, (), [LARGEST] * 2)()
    model._foreseen.gain.assume(0.0, 0.0, 1.0)
    finish = model.begin_drawn(model._foreseen._next.rows, cache, (), [LARGEST] * 2)  # it was launched ahead
    assert model._foreseen.num_taken == 1
    assert model.verify_early(DRAFTS, None) is None  # a head of another engine, between two steps of this one
    finish()
    assert model.verify_early(DRAFTS, None) is not None


def knows_answers(model, net, answers, wrong_after):
    """Let a head's chains be the answers, but for each token at a position that is a multiple of `wrong_after`."""
    launch, verdicts = net.launch_chains, model._foreseen._verdicts

    def launched(rows, hidden, cache, num_tokens, picks, advance=None):
        table = launch(rows, hidden, cache, num_tokens, picks, advance).clone()
        for request, row in enumerate(rows.logit_rows.tolist()):
            at, token = int(rows.positions[row]) + 1, int(rows.token_ids[row])
            if advance is not None:  # rows are a template
                at, token = at + int(verdicts.accepted[request]), int(verdicts.roots[request])
            answer = next((each for each in answers if len(each) > at and each[at] == token), [])
            for level, said in enumerate(answer[at + 1 : at + 1 + num_tokens]):
                table[0, level, request] = said if (at + level) % wrong_after else (said + 1) % 100
        return table

    net.launch_chains = launched


@pytest.mark.parametrize(
    ("kind", "count", "wrong_after"),
    [*(({}, *each) for each in ((1, 1), (1, 3), (1, 7), (1, 1000), (3, 4), (3, 1000))),
     *(({"temperature": 0.8, "top_p": 0.95}, *each) for each in ((1, 3), (1, 1000), (3, 4)))],
)  # fmt: skip
def test_drafts_are_launched_before_they_are_asked_for(kind, count, wrong_after):
    model, requests = model_of(), requests_of([kind] * count, count, 90)
    wanted = texts(engine_of(TorchModel(CHECKPOINT), 60), requests)
    engine = with_head(model, HEADS["eagle3"], 60)
    net = engine.drafter.runner._net
    answers = [[*prompt, *wanted[str(number)][0]] for number, (_, prompt, *_) in enumerate(requests)]
    knows_answers(model, net, answers, wrong_after)
    assert texts(engine, requests) == wanted
    num_drafts = engine.metrics.spec_decode_num_drafts / count
    assert num_drafts < (30 if wrong_after == 1000 else 91)
    assert net.ahead.num_taken >= net.ahead.num_begun - count > 0.8 * num_drafts - 2 * count
    assert model._foreseen.num_taken >= model._foreseen.num_foreseen - count
    engine.drafter.runner.pages.check_integrity()


@pytest.mark.parametrize("head", ["eagle3", "dspark"])
def test_passes_that_are_over_are_freed_without_the_garbage_collector(head):
    """Each keeps the states of its rows on the device, and memory for its answers."""
    engine, requests = with_head(model_of(), HEADS[head], 60), requests_of([{}, {"temperature": 0.9}], 2, 60)
    foreseen_passes.in_reference_counts_alone(lambda: texts(engine, requests))


def test_a_head_of_few_positions_drafts_ahead_what_it_drafts_when_asked():
    record, requests = HEADS["eagle3"], requests_of([{}] * 2, 2, 60)
    layer = replace(record.config.layer, max_position_embeddings=32)
    record, drafts = replace(record, config=replace(record.config, layer=layer)), []
    for waits in (False, True):
        engine = with_head(model_of(), record, 40)
        net, said = engine.drafter.runner._net, []
        assert net._passes._staging._capacity == engine._model.passes._staging._capacity
        draft = net.draft_chains
        net.draft_chains = lambda *given, draft=draft, said=said: said.append(draft(*given)) or said[-1]
        if waits:
            net.ahead._backoff.passes_over = lambda: True
        texts(engine, requests)
        assert waits == (not net.ahead.num_taken)
        drafts.append([each.tokens.tolist() for each in said[:50]])
    assert drafts[0] == drafts[1]


def test_each_of_two_heads_is_told_of_picks_that_are_still_there():
    model, record = model_of(), HEADS["eagle3"]
    engine, pending = with_head(model, record, 40), []

    class Second:
        def follow(self, given):
            pending.append(given)

    second = Second()
    model.expect_drafts(second.follow)
    texts(engine, requests_of([{}], 1))
    ahead = engine.drafter.runner._net.ahead
    assert ahead.num_begun > 4 and sum(each is None for each in pending) >= ahead.num_begun


@pytest.mark.parametrize("kind", [{}, {"temperature": 0.8, "top_p": 0.95}], ids=["greedy", "drawn"])
def test_drafts_are_launched_on_another_device_without_waiting_for_it(kind, monkeypatch):
    """With references in the kernels' and the graphs' place, which may wait."""
    begins, requests = [], requests_of([kind], 1, 14)
    for place, name in ((verdicts, "_continue_chain"), (verdicts, "_continue_pass"), (Passes, "_replay")):
        monkeypatch.setattr(place, name, may_wait(getattr(place, name)))
    texts_there = []
    with far_device():
        for device in (FAR.type, "cpu"):
            model = model_of(device)
            engine = with_head(model, HEADS["eagle3"], 40)
            net = engine.drafter.runner._net
            begin = net.launch_after

            def launched(*given, begin=begin, net=net):
                with without_waiting():
                    made = begin(*given)
                begins.append(made)
                return made

            net.ahead._launch = launched
            texts_there.append(texts(engine, requests))
            assert net.ahead.num_taken >= net.ahead.num_begun - 1 > 2
    assert texts_there[0] == texts_there[1] and len(begins) > 6


def test_a_text_that_was_said_before_shares_pages_and_is_drafted_ahead():
    model, requests = model_of(), requests_of([{}], 1, 90)
    engine = with_head(model, HEADS["eagle3"], 60)
    net, prompt = engine.drafter.runner._net, requests[0][1]
    wanted = texts(engine_of(TorchModel(CHECKPOINT), 60), requests)
    knows_answers(model, net, [[*prompt, *wanted["0"][0]]], 1000)
    for _ in range(3):
        before = net.ahead.num_taken
        assert texts(engine, requests) == wanted
        assert net.ahead.num_taken - before > 16
    engine.drafter.runner.pages.check_integrity()


@pytest.mark.parametrize("step", ["draft", "verification"])
def test_a_draft_that_cannot_be_launched_ahead_does_not_end_the_pass_before_it(step):
    def fails(*_):
        raise ValueError("no such kernel")

    model, requests = model_of(), requests_of([{}], 1)
    engine = with_head(model, HEADS["eagle3"], 40)
    if step == "draft":
        engine.drafter.runner._net.ahead._launch = fails
    else:
        engine.drafter.runner._net.verify_after = fails
    assert texts(engine, requests) == texts(engine_of(TorchModel(CHECKPOINT), 40), requests)
    assert engine.metrics.spec_decode_num_drafts and not engine.drafter.runner._net.ahead.num_taken


def test_the_verdict_on_another_engines_drafts_launches_nothing():
    model, record = model_of(), HEADS["eagle3"]
    ours, other = with_head(model, record, 40), with_head(model, record, 40)
    for number, kind in enumerate([{}, {"repetition_penalty": 1.2}]):
        ours.add_request(str(number), *requests_of([kind])[0][1:3])
    for _ in range(5):  # each pass has a row whose law depends on the text, so that no verdict is told
        ours.step()
    prompt = [5] * (ours._live["0"].state.num_tokens - 2)  # its first draft begins where the latest of the others did
    assert texts(other, [(0, prompt, requests_of([{}])[0][2], None)])
    assert other.drafter.runner._net.ahead.num_begun and not ours.drafter.runner._net.ahead.num_begun


def test_heads_that_are_gone_are_not_told():
    model = model_of()
    for _ in range(3):
        make_net(HEADS["eagle3"], LoadedModel(SOURCE, model))
        gc.collect()
    assert len(model._foreseen._followers) == 1


@pytest.mark.parametrize(("head", "num_pages"), [("eagle3", 2), ("dspark", 1)])
def test_pages_are_allocated_early_for_heads_whose_drafts_are_launched_ahead(head, num_pages):
    engine = with_head(model_of(), HEADS[head], 40)
    engine.add_request("0", [5] * 11, requests_of([{}])[0][2])
    while not (kept := engine.drafter.runner.pages.get("0")):
        engine.step()
    assert len(kept.pages) == num_pages


def test_a_wrong_draft_ahead_does_not_keep_the_right_one_from_being_verified_early(monkeypatch):
    model, requests = model_of(), requests_of([{}], 1, 60)
    engine = with_head(model, HEADS["eagle3"], 40)
    monkeypatch.setattr("paceline.models.cuda_executor.heads.ahead._places", lambda *_: None)
    assert texts(engine, requests) == texts(engine_of(TorchModel(CHECKPOINT), 40), requests)
    ahead, foreseen = engine.drafter.runner._net.ahead, model._foreseen
    assert 1 < ahead.num_begun < 8 and not ahead.num_taken
    assert foreseen.num_taken > 0.8 * engine.metrics.spec_decode_num_drafts
