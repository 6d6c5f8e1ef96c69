"""`TokenQueue`: the queue of a group whose engines run many requests at once, with predicted completion times.

Predictions use the simulator's rule and kernel (`placement/tokens/`). Deviations are learned from every answer, also
under load, as a speed factor of the group; the shape of its profile stays. A group that is estimated as too slow
rejects requests and so gets no new measurements; therefore such an estimate decays while the group is idle.
`controller.py` chooses the group of a request.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from paceline.placement.tokens import Outlook, TokenAsk, TokenGroup, TokenProfile
from paceline.serving.cluster.ticket import Standing, Ticket

NOMINAL = TokenProfile({0: {1: 0.001, 8: 0.002, 64: 0.008}})
"""Profile of an unmeasured model: the first answer sets its speed, later ones correct it. Time grows with the number of
rows, so that requests are distributed over groups."""

MEMORY = 3.0
"""Time constant in seconds of work: after it, two thirds of the estimated speed come from new measurements. An answer
is weighted by the seconds that no earlier answer has covered, since a disturbance delays all concurrent answers."""
_MOST_WEIGHT = 0.5
"""Largest weight of one answer in the group's speed."""
FADING = 10.0
"""Half-life in idle seconds of an estimate that makes the group reject requests, on a logarithmic scale."""
_MOST = 2.0
"""Limit on the factor between an answer's measured and expected speed; larger ones are taken as disturbances."""
_ENOUGH = 16
"""Number of tokens, prompt and output, from which an answer has full weight."""


class TokenQueue:
    """The requests that one group has accepted.

    Args:
        profiles: of the models that the group holds; None for one that was not measured.
        seats: requests that the engine of each runs at once; those of the profile when left out.
        overhead: seconds between the last token and the answer.
    """

    def __init__(
        self,
        profiles: Mapping[str, TokenProfile | None],
        overhead: float = 0.0,
        seats: Mapping[str, int] | None = None,
    ) -> None:
        self._profiles = {
            model: replace(profile or NOMINAL, seats=(seats or {}).get(model, (profile or NOMINAL).seats))
            for model, profile in profiles.items()
        }
        self._unknown = {model for model, profile in profiles.items() if profile is None}
        self._group = TokenGroup(self._profiles)
        self._overhead = overhead
        self._numbers = itertools.count()
        self._tickets: dict[str, tuple[int, Ticket]] = {}
        self._joined: dict[int, tuple[float, float]] = {}
        """Time at which each request joined, and `_believed` at that time."""
        self._running: dict[str, str] = {}
        self._opens_at = self._idle_since = self._told_until = float("-inf")
        self._believed, self._believed_at = 0.0, 0.0
        """Integral of the logarithm of the estimated speed over time, and its upper limit."""
        self._usual = 1.0
        """The speed towards which an estimate of slowness decays: the profiles' own, or that of the first answer."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._tickets

    @property
    def models(self) -> tuple[str, ...]:
        """See `Queue.models`."""
        return tuple(self._profiles)

    @property
    def num_running(self) -> int:
        """Number of running requests."""
        return len(self._running)

    @property
    def scale(self) -> float:
        """Learned ratio of the group's times to those of its profiles."""
        return self._group.scale

    def open_at(self, seconds: float) -> None:
        """Start nothing before time `seconds`, because the group is restarting."""
        self._opens_at = seconds
        self._group.restart(seconds)

    def rank(self, ticket: Ticket, now: float) -> tuple[float, ...]:
        """Sort key, smaller is better: requests that would miss their deadlines, then the predicted end."""
        found = self._consider(ticket, now)
        return (found.is_late + found.makes_late, found.end)

    def standing(self, ticket: Ticket, now: float) -> Standing:
        """Predicted completion of a request that joins now, and whether it would make others late."""
        if self._unknown:
            return self._standing_unknown(ticket, now)
        found = self._consider(ticket, now)
        end = found.end + self._overhead
        if end > ticket.deadline:
            return Standing(end, f"would take {end - now:.3f} s", end - ticket.deadline)
        if found.is_late:
            problem = (
                f"would have its first token in {found.first + self._overhead - now:.3f} s and end in {end - now:.3f} s"
            )
            return Standing(end, problem, max(0.0, found.first + self._overhead - ticket.first_deadline))
        if found.makes_late:
            return Standing(end, f"would make {found.makes_late} accepted requests late", 0.0)
        return Standing(end)

    def add(self, ticket: Ticket, now: float) -> None:
        """Append a request that waits from `now` on."""
        number = next(self._numbers)
        self._tickets[ticket.request_id] = number, ticket
        self._joined[number] = max(now, self._opens_at), self._beliefs(now)
        self._group.join(number, self._ask(ticket), max(now, self._opens_at))

    def start(self, now: float) -> list[Ticket]:
        """Mark requests that can start as running, and return them: per model at most as many as its engine runs at
        once."""
        taken = Counter(self._running.values())
        turns = []
        for request_id, (_, ticket) in self._tickets.items():
            if request_id not in self._running and taken[ticket.model] < self._profiles[ticket.model].seats:
                taken[ticket.model] += 1
                turns.append(ticket)
        self._running |= {ticket.request_id: ticket.model for ticket in turns}
        return turns

    def finish(self, request_id: str, now: float, num_tokens: int | None = None) -> Ticket:
        """Remove a request that was answered with `num_tokens` tokens, and learn from its latency."""
        self._group.advance(now)
        number, ticket = self._tickets[request_id]
        if num_tokens:
            self._learn(number, ticket, num_tokens, now)
        self._idle_since = now
        return self.remove(request_id)

    def remove(self, request_id: str) -> Ticket:
        """Remove and return an aborted request."""
        number, ticket = self._tickets.pop(request_id)
        self._running.pop(request_id, None)
        self._joined.pop(number)
        self._group.remove(number)
        return ticket

    def clear(self) -> list[Ticket]:
        """Remove and return all requests, in order."""
        tickets = [ticket for _, ticket in self._tickets.values()]
        self._tickets.clear()
        self._joined.clear()
        self._running.clear()
        self._group.clear()
        return tickets

    def _standing_unknown(self, ticket: Ticket, now: float) -> Standing:
        """The prediction before a first answer: accept as many requests as the engine runs at once, reject others."""
        waiting = sum(other.model == ticket.model for _, other in self._tickets.values())
        if ticket.deadline < float("inf") and waiting >= self._profiles[ticket.model].seats:
            return Standing(
                now, "comes before anything is known of the group's speed, and all its seats are taken", 0.0
            )
        return Standing(now)

    def _consider(self, ticket: Ticket, now: float) -> Outlook:
        found = self._group.consider(self._ask(ticket), max(now, self._opens_at))
        if not found.is_late or self._tickets or self.scale <= self._usual:
            return found
        self._fade(now)
        return self._group.consider(self._ask(ticket), max(now, self._opens_at))

    def _ask(self, ticket: Ticket) -> TokenAsk:
        due = ticket.deadline - self._overhead, ticket.first_deadline - self._overhead
        return TokenAsk(ticket.model, ticket.prompt_tokens, ticket.expected_tokens, *due, ticket.pace)

    def _learn(self, number: int, ticket: Ticket, num_tokens: int, now: float) -> None:
        """Update the group's speed from one answer: its latency over the predicted one.

        Predictions used the speeds estimated meanwhile, so the ratio is relative to their mean.
        """
        joined, believed = self._joined[number]
        joined, believed = max(joined, self._opens_at), self._beliefs(now) - believed
        predicted = self._group.end_of(number, num_tokens) - joined
        off = math.log(max(now - self._overhead - joined, 1e-9) / max(predicted, 1e-9))
        if self._unknown:
            self._usual = self._group.scale = self.scale * math.exp(off)
            self._unknown.clear()
            return
        seconds = max(now - joined, 1e-9)
        difference = off + believed / seconds - math.log(self.scale)
        news = min(now - self._told_until, seconds)
        weight = min(_MOST_WEIGHT, 1 - math.exp(-news / MEMORY))
        weight *= min(1.0, (ticket.prompt_tokens + num_tokens) / _ENOUGH)
        self._group.scale *= math.exp(weight * min(max(difference, -math.log(_MOST)), math.log(_MOST)))
        self._told_until = now

    def _beliefs(self, now: float) -> float:
        """Extend the integral `_believed` to `now`; call it before the speed changes."""
        self._believed += max(0.0, now - self._believed_at) * math.log(self.scale)
        self._believed_at = max(now, self._believed_at)
        return self._believed

    def _fade(self, now: float) -> None:
        """Decay an estimate of slowness while the group is idle."""
        self._beliefs(now)
        left = 0.5 ** (max(0.0, now - self._idle_since) / FADING)
        self._group.scale = self._usual * (self.scale / self._usual) ** left
        self._idle_since = max(now, self._idle_since)
