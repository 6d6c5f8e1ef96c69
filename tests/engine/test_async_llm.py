"""Many clients on one engine: streams, cancellations, clients that go away, and an engine that dies."""

import asyncio
import threading
from dataclasses import replace

import pytest

from paceline.config import EngineConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.llm import LLM
from paceline.engine.loop.step import StepOutput
from paceline.engine.text.prompts import Prompts
from paceline.engine.threads import lane
from paceline.engine.threads.engine_thread import EngineThread
from paceline.errors import EngineDead, InvalidParameter
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, load_random

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)


@pytest.fixture
def llm_of(tiny):
    """() -> an `LLM` on the tiny model."""

    def make(**config) -> LLM:
        return LLM.from_loaded(tiny, EngineConfig(**({"kv_cache_memory_bytes": 1 << 22} | config)))

    return make


def run(llm: LLM, main):
    """`main(async_llm)` to its end, then the engine's."""

    async def whole():
        served = AsyncLLM(llm)
        try:
            return await asyncio.wait_for(main(served), 60)
        finally:
            await served.shutdown()

    return asyncio.run(whole())


async def collect(served: AsyncLLM, prompt: str, params: SamplingParams = GREEDY, **how):
    return [output async for output in served.generate(prompt, params, **how)]


def test_llms_on_the_same_weights_run_their_steps_in_turn(llm_of):
    """Those of asyncio, and one in a thread: the kernels' buffers serve one pass at a time."""
    first = llm_of()
    want = [output.token_ids for output in first.generate(PROMPTS, GREEDY)]
    second, third = first.drafting_with("ngram"), first.drafting_with("ngram")

    async def said(served):
        told = await asyncio.gather(*(collect(served, prompt) for prompt in PROMPTS))
        return [tuple(token.token_id for output in outputs for token in output.tokens) for outputs in told]

    async def both(served):
        other, rounds = AsyncLLM(second), 3
        try:
            for _ in range(rounds):
                blocking = asyncio.to_thread(third.generate, PROMPTS, GREEDY)
                *told, outputs = await asyncio.gather(said(served), said(other), blocking)
                assert told == [want, want] and [output.token_ids for output in outputs] == want
            costs = asyncio.gather(served.pass_costs(), said(other))
            assert (await costs)[1] == want
        finally:
            await other.shutdown()

    run(first, both)


async def until_idle(served: AsyncLLM) -> dict:
    while True:
        record = await served.metrics()
        if record["num_requests_running"] + record["num_requests_waiting"] == 0:
            return record
        await asyncio.sleep(0.001)


def test_streams_side_by_side_say_what_they_say_alone(llm_of):
    alone = [output.token_ids for output in llm_of().generate(PROMPTS, GREEDY)]

    async def main(served):
        return await asyncio.gather(*(collect(served, prompt) for prompt in PROMPTS))

    streams = run(llm_of(), main)
    assert [tuple(t.token_id for output in stream for t in output.tokens) for stream in streams] == alone
    for stream in streams:
        assert [output.finished is not None for output in stream] == [False] * (len(stream) - 1) + [True]
        assert stream[-1].finished.text == "".join(t.text for output in stream for t in output.tokens)


def test_tokens_that_follow_closely_share_a_wake_up(llm_of, monkeypatch):
    alone, wakes, wake = llm_of().generate([PROMPTS[0]], GREEDY)[0], [], lane._wake
    monkeypatch.setattr(lane, "monotonic", lambda: 0.0)  # all steps at the same moment
    monkeypatch.setattr(lane, "_wake", lambda loop, mail: wakes.append(len(mail)) or wake(loop, mail))

    async def main(served):
        return await collect(served, PROMPTS[0])

    outputs = run(llm_of(), main)
    assert [token.token_id for output in outputs for token in output.tokens] == list(alone.token_ids)
    assert wakes == [1, 19]  # the first token, and the others with the last


def test_requests_that_come_together_to_an_idle_engine_share_its_first_step(llm_of):
    params = SamplingParams(temperature=0, max_tokens=1)

    async def main(served):
        await asyncio.gather(*(collect(served, prompt, params) for prompt in PROMPTS))
        return await served.metrics()

    assert run(llm_of(), main)["num_passes"] == 1


@pytest.mark.parametrize("coming, turns", [(0, 1), (2, 3), (99, 4)])
def test_a_first_step_waits_while_every_turn_brings_a_request_but_four_turns_at_most(coming, turns):
    engine, woken, stepped = FakeEngine(), [], threading.Event()

    def wake():
        woken.append(engine.num_requests)
        if len(woken) <= coming:
            thread.call(FakeEngine.add)

    thread = EngineThread(engine, lambda _: stepped.set(), lambda _: None, wake)
    thread.call(FakeEngine.add)
    assert stepped.wait(60)
    thread.stop()
    assert len(woken) == turns and engine.steps == [1 + min(coming, turns)]


def test_whoever_called_what_ended_the_thread_is_told():
    class Panic(BaseException):
        pass

    def fail(_):
        raise Panic("no way on")

    deaths = []
    thread = EngineThread(FakeEngine(), lambda _: None, deaths.append)
    with pytest.raises(EngineDead, match="no way on"):
        thread.call(fail).result(60)
    thread._thread.join(60)
    assert "no way on" in str(deaths[0])


class FakeEngine:
    """Stands in for one: a step finishes all requests."""

    def __init__(self):
        self.num_requests, self.steps = 0, []

    @property
    def has_unfinished_requests(self):
        return self.num_requests > 0

    def add(self):
        self.num_requests += 1

    def step(self):
        self.steps.append(self.num_requests)
        self.num_requests = 0
        return []


def test_joined_outputs_lose_nothing(llm_of, monkeypatch):
    monkeypatch.setattr(lane, "monotonic", lambda: 0.0)
    params = SamplingParams(temperature=1, seed=3, n=2, max_tokens=12, ignore_eos=True)

    async def main(served):
        return [await collect(served, PROMPTS[0], params, joined=joined) for joined in (False, True)]

    apart, joined = run(llm_of(), main)
    for index in (0, 1):
        said = [[t for output in way if output.index == index for t in output.tokens] for way in (apart, joined)]
        assert said[0] == said[1] and len(said[0]) == 12
        assert [output.completion for output in joined if output.index == index][-1].token_ids == tuple(
            token.token_id for token in said[1]
        )
    assert len(joined) < len(apart) and [bool(output.finished) for output in joined][-1]


@pytest.mark.parametrize("ended", ["timeout", "abort"])
@pytest.mark.parametrize("joined", [False, True])
def test_text_held_back_for_a_stop_string_comes_with_an_end_from_outside(llm_of, ended, joined):
    llm = llm_of()
    whole = llm.generate(PROMPTS[:1], ENDLESS)[0].text
    never = whole[:99] + chr(ord(whole[99]) ^ 1)  # nothing can be told before as many characters have come
    params = replace(ENDLESS, stop=[never], n=2)

    async def main(served):
        outputs = []
        timeout = 0.2 if ended == "timeout" else None
        async for output in served.generate(PROMPTS[0], params, "r", timeout=timeout, joined=joined):
            outputs.append(output)
            if ended == "abort" and len(outputs) == 3:
                await served.abort("r")
        return outputs

    step, slow = llm.engine.step, threading.Event()
    llm.engine.step = lambda: (slow.wait(0.01), step())[1]  # type: ignore[method-assign]
    outputs = run(llm, main)
    for index in (0, 1):
        own = [output for output in outputs if output.index == index]
        done = own[-1].completion
        assert done.finish_reason == ended and len(done.token_ids) > 0
        told = "".join([token.text for output in own for token in output.tokens])
        assert not told and told + own[-1].tail == done.text == whole[: len(done.text)] != ""
        assert not any(output.tail for output in own[:-1])


def test_an_output_after_a_sample_has_ended_is_not_joined():
    ended = StepOutput("r", (), None, 0, completion=object())
    other, last = StepOutput("r", (), None, 1), StepOutput("r", (), object(), 0)
    assert lane._joined([ended, last]) == [ended, last]
    assert lane._joined([other, ended]) == [other, ended]


def test_whoever_comes_holds_no_tokens_up(llm_of, monkeypatch):
    """A new request's prompt may take a second to read, so what waits is sent before."""
    monkeypatch.setattr(lane, "_PAUSE", 1e9)
    monkeypatch.setattr(lane, "_LONGEST_PAUSE", 1e9)

    async def main(served):
        stream = served.generate(PROMPTS[0], ENDLESS)
        first = await anext(stream)
        await collect(served, PROMPTS[1], SamplingParams(temperature=0, max_tokens=1))
        return first, await anext(stream)

    assert all(output.tokens for output in run(llm_of(), main))


def test_samples_of_one_request_come_with_their_index(llm_of):
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=8, n=2)

    async def main(served):
        return await collect(served, "abc", params)

    outputs = run(llm_of(), main)
    finished = outputs[-1].finished
    for index in range(2):
        said = tuple(t.token_id for output in outputs if output.index == index for t in output.tokens)
        assert said == finished.outputs[index].token_ids
    assert sum(output.completion is not None for output in outputs) == 2


@pytest.mark.parametrize("how", ["break", "cancel", "close"])
def test_a_client_that_goes_away_leaves_nothing_behind(llm_of, how):
    llm = llm_of()

    async def main(served):
        stream = served.generate("abc", ENDLESS)
        if how == "cancel":
            task = asyncio.create_task(collect(served, "abc", ENDLESS))
            while (await served.metrics())["generation_tokens"] == 0:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            async for _ in stream:
                break
            if how == "close":
                await stream.aclose()
            del stream
        record = await until_idle(served)
        assert record["request_success"] == {"abort": 1}
        assert (await collect(served, "abc"))[-1].finished.finish_reason == "length"

    run(llm, main)
    assert llm.engine.scheduler.pool.num_held == 0
    llm.engine.scheduler.check_integrity()


def test_an_aborted_request_tells_its_client(llm_of):
    async def main(served):
        outputs = []
        async for output in served.generate("abc", ENDLESS, "mine"):
            outputs.append(output)
            if len(outputs) == 3:
                await served.abort("mine")
        await served.abort("mine")
        return outputs[-1].finished

    output = run(llm_of(), main)
    assert output.finish_reason == "abort"
    assert len(output.token_ids) >= 3


def test_bad_requests_are_refused_and_harm_nobody(llm_of):
    async def main(served):
        good = asyncio.create_task(collect(served, "abc", ENDLESS, request_id="mine"))
        await asyncio.sleep(0.01)
        for prompt, name, field in (("", None, "prompt"), ("abc", "mine", "request_id"), ([9999], None, "prompt")):
            with pytest.raises(InvalidParameter, match=field):
                await collect(served, prompt, request_id=name)
        return await good

    assert run(llm_of(), main)[-1].finished.finish_reason == "length"


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_an_error_of_the_engine_reaches_every_client(llm_of, monkeypatch, kind):
    """A drafter or policy that leaves the program, too: on this thread that would end nothing but the thread."""
    llm = llm_of()
    step, count = llm.engine.step, iter(range(100))

    def failing_step():
        if next(count) == 3:
            raise kind("the kernel is on fire")
        return step()

    monkeypatch.setattr(llm.engine, "step", failing_step)

    async def main(served):
        results = await asyncio.gather(*(collect(served, p, ENDLESS) for p in PROMPTS), return_exceptions=True)
        with pytest.raises(EngineDead):
            await collect(served, "abc")
        with pytest.raises(EngineDead):
            await served.metrics()
        assert served.death is not None
        return results

    for error in run(llm, main):
        assert isinstance(error, EngineDead)
        assert "on fire" in str(error)


def test_shutting_down_ends_those_who_wait(llm_of):
    async def main(served):
        task = asyncio.create_task(collect(served, "abc", ENDLESS))
        await asyncio.sleep(0.02)
        await served.shutdown()
        await served.shutdown()
        with pytest.raises(EngineDead, match="shut down"):
            await task

    run(llm_of(), main)


def test_a_timeout_and_a_scrape(llm_of):
    pytest.importorskip("prometheus_client")

    async def main(served):
        outputs = await collect(served, "abc", ENDLESS, timeout=0.05)
        return outputs[-1].finished.finish_reason, await served.prometheus_text()

    reason, text = run(llm_of(), main)
    assert reason in ("timeout", "length")
    assert b"paceline:generation_tokens_total" in text


def test_long_prompts_are_tokenised_beside_the_event_loop(llm_of, monkeypatch):
    """In vLLM's form, too, whose one entry is not its length."""
    llm, text, places = llm_of(), "abc" * 2000, []
    token_ids_of = llm.token_ids_of
    monkeypatch.setattr(Prompts, "_encode", lambda *_: [1, 2, 3])

    def noted(prompt, *rest):
        places.append(threading.current_thread() is threading.main_thread())
        return token_ids_of(prompt, *rest)

    monkeypatch.setattr(llm, "token_ids_of", noted)

    async def main(served):
        return [await served.token_ids_of(prompt) for prompt in ("abc", text, {"prompt": text})]

    assert run(llm, main) == [[1, 2, 3]] * 3
    assert places == [True, False, False]


def test_a_closed_llm_refuses_clients_and_ends_those_who_wait(tiny):
    llm = LLM.from_loaded(load_random(0), EngineConfig(kv_cache_memory_bytes=1 << 22))

    async def main(served):
        task = asyncio.create_task(collect(served, "abc", ENDLESS))
        await asyncio.sleep(0.02)
        llm.close()
        for late in (task, collect(served, "abc")):
            with pytest.raises(EngineDead, match="closed"):
                await late

    run(llm, main)
