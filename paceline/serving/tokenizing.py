"""POST /tokenize and /detokenize, as vLLM has them: what comes in."""

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
        if (self.prompt is None) == (self.messages is None):
            raise InvalidParameter("prompt", "give either this or messages", "give one of the two")
        if self.messages is not None:
            messages = [message.flat(f"messages[{number}]") for number, message in enumerate(self.messages)]
            return Job("tokenize", self.model or "", messages=messages)
        check_text("prompt", self.prompt or "")
        return Job("tokenize", self.model or "", self.prompt, add_special_tokens=self.add_special_tokens)


class DetokenizeRequest(BaseModel):
    """POST /detokenize, as vLLM has it."""

    model: str | None = None
    tokens: list[int]
