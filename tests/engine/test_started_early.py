"""Steps that are started before the tokens of the step before are reported: nobody's text changes, nothing is lost."""

import random

import pytest

pytest.importorskip("torch")

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.loop import engine as engine_module
from paceline.engine.loop.step_timer import StepTimer
from paceline.engine.setup.build import build_engine
from paceline.errors import EngineDead
from paceline.models.cuda_executor import CudaModel
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.models.torch_executor import TorchModel
from paceline.types import SamplingParams
from tests.fakes import ByteTokenizer, RandomCheckpoint, run_to_end, small_config

CHECKPOINT = RandomCheckpoint(small_config())
SUFFIX = {"method": "suffix", "policy": "fixed", "num_draft_tokens": 4}
LONG = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


@pytest.fixture(scope="module")
def model():
    return CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position", deterministic=True)


def engine_over(model, speculative=None, drafter=None, clock=None, **config):
    source = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]
    config = EngineConfig(**{"kv_cache_memory_bytes": 1 << 22, "profile": "none"} | config)
    how = {} if clock is None else {"clock": clock}
    return build_engine(LoadedModel(source, model), config, SpeculativeConfig.of(speculative), drafter=drafter, **how)


def said(outputs):
    return [token.token_id for output in outputs for token in output.tokens]


def test_the_next_pass_is_started_before_tokens_become_text(model, monkeypatch):
    engine, happened, begin = engine_over(model, SUFFIX), [], model.begin_drawn
    monkeypatch.setattr(model, "begin_drawn", lambda *given: happened.append("start") or begin(*given))
    engine.add_request("a", [5, 6, 7, 5, 6, 7], LONG)
    live, steps = engine._live["a"], []
    commit = live.commit
    monkeypatch.setattr(live, "commit", lambda *given: happened.append("text") or commit(*given))
    while engine.has_unfinished_requests:
        steps.append(said(engine.step()))
    assert all(steps) and sum(map(len, steps)) == 30  # every call reports the tokens of a pass
    assert happened == ["start", *["start", "text"] * (len(steps) - 1), "text"]


def test_with_drafters_that_run_passes_reports_do_not_wait_for_drafts(model):
    engine = engine_over(model, {"method": "layer_skip", "options": {"skip_layers": [1]}})
    engine.add_request("a", [5, 6, 7], LONG)
    engine.step()
    assert engine._started is None


KINDS = (
    {}, {"stop": ["a", "e"]}, {"repetition_penalty": 1.3}, {"logprobs": 2}, {"temperature": 0.8, "n": 2},
    {"temperature": 1.1, "top_k": 9}, {"min_tokens": 5}, {"prediction": tuple(range(40, 60))},
    {"structured_outputs": {"regex": "[ab]{3,12}"}},
)  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_requests_that_come_and_go_say_what_they_say_on_the_other_executor(model, seed):
    rng = random.Random(seed)
    requests = [
        (
            rng.randint(0, 12),
            [rng.randrange(90, 100) for _ in range(rng.choice([1, 5, 17, 60]))],
            SamplingParams(**{"temperature": 0, "seed": number, "max_tokens": rng.choice([6, 25])} | rng.choice(KINDS)),
            rng.random() < 0.25,
        )
        for number in range(9)
    ]
    how = {"max_num_seqs": 4, "kv_cache_memory_bytes": rng.choice([1 << 22, 1 << 19])}
    ours, theirs = (texts(engine_over(each, SUFFIX, **how), requests) for each in (model, TorchModel(CHECKPOINT)))
    assert ours == theirs


def texts(engine, requests):
    """Finish reasons and tokens by request; those that are aborted get their tokens up to some step."""
    found, step = {}, 0
    while engine.has_unfinished_requests or step <= 12:
        for number, (when, prompt, params, _) in enumerate(requests):
            if when == step:
                engine.add_request(str(number), prompt, params)
        for number, (when, _, _, aborted) in enumerate(requests):
            if aborted and step == when + 4:
                engine.abort(str(number))
        for output in engine.step():
            if output.finished and not requests[int(output.request_id)][-1]:
                found[output.request_id] = [(each.finish_reason, each.token_ids) for each in output.finished.outputs]
        step += 1
    engine.scheduler.check_integrity()
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages
    return found


def test_a_request_that_leaves_and_another_of_its_name_while_its_pass_runs(model):
    scored = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=1)
    alone = engine_over(model, SUFFIX)
    alone.add_request("a", [9] * 5, scored)
    want = run_to_end(alone)["a"]
    engine = engine_over(model, SUFFIX)
    engine.add_request("a", [5, 6, 7, 5, 6, 7], scored)
    engine.add_request("c", [8, 8, 8], LONG)
    for _ in range(3):
        engine.step()
    assert engine._started is not None
    early = engine.abort("a")
    assert early is not None and early.finish_reason == "abort"
    engine.add_request("a", [9] * 5, scored)
    judge = engine._result

    def judged(grant, live, *given):
        assert live.state is grant.request
        return judge(grant, live, *given)

    engine._result = judged
    finished = run_to_end(engine)
    assert finished["a"].token_ids == want.token_ids
    assert finished["a"].outputs[0].logprobs == want.outputs[0].logprobs
    assert finished["c"].finish_reason == "length"
    engine.scheduler.check_integrity()


def test_nobody_waits_for_a_pass_whose_requests_have_all_left(model):
    engine = engine_over(model, SUFFIX)
    engine.add_request("a", [5, 6, 7], LONG)
    engine.step()
    engine.abort("a")
    assert engine._started is None and not engine.has_unfinished_requests
    engine.add_request("a", [5, 6, 7], LONG)
    assert len(run_to_end(engine)["a"].token_ids) == 30
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


def test_a_request_whose_time_is_up_gets_the_tokens_of_its_last_pass(model):
    now = [0.0]
    engine = engine_over(model, SUFFIX, clock=lambda: now[0])
    engine.add_request("late", [1, 2, 3], LONG, timeout=10)
    engine.add_request("other", [1, 2, 9], LONG)
    got, finished = [], None
    for step in range(60):
        now[0] = 10.0 * (step >= 3)
        for output in engine.step():
            if output.request_id == "late":
                got += said([output])
                finished = output.finished or finished
    assert finished is not None and finished.finish_reason == "timeout"
    assert list(finished.token_ids) == got and 4 <= len(got) < 30
    assert not engine.has_unfinished_requests


def test_without_rows_no_pass_is_started(model, monkeypatch):
    now, sizes, start = [0.0], [], engine_module.start_pass
    monkeypatch.setattr(engine_module, "start_pass", lambda *given: sizes.append(len(given[3])) or start(*given))
    engine = engine_over(model, SUFFIX, clock=lambda: now[0])
    engine.step()  # nobody is there
    engine.add_request("late", [1, 2, 3], LONG, timeout=10)
    engine.step()
    now[0] = 10.0
    engine.step()  # the next plan has nobody whose time is not up
    assert engine.step()[0].completion.finish_reason == "timeout"
    assert sizes == [1, 1]


def test_a_pass_that_cannot_be_started_takes_no_tokens_from_the_one_before(model, monkeypatch):
    engine, begin, fails = engine_over(model, SUFFIX), model.begin_drawn, [False]

    def begin_or_fail(rows, *given):
        if fails[0] and len(rows.page_tables) == 2:
            raise RuntimeError("no memory left")
        return begin(rows, *given)

    monkeypatch.setattr(model, "begin_drawn", begin_or_fail)
    for name in ("a", "b"):
        engine.add_request(name, [5, 6, 7], LONG)
    engine.step()
    fails[0] = True
    assert {output.request_id for output in engine.step()} == {"a", "b"}  # the next pass has failed by now
    outputs = engine.step()
    assert [output.completion.finish_reason for output in outputs if output.completion] == ["error"] * 2
    engine.add_request("c", [5, 6, 7], LONG)
    assert run_to_end(engine)["c"].finish_reason == "length"


def test_an_engine_whose_device_is_gone_reports_what_it_has_and_ends(model, monkeypatch):
    engine = engine_over(model, SUFFIX)
    engine.add_request("a", [5, 6, 7], LONG)
    engine.step()

    def gone(*_):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(model, "begin_drawn", gone)
    monkeypatch.setattr(model, "forward", gone)
    assert said(engine.step())
    with pytest.raises(EngineDead):
        engine.step()


def test_a_policy_learns_from_a_step_before_it_plans_the_next(model):
    engine, calls = engine_over(model, SUFFIX | {"policy": "goodput"}), []
    policy = engine.scheduler.length_policy
    budgets, observe = policy.budgets, policy.observe
    engine.scheduler.length_policy = policy = type("Watched", (), {})()
    policy.budgets = lambda *given: calls.append("plan") or budgets(*given)
    policy.observe = lambda *given: calls.append("learn") or observe(*given)
    engine.add_request("a", [5, 6, 7], LONG)
    run_to_end(engine)
    assert calls[:2] == ["learn", "plan"]  # the first step reads the prompt
    assert calls[1:] == ["plan", "learn"] * (len(calls) // 2)


@pytest.mark.parametrize(("between", "taken"), [(0.25, [1.0, 1.25, 1.25]), (50.0, [1.0, 3.0, 2.0])])
def test_the_callers_time_counts_beside_a_pass_up_to_that_of_a_step(model, between, taken):
    now = [0.0]
    engine = engine_over(model, SUFFIX, clock=lambda: now[0])
    steps = []
    observe = engine.metrics.observe_step
    engine.metrics.observe_step = lambda step, *given: steps.append(step.seconds.verifying) or observe(step, *given)
    begin = engine._start_pass

    def slow(*given):
        now[0] += 1.0
        return begin(*given)

    engine._start_pass = slow
    engine.add_request("a", [5, 6, 7], LONG)
    while engine.has_unfinished_requests:
        engine.step()
        now[0] += between
    assert steps == [*taken[:2], *taken[2:] * (len(steps) - 2)]  # the first step starts two passes


def test_a_stopwatch_keeps_what_is_left_of_a_lap_unless_nothing_follows():
    now = [0.0]
    timer = StepTimer(lambda: now[0])

    def work(seconds):
        now[0] += seconds

    timer.resume()
    work(2)
    assert timer.lap() == 2
    work(3)
    timer.pause(goes_on=True)
    work(100)
    timer.resume()
    work(4)
    assert (timer.lap(), timer.now) == (7, 109)
    work(3)
    timer.pause(goes_on=False)
    work(100)
    timer.resume()
    work(1)
    assert timer.lap() == 1


def test_a_stopwatch_counts_what_happens_beside_a_pass_for_no_longer_than_a_step():
    now = [0.0]
    timer = StepTimer(lambda: now[0])
    for between, counted in ((1.0, 1.0), (90.0, 5.0)):
        timer.resume()
        timer.lap()
        now[0] += 5
        timer.pause(goes_on=True, is_under_way=True)
        now[0] += between
        timer.resume()
        assert timer.lap() == 5 + counted
        timer.pause(goes_on=False)
        now[0] += 7
