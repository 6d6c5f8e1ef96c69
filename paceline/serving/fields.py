"""What single fields of OpenAI's requests mean: their types, those that are passed over, and forms of an answer.

The requests are `protocol.py`'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from paceline.errors import InvalidParameter

_PASSED_OVER = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
     "parallel_tool_calls", "request_id", "spaces_between_special_tokens", "verbosity", "reasoning_effort")
)  # fmt: skip
"""Fields that change nothing about the text here."""
_NO_OPS: Mapping[str, Sequence[Any]] = {
    "suffix": ("",), "use_beam_search": (False,), "length_penalty": (1.0,), "functions": ([],),
    "function_call": ("none", "auto"), "modalities": (["text"],),
    "tools": ([],), "tool_choice": ("none", "auto"), "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,), "truncate_prompt_tokens": (-1,), "allowed_token_ids": ([],),
    "chat_template_kwargs": ({},), "add_generation_prompt": (True,), "continue_final_message": (False,),
    "echo": (False,),
}  # fmt: skip
"""Values that ask for what is done anyway, of fields whose other values are not served."""


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`, and vLLM's `continuous_usage_stats`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Extras(BaseModel):
    """Our own: ``trace`` tells where each token came from, ``stats`` what became of the drafts."""

    model_config = ConfigDict(extra="forbid")
    trace: bool = False
    stats: bool = False


def without_nulls(data: Any) -> Any:
    """A request without the fields that are null, which are as good as left out."""
    return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


def check_extra(extra: Mapping[str, Any]) -> None:
    """Raise InvalidParameter for a field with a meaning that is not served."""
    for key, value in extra.items():
        if key in _PASSED_OVER or any(value == each for each in _NO_OPS.get(key, ())):
            continue
        raise InvalidParameter(key, "is not served", "leave it out")


def response_grammar(form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """OpenAI's `response_format` as `SamplingParams.structured_outputs`. Raises InvalidParameter for unknown types."""
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        named = form.get("json_schema")
        schema = named.get("schema") if isinstance(named, Mapping) else form.get("schema")
        if schema is None:
            problem = "json_schema.schema is missing"
            raise InvalidParameter(
                "response_format", problem, "send {'type': 'json_schema', 'json_schema': {'schema': {}}}"
            )
        return {"json": schema}
    if kind == "structural_tag":
        return {"structural_tag": {key: value for key, value in form.items() if key != "type"}}
    remedy = "use json_object, json_schema or structural_tag"
    raise InvalidParameter("response_format", f"type {str(kind)[:40]!r} is unknown", remedy)


def predicted(prediction: str | Mapping[str, Any] | None) -> str:
    """OpenAI's `prediction`, or simply its text."""
    if prediction is None or isinstance(prediction, str):
        return prediction or ""
    content = prediction.get("content")
    if isinstance(content, list):
        texts = [part.get("text", "") for part in content if isinstance(part, Mapping)]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
    if prediction.get("type", "content") != "content" or not isinstance(content, str):
        raise InvalidParameter("prediction", "is not understood", "send {'type': 'content', 'content': 'text'}")
    return content
