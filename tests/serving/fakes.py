"""Groups that echo the prompt word by word, and can be killed, hung or slowed without a process of their own."""

import asyncio

from paceline.errors import InvalidParameter, WorkerDied
from paceline.serving.dispatcher import Watch
from paceline.serving.job import Chunk, Job
from paceline.serving.plan import plan_of
from paceline.types import SamplingParams

QUICK = Watch(heartbeat=0.01, timeout=0.05, max_restarts=2, backoff=0.01)


class EchoGroup:
    """A `GroupHandle`."""

    def __init__(self, word_seconds: float = 0.005) -> None:
        self.word_seconds = word_seconds
        self.is_alive = self.hangs = False
        self.refuses_to_start = False
        self.num_starts = 0
        self.aborted: list[str] = []
        self.jobs: list[Job] = []
        self._death = asyncio.Event()

    async def start(self) -> None:
        if self.refuses_to_start:
            raise WorkerDied("it does not start")
        self._death = asyncio.Event()
        self.is_alive, self.hangs = True, False
        self.num_starts += 1

    async def generate(self, job):
        self.jobs.append(job)
        assert isinstance(job.prompt, str)
        if job.prompt == "bad":
            raise InvalidParameter("prompt", "is bad", "be good")
        words = job.prompt.split()
        for word in words[:-1]:
            await self._work()
            if job.stream:
                yield Chunk(word + " ")
        await self._work()
        yield Chunk(words[-1] if job.stream else job.prompt, "stop", len(words), len(words))

    async def abort(self, job: Job) -> None:
        self.aborted.append(job.request_id)

    async def check(self) -> None:
        if self.hangs:
            await self._death.wait()
        if not self.is_alive:
            raise WorkerDied("killed")

    async def kill(self) -> None:
        self.is_alive = False
        self._death.set()

    async def _work(self) -> None:
        """One word's time, or the end of the process."""
        wait = None if self.hangs else self.word_seconds
        try:
            await asyncio.wait_for(self._death.wait(), wait)
        except TimeoutError:
            if not self.hangs:
                return
            await self._death.wait()
        raise WorkerDied("killed")


def plan(groups, models=("a", "b"), **more):
    return plan_of({"groups": groups, "models": list(models), **more})


def job(name, model="a", prompt="one two three", stream=False, **changes):
    return Job(name, model, prompt, params=SamplingParams(**changes), stream=stream)


async def say(backend, request):
    """The whole answer to one job."""
    return "".join([chunk.text async for chunk in backend.generate(request)])
