"""OpenAI's completions and chat completions: what comes in, and the jobs it asks for. Answers are `answers.py`'s.

A null stands for the field's default, as with OpenAI. A field that asks for nothing is passed over; one with a meaning
that is not served is refused. Beyond OpenAI's, with vLLM's names: ``top_k``, ``min_p``, ``repetition_penalty``,
``ignore_eos``, ``min_tokens``, ``stop_token_ids``, ``include_stop_str_in_output``, ``bad_words``,
``allowed_token_ids``, ``prompt_logprobs``, ``return_token_ids``, ``add_special_tokens``, ``add_generation_prompt``,
``continue_final_message``, ``chat_template_kwargs``, ``reasoning_effort``, ``priority``, ``cache_salt``. Our own:
``speculative``, ``prediction`` on both endpoints, ``logprobs_mode``, ``timeout``, ``slo`` (seconds from arrival to
answer, clusters only) and ``paceline``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.engine.text.prompts import Gap
from paceline.errors import InvalidParameter
from paceline.limits import NO_LIMIT
from paceline.models.text.messages import check_continued, check_variables
from paceline.serving.models.job import Job
from paceline.serving.protocol.fields import (
    Amount,
    Bias,
    Extras,
    NumTop,
    StreamOptions,
    TokenId,
    Whole,
    check_extra,
    predicted,
    response_grammar,
    without_nulls,
)
from paceline.serving.protocol.message import Message, check_text
from paceline.serving.protocol.tools import ToolChoice, readable_calls
from paceline.types import SamplingParams

MOST_PROMPTS = 64
_COMPLETION_TOKENS = 16
"""OpenAI's own default for completions."""


_SAMPLING = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "bad_words", "allowed_token_ids", "seed", "stop_token_ids", "include_stop_str_in_output",
    "min_tokens", "ignore_eos", "prompt_logprobs", "logprobs_mode", "speculative",
)  # fmt: skip
"""Fields that the sampler calls the same."""


_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


class Request(BaseModel):
    """Fields that both kinds share."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    max_tokens: Whole | None = None
    temperature: Amount = 1.0
    top_p: Amount = 1.0
    top_k: Whole = 0
    min_p: Amount = 0.0
    presence_penalty: Amount = 0.0
    frequency_penalty: Amount = 0.0
    repetition_penalty: Amount = 1.0
    logit_bias: dict[int, Bias] = Field(default_factory=dict)
    bad_words: list[str] = Field(default_factory=list)
    allowed_token_ids: list[TokenId] | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    min_tokens: Whole = 0
    ignore_eos: bool = False
    n: Whole = 1
    prompt_logprobs: Whole | None = None
    logprobs_mode: str = "raw"
    return_token_ids: bool = False
    speculative: bool | dict[str, Any] = True
    prediction: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    priority: Whole = 0
    timeout: Amount | None = None
    cache_salt: str = ""
    slo: Amount | None = None
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    paceline: Extras = Field(default_factory=Extras)

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_defaults(cls, data: Any) -> Any:
        """A field that is null is as good as left out."""
        return without_nulls(data)

    def params(self, default_max_tokens: int, **more: Any) -> SamplingParams:
        """What the sampler is asked; `more` are fields that the endpoints name differently.

        Raises:
            InvalidParameter: a value out of range.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        own = {name: getattr(self, name) for name in _SAMPLING}
        limit = default_max_tokens if self.max_tokens is None else self.max_tokens
        named = {"stop": stop, "prediction": predicted(self.prediction), "max_tokens": limit,
                 "structured_outputs": self._grammar()}  # fmt: skip
        return SamplingParams(**(own | named | more))

    def _grammar(self) -> Mapping[str, Any] | None:
        """The grammar that the answer must follow, however it was asked for."""
        old = {"json": self.guided_json, "regex": self.guided_regex, "choice": self.guided_choice,
               "grammar": self.guided_grammar}  # fmt: skip
        asked = [
            each
            for each in (response_grammar(self.response_format), self.structured_outputs,
                         {kind: source for kind, source in old.items() if source is not None})
            if each
        ]  # fmt: skip
        if len(asked) > 1:
            raise InvalidParameter("response_format", "is given beside another grammar", "give one of them")
        return asked[0] if asked else None

    def sent_name(self, field: str) -> str:
        """What the client called a field of the sampler's."""
        if field.partition(".")[0] != "structured_outputs" or self.structured_outputs is not None:
            return field
        asked = [name for name in _GUIDED if getattr(self, name) is not None]
        return asked[0] if asked else "response_format" if self.response_format is not None else field

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with counts of tokens."""
        return bool(self.stream_options.include_usage or self.stream_options.continuous_usage_stats)

    @property
    def wants_pieces(self) -> bool:
        """Whether the answer tells of single tokens."""
        return self.paceline.trace or self.return_token_ids or self.prompt_logprobs is not None

    def _job(self, request_id: str, params: SamplingParams, **more: Any) -> Job:
        if self.timeout is not None and not self.timeout > 0:
            raise InvalidParameter("timeout", f"{self.timeout} s", "give seconds above 0")
        if "stream_options" in self.model_fields_set and self.stream_options.model_fields_set and not self.stream:
            raise InvalidParameter("stream_options", "is only allowed with stream", "leave it out, or stream")
        detail = self.wants_pieces or params.logprobs is not None
        return Job(
            request_id, self.model or "", params=params, stream=self.stream, slo=self.slo, priority=self.priority,
            timeout=self.timeout, detail=detail, cache_salt=self.cache_salt, trace=self.paceline.trace, **more,
        )  # fmt: skip


class CompletionRequest(Request):
    """POST /v1/completions."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    suffix: str = ""
    logprobs: NumTop = None
    echo: bool = False
    add_special_tokens: bool = True
    best_of: Whole | None = None

    @property
    def num_samples(self) -> int:
        """Samples to draw of each prompt."""
        return self.n if self.best_of is None else self.best_of

    def jobs(self, request_id: str) -> list[Job]:
        """One job for each prompt.

        Raises:
            InvalidParameter: a prompt is empty, or there are too many, or a field cannot be used.
        """
        check_extra(self.model_extra or {}, type(self).model_fields)
        prompts = _prompts(self.prompt, self._has_suffix())
        num_top = self.logprobs
        more: dict[str, Any] = {"logprobs": num_top}
        if self.echo and num_top is not None:
            more["prompt_logprobs"] = num_top
        if self.only_echo:
            more["max_tokens"] = 1
        if self.num_samples != self.n:
            more |= {"n": self._best_of(), "logprobs": num_top or 0}
        params = self.params(_COMPLETION_TOKENS, **more)
        names = [request_id] if len(prompts) == 1 else [f"{request_id}-{i}" for i in range(len(prompts))]
        asked = [Gap(str(prompt), self.suffix) for prompt in prompts] if self.suffix else prompts
        how = {"add_special_tokens": self.add_special_tokens}
        return [self._job(name, params, prompt=prompt, **how) for name, prompt in zip(names, asked, strict=True)]

    def sent_name(self, field: str) -> str:
        """See `Request`."""
        if field == "prompt_token_ids":
            return "prompt"
        return "best_of" if field == "n" and self.best_of is not None else super().sent_name(field)

    def _has_suffix(self) -> bool:
        """Whether a gap is to be filled. Raises InvalidParameter for fields that do not go with it."""
        if not self.suffix:
            return False
        check_text("suffix", self.suffix)
        if self.echo:
            raise InvalidParameter("echo", "is given beside suffix", "leave one of the two out")
        texts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if not texts or not all(isinstance(text, str) for text in texts):
            raise InvalidParameter("suffix", "goes with prompts of text, not of token ids", "send texts")
        return True

    def _best_of(self) -> int:
        """Samples to draw, of which the `n` most probable are told. Raises InvalidParameter."""
        if self.stream or self.num_samples < self.n:
            remedy = "ask for at least n, without stream"
            raise InvalidParameter("best_of", f"{self.num_samples} for n = {self.n}, or in a stream", remedy)
        return self.num_samples

    @property
    def only_echo(self) -> bool:
        """Whether nothing but the prompt is wanted back."""
        return self.echo and self.max_tokens == 0

    @property
    def wants_pieces(self) -> bool:
        """As for all requests; an echoed prompt is told token by token too."""
        return super().wants_pieces or self.echo


class ChatRequest(Request):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: Whole | None = None
    logprobs: bool = False
    top_logprobs: Whole | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True

    def choice_of_tools(self) -> ToolChoice:
        """The tools on offer. Raises InvalidParameter for what cannot be called."""
        return ToolChoice(self.tools, self.tool_choice, self.parallel_tool_calls)

    def jobs(self, request_id: str) -> list[Job]:
        """The job this asks for, as a list of one.

        Raises:
            InvalidParameter: there is no message, or a field cannot be used.
        """
        check_extra(self.model_extra or {}, type(self).model_fields)
        if not self.messages:
            raise InvalidParameter("messages", "the list is empty", "give at least one message")
        if self.top_logprobs and not self.logprobs:
            raise InvalidParameter("top_logprobs", "is given without logprobs", "set logprobs to true")
        more: dict[str, Any] = {"logprobs": (self.top_logprobs or 0) if self.logprobs else None}
        if self.max_completion_tokens is not None:
            more["max_tokens"] = self.max_completion_tokens
        messages = [each.flat(f"messages[{number}]") for number, each in enumerate(self.messages)]
        messages = [readable_calls(each, f"messages[{number}]") for number, each in enumerate(messages)]
        for number, message in enumerate(messages):
            check_text(f"messages[{number}]", message["content"])
        self._check_template(messages[-1])
        tools, template = self.choice_of_tools(), dict(self.chat_template_kwargs)
        if self.reasoning_effort is not None:
            template.setdefault("reasoning_effort", self.reasoning_effort)
        if self.reasoning_effort == "none":
            template.setdefault("enable_thinking", False)
        if tools.is_active:
            template["tools"] = tools.tools
        if tools.grammar is not None:
            if self._grammar() is not None:
                problem = "is given beside tool_choice, which demands a call"
                raise InvalidParameter(super().sent_name("structured_outputs"), problem, "give one of the two")
            more["structured_outputs"] = tools.grammar
        params = self.params(NO_LIMIT, **more)
        if params.structured_outputs is not None:  # thoughts have no place in a grammar
            template["enable_thinking"] = False
        if tools.grammar is not None:  # stops are for the content, and a demanded call has none
            params = replace(params, stop=(), stop_token_ids=())
        ending = {"add_generation_prompt": self.add_generation_prompt and not self.continue_final_message,
                  "continue_final_message": self.continue_final_message}  # fmt: skip
        return [self._job(request_id, params, messages=messages, template=template, **ending)]

    def _check_template(self, last: Mapping[str, Any]) -> None:
        """Raise InvalidParameter for wishes about the chat template that contradict each other."""
        check_variables(self.chat_template_kwargs)
        if not self.continue_final_message:
            return
        check_continued(last)
        if self.add_generation_prompt and "add_generation_prompt" in self.model_fields_set:
            raise InvalidParameter("continue_final_message", "is given with add_generation_prompt", "set one of them")

    def sent_name(self, field: str) -> str:
        """See `Request`."""
        if field in ("prompt", "prompt_token_ids") and field not in (self.model_extra or {}):
            return "messages"
        sent_as = {"max_tokens": "max_completion_tokens", "logprobs": "top_logprobs"}.get(field)
        if sent_as is not None and getattr(self, sent_as) is not None:
            return sent_as
        is_grammar = field.partition(".")[0] == "structured_outputs" and not self.structured_outputs
        if is_grammar and self.choice_of_tools().demanded:
            return "tools"  # whose parameters are the grammar
        return super().sent_name(field)

    echo: ClassVar[bool] = False
    only_echo: ClassVar[bool] = False

    @property
    def num_samples(self) -> int:
        """Samples to draw."""
        return self.n


def split_samples(job: Job) -> list[Job]:
    """One job for each sample, with its seed, for backends that do not run them together."""
    if job.params.n == 1:
        return [job]
    return [replace(job, request_id=f"{job.request_id}-{i}", params=job.params.sample(i)) for i in range(job.params.n)]


def _prompts(prompt: str | list[int] | list[str] | list[list[int]], may_be_empty: bool) -> list[str | tuple[int, ...]]:
    """As many prompts as were given, at least one, none of them empty unless each `may_be_empty`."""
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        prompts: list[Any] = [prompt]
    else:
        prompts = list(prompt)
    if len(prompts) > MOST_PROMPTS:
        raise InvalidParameter("prompt", f"{len(prompts)} prompts", f"send at most {MOST_PROMPTS} at once")
    for each in prompts:
        if not (each or may_be_empty):
            raise InvalidParameter("prompt", "is empty", "give at least one character or token")
        if isinstance(each, str):
            check_text("prompt", each)
    return [each if isinstance(each, str) else tuple(each) for each in prompts]
