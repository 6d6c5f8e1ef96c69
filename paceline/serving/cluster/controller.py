"""`Controller`: which group takes a request, which requests are turned away, and what becomes of a dead group's.

The rules that `placement.simulator` plays (Li et al. 2023, AlpaServe, section 5): the shortest queue, first come first
served, and nobody is let in who would come out too late. Pure bookkeeping: the clock is passed in, and what runs where
is carried out by `dispatcher.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from paceline.errors import InvalidParameter, RequestRejected
from paceline.serving.cluster.group_queue import GroupQueue, Ticket


class Health(StrEnum):
    """Whether a group takes requests."""

    READY = "ready"
    RESTARTING = "restarting"
    LOST = "lost"


class Moves(NamedTuple):
    """What a group's death did to its requests: (request, its new group) each, and those that nobody can take."""

    moved: list[tuple[Ticket, int]]
    lost: list[Ticket]


class Controller:
    """The queues of all groups. Every accepted request ends exactly once: served, cancelled or lost.

    Args:
        queues: one per group, in the plan's order, which decides ties.
        slos: for each model, seconds from arrival to answer; infinite for none.
        overhead: seconds between a request's last stage and its answer.
    """

    def __init__(self, queues: Sequence[GroupQueue], slos: Mapping[str, float], overhead: float = 0.0) -> None:
        self.queues = list(queues)
        self.health = [Health.READY] * len(self.queues)
        self.counts: Counter[str] = Counter(accepted=0, rejected=0, served=0, late=0, cancelled=0, lost=0, moved=0)
        self._slos, self._overhead = dict(slos), overhead
        self._group_of: dict[str, int] = {}

    @property
    def num_open(self) -> int:
        """Requests that were accepted and have not ended."""
        return len(self._group_of)

    def group_of(self, request_id: str) -> int:
        """The group that has an open request."""
        return self._group_of[request_id]

    def submit(self, request_id: str, model: str, now: float, slo: float | None = None, size: float = 1.0) -> int:
        """Accept a request, or turn it away.

        Args:
            slo: seconds; None takes the model's own.
            size: its work over that of the profiled request.

        Returns:
            The group that will answer.

        Raises:
            InvalidParameter: an unknown model, a repeated id, or a deadline or size that is not above 0.
            RequestRejected: it would come too late, or no group that holds the model is alive.
        """
        self._check(request_id, model, slo, size)
        deadline = now + (self._slos[model] if slo is None else slo)
        group = self._shortest_queue(model, now)
        if group is None:
            self.counts["rejected"] += 1
            raise RequestRejected(f"no group that holds {model!r} is alive")
        finish = self.queues[group].finish_at(model, size, now) + self._overhead
        if finish > deadline:
            self.counts["rejected"] += 1
            problem = f"would take {finish - now:.3f} s at the group with the shortest queue"
            raise RequestRejected(f"{problem}, its deadline is {deadline - now:.3f} s", finish - deadline)
        self.counts["accepted"] += 1
        self._join(Ticket(request_id, model, now, size, deadline), group, now)
        return group

    def start(self, group: int, now: float) -> list[Ticket]:
        """Requests whose turn it is at `group`; the caller runs them."""
        return self.queues[group].start(now) if self.health[group] is Health.READY else []

    def finish(self, request_id: str, now: float) -> None:
        """An answer is complete."""
        ticket = self.queues[self._group_of.pop(request_id)].finish(request_id, now)
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
            self.queues[group].opens_at = back_at
        moves = Moves([], [])
        for ticket in tickets:
            self._find_new_group(ticket, now, moves)
        self.counts["moved"] += sum(new != group for _, new in moves.moved)
        return moves

    def group_ready(self, group: int, now: float) -> None:
        """A group runs again."""
        self.health[group] = Health.READY
        self.queues[group].opens_at = now

    def _find_new_group(self, ticket: Ticket, now: float, moves: Moves) -> None:
        group = self._shortest_queue(ticket.model, now)
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

    def _shortest_queue(self, model: str, now: float) -> int | None:
        """The group whose last stage frees earliest, the lowest on ties; those that run go before those that will."""
        for state in (Health.READY, Health.RESTARTING):
            holding = [
                g for g, queue in enumerate(self.queues) if self.health[g] is state and model in queue.models
            ]  # fmt: skip
            if holding:
                return min(holding, key=lambda g: self.queues[g].free_at(now))
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
