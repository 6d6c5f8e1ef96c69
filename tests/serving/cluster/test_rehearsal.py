"""Groups that take longer than their engines' steps say: by how much is found out before anybody asks."""

import asyncio

import pytest

from paceline.placement.tokens import TokenProfile
from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.cluster.rehearsal import rehearse
from paceline.serving.job import Chunk
from tests.serving.fakes import QUICK, EchoGroup, job, plan, say
from tests.serving.virtual_time import run

PROFILE = TokenProfile({0: {1: 0.004, 64: 0.004}}, seats=4)
"""Four answers of 24 tokens at once: 24 steps."""


class SlowGroup(EchoGroup):
    """Answers take `factor` times what the profile says."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    async def generate(self, job):
        self.jobs.append(job)
        await asyncio.sleep(self.factor * 24 * 0.004)
        yield Chunk("one two three", "stop", 3, 3)


def test_how_much_longer_answers_take_is_told_for_each_group():
    groups = [SlowGroup(1.0), SlowGroup(1.5), SlowGroup(9.0), SlowGroup(1.0)]

    async def scene():
        return await rehearse(groups, [{"a": PROFILE}] * 3 + [{}], asyncio.get_running_loop().time)

    found = run(scene())
    assert [each.get("a") for each in found] == [pytest.approx(1.0), pytest.approx(1.5), pytest.approx(2.0), None]
    assert [len(group.jobs) for group in groups] == [252, 168, 28, 0], "6 seconds, four answers at once"
    prompts = {one.prompt for one in groups[0].jobs}
    assert len(prompts) == 252, "what a prefix cache knows is not read"


def test_models_of_a_pipeline_are_asked_at_once_and_what_they_cost_each_other_is_no_overhead():
    group = SlowGroup(2 * 1.25)  # two models take twice as long as one
    held = {name: PROFILE.in_pipeline(2) for name in "ab"}

    async def scene():
        return await rehearse([group], [held], asyncio.get_running_loop().time)

    expected = 1.25 * 48 / 48.5  # the first step goes through both halves of an empty pipeline
    assert run(scene()) == [pytest.approx({"a": expected, "b": expected})]
    models = [one.model for one in group.jobs]
    assert models == list("aaaabbbb" * (len(models) // 8)) and len(models) > 32


def test_one_answer_that_was_held_up_is_not_what_counts():
    """A group that takes six seconds for its second answers is as fast as its others say."""

    class HeldUp(SlowGroup):
        async def generate(self, job):
            self.factor = 60.0 if 4 <= len(self.jobs) < 8 else 1.0
            async for chunk in super().generate(job):
                yield chunk

    async def scene():
        return await rehearse([HeldUp(1.0)], [{"a": PROFILE}], asyncio.get_running_loop().time)

    assert run(scene()) == [pytest.approx({"a": 1.0})]


def test_requests_are_as_long_as_those_that_are_expected():
    group = SlowGroup(1.0)

    async def scene():
        return await rehearse([group], [{"a": PROFILE, "b": PROFILE}], asyncio.get_running_loop().time, {"b": (40, 4)})

    run(scene())
    assert {(one.model, len(one.prompt), one.params.max_tokens) for one in group.jobs} == {("a", 16, 24), ("b", 40, 4)}


def test_the_dispatcher_goes_by_it():
    async def scene():
        group = SlowGroup(1.5)

        async def profiles():
            return {"a": PROFILE}

        group.pass_profiles = profiles  # type: ignore[attr-defined]
        dispatcher = Dispatcher(
            plan([[1, 1, [0]]], models=["a"]), [group], QUICK, clock=asyncio.get_running_loop().time
        )
        await dispatcher.start()
        assert dispatcher.plan.pass_profiles is not None
        ((known,),) = dispatcher.plan.pass_profiles
        assert known is not None and known.seconds[0][1] == pytest.approx(0.006)
        assert dispatcher.controller.counts["served"] == 0
        assert await say(dispatcher, job("1")) == "one two three"
        await dispatcher.close(timeout=1.0)

    run(scene())
