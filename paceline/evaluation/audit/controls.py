"""Controls: faults injected on purpose by lossy rules and settings. A check that misses one is blind."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from paceline.engine.llm import LLM
from paceline.evaluation.audit.betting import Bets
from paceline.evaluation.audit.identity import greedy_check
from paceline.evaluation.audit.law import answers_without_end, bet, places_of
from paceline.evaluation.audit.rule import Case, rule_check
from paceline.evaluation.audit.verdict import Check
from paceline.sampling import resolve
from paceline.types import SamplingParams

_LEAST_TOKENS, _LEAST_DRAFTED, _MOST_TOKENS = 400, 100, 4000
"""Numbers of tokens, of drafted positions, and of tokens where little is drafted, before which a fault of the law does
not count as missed: a busy machine must not make a check look blind."""
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Control:
    """One injected fault and whether it was found.

    Attributes:
        name: of the fault.
        check: name of the check that must find it.
        found: whether it did.
        after: number of tokens tested, for the law check.
    """

    name: str
    check: str
    found: bool
    after: int | None = None


def rule_controls(cases: Sequence[Case]) -> list[Control]:
    """Controls of the rule check: three lossy rules."""
    rules: dict[str, dict[str, float]] = {"lenient": {"lenience": 0.9}, "uniform_coin": {"bound": 0.9}, "typical": {}}
    found = {name: rule_check(cases, {name: resolve(name, **options)}).verdict for name, options in rules.items()}
    return [Control(f"rule {name}", "rule", verdict == "LOSSY") for name, verdict in found.items()]


def greedy_control(plain: LLM, spec: dict[str, Any], prompts: Prompts, max_tokens: int) -> Control:
    """The control of the greedy check: a rule that accepts any token with 1 % of the best one's probability."""
    lenient = plain.drafting_with(spec | {"rule": "lenient_greedy", "rule_options": {"lenience": 0.01}})
    check = greedy_check(plain, lenient, prompts, max_tokens)
    return Control("greedy text by a lenient rule", "greedy", check.verdict == "LOSSY")


def law_controls(
    plain: LLM, spec: dict[str, Any], prompts: Prompts, max_tokens: int, log_alpha: float, seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[Control]:  # fmt: skip
    """Controls of the law check, half of the time each: text sampled at another temperature, or with a lenient rule."""
    params = SamplingParams(temperature=1.0, max_tokens=max_tokens)
    colder = SamplingParams(temperature=0.5, max_tokens=max_tokens)
    lenient = plain.drafting_with(spec | {"rule": "lenient", "rule_options": {"lenience": 0.01}})
    cold = (places_of(plain, [prompt], colder, scored_as=params) for prompts_ in repeat(prompts) for prompt in prompts_)
    found = []
    for name, batches, is_fair in (
        ("sampled text at temperature 0.5 in place of 1", cold, _has_tokens),
        (
            "sampled text by a rule a hundred times too lenient",
            answers_without_end(lenient, prompts, params),
            _has_drafts,
        ),
    ):
        bets = bet(batches, Bets(), log_alpha, clock() + seconds / 2, may_give_up=is_fair, clock=clock)
        found.append(Control(name, "law", bets.peak >= -log_alpha, bets.num_tokens))
    return found


def _has_tokens(bets: Bets) -> bool:
    return bets.num_tokens >= _LEAST_TOKENS


def _has_drafts(bets: Bets) -> bool:
    return bets.num_drafted >= _LEAST_DRAFTED or bets.num_tokens >= _MOST_TOKENS


def controls_check(controls: Sequence[Control]) -> Check:
    """The check that all controls were found; untested if one was missed or there are none."""
    if not controls:
        says = "no fault was put in: there are faults for the checks rule, greedy and law, of which none was asked for"
        return Check("controls", "UNTESTED", says)
    missed = [control.name for control in controls if not control.found]
    evidence = {"faults": {c.name: {"check": c.check, "found": c.found, "tokens": c.after} for c in controls}}
    if missed:
        says = f"{len(missed)} of {len(controls)} faults put in on purpose were not found: {'; '.join(missed)}"
        return Check("controls", "UNTESTED", says, evidence)
    return Check("controls", "PROVED", f"all {len(controls)} faults put in on purpose were found", evidence)


def blind_checks(controls: Sequence[Control]) -> set[str]:
    """Names of the checks that missed a fault."""
    return {control.check for control in controls if not control.found}
