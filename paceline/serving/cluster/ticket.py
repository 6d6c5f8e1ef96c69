"""`Ticket`: an accepted request, as queues and controller know it; `Slo`: what it was promised; `Standing`: what would
become of one that asks."""

from dataclasses import dataclass
from typing import NamedTuple

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Ticket:
    """An accepted request.

    Attributes:
        arrival: seconds.
        size: its work over that of the request that was profiled, where requests are one pass each.
        deadline: seconds; infinite for none.
        prompt_tokens: of its prompt, perhaps an estimate.
        expected_tokens: of its answer.
        first_deadline: seconds, of its first token; infinite for none.
        pace: seconds that each further token may take; infinite for any.
    """

    request_id: str
    model: str
    arrival: float
    size: float = 1.0
    deadline: float = INFINITE
    prompt_tokens: float = 1.0
    expected_tokens: float = 128.0
    first_deadline: float = INFINITE
    pace: float = INFINITE


class Slo(NamedTuple):
    """Seconds from arrival to the whole answer and to its first token, and per further token; infinite for none."""

    whole: float = INFINITE
    first: float = INFINITE
    token: float = INFINITE


class Standing(NamedTuple):
    """What a queue says of a request that asks.

    Attributes:
        end: when its answer would be there.
        problem: why it should not be let in; None when it may.
        seconds_late: by how much it would miss its deadline; None when that is not the problem.
    """

    end: float
    problem: str | None = None
    seconds_late: float | None = None
