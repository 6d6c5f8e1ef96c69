"""Requests as other programs send them, recorded from the programs themselves (docs/clients.md), get whole answers."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.serving.conftest import MODEL, events

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded.jsonl").read_text().splitlines()]
NAMES = [f"{each['client']} {each['path']} {n}".replace(" ", "_") for n, each in enumerate(RECORDED)]

SEEDED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def text_of(path, body, answer):
    """What an answer says, however it is told."""
    if body.get("stream"):
        choices = [choice for event in events(answer) for choice in event["choices"]]
        assert choices[-1]["finish_reason"] in ("stop", "length")
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
    told = answer.json()
    if path == "/v1/messages":
        return told["content"][0]["text"]
    if path == "/v1/responses":
        return told["output"][0]["content"][0]["text"]
    return "".join(json.dumps(choice.get("message") or choice["text"]) for choice in told["choices"])


@pytest.mark.parametrize("each", RECORDED, ids=NAMES)
def test_a_recorded_request_is_answered(each, serving):
    if {"response_format", "tools"} & set(each.get("body", ())):
        pytest.importorskip("llguidance")

    async def scene():
        async with serving() as client:
            body = each.get("body")
            body = body and body | {"model": MODEL}
            if each["path"] in SEEDED:  # else a text now and then ends before it begins
                body = {"seed": 1} | body
            return await client.request(each["method"], each["path"], json=body)

    answer = asyncio.run(scene())
    assert answer.status_code == 200, answer.text
    if each["path"].startswith("/v1/") and "body" in each:
        assert text_of(each["path"], each["body"], answer)
        if each["body"].get("stream_options", {}).get("include_usage"):
            assert events(answer)[-1]["usage"]["completion_tokens"] > 0


def test_every_program_is_there():
    counts = Counter(each["client"].split()[0] for each in RECORDED)
    assert set(counts) == {"langchain-openai", "litellm", "guidellm", "aiperf", "vllm", "lm-eval", "open-webui"}
