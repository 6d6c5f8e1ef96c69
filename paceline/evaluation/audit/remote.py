"""Auditing a server from outside: speculative text against the same server's plain text.

Plain text is compared with itself too: where it differs, the cause is arithmetic, not speculation. If the server
returns log probabilities, the gap of the two best tokens tells whether texts diverge at a near tie. Sampled texts are
compared if the server reproduces them for a seed. The law is not tested: that takes token ids and weights.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from math import comb, inf

from paceline.evaluation.audit.identity import rate_below
from paceline.evaluation.audit.verdict import Check
from paceline.evaluation.bench.arms import Answer
from paceline.evaluation.endpoint import Server, complete, counters
from paceline.evaluation.endpoint_tokens import gap_where_it_leaves
from paceline.types import SamplingParams

LEVEL = 0.01
"""Level of Fisher's test that speculative text differs more often than plain text does from itself."""
NEAR_TIE = 0.05
"""Gap in log probability that rounding may reverse on any server: the second token is 5 % less likely."""
GapOf = Callable[[int, str], float | None]
"""(prompt's index, text) to the gap of the plain server's two best tokens where its answer first differs; or None."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Answers to the same prompts.

    Attributes:
        plain, again: two runs of the plain server.
        spec: the speculating server's.
    """

    plain: Sequence[str]
    again: Sequence[str]
    spec: Sequence[str]


def remote_audit(
    spec: Server, plain: Server, prompts: Sequence[str], max_tokens: int, at_once: int = 8, raw: bool = False
) -> list[Check]:
    """Checks of greedy texts alone and at `at_once` concurrent requests, and of sampled texts with seeds."""
    before = counters(spec.url)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    seeded = [SamplingParams(temperature=1, max_tokens=max_tokens, seed=number) for number in range(len(prompts))]

    def ask(server: Server, threads: int, settings: Sequence[SamplingParams] = (params,)) -> list[Answer]:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda text, own: complete(server, text, own, raw), prompts, cycle(settings)))

    def gap(number: int, text: str) -> float | None:
        return gap_where_it_leaves(plain, prompts[number], text, params, raw)

    first, second, crowd = ask(plain, 1), ask(plain, 1), ask(plain, at_once)
    alone, together, drawn = ask(spec, 1), ask(spec, at_once), ask(spec, 1, seeded)
    checks = [
        same_texts("greedy", prompts, Texts(said(first), said(second), said(alone)), gap),
        same_texts("company", prompts, Texts(said(first), said(crowd), said(together)), gap),
        same_draws(Texts(said(ask(plain, 1, seeded)), said(ask(plain, 1, seeded)), said(drawn))),
        Check("law", "UNTESTED", _NO_LAW, arises=False),
    ]
    drafted = drafted_tokens([*alone, *together, *drawn], before, counters(spec.url))
    return [_if_drafted(check, drafted) for check in checks]


def said(answers: Sequence[Answer]) -> list[str]:
    """The texts of answers."""
    return [str(answer.text) for answer in answers]


def same_texts(name: str, prompts: Sequence[str], texts: Texts, gap_of: GapOf = lambda number, text: None) -> Check:
    """Compare speculative texts with plain ones, relative to how often plain texts differ from themselves.

    A difference counts as rounding if the gap of plain decoding's two best tokens is at most `NEAR_TIE`, or the largest
    gap at which plain texts differ from themselves.
    """
    count, plain, again = len(prompts), texts.plain, texts.again
    noise = [i for i in range(count) if plain[i] != again[i]]
    wrong = [i for i in range(count) if texts.spec[i] not in (plain[i], again[i])]
    p = fisher(len(wrong), len(noise), count)
    own, gaps = [gap_of(i, again[i]) for i in noise] if wrong else [], [gap_of(i, texts.spec[i]) for i in wrong]
    tie = max([NEAR_TIE, *(gap for gap in own if gap is not None)])
    evidence = {
        "compared": count, "different": len(wrong), "plain_differs_from_itself": len(noise), "p": p,
        "near_tie": tie, "gaps": gaps,
        "examples": [_example(prompts[i], plain[i], texts.spec[i], gap) for i, gap in zip(wrong, gaps, strict=True)],
    }  # fmt: skip
    if not wrong:
        says = f"all of {count} texts are the plain server's{rate_below(count)}"
        return Check(name, "CONSISTENT", says, evidence | {"rate_below": 3 / count})
    itself = f"the plain server differs from itself in {len(noise)}"
    widest = max(inf if gap is None else gap for gap in gaps)
    if widest <= tie:
        says = f"{len(wrong)} of {count} texts differ, each first where two tokens are nearly as likely ({itself})"
        return Check(name, "NUMERIC", f"{says}: the widest gap is {widest:.2g} in log probability", evidence)
    if p < LEVEL:
        return Check(name, "LOSSY", f"{len(wrong)} of {count} texts differ, and {itself} (p = {p:.2g})", evidence)
    if noise:
        return Check(
            name, "NUMERIC", f"{len(wrong)} of {count} texts differ; {itself}, so chance explains it", evidence
        )
    says = f"{len(wrong)} of {count} texts differ, too few to tell from chance (p = {p:.2g}); ask more prompts"
    return Check(name, "UNTESTED", says, evidence)


def same_draws(texts: Texts) -> Check:
    """Compare sampled texts by seed; untested if the plain server does not reproduce its own, or if they differ."""
    count = len(texts.plain)
    unsteady = sum(a != b for a, b in zip(texts.plain, texts.again, strict=True))
    wrong = sum(a != b for a, b in zip(texts.plain, texts.spec, strict=True))
    evidence = {"compared": count, "different": wrong, "plain_differs_from_itself": unsteady}
    if unsteady:
        says = f"the plain server says another text for the same seed in {unsteady} of {count}"
        return Check("coupled", "UNTESTED", says, evidence, arises=False)
    if wrong:
        says = f"{wrong} of {count} sampled texts are not the plain server's for that seed, which no law forbids"
        return Check("coupled", "UNTESTED", says, evidence, arises=False)
    says = f"all of {count} sampled texts are the plain server's for that seed{rate_below(count)}"
    return Check("coupled", "CONSISTENT", says, evidence | {"rate_below": 3 / count})


def fisher(wrong: int, noise: int, count: int) -> float:
    """One-sided p-value of Fisher's exact test: `wrong` of `count` in one group, `noise` of `count` in the other."""
    total = wrong + noise
    ways = sum(comb(count, k) * comb(count, total - k) for k in range(wrong, min(total, count) + 1))
    return ways / comb(2 * count, total)


def drafted_tokens(
    answers: Sequence[Answer], before: dict[str, float] | None, after: dict[str, float] | None
) -> int | None:
    """Number of tokens drafted for `answers`, from them or from the server's counters; None if neither is known."""
    told = [answer.drafted for answer in answers if answer.drafted is not None]
    if told:
        return sum(told)
    if before is None or after is None:
        return None
    return int(after.get("draft_tokens", 0) - before.get("draft_tokens", 0))


_NO_LAW = "sampled text of a server cannot be held against probabilities without its token ids and weights"


def _example(prompt: str, plain: str, spec: str, gap: float | None) -> dict[str, object]:
    """The first difference of two texts with its surroundings, for the report."""
    place = next((i for i, (a, b) in enumerate(zip(plain, spec, strict=False)) if a != b), min(len(plain), len(spec)))
    around = slice(max(0, place - 30), place + 30)
    return {"prompt": prompt, "character": place, "plain": plain[around], "speculative": spec[around], "gap": gap}


def _if_drafted(check: Check, drafted: int | None) -> Check:
    """`check` with the number of drafted tokens; untested if it is 0, unless the check is lossy."""
    if check.name == "law" or drafted is None:
        return check
    told = replace(check, evidence=check.evidence | {"drafted": drafted})
    if drafted or check.verdict == "LOSSY":
        return told
    return replace(told, verdict="UNTESTED", says="the server says that it drafted nothing")
