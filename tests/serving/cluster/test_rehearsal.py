"""Groups that take longer than their engines' steps say: by how much is found out before anybody asks."""

import asyncio
from dataclasses import replace

import pytest

from paceline.placement.tokens import TokenAsk, TokenGroup, TokenProfile
from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.cluster.measured import _lengths
from paceline.serving.cluster.rehearsal import rehearse
from paceline.serving.models.job import Chunk
from paceline.serving.models.model_spec import ModelSpec
from tests.serving.fakes import QUICK, EchoGroup, job, plan, say
from tests.serving.virtual_time import run

PROFILE = TokenProfile({0: {1: 0.004, 64: 0.016}}, {0: {1: 0.004, 64: 0.04}}, seats=4)
"""Answers of 24 tokens: a tenth of a second alone, longer beside others."""


class RuledGroup(EchoGroup):
    """Answers take what the rule says at some speed, `overhead` more, and a minute for those in `held_up`."""

    def __init__(self, held, speed, overhead=0.0, held_up=()):
        super().__init__()
        self.rule, self.overhead, self.held_up = TokenGroup(held), overhead, held_up
        self.rule.scale = speed
        self.ended: set[int] = set()

    async def generate(self, job):
        number, clock = len(self.jobs), asyncio.get_running_loop().time
        self.jobs.append(job)
        self.advance(clock())
        self.rule.join(
            number, TokenAsk(job.model, len(job.prompt), job.params.max_tokens), clock(), job.params.max_tokens
        )
        while number not in self.ended:
            await asyncio.sleep(max(self.rule.end_of(number, job.params.max_tokens) - clock(), 1e-4))
            self.advance(clock())
        await asyncio.sleep(60.0 if number in self.held_up else self.overhead)
        yield Chunk("one two three", "stop", 3, 3)

    def advance(self, now):
        self.ended |= {number for number, _, _ in self.rule.advance(now)}


def rehearsed(groups, held, **more):
    async def scene():
        return await rehearse(groups, held, asyncio.get_running_loop().time, **more)

    found = run(scene())
    assert not any(isinstance(each, Exception) for each in found), found
    return [{name: one.seconds[0][1] / before[name].seconds[0][1] for name, one in each.items()}
            for each, before in zip(found, held, strict=True)]  # fmt: skip


def test_how_much_longer_answers_take_is_told_for_each_group():
    held = {"a": PROFILE}
    groups = [RuledGroup(held, speed) for speed in (1.0, 1.5, 9.0)]
    found = rehearsed([*groups, EchoGroup()], [held] * 3 + [{}])
    assert [each.get("a") for each in found] == [
        pytest.approx(1.0, rel=0.02), pytest.approx(1.5, rel=0.02), pytest.approx(2.0, rel=0.02), None
    ]  # fmt: skip
    prompts = {one.prompt for one in groups[0].jobs}
    assert len(prompts) == len(groups[0].jobs) > 100, "what a prefix cache knows is not read"


def test_models_of_a_pipeline_are_asked_at_once_and_what_they_cost_each_other_is_no_overhead():
    held = {name: PROFILE.in_pipeline(2) for name in "ab"}
    group = RuledGroup(held, 1.25)
    assert rehearsed([group], [held]) == [pytest.approx({"a": 1.25, "b": 1.25}, rel=0.02)]
    assert {one.model for one in group.jobs} == {"a", "b"}


def test_passes_of_a_pipeline_go_by_at_once_as_far_as_crowds_show():
    """Timed beside each other they had no streams between them."""
    held = {name: replace(PROFILE.in_pipeline(2), overlap=1.9, prefill_overlap=1.9) for name in "ab"}
    real = {name: replace(one, overlap=1.3, prefill_overlap=1.3) for name, one in held.items()}

    async def scene():
        return await rehearse([RuledGroup(real, 1.1)], [held], asyncio.get_running_loop().time)

    ((first, _),) = ([*each.values()] for each in run(scene()))
    assert first.overlap == pytest.approx(1.3, abs=0.06)
    assert first.seconds[0][1] == pytest.approx(1.1 * held["a"].seconds[0][1], rel=0.03)


def test_a_pipeline_is_warm_before_its_answers_count():
    held = {name: PROFILE.in_pipeline(2) for name in "ab"}

    class Warming(RuledGroup):
        """Its first 24 requests, three crowds for both models, take longer, less and less so."""

        async def generate(self, job):
            await asyncio.sleep(0.3 * max(0, 24 - len(self.jobs)) / 24)
            async for chunk in super().generate(job):
                yield chunk

    group = Warming(held, 1.1)
    assert rehearsed([group], [held]) == [pytest.approx({"a": 1.1, "b": 1.1}, rel=0.02)]


def test_how_far_passes_go_by_at_once_is_found_beside_uneven_costs():
    """In torch two rows, a crowd of four in two lanes, take longer than four."""
    uneven = replace(PROFILE, seconds={0: {1: 0.004, 2: 0.009, 4: 0.007, 8: 0.008, 64: 0.016}}).in_pipeline(2)
    real = {"a": replace(uneven, overlap=1.7, prefill_overlap=1.7)}
    held = {"a": replace(uneven, overlap=1.9, prefill_overlap=1.9)}

    async def scene():
        return await rehearse([RuledGroup(real, 1.0)], [held], asyncio.get_running_loop().time)

    ((found,),) = ([*each.values()] for each in run(scene()))
    assert found.overlap == pytest.approx(1.7, abs=0.06)


def test_what_comes_after_the_last_token_is_no_speed():
    held = {"a": PROFILE}
    (found,) = rehearsed([RuledGroup(held, 1.2, overhead=0.05)], [held], overhead=0.05)
    assert found == pytest.approx({"a": 1.2}, rel=0.02)


def test_answers_that_were_held_up_are_not_what_counts():
    held = {"a": PROFILE}
    assert rehearsed([RuledGroup(held, 1.0, held_up=range(8, 20))], [held]) == [pytest.approx({"a": 1.0}, rel=0.02)]


def test_requests_are_as_long_as_those_that_are_expected():
    held = {"a": PROFILE, "b": PROFILE}
    group = RuledGroup(held, 1.0)
    rehearsed([group], [held], lengths={"b": (40, 4)})
    assert {(one.model, len(one.prompt), one.params.max_tokens) for one in group.jobs} == {("a", 16, 24), ("b", 40, 4)}


class FailingGroup(RuledGroup):
    """Its tenth request ends with an error, at once."""

    async def generate(self, job):
        if len(self.jobs) == 9:
            raise ValueError("max_model_len")
        async for chunk in super().generate(job):
            yield chunk


def test_a_request_that_fails_leaves_other_groups_their_speed_and_nothing_under_way():
    held = {"a": PROFILE}
    groups = [FailingGroup(held, 1.0), RuledGroup(held, 1.5)]

    async def scene():
        before = asyncio.all_tasks()
        found = await rehearse(groups, [held] * 2, asyncio.get_running_loop().time)
        assert asyncio.all_tasks() == before
        return found

    failed, found = run(scene())
    assert isinstance(failed, ValueError)
    assert not isinstance(found, Exception)
    assert found["a"].seconds[0][1] == pytest.approx(1.5 * 0.004, rel=0.02)
    under_way = {each.request_id for each in groups[0].jobs[9 - len(groups[0].aborted) :]}
    assert set(groups[0].aborted) <= under_way


def test_a_group_that_takes_too_long_is_given_up_alone():
    held = {"a": PROFILE}
    groups = [RuledGroup(held, 1.0, held_up=range(1000)), RuledGroup(held, 1.5)]

    async def scene():
        return await rehearse(groups, [held] * 2, asyncio.get_running_loop().time, timeout=30.0)

    slow, found = run(scene())
    assert isinstance(slow, TimeoutError)
    assert groups[0].aborted
    assert not isinstance(found, Exception) and found["a"].seconds[0][1] == pytest.approx(0.006, rel=0.02)


def test_rehearsals_are_no_longer_than_what_engines_take():
    held = ModelSpec("a", "a", engine={"max_model_len": 32}, prompt_tokens=300), ModelSpec("b", "b", num_tokens=5)
    assert _lengths(replace(plan([[1, 1, [0, 1]]]), models=held)) == {"a": (16, 16), "b": (16, 5)}


def test_the_dispatcher_goes_by_it():
    async def scene():
        group = RuledGroup({"a": PROFILE}, 1.5)

        async def profiles():
            return {"a": PROFILE}

        group.pass_profiles = profiles  # type: ignore[attr-defined]
        dispatcher = Dispatcher(
            plan([[1, 1, [0]]], models=["a"]), [group], QUICK, clock=asyncio.get_running_loop().time
        )
        await dispatcher.start()
        assert dispatcher.plan.pass_profiles is not None
        ((known,),) = dispatcher.plan.pass_profiles
        assert known is not None and known.seconds[0][1] == pytest.approx(0.006, rel=0.02)
        assert dispatcher.controller.counts["served"] == 0
        assert await say(dispatcher, job("1")) == "one two three"
        await dispatcher.close(timeout=1.0)

    run(scene())
