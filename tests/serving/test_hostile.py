"""What an enemy would send: nothing of it is answered with 5xx, and everybody else goes on being served."""

import asyncio
import json
import socket
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from paceline.engine.async_llm import AsyncLLM
from paceline.serving.http.app import build_app
from paceline.serving.http.run import Server, bind, run
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.settings import Settings
from tests.serving.conftest import MODEL, events

TEXT = {"model": MODEL, "prompt": "abc", "temperature": 0, "max_tokens": 4, "ignore_eos": True}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 4}
COMPLETIONS, CHATS, MESSAGES, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"
GOOD = {COMPLETIONS: TEXT, CHATS: CHAT, MESSAGES: CHAT,
        RESPONSES: {"model": MODEL, "max_output_tokens": 4, "input": "x"}}  # fmt: skip
BODIES = [json.loads(line) for line in (Path(__file__).parent / "hostile.jsonl").read_text().splitlines()]
"""(path, what is wrong in a body that is good otherwise)."""


def test_no_body_is_answered_with_5xx(serving):
    """Whole and streamed; a refusal has OpenAI's shape, and the server says the same as before after all of them."""
    pytest.importorskip("llguidance")

    async def scene():
        async with serving() as client:
            before = (await client.post(COMPLETIONS, json=TEXT)).json()["choices"]
            for path, wrong in BODIES:
                for more in ({}, {"stream": True}):
                    body = GOOD.get(path, {}) | more | wrong
                    sent = json.dumps(body).encode()
                    answer = await client.post(path, content=sent, headers={"content-type": "application/json"})
                    assert answer.status_code < 500, (path, body, answer.text)
                    if answer.status_code != 200:
                        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, (path, body)
                    assert '"internal_error"' not in answer.text, (path, body, answer.text)
            assert (await client.post(COMPLETIONS, json=TEXT)).json()["choices"] == before
            assert client.app.front.gate.num_inside == 0

    asyncio.run(scene())


@pytest.mark.parametrize(
    "data",
    [b"", b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b'{"a": 1e999}', b'{"max_tokens": 1e400}', b"nul", b"[" * 70_000,
     b'{"a":' * 30_000, b'{"prompt": "\xff"}', b'{"prompt": "a", "prompt": "b"}', b"{}" * 2, b'"' + b"\\" * 99_999,
     b'{"temperature": 1e999, "prompt": "a"}', b'{"seed": ' + b"9" * 5000 + b', "prompt": "a"}', b"\x00"],
)  # fmt: skip
@pytest.mark.parametrize("path", [COMPLETIONS, CHATS, MESSAGES, RESPONSES, "/tokenize"])
def test_no_bytes_are_answered_with_5xx(path, data, serving):
    async def scene():
        async with serving() as client:
            return await client.post(path, content=data, headers={"content-type": "application/json"})

    answer = asyncio.run(scene())
    assert answer.status_code in (200, 400, 413), answer.text


def test_wishes_about_drafts_change_nobodys_text(serving):
    """Thirty at once, each with its own wish; greedy ones say the same, and so do those of one seed."""
    wishes = [True, False, {"num_draft_tokens": 1}, {"num_draft_tokens": 8, "policy": "fixed"}, {"rule": "coupled"},
              {"method": "none"}]  # fmt: skip

    async def scene():
        async with serving() as client:
            bodies = [TEXT | {"max_tokens": 30, "speculative": wish, "temperature": i % 2, "seed": 3, "n": 1 + i % 3}
                      for i, wish in enumerate(wishes * 5)]  # fmt: skip
            return await asyncio.gather(*(client.post(COMPLETIONS, json=body) for body in bodies))

    found = {0: set(), 1: set()}
    for number, answer in enumerate(asyncio.run(scene())):
        found[number % 2].add(answer.json()["choices"][0]["text"])
    assert len(found[0]) == len(found[1]) == 1


def test_a_stop_string_cuts_where_tokens_come_from(ask, make_llm):
    """What is told of single tokens is what the text says, though a draft went on after the stop."""
    text = ask(COMPLETIONS, TEXT | {"max_tokens": 40})[0].json()["choices"][0]["text"]
    stop = text[17:20]
    body = TEXT | {"max_tokens": 40, "stop": [stop], "prediction": text, "paceline": {"trace": True}, "logprobs": 1}
    whole, streamed = ask(COMPLETIONS, body, body | {"stream": True})
    choice = whole.json()["choices"][0]
    assert choice["text"] == text[: text.index(stop)] and choice["finish_reason"] == "stop"
    tokens = choice["paceline"]["tokens"]
    assert "".join(token["text"] for token in tokens) == choice["text"]
    assert "drafted" in {token["provenance"] for token in tokens}
    assert len(choice["logprobs"]["tokens"]) == len(tokens) == whole.json()["usage"]["completion_tokens"]
    pieces = [event["choices"][0] for event in events(streamed) if event["choices"]]
    assert [token for piece in pieces for token in piece["paceline"]["tokens"]] == tokens
    assert "".join(piece["text"] for piece in pieces) == choice["text"]


def test_samples_with_tools_call_each_for_itself(ask):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2, 3]}}, "required": ["a"]}
    function = {"name": "f", "parameters": schema | {"additionalProperties": False}}
    tools = [{"type": "function", "function": function}]
    body = CHAT | {"tools": tools, "tool_choice": "required", "n": 3, "temperature": 1, "seed": 1, "max_tokens": 60}
    whole, streamed = ask(CHATS, body, body | {"stream": True})
    choices = whole.json()["choices"]
    told = [json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["a"] for choice in choices]
    assert len(told) == 3 and all(choice["finish_reason"] == "tool_calls" for choice in choices)
    found = {}
    for event in events(streamed):
        for choice in event["choices"]:
            for call in choice["delta"].get("tool_calls", []):
                found[choice["index"]] = found.get(choice["index"], "") + call["function"]["arguments"]
    assert [json.loads(found[i])["a"] for i in range(3)] == told


@pytest.fixture
def address(make_llm):
    backend = LocalBackend([ModelSpec(MODEL, "tiny")], lambda spec: AsyncLLM(make_llm("ngram")))
    app, bound, ready = build_app(backend, Settings(ping_seconds=0.05)), bind("127.0.0.1", 0), threading.Event()
    server = Server(app, app.front.gate, 5.0, ready.set)
    thread = threading.Thread(target=lambda: run(server.serve(sockets=[bound])))
    thread.start()
    assert ready.wait(60)
    yield bound.getsockname(), app.front.gate
    server.handle_exit(15, None)
    thread.join(30)
    assert not thread.is_alive()


def post(data, *headers):
    lines = [f"POST {COMPLETIONS} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


BODY = json.dumps(TEXT).encode()
WIRES = [
    post(BODY, "Content-Length: 5", "Content-Length: 6"),
    post(BODY, f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked"),
    post(b"zz\r\n", "Transfer-Encoding: chunked"),
    post(b"5\r\nabc", "Transfer-Encoding: chunked"),
    post(BODY, "Content-Length: -1"),
    post(BODY, "Content-Length: 99999999999999999999"),
    post(BODY, f"Content-Length: {len(BODY)}", "X-A: " + "a" * 70_000),
    post(BODY, f"Content-Length: {len(BODY)}", "X-Request-Id: \xff\xfe"),
    post(BODY, f"Content-Length: {len(BODY)}", "Origin: http://\xff"),
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /%00%ff/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /page/..%2f..%2fsettings.py HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/models/%2e%2e%2f HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\r\n\r\n\r\n",
]


def test_no_bytes_on_the_wire_hurt(address):
    """Broken requests, ones that never end and streams that nobody reads; the next client is answered all the same."""
    where, gate = address
    idle = [socket.create_connection(where) for _ in range(20)]
    for number, each in enumerate(idle):
        each.sendall(post(BODY, "Content-Length: 5000") if number % 2 else b"POST /v1/comple")
    for wire in WIRES:
        with socket.create_connection(where, timeout=10) as one:
            one.sendall(wire)
            one.shutdown(socket.SHUT_WR)
            said = one.recv(1 << 16)
            assert not said.startswith(b"HTTP/1.1 5"), (wire[:200], said)
    stream = json.dumps(TEXT | {"stream": True, "max_tokens": 400}).encode()
    gone = [socket.create_connection(where) for _ in range(5)]
    for each in gone:
        each.sendall(post(stream, f"Content-Length: {len(stream)}"))
    for each in gone[:3]:
        assert each.recv(100)
        each.close()
    with socket.create_connection(where, timeout=20) as one:
        one.sendall(post(BODY, f"Content-Length: {len(BODY)}", "Connection: close"))
        said = b""
        while more := one.recv(1 << 16):
            said += more
    assert said.startswith(b"HTTP/1.1 200") and b'"finish_reason":"length"' in said
    for each in (*idle, *gone):
        each.close()
    for _ in range(200):
        if not gate.num_inside:
            break
        threading.Event().wait(0.05)
    assert gate.num_inside == 0


def test_a_head_that_does_not_end_is_refused_before_it_fills_the_memory(address):
    with socket.create_connection(address[0], timeout=10) as one:
        one.sendall(b"GET / HTTP/1.1\r\nX-A: " + b"a" * 20_000)
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 400")


def test_a_head_that_never_ends_has_its_time(address, monkeypatch):
    """On a new connection, and on one that was answered before; a client that is answered is not cut off."""
    monkeypatch.setattr("paceline.serving.http.run._HEAD_SECONDS", 0.3)
    where, _ = address
    with socket.create_connection(where, timeout=10) as new:
        new.sendall(b"POST /v1/comple")
        assert new.recv(100) == b""
    old = HTTPConnection(*where, timeout=10)
    for _ in range(3):
        old.request("POST", COMPLETIONS, BODY, {"Content-Type": "application/json"})
        answer = old.getresponse()
        assert answer.status == 200 and answer.read()
        time.sleep(0.2)
    assert old.sock is not None  # the connection is the same
    old.sock.sendall(post(BODY)[:40])
    assert old.sock.recv(100) == b""
    old.close()
