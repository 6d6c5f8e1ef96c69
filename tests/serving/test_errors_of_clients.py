"""What clients look for in a refusal to tell errors apart: codes, and words of the message."""

import pytest

from tests.serving.conftest import MODEL

LONG = "a b " * 200
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}


@pytest.mark.parametrize("times", [1, 1000])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": LONG}, "prompt"),
        ("/v1/completions", {"model": MODEL, "prompt": [97] * 300}, "prompt"),
        ("/v1/chat/completions", CHAT, "messages"),
        ("/v1/messages", CHAT, "messages"),
        ("/v1/responses", {"model": MODEL, "input": LONG}, "input"),
    ],
)
def test_too_long_a_prompt_is_told_in_the_words_that_clients_know(ask, path, body, param, stream, times):
    """litellm looks for the first text, langchain for the code or the second."""
    if times > 1:  # more bytes than the context can hold, which shows before they are tokenised
        name = next(key for key in ("prompt", "messages", "input") if key in body)
        more = [{"role": "user", "content": LONG * times}] if name == "messages" else body[name] * times
        body = body | {name: more}
    [answer] = ask(path, body | {"stream": stream}, max_model_len=200)
    error = answer.json()["error"]
    assert answer.status_code == 400 and (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert "this model's maximum context length is 200 tokens" in error["message"]
    assert "prompt is too long" in error["message"] and error["message"].startswith(f"{param}: ")


def test_only_an_unknown_model_is_not_found(ask):
    bodies = [{"model": model, "prompt": "a", "max_tokens": 1} for model in ("other", 3, ["x"], {"a": 1})]
    unknown, *wrong = ask("/v1/completions", *bodies)
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in wrong] == [(400, None)] * 3
