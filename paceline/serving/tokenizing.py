"""POST /tokenize and /detokenize, as vLLM has them: what comes in."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from paceline.errors import InvalidParameter
from paceline.serving.job import Job
from paceline.serving.message import Message, check_text


class TokenizeRequest(BaseModel):
    """POST /tokenize, as vLLM has it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    def job(self) -> Job:
        """The job whose prompt is to be tokenised. Raises InvalidParameter unless there is one prompt."""
        if (self.prompt is None) == (not self.messages):
            raise InvalidParameter("prompt", "give either this or messages", "give one of the two")
        if self.messages:
            messages = [message.flat(f"messages[{number}]") for number, message in enumerate(self.messages)]
            return Job("tokenize", self.model or "", messages=messages)
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
    tokens: list[int]
