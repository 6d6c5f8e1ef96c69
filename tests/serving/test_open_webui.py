"""Open WebUI's conversation with a server, step by step and read as its backend reads it (shapes from its source)."""

import asyncio
import json

import pytest

from paceline.serving.settings import Settings
from tests.serving.conftest import MODEL

CHATS = "/v1/chat/completions"
HEADERS = {
    "Authorization": "Bearer key", "Content-Type": "application/json", "X-OpenWebUI-User-Name": "Ada",
    "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Email": "ada@example.org", "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "7",
}  # fmt: skip
SAID = [{"role": "user", "content": "Name a river."}]
SETTINGS = Settings(api_keys=("key",), allowed_origins=("http://webui.example",))


def read_stream(text):
    """Its middleware: lines of data, pieces of content, reasoning and calls by index, the last usage."""
    content, calls, usage = "", {}, None
    for line in text.split("\n"):
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return content, list(calls.values()), usage
        told = json.loads(data)
        usage = told.get("usage") or usage
        for choice in told.get("choices", [])[:1]:
            delta = choice.get("delta", {})
            content += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                begun = {"id": call.get("id"), "function": {"name": "", "arguments": ""}}
                known = calls.setdefault(call["index"], begun)
                known["function"]["name"] += call["function"].get("name", "")
                known["function"]["arguments"] += call["function"].get("arguments", "")
    raise AssertionError("the stream has no end")


def test_a_chat_with_its_background_tasks(serving):
    async def scene():
        async with serving(SETTINGS) as client:
            models = (await client.get("/v1/models", headers=HEADERS)).json()
            assert [each["id"] for each in models["data"]] == [MODEL]
            body = {"stream": True, "model": MODEL, "messages": SAID, "stream_options": {"include_usage": True}}
            answer = await client.post(CHATS, json=body | {"max_tokens": 12, "temperature": 0}, headers=HEADERS)
            assert "text/event-stream" in answer.headers["content-type"]
            content, calls, usage = read_stream(answer.text)
            assert content and not calls and usage["completion_tokens"] <= 12
            task = {"model": MODEL, "stream": False, "max_tokens": 8, "messages": [
                {"role": "user", "content": f"### Task:\nGenerate a concise title.\n{content}"}]}  # fmt: skip
            title = (await client.post(CHATS, json=task, headers=HEADERS)).json()
            assert title["choices"][0]["message"]["content"] and title["usage"]["total_tokens"] > 8
            wrong = await client.post(CHATS, json=task | {"model": "gone"}, headers=HEADERS)
            assert wrong.status_code == 404 and "gone" in wrong.json()["error"]["message"]

    asyncio.run(scene())


def test_a_native_tool_call_and_its_result(serving):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"place": {"enum": ["Oslo"]}}, "required": ["place"],
              "additionalProperties": False}  # fmt: skip
    tools = [{"type": "function", "function": {"name": "get_time", "parameters": schema}}]

    async def scene():
        async with serving(SETTINGS) as client:
            body = {"stream": True, "model": MODEL, "messages": SAID, "tools": tools, "temperature": 0}
            answer = await client.post(CHATS, json=body | {"tool_choice": "required"}, headers=HEADERS)
            content, calls, _ = read_stream(answer.text)
            assert not content and json.loads(calls[0]["function"]["arguments"]) == {"place": "Oslo"}
            asked = {"role": "assistant", "content": "", "tool_calls": [{"index": 0, "type": "function", **calls[0]}]}
            result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "12:00"}
            more = body | {"messages": [*SAID, asked, result], "max_tokens": 6}
            content, _, _ = read_stream((await client.post(CHATS, json=more, headers=HEADERS)).text)
            assert content

    asyncio.run(scene())


def test_direct_connections_ask_from_the_browser(serving):
    """Which asks for leave first; an image is refused in words that can be shown."""

    async def scene():
        async with serving(SETTINGS) as client:
            wish = {"Origin": "http://webui.example", "Access-Control-Request-Method": "POST",
                    "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
            leave = await client.options(CHATS, headers=wish)
            assert leave.status_code == 204
            assert leave.headers["access-control-allow-origin"] == "http://webui.example"
            assert "authorization" in leave.headers["access-control-allow-headers"]
            picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
            body = {"model": MODEL, "messages": [{"role": "user", "content": picture}]}
            refused = await client.post(CHATS, json=body, headers=HEADERS | {"Origin": "http://webui.example"})
            assert refused.status_code == 400 and "text parts only" in refused.json()["error"]["message"]
            assert refused.headers["access-control-allow-origin"] == "http://webui.example"

    asyncio.run(scene())
