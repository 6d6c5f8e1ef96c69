"""Advice for a server: pass times come from its plain speed at several concurrencies, texts from its answers.

A plain step of M requests is a pass over M rows, so the curve of plain TPOT gives the cost of any draft. Acceptance
needs token ids only: lookups use them directly, and greedy draft models are run locally. Not for sampled draft models,
whose acceptance depends on the target's probabilities.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

from paceline.config import EngineConfig
from paceline.drafters.registry import make_drafter
from paceline.engine.score import score
from paceline.engine.setup.load import load
from paceline.errors import InvalidParameter
from paceline.evaluation.advise.candidates import Candidate, Wanted
from paceline.evaluation.advise.replay import Text, replay_chain, standing
from paceline.evaluation.advise.run import Advice, predictions_of
from paceline.evaluation.advise.texts import check_texts
from paceline.evaluation.advise.walk import replay_lookup
from paceline.evaluation.endpoint import Server, complete
from paceline.evaluation.endpoint_tokens import tokens_of
from paceline.evaluation.prompts import Prompt
from paceline.models.text.tokenizer import Tokenizer
from paceline.scheduling.profile import Profile
from paceline.types import NamedProgress, SamplingParams

LOOKUPS = ("ngram", "suffix")
SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64)
_TOKENS = 48
"""Tokens per answer when the speed is measured."""
_ROUNDS = 3
_QUESTION = "Count from {} on, separated by commas, and do not stop."


def plain_curve(
    server: Server, sizes: Sequence[int], progress: NamedProgress, rounds: int = _ROUNDS, num_tokens: int = _TOKENS
) -> dict[int, float]:
    """Concurrency to median seconds per token of a request over `rounds`, with the sizes interleaved.

    Raises:
        InvalidParameter: the server speculates, or answers with a single token.
    """
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(rounds):
        for at, size in enumerate(sizes):
            progress("plain pace of the server", number * len(sizes) + at, rounds * len(sizes))
            times[size].append(_pace(server, size, params))
    progress("plain pace of the server", rounds * len(sizes), rounds * len(sizes))
    return {size: median(paces) for size, paces in times.items()}


def _pace(server: Server, size: int, params: SamplingParams) -> float:
    """Median seconds per token after the first of `size` concurrent answers."""
    with ThreadPoolExecutor(size) as threads:
        answers = list(threads.map(lambda i: complete(server, _QUESTION.format(17 * i + 3), params), range(size)))
    if any(answer.drafted for answer in answers):
        raise InvalidParameter("url", f"{server.url} drafts", "start it without speculation: its plain pace is asked")
    long_enough = [answer for answer in answers if answer.tokens > 1]
    if not long_enough:
        raise InvalidParameter("url", f"{server.url} answers with one token", "serve a model that goes on")
    return median((one.seconds - one.first_token_seconds) / (one.tokens - 1) for one in long_enough)


def profile_of_server(server: Server, sizes: Sequence[int], progress: NamedProgress) -> Profile:
    """The server's curve as a profile; its prefill time is interpolated from the first-token time of a long prompt."""
    curve = plain_curve(server, sizes, progress)
    asked = complete(server, "Read this: " + "one two three four " * 100, SamplingParams(temperature=0, max_tokens=1))
    prefill = {1: curve[1], max(2, asked.prompt_tokens or 400): max(asked.first_token_seconds, curve[1])}
    return Profile(
        server.model,
        server.url,
        "unknown",
        server.dialect,
        None,
        server.url,
        {0: curve},
        {0: prefill},
        step_overhead=0.0,
    )


def texts_of_server(
    server: Server, prompts: Sequence[Prompt], params: SamplingParams, tokenizer: Tokenizer | None,
    progress: NamedProgress,
) -> list[Text]:  # fmt: skip
    """Texts as token ids: logged answers as they are, or the server's where there is none."""
    texts = []
    for number, prompt in enumerate(prompts):
        progress("reading answers", number, len(prompts))
        said = prompt.answer if prompt.answer is not None else complete(server, prompt.text, params).text
        output = tokens_of(server, said, tokenizer)[: params.max_tokens]
        is_cut = len(output) >= params.max_tokens
        texts.append(Text(tuple(tokens_of(server, prompt.text, tokenizer, True)), tuple(output), is_cut, prompt.family))
    progress("reading answers", len(prompts), len(prompts))
    return [text for text in texts if text.num_decoded]


def take_server_advice(
    server: Server, draft_server: Server | None, prompts: Sequence[Prompt], wanted: Sequence[Wanted],
    params: SamplingParams, batches: Sequence[int], tokenizer: Tokenizer | None, progress: NamedProgress,
    known: Callable[[Sequence[Text]], list[Candidate]] = lambda texts: [],
) -> Advice:  # fmt: skip
    """The predicted speed-ups of drafters on a server that decodes plainly.

    Args:
        draft_server: a server of the draft model alone, for its timings; None if all candidates are lookups.
        batches: numbers of concurrent requests.
        tokenizer: of the model, if the server has no ``/tokenize``.
        known: returns further candidates, given the texts.
    """
    for one in wanted:
        _check(one, params, draft_server is not None)
    texts = texts_of_server(server, prompts, params, tokenizer, progress)
    most = max(batches) * (1 + max((one.k or 8 for one in wanted), default=8))
    profile = profile_of_server(server, [size for size in SIZES if size <= most], progress)
    check_texts(texts)
    draft_sizes = [size for size in SIZES if size <= max(batches)]
    draft = None if draft_server is None else profile_of_server(draft_server, draft_sizes, progress)
    found = [_candidate(one, texts, params, draft, progress) for one in wanted] + known(texts)
    return Advice(params, texts, 0, found, predictions_of(found, texts, profile, batches, "the server's"))


def _check(one: Wanted, params: SamplingParams, has_draft: bool) -> None:
    """Raise InvalidParameter for a candidate that cannot be replayed without the target's weights."""
    method = one.spec["method"]
    if method in LOOKUPS:
        return
    if method != "draft_model" or not params.is_greedy:
        problem = f"{one.draft!r} needs the target's own weights"
        remedy = f"with --url use {', '.join(LOOKUPS)} or, at temperature 0, draft_model:NAME"
        raise InvalidParameter("candidates", problem, remedy)
    if not has_draft:
        raise InvalidParameter(
            "draft_url", "is missing", "serve the draft model alone and name it: its times are asked"
        )


def _candidate(
    one: Wanted, texts: Sequence[Text], params: SamplingParams, draft: Profile | None, progress: NamedProgress
) -> Candidate:
    method, k = one.spec["method"], one.k or 8
    if method in LOOKUPS:
        return Candidate(one.draft, k, one.spec, replay_lookup(make_drafter(method), texts, k))
    stands = _agreement(str(one.spec.get("model")), texts, params, progress)
    rounds = [replay_chain(each, k, text.is_cut) for each, text in zip(stands, texts, strict=True)]
    return Candidate(one.draft, k, one.spec, rounds, profile=draft, has_model=True)


def _agreement(name: str, texts: Sequence[Text], params: SamplingParams, progress: NamedProgress) -> list[np.ndarray]:
    """Per text, [tokens after the first] 1 where the draft model's argmax is the text, else 0."""
    model = load(name, EngineConfig(), progress).model
    found = []
    for text in texts:
        theirs = score(model, [*text.prompt, *text.output], len(text.prompt), params)
        found.append(standing(theirs, theirs, is_greedy=True)[1:])
    return found
