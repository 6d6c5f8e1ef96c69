"""Two thousand requests, 32 at once, a third of them left in mid-stream, and a thousand broken bodies among them.

Every client that stays must get the text that the model gives alone, and no client a status of 5xx. Afterwards nothing
may be left: no request, no page of the cache, no task, and no memory that grows with the number of requests.

    python benchmarks/server_soak.py
    python benchmarks/server_soak.py --requests 60 --mutated 30 --json

Exits with 1 when any of that fails. The last line of standard output is one JSON object.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
from common import console, finish, show
from served import JSON_TYPE, NAME, Served, elsewhere, served

from paceline import LLM, SamplingParams
from paceline.models.numba_executor.executor import NumbaCache
from paceline.serving.settings import Settings

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.serving.traffic import mutated

AT_ONCE = 32
TEXTS = ["Count: 1, 2, 3,", "The days of the week are", "Repeat: wool, wool,", "Once upon a time", "2 + 2 ="]
LARGEST_GROWTH = 24 << 20
"""Bytes of resident memory that the second half of a soak may add: allocators are not exact, leaks grow on."""


def body_of(number: int) -> dict[str, Any]:
    """Every other request is greedy, the others have a seed."""
    more = {"temperature": 0} if number % 2 else {"temperature": 1, "seed": number % 5}
    return {"model": NAME, "prompt": TEXTS[number % len(TEXTS)], "max_tokens": 24, "ignore_eos": True} | more


def make_traffic(
    address: str, numbers: range, num_mutated: int, seed: int
) -> tuple[list[tuple[int, str]], dict[str, int]]:
    """(number, text) of the requests that stayed, and how many ended how."""
    rng = random.Random(seed)

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        asked = body_of(number) | {"stream": True, "max_tokens": 300}
        async with client.stream("POST", "/v1/completions", json=asked) as answer:
            pieces = rng.randrange(6)
            async for line in answer.aiter_lines():
                pieces -= line.startswith("data: ")
                if pieces < 0:
                    return

    async def one(client: httpx.AsyncClient, number: int | None) -> tuple[str, Any]:
        if number is None:
            sent = await client.post("/v1/completions", content=mutated(rng, body_of(1)), headers=JSON_TYPE)
            return f"mutated {sent.status_code}", None
        if number % 3 == 0:
            await leave(client, number)
            return "left", None
        answer = await client.post("/v1/completions", json=body_of(number))
        said = (number, answer.json()["choices"][0]["text"]) if answer.status_code == 200 else None
        return f"stayed {answer.status_code}", said

    async def run() -> tuple[list[tuple[int, str]], dict[str, int]]:
        work: list[int | None] = [*numbers, *[None] * num_mutated]
        rng.shuffle(work)
        seats, ended, said = asyncio.Semaphore(AT_ONCE), Counter[str](), []

        async def seated(client: httpx.AsyncClient, number: int | None) -> None:
            async with seats:
                kind, text = await one(client, number)
                ended[kind] += 1
                said.extend([] if text is None else [text])

        async with httpx.AsyncClient(base_url=address, timeout=600) as client:
            await asyncio.gather(*(seated(client, number) for number in work))
        return said, dict(ended)

    return asyncio.run(run())


def left_over(server: Served) -> dict[str, float]:
    """What the server still holds once it is idle; waits a minute for that."""
    ends, state = time.monotonic() + 60, {}
    while time.monotonic() < ends:
        state = httpx.get(f"{server.address}/api/state", timeout=60).json()
        metrics = state["metrics"][NAME]
        if not metrics["num_requests_running"] + metrics["num_requests_waiting"] + state["requests"]:
            break
        time.sleep(0.1)
    metrics = state["metrics"][NAME]
    return {
        "requests": state["requests"] + metrics["num_requests_running"] + metrics["num_requests_waiting"],
        "pages": metrics["kv_cache_usage_perc"],
        "tasks": server.num_tasks(),
        "memory": float(psutil.Process().memory_info().rss),
    }


def take_whole_cache(llm: LLM) -> None:
    """Write to all pages of the cache: the system gives a page its memory when it is used first, which is no leak."""
    cache = cast(NumbaCache, llm.engine.cache)
    cache.keys.fill(0)
    cache.values.fill(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--mutated", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="no table")
    args = parser.parse_args()
    llm = LLM(args.model, num_threads=args.threads)
    params = [
        SamplingParams(**{k: v for k, v in body_of(i).items() if k not in ("model", "prompt")}) for i in range(10)
    ]
    plain = llm.drafting_with(None).generate([TEXTS[i % len(TEXTS)] for i in range(10)], params)
    expected = [output.text for output in plain]
    llm.engine.grammars.warm_up()
    take_whole_cache(llm)
    half, ended, after, wrong, before = args.requests // 2, Counter[str](), [], 0, {}
    with served(llm, Settings(max_queue=1000)) as server, elsewhere() as work:
        work(make_traffic, server.address, range(12), 12, 99)
        before = left_over(server)
        for part in (range(half), range(half, args.requests)):
            said, kinds = work(make_traffic, server.address, part, args.mutated // 2, args.seed + part.start)
            ended.update(kinds)
            wrong += sum(text != expected[number % 10] for number, text in said)
            after.append(left_over(server))
            console.print(f"{part.stop} requests: {after[-1]}")
    grown = after[1]["memory"] - after[0]["memory"]
    fails = {
        "other text": wrong,
        "5xx": sum(count for kind, count in ended.items() if kind.split()[-1].startswith("5")),
        "refused": sum(count for kind, count in ended.items() if kind.startswith("stayed") and kind != "stayed 200"),
        "requests left": after[1]["requests"],
        "pages left": after[1]["pages"],
        "tasks left": max(0, after[1]["tasks"] - before["tasks"]),
        "memory": int(grown > LARGEST_GROWTH),
    }
    if not args.json:
        show("How requests ended", ["", "number"], sorted(ended.items()))
        show("What must be 0", ["", ""], list(fails.items()))
        console.print(f"memory: {[round(each['memory'] / 2**20) for each in (before, *after)]} MiB at start, half, end")
    finish({"benchmark": "server_soak", "ended": ended, "fails": fails, "before": before, "after": after})
    sys.exit(1 if any(fails.values()) else 0)


if __name__ == "__main__":
    main()
