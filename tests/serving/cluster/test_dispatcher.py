"""Groups that die, hang, return or do not: nothing accepted is lost, and streams go on where they stopped."""

import asyncio
import contextlib

import pytest

from paceline.errors import GroupLost, InvalidParameter, RequestRejected, WorkerDied
from paceline.serving.cluster.controller import Health
from paceline.serving.cluster.dispatcher import Dispatcher
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
        async with running([[1, 1, [0]]], models=["a"]) as (dispatcher, (echo,)):
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
