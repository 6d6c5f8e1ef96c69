"""`Ticket`: an accepted request, as queues and controller see it; `Slo`: its latency objectives; `Standing`: a queue's
prediction for a request that would join."""

from dataclasses import dataclass
from typing import NamedTuple

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Ticket:
    """An accepted request.

    Attributes:
        arrival: seconds.
        size: its work relative to the profiled request, where requests are one pass each.
        deadline: seconds; infinite for none.
        prompt_tokens: length of its prompt, possibly estimated.
        expected_tokens: expected length of its answer.
        first_deadline: of its first token, in seconds; infinite for none.
        pace: largest time per further token in seconds; infinite for none.
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
    """A queue's prediction for a request that would join now.

    Attributes:
        end: time at which its answer would be complete.
        problem: why it should be rejected; None to accept it.
        seconds_late: by how much it would miss its deadline; None when that is not the problem.
    """

    end: float
    problem: str | None = None
    seconds_late: float | None = None
