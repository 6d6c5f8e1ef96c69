"""OpenAI's completions and chat completions, as far as they are served: what comes in, what goes out.

Fields with a meaning that is not served are refused rather than passed over. Beyond OpenAI's: ``top_k``, ``min_p``,
``repetition_penalty``, ``ignore_eos`` (vLLM's names) and ``slo``, seconds from arrival to answer.
"""

import time
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from paceline.errors import InvalidParameter
from paceline.serving.job import Chunk, Job
from paceline.types import SamplingParams


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: str
    content: str
    name: str | None = None


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class _Request(BaseModel):
    """Fields that both kinds share."""

    model_config = ConfigDict(extra="forbid")
    model: str
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = Field(default_factory=dict)
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    slo: float | None = None

    def params(self, default_max_tokens: int) -> SamplingParams:
        """What the sampler is asked.

        Raises:
            InvalidParameter: a value out of range.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p,
            presence_penalty=self.presence_penalty, frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty, logit_bias=self.logit_bias, seed=self.seed, stop=tuple(stop),
            ignore_eos=self.ignore_eos, max_tokens=default_max_tokens if self.max_tokens is None else self.max_tokens,
        )  # fmt: skip

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with counts of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Request):
    """POST /v1/completions."""

    prompt: str | list[int]

    def job(self, request_id: str) -> Job:
        """The job this asks for.

        Raises:
            InvalidParameter: the prompt is empty.
        """
        prompt = self.prompt if isinstance(self.prompt, str) else tuple(self.prompt)
        if not prompt:
            raise InvalidParameter("prompt", "is empty", "give at least one character or token")
        return Job(request_id, self.model, prompt, params=self.params(16), stream=self.stream, slo=self.slo)


class ChatRequest(_Request):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None

    def job(self, request_id: str) -> Job:
        """The job this asks for.

        Raises:
            InvalidParameter: there is no message.
        """
        if not self.messages:
            raise InvalidParameter("messages", "the list is empty", "give at least one message")
        messages = [message.model_dump(exclude_none=True) for message in self.messages]
        params = self.params(self.max_completion_tokens or SamplingParams().max_tokens)
        return Job(request_id, self.model, messages=messages, params=params, stream=self.stream, slo=self.slo)


class Answer:
    """Writes the bodies of one request's answer.

    Args:
        request_id: as the client sees it.
        model: as the client called it.
        is_chat: which of the two protocols.
    """

    def __init__(self, request_id: str, model: str, is_chat: bool) -> None:
        self._head = {"id": request_id, "created": int(time.time()), "model": model}
        self._is_chat = is_chat

    def whole(self, text: str, last: Chunk) -> dict[str, Any]:
        """The body of an answer in one piece."""
        content = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        kind = "chat.completion" if self._is_chat else "text_completion"
        return self._body(kind, content, last.finish_reason) | {"usage": usage(last)}

    def piece(self, chunk: Chunk, is_first: bool) -> dict[str, Any]:
        """The body of one event of a stream."""
        role = {"role": "assistant"} if is_first else {}
        content = {"delta": role | {"content": chunk.text}} if self._is_chat else {"text": chunk.text}
        return self._body("chat.completion.chunk" if self._is_chat else "text_completion", content, chunk.finish_reason)

    def closing_usage(self, last: Chunk) -> dict[str, Any]:
        """The body of the event that holds nothing but counts of tokens."""
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return self._head | {"object": kind, "choices": [], "usage": usage(last)}

    def _body(self, kind: str, content: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        return self._head | {"object": kind, "choices": [choice]}


def usage(last: Chunk) -> dict[str, int]:
    """Counts of tokens."""
    prompt, output = last.num_prompt_tokens, last.num_output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def error_body(message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    """The body of a refusal."""
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}
