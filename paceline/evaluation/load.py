"""A reproducible load of mixed requests on one engine, with arrivals and cancellations, for tests of exactness.

Time is counted in steps of the engine, so runs are reproducible. Not for measuring speed, and not for real clients
(`async_llm.py`).
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline.engine.loop.engine import Engine
from paceline.types import CompletionOutput, RequestOutput, SamplingParams


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request of a load.

    Attributes:
        arrival_step: steps of the engine before it is added.
        abort_step: step at which it is cancelled if it still runs; None for never.
        priority: as in `Engine.add_request`.
    """

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_step: int = 0
    abort_step: int | None = None
    priority: int = 0


def make_load(
    prompts: Sequence[Sequence[int]], count: int, max_tokens: int, seed: int = 0, greedy: bool = False
) -> list[LoadRequest]:
    """`count` requests that cycle through `prompts`, with everything else drawn at random from `seed`.

    Lengths are 1 to `max_tokens`, three requests arrive per four steps on average, and every eighth is cancelled if it
    still runs. Penalties, truncations, n and priorities vary. Without `greedy` about three quarters are sampled. Every
    request has a seed of its own.
    """
    rng = random.Random(seed)
    requests, step = [], 0
    for number in range(count):
        step += rng.choice((0, 1, 3))
        length = rng.randint(1, max_tokens)
        abort = step + rng.randint(0, 2 * length) if number % 8 == 7 else None
        params = _mixed(rng, length, greedy or rng.random() < 0.25, seed=number)
        prompt = tuple(prompts[number % len(prompts)])
        requests.append(LoadRequest(prompt, params, step, abort, priority=rng.choice((0, 0, 0, 1))))
    return requests


def _mixed(rng: random.Random, length: int, greedy: bool, seed: int) -> SamplingParams:
    return SamplingParams(
        n=1 if greedy else rng.choice((1, 1, 1, 2)),
        temperature=0.0 if greedy else rng.choice((0.6, 0.9, 1.2)),
        top_p=rng.choice((1.0, 0.95)),
        top_k=rng.choice((0, 0, 40)),
        min_p=rng.choice((0.0, 0.0, 0.05)),
        repetition_penalty=rng.choice((1.0, 1.0, 1.2)),
        presence_penalty=rng.choice((0.0, 0.0, 0.4)),
        min_tokens=rng.choice((0, min(3, length))),
        max_tokens=length,
        ignore_eos=rng.random() < 0.5,
        seed=seed,
    )


def run_together(
    engine: Engine, requests: Sequence[LoadRequest], after_step: Callable[[int], None] = lambda done: None
) -> list[RequestOutput]:
    """The output of each request, run concurrently in one engine; `after_step` gets the number of finished ones."""
    outputs: dict[str, RequestOutput] = {}
    waiting = sorted(range(len(requests)), key=lambda i: requests[i].arrival_step)
    aborts = sorted((each.abort_step, i) for i, each in enumerate(requests) if each.abort_step is not None)
    step = 0
    while waiting or engine.has_unfinished_requests:
        while waiting and requests[waiting[0]].arrival_step <= step:
            each = requests[number := waiting.pop(0)]
            engine.add_request(str(number), each.prompt_token_ids, each.params, priority=each.priority)
        while aborts and aborts[0][0] <= step:
            aborted = engine.abort(str(aborts.pop(0)[1]))
            if aborted is not None:
                outputs[aborted.request_id] = aborted
        outputs |= {output.request_id: output.finished for output in engine.step() if output.finished}
        after_step(len(outputs))
        step += 1
    return [outputs[str(number)] for number in range(len(requests))]


def run_alone(engine: Engine, requests: Iterable[LoadRequest]) -> Iterable[RequestOutput]:
    """The output of each request run alone, its samples one by one, never cancelled."""
    for each in requests:
        samples = [_complete(engine, each.prompt_token_ids, _sample(each.params, i)) for i in range(each.params.n)]
        completions = tuple(sample.outputs[0] for sample in samples)
        yield RequestOutput("alone", None, each.prompt_token_ids, completions, samples[0].metrics)


def _sample(params: SamplingParams, index: int) -> SamplingParams:
    return params if params.n == 1 else params.sample(index)


def _complete(engine: Engine, prompt_token_ids: Sequence[int], params: SamplingParams) -> RequestOutput:
    engine.add_request("alone", prompt_token_ids, params)
    while True:
        for output in engine.step():
            if output.finished:
                return output.finished


def differences(together: Sequence[RequestOutput], alone: Sequence[RequestOutput]) -> list[tuple[int, int]]:
    """(request, sample) of every output that differs; a cancelled one must be a prefix of the complete one."""
    return [
        (number, index)
        for number, (shared, single) in enumerate(zip(together, alone, strict=True))
        for index, (ours, theirs) in enumerate(zip(shared.outputs, single.outputs, strict=True))
        if not _agrees(ours, theirs)
    ]


def _agrees(ours: CompletionOutput, theirs: CompletionOutput) -> bool:
    if ours.finish_reason == "abort":
        return theirs.token_ids[: len(ours.token_ids)] == ours.token_ids
    return (ours.token_ids, ours.text, ours.finish_reason) == (theirs.token_ids, theirs.text, theirs.finish_reason)
