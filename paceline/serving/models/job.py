"""`Job` and `Chunk`: input and output of a `Backend`. Plain, picklable data."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from paceline.engine.text.prompts import Gap
from paceline.limits import NO_LIMIT
from paceline.models.text.thought_tags import THINK
from paceline.types import RequestStats, SamplingParams, TokenProvenance

_EXPECTED = 128
"""Expected output tokens of a request without a limit, for queue predictions."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request for one model.

    Attributes:
        prompt: text, token ids or what is around a gap; None when `messages` are given.
        messages: a conversation; the backend applies the model's chat template.
        template: further variables of the chat template, e.g. ``tools``.
        add_generation_prompt, continue_final_message: how the prompt of `messages` ends; see `LLM.chat_prompt`.
        stream: whether the answer is wanted token by token.
        slo: latency objective in seconds from arrival to answer; None takes the model's own.
        priority: smaller values run earlier.
        timeout: seconds after which it ends with the tokens it has; None for never.
        add_special_tokens: add the model's special tokens to a text prompt.
        cache_salt: see `Engine.add_request`.
        stream_interval: tokens per chunk of a stream (the last one has the rest); 1 sends tokens as they come.
        detail: chunks contain `Piece`s, and the last one those of the prompt.
        trace: chunks contain the `Step` that they came from.
    """

    request_id: str
    model: str
    prompt: str | tuple[int, ...] | Gap | None = None
    messages: Sequence[Mapping[str, Any]] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    stream: bool = False
    slo: float | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    priority: int = 0
    timeout: float | None = None
    add_special_tokens: bool = True
    detail: bool = False
    cache_salt: str = ""
    trace: bool = False
    stream_interval: int = 1

    def with_seed(self, seed: int) -> "Job":
        """The job with `seed`, unless it is greedy or has a seed, so that retries give the same text."""
        if self.params.is_greedy or self.params.seed is not None:
            return self
        return replace(self, params=replace(self.params, seed=seed))

    @property
    def expected_tokens(self) -> int:
        """Expected number of output tokens."""
        return _EXPECTED if self.params.max_tokens == NO_LIMIT else self.params.max_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """One token as reported to clients.

    Attributes:
        text: the text that it adds to the answer; may be empty.
        spelling: its own bytes.
        provenance: where it came from.
        logprob: its log-probability; None unless requested.
        top: (token id, its bytes, log-probability) of the most probable tokens.
        rank: see `TokenLogprobs.rank`.
    """

    token_id: int
    text: str
    spelling: bytes
    provenance: TokenProvenance
    logprob: float | None = None
    top: tuple[tuple[int, bytes, float], ...] = ()
    rank: int = 1


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
    """Facts about a finished sample.

    Attributes:
        error: the error message, when its finish reason is ``error``.
        stop_reason: the stop string or token id that ended it; else None.
        lossy: its drafts were verified by a lossy rule; see `CompletionOutput`.
        stats: its statistics; None where they are not known.
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
    lossy: bool = False


_NOTHING = Summary()
Thinking = Literal["none", "tagged", "open", "several"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one sample of an answer. A sample's last one has `finish_reason` and the number of its tokens.

    Attributes:
        num_prompt_tokens: of the request; 0 where not known yet.
        num_output_tokens: of the whole sample, in its last chunk.
        num_tokens: tokens in this chunk.
        thinking: ``none`` for a model without reasoning output; else whether the reasoning is opened by the prompt
            (``open``) or by a tag in the output: the first one (``tagged``) or any (``several``).
        thought_tags: the texts before and after reasoning.
        call_format: how the model writes calls of tools, a name of `CALL_FORMATS`.
        index: of the sample.
        goes_on: other samples of the request are unfinished, though this one has ended.
        texts: those of its tokens, where the answer may hold reasoning; else empty.
        pieces: the tokens of `text`, if `Job.detail` is set.
        step: the verified draft, if `Job.trace` is set and there was one.
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
    thought_tags: tuple[str, str] = THINK[:2]
    call_format: str = "hermes"
    texts: tuple[str, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether the request has ended with it."""
        return self.finish_reason is not None and not self.goes_on


class Backend(Protocol):
    """Runs the requests of an HTTP server: models in this process (`local.py`) or groups of a cluster
    (`cluster/dispatcher.py`)."""

    @property
    def models(self) -> Sequence[str]:
        """Names that requests may ask for."""
        ...

    def generate(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """The answer in pieces; closing the generator early ends the request.

        Raises:
            InvalidParameter: a request that cannot be run.
            RequestRejected: the request would miss its deadline, or no live group has the model.
            GroupLost: the request was accepted, but all groups with the model have failed permanently.
        """
        ...

    def health(self) -> Mapping[str, Any]:
        """``status`` (``ok``, ``degraded`` or ``down``) and further details."""
        ...

    def describe(self, model: str) -> Mapping[str, Any]:
        """Properties of a model: at least ``max_model_len``, also ``drafter`` and the like."""
        ...

    async def metrics(self) -> bytes:
        """Prometheus text."""
        ...

    async def close(self) -> None:
        """Finish accepted requests, then shut down."""
        ...


@runtime_checkable
class TextBackend(Backend, Protocol):
    """A backend with models in this process: it runs the samples of a request together, and has their tokenizers."""

    async def tokenize(self, job: Job) -> Sequence[tuple[int, bytes]]:
        """The prompt of a job: ids and what each stands for. Raises InvalidParameter as `generate`."""
        ...

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`. Raises InvalidParameter for an unknown model or id."""
        ...

    async def state(self) -> Mapping[str, Any]:
        """Metrics of every model by name, JSON-ready."""
        ...
