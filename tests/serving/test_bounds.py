"""What keeps one large request from holding up everybody else: bounds, and work beside the event loop."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from paceline.serving.http import body as bodies
from paceline.serving.http.body import parse, weight
from paceline.serving.http.refusals import HttpRefusal
from paceline.serving.http.rendering import dumps
from paceline.serving.protocol.openai import CompletionRequest
from tests.serving.conftest import MODEL

VALUES = st.recursive(
    st.none()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('a",[{:\\é', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('b":\\', max_size=3), inner, max_size=4),
    max_leaves=24,
)


def slow_weight(value) -> int:
    """The same from the value that was read."""
    if isinstance(value, dict):
        own = 16 + 8 * len(value) + max(0, len(value) - 1)
        return own + sum(map(slow_weight, value.values()))
    if isinstance(value, list):
        return 16 + max(0, len(value) - 1) + sum(map(slow_weight, value))
    return 0


@given(VALUES, st.booleans())
def test_the_weight_of_a_body_is_that_of_its_values_not_of_its_texts(value, ascii_only):
    assert weight(json.dumps(value, ensure_ascii=ascii_only).encode()) == slow_weight(value)


@given(VALUES)
def test_answers_written_piece_by_piece_are_the_same_json(value):
    assert dumps(value, 3) == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "body", [{"prompt": [[1]] * 40_000}, {"metadata": {str(i): i for i in range(60_000)}}, {"prompt": [1] * 500_002}]
)
def test_a_body_of_too_many_values_is_refused_before_it_is_read(body, monkeypatch):
    monkeypatch.setattr(bodies.json, "loads", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(HttpRefusal, match="too many values") as refused:
        parse(json.dumps(body).encode(), CompletionRequest)
    assert refused.value.status == 413


def test_a_long_text_full_of_commas_is_read(ask):
    text = '[{"a": 1}, ' * 30_000
    [answer] = ask("/v1/completions", {"model": MODEL, "prompt": text})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"


def test_large_answers_say_what_small_ones_do(serving):
    """Log-probabilities of a whole prompt, whole and streamed, beside the loop and on it."""
    asked = {"model": MODEL, "prompt": "abc" * 60, "max_tokens": 2, "temperature": 0, "prompt_logprobs": 3}

    async def scene():
        async with serving() as client:
            whole = (await client.post("/v1/completions", json=asked)).json()["choices"][0]
            streamed = (await client.post("/v1/completions", json=asked | {"stream": True})).text
            return whole, [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]

    whole, events = asyncio.run(scene())
    last = [event["choices"][0] for event in events if event["choices"]][-1]
    assert last["prompt_logprobs"] == whole["prompt_logprobs"] and len(whole["prompt_logprobs"]) == 180
    for entry in whole["prompt_logprobs"][1:]:
        ranks = [own["rank"] for own in entry.values()]
        assert {1, 2, 3} <= set(ranks) and all(rank >= 1 for rank in ranks) and len(ranks) in (3, 4)


def request_of(*messages):
    """One whose body comes in these messages of ASGI, and then nothing."""
    waiting = list(messages)

    async def receive():
        return waiting.pop(0) if waiting else await asyncio.Event().wait()

    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
    return scope, receive


def test_a_body_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(bodies, "_PATIENCE", 0.01)
    request = Request(*request_of({"type": "http.request", "body": b'{"prompt": ', "more_body": True}))
    with pytest.raises(HttpRefusal, match="not whole") as refused:
        asyncio.run(bodies.read_body(request, CompletionRequest, 1000))
    assert refused.value.status == 408


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_fault_of_the_server(serving):
    sent = []

    async def send(message):
        sent.append(message)

    async def scene():
        async with serving() as client:
            part = {"type": "http.request", "body": b"{", "more_body": True}
            await client.app(*request_of(part, {"type": "http.disconnect"}), send)

    asyncio.run(scene())
    assert sent[0]["status"] == 499
