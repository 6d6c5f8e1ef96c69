"""What single fields of OpenAI's requests mean: their types, those that are passed over, and forms of an answer.

The requests are `openai.py`'s.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FiniteFloat,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from paceline.errors import InvalidParameter, nearest
from paceline.serving.protocol.closed_schema import closed
from paceline.vllm_names import ONE_GRAMMAR_ENGINE, SAMPLING


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "Input should be a number, not true or false")
    return value


Whole = Annotated[int, BeforeValidator(_no_flag)]
"""A whole number; Python would count true as 1."""
Amount = Annotated[FiniteFloat, BeforeValidator(_no_flag)]
"""A number that is finite."""
NumTop = Annotated[int | None, BeforeValidator(lambda value: None if value is False else _no_flag(value))]
"""Log-probabilities of a completion: a whole number, or false for none of them, as in a chat."""
TokenId = Annotated[int, Strict()]
"""One of many, so it is checked without a call of Python."""
Bias = Annotated[float, Strict()]

_PASSED_OVER: Mapping[str, type] = {
    "user": str, "metadata": dict, "store": bool, "service_tier": str, "safety_identifier": str,
    "prompt_cache_key": str, "prompt_cache_retention": str, "parallel_tool_calls": bool, "request_id": str,
    "spaces_between_special_tokens": bool, "verbosity": str,
}  # fmt: skip
"""Fields that change nothing about the text here, and their types."""
_KINDS = {str: "text", dict: "object", bool: "boolean"}
_BRANCH = re.compile(r"str|int|float|bool|\[key\]|[a-z-]+\[.*\]", re.DOTALL)
"""What Pydantic calls the types of a union in the place of an error."""
_FORMS: Mapping[Any, Sequence[str]] = {
    "text": (), "json_object": (), "json_schema": ("json_schema", "schema", "name", "description", "strict"),
}  # fmt: skip
"""Keys of each `response_format` besides its type."""
_NO_OPS: Mapping[str, Sequence[Any]] = {
    "suffix": ("",), "use_beam_search": (False,), "length_penalty": (1.0,), "functions": ([],),
    "function_call": ("none", "auto"), "modalities": (["text"],),
    "tools": ([],), "tool_choice": ("none", "auto"), "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,), "truncate_prompt_tokens": (-1,), "allowed_token_ids": ([],),
    "chat_template_kwargs": ({},), "add_generation_prompt": (True,), "continue_final_message": (False,),
    "echo": (False,), "best_of": (1,), "documents": ([],), "mm_processor_kwargs": ({},), "vllm_xargs": ({},),
    "return_tokens_as_token_ids": (False,), "include_reasoning": (True,), "cache_prompt": (True,),
    "typical_p": (1.0,), "repeat_penalty": (1.0,),
}  # fmt: skip
"""Values that ask for what is done anyway, of fields whose other values are not served."""


def without_nulls(data: Any) -> Any:
    """A request without the fields that are null, which are as good as left out."""
    return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`, and vLLM's `continuous_usage_stats`. Nothing is obfuscated here."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None

    _nulls_are_defaults = model_validator(mode="before")(without_nulls)


class Extras(BaseModel):
    """Our own: ``trace`` tells where each token came from, ``stats`` what became of the drafts."""

    model_config = ConfigDict(extra="forbid")
    trace: bool = False
    stats: bool = False


_OURS = {
    "repeat_penalty": ("repetition_penalty",),
    "n_predict": ("max_tokens", "max_output_tokens"), "max_new_tokens": ("max_tokens", "max_output_tokens"),
    "max_tokens": ("max_output_tokens",), "max_completion_tokens": ("max_output_tokens", "max_tokens"),
    "grammar": ("structured_outputs",), "guided_decoding": ("structured_outputs",),
    "output_format": ("response_format", "output_config", "text"), "response_format": ("output_config", "text"),
    "structured_outputs": ("output_config", "text"),
    "functions": ("tools",), "function_call": ("tool_choice",), "best_of": ("n",), "logits_processors": ("logit_bias",),
    "stop": ("stop_sequences",), "stop_sequences": ("stop",), "content": ("prompt", "input"),
    "input": ("messages", "prompt"),
}  # fmt: skip
"""What other servers and protocols call fields of ours; where there are several, an endpoint has one of them."""
_WITHOUT = {name: SAMPLING[name] for name in (
    "detokenize", "length_penalty", "skip_special_tokens", "spaces_between_special_tokens", "use_beam_search",
)} | {
    "truncate_prompt_tokens": "cut the prompt",
    "chat_template": "start the server with --chat-template",
    "guided_decoding_backend": ONE_GRAMMAR_ENGINE,
}  # fmt: skip
"""Fields of other servers that have no counterpart, with what to do."""


def not_served(field: str, known: Iterable[str]) -> InvalidParameter:
    """The error for a field that is none of the `known` ones of an endpoint."""
    known = set(known)
    ours = next((name for name in _OURS.get(field, ()) if name in known), None)
    remedy = f"use {ours}" if ours else _WITHOUT.get(field) or nearest(field, known) + "leave it out"
    return InvalidParameter(field, "is not served", remedy)


def check_extra(extra: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise InvalidParameter for a field with a meaning that is not served, or one passed over of a wrong type."""
    for key, value in extra.items():
        kind = _PASSED_OVER.get(key)
        if kind is not None and not isinstance(value, kind):
            raise InvalidParameter(key, f"is no {_KINDS[kind]}", "send one, or leave it out")
        if kind is None and not any(same_value(value, each) for each in _NO_OPS.get(key, ())):
            raise not_served(key, known)


def same_value(value: Any, other: Any) -> bool:
    """Whether two values are equal, where Python would count true as 1 too."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def wrong_field(error: ValidationError) -> InvalidParameter:
    """The first field of a body that is of a wrong type, with every type that it may have."""
    found = error.errors(include_url=False, include_input=False)
    field = found[0]["loc"][:1]
    found = [each for each in found if each["loc"][:1] == field]
    place = _place(max(found, key=lambda each: len(each["loc"]))["loc"])
    first, *more = dict.fromkeys(each["msg"] for each in found if _place(each["loc"]) == place)
    problem = " or ".join((first, *(each.removeprefix("Input should be ") for each in more)))[:200]
    where = str(field[0]) if field else "body"
    return InvalidParameter(where, f"{place}: {problem}" if place else problem, "see docs/serving.md")


def _place(loc: Sequence[str | int]) -> str:
    """The place of an error inside its field, such as ``[0].role``; empty for the field itself."""
    parts = [part for part in loc[1:] if isinstance(part, int) or not _BRANCH.fullmatch(part)]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")[:120]


def response_grammar(form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """OpenAI's `response_format` as `SamplingParams.structured_outputs`. Raises InvalidParameter for unknown types."""
    kind = "text" if form is None else form.get("type")
    if form is None:
        return None
    if isinstance(kind, str) and kind in _FORMS:
        _check_keys(form, ("type", *_FORMS[kind]))
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        named = form.get("json_schema")
        if isinstance(named, Mapping):
            _check_keys(named, ("name", "description", "schema", "strict"))
        told = named if isinstance(named, Mapping) else form
        schema = told.get("schema")
        if schema is None:
            problem = "json_schema.schema is missing"
            raise InvalidParameter(
                "response_format", problem, "send {'type': 'json_schema', 'json_schema': {'schema': {}}}"
            )
        if not isinstance(told.get("strict"), bool | None):
            raise InvalidParameter("response_format", "strict is no boolean", "send true or false, or leave it out")
        return {"json": closed(schema) if told.get("strict") and isinstance(schema, Mapping) else schema}
    if kind == "structural_tag":
        return {"structural_tag": {key: value for key, value in form.items() if key != "type"}}
    remedy = "use json_object, json_schema or structural_tag"
    raise InvalidParameter("response_format", f"type {str(kind)[:40]!r} is unknown", remedy)


def _check_keys(form: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = next((key for key, value in form.items() if key not in known and value is not None), None)
    if unknown is not None:
        raise InvalidParameter("response_format", f"the key {unknown[:60]!r} is unknown", f"use {', '.join(known)}")


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
