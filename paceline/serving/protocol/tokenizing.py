"""POST /tokenize and /detokenize, as vLLM has them: what comes in."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.errors import InvalidParameter
from paceline.serving.models.job import Job
from paceline.serving.protocol.fields import TokenId, check_extra, without_nulls
from paceline.serving.protocol.message import Message, check_text
from paceline.serving.protocol.openai import ChatRequest

_OF_CHATS = ("tools", "tool_choice", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
"""Fields about the prompt that messages make."""


class TokenizeRequest(BaseModel):
    """POST /tokenize: a prompt, or messages with a chat's fields about them."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = True
    return_token_strs: bool = False

    _nulls_are_defaults = model_validator(mode="before")(without_nulls)

    def request(self) -> Job | ChatRequest:
        """The job whose prompt is to be tokenised, or the chat. Raises InvalidParameter unless there is one prompt."""
        check_extra(self.model_extra or {}, type(self).model_fields)
        if (self.prompt is None) == (not self.messages):
            raise InvalidParameter("prompt", "give either this or messages", "give one of the two")
        given = {name: getattr(self, name) for name in _OF_CHATS if name in self.model_fields_set}
        if self.messages:
            return ChatRequest(model=self.model, messages=self.messages, **given)
        check_extra(given, ())
        check_text("prompt", self.prompt or "")
        return Job("tokenize", self.model or "", self.prompt, add_special_tokens=self.add_special_tokens)

    def answer(self, tokens: Sequence[tuple[int, bytes]], max_model_len: int | None) -> dict[str, Any]:
        """What is told of the prompt's tokens, each with its bytes."""
        spelled = [spelling.decode("utf-8", "replace") for _, spelling in tokens] if self.return_token_strs else None
        ids = [token_id for token_id, _ in tokens]
        return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": spelled}


class DetokenizeRequest(BaseModel):
    """POST /detokenize, as vLLM has it."""

    model: str | None = None
    tokens: list[TokenId]
