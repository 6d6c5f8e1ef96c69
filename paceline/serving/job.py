"""`Job` and `Chunk`: what a request asks of a `Backend`, and what comes back. Plain data, fit to cross processes."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from paceline.types import RequestStats, SamplingParams, TokenProvenance

NO_LIMIT = 2**31 - 1
"""`max_tokens` of a request that goes on until the model ends it or its context is full."""
_EXPECTED = 128
"""Tokens that such a request is expected to take, where somebody must guess."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request for one model.

    Attributes:
        prompt: text or token ids; None when `messages` are given.
        messages: a conversation, put into the model's chat template where the model is.
        template: what the chat template is told besides, e.g. ``tools``.
        stream: whether the answer is wanted token by token.
        slo: seconds from arrival to answer; None takes the model's own.
        priority: smaller runs earlier.
        timeout: seconds after which it ends with the tokens it has; None for never.
        add_special_tokens: put in what the model wants around a text prompt.
        cache_salt: see `Engine.add_request`.
        stream_interval: tokens of each chunk of a stream, the last one has what is left; 1 for what is ready.
        detail: chunks carry `Piece`s, and the last one the prompt's.
        trace: chunks carry the `Step` they came from.
    """

    request_id: str
    model: str
    prompt: str | tuple[int, ...] | None = None
    messages: Sequence[Mapping[str, Any]] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    stream: bool = False
    slo: float | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    timeout: float | None = None
    add_special_tokens: bool = True
    detail: bool = False
    cache_salt: str = ""
    trace: bool = False
    stream_interval: int = 1

    def with_seed(self, seed: int) -> "Job":
        """The same, drawing from `seed` unless it is greedy or has a seed already: its text is the same each time."""
        if self.params.is_greedy or self.params.seed is not None:
            return self
        return replace(self, params=replace(self.params, seed=seed))

    @property
    def expected_tokens(self) -> int:
        """Output tokens to plan for."""
        return _EXPECTED if self.params.max_tokens == NO_LIMIT else self.params.max_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """One token as clients are told of it.

    Attributes:
        text: what it completes in the answer; may be empty.
        spelling: its own bytes.
        provenance: where it came from.
        logprob: None unless asked for.
        top: (token id, its bytes, log-probability) of the most probable tokens.
    """

    token_id: int
    text: str
    spelling: bytes
    provenance: TokenProvenance
    logprob: float | None = None
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """The draft that a pass verified.

    Attributes:
        tokens: (id, its text) of each node; `parents` its parent, -1 for none.
        path: the nodes that were accepted, from the root down.
        is_own: the request's own draft, from its grammar or prediction.
        rows: of the whole pass, by what they were for.
    """

    tokens: tuple[tuple[int, str], ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    is_own: bool
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of a sample once it has ended.

    Attributes:
        error: why it failed, when its finish reason is ``error``.
        stop_reason: the stop string or token id that ended it; None for anything else.
        stats: its counts; None where nobody counted.
        num_cached_tokens: prompt tokens found in the prefix cache.
        num_predicted_tokens, num_accepted_predictions: tokens drafted from its `prediction`, and those that stood.
        prompt: the prompt's tokens, where `Job.detail` asks for them and this is the request's end.
    """

    error: str | None = None
    stats: RequestStats | None = None
    num_cached_tokens: int = 0
    num_predicted_tokens: int = 0
    num_accepted_predictions: int = 0
    prompt: tuple[Piece, ...] = ()
    stop_reason: str | int | None = None


_NOTHING = Summary()
Thinking = Literal["none", "tagged", "open"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one sample of an answer. A sample's last one has `finish_reason` and the number of its tokens.

    Attributes:
        num_prompt_tokens: of the request; 0 where nobody knows yet.
        num_output_tokens: of the whole sample, in its last chunk.
        num_tokens: that this chunk brings.
        thinking: ``none`` where the model is not known to think aloud; else whether its thoughts have begun in the
            prompt (``open``) or begin with a tag (``tagged``).
        index: of the sample.
        goes_on: other samples of the request have not ended, though this one has.
        pieces: the tokens of `text`, where `Job.detail` asks for them.
        step: where `Job.trace` asks for it and something was drafted.
    """

    text: str
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    index: int = 0
    goes_on: bool = False
    pieces: tuple[Piece, ...] = ()
    summary: Summary = _NOTHING
    step: Step | None = None
    num_tokens: int = 0
    thinking: Thinking = "none"

    @property
    def is_last(self) -> bool:
        """Whether the request has ended with it."""
        return self.finish_reason is not None and not self.goes_on


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

    def describe(self, model: str) -> Mapping[str, Any]:
        """What is known of a model, for people and clients: ``max_model_len`` at least, ``drafter`` and the like."""
        ...

    async def metrics(self) -> bytes:
        """Prometheus text."""
        ...

    async def close(self) -> None:
        """Answer what was accepted, then end everything that was started."""
        ...


class TextBackend(Backend, Protocol):
    """A backend with its models at hand: it runs the samples of a request together, and knows their tokens."""

    async def tokenize(self, job: Job) -> Sequence[tuple[int, bytes]]:
        """The prompt of a job: ids and what each stands for. Raises InvalidParameter as `generate`."""
        ...

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`. Raises InvalidParameter for an unknown model or id."""
        ...

    async def state(self) -> Mapping[str, Any]:
        """Metrics of every model by name, JSON-ready."""
        ...
