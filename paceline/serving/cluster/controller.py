"""`Controller`: dispatch and admission control: chooses a group for each request, and rejects late ones.

The rules are those of the simulators (Li et al. 2023, AlpaServe, section 5): shortest queue, first come first served,
and rejection of requests that would miss their deadline. Where engines run many requests at once (`token_queue.py`),
the shortest queue is the one that finishes first, and requests that would make others late are rejected too. Pure
bookkeeping: the clock is passed in, and `dispatcher.py` runs the requests.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from paceline.errors import InvalidParameter, RequestRejected, UnknownModel
from paceline.placement.tokens.lengths import PRIOR_TOKENS, Lengths
from paceline.serving.cluster.ticket import INFINITE, Slo, Standing, Ticket

MAX_WAITING = 1024
"""Largest number of waiting requests per group."""


class Health(StrEnum):
    """Whether a group takes requests."""

    READY = "ready"
    RESTARTING = "restarting"
    LOST = "lost"


class Queue(Protocol):
    """One group's requests: `GroupQueue` or `TokenQueue`."""

    def __len__(self) -> int: ...

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the group holds."""
        ...

    @property
    def num_running(self) -> int:
        """Number of running requests."""
        ...

    def rank(self, ticket: Ticket, now: float) -> tuple[float, ...]:
        """Sort key of this queue for a request; smaller is better."""
        ...

    def standing(self, ticket: Ticket, now: float) -> Standing:
        """Predicted completion of a request that joins now, and its effect on others."""
        ...

    def add(self, ticket: Ticket, now: float) -> None:
        """Append a request."""
        ...

    def start(self, now: float) -> list[Ticket]:
        """Requests to start now."""
        ...

    def finish(self, request_id: str, now: float, num_tokens: int | None = None) -> Ticket:
        """Remove and return an answered request."""
        ...

    def remove(self, request_id: str) -> Ticket:
        """Remove and return a request."""
        ...

    def clear(self) -> list[Ticket]:
        """Remove and return all requests, in order."""
        ...

    def open_at(self, seconds: float) -> None:
        """Start nothing before time `seconds`, because the group is restarting."""
        ...


class Moves(NamedTuple):
    """Where the requests of a failed group go: (request, new group) each, and those that no group can take."""

    moved: list[tuple[Ticket, int]]
    lost: list[Ticket]


class Controller:
    """The queues of all groups. Every accepted request ends exactly once: served, cancelled or lost.

    Args:
        queues: one per group, in the plan's order, which decides ties.
        slos: for each model, its latency objective in seconds from arrival to answer, or all its objectives; infinite
            for none.
        lengths: prior of each model's answer length, in tokens.
        max_waiting: largest number of waiting requests per group; more are rejected.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        slos: Mapping[str, float | Slo],
        lengths: Mapping[str, float] | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.queues = list(queues)
        self.health = [Health.READY] * len(self.queues)
        self.counts: Counter[str] = Counter(accepted=0, rejected=0, served=0, late=0, cancelled=0, lost=0, moved=0)
        self._slos = {model: slo if isinstance(slo, Slo) else Slo(slo) for model, slo in slos.items()}
        self.lengths = {model: Lengths((lengths or {}).get(model, PRIOR_TOKENS)) for model in slos}
        self._max_waiting = max_waiting
        self._group_of: dict[str, int] = {}

    @property
    def num_open(self) -> int:
        """Requests that were accepted and have not ended."""
        return len(self._group_of)

    def group_of(self, request_id: str) -> int:
        """The group that has an open request."""
        return self._group_of[request_id]

    def submit(
        self,
        request_id: str,
        model: str,
        now: float,
        slo: float | None = None,
        size: float = 1.0,
        prompt_tokens: float = 1.0,
        max_tokens: float = INFINITE,
        is_length_known: bool = False,
    ) -> int:
        """Accept or reject a request.

        Args:
            slo: latency objective in seconds; None takes the model's own.
            size: its work relative to the profiled request, where requests are one pass each.
            prompt_tokens: length of its prompt, possibly estimated.
            max_tokens: largest length of its answer.
            is_length_known: whether the answer will have exactly `max_tokens` tokens.

        Returns:
            The group that will answer.

        Raises:
            InvalidParameter: an unknown model, a repeated id, or a deadline or size that is not above 0.
            RequestRejected: it would miss its deadline or make others miss theirs, too many requests wait, or no live
                group holds the model.
        """
        self._check(request_id, model, slo, size)
        promised = self._slos[model]
        ticket = Ticket(
            request_id, model, now, size, now + (promised.whole if slo is None else slo), prompt_tokens,
            max_tokens if is_length_known else self.lengths[model].expected(max_tokens),
            now + promised.first, promised.token,
        )  # fmt: skip
        group = self._shortest_queue(ticket, now)
        if group is None:
            raise self._rejection(f"no group that holds {model!r} is alive")
        queue = self.queues[group]
        if len(queue) - queue.num_running >= self._max_waiting:
            raise self._rejection(f"{self._max_waiting} requests wait at the group with the shortest queue", 0.0)
        standing = queue.standing(ticket, now)
        if standing.problem is not None:
            problem = f"{standing.problem} at the group with the shortest queue"
            raise self._rejection(f"{problem}, its deadline is {ticket.deadline - now:.3f} s", standing.seconds_late)
        self.counts["accepted"] += 1
        self._join(ticket, group, now)
        return group

    def _rejection(self, problem: str, seconds_late: float | None = None) -> RequestRejected:
        self.counts["rejected"] += 1
        return RequestRejected(problem, seconds_late)

    def start(self, group: int, now: float) -> list[Ticket]:
        """Requests to start now at `group`; the caller runs them."""
        return self.queues[group].start(now) if self.health[group] is Health.READY else []

    def finish(self, request_id: str, now: float, num_tokens: int | None = None) -> None:
        """Record that an answer is complete, with `num_tokens` tokens if known."""
        ticket = self.queues[self._group_of.pop(request_id)].finish(request_id, now, num_tokens)
        if num_tokens:
            self.lengths[ticket.model].learn(num_tokens)
        self.counts["served"] += 1
        self.counts["late"] += now > ticket.deadline

    def cancel(self, request_id: str) -> None:
        """Remove a request whose client has gone, or that failed by its own fault."""
        self.queues[self._group_of.pop(request_id)].remove(request_id)
        self.counts["cancelled"] += 1

    def group_died(self, group: int, now: float, back_at: float | None) -> Moves:
        """Move the requests of a failed group to the shortest queues of other groups, or let them wait for its return.

        None of them is rejected for its deadline: accepted requests are answered, if late.

        Args:
            back_at: expected time at which the group runs again; None if it will not be restarted.
        """
        self.health[group] = Health.LOST if back_at is None else Health.RESTARTING
        tickets = self.queues[group].clear()
        if back_at is not None:
            self.queues[group].open_at(back_at)
        moves = Moves([], [])
        for ticket in tickets:
            self._find_new_group(ticket, now, moves)
        self.counts["moved"] += sum(new != group for _, new in moves.moved)
        return moves

    def group_ready(self, group: int, now: float) -> None:
        """Record that a group runs again."""
        self.health[group] = Health.READY
        self.queues[group].open_at(now)

    def _find_new_group(self, ticket: Ticket, now: float, moves: Moves) -> None:
        group = self._shortest_queue(ticket, now)
        if group is None:
            del self._group_of[ticket.request_id]
            self.counts["lost"] += 1
            moves.lost.append(ticket)
        else:
            self._join(ticket, group, now)
            moves.moved.append((ticket, group))

    def _join(self, ticket: Ticket, group: int, now: float) -> None:
        self.queues[group].add(ticket, now)
        self._group_of[ticket.request_id] = group

    def _shortest_queue(self, ticket: Ticket, now: float) -> int | None:
        """The group with the smallest rank, the lowest number on ties; running groups before restarting ones."""
        for state in (Health.READY, Health.RESTARTING):
            holding = [
                g for g, queue in enumerate(self.queues) if self.health[g] is state and ticket.model in queue.models
            ]  # fmt: skip
            if holding:
                return holding[0] if len(holding) == 1 else min(holding, key=lambda g: self.queues[g].rank(ticket, now))
        return None

    def _check(self, request_id: str, model: str, slo: float | None, size: float) -> None:
        if model not in self._slos:
            raise UnknownModel("model", f"{model!r} is unknown", f"use one of {', '.join(self._slos)}")
        if request_id in self._group_of:
            raise InvalidParameter("request_id", f"{request_id!r} is running already", "use an id of its own")
        if slo is not None and not slo > 0:
            raise InvalidParameter("slo", f"{slo} s", "give seconds above 0, or leave it out")
        if not 0 < size < float("inf"):
            raise InvalidParameter("size", f"{size}", "give a number above 0")
