"""`Dispatcher`: runs requests at their groups as the controller says, checks the groups, and restarts those that died.

A request that is run again gives the same text, because its draws depend only on its seed and positions; so a stream
goes on after the last piece its client has seen. Groups are anything that answers as `group.GroupHandle` does; Ray's
are in `ray_groups.py`.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import GroupLost, InvalidParameter, RequestRejected, WorkerDied
from paceline.serving.cluster.controller import Controller, Health
from paceline.serving.cluster.events import EventLog
from paceline.serving.cluster.group import GroupHandle, Life, Supervision
from paceline.serving.cluster.plan import ClusterPlan
from paceline.serving.cluster.prometheus import controller_text
from paceline.serving.job import Chunk, Job


@dataclass(slots=True)
class _Flight:
    """An accepted request on its way."""

    job: Job
    turn: "asyncio.Future[int]"
    chunks: "asyncio.Queue[Chunk | Exception]" = field(default_factory=asyncio.Queue)
    num_sent: int = 0
    """Characters that the client has been given."""
    num_pieces: int = 0
    """Tokens that it has been told of."""
    task: "asyncio.Task[None] | None" = None


class Dispatcher:
    """A `Backend` over groups.

    Args:
        plan: models, groups and what is known of their speed.
        groups: one handle per group of the plan.
        supervision: how often they are checked, and how often started again.
        events: where what happens is written.
        clock: seconds.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        groups: Sequence[GroupHandle],
        supervision: Supervision | None = None,
        events: EventLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.groups, self._clock = plan, list(groups), clock
        self._supervision = Supervision() if supervision is None else supervision
        self.events = EventLog() if events is None else events
        self.controller = _controller(plan)
        self._flights: dict[str, _Flight] = {}
        self._lives = [Life() for _ in groups]
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    @property
    def models(self) -> Sequence[str]:
        return [model.name for model in self.plan.held]

    async def start(self) -> None:
        """Start all groups and their supervision. The first goes ahead: what it converts and compiles, the others find.

        Raises:
            PacelineError: a group cannot start, e.g. a model that is not found; all are ended again.
        """
        try:
            await self._load(0)
            await asyncio.gather(*(self._load(group) for group in range(1, len(self.groups))))
        except BaseException:
            await self._kill_all()
            raise
        for group in range(len(self.groups)):
            self._spawn(self._supervise(group))

    def expect(self, plan: ClusterPlan) -> None:
        """Go by the service times and deadlines of `plan` from now on; its groups must be the same.

        Raises:
            InvalidParameter: other groups, requests are under way, or a group does not run.
        """
        if plan.placement != self.plan.placement:
            raise InvalidParameter("groups", "differ from those that run", "start another cluster for them")
        if self.controller.num_open:
            problem = f"{self.controller.num_open} requests are under way"
            raise InvalidParameter("plan", problem, "wait for their answers")
        if any(state is not Health.READY for state in self.controller.health):
            raise InvalidParameter("plan", "a group does not run", "wait until it was started again")
        self.plan, self.controller = plan, _controller(plan)

    async def generate(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """See `Backend.generate`."""
        group = self._accept(job)
        flight = _Flight(job.with_seed(random.getrandbits(48)), asyncio.get_running_loop().create_future())
        self._flights[job.request_id] = flight
        flight.task = self._spawn(self._fly(flight))
        self._give_turns(group)
        try:
            while True:
                chunk = await flight.chunks.get()
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            self._leave(flight)

    def health(self) -> Mapping[str, Any]:
        """State, models and queue of every group; ``degraded`` when one is not ready, ``down`` when a model is gone."""
        states = self.controller.health
        groups = [
            {"state": str(state), "models": list(queue.models), "queue": len(queue), "restarts": life.restarts}
            for state, queue, life in zip(states, self.controller.queues, self._lives, strict=True)
        ]
        served = {m for state, queue in zip(states, self.controller.queues, strict=True)
                  if state is not Health.LOST for m in queue.models}  # fmt: skip
        all_ready = all(state is Health.READY for state in states)
        status = "down" if set(self.models) - served else "ok" if all_ready else "degraded"
        return {"status": status, "groups": groups, "requests": dict(self.controller.counts)}

    async def metrics(self) -> bytes:
        return controller_text(self.controller)

    async def close(self, timeout: float = 30.0) -> None:
        """Take nothing more, answer what was accepted for up to `timeout` seconds, then end all groups."""
        self._is_closing = True
        self.events.record("draining", open_requests=self.controller.num_open)
        flying = [flight.task for flight in self._flights.values() if flight.task is not None]
        if flying:
            await asyncio.wait(flying, timeout=timeout)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for flight in tuple(self._flights.values()):
            self._fail(flight, GroupLost("the cluster was shut down"))
        await self._kill_all()
        self.events.record("stopped", **self.controller.counts)

    def _accept(self, job: Job) -> int:
        model = self.plan.model(job.model)
        if self._is_closing:
            raise RequestRejected("the cluster is shutting down")
        size = model.size(job.expected_tokens)
        return self.controller.submit(job.request_id, job.model, self._clock(), job.slo, size)

    async def _fly(self, flight: _Flight) -> None:
        """Bring a request to its end, at as many groups as it takes."""
        while True:
            group = await flight.turn
            life = self._lives[group].number
            try:
                await self._run(flight, group)
            except WorkerDied as death:
                if self._is_closing:
                    self._fail(flight, GroupLost("its group died while the cluster shut down"))
                    return
                self._handle_death(group, life, str(death))
            except Exception as error:  # the request's own fault
                self._fail(flight, error)
                return
            else:
                return

    async def _run(self, flight: _Flight, group: int) -> None:
        """One attempt; what the client has seen of an earlier one is not repeated."""
        to_skip, old_pieces = flight.num_sent, flight.num_pieces
        async with aclosing(self.groups[group].generate(flight.job)) as chunks:
            async for chunk in chunks:
                text, to_skip = chunk.text[to_skip:], max(0, to_skip - len(chunk.text))
                pieces, old_pieces = chunk.pieces[old_pieces:], max(0, old_pieces - len(chunk.pieces))
                flight.num_sent += len(text)
                flight.num_pieces += len(pieces)
                if chunk.finish_reason is not None:
                    self._complete(flight, replace(chunk, text=text, pieces=pieces))
                    return
                if text or pieces:
                    flight.chunks.put_nowait(replace(chunk, text=text, pieces=pieces))
        raise WorkerDied(f"group {group} ended an answer without a reason")

    def _complete(self, flight: _Flight, last: Chunk) -> None:
        """An answer is whole."""
        request_id = flight.job.request_id
        group = self.controller.group_of(request_id)
        self.controller.finish(request_id, self._clock())
        del self._flights[request_id]
        flight.chunks.put_nowait(last)
        self._give_turns(group)

    def _fail(self, flight: _Flight, error: Exception) -> None:
        """A request ends by its own fault."""
        request_id = flight.job.request_id
        if self._flights.pop(request_id, None) is not None:
            group = self.controller.group_of(request_id)
            self.controller.cancel(request_id)
            self._give_turns(group)
        flight.chunks.put_nowait(error)

    def _leave(self, flight: _Flight) -> None:
        """Nobody listens any more: end a request that has not ended."""
        job = flight.job
        if self._flights.pop(job.request_id, None) is None:
            return
        group, has_started = self.controller.group_of(job.request_id), flight.turn.done()
        assert flight.task is not None
        flight.task.cancel()
        self.controller.cancel(job.request_id)
        self._spawn(self._abort(group, job if has_started else None))

    async def _abort(self, group: int, job: Job | None) -> None:
        if job is not None:
            with suppress(WorkerDied):
                await self.groups[group].abort(job)
        self._give_turns(group)

    def _give_turns(self, group: int) -> None:
        for ticket in self.controller.start(group, self._clock()):
            self._flights[ticket.request_id].turn.set_result(group)

    async def _supervise(self, group: int) -> None:
        while self.controller.health[group] is not Health.LOST:
            await asyncio.sleep(self._supervision.heartbeat)
            if self.controller.health[group] is not Health.READY:
                continue
            life = self._lives[group].number
            try:
                await asyncio.wait_for(self.groups[group].check(), self._supervision.timeout)
            except TimeoutError:
                self._handle_death(group, life, f"no sign of life for {self._supervision.timeout:g} s")
            except Exception as error:
                self._handle_death(group, life, str(error))

    def _handle_death(self, group: int, life: int, reason: str) -> None:
        """A group died in its life number `life`: its requests move, and it is started again unless it died too often.

        Reports of a death that is known already are passed over.
        """
        state, now = self._lives[group], self._clock()
        if state.number != life or self._is_closing:
            return
        wait = state.end(now, self._supervision)
        self.events.record("group_died", group=group, reason=reason.splitlines()[0] if reason else "unknown")
        self._move(group, now, None if wait is None else now + wait + state.load_seconds)
        if wait is None:
            self.events.record("group_lost", group=group, restarts=state.restarts)
            self._spawn(self.groups[group].kill())
        else:
            self._spawn(self._restart(group, wait))

    def _move(self, group: int, now: float, back_at: float | None) -> None:
        moves = self.controller.group_died(group, now, back_at)
        for ticket, _ in moves.moved:
            flight = self._flights[ticket.request_id]
            if flight.turn.done():
                flight.turn = asyncio.get_running_loop().create_future()
        for ticket in moves.lost:
            flight = self._flights.pop(ticket.request_id)
            flight.chunks.put_nowait(GroupLost(f"no group that holds {ticket.model!r} is alive any more"))
            assert flight.task is not None
            flight.task.cancel()
        for ticket, target in moves.moved:
            self.events.record("request_moved", request=ticket.request_id, source=group, target=target)
        for target in {target for _, target in moves.moved}:
            self._give_turns(target)

    async def _restart(self, group: int, wait: float) -> None:
        await self.groups[group].kill()
        self.events.record("group_restarting", group=group, attempt=self._lives[group].restarts, after_seconds=wait)
        await asyncio.sleep(wait)
        life = self._lives[group].number
        try:
            await self._load(group)
        except Exception as error:
            self._handle_death(group, life, f"cannot start: {error}")
        else:
            self.controller.group_ready(group, self._clock())
            self._give_turns(group)

    async def _load(self, group: int) -> None:
        started = self._clock()
        await self.groups[group].start()
        life = self._lives[group]
        life.since = self._clock()
        life.load_seconds = life.since - started
        names = [model.name for model in self.plan.held_by(group)]
        self.events.record("group_ready", group=group, models=names, seconds=round(life.load_seconds, 3))

    async def _kill_all(self) -> None:
        await asyncio.gather(*(group.kill() for group in self.groups), return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _controller(plan: ClusterPlan) -> Controller:
    return Controller(plan.queues(), {model.name: model.slo for model in plan.held}, plan.overhead)
