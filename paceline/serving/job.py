"""`Job` and `Chunk`: what a request asks of a `Backend`, and what comes back. Plain data, fit to cross processes."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from paceline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Job:
    """One request for one model.

    Attributes:
        prompt: text or token ids; None when `messages` are given.
        messages: a conversation, put into the model's chat template where the model is.
        stream: whether the answer is wanted token by token.
        slo: seconds from arrival to answer; None takes the model's own.
    """

    request_id: str
    model: str
    prompt: str | tuple[int, ...] | None = None
    messages: Sequence[Mapping[str, Any]] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    stream: bool = False
    slo: float | None = None

    def with_seed(self, seed: int) -> "Job":
        """The same, drawing from `seed` unless it is greedy or has a seed already: its text is the same each time."""
        if self.params.is_greedy or self.params.seed is not None:
            return self
        return replace(self, params=replace(self.params, seed=seed))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer. The last one has `finish_reason` and both counts of tokens."""

    text: str
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


class Backend(Protocol):
    """What the HTTP front talks to: one model here (`local.py`), or groups of a cluster (`cluster/dispatcher.py`)."""

    @property
    def models(self) -> Sequence[str]:
        """Names that requests may ask for."""
        ...

    def generate(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """The answer in pieces; closing the generator early ends the request.

        Raises:
            InvalidParameter: a request that cannot be run.
            RequestRejected: it would miss its deadline, or nothing runs that could answer.
            GroupLost: it was accepted, but every group that could have answered is gone for good.
        """
        ...

    def health(self) -> Mapping[str, Any]:
        """``status`` (``ok``, ``degraded`` or ``down``) and whatever tells more."""
        ...

    async def metrics(self) -> bytes:
        """Prometheus text."""
        ...

    async def close(self) -> None:
        """Answer what was accepted, then end everything that was started."""
        ...
