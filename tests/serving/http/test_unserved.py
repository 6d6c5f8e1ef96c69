"""Addresses that are not served say what to use instead, which is served."""

import asyncio
import re

import pytest

from paceline.serving.http.unserved import _INSTEAD, unserved

LIST = "docs/serving.md lists what is served"


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/api/chat", "is not served; use /v1/chat/completions; "),
        ("POST", "/api/chat/", "is not served; use /v1/chat/completions; "),
        ("POST", "/v1/audio/transcriptions", "is not served; there is no speech here, only text; "),
        ("DELETE", "/v1/responses/resp_1", "is not served; nothing is stored: "),
        ("POST", "/v1/v1/chat/completions", "is not served; leave out one /v1; "),
        ("GET", "/v1", "is not served; this is where addresses begin, such as /v1/chat/completions; "),
        ("GET", "/v1/other", "is not served; docs"),
        ("GET", "/api", "is not served; docs"),
        ("GET", "/", "is not served; docs"),
    ],
)
def test_an_address_of_another_server_says_what_to_use(method, path, told):
    said = unserved(method, path)
    assert said.startswith(f"{method} {path}: {told}") and said.endswith(LIST)


def test_what_is_told_is_true_of_the_server(serving):
    instead = set(re.findall(r"(?:use|or|then) (/[\w/-]+)", " ".join(_INSTEAD.values())))

    async def scene():
        async with serving() as client:
            served = {path for path in instead if (await client.get(path)).status_code in (200, 405)}
            below = {path: (await client.post(f"{path}/x" if path == "/v1/responses" else path)) for path in _INSTEAD}
            wrong = await client.get("/v1/chat/completions")
            return served, below, wrong

    served, answers, wrong = asyncio.run(scene())
    assert len(instead) > 6 and served == instead
    assert {path for path, answer in answers.items() if answer.status_code != 404} == set()
    assert all(LIST in answer.json()["error"]["message"] for answer in answers.values())
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["message"] == "GET /v1/chat/completions: is served with POST only"
