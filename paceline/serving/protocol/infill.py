"""llama.cpp's ``/infill``: a completion of code between two texts, as its plugins for editors ask for it.

Names and defaults are llama.cpp's. A request becomes a completion (`openai.py`); what it answers is told in
llama.cpp's form. Prompts of code models are `models/text/infill.py`'s, ends of lines `engine/text/line_reader.py`'s.
"""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from paceline.engine.text.prompts import Gap
from paceline.errors import InvalidParameter
from paceline.limits import NO_LIMIT
from paceline.serving.models.job import Job
from paceline.serving.protocol.fields import Amount, Bias, StreamOptions, Whole, same_value, without_nulls
from paceline.serving.protocol.message import check_text
from paceline.serving.protocol.openai import CompletionRequest

_PASSED_OVER = (
    "cache_prompt", "id_slot", "samplers", "t_max_prompt_ms", "n_keep", "n_cache_reuse", "repeat_last_n",
    "timings_per_token", "return_progress", "post_sampling_probs", "n_discard", "stop_on_eos", "min_keep",
    "mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "dry_sequence_breakers", "penalize_nl",
)  # fmt: skip
"""Fields of llama.cpp's that change nothing here: its prefix cache, slots and order of samplers, and settings of
samplers that must be off."""
_OFF: Mapping[str, Any] = {
    "n_probs": 0, "mirostat": 0, "typical_p": 1.0, "dynatemp_range": 0.0, "xtc_probability": 0.0, "dry_multiplier": 0.0,
    "top_n_sigma": -1.0, "return_tokens": False, "lora": [], "grammar": "", "n_cmpl": 1,
}  # fmt: skip
"""Fields of which only the value that asks for nothing is served."""
_KEPT_FREE = 256
"""Least tokens that are left to an answer, so that requests which only read a prompt cut it where others do."""
_SENT_AS = {
    "prompt": "input_prefix", "suffix": "input_suffix", "files": "input_extra", "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
}  # fmt: skip
_STOPS = {"length": "limit", "timeout": "limit", "abort": "limit"}


def _by_token(bias: Any) -> Any:
    """llama.cpp's list of (token, bias) as OpenAI's mapping; false bans a token."""
    if not isinstance(bias, list) or not all(isinstance(each, list) and len(each) == 2 for each in bias):
        return bias
    return {str(token): -100.0 if value is False else value for token, value in bias}


class ExtraFile(BaseModel):
    """Text of another file, or of another place of this one."""

    model_config = ConfigDict(extra="allow")
    text: str
    filename: str = "tmp"


class InfillRequest(BaseModel):
    """POST /infill."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] = Field(default_factory=list)
    prompt: str = ""
    n_predict: Whole = -1
    n_indent: Whole = 0
    t_max_predict_ms: Whole = 0
    temperature: Amount = 0.8
    top_k: Whole = 40
    top_p: Amount = 0.95
    min_p: Amount = 0.05
    presence_penalty: Amount = 0.0
    frequency_penalty: Amount = 0.0
    repeat_penalty: Amount = 1.0
    logit_bias: Annotated[dict[int, Bias], BeforeValidator(_by_token)] = Field(default_factory=dict)
    seed: Whole = -1
    stop: str | list[str] = Field(default_factory=list)
    ignore_eos: bool = False
    speculative: bool | dict[str, Any] = True
    stream: bool = False
    response_fields: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_defaults(cls, data: Any) -> Any:
        return without_nulls(data)

    def completion(self) -> "InfillCompletion":
        """The completion it asks for. Raises InvalidParameter for a field with a meaning that is not served."""
        for key, value in (self.model_extra or {}).items():
            if key not in _PASSED_OVER and (key not in _OFF or not same_value(value, _OFF[key])):
                raise InvalidParameter(key, "is not served", "leave it out")
        for field, text in (
            ("input_prefix", self.input_prefix), ("input_suffix", self.input_suffix), ("prompt", self.prompt),
            *(("input_extra", each) for file in self.input_extra for each in (file.filename, file.text)),
        ):  # fmt: skip
            check_text(field, text)
        files = tuple((file.filename, file.text) for file in self.input_extra)
        before = self.input_prefix + self.prompt  # llama.cpp's own page has `prompt` after the suffix, its code has not
        limit = NO_LIMIT if self.n_predict < 0 else max(self.n_predict, 1)
        return InfillCompletion(
            model=self.model, prompt=before, max_tokens=limit,
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p,
            presence_penalty=self.presence_penalty, frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repeat_penalty, logit_bias=self.logit_bias, stop=self.stop,
            seed=None if self.seed < 0 else self.seed, ignore_eos=self.ignore_eos, speculative=self.speculative,
            stream=True, stream_options=StreamOptions(continuous_usage_stats=True),
            gap=Gap(before, self.input_suffix, files, keeps_free=max(limit, _KEPT_FREE)),
            n_indent=self.n_indent, t_max_predict_ms=max(self.t_max_predict_ms, 0),
        )  # fmt: skip

    def sent_name(self, field: str) -> str:
        """What the client called a field of completions."""
        return _SENT_AS.get(field, field)

    @property
    def only_reads(self) -> bool:
        """Whether the prompt is to be read into the prefix cache, and nothing written."""
        return self.n_predict == 0


class InfillCompletion(CompletionRequest):
    """A completion of the text in a gap."""

    gap: Gap
    n_indent: int
    t_max_predict_ms: int

    def jobs(self, request_id: str) -> list[Job]:
        """See `CompletionRequest`."""
        params = self.params(NO_LIMIT, n_indent=self.n_indent, t_max_predict_ms=self.t_max_predict_ms)
        return [self._job(request_id, params, prompt=self.gap)]


class Infilled:
    """Tells a completion's stream in llama.cpp's form.

    Args:
        asked: the request.
        model: the model's served name.
    """

    def __init__(self, asked: InfillRequest, model: str) -> None:
        self._asked, self._model = asked, model
        self._texts, self._usage = list[str](), dict[str, Any]()
        self._began, self._first, self._ended = time.perf_counter(), 0.0, 0.0
        self._last: Mapping[str, Any] = {}

    async def pieces(self, bodies: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        """A body for each part of the text, and the final one; a body with an error is passed on, and is the last."""
        async for body in bodies:
            if "error" in body:
                yield body
                return
            if text := self._read(body):
                yield {"index": 0, "content": text, "tokens": [], "stop": False, "id_slot": 0} | self._counts()
        yield self._final("")

    async def whole(self, bodies: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
        """The final body with the whole text, or one with an error."""
        async for body in bodies:
            if "error" in body:
                return body
            self._read(body)
        return self._final("".join(self._texts))

    def _read(self, body: Mapping[str, Any]) -> str:
        """The text that a body of the completion adds."""
        self._usage = body.get("usage") or self._usage
        for choice in body["choices"]:
            self._last, self._ended = choice, time.perf_counter()
            self._first = self._first or self._ended
            self._texts.append("" if self._asked.only_reads else choice["text"])
        return self._texts[-1] if body["choices"] else ""

    def _counts(self) -> dict[str, int]:
        written = 0 if self._asked.only_reads else self._usage.get("completion_tokens", 0)
        return {"tokens_predicted": written, "tokens_evaluated": self._usage.get("prompt_tokens", 0)}

    def _final(self, text: str) -> dict[str, Any]:
        counts = self._counts()
        cached = (self._usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        reason, word = self._last.get("finish_reason"), self._last.get("stop_reason")
        timings = {"cache_n": cached}
        timings |= _timings("prompt", counts["tokens_evaluated"] - cached, self._first - self._began)
        timings |= _timings("predicted", counts["tokens_predicted"], self._ended - self._first)
        body = {
            "index": 0, "content": text, "tokens": [], "stop": True, "id_slot": 0, "model": self._model, **counts,
            "tokens_cached": cached, "truncated": False, "has_new_line": any("\n" in text for text in self._texts),
            "stop_type": "word" if isinstance(word, str) else _STOPS.get(str(reason), "eos"),
            "stopping_word": word if isinstance(word, str) else "",
            "timings": timings,
        }  # fmt: skip
        return picked(body, self._asked.response_fields) if self._asked.response_fields else body


def _timings(name: str, count: int, seconds: float) -> dict[str, float]:
    each = {f"{name}_per_token_ms": 1000 * seconds / count if count else 0.0,
            f"{name}_per_second": count / seconds if seconds else 0.0}  # fmt: skip
    return {f"{name}_n": count, f"{name}_ms": 1000 * seconds} | each


def picked(body: Mapping[str, Any], fields: list[str]) -> dict[str, Any]:
    """The fields of a body that were asked for, by their names; ``timings/prompt_n`` is one inside another."""
    found: dict[str, Any] = {}
    for field in fields:
        value: Any = body
        for name in field.split("/"):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            found[field] = value
    return found
