"""An audit of a server by its answers alone: speculative text against the same server's plain text.

Plain against plain comes first: what a server differs from itself by is its arithmetic, not its speculation. Its law is
not tested here, since text without token ids and weights cannot be held against probabilities.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import comb

from paceline.evaluation.audit.identity import rate_below
from paceline.evaluation.audit.verdict import Check
from paceline.evaluation.endpoint import Server, complete, counters
from paceline.types import SamplingParams

LEVEL = 0.01
"""Of Fisher's test that speculation differs more often than plain decoding does from itself."""


def remote_audit(
    spec: Server, plain: Server, prompts: Sequence[str], max_tokens: int, at_once: int = 8, raw: bool = False
) -> list[Check]:
    """Greedy texts alone and in company, the counters of speculation, and counts of tokens."""
    before = counters(spec.url)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)

    def ask(server: Server, threads: int) -> list[str]:
        with ThreadPoolExecutor(threads) as pool:
            return [a.text for a in pool.map(lambda prompt: complete(server, prompt, params, raw), prompts)]

    first, second = ask(plain, 1), ask(plain, 1)
    checks = [same_texts("greedy", prompts, first, second, ask(spec, 1))]
    checks.append(same_texts("company", prompts, first, ask(plain, at_once), ask(spec, at_once)))
    checks.append(Check("law", "UNTESTED", _NO_LAW))
    return [_if_drafted(check, before, counters(spec.url)) for check in checks]


def same_texts(
    name: str, prompts: Sequence[str], plain: Sequence[str], again: Sequence[str], spec: Sequence[str]
) -> Check:
    """Speculative texts against plain ones, held against how often plain texts differ from themselves.

    Args:
        plain, again, spec: texts of the same prompts.
    """
    count = len(prompts)
    noise = [i for i in range(count) if plain[i] != again[i]]
    wrong = [i for i in range(count) if spec[i] not in (plain[i], again[i])]
    p = fisher(len(wrong), len(noise), count)
    evidence = {
        "compared": count, "different": len(wrong), "plain_differs_from_itself": len(noise), "p": p,
        "examples": [_example(prompts[i], plain[i], spec[i]) for i in wrong[:3]],
    }  # fmt: skip
    if not wrong:
        says = f"all of {count} texts are the plain server's{rate_below(count)}"
        return Check(name, "CONSISTENT", says, evidence | {"rate_below": 3 / count})
    itself = f"the plain server differs from itself in {len(noise)}"
    if p < LEVEL:
        return Check(name, "LOSSY", f"{len(wrong)} of {count} texts differ, and {itself} (p = {p:.2g})", evidence)
    if noise:
        return Check(
            name, "NUMERIC", f"{len(wrong)} of {count} texts differ; {itself}, so chance explains it", evidence
        )
    says = f"{len(wrong)} of {count} texts differ, too few to tell from chance (p = {p:.2g}); ask more prompts"
    return Check(name, "UNTESTED", says, evidence)


def fisher(wrong: int, noise: int, count: int) -> float:
    """One-sided p of `wrong` of `count` in one group against `noise` of `count` in the other: Fisher's exact test."""
    total = wrong + noise
    ways = sum(comb(count, k) * comb(count, total - k) for k in range(wrong, min(total, count) + 1))
    return ways / comb(2 * count, total)


_NO_LAW = "sampled text of a server cannot be held against probabilities without its token ids and weights"


def _example(prompt: str, plain: str, spec: str) -> dict[str, object]:
    """Where two texts part, for anybody to reproduce."""
    place = next((i for i, (a, b) in enumerate(zip(plain, spec, strict=False)) if a != b), min(len(plain), len(spec)))
    around = slice(max(0, place - 30), place + 30)
    return {"prompt": prompt, "character": place, "plain": plain[around], "speculative": spec[around]}


def _if_drafted(check: Check, before: dict[str, float] | None, after: dict[str, float] | None) -> Check:
    """A server that counts drafts and drafted nothing was not tested."""
    if before is None or after is None or check.verdict == "LOSSY":
        return check
    if after.get("draft_tokens", 0) > before.get("draft_tokens", 0):
        return check
    return Check(check.name, "UNTESTED", "the server's counters say that it drafted nothing", check.evidence)
