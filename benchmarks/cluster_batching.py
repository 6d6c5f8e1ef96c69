"""Measures the overhead of a cluster's group over its bare engine: both run the same requests in turn, in one process.

    python benchmarks/cluster_batching.py
    python benchmarks/cluster_batching.py --requests 16 --max-tokens 64 --rounds 5 --dtype bfloat16

The group is a worker behind the dispatcher without Ray, in this process: queues, predictions, streams and hand-over.
The ratio is of tokens per second of CPU time, which other programs disturb less than wall time. Also reported: the
speed that the group's queue learned, relative to its first measured passes. The last line of standard output is one
JSON object.
"""

import argparse
import asyncio
import time

from common import finish, median, show

from paceline.engine.async_llm import AsyncLLM
from paceline.engine.llm import LLM
from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.cluster.plan import plan_of
from paceline.serving.models.job import Job
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.models.worker import Worker
from paceline.types import SamplingParams

PROMPT = "Once upon a time there was"


class WorkerGroup:
    """A `GroupHandle` in this process, for a model that is already loaded."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._worker = Worker([ModelSpec("m", "m")], lambda _spec: llm)
        self.pass_profiles, self.generate = self._worker.pass_profiles, self._worker.stream
        self.abort, self.check = self._worker.abort, self._worker.check
        self.max_model_lens, self.metrics = self._worker.max_model_lens, self._worker.metrics

    async def start(self) -> None:
        """Nothing is left to load."""

    async def kill(self) -> None:
        """Does nothing: the caller owns the model."""


async def by_engine(llm: AsyncLLM, args: argparse.Namespace, turn: int) -> int:
    """Run all requests at once on the engine; the number of tokens."""

    async def one(number: int) -> int:
        outputs = [output async for output in llm.generate(PROMPT, params_of(args), f"bare-{turn}-{number}")]
        return sum(len(output.tokens) for output in outputs)

    return sum(await asyncio.gather(*map(one, range(args.requests))))


async def by_group(dispatcher: Dispatcher, args: argparse.Namespace, turn: int) -> int:
    """Run all requests at once through the dispatcher; the number of tokens."""

    async def one(number: int) -> int:
        job = Job(f"group-{turn}-{number}", "m", PROMPT, params=params_of(args), stream=True)
        return [chunk async for chunk in dispatcher.generate(job)][-1].num_output_tokens

    return sum(await asyncio.gather(*map(one, range(args.requests))))


def params_of(args: argparse.Namespace) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=args.max_tokens, ignore_eos=True)


async def measure(args: argparse.Namespace) -> dict:
    llm = AsyncLLM(LLM(args.model, dtype=args.dtype, num_threads=args.threads))
    dispatcher = Dispatcher(plan_of({"groups": [[1, 1, [0]]], "models": ["m"]}), [WorkerGroup(llm)])
    await dispatcher.start()
    rates: dict[str, list[float]] = {"engine": [], "group": []}
    for turn in range(args.rounds + 1):
        for name, run in (("engine", by_engine(llm, args, turn)), ("group", by_group(dispatcher, args, turn))):
            began = time.process_time()
            tokens = await run
            if turn:  # the first round warms caches
                rates[name].append(tokens / (time.process_time() - began))
    scale = dispatcher.controller.queues[0].scale  # type: ignore[attr-defined]
    await dispatcher.close()
    await llm.shutdown()
    ratio = median([group / engine for group, engine in zip(rates["group"], rates["engine"], strict=True)])
    rows = [[name, median(found), min(found), max(found)] for name, found in rates.items()]
    show(f"{args.requests} requests at once", ["by", "tokens per processor second", "least", "most"], rows)
    return {"group_over_engine": ratio, "learned_scale": scale, "requests": args.requests, "rates": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    finish(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
