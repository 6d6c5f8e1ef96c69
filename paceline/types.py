"""Types that all packages share: what a request asks for and what it returns.

Standard library only, no behaviour beyond checking a request on arrival. Not the place for configuration
(`config.py`) or for state that changes while a request runs (`scheduling/request.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from paceline.errors import InvalidParameter
from paceline.limits import LIMITS
from paceline.vllm_names import SAMPLING, constructor_knows_vllm

Progress = Callable[[int, int], None]
"""Called with (units done, units in total) while a long operation runs."""
NamedProgress = Callable[[str, int, int], None]
"""Called with (name of the current phase, units done, units in total)."""
FinishReason = Literal["stop", "length", "abort", "timeout", "error"]
"""Why an output ended: a stop rule, the length limit, a cancellation, the time limit, or an error of the request."""
TokenProvenance = Literal["prompt", "target", "drafted", "bonus", "recovered"]
"""Where a token came from.

``prompt``: the user, where a prompt's tokens are listed too. ``drafted``: proposed by the drafter and accepted.
``bonus``: the target's own token after a fully accepted draft. ``recovered``: the target's own token after a rejection.
``target``: plain decoding, nothing was drafted.
"""


def silent(what: str, done: int, total: int) -> None:
    """A `NamedProgress` that shows nothing."""


@constructor_knows_vllm(SAMPLING)
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a request asks of the sampler. Names and meanings are vLLM's where vLLM has them.

    Every field is checked against `limits.LIMITS`; collections and numbers are kept as plain Python ones.

    Attributes:
        n: samples of the same prompt, 1 to 16; its keys and values are computed once and shared.
        temperature: 0 is greedy (the distribution is one-hot at the largest logit, the lowest id on ties); at most 100.
        top_p, top_k, min_p: truncations of the distribution; ``top_p=1``, ``top_k=0`` (or -1) and ``min_p=0``
            switch them off.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output;
            0.01 to 100.
        presence_penalty, frequency_penalty: subtracted from logits of tokens seen in the output, once / per count;
            -2 to 2.
        logit_bias: token id to a number in [-100, 100] added to its logit, 1024 ids at most.
        bad_words: strings that must not appear; each is tokenised and its last token forbidden after the others.
            1024 strings of 128 characters at most.
        allowed_token_ids: the only ids that may be emitted, an end-of-sequence id among them or the text does not end;
            65536 at most, None allows all.
        min_tokens: before this many output tokens, end-of-sequence and stop ids have probability 0, and a stop string
            that is complete by then is ordinary text. A grammar that is complete ends the output all the same.
        max_tokens: most output tokens; None (kept as 2**31 - 1) for as many as the context holds.
        seed: the source of all randomness of the request; None takes a fresh one. Sample i of n uses seed + i (modulo
            2^64), and so equals the output of a single-sample request with that seed.
        stop: strings that end the output, 16 of 128 characters at most.
        include_stop_str_in_output: whether the text keeps the stop string that ended it.
        stop_token_ids: ids that end the output, 1024 at most.
        ignore_eos: go on after the end-of-sequence token.
        logprobs: number of most probable tokens, 0 to 20, whose log-probabilities are returned for each output token,
            besides that of the token itself; None returns none. They come from the row of logits that decided the
            token, so drafts do not change them.
        prompt_logprobs: the same for the tokens of the prompt, which is then computed without the prefix cache.
        logprobs_mode: ``raw`` takes the model's own logits at temperature 1, as vLLM does; ``processed`` takes the
            distribution that is sampled (at temperature 0: that at temperature 1 after bias, penalties and masks).
        speculative: False decodes this request without drafts; a mapping sets options of its drafts:
            ``num_draft_tokens`` (the most per step), ``policy`` (``auto``, or ``fixed``: that many in each step),
            ``rule`` (an exact one, or the engine's own), ``method`` (the engine's own, or ``none``).
        structured_outputs: one of ``json`` (a schema), ``json_object`` (True), ``regex``, ``choice`` (strings),
            ``grammar`` (Lark or GBNF), ``structural_tag``, as in vLLM: tokens that violate it have probability 0, and
            the output ends when it is complete. Needs the extra ``grammar``.
        prediction: text (or token ids) that the answer is expected to repeat in large part; drafts are taken from it
            while the answer follows it.
        n_indent: llama.cpp's, for code: the output ends, with the reason ``length``, at the first of its lines but the
            first and blank ones that begins with fewer spaces and tabs; 0 for no such limit.
        t_max_predict_ms: llama.cpp's, for code: the output ends, with the reason ``length``, at the first end of a line
            so many milliseconds after its first token; 0 for no such limit. A text then depends on the machine's speed.
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
    allowed_token_ids: Sequence[int] | None = None
    min_tokens: int = 0
    max_tokens: int = 128
    seed: int | None = None
    stop: str | Sequence[str] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    speculative: bool | Mapping[str, Any] = True
    structured_outputs: Mapping[str, Any] | None = None
    prediction: str | Sequence[int] = ()
    n_indent: int = 0
    t_max_predict_ms: int = 0

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            object.__setattr__(self, name, limit(name, getattr(self, name)))
        if self.min_tokens > self.max_tokens:
            problem = f"{self.min_tokens} is more than max_tokens, {self.max_tokens}"
            raise InvalidParameter("min_tokens", problem, "lower min_tokens or raise max_tokens")

    @property
    def limits_lines(self) -> bool:
        """Whether a line may end the output."""
        return self.n_indent > 0 or self.t_max_predict_ms > 0

    @property
    def ends_by_text(self) -> bool:
        """Whether the output may end by what its text is."""
        return bool(self.stop) or self.limits_lines or self.structured_outputs is not None

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always chosen."""
        return self.temperature == 0.0

    def sample(self, index: int) -> "SamplingParams":
        """The parameters of sample `index` of `n` as a request of its own."""
        return replace(self, n=1, seed=None if self.seed is None else (self.seed + index) % 2**64)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one token and of its most probable alternatives.

    Attributes:
        logprob: natural logarithm of its probability; -infinity for probability 0.
        top: (token id, log-probability) of the most probable tokens, in descending order, lower ids first on ties.
        rank: 1 and the number of tokens that are more probable.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 1


class TokenOutput(NamedTuple):
    """One committed token of a stream.

    Attributes:
        text: the text that this token completes; empty while a character is incomplete.
        provenance: where it came from.
        logprobs: None unless asked for.
    """

    token_id: int
    text: str
    provenance: TokenProvenance
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One sample of a request.

    Attributes:
        index: number of the sample, from 0.
        stop_reason: the stop string or the one of `stop_token_ids` that ended it; None for anything else.
        lossy: whether drafts were verified by a lossy rule, so that the text need not follow the target's distribution.
        error: what went wrong, when `finish_reason` is ``error``.
        logprobs: one entry for each of `token_ids`; None unless asked for.
        num_predicted_tokens, num_accepted_predictions: tokens drafted from the request's own `prediction`, and how many
            of them were accepted.
        num_forced_tokens: accepted tokens that were drafted because the grammar allowed no other.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    provenance: tuple[TokenProvenance, ...]
    finish_reason: FinishReason
    stats: "RequestStats"
    lossy: bool = False
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    num_predicted_tokens: int = 0
    num_accepted_predictions: int = 0
    num_forced_tokens: int = 0
    stop_reason: str | int | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the log-probabilities of `token_ids`; None unless log-probabilities were asked for."""
        return None if self.logprobs is None else sum(each.logprob for each in self.logprobs)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The finished answer to one request.

    Attributes:
        outputs: one completion for each of the `n` samples, in order. Most properties below are those of the first.
        metrics: times of the request.
        prompt_logprobs: one entry per prompt token, None for the first, which nothing predicts; None unless asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    metrics: "RequestMetrics"
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None

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

    @property
    def error(self) -> str | None:
        """The error of the first sample that failed; None when none did."""
        return next((each.error for each in self.outputs if each.error is not None), None)

    @property
    def lossy(self) -> bool:
        """Whether any sample is lossy."""
        return any(each.lossy for each in self.outputs)


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of a request in seconds on the engine's clock: the earliest of its samples, for `finish_time` the latest.

    Attributes:
        first_scheduled_time, first_token_time: None when the request ended before that.
        num_cached_tokens: prompt tokens whose keys and values were found in the prefix cache.
        num_preemptions: how often a sample lost its cache pages and was recomputed later.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finish_time: float
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def queue_seconds(self) -> float | None:
        """Seconds from arrival to the first step that was computed for the request."""
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time

    @property
    def first_token_seconds(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def total_seconds(self) -> float:
        """Seconds from arrival to the end."""
        return self.finish_time - self.arrival_time


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Counters of one request.

    Attributes:
        num_drafts: target passes in which a draft was verified.
        num_draft_tokens: drafted nodes verified.
        num_accepted_tokens: drafted tokens committed.
        num_rejected_tokens: drafted nodes tested and rejected.
        num_target_passes: target passes that emitted tokens for this request.
        accepted_per_pass: histogram; entry i counts the passes that emitted i + 1 tokens.
        draft_seconds, verify_seconds, other_seconds: where the wall time went; passes shared with other requests
            count in full.
        prefill_seconds: time of the steps that computed its prompt or recomputed tokens after a preemption.
        drafted_per_level, tested_per_level, accepted_per_level: for each level (depth of a tree), the drafts that had
            it, those in which a node of it was verified, and those in which a node of it was accepted.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_rejected_tokens: int
    num_target_passes: int
    accepted_per_pass: tuple[int, ...]
    draft_seconds: float
    verify_seconds: float
    other_seconds: float
    prefill_seconds: float
    drafted_per_level: tuple[int, ...] = ()
    tested_per_level: tuple[int, ...] = ()
    accepted_per_level: tuple[int, ...] = ()

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / (accepted + rejected); None when nothing was tested (methods of Leviathan et al., section 3.1)."""
        tested = self.num_accepted_tokens + self.num_rejected_tokens
        return self.num_accepted_tokens / tested if tested else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted per target pass, the bonus or recovered token included; plain decoding gives 1."""
        emitted = sum((i + 1) * count for i, count in enumerate(self.accepted_per_pass))
        return emitted / self.num_target_passes if self.num_target_passes else None
