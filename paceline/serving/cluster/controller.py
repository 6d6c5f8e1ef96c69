"""`Controller`: which group takes a request, which requests are turned away, and what becomes of a dead group's.

The rules that the simulators play (Li et al. 2023, AlpaServe, section 5): the shortest queue, first come first served,
and nobody is let in who would come out too late. Where engines run many requests at once (`token_queue.py`) the
shortest queue is the one with the earliest end, and nobody is let in who would make another late either. Pure
bookkeeping: the clock is passed in, and what runs where is carried out by `dispatcher.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from paceline.errors import InvalidParameter, RequestRejected
from paceline.placement.tokens.lengths import PRIOR_TOKENS, Lengths
from paceline.serving.cluster.ticket import INFINITE, Slo, Standing, Ticket

MAX_WAITING = 1024
"""Requests that may wait at a group."""


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
        """What the group holds."""
        ...

    @property
    def num_running(self) -> int:
        """Requests that have their turn."""
        ...

    def rank(self, ticket: Ticket, now: float) -> tuple[float, ...]:
        """Smaller is better."""
        ...

    def standing(self, ticket: Ticket, now: float) -> Standing:
        """What would become of a request that joins now."""
        ...

    def add(self, ticket: Ticket, now: float) -> None:
        """Enter a request."""
        ...

    def start(self, now: float) -> list[Ticket]:
        """Requests whose turn it is."""
        ...

    def finish(self, request_id: str, now: float, num_tokens: int | None = None) -> Ticket:
        """A request was answered."""
        ...

    def remove(self, request_id: str) -> Ticket:
        """Forget a request."""
        ...

    def clear(self) -> list[Ticket]:
        """All requests in order, forgotten."""
        ...

    def open_at(self, seconds: float) -> None:
        """Nothing starts before that time: the group is being started again."""
        ...


class Moves(NamedTuple):
    """What a group's death did to its requests: (request, its new group) each, and those that nobody can take."""

    moved: list[tuple[Ticket, int]]
    lost: list[Ticket]


class Controller:
    """The queues of all groups. Every accepted request ends exactly once: served, cancelled or lost.

    Args:
        queues: one per group, in the plan's order, which decides ties.
        slos: for each model, seconds from arrival to answer, or all its promises; infinite for none.
        lengths: tokens that answers of a model are expected to have at first.
        max_waiting: requests that may wait at a group; more are turned away.
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
        """Accept a request, or turn it away.

        Args:
            slo: seconds; None takes the model's own.
            size: its work over that of the profiled request, where requests are one pass each.
            prompt_tokens: of its prompt, perhaps an estimate.
            max_tokens: that its answer may have.
            is_length_known: it will have just so many.

        Returns:
            The group that will answer.

        Raises:
            InvalidParameter: an unknown model, a repeated id, or a deadline or size that is not above 0.
            RequestRejected: it would come too late or make others late, too many wait, or no group that holds the
                model is alive.
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
        """Requests whose turn it is at `group`; the caller runs them."""
        return self.queues[group].start(now) if self.health[group] is Health.READY else []

    def finish(self, request_id: str, now: float, num_tokens: int | None = None) -> None:
        """An answer is complete, with `num_tokens` tokens where somebody counted."""
        ticket = self.queues[self._group_of.pop(request_id)].finish(request_id, now, num_tokens)
        if num_tokens:
            self.lengths[ticket.model].learn(num_tokens)
        self.counts["served"] += 1
        self.counts["late"] += now > ticket.deadline

    def cancel(self, request_id: str) -> None:
        """Whoever asked is gone, or the request failed by its own fault."""
        self.queues[self._group_of.pop(request_id)].remove(request_id)
        self.counts["cancelled"] += 1

    def group_died(self, group: int, now: float, back_at: float | None) -> Moves:
        """A group is gone; its requests go to the shortest queues among the others, or wait for its return.

        None of them is turned away for its deadline: what was accepted is answered, if late.

        Args:
            back_at: when it should run again; None when it is given up.
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
        """A group runs again."""
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
        """The group with the smallest rank, the lowest on ties; those that run go before those that will."""
        for state in (Health.READY, Health.RESTARTING):
            holding = [
                g for g, queue in enumerate(self.queues) if self.health[g] is state and ticket.model in queue.models
            ]  # fmt: skip
            if holding:
                return holding[0] if len(holding) == 1 else min(holding, key=lambda g: self.queues[g].rank(ticket, now))
        return None

    def _check(self, request_id: str, model: str, slo: float | None, size: float) -> None:
        if model not in self._slos:
            raise InvalidParameter("model", f"{model!r} is unknown", f"use one of {', '.join(self._slos)}")
        if request_id in self._group_of:
            raise InvalidParameter("request_id", f"{request_id!r} is running already", "use an id of its own")
        if slo is not None and not slo > 0:
            raise InvalidParameter("slo", f"{slo} s", "give seconds above 0, or leave it out")
        if not 0 < size < float("inf"):
            raise InvalidParameter("size", f"{size}", "give a number above 0")
