"""Token ids and log probabilities from a server."""

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.errors import InvalidParameter
from paceline.evaluation.endpoint import TIMEOUT, Server, post_json, request_body
from paceline.models.text.tokenizer import Tokenizer
from paceline.types import SamplingParams


def tokens_of(server: Server, text: str, tokenizer: Tokenizer | None = None, is_prompt: bool = False) -> list[int]:
    """The token ids of a text by the server's own ``/tokenize``, or by `tokenizer` where it has none.

    Args:
        is_prompt: the text is a user message, to be put into the chat template.

    Raises:
        InvalidParameter: the server has no ``/tokenize`` and there is no `tokenizer`.
    """
    message = [{"role": "user", "content": text}]
    if server.dialect == "llama-server":
        if is_prompt:
            told = post_json(f"{server.url}/apply-template", {"messages": message})
            text = str(told["prompt"]) if told else text
        told = post_json(f"{server.url}/tokenize", {"content": text, "add_special": is_prompt, "parse_special": True})
    else:
        what = {"messages": message} if is_prompt else {"prompt": text, "add_special_tokens": False}
        told = post_json(f"{server.url}/tokenize", {"model": server.model} | what)
    if isinstance(told, Mapping) and isinstance(told.get("tokens"), list):
        return [int(token) for token in told["tokens"]]
    if tokenizer is None:
        problem, remedy = f"{server.url} has no /tokenize", "name the model too, for its tokenizer"
        raise InvalidParameter("url", problem, remedy)
    return list(tokenizer.encode_chat(message) if is_prompt else tokenizer.encode(text, add_special_tokens=False))


def gap_where_it_leaves(
    server: Server, prompt: str, text: str, params: SamplingParams, raw: bool = False
) -> float | None:
    """Log probability gap of the two best tokens at the first token where the server's own answer differs from `text`.

    The prompt is sent again, with log probabilities. None if the server returns none or its answer does not differ.
    """
    more: dict[str, Any] = {"logprobs": 2} if raw else {"logprobs": True, "top_logprobs": 2}
    body = request_body(server, prompt, params, raw) | more | {"stream": False}
    del body["stream_options"]
    told = post_json(server.url + ("/v1/completions" if raw else "/v1/chat/completions"), body, TIMEOUT)
    choice = ((told or {}).get("choices") or [{}])[0]
    said = ""
    for piece, best in _told_tokens(choice.get("logprobs") or {}):
        said += piece
        if not text.startswith(said):
            return best[0] - best[1] if len(best) > 1 else None
    return None


def _told_tokens(told: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """(text, largest log probabilities in descending order) of each token of a chat or completion response."""
    for each in told.get("content") or []:
        yield str(each["token"]), sorted((one["logprob"] for one in each.get("top_logprobs") or []), reverse=True)
    for piece, best in zip(told.get("tokens") or [], told.get("top_logprobs") or [], strict=False):
        yield str(piece), sorted((best or {}).values(), reverse=True)
