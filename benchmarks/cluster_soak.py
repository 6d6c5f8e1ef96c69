"""Five minutes of faults at 80 % load: checks that no accepted request of a cluster is lost, garbled or answered twice.

A real server (`paceline serve --cluster`) runs on a local Ray, and clients in this process. Workers are killed
(kill -9) again and again, and a burst fills all queues once. The server itself is restarted twice: with SIGTERM, after
which it first answers accepted requests, and with kill -9, which loses all running requests.

    python benchmarks/cluster_soak.py
    python benchmarks/cluster_soak.py --seconds 60 --every 15 --load 0.5

Every answer must be the text that the model gives alone, with one end. A request counts as accepted once its answer
has begun; one that is refused (429, 503, or no connection at all) is not. Exits with 1 when one that was accepted is
lost, garbled or answered twice. The last line of standard output is one JSON object.
"""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
from common import console, finish, show

from paceline import LLM, SamplingParams
from paceline.serving.http.run import bind

TEXTS = ["Count: 1, 2, 3,", "The days of the week are", "Repeat: wool, wool,", "Once upon a time", "2 + 2 ="]
NUM_KINDS = 20
MODEL = "m"
START_SECONDS = 180.0
"""Seconds in which a server must be ready."""
END_SECONDS = 90.0
"""Seconds in which all of a server's processes must end. After a kill -9 two agents of Ray stay for 61 s."""
SERVE = "from paceline.cli.main import main; main()"


def body_of(number: int, max_tokens: int) -> dict[str, Any]:
    """One of `NUM_KINDS` requests: greedy, or with a seed."""
    kind = number % NUM_KINDS
    more = {"temperature": 0} if kind % 2 else {"temperature": 1, "seed": kind}
    return {"prompt": TEXTS[kind % len(TEXTS)], "max_tokens": max_tokens, "ignore_eos": True} | more


def expected_texts(args: argparse.Namespace) -> list[str]:
    """The model's answer to each kind of request when it runs alone."""
    bodies = [body_of(number, args.max_tokens) for number in range(NUM_KINDS)]
    params = [SamplingParams(**{k: v for k, v in body.items() if k != "prompt"}) for body in bodies]
    with LLM(args.model, dtype=args.dtype, num_threads=1) as llm:
        return [output.text for output in llm.generate([body["prompt"] for body in bodies], params)]


class Cluster:
    """The server's process, which can be restarted."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        with bind("127.0.0.1", 0) as free:
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._folder, self._process = folder, None
        plan = {"groups": [[1, 1, [0]]] * args.groups, "models": [{"name": MODEL, "path": args.model}]}
        (folder / "plan.json").write_text(json.dumps(plan))
        options = {"--cluster": folder / "plan.json", "--events": folder / "events.jsonl", "--port": self.port,
                   "--num-cpus": args.num_cpus, "--dtype": args.dtype, "--draft": "none",
                   "--max-restarts": 1000, "--max-queue": args.max_queue}  # fmt: skip
        given = [str(part) for pair in options.items() for part in pair]
        self._command = [sys.executable, "-c", SERVE, "serve", *given]

    async def start(self) -> None:
        """Start the server and wait until it answers."""
        log = open(self._folder / "server.log", "a")  # noqa: SIM115
        self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        log.close()
        began = time.monotonic()
        async with httpx.AsyncClient() as client:
            while time.monotonic() - began < START_SECONDS and self._process.poll() is None:
                try:
                    if (await client.get(f"{self.address}/ready", timeout=5)).status_code == 200:
                        return
                except httpx.HTTPError:
                    await asyncio.sleep(0.2)
        raise SystemExit(f"the server does not start:\n{(self._folder / 'server.log').read_text()[-2000:]}")

    async def end(self, how: signal.Signals) -> int:
        """Send the signal; returns how many of the server's processes are left after at most `END_SECONDS`."""
        assert self._process is not None
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(how)
        await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(psutil.wait_procs, family, END_SECONDS)
        left = [process for process in family if _runs(process)]
        for process in left:
            console.print(f"left: {process.pid} {process.name()} {' '.join(process.cmdline())[:80]}", highlight=False)
        return len(left)

    def workers(self) -> list[psutil.Process]:
        """Processes of the groups."""
        assert self._process is not None
        found = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                if "GroupActor" in process.name() or "GroupActor" in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def events(self) -> list[dict[str, Any]]:
        """The events of all runs of the server."""
        path = self._folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _runs(process: psutil.Process) -> bool:
    """Whether the process runs; a zombie, whose parent may never reap it, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class Clients:
    """Sends requests, each from a new client, and counts their outcomes."""

    def __init__(self, address: str, expected: Sequence[str], args: argparse.Namespace) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(base_url=address, timeout=600, limits=limits)
        self._expected, self._args = expected, args
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.num_open = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, number: int) -> None:
        """Send request `number`; every other one is a stream."""
        task = asyncio.create_task(self._one(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def all_ended(self) -> None:
        """Wait until all requests have ended."""
        await asyncio.gather(*self._tasks)

    async def _one(self, number: int) -> None:
        began, self.num_open = time.monotonic(), self.num_open + 1
        how = await (self._stream(number) if number % 2 else self._whole(number))
        self.num_open -= 1
        self.ended[how] += 1
        if how in ("lost", "garbled", "twice", "cut"):
            self.wrong.append(f"{how}: request {number}, {time.monotonic() - began:.1f} s after it was sent")

    async def _whole(self, number: int) -> str:
        try:
            answer = await self._client.post("/v1/completions", json=self._body(number))
        except httpx.ConnectError:
            return "not connected"
        except httpx.HTTPError:
            return "cut"
        if answer.status_code != 200:
            return self._refused(answer)
        choices = answer.json()["choices"]
        return self._judged(number, "".join(choice["text"] for choice in choices), len(choices))

    async def _stream(self, number: int) -> str:
        text, ends = [], 0
        try:
            async with self._client.stream("POST", "/v1/completions", json=self._body(number)) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    return self._refused(answer)
                async for line in answer.aiter_lines():
                    if line == "data: [DONE]":
                        ends += 1
                    elif line.startswith("data: "):
                        event = json.loads(line[6:])
                        if "error" in event:
                            return "lost"
                        text.append("".join(choice["text"] for choice in event["choices"]))
        except httpx.ConnectError:
            return "not connected"
        except httpx.HTTPError:
            return "cut"
        return self._judged(number, "".join(text), ends)

    def _body(self, number: int) -> dict[str, Any]:
        return {"model": MODEL, "stream": bool(number % 2)} | body_of(number, self._args.max_tokens)

    @staticmethod
    def _refused(answer: httpx.Response) -> str:
        kind = answer.json()["error"]["type"]
        return "refused" if kind in ("request_rejected", "rate_limit_error") else "lost"

    def _judged(self, number: int, text: str, ends: int) -> str:
        if ends != 1:
            return "twice" if ends else "lost"
        return "answered" if text == self._expected[number % NUM_KINDS] else "garbled"


class Watch:
    """A stopwatch that leaves out times in which this process was suspended, because the server was suspended too."""

    def __init__(self) -> None:
        self.seconds, self._last = 0.0, time.monotonic()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            self.seconds, self._last = self.seconds + min(now - self._last, 1.0), now


async def capacity(clients: Clients, seconds: float = 15.0, at_once: int = 32) -> float:
    """Answers per second with `at_once` running requests."""
    watch, before = Watch(), clients.ended["answered"]
    while watch.seconds < seconds or clients.ended["answered"] == before:  # a busy machine answers late
        while clients.num_open < at_once:
            clients.ask(random.randrange(NUM_KINDS))
            await asyncio.sleep(0)
        await asyncio.sleep(0.005)
    rate = (clients.ended["answered"] - before) / watch.seconds
    await clients.all_ended()
    return rate


async def faults(cluster: Cluster, clients: Clients, args: argparse.Namespace, told: dict[str, Any]) -> None:
    """Kill a worker every ``--every`` seconds; in between fill the queues, and restart the server in both ways."""
    rng, watch, turn = random.Random(args.seed), Watch(), 0
    special = {round(args.seconds * part): what for part, what in
               ((0.3, "burst"), (0.5, "restart"), (0.75, "kill -9 of the server"))}  # fmt: skip
    while (now := watch.seconds) < args.seconds:
        due = [at for at in special if at <= now]
        if due:
            what = special.pop(due[0])
            console.print(f"{now:.0f} s: {what}, {clients.num_open} requests open", highlight=False)
            if what == "burst":
                for number in range(args.burst):
                    clients.ask(number)
            else:
                told[f"open at {what}"], cut = clients.num_open, clients.ended["cut"]
                told[f"processes left after {what}"] = await cluster.end(
                    signal.SIGTERM if what == "restart" else signal.SIGKILL
                )
                await asyncio.sleep(1)
                told[f"cut by {what}"] = clients.ended["cut"] - cut
                await cluster.start()
        elif now > turn * args.every:
            turn = 1 + int(now / args.every)
            workers = cluster.workers()
            if workers:
                rng.choice(workers).kill()
                told["workers killed"] = told.get("workers killed", 0) + 1
        await asyncio.sleep(0.2)


async def soak(args: argparse.Namespace) -> dict[str, Any]:
    expected = expected_texts(args)
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), args)
        await cluster.start()
        clients, rng, told = Clients(cluster.address, expected, args), random.Random(args.seed), {}
        rate = await capacity(clients)
        console.print(f"{rate:.1f} answers per second at most", highlight=False)
        working = asyncio.create_task(faults(cluster, clients, args, told))
        number, watch = 0, Watch()
        while watch.seconds < args.seconds:
            await asyncio.sleep(rng.expovariate(args.load * rate))
            clients.ask(number := number + 1)
        await working
        await clients.all_ended()
        told["processes left at the end"] = await cluster.end(signal.SIGTERM)
        events = cluster.events()
    happened = Counter(event["event"] for event in events)
    counts = [{k: v for k, v in e.items() if k not in ("time", "event")} for e in events if e["event"] == "stopped"]
    return {
        "capacity": rate, "ended": dict(clients.ended), "wrong": clients.wrong, "told": told,
        "events": dict(happened), "counts": counts,
    }  # fmt: skip


def main() -> None:
    args = parse()
    found = asyncio.run(soak(args))
    told = found["told"]
    fails = {name: found["ended"].get(name, 0) for name in ("lost", "garbled", "twice")}
    fails["cut, except by kill -9 of the server"] = found["ended"].get("cut", 0) - told.get(
        "cut by kill -9 of the server", 0
    )
    fails["processes left"] = sum(count for name, count in told.items() if name.startswith("processes left"))
    show("How requests ended", ["", "number"], sorted(found["ended"].items()))
    show("What happened", ["", "number"], [*told.items(), *sorted(found["events"].items())])
    show("What must be 0", ["", "number"], list(fails.items()))
    finish(found | {"fails": fails, "seconds": args.seconds, "load": args.load})
    sys.exit(1 if any(fails.values()) else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--num-cpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--load", type=float, default=0.8, help="of the rate that 32 requests at once reach")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between kills of workers")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--max-queue", type=int, default=64)
    parser.add_argument("--burst", type=int, default=600, help="requests that fill all queues")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
