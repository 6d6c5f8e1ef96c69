"""Cached prompts are shared within a salt and never across; the salt is the request's own and its key's."""

import asyncio

import pytest

from paceline.serving.settings import Settings
from tests.serving.conftest import MODEL

TEXT = {"model": MODEL, "prompt": "abcabcabc" * 12, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
KEYS = ("one", "two")


def cached(serving, settings, *asked):
    """Tokens found in the cache by requests one after the other, each (key, salt); all must say the same."""

    async def scene():
        async with serving(settings, speculative="suffix") as client:
            counts, texts = [], set()
            for key, salt in asked:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                answer = await client.post("/v1/completions", json=TEXT | {"cache_salt": salt}, headers=headers)
                assert answer.status_code == 200, answer.text
                counts.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
                texts.add(answer.json()["choices"][0]["text"])
            assert len(texts) == 1
            return [count > 0 for count in counts]

    return asyncio.run(scene())


def test_a_salt_of_ones_own(serving):
    asked = [("", None), ("", None), ("", "x"), ("", "x"), ("", "y"), ("", None)]
    assert cached(serving, None, *asked) == [False, True, False, True, False, True]


@pytest.mark.parametrize("shared", [False, True])
def test_keys_share_nothing_unless_the_operator_says_so(serving, shared):
    asked = [("one", None), ("two", None), ("two", None), ("one", "x"), ("two", "x")]
    found = cached(serving, Settings(api_keys=KEYS, shared_cache=shared), *asked)
    assert found == [False, shared, True, False, shared]


def test_the_salt_of_other_protocols_counts_too(serving):
    async def scene():
        async with serving() as client:
            body = {"model": MODEL, "input": "abcabcabc" * 12, "max_output_tokens": 4}
            answers = [await client.post("/v1/responses", json=body | {"cache_salt": s}) for s in ("x", "x", "y")]
            return [answer.json()["usage"]["input_tokens_details"]["cached_tokens"] > 0 for answer in answers]

    assert asyncio.run(scene()) == [False, True, False]
