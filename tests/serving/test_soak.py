"""Many clients at once, good, broken and impatient: nobody hurts anybody else, and nothing is left over."""

import asyncio
import random
from contextlib import suppress

import pytest

from paceline.serving.settings import Settings
from paceline.types import SamplingParams
from tests.serving.conftest import MODEL
from tests.serving.traffic import mutated

GOOD = {"model": MODEL, "prompt": "abcabcabc", "temperature": 0, "max_tokens": 16, "ignore_eos": True}
COMPLETIONS = "/v1/completions"
JSON_TYPE = {"content-type": "application/json"}


async def impatient(client, rng):
    """Reads a little of a long answer and goes away."""
    body = GOOD | {"stream": True, "max_tokens": 300, "temperature": 1}
    async with asyncio.timeout(rng.uniform(0.001, 0.05)):
        await client.post(COMPLETIONS, json=body)


@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_hurts_anybody(serving, make_llm, seed):
    rng = random.Random(seed)
    expected = make_llm().generate("abcabcabc", SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))[0].text

    async def one(client, number, seats):
        async with seats:
            if number % 3 == 0:
                return "good", await client.post(COMPLETIONS, json=GOOD)
            if number % 3 == 1:
                return "wrong", await client.post(COMPLETIONS, content=mutated(rng, GOOD), headers=JSON_TYPE)
            with suppress(TimeoutError):
                await impatient(client, rng)
            return "gone", None

    async def scene():
        async with serving(Settings(max_queue=200)) as client:
            seats = asyncio.Semaphore(16)
            answers = await asyncio.gather(*(one(client, number, seats) for number in range(150)))
            async with asyncio.timeout(20):
                while (state := (await client.get("/api/state")).json())["metrics"][MODEL]["num_requests_running"]:
                    await asyncio.sleep(0.02)
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            return answers, state, client.app.front.gate.num_inside, len(others)

    answers, state, inside, num_tasks = asyncio.run(scene())
    good = [answer.json()["choices"][0]["text"] for kind, answer in answers if kind == "good"]
    assert good == [expected] * 50
    wrong = [answer for kind, answer in answers if kind == "wrong"]
    assert {answer.status_code for answer in wrong} <= {200, 400, 404}
    assert sum(answer.status_code == 400 for answer in wrong) > 10
    assert all("error" in answer.json() for answer in wrong if answer.status_code != 200)
    assert (inside, num_tasks) == (0, 0)
    assert state["metrics"][MODEL]["num_requests_waiting"] == 0
    assert state["metrics"][MODEL]["kv_cache_usage_perc"] == 0
