"""The vocabulary every room shares: what a request asks for and what comes back.

Standard library only, no behaviour beyond checking a request at the door. Not the place for configuration
(`config.py`) or for state that changes while a request runs (`scheduling/request.py`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal

from paceline.errors import InvalidParameter

FinishReason = Literal["stop", "length", "abort", "timeout"]
"""Why an output ended: a stop rule, its length, a cancellation, or its time being up."""
TokenProvenance = Literal["prompt", "target", "drafted", "bonus", "recovered"]
"""Where a token came from.

``drafted``: proposed by the drafter and accepted. ``bonus``: the target's own token after a fully accepted draft.
``recovered``: the target's own token after a rejection. ``target``: plain decoding, nothing was drafted.
"""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a request asks of the sampler. Names and meanings are vLLM's where vLLM has them.

    Attributes:
        n: samples of the same prompt; its keys and values are computed once and shared.
        temperature: 0 is greedy (the law is one-hot at the largest logit, the lowest id on ties).
        top_p, top_k, min_p: truncations of the law; ``top_k=0`` and ``min_p=0`` switch theirs off.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output.
        presence_penalty, frequency_penalty: subtracted from logits of tokens seen in the output, once / per count.
        logit_bias: token id to a number added to its logit.
        bad_words: strings that must not appear; each is tokenised and its last token forbidden behind the others.
        min_tokens: end-of-sequence and stop ids are impossible before this many output tokens, and a stop string that
            is complete by then is ordinary text.
        max_tokens: most output tokens.
        seed: the source of all randomness of the request; None takes a fresh one. Sample i of n has seed + i, so it
            says what a request of its own with that seed says.
        stop: strings that end the output (not included in the text).
        stop_token_ids: ids that end the output.
        ignore_eos: go on behind the end-of-sequence token.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: str | Sequence[str] = ()
    min_tokens: int = 0
    max_tokens: int = 128
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, empty in _COLLECTIONS.items():
            value = getattr(self, name)
            value = empty if value is None else (value,) if isinstance(value, str) else value
            object.__setattr__(self, name, value)
        for checks in (_kinds, _checks):
            for name, accepted, value_range, remedy in checks(self):
                if not accepted:
                    raise InvalidParameter(name, f"{getattr(self, name)!r} is not {value_range}", remedy)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken each time."""
        return self.temperature == 0.0

    def sample(self, index: int, seed: int) -> "SamplingParams":
        """What sample `index` of `n` asks for by itself, when the request's seed is `seed`."""
        return replace(self, n=1, seed=seed + index)


_COLLECTIONS: dict[str, Any] = {"stop": (), "bad_words": (), "stop_token_ids": (), "logit_bias": {}}
"""Fields that may be None for nothing."""


def _kinds(params: SamplingParams) -> Iterator[tuple[str, bool, str, str]]:
    """As `_checks`, for what kind of thing each field is."""
    for name in ("n", "top_k", "min_tokens", "max_tokens"):
        yield name, _is_whole(getattr(params, name)), "a whole number", "give an int"
    yield "seed", params.seed is None or _is_whole(params.seed), "a whole number", "give an int, or leave it out"
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        yield name, isinstance(value, Real) and math.isfinite(value), "a finite number", "give a float"
    for name in ("stop", "bad_words"):
        yield name, _all(getattr(params, name), lambda each: isinstance(each, str)), "made of strings", "give a list"
    ids, bias = params.stop_token_ids, params.logit_bias
    yield "stop_token_ids", _all(ids, _is_whole), "made of token ids", "give a list of ints"
    usable = isinstance(bias, Mapping) and _all(bias, _is_whole) and _all(bias.values(), lambda each: each == each)
    yield "logit_bias", usable, "a mapping of token ids to numbers", "e.g. {17: -2.5}"


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _all(values: Any, usable: Callable[[Any], bool]) -> bool:
    return isinstance(values, Iterable) and all(map(usable, values))


def _checks(params: SamplingParams) -> list[tuple[str, bool, str, str]]:
    """(field, is it usable, the range it should lie in, what to do) for every field with a range."""
    return [
        ("n", params.n >= 1, "1 or more", "ask for at least one sample"),
        ("temperature", params.temperature >= 0, "0 or more", "use 0 for greedy decoding or e.g. 0.8 to sample"),
        ("top_p", 0 < params.top_p <= 1, "in (0, 1]", "use 1 to switch it off"),
        ("top_k", params.top_k >= 0, "0 or more", "use 0 to switch it off"),
        ("min_p", 0 <= params.min_p <= 1, "in [0, 1]", "use 0 to switch it off"),
        ("repetition_penalty", params.repetition_penalty > 0, "above 0", "use 1 to switch it off"),
        ("max_tokens", params.max_tokens >= 1, "1 or more", "ask for at least one token"),
        ("min_tokens", 0 <= params.min_tokens <= params.max_tokens, "in [0, max_tokens]", "lower min_tokens"),
        ("stop", all(params.stop), "made of non-empty strings", "remove the empty string"),
        ("bad_words", all(params.bad_words), "made of non-empty strings", "remove the empty string"),
    ]


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One committed token of a stream: its id, the text it completes (may be empty), and where it came from."""

    token_id: int
    text: str
    provenance: TokenProvenance


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One sample of a request; `index` counts from 0."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    provenance: tuple[TokenProvenance, ...]
    finish_reason: FinishReason
    stats: "RequestStats"


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The finished answer to one request.

    Attributes:
        outputs: one completion for each of the `n` samples, in order. The properties below are those of the first.
        metrics: when things happened.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    metrics: "RequestMetrics"

    @property
    def text(self) -> str:
        """Text of the first sample."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first sample."""
        return self.outputs[0].token_ids

    @property
    def provenance(self) -> tuple[TokenProvenance, ...]:
        """Who proposed each token of the first sample."""
        return self.outputs[0].provenance

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first sample ended."""
        return self.outputs[0].finish_reason

    @property
    def stats(self) -> "RequestStats":
        """Counts and times of the first sample."""
        return self.outputs[0].stats


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds on the engine's clock; of n samples the first or last to do so.

    Attributes:
        first_scheduled_time, first_token_time: None when it ended before that.
        num_cached_tokens: prompt tokens whose keys and values were found in the cache.
        num_preemptions: times it had to give its memory back and compute it anew.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finish_time: float
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def queue_seconds(self) -> float | None:
        """From arrival to the first step that computed something for it."""
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time

    @property
    def first_token_seconds(self) -> float | None:
        """From arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def total_seconds(self) -> float:
        """From arrival to the end."""
        return self.finish_time - self.arrival_time


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Counters of one request.

    Attributes:
        num_drafts: target passes in which a draft was verified.
        num_draft_tokens: drafted nodes verified.
        num_accepted_tokens: drafted tokens committed.
        num_rejections: drafted nodes tested and refused.
        num_target_passes: target passes that emitted tokens for this request.
        accepted_per_pass: histogram; entry i counts the passes that emitted i + 1 tokens.
        draft_seconds, verify_seconds, other_seconds: where the wall time went; passes shared with other requests
            count in full.
        prefill_seconds: of the steps that computed its prompt, or computed anew what a preemption took.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_rejections: int
    num_target_passes: int
    accepted_per_pass: tuple[int, ...]
    draft_seconds: float
    verify_seconds: float
    other_seconds: float
    prefill_seconds: float

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / (accepted + rejected); None when nothing was tested (methods of Leviathan et al., section 3.1)."""
        tested = self.num_accepted_tokens + self.num_rejections
        return self.num_accepted_tokens / tested if tested else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted per target pass, the bonus or recovered token included; plain decoding gives 1."""
        emitted = sum((i + 1) * count for i, count in enumerate(self.accepted_per_pass))
        return emitted / self.num_target_passes if self.num_target_passes else None
