"""The law check: bets on the tokens of sampled answers of the whole pipeline against the target's laws."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import cycle
from typing import NamedTuple

import numpy as np

from paceline.engine.llm import LLM
from paceline.engine.score import laws_of
from paceline.evaluation.audit.betting import Bets
from paceline.evaluation.audit.identity import near_tie, rate_below
from paceline.evaluation.audit.recorder import Recorder
from paceline.evaluation.audit.ties import NEAR_TIE, gap_from_draw
from paceline.evaluation.audit.verdict import Check
from paceline.models.loaded import LoadedModel
from paceline.sampling.law import Law
from paceline.types import SamplingParams

BATCH = 4
"""Number of answers generated together before they are scored."""


class Place(NamedTuple):
    """One position of an answer.

    Attributes:
        law: the target's.
        draft: the draft's; None where nothing was drafted.
        token: the emitted one.
        is_drawn: under the coupled rule, whether the token is the one that the request's noise draws from `law`, or as
            near as rounding explains. None under other rules.
    """

    law: Law
    draft: Law | None
    token: int
    is_drawn: bool | None


def places_of(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, scored_as: SamplingParams | None = None
) -> Iterator[Place]:
    """Generate answers to `prompts` and yield each output token with the laws at its position.

    Args:
        llm: the audited model and configuration.
        prompts: token ids; answered together.
        params: without a seed.
        scored_as: parameters of the target's law; `params` unless a fault is injected.
    """
    recorder = Recorder(llm.engine.drafter)
    with llm.engine.watched_by(recorder):
        outputs = llm.generate([list(prompt) for prompt in prompts], params)
    for output in outputs:
        text, first = [*output.prompt_token_ids, *output.token_ids], len(output.prompt_token_ids)
        yield from recorded_places(recorder, llm.loaded, output.request_id, text, first, scored_as or params)


def recorded_places(
    recorder: Recorder, loaded: LoadedModel, request_id: str, text: Sequence[int], first: int, params: SamplingParams
) -> Iterator[Place]:
    """The places of a recorded answer.

    Args:
        text: its tokens, those of the prompt included.
        first: number of tokens of the prompt.
        params: of the target's law.
    """
    drafts, noise = recorder.draft_laws(request_id, text, first), recorder.take_noise(request_id)
    laws = laws_of(loaded.model, text, first, params, loaded.source.eos_token_ids)
    tie = cache(partial(near_tie, loaded.model))  # where it is not a constant, it takes passes
    for position, ((token, law), draft) in enumerate(zip(laws, drafts, strict=True), start=first):
        is_drawn = None
        if noise is not None:
            gap = gap_from_draw(law, token, noise, position, params.temperature)
            is_drawn = gap < NEAR_TIE or gap < tie()
        yield Place(law, draft, token, is_drawn)


def bet(
    batches: Iterable[Iterable[Place]],
    bets: Bets,
    log_alpha: float,
    deadline: float,
    is_enough: Callable[[Bets], bool] = lambda bets: False,
    may_give_up: Callable[[Bets], bool] = lambda bets: True,
    clock: Callable[[], float] = time.monotonic,
    reads_drafts: bool = True,
) -> Bets:
    """Feed `bets` batch by batch until a fault is found, `is_enough` holds, or the time is up.

    Args:
        log_alpha: natural logarithm of the level; a fault is found when the mixture's wealth reaches its inverse.
        deadline: on `clock`.
        is_enough: called after every batch.
        may_give_up: called after the deadline; False to continue.
        reads_drafts: see `Bets.feed`.
    """
    for batch in batches:
        for place in batch:
            bets.feed(*place, reads_draft=reads_drafts)
        if bets.peak >= -log_alpha or (clock() > deadline and may_give_up(bets)) or is_enough(bets):
            break
    return bets


def answers_without_end(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> Iterator[Iterator[Place]]:
    """Yield batches of places of answers, cycling through `prompts` forever."""
    waiting = cycle(prompts)
    while True:
        batch = [next(waiting) for _ in range(min(BATCH, len(prompts)))]
        yield places_of(llm, batch, params)


def law_check(bets: Bets, log_alpha: float) -> Check:
    """The result of the bets as a check."""
    excluded = bets.smallest_excluded()
    evidence = {
        "tokens": bets.num_tokens,
        "drafted_tokens": bets.num_drafted,
        "compared_draws": bets.num_compared,
        "other_draws": bets.num_other,
        "log_e": _finite(bets.log_e),
        "peak_log_e": _finite(bets.peak),
        "p_value": bets.p_value,
        "alpha": float(np.exp(log_alpha)),
        "smallest_effect_excluded": excluded,
        "favourite": bets.favourite,
        "log_wealth": {name: round(_finite(value), 3) for name, value in bets.log_wealth.items()},
    }
    if bets.num_other:
        says = f"{bets.num_other} of {bets.num_compared} tokens are not those that the requests' noise draws"
        return Check("law", "LOSSY", f"{says} from the model's probabilities", evidence)
    if bets.peak >= -log_alpha:
        odds = f"p < {bets.p_value:.1g}; likeliest cause: {bets.favourite}"
        says = f"the text does not follow the model's probabilities ({odds})"
        return Check("law", "LOSSY", says, evidence)
    if not bets.num_drafted:
        says = f"nothing was drafted in {bets.num_tokens} sampled tokens: nothing was tested; give prompts to copy from"
        return Check("law", "UNTESTED", says, evidence)
    text = f"{bets.num_tokens} sampled tokens, {bets.num_drafted} of them drafted for, follow the model's probabilities"
    if bets.num_compared:
        compared = f"{bets.num_compared} are the tokens that the requests' noise draws"
        return Check("law", "CONSISTENT", f"{text}; {compared}{rate_below(bets.num_compared)}", evidence)
    if excluded is None:
        return Check("law", "CONSISTENT", f"{text}; not enough to tell how small a fault would have shown", evidence)
    says = f"{text}; drafts kept {excluded:g} times too readily, or more so, would have shown (95 %)"
    return Check("law", "CONSISTENT", says, evidence)


def _finite(value: float) -> float:
    """`value` clipped to a finite range, since JSON has no infinities."""
    return float(np.clip(value, -1e9, 1e9))
