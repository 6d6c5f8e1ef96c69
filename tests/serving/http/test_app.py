"""The HTTP front over groups that echo: both protocols, both forms, every refusal, clients that leave."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.http.app import build_app
from paceline.serving.http.stream import bodies
from tests.serving.fakes import QUICK, EchoGroup, plan

SLOW = {"name": "slow", "slo": 0.5}
TIMES = [[[0.01], [0.4]]]


class ChattyGroup(EchoGroup):
    """Echoes the last message of a conversation too."""

    async def generate(self, job):
        from dataclasses import replace

        said = job.messages[-1]["content"] if job.messages else job.prompt
        async for chunk in super().generate(replace(job, prompt=said)):
            yield chunk


@asynccontextmanager
async def served():
    group = ChattyGroup()
    dispatcher = Dispatcher(plan([[1, 1, [0, 1]]], models=["a", SLOW], stage_seconds=TIMES), [group], QUICK)
    await dispatcher.start()
    transport = httpx.ASGITransport(build_app(dispatcher))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client, dispatcher, group
    await dispatcher.close(timeout=1.0)


def events(response):
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


CHAT = {"model": "a", "messages": [{"role": "user", "content": "one two three"}]}
TEXT = {"model": "a", "prompt": "one two three"}


def test_both_protocols_answer_whole():
    async def scene():
        async with served() as (client, _, group):
            text = (await client.post("/v1/completions", json=TEXT | {"temperature": 0, "stop": "x"})).json()
            assert text["choices"] == [{"index": 0, "text": "one two three", "logprobs": None, "finish_reason": "stop"}]
            usage = text["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 3, 6)
            assert group.jobs[0].params.stop == ("x",)
            assert group.jobs[0].params.max_tokens == 16
            chat = (await client.post("/v1/chat/completions", json=CHAT | {"max_completion_tokens": 5})).json()
            assert chat["object"] == "chat.completion"
            message = {"role": "assistant", "content": "one two three", "refusal": None}
            assert chat["choices"][0]["message"] == message
            assert group.jobs[1].params.max_tokens == 5

    asyncio.run(scene())


def test_the_state_of_a_cluster_names_its_models():
    """The playground offers them."""

    async def scene():
        async with served() as (client, _, _group):
            state = await client.get("/api/state")
            assert state.status_code == 200
            assert list(state.json()["models"]) == ["a", "slow"] and state.json()["metrics"] == {}

    asyncio.run(scene())


def test_both_protocols_stream():
    async def scene():
        async with served() as (client, _, _group):
            wanted = {"stream": True, "stream_options": {"include_usage": True}}
            text = events(await client.post("/v1/completions", json=TEXT | wanted))
            assert [event["choices"][0]["text"] for event in text[:-1]] == ["one ", "two ", "three"]
            assert [event["choices"][0]["finish_reason"] for event in text[:-1]] == [None, None, "stop"]
            assert text[-1]["usage"]["total_tokens"] == 6
            chat = events(await client.post("/v1/chat/completions", json=CHAT | {"stream": True}))
            deltas = [event["choices"][0]["delta"] for event in chat]
            assert deltas == [{"role": "assistant", "content": "one "}, {"content": "two "}, {"content": "three"}]

    asyncio.run(scene())


def test_models_health_and_metrics_are_told():
    async def scene():
        async with served() as (client, _, _group):
            assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["a", "slow"]
            assert (await client.get("/health")).json()["status"] == "ok"
            assert "paceline_cluster_group_ready" in (await client.get("/metrics")).text

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("completions", TEXT | {"model": "c"}, 404, "model"),
        ("completions", TEXT | {"prompt": ""}, 400, "prompt"),
        ("completions", TEXT | {"temperature": -1}, 400, "temperature"),
        ("completions", TEXT | {"max_tokens": 0}, 400, "max_tokens"),
        ("completions", TEXT | {"n": 17}, 400, "n"),
        ("completions", TEXT | {"logprobs": 21}, 400, "logprobs"),
        ("completions", TEXT | {"slo": 0}, 400, "slo"),
        ("completions", {"model": "a"}, 400, "prompt"),
        ("completions", TEXT | {"prompt": "bad"}, 400, "prompt"),
        ("chat/completions", CHAT | {"messages": []}, 400, "messages"),
        ("chat/completions", CHAT | {"invented": 1}, 400, "invented"),
    ],
)
def test_refusals_name_the_field(path, body, status, param):
    async def scene():
        async with served() as (client, _, _group):
            response = await client.post(f"/v1/{path}", json=body)
            assert response.status_code == status
            assert response.json()["error"]["param"] == param
            assert response.json()["error"]["type"] == "invalid_request_error"

    asyncio.run(scene())


def test_a_deadline_that_cannot_be_met_is_429_and_a_dead_cluster_503():
    async def scene():
        async with served() as (client, dispatcher, group):
            slow = {"model": "slow", "prompt": "one two three " * 10}
            first = asyncio.create_task(client.post("/v1/completions", json=slow))
            await asyncio.sleep(0.02)
            late = await client.post("/v1/completions", json=slow)
            assert late.status_code == 429
            assert late.headers["retry-after"] == "1"
            assert "deadline is 0.500 s" in late.json()["error"]["message"]
            assert (await first).status_code == 200
            group.refuses_to_start = True
            await group.kill()
            async with asyncio.timeout(5):
                while not dispatcher.events.named("group_lost"):
                    await asyncio.sleep(0.01)
            assert (await client.post("/v1/completions", json=TEXT)).status_code == 503
            assert (await client.get("/health")).status_code == 503

    asyncio.run(scene())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_request(stream):
    async def scene():
        async with served() as (_, dispatcher, _group):
            body = json.dumps(TEXT | {"prompt": "word " * 1000, "stream": stream}).encode()
            has_left = asyncio.Event()
            parts = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive():
                if parts:
                    return parts.pop()
                await has_left.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                pass

            scope = {
                "type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b"",
                "http_version": "1.1", "scheme": "http", "asgi": {"version": "3.0", "spec_version": "2.3"},
            }  # fmt: skip
            scope["headers"] = [(b"content-type", b"application/json")]
            call = asyncio.create_task(build_app(dispatcher)(scope, receive, send))
            await asyncio.sleep(0.1)
            assert dispatcher.controller.num_open == 1
            has_left.set()
            await asyncio.wait_for(call, 2)
            assert dispatcher.controller.num_open == 0
            assert dispatcher.controller.counts["cancelled"] == 1

    asyncio.run(scene())


def test_an_unexpected_error_in_a_stream_is_logged_and_not_told(caplog):
    async def told():
        yield 0, object()  # no chunk of an answer

    async def scene():
        return [body async for body in bodies(told(), None, None, (False, True))]  # type: ignore[arg-type]

    [body] = asyncio.run(scene())
    assert body["error"]["message"] == "the server failed to answer this request"
    assert "AttributeError" in caplog.text
