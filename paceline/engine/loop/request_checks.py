"""What is refused when a request is added: values that no engine of this model could honour. Not for its length."""

from collections.abc import Sequence
from numbers import Real

from paceline.errors import InvalidParameter
from paceline.limits import is_whole
from paceline.types import SamplingParams


def check_request(
    request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams, priority: int, timeout: float | None,
    vocab_size: int,
) -> None:  # fmt: skip
    """Raise InvalidParameter, which names the field; arguments as of `Engine.add_request`."""
    remedy = "tokenise it with this model's own tokenizer"
    predicted = () if isinstance(params.prediction, str) else params.prediction
    given = {
        "prompt_token_ids": prompt_token_ids, "prediction": predicted, "stop_token_ids": params.stop_token_ids,
    }  # fmt: skip
    for name, token_ids in given.items():
        unknown = next((i for i in token_ids if not _is_id(i) or not 0 <= i < vocab_size), None)
        if unknown is not None:
            raise InvalidParameter(name, f"{unknown!r} is outside the vocabulary of {vocab_size}", remedy)
    if not isinstance(request_id, str) or not request_id:
        raise InvalidParameter("request_id", f"{request_id!r} is no name", "give a text, or leave it out")
    if timeout is not None and not (isinstance(timeout, Real) and timeout > 0):
        raise InvalidParameter("timeout", f"{timeout!r} is not above 0", "give seconds, or leave it out")
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise InvalidParameter("priority", f"{priority!r} is no whole number", "give a smaller one to run earlier")


def _is_id(value: object) -> bool:
    return type(value) is int or is_whole(value)  # most are; prompts may be long
