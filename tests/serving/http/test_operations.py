"""What operators rely on: probes, limits, keys, hosts, logs, metrics, pings, and how a server goes down."""

import asyncio
import io
import json
import time
from contextlib import AsyncExitStack

import pytest

from paceline.errors import InvalidParameter
from paceline.serving.http import stream
from paceline.serving.http.gate import Gate
from paceline.serving.http.refusals import HttpRefusal
from paceline.serving.http.run import bind
from paceline.serving.http.stream import PING, EventStream, event
from paceline.serving.models import local
from paceline.serving.settings import Settings, check_exposure, local_names, read_keys
from tests.serving.conftest import MODEL

TEXT = {"model": MODEL, "prompt": "abcabcabc", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
COMPLETIONS = "/v1/completions"


def test_probes_models_and_version(serving):
    async def scene():
        async with serving() as client:
            for path in ("/health", "/ready", "/version", "/v1/models", f"/v1/models/{MODEL}", "/metrics"):
                assert (await client.head(path)).status_code == 200
                assert (await client.get(path)).status_code == 200
            entry = (await client.get(f"/v1/models/{MODEL}")).json()
            assert entry["id"] == MODEL and entry["max_model_len"] == 512
            assert 0 <= time.time() - entry["created"] < 600
            assert (await client.get("/v1/models/other")).status_code == 404
            await client.post(COMPLETIONS, json=TEXT)
            state = (await client.get("/api/state")).json()
            assert state["models"][MODEL]["drafter"] == "ngram"
            assert state["metrics"][MODEL]["generation_tokens"] == 8

    asyncio.run(scene())


def test_metrics_carry_the_served_name_and_a_prefix_of_choice(serving):
    async def scene():
        async with serving(Settings(metrics_prefix="vllm")) as client:
            await client.post(COMPLETIONS, json=TEXT)
            text = (await client.get("/metrics")).text
            assert f'vllm:generation_tokens_total{{model_name="{MODEL}"}} 8.0' in text
            assert 'vllm:http_requests_total{path="/v1/completions",status="200"} 1' in text
            assert "paceline:" not in text

    asyncio.run(scene())


def test_a_full_queue_is_429_and_says_when_to_come_again(serving):
    async def scene():
        async with serving(Settings(max_running=2, max_queue=1)) as client:
            body = TEXT | {"max_tokens": 150}
            answers = await asyncio.gather(*(client.post(COMPLETIONS, json=body) for _ in range(6)))
            statuses = sorted(answer.status_code for answer in answers)
            assert statuses == [200, 200, 200, 429, 429, 429]
            late = next(answer for answer in answers if answer.status_code == 429)
            assert late.headers["retry-after"] == "1" and late.json()["error"]["type"] == "rate_limit_error"
            many = TEXT | {
                "prompt": ["a"] * 2,
                "n": 2,
                "temperature": 1,
            }  # more than there is room: alone or not at all
            one, four = await asyncio.gather(*(client.post(COMPLETIONS, json=each) for each in (body, many)))
            assert (one.status_code, four.status_code) == (200, 429)
            assert len((await client.post(COMPLETIONS, json=many)).json()["choices"]) == 4
            assert "paceline:http_requests_turned_away_total 6" in (await client.get("/metrics")).text
            assert client.app.front.gate.num_inside == 0

    asyncio.run(scene())


def test_keys_are_asked_for(serving, tmp_path):
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\n\nsecond\n")
    assert read_keys(path) == ("first", "second")

    async def scene():
        async with serving(Settings(api_keys=read_keys(path))) as client:
            assert (await client.get("/health")).status_code == (await client.get("/ready")).status_code == 200
            for headers in ({}, {"authorization": "Bearer third"}, {"authorization": "first"}):
                refused = await client.post(COMPLETIONS, json=TEXT, headers=headers)
                assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
                assert (await client.get("/metrics", headers=headers)).status_code == 401
            for headers in ({"authorization": "Bearer second"}, {"x-api-key": "first"}):
                assert (await client.post(COMPLETIONS, json=TEXT, headers=headers)).status_code == 200

    asyncio.run(scene())


def test_only_known_hosts_and_origins_are_answered(serving):
    async def scene():
        settings = Settings(allowed_hosts=local_names("127.0.0.1"), allowed_origins=("https://ours.example",))
        async with serving(settings) as client:
            for host, status in (
                ("127.0.0.1:8000", 200), ("localhost", 200), ("LocalHost:9", 200), ("evil.example", 421),
                ("localhost.evil.example", 421), ("evil.example:80", 421), ("", 421),
            ):  # fmt: skip
                assert (await client.get("/version", headers={"host": host})).status_code == status
            own = await client.get("/version", headers={"host": "localhost", "origin": "https://ours.example"})
            assert own.headers["access-control-allow-origin"] == "https://ours.example"
            other = await client.get("/version", headers={"host": "localhost", "origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers
            assert own.headers["access-control-expose-headers"] == "X-Request-Id, Retry-After"
            asked = "authorization,content-type,x-stainless-lang,anthropic-version"
            preflight = {"origin": "https://ours.example", "access-control-request-method": "POST"}
            for wanted, granted in (
                (asked, asked),
                ("a\u00e9", "authorization, content-type, x-api-key"),
                (None, None),
            ):
                wish = preflight | (
                    {} if wanted is None else {"access-control-request-headers": wanted.encode("latin-1")}
                )
                leave = await client.options("/v1/chat/completions", headers=wish)
                assert leave.status_code == 204
                assert granted is None or leave.headers["access-control-allow-headers"] == granted
            foreign = preflight | {"origin": "https://other.example", "access-control-request-headers": asked}
            leave = await client.options("/v1/chat/completions", headers=foreign)
            assert leave.status_code != 204 and "access-control-allow-headers" not in leave.headers

    asyncio.run(scene())


def test_nobody_listens_to_other_machines_by_accident(tmp_path):
    check_exposure("127.0.0.1", (), False)
    check_exposure("0.0.0.0", ("key",), False)
    check_exposure("0.0.0.0", (), True)
    with pytest.raises(InvalidParameter, match="host"):
        check_exposure("0.0.0.0", (), False)
    with pytest.raises(InvalidParameter, match="api_key_file"):
        read_keys(tmp_path)
    taken = bind("127.0.0.1", 0)
    taken.listen()
    with pytest.raises(InvalidParameter, match="port"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(InvalidParameter, match="port"):
        bind("127.0.0.1", 99_999)
    taken.close()


def test_every_request_is_a_line_without_its_words(serving):
    log = io.StringIO()

    async def scene():
        async with serving(log=log) as client:
            answer = await client.post(COMPLETIONS, json=TEXT, headers={"x-request-id": "a b/c" + "x" * 99})
            assert answer.headers["x-request-id"] == "abc" + "x" * 61
            await client.get("/nowhere")

    asyncio.run(scene())
    first, second = map(json.loads, log.getvalue().splitlines())
    assert (first["path"], first["status"], first["model"]) == (COMPLETIONS, 200, MODEL)
    assert first["usage"]["completion_tokens"] == 8
    assert second["status"] == 404 and first["id"] != second["id"]
    assert "abcabc" not in log.getvalue()


def test_an_answer_whose_time_is_up_ends_with_what_it_has(serving):
    async def scene():
        async with serving(Settings(request_timeout=0.05)) as client:
            answer = (await client.post(COMPLETIONS, json=TEXT | {"max_tokens": 480})).json()
            assert answer["choices"][0]["finish_reason"] in ("timeout", "length")

    asyncio.run(scene())


class Wire:
    """One request's end of ASGI: what was sent, and a client that may stop reading or leave."""

    def __init__(self) -> None:
        self.sent, self.reads, self.left = [], asyncio.Event(), asyncio.Event()
        self.reads.set()

    async def send(self, message):
        await self.reads.wait()
        self.sent.append(message.get("body", b"").decode())

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}


def stream_of(told, gate, closed, ping=0.05):
    stack = AsyncExitStack()
    stack.callback(lambda: closed.append(True))
    return EventStream(told, gate, ping, event, stack)


async def slowly(*texts):
    for text in texts:
        yield text
        await asyncio.sleep(0.2)
    await asyncio.sleep(60)


def test_silence_is_pinged_and_a_closing_server_ends_streams():
    async def scene():
        gate, wire, closed = Gate(1), Wire(), []
        answer = asyncio.ensure_future(stream_of(slowly("first", "second"), gate, closed)({}, wire.receive, wire.send))
        while "second" not in wire.sent:
            await asyncio.sleep(0.01)
        gate.shut.set()
        await asyncio.wait_for(answer, 5)
        assert wire.sent[1] == "first" and PING in wire.sent[2 : wire.sent.index("second")]
        assert "shut down before" in wire.sent[-1] and closed == [True]
        assert PING.startswith(":") and PING.endswith("\n\n")

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["leaves", "stops reading", "never reads"])
def test_who_does_not_read_holds_no_place(how, monkeypatch):
    monkeypatch.setattr(stream, "_PATIENCE", 0.1)

    async def scene():
        wire, closed = Wire(), []
        if how == "never reads":
            wire.reads.clear()
        answer = asyncio.ensure_future(stream_of(slowly("a", "b", "c"), Gate(1), closed)({}, wire.receive, wire.send))
        if how != "never reads":
            while "a" not in wire.sent:
                await asyncio.sleep(0.01)
        wire.left.set() if how == "leaves" else wire.reads.clear()
        await asyncio.wait_for(answer, 5)
        assert closed == [True]

    asyncio.run(scene())


def test_an_error_of_the_stream_itself_is_not_hidden():
    async def broken():
        yield "a"
        raise ZeroDivisionError

    async def scene():
        wire, closed = Wire(), []
        with pytest.raises(ZeroDivisionError):
            await stream_of(broken(), Gate(1), closed)({}, wire.receive, wire.send)
        assert closed == [True]

    asyncio.run(scene())


def test_a_step_that_hangs_is_seen(serving, monkeypatch):
    monkeypatch.setattr(local, "_HUNG", 0.05)

    async def scene():
        async with serving() as client:
            assert (await client.get("/health")).json() == {"status": "ok"}
            engine = client.app.front.backend._worker._llms[MODEL]._llm.engine
            step = engine.step
            monkeypatch.setattr(engine, "step", lambda: time.sleep(0.3) or step())
            answer = asyncio.create_task(client.post(COMPLETIONS, json=TEXT | {"max_tokens": 1}))
            await asyncio.sleep(0.2)
            hung = await client.get("/health")
            assert hung.status_code == 503 and "present step" in hung.json()["reason"]
            assert (await answer).status_code == 200
            assert (await client.get("/health")).status_code == 200

    asyncio.run(scene())


def test_draining_lets_nobody_in_and_waits_for_those_inside(serving):
    async def scene():
        async with serving() as client:
            gate = client.app.front.gate
            answer = asyncio.create_task(client.post(COMPLETIONS, json=TEXT | {"max_tokens": 60}))
            while not gate.num_inside:
                await asyncio.sleep(0.001)
            draining = asyncio.create_task(gate.drain(30))
            await asyncio.sleep(0)
            assert (await client.get("/ready")).status_code == 503
            assert (await client.get("/health")).status_code == 200
            refused = await client.post(COMPLETIONS, json=TEXT)
            assert refused.status_code == 503
            await draining
            assert (await answer).status_code == 200 and not gate.shut.is_set()

    asyncio.run(scene())


def test_a_gate_counts():
    async def scene():
        gate = Gate(2)
        with gate.inside(2):
            assert gate.is_full
            with pytest.raises(HttpRefusal), gate.inside():
                raise AssertionError
            await gate.drain(0)
            assert gate.shut.is_set()
        assert gate.num_inside == 0 and gate.num_turned_away == 1

    asyncio.run(scene())
