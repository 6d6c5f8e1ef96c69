"""`Dispatcher`: runs requests at the groups that the controller chose, monitors the groups, and restarts failed ones.

A retried request gives the same text, because its draws depend only on its seed and positions; so a stream continues
after the last piece that its client received (`flight.py`). Requests that were running when a group failed are retried
at once. One more failure before they are ended they are suspects, of which only one runs at a time, so that a request
that crashes its groups is identified and ended, and no other.
Groups implement `group.GroupHandle`; those on Ray are in `ray_groups.py`. Not for where a request goes
(`controller.py`). Long, because each part ends the others: a request's failure that of its group, and a group's that of
the requests on it.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from typing import Any

from paceline.errors import GroupLost, InvalidParameter, RequestRejected, WorkerDied
from paceline.placement.tokens.group import warm_up
from paceline.serving.cluster.controller import Controller, Health
from paceline.serving.cluster.events import EventLog
from paceline.serving.cluster.flight import Flight, Turn
from paceline.serving.cluster.group import GroupHandle, Life, Supervision
from paceline.serving.cluster.measured import measured
from paceline.serving.cluster.plan import ClusterPlan
from paceline.serving.cluster.prometheus import controller_text, merged_text
from paceline.serving.cluster.prompt_sizes import PromptSizes
from paceline.serving.cluster.ticket import Slo
from paceline.serving.models.job import Chunk, Job


class Dispatcher:
    """A `Backend` over groups.

    Args:
        plan: models, groups and their known costs.
        groups: one handle per group of the plan.
        supervision: how groups are checked and restarted.
        events: log of events.
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
        self._flights: dict[str, Flight] = {}
        self._lives = [Life() for _ in groups]
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = self._is_over = False
        self._suspects = asyncio.Lock()
        self._prompts = PromptSizes()
        self._max_model_lens: dict[str, int] = {}

    @property
    def models(self) -> Sequence[str]:
        """See `Backend.models`."""
        return [model.name for model in self.plan.held]

    async def start(self) -> None:
        """Start all groups and their supervision. The first one starts alone, so that the others find its converted
        weights and compiled kernels.

        Raises:
            PacelineError: a group cannot start, e.g. because a model is not found; all groups are ended then.
        """
        warm_up()
        try:
            await self._load(0)
            await asyncio.gather(*(self._load(group) for group in range(1, len(self.groups))))
            await self._ask_for_profiles()
        except BaseException:
            await self._kill_all()
            raise
        for group in range(len(self.groups)):
            self._spawn(self._supervise(group))

    def expect(self, plan: ClusterPlan) -> None:
        """Use the service times and deadlines of `plan` from now on; its groups must be the same.

        Raises:
            InvalidParameter: the groups differ, requests are in flight, or a group does not run.
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
        flight = Flight(job.with_seed(random.getrandbits(48)), asyncio.get_running_loop().create_future())
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
        """State, models and queue of every group; ``degraded`` if one is not ready, ``down`` if a model is
        unavailable."""
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

    def describe(self, model: str) -> Mapping[str, Any]:
        """See `Backend.describe`; limits are the minimum over the groups that hold the model."""
        return {"max_model_len": self._max_model_lens.get(model)}

    async def metrics(self) -> bytes:
        """Metrics of the controller and of all engines that respond, labelled by group."""
        texts = await asyncio.gather(*(self._metrics_of(group) for group in range(len(self.groups))))
        return controller_text(self.controller) + merged_text(texts)

    async def _metrics_of(self, group: int) -> bytes:
        if self.controller.health[group] is not Health.READY:
            return b""
        try:
            async with asyncio.timeout(self._supervision.timeout):
                return await self.groups[group].metrics()
        except Exception:  # a scraper must not fail with a group
            return b""

    async def close(self, timeout: float = 30.0) -> None:
        """Stop accepting, finish accepted requests for up to `timeout` seconds, then end all groups.

        A group that fails meanwhile is not restarted; its requests move to others.
        """
        self._is_closing = True
        self.events.record("draining", open_requests=self.controller.num_open)
        flying = [flight.task for flight in self._flights.values() if flight.task is not None]
        if flying:
            await asyncio.wait(flying, timeout=timeout)
        self._is_over = True
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
        params = job.params
        prompt_tokens = min(self._prompts.expected(job), self._max_model_lens.get(job.model, math.inf))
        return self.controller.submit(
            job.request_id, job.model, self._clock(), job.slo, model.size(job.expected_tokens), prompt_tokens,
            params.max_tokens, is_length_known=params.ignore_eos,
        )  # fmt: skip

    async def _fly(self, flight: Flight) -> None:
        """Run a request to its end, with retries at other groups."""
        while True:
            turn = await flight.turn
            try:
                async with self._suspects if self._is_suspect(flight) else nullcontext():
                    if self._has_turn(flight, turn):  # else its group died while it waited for other suspects
                        await self._run(flight, turn)
                        return
            except WorkerDied as death:
                if self._is_over:
                    self._fail(flight, GroupLost("its group died while the cluster shut down"))
                    return
                self._handle_death(turn, str(death))
            except Exception as error:  # the request's own fault
                self._fail(flight, error)
            if flight.job.request_id not in self._flights:
                return

    def _is_suspect(self, flight: Flight) -> bool:
        return flight.deaths >= max(1, self._supervision.max_deaths - 1)

    def _has_turn(self, flight: Flight, turn: Turn) -> bool:
        return flight.turn.done() and flight.turn.result() == turn and self._lives[turn.group].number == turn.life

    async def _run(self, flight: Flight, turn: Turn) -> None:
        """One attempt; output that the client already has from an earlier attempt is not repeated."""
        splice, group = flight.splice(), turn.group
        flight.attempt = turn
        async with aclosing(self.groups[group].generate(flight.job)) as chunks:
            async for chunk in chunks:
                rest = splice.rest_of(chunk)
                if chunk.is_last:
                    self._complete(flight, rest)
                    return
                if rest.text or rest.texts or rest.pieces or rest.finish_reason is not None:
                    flight.chunks.put_nowait(rest)
        raise WorkerDied(f"group {group} ended an answer without a reason")

    def _complete(self, flight: Flight, last: Chunk) -> None:
        """Finish a request whose answer is complete."""
        request_id = flight.job.request_id
        group = self.controller.group_of(request_id)
        self._prompts.learn(flight.job, last.num_prompt_tokens)
        self.controller.finish(request_id, self._clock(), last.num_output_tokens or None)
        del self._flights[request_id]
        flight.chunks.put_nowait(last)
        self._give_turns(group)

    def _fail(self, flight: Flight, error: Exception) -> None:
        """End a request with its own error."""
        request_id = flight.job.request_id
        if self._flights.pop(request_id, None) is not None:
            group = self.controller.group_of(request_id)
            self.controller.cancel(request_id)
            self._give_turns(group)
        flight.chunks.put_nowait(error)

    def _leave(self, flight: Flight) -> None:
        """Abort a request whose client has gone, if it has not ended."""
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
            self._flights[ticket.request_id].turn.set_result(Turn(group, self._lives[group].number))

    async def _supervise(self, group: int) -> None:
        while self.controller.health[group] is not Health.LOST and not self._is_over:
            await asyncio.sleep(self._supervision.heartbeat)
            if self.controller.health[group] is not Health.READY:
                continue
            turn, asked = Turn(group, self._lives[group].number), self._clock()
            try:
                async with asyncio.timeout(self._supervision.timeout):
                    await self.groups[group].check()
            except TimeoutError:
                if self._clock() - asked < 2 * self._supervision.timeout:  # else this process stood still itself
                    self._handle_death(turn, f"no sign of life for {self._supervision.timeout:g} s")
            except Exception as error:
                self._handle_death(turn, str(error))

    def _handle_death(self, died: Turn, reason: str) -> None:
        """Handle a failed group: move its requests, and restart it unless it failed too often.

        Reports about an earlier incarnation of the group are ignored.
        """
        group, state, now = died.group, self._lives[died.group], self._clock()
        if state.number != died.life or self._is_over:
            return
        wait = None if self._is_closing else state.end(now, self._supervision)
        if self._is_closing:
            state.number += 1
        self.events.record("group_died", group=group, reason=reason.splitlines()[0] if reason else "unknown")
        self._blame(died)
        if wait is None and not self._is_closing:
            wait = state.restart_after_all(self._supervision)
        self._move(group, now, None if wait is None else now + wait + state.load_seconds)
        if wait is None:
            self.events.record("group_lost", group=group, restarts=state.restarts)
            self._spawn(self._kill(group))
        else:
            self._spawn(self._restart(group, wait))

    def _blame(self, died: Turn) -> None:
        """Count the failure for the requests that ran there, not for suspects that waited to run, and end those that
        ran during too many."""
        for flight in list(self._flights.values()):
            if flight.attempt != died:
                continue
            flight.deaths += 1
            flight.killed.append(died.group)
            if flight.deaths >= self._supervision.max_deaths:
                self.events.record("request_quarantined", request=flight.job.request_id, groups=flight.killed)
                for group in flight.killed:
                    self._lives[group].uncount_failure()
                self._fail(flight, GroupLost(f"{flight.deaths} groups died while they ran this request"))

    def _move(self, group: int, now: float, back_at: float | None) -> None:
        moves = self.controller.group_died(group, now, back_at)
        for ticket, _ in moves.moved:
            flight = self._flights[ticket.request_id]
            if flight.turn.done():
                flight.turn = asyncio.get_running_loop().create_future()
        why = "the cluster shut down" if self._is_closing else "all have ended"
        for ticket in moves.lost:
            flight = self._flights.pop(ticket.request_id)
            flight.chunks.put_nowait(GroupLost(f"no group that holds {ticket.model!r} is alive: {why}"))
            assert flight.task is not None
            flight.task.cancel()
        for ticket, target in moves.moved:
            self.events.record("request_moved", request=ticket.request_id, source=group, target=target)
        for target in {target for _, target in moves.moved}:
            self._give_turns(target)

    async def _restart(self, group: int, wait: float) -> None:
        life = self._lives[group]
        await self._kill(group)
        self.events.record("group_restarting", group=group, attempt=life.restarts, after_seconds=wait)
        await asyncio.sleep(wait)
        turn = Turn(group, life.number)
        try:
            await self._load(group)
        except Exception as error:
            self._handle_death(turn, f"cannot start: {error}")
        else:
            self.controller.group_ready(group, self._clock())
            self._give_turns(group)

    async def _load(self, group: int) -> None:
        started, limit = self._clock(), self._supervision.start_timeout
        try:
            async with asyncio.timeout(limit):
                await self.groups[group].start()
                lengths = await self.groups[group].max_model_lens()
        except TimeoutError:
            raise WorkerDied(f"group {group} did not start within {limit:g} s") from None
        for model, longest in lengths.items():
            self._max_model_lens[model] = min(longest, self._max_model_lens.get(model, longest))
        life = self._lives[group]
        life.since = self._clock()
        life.load_seconds = life.since - started
        names = [model.name for model in self.plan.held_by(group)]
        self.events.record("group_ready", group=group, models=names, seconds=round(life.load_seconds, 3))

    async def _ask_for_profiles(self) -> None:
        """Ask engines for their pass costs, where the plan does not give them."""
        if self.plan.stage_seconds is not None or self.plan.pass_profiles is not None:
            return
        limit = self._supervision.start_timeout
        self.plan = await measured(self.plan, self.groups, limit, self._clock, self.events)
        self.controller = _controller(self.plan)

    async def _kill(self, group: int) -> None:
        """End a group's processes; errors are ignored, so that a replacement can start."""
        try:
            async with asyncio.timeout(self._supervision.timeout):
                await self.groups[group].kill()
        except Exception as error:
            self.events.record("group_not_ended", group=group, reason=f"{type(error).__name__}: {error}")

    async def _kill_all(self) -> None:
        await asyncio.gather(*(self._kill(group) for group in range(len(self.groups))))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _controller(plan: ClusterPlan) -> Controller:
    slos = {model.name: Slo(model.slo, model.slo_first, model.slo_token) for model in plan.held}
    lengths = {model.name: model.num_tokens for model in plan.held if model.num_tokens}
    return Controller(plan.queues(), slos, lengths)
