"""Checks of identity: equal logits in any batch, equal texts alone and under load, correct counters."""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from paceline.engine.llm import LLM
from paceline.engine.score import logits_of
from paceline.evaluation.audit.ties import NEAR_TIE, gap_where_they_part
from paceline.evaluation.audit.verdict import Check
from paceline.evaluation.load import differences, make_load, run_alone, run_together
from paceline.models.base import CausalLM, pages_for
from paceline.models.rows import Part, build_rows
from paceline.types import CompletionOutput, RequestOutput, SamplingParams


def rows_check(model: CausalLM, seed: int = 0) -> Check:
    """Whether a row's logits are bitwise equal alone, in a chunk, beside another request, and in a tree."""
    rng = np.random.default_rng(seed)
    text, other = (rng.integers(0, model.config.vocab_size, 24).tolist() for _ in range(2))
    whole = np.array([row.copy() for row in logits_of(model, text, 1)])
    found = {
        "one by one": np.array([row.copy() for row in logits_of(model, text, 1, 1)]),
        "in chunks of 7": np.array([row.copy() for row in logits_of(model, text, 1, 7)]),
        "beside another request": _beside(model, text, other)[: len(whole)],
        "in a tree": np.concatenate([whole[:-4], _in_a_tree(model, text)]),
    }
    wrong = [name for name, logits in found.items() if not np.array_equal(logits, whole)]
    gap = {name: float(np.abs(logits - whole).max()) for name, logits in found.items()}
    if not wrong:
        return Check(
            "rows", "PROVED", "a row's logits are the same bit for bit " + ", ".join(found), {"largest_gap": gap}
        )
    says = f"a row's logits change {', '.join(wrong)}, by up to {max(gap.values()):.2g}"
    if not model.is_row_invariant:
        says += "; executor='numba', or 'cuda' with deterministic=True (--deterministic), keeps them the same"
    return Check("rows", "NUMERIC", says, {"largest_gap": gap})


def greedy_check(plain: LLM, spec: LLM, prompts: Sequence[Sequence[int]], max_tokens: int) -> Check:
    """Whether speculative greedy text equals plain greedy text, alone and with all prompts in one batch."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    return _same_texts("greedy", plain, spec, prompts, [params] * len(prompts))


def coupled_check(plain: LLM, spec: LLM, prompts: Sequence[Sequence[int]], max_tokens: int) -> Check:
    """Whether sampled text with a seed equals the plain text with that seed."""
    params = [SamplingParams(temperature=1, max_tokens=max_tokens, seed=number) for number in range(len(prompts))]
    return _same_texts("coupled", plain, spec, prompts, params)


def load_check(
    plain: LLM, spec: LLM, prompts: Sequence[Sequence[int]], max_tokens: int, seeds_hold: bool = True
) -> Check:
    """Whether concurrent requests with arrivals, cancellations and mixed settings give the texts of plain decoding."""
    requests = make_load(prompts, 2 * len(prompts), max_tokens, greedy=not seeds_hold)
    together = run_together(spec.engine, requests)
    alone = list(run_alone(plain.engine, requests))
    gaps = []
    for number, sample in differences(together, alone):
        asked = requests[number]
        truth, other = (outputs[number].outputs[sample].token_ids for outputs in (alone, together))
        params = asked.params.sample(sample)
        gaps.append(gap_where_they_part(plain, asked.prompt_token_ids, truth, other, params))
    return _verdict("load", plain, len(requests), gaps, "requests under load")


def accounting_check(plain: LLM, spec: LLM, prompts: Sequence[Sequence[int]], max_tokens: int) -> Check:
    """Whether stops, lengths, counters and provenance agree with the tokens, and nothing follows a stop."""
    wrong: list[str] = []
    gaps: list[float] = []
    count = 0
    for prompt in prompts:
        whole = plain.generate([list(prompt)], SamplingParams(temperature=0, max_tokens=max_tokens))[0]
        for params in _with_stops(whole, max_tokens):
            ours, theirs = (llm.generate([list(prompt)], params)[0] for llm in (spec, plain))
            count += 1
            wrong += _miscounted(ours.outputs[0], params)
            if ours.token_ids != theirs.token_ids:
                gaps.append(gap_where_they_part(plain, prompt, theirs.token_ids, ours.token_ids, params))
            else:
                wrong += _differing(ours, theirs)
    texts = _verdict("accounting", plain, count, gaps, "answers")
    if texts.verdict == "LOSSY":
        wrong.insert(0, texts.says)
    if wrong:
        return Check("accounting", "LOSSY", f"{len(wrong)} faults, the first: {wrong[0]}", {"faults": wrong[:20]})
    says = f"stops, lengths, counters and provenance are right in {count} answers"
    if texts.verdict == "NUMERIC":
        return Check("accounting", "NUMERIC", f"{says}; {texts.says}", texts.evidence)
    return Check("accounting", "CONSISTENT", says, {"answers": count, "rate_below": 3 / count})


def _same_texts(
    name: str, plain: LLM, spec: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> Check:
    ids = [list(prompt) for prompt in prompts]
    expected = plain.generate(ids, list(params))
    together = spec.generate(ids, list(params))
    alone = [spec.generate([prompt], each)[0] for prompt, each in zip(ids, params, strict=True)]
    gaps = [
        gap_where_they_part(plain, truth.prompt_token_ids, truth.token_ids, other.token_ids, asked)
        for truth, asked, *others in zip(expected, params, alone, together, strict=True)
        for other in others
        if other.token_ids != truth.token_ids
    ]
    drafted = sum(output.stats.num_draft_tokens for output in (*alone, *together))
    check = _verdict(name, plain, 2 * len(ids), gaps, "texts")
    if not drafted and check.verdict == "CONSISTENT":
        says = "the texts are the same, and nothing was drafted: give prompts to copy from"
        return Check(name, "UNTESTED", says, check.evidence)
    return Check(name, check.verdict, check.says, check.evidence | {"drafted": drafted})


def near_tie(model: CausalLM) -> float:
    """Largest gap of two logits that rounding may reverse: `NEAR_TIE`, or twice the change of logits between batches.

    The latter only if the executor declares that they may change; otherwise such a change is a fault.
    """
    if model.is_row_invariant:
        return NEAR_TIE
    return max(NEAR_TIE, 2 * max(rows_check(model).evidence["largest_gap"].values()))


def _verdict(name: str, plain: LLM, count: int, gaps: Sequence[float], what: str) -> Check:
    """The result of `count` comparisons, of which those that differ have `gaps`."""
    wrong = len(gaps)
    evidence = {
        "compared": count,
        "different": wrong,
        "gaps": [round(gap, 6) if isfinite(gap) else None for gap in gaps],
    }
    if not wrong:
        says = f"all of {count} {what} are plain decoding's{rate_below(count)}"
        return Check(name, "CONSISTENT", says, evidence | {"rate_below": 3 / count})
    tie = near_tie(plain.loaded.model)
    if max(gaps) < tie:
        says = f"{wrong} of {count} {what} differ, each first at a near tie (gap below {tie:.2g})"
        return Check(name, "NUMERIC", says, evidence)
    return Check(name, "LOSSY", f"{wrong} of {count} {what} are not plain decoding's", evidence)


def rate_below(count: int) -> str:
    """A clause with the 95 % bound on the rate of differences after `count` equal answers (rule of three), or empty."""
    return f", so fewer than {300 / count:.2g} in 100 differ (95 %)" if count > 3 else ""


def _beside(model: CausalLM, text: Sequence[int], other: Sequence[int]) -> np.ndarray:
    each = pages_for(len(text))
    cache = model.new_cache(2 * each)
    parts = [Part(range(each), 0, text[:-1]), Part(range(each, 2 * each), 0, other)]
    return model.forward(build_rows(parts), cache).logits.copy()


def _in_a_tree(model: CausalLM, text: Sequence[int]) -> np.ndarray:
    """[4, vocabulary] logits of the four tokens before the last: a root and the second branch of a tree."""
    start = len(text) - 5
    cache = model.new_cache(pages_for(len(text) + 8))
    pages = range(cache.num_pages)
    model.forward(build_rows([Part(pages, 0, text[:start], logits="none")]), cache)
    wrong = [(token + 1) % model.config.vocab_size for token in text[start + 1 : -1]]
    tokens = [text[start], *wrong, *text[start + 1 : -1]]
    parents = [-1, 0, 1, 2, 0, 4, 5]
    logits = model.forward(build_rows([Part(pages, start, tokens, parents)]), cache).logits
    return logits[[0, 4, 5, 6]].copy()


def _with_stops(whole: RequestOutput, max_tokens: int) -> list[SamplingParams]:
    """Sampling parameters that end the answer early: by length, by a stop token and by a stop string."""
    settings = [SamplingParams(temperature=0, max_tokens=max(1, max_tokens // 3))]
    if len(whole.token_ids) > 4:
        token = whole.token_ids[len(whole.token_ids) // 2]
        settings.append(SamplingParams(temperature=0, max_tokens=max_tokens, stop_token_ids=[token]))
    middle = whole.text[len(whole.text) // 2 :][:3]
    if len(middle) == 3 and middle.isascii():
        settings.append(SamplingParams(temperature=0, max_tokens=max_tokens, stop=[middle]))
    return settings


def _miscounted(output: CompletionOutput, params: SamplingParams) -> list[str]:
    """The inconsistencies of an answer's counters, provenance and stops."""
    stats, count = output.stats, len(output.token_ids)
    emitted = sum((i + 1) * n for i, n in enumerate(stats.accepted_per_pass))
    faults = {
        "more tokens than max_tokens": count > params.max_tokens,
        "a token without provenance": len(output.provenance) != count,
        "passes do not add up to the tokens after the first": emitted != count - 1,
        "accepted tokens are not the drafted ones": output.provenance.count("drafted") != stats.num_accepted_tokens,
        "a stop string in the text": any(stop in output.text for stop in params.stop),
        "ended by length before it": output.finish_reason == "length" and count < params.max_tokens,
    }
    return [name for name, is_wrong in faults.items() if is_wrong]


def _differing(ours: RequestOutput, theirs: RequestOutput) -> list[str]:
    fields = ("token_ids", "text", "finish_reason")
    return [f"{name} differs from plain decoding's" for name in fields if getattr(ours, name) != getattr(theirs, name)]
