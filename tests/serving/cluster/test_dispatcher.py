"""Groups that die, hang, return or do not: nothing accepted is lost, and streams go on where they stopped."""

import asyncio
import contextlib
from dataclasses import replace
from functools import partial

import pytest

from paceline.errors import GroupLost, InvalidParameter, RequestRejected, WorkerDied
from paceline.placement.tokens import TokenProfile
from paceline.serving.cluster.controller import Health
from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.cluster.flight import Flight, Turn
from paceline.serving.cluster.group import Supervision
from paceline.serving.models.job import Chunk
from paceline.serving.protocol.answers import Answer, Wish
from tests.serving.fakes import QUICK, EchoGroup, job, plan, say


@contextlib.asynccontextmanager
async def running(groups, count=None, **more):
    """A dispatcher and its groups."""
    echoes = [EchoGroup() for _ in groups]
    dispatcher = Dispatcher(plan(groups, **more), echoes, QUICK)
    await dispatcher.start()
    try:
        yield dispatcher, echoes
    finally:
        await dispatcher.close(timeout=1.0)
        assert dispatcher.controller.num_open == 0
        counts = dispatcher.controller.counts
        assert counts["accepted"] == counts["served"] + counts["cancelled"] + counts["lost"]
        assert not any(echo.is_alive for echo in echoes)


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def test_requests_are_answered_by_groups_that_hold_their_model():
    async def scene():
        async with running([[1, 1, [0]], [1, 1, [0, 1]]]) as (dispatcher, echoes):
            jobs = [job(str(i), "ab"[i % 2], f"words of {i}") for i in range(8)]
            assert await asyncio.gather(*(say(dispatcher, one) for one in jobs)) == [f"words of {i}" for i in range(8)]
            assert {one.model for one in echoes[0].jobs} == {"a"}
            assert dispatcher.health()["status"] == "ok"
            assert b'paceline_cluster_requests_total{outcome="served"} 8.0' in await dispatcher.metrics()

    asyncio.run(scene())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_dead_groups_requests_are_answered_by_others_and_it_returns(how, stream):
    async def scene():
        async with running([[1, 1, [0]], [1, 1, [0]]], models=["a"]) as (dispatcher, echoes):
            prompt = " ".join(map(str, range(20)))
            answers = [
                asyncio.create_task(say(dispatcher, job(str(i), prompt=prompt, stream=stream))) for i in range(8)
            ]
            await until(lambda: len(echoes[0].jobs) > 1)
            if how == "dies":
                await echoes[0].kill()
            else:
                echoes[0].hangs = True
            assert await asyncio.gather(*answers) == [prompt] * 8
            await until(lambda: dispatcher.controller.health == [Health.READY, Health.READY])
            assert await say(dispatcher, job("later")) == "one two three"
            events = [event["event"] for event in dispatcher.events]
            assert events.index("group_died") < events.index("request_moved") < events.index("group_restarting")
            assert events.count("group_ready") == 3
            assert dispatcher.controller.counts["served"] == 9

    asyncio.run(scene())


def test_requests_of_the_only_group_wait_for_its_return():
    async def scene():
        async with running([[1, 1, [0]]], models=["a"]) as (dispatcher, (echo,)):
            answers = [asyncio.create_task(say(dispatcher, job(str(i), stream=True))) for i in range(3)]
            await until(lambda: echo.jobs)
            await echo.kill()
            assert await asyncio.gather(*answers) == ["one two three"] * 3
            assert echo.num_starts == 2

    asyncio.run(scene())


def test_a_group_that_cannot_be_started_again_is_given_up_and_says_so():
    async def scene():
        async with running([[1, 1, [0]], [1, 1, [1]]]) as (dispatcher, echoes):
            answer = asyncio.create_task(say(dispatcher, job("0")))
            await until(lambda: echoes[0].jobs)
            echoes[0].refuses_to_start = True
            await echoes[0].kill()
            with pytest.raises(GroupLost, match="'a'"):
                await answer
            assert dispatcher.health()["status"] == "down"
            assert len(dispatcher.events.named("group_restarting")) == QUICK.max_restarts
            with pytest.raises(RequestRejected):
                await say(dispatcher, job("1"))
            assert await say(dispatcher, job("2", "b")) == "one two three"

    asyncio.run(scene())


def test_a_client_that_leaves_frees_its_place():
    async def scene():
        alone = {"name": "a", "engine": {"max_num_seqs": 1}}
        async with running([[1, 1, [0]]], models=[alone]) as (dispatcher, (echo,)):
            first = dispatcher.generate(job("first", prompt="w " * 1000, stream=True))
            await anext(first)
            second = asyncio.create_task(say(dispatcher, job("second")))
            waiting = asyncio.create_task(say(dispatcher, job("waiting")))
            await asyncio.sleep(0)
            await first.aclose()
            waiting.cancel()
            assert await second == "one two three"
            assert echo.aborted == ["first"]
            assert dispatcher.controller.counts["cancelled"] == 2

    asyncio.run(scene())


def test_a_request_at_fault_fails_alone():
    async def scene():
        async with running([[1, 1, [0]]], models=["a"]) as (dispatcher, (echo,)):
            bad, good = say(dispatcher, job("bad", prompt="bad")), say(dispatcher, job("good"))
            results = await asyncio.gather(bad, good, return_exceptions=True)
            assert isinstance(results[0], InvalidParameter)
            assert results[1] == "one two three"
            assert echo.num_starts == 1

    asyncio.run(scene())


def test_sampled_requests_get_a_seed_so_that_they_can_be_told_again():
    async def scene():
        async with running([[1, 1, [0]]], models=["a"]) as (dispatcher, (echo,)):
            for name, changes in (("drawn", {}), ("own", {"seed": 7}), ("greedy", {"temperature": 0.0})):
                await say(dispatcher, job(name, **changes))
            drawn, own, greedy = (one.params.seed for one in echo.jobs)
            assert isinstance(drawn, int)
            assert (own, greedy) == (7, None)

    asyncio.run(scene())


def test_deadlines_are_kept_at_the_door():
    async def scene():
        times = [[[20.0]]]  # as promised: the answers themselves come at once, however slow the machine
        async with running([[1, 1, [0]]], models=[{"name": "a", "slo": 50.0}], stage_seconds=times) as (dispatcher, _):
            wanted = [say(dispatcher, job(str(i))) for i in range(6)]
            results = await asyncio.gather(*wanted, return_exceptions=True)
            assert results[:2] == ["one two three"] * 2
            assert all(isinstance(result, RequestRejected) for result in results[2:])

    asyncio.run(scene())


def test_a_group_that_dies_while_the_cluster_closes_ends_its_requests():
    async def scene():
        async with running([[1, 1, [0]]], models=["a"]) as (dispatcher, (echo,)):
            answer = asyncio.create_task(say(dispatcher, job("0", prompt="w " * 1000)))
            await until(lambda: echo.jobs)
            closing = asyncio.create_task(dispatcher.close())
            await asyncio.sleep(0)
            await echo.kill()
            with pytest.raises(GroupLost, match="shut down"):
                await answer
            await asyncio.wait_for(closing, 2)

    asyncio.run(scene())


def test_other_expectations_count_from_then_on():
    async def scene():
        groups = [[1, 1, [0]]]
        async with running(groups, models=["a"]) as (dispatcher, _):
            answer = asyncio.create_task(say(dispatcher, job("0")))
            await asyncio.sleep(0)
            strict = plan(groups, models=[{"name": "a", "slo": 0.05}], stage_seconds=[[[1.0]]])
            with pytest.raises(InvalidParameter, match="1 requests are under way"):
                dispatcher.expect(strict)
            await answer
            with pytest.raises(InvalidParameter, match="groups"):
                dispatcher.expect(plan([[1, 2, [0]]], models=["a"]))
            dispatcher.expect(strict)
            with pytest.raises(RequestRejected):
                await say(dispatcher, job("1"))

    asyncio.run(scene())


def test_a_cluster_that_cannot_start_leaves_nothing_behind():
    async def scene():
        echoes = [EchoGroup(), EchoGroup()]
        echoes[1].refuses_to_start = True
        with pytest.raises(WorkerDied):
            await Dispatcher(plan([[1, 1, [0]], [1, 1, [1]]]), echoes, QUICK).start()
        assert not echoes[0].is_alive

    asyncio.run(scene())


def test_closing_answers_what_was_accepted_and_takes_nothing_more():
    async def scene():
        async with running([[1, 1, [0]]], models=["a"]) as (dispatcher, _):
            answers = [asyncio.create_task(say(dispatcher, job(str(i)))) for i in range(3)]
            await asyncio.sleep(0)
            closing = asyncio.create_task(dispatcher.close())
            await asyncio.sleep(0)
            with pytest.raises(RequestRejected, match="shutting down"):
                await say(dispatcher, job("late"))
            await closing
            assert await asyncio.gather(*answers) == ["one two three"] * 3

    asyncio.run(scene())


class Poison(EchoGroup):
    """A process that ends when it is asked for `poison`."""

    async def generate(self, job):
        if job.prompt == "poison":
            await asyncio.sleep(0.002)
            await self.kill()
            raise WorkerDied("segmentation fault")
        async for chunk in EchoGroup.generate(self, job):
            yield chunk


def test_a_request_that_kills_its_groups_is_found_out_and_all_others_are_answered():
    async def scene():
        poisons = [Poison() for _ in range(4)]
        dispatcher = Dispatcher(plan([[1, 1, [0]]] * 4, models=["a"]), poisons, QUICK)
        await dispatcher.start()
        bad = asyncio.create_task(say(dispatcher, job("bad", prompt="poison")))
        good = []
        for number in range(40):
            good.append(asyncio.create_task(say(dispatcher, job(f"good-{number}"))))
            await asyncio.sleep(0.002)
        assert await asyncio.gather(*good) == ["one two three"] * 40
        with pytest.raises(GroupLost, match="3 groups died while they ran this request"):
            await bad
        assert dispatcher.events.named("request_quarantined")[0]["request"] == "bad"
        await until(lambda: all(state is Health.READY for state in dispatcher.controller.health))
        await dispatcher.close(timeout=1.0)

    asyncio.run(scene())


def _and_die(dispatcher, echo, complete, flight, last):
    """A group that ends in the moment in which it has given its first answer, and is reported at once."""
    complete(flight, last)
    if flight.job.request_id == "0" and echo.num_starts == 1:
        echo.is_alive = False
        echo._death.set()
        dispatcher._handle_death(Turn(0, 0), "no sign of life")


@pytest.mark.parametrize("count", [25])
def test_one_death_is_one_restart_whoever_reports_it(count):
    """Answers end, streams break and a check fails in the same moment, each of them reporting the same death."""

    async def scene():
        calm = Supervision(heartbeat=5.0, timeout=5.0, max_restarts=3, backoff=0.0, stable_seconds=0.0)
        for number in range(count):
            echo = EchoGroup(0.0005)
            dispatcher = Dispatcher(plan([[1, 1, [0]]], models=["a"]), [echo], calm)
            await dispatcher.start()
            dispatcher._complete = partial(_and_die, dispatcher, echo, dispatcher._complete)
            jobs = [job(str(i), prompt="w " * (1 + (i + number) % 3) + "end", stream=i % 2 == 0) for i in range(4)]
            answers = await asyncio.gather(*(say(dispatcher, one) for one in jobs))
            assert answers == [one.prompt for one in jobs]
            controller = dispatcher.controller
            await until(lambda controller=controller: controller.health == [Health.READY])
            assert echo.num_starts == 2 and len(dispatcher.events.named("group_died")) == 1
            await dispatcher.close(timeout=1.0)

    asyncio.run(scene())


def test_a_start_that_hangs_is_given_up():
    class HungStart(EchoGroup):
        async def start(self):
            if self.num_starts:
                await asyncio.sleep(3600)
            await EchoGroup.start(self)

    async def scene():
        hasty = replace(QUICK, start_timeout=0.05, max_restarts=1)
        dispatcher = Dispatcher(plan([[1, 1, [0]]], models=["a"]), [HungStart()], hasty)
        await dispatcher.start()
        answer = asyncio.create_task(say(dispatcher, job("0", prompt="w " * 1000)))
        await asyncio.sleep(0)
        await dispatcher.groups[0].kill()
        with pytest.raises(GroupLost, match="'a' is alive"):
            await asyncio.wait_for(answer, 5)
        assert "did not start within" in dispatcher.events.named("group_died")[-1]["reason"]
        await dispatcher.close(timeout=1.0)

    asyncio.run(scene())


def test_a_dispatcher_that_stood_still_itself_blames_no_group():
    """As after the suspension of a machine: the first check's time is long over when anybody could have answered it."""
    stood_still = []

    class Late(EchoGroup):
        async def check(self):
            if not stood_still:
                stood_still.append(3600.0)
                await asyncio.sleep(3600)
            stood_still.append(0.0)

    async def scene():
        def clock():
            return asyncio.get_running_loop().time() + sum(stood_still)

        dispatcher = Dispatcher(plan([[1, 1, [0]]], models=["a"]), [Late()], QUICK, clock=clock)
        await dispatcher.start()
        await until(lambda: len(stood_still) > 3)
        assert not dispatcher.events.named("group_died")
        await dispatcher.close(timeout=1.0)

    asyncio.run(scene())


def test_a_group_that_cannot_be_ended_is_started_again_all_the_same():
    class Immortal(EchoGroup):
        async def kill(self):
            raise OSError("not permitted")

    async def scene():
        echo = Immortal()
        dispatcher = Dispatcher(plan([[1, 1, [0]]], models=["a"]), [echo], QUICK)
        await dispatcher.start()
        answer = asyncio.create_task(say(dispatcher, job("0")))
        await until(lambda: echo.jobs)
        echo.is_alive = False
        echo._death.set()
        assert await asyncio.wait_for(answer, 5) == "one two three"
        assert dispatcher.events.named("group_not_ended")
        await dispatcher.close(timeout=1.0)

    asyncio.run(scene())


@pytest.mark.parametrize("detail", [False, True])
def test_streams_go_on_only_where_the_second_group_says_the_same(detail):
    """Words that differ from those the client has end the answer; texts of two groups are never joined."""

    class Other(EchoGroup):
        async def generate(self, job):
            async for chunk in EchoGroup.generate(self, replace(job, prompt=job.prompt.replace("one", "eno"))):
                yield chunk

    async def scene():
        first, second = EchoGroup(0.02), Other(0.02)
        dispatcher = Dispatcher(plan([[1, 1, [0]], [1, 1, [0]]], models=["a"]), [first, second], QUICK)
        await dispatcher.start()
        wanted = replace(job("0", prompt="one two three four five six", stream=True), detail=detail)
        stream = dispatcher.generate(wanted)
        assert (await anext(stream)).text == "one "
        await first.kill()
        with pytest.raises(GroupLost, match="other tokens"):
            async for _ in stream:
                pass
        assert second.jobs[-1].request_id == "0"
        await dispatcher.close(timeout=1.0)

    asyncio.run(scene())


@pytest.mark.parametrize("size", [1, 2, 4, 10])
def test_thoughts_are_told_and_counted_once_when_another_group_takes_over(size):
    texts = ("<think>", "I", " think", "", " so", "</think>", "\n\n", "Yes", ", it", " is.")

    def chunks(size):
        for start in range(0, len(texts), size):
            part, reason = texts[start : start + size], "stop" if start + size >= len(texts) else None
            yield Chunk("".join(part), reason, num_tokens=len(part), thinking="tagged", texts=part)

    flight = Flight(job("0", prompt="one"), None)  # type: ignore[arg-type]
    first, second = flight.splice(), flight.splice()
    passed = [first.rest_of(chunk) for chunk in list(chunks(3))[:2]] + [second.rest_of(one) for one in chunks(size)]
    answer = Answer("x", "m", Wish(is_chat=True, prompts=("p",)))
    whole = answer.whole([(0, chunk) for chunk in passed])
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I think so", "Yes, it is.")
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5


def test_while_the_cluster_closes_requests_of_a_dead_group_go_to_another():
    async def scene():
        async with running([[1, 1, [0]], [1, 1, [0]]], models=["a"]) as (dispatcher, echoes):
            answers = [asyncio.create_task(say(dispatcher, job(str(i), prompt="w " * 20 + "end"))) for i in range(4)]
            await until(lambda: echoes[0].jobs and echoes[1].jobs)
            closing = asyncio.create_task(dispatcher.close())
            await asyncio.sleep(0)
            await echoes[0].kill()
            assert await asyncio.gather(*answers) == ["w " * 20 + "end"] * 4
            await closing
            assert echoes[0].num_starts == 1

    asyncio.run(scene())


def test_metrics_of_all_groups_are_one_text_with_their_group():
    class Counted(EchoGroup):
        async def metrics(self):
            return b'# TYPE paceline_tokens_total counter\npaceline_tokens_total{model_name="a"} 7\n'

    async def scene():
        echoes = [Counted(), Counted()]
        dispatcher = Dispatcher(plan([[1, 1, [0]]] * 2, models=["a"]), echoes, QUICK)
        await dispatcher.start()
        text = (await dispatcher.metrics()).decode()
        assert text.count("# TYPE paceline_tokens_total counter") == 1
        for group in "01":
            assert f'paceline_tokens_total{{group="{group}",model_name="a"}} 7.0' in text
        await dispatcher.close(timeout=1.0)

    asyncio.run(scene())


def test_groups_are_measured_all_at_once_and_one_that_cannot_be_runs_all_the_same():
    """Groups on one machine share its memory's bandwidth: measured one after the other, each would seem too fast."""
    measured = TokenProfile({0: {1: 0.25}})

    async def scenario():
        all_ask = asyncio.Barrier(2)

        async def profiles():
            await all_ask.wait()
            return {"a": measured}

        async def none():
            await all_ask.wait()
            raise RuntimeError("no clock")

        echoes = [EchoGroup(), EchoGroup()]
        for echo, ask in zip(echoes, (profiles, none), strict=True):
            echo.pass_profiles = ask  # type: ignore[attr-defined]
        dispatcher = Dispatcher(plan([[1, 1, [0]], [1, 1, [0]]]), echoes, QUICK)
        await dispatcher.start()
        assert dispatcher.plan.pass_profiles == ((measured,), (None,))
        assert await say(dispatcher, job("1")) == "one two three"
        await dispatcher.close(timeout=1.0)

    asyncio.run(scenario())


class SlowPoison(Poison):
    """Ends a while after it was asked, when others were given their turns beside it."""

    async def generate(self, job):
        if job.prompt == "poison":
            await asyncio.sleep(0.03)
        async for chunk in Poison.generate(self, job):
            yield chunk


def company(count, words, num_groups, group=SlowPoison):
    """Answers of `count` requests of so many words, and that of a poison among them."""

    async def scene():
        groups = [group() for _ in range(num_groups)]
        dispatcher = Dispatcher(plan([[1, 1, [0]]] * num_groups, models=["a"]), groups, QUICK)
        await dispatcher.start()
        jobs = [job(str(number), prompt="w " * words + "end") for number in range(count)]
        jobs.insert(count // 2, job("bad", prompt="poison"))
        answers = await asyncio.gather(*(say(dispatcher, one) for one in jobs), return_exceptions=True)
        await dispatcher.close(timeout=1.0)
        return answers

    return asyncio.run(scene())


@pytest.mark.parametrize(("count", "words", "num_groups"), [(16, 10, 4), (40, 10, 3), (24, 10, 2)])
def test_nobody_is_ended_who_only_ran_or_waited_beside_a_poison(count, words, num_groups):
    answers = company(count, words, num_groups)
    failed = [str(answer) for answer in answers if isinstance(answer, BaseException)]
    assert failed == ["3 groups died while they ran this request"]


def test_requests_of_a_group_that_died_once_run_again_together():
    async def scene():
        async with running([[1, 1, [0]], [1, 1, [0]]], models=["a"]) as (dispatcher, echoes):
            answers = [asyncio.create_task(say(dispatcher, job(str(i), prompt="w " * 40 + "end"))) for i in range(8)]
            await asyncio.sleep(0.02)
            await echoes[0].kill()
            await until(lambda: len(echoes[1].jobs) == 8)
            assert not any(answer.done() for answer in answers), "none waits for another's end"
            assert await asyncio.gather(*answers) == ["w " * 40 + "end"] * 8

    asyncio.run(scene())
