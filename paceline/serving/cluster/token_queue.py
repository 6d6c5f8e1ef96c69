"""`TokenQueue`: a group whose engines run many requests at once, and when each of them will be answered.

The rule, and the kernel that plays it, are the simulator's (`placement/tokens/`). What runs elsewhere than predicted is
learned from every answer, under load too: the speed of the group, not the shape of its profile. A group that is
believed to be too slow for a request refuses it and so hears nothing better, hence such a belief fades while the group
is idle. Which group takes a request is decided by `controller.py`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from paceline.placement.tokens import Outlook, TokenAsk, TokenGroup, TokenProfile
from paceline.serving.cluster.ticket import Standing, Ticket

NOMINAL = TokenProfile({0: {1: 0.001, 8: 0.002, 64: 0.008}})
"""Stands for a model that nobody has measured: the first answer says how fast it is, later ones correct that. More
rows take longer, as they do everywhere in the end, so that requests spread over groups."""

MEMORY = 3.0
"""Seconds of work after which two thirds of what was believed of the group's speed are replaced by what was seen. An
answer counts by the seconds that no answer before it has told of: whatever holds up one holds up all that are under way
together, and is observed once."""
_MOST_WEIGHT = 0.5
"""Of one answer in the group's speed."""
FADING = 10.0
"""Seconds of idleness after which half of a belief that refuses requests is left, on a scale of factors."""
_MOST = 2.0
"""An answer counts as at most this many times as slow, or fast, as believed: something else held it up."""
_ENOUGH = 16
"""Tokens, read or made, from which an answer counts in full."""


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
        """When each joined, and what `_believed` was then."""
        self._running: dict[str, str] = {}
        self._opens_at = self._idle_since = self._told_until = float("-inf")
        self._believed, self._believed_at = 0.0, 0.0
        """The integral of the logarithm of the speed over time, and until when it was taken."""
        self._usual = 1.0
        """The speed that a belief in slowness fades to: the profiles' own, or what the first answer told."""

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
        """Requests that have their turn."""
        return len(self._running)

    @property
    def scale(self) -> float:
        """Seconds of this group over those of its profiles, as learned."""
        return self._group.scale

    def open_at(self, seconds: float) -> None:
        """Nothing starts before that time: the group is being started again."""
        self._opens_at = seconds
        self._group.restart(seconds)

    def rank(self, ticket: Ticket, now: float) -> tuple[float, ...]:
        """Smaller is better: whom it would make late, then when it would end."""
        found = self._consider(ticket, now)
        return (found.is_late + found.makes_late, found.end)

    def standing(self, ticket: Ticket, now: float) -> Standing:
        """What would become of a request that joins now."""
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
        """Enter a request that waits from `now` on (seconds of the queue's clock)."""
        number = next(self._numbers)
        self._tickets[ticket.request_id] = number, ticket
        self._joined[number] = max(now, self._opens_at), self._beliefs(now)
        self._group.join(number, self._ask(ticket), max(now, self._opens_at))

    def start(self, now: float) -> list[Ticket]:
        """Requests whose turn it is: as many of each model as its engine has seats."""
        taken = Counter(self._running.values())
        turns = []
        for request_id, (_, ticket) in self._tickets.items():
            if request_id not in self._running and taken[ticket.model] < self._profiles[ticket.model].seats:
                taken[ticket.model] += 1
                turns.append(ticket)
        self._running |= {ticket.request_id: ticket.model for ticket in turns}
        return turns

    def finish(self, request_id: str, now: float, num_tokens: int | None = None) -> Ticket:
        """A request was answered with `num_tokens` tokens: forget it, but not how long it took."""
        self._group.advance(now)
        number, ticket = self._tickets[request_id]
        if num_tokens:
            self._learn(number, ticket, num_tokens, now)
        self._idle_since = now
        return self.remove(request_id)

    def remove(self, request_id: str) -> Ticket:
        """Forget a request that was given up."""
        number, ticket = self._tickets.pop(request_id)
        self._running.pop(request_id, None)
        self._joined.pop(number)
        self._group.remove(number)
        return ticket

    def clear(self) -> list[Ticket]:
        """All requests in order, forgotten."""
        tickets = [ticket for _, ticket in self._tickets.values()]
        self._tickets.clear()
        self._joined.clear()
        self._running.clear()
        self._group.clear()
        return tickets

    def _standing_unknown(self, ticket: Ticket, now: float) -> Standing:
        """Until a first answer has said how fast the group is, it takes what its engine runs at once, and no more."""
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
        """The group's speed from one answer: the seconds that it took, over those that the group's rule gives it.

        The rule went by the speeds that were believed meanwhile, hence what was seen is relative to their mean.
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
        """`_believed` until `now`; to be called before the speed changes."""
        self._believed += max(0.0, now - self._believed_at) * math.log(self.scale)
        self._believed_at = max(now, self._believed_at)
        return self._believed

    def _fade(self, now: float) -> None:
        """Believe less in a slowness that has not been seen since the group became idle."""
        self._beliefs(now)
        left = 0.5 ** (max(0.0, now - self._idle_since) / FADING)
        self._group.scale = self._usual * (self.scale / self._usual) ** left
        self._idle_since = max(now, self._idle_since)
