"""Deaths, checks, restarts and answers that fall into the same moments, in every order: one death is one restart.

All durations are whole seconds of a clock that only the test moves, so that they coincide all the time; which of those
that coincide goes first is drawn from a seed.
"""

import asyncio
import os
from random import Random

import pytest

from paceline.errors import WorkerDied
from paceline.serving.cluster.controller import Health
from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.cluster.group import Supervision
from tests.serving.fakes import EchoGroup, job, plan, say
from tests.serving.virtual_time import run

NUM_SCENES = int(os.environ.get("PACELINE_COINCIDENCES", "1000"))
PATIENT = Supervision(heartbeat=1.0, timeout=1.0, max_restarts=1000, backoff=1.0, stable_seconds=0.0, max_deaths=1000)


class Clockwork(EchoGroup):
    """A group whose starts and words take whole seconds, and that counts how often it really died."""

    def __init__(self, random: Random) -> None:
        super().__init__(1.0)
        self._random = random
        self.deaths = 0

    async def start(self) -> None:
        await asyncio.sleep(self._random.choice((0, 1, 2)))
        await super().start()

    async def generate(self, job):
        async for chunk in super().generate(job):
            await self._dawdle()
            yield chunk

    async def check(self) -> None:
        await self._dawdle()
        await super().check()

    def die(self) -> None:
        """Its process ends, unless there is none."""
        self.deaths += self.is_alive
        self.is_alive = False
        self._death.set()

    async def _dawdle(self) -> None:
        """A few turns of the loop, so that the order of what coincides differs; a process that ended says nothing."""
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)
        if not self.is_alive:
            raise WorkerDied("killed")


async def scene(seed: int) -> None:
    random = Random(seed)
    count = random.choice((1, 2, 3))
    groups = [Clockwork(random) for _ in range(count)]
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(plan([[1, 1, [0]]] * count, models=["a"]), groups, PATIENT, clock=loop.time)
    await dispatcher.start()
    prompts = [" ".join(map(str, range(random.randrange(1, 8)))) for _ in range(6)]
    jobs = [job(str(i), prompt=prompt, stream=random.random() < 0.5) for i, prompt in enumerate(prompts)]
    answers = [asyncio.create_task(say(dispatcher, one)) for one in jobs]
    for _ in range(random.randrange(1, 5)):
        await asyncio.sleep(random.choice((0, 1, 1, 2)))
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        random.choice(groups).die()
    assert await asyncio.gather(*answers) == prompts
    async with asyncio.timeout(10_000):
        while dispatcher.controller.health != [Health.READY] * count or not all(g.is_alive for g in groups):
            await asyncio.sleep(1)
    assert [group.num_starts for group in groups] == [1 + group.deaths for group in groups]
    assert len(dispatcher.events.named("group_died")) == sum(group.deaths for group in groups)
    counts = dispatcher.controller.counts
    assert (counts["accepted"], counts["served"], counts["lost"], counts["cancelled"]) == (6, 6, 0, 0)
    await dispatcher.close(timeout=1.0)
    assert not dispatcher._tasks


@pytest.mark.parametrize("part", range(4))
def test_one_death_is_one_restart_and_every_answer_comes_once(part):
    for seed in range(part, NUM_SCENES, 4):
        try:
            run(scene(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
