"""Where two texts part: what a logit would have to change by, and what the checks make of it."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.engine.score import logits_of
from paceline.evaluation.audit import identity
from paceline.evaluation.audit.ties import gap_where_they_part
from paceline.evaluation.load import run_together
from paceline.sampling import CounterRandomness, Warper
from paceline.types import SamplingParams
from tests.evaluation.audit.conftest import NGRAM, PROMPTS


def runner_up(plain, prompt, said, params):
    """The token that came second where the last of `said` was said, and how much larger its logit had to be."""
    text, seen = [*prompt, *said], [*prompt, *said[:-1]]
    *_, logits = logits_of(plain.loaded.model, text, len(seen))
    warper = Warper(params, eos_token_ids=(), token_ids=seen, num_prompt_tokens=len(prompt))

    def pick(token, more):
        changed = logits.astype(np.float64)
        changed[token] += more
        return CounterRandomness(params.seed or 0).draw(warper.law(changed), len(seen), "target")

    def needed(token):
        low, high = 0.0, 64.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if pick(token, middle) == token else (middle, high)
        return high

    assert pick(0, 0.0) == said[-1]
    return min(((token, needed(token)) for token in np.argsort(-logits)[:12] if token != said[-1]), key=lambda p: p[1])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=7),
        SamplingParams(temperature=0, max_tokens=7, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(temperature=0.6, max_tokens=7, seed=3, repetition_penalty=1.2),
        SamplingParams(temperature=1.2, max_tokens=7, seed=4),
    ],
    ids=["greedy", "greedy with penalties", "sampled with penalties", "sampled"],
)
def test_the_gap_is_what_a_logit_would_have_to_change_by(plain, params):
    said = plain.generate([PROMPTS[0]], params)[0].token_ids
    token, needed = runner_up(plain, PROMPTS[0], said, params)
    assert gap_where_they_part(plain, PROMPTS[0], said, [*said[:-1], token], params) == pytest.approx(needed, abs=1e-5)
    assert gap_where_they_part(plain, PROMPTS[0], said, said[:-1], params) == float("inf")


@pytest.mark.parametrize(("tie", "verdict"), [(1e3, "NUMERIC"), (0.0, "LOSSY")])
def test_near_ties_under_load_and_in_the_books_are_numeric(plain, monkeypatch, tie, verdict):
    def other_end(output, prompt, params):
        [said, *_] = output.outputs
        token, _ = runner_up(plain, prompt, said.token_ids, params)
        return replace(
            output, outputs=(replace(said, token_ids=(*said.token_ids[:-1], int(token))), *output.outputs[1:])
        )

    def together(engine, requests):
        found, first = run_together(engine, requests), requests[0]
        return [other_end(found[0], first.prompt_token_ids, first.params.sample(0)), *found[1:]]

    spec = plain.drafting_with(NGRAM)
    honest = spec.generate
    monkeypatch.setattr(identity, "run_together", together)
    monkeypatch.setattr(
        spec, "generate", lambda prompts, params: [other_end(honest(prompts, params)[0], prompts[0], params)]
    )
    monkeypatch.setattr(identity, "near_tie", lambda model: tie)
    load = identity.load_check(plain, spec, PROMPTS, 12)
    assert (load.verdict, load.evidence["different"]) == (verdict, 1)
    assert 0 < load.evidence["gaps"][0] < 100
    assert identity.accounting_check(plain, spec, PROMPTS[:1], 12).verdict == verdict
