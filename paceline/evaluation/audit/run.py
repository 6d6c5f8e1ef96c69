"""An audit of a model on this machine: all checks in order, each with its share of the time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any

from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.evaluation.audit.betting import Bets
from paceline.evaluation.audit.controls import (
    Control,
    blind_checks,
    controls_check,
    greedy_control,
    law_controls,
    rule_controls,
)
from paceline.evaluation.audit.identity import (
    accounting_check,
    coupled_check,
    greedy_check,
    load_check,
    rows_check,
)
from paceline.evaluation.audit.law import answers_without_end, bet, law_check
from paceline.evaluation.audit.rivals import LENIENCES
from paceline.evaluation.audit.rule import Case, case_of, rule_check
from paceline.evaluation.audit.verdict import Check, Verdict, exit_code, overall, without_blind
from paceline.sampling import AUTO, Verifier, resolve, rule_called
from paceline.types import NamedProgress, SamplingParams, silent

CHECKS = ("rows", "rule", "greedy", "coupled", "load", "accounting", "controls", "law")
"""In the order in which they run: the law check takes the time that is left."""
SHARES = {"greedy": 0.15, "coupled": 0.12, "load": 0.12, "accounting": 0.08, "controls": 0.2}
"""Fractions of the total time; the law check takes the rest."""
_NUM_CASES = 2
_SAMPLED = SamplingParams(temperature=1.0)
_LEAST_PROMPTS = 3


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """Settings of an audit.

    Attributes:
        speculative: fields of the `SpeculativeConfig` to audit.
        minutes: total time.
        checks: some of `CHECKS`.
        alpha: probability of a false alarm in the law check, however long it runs.
        detect: a lenience that must be excluded (1.05: acceptance probabilities 5 % too large); None for no goal.
        max_tokens: largest length of an answer.
    """

    speculative: dict[str, Any]
    minutes: float = 5.0
    checks: Sequence[str] = CHECKS
    alpha: float = 1e-6
    detect: float | None = None
    max_tokens: int = 64

    def __post_init__(self) -> None:
        unknown = [name for name in self.checks if name not in CHECKS]
        if unknown:
            raise InvalidParameter("checks", f"{unknown[0]!r} is unknown", f"use some of {', '.join(CHECKS)}")
        if not 0 < self.minutes < inf:
            raise InvalidParameter("minutes", f"{self.minutes} is not above 0", "give it some time")
        if self.max_tokens < 2:
            problem = f"{self.max_tokens} leaves nothing to draft: the first token comes with the prompt"
            raise InvalidParameter("max_tokens", problem, "give at least 2")
        if not 0 < self.alpha < 1:
            raise InvalidParameter("alpha", f"{self.alpha} is not in (0, 1)", "1e-6 is usual")
        if self.detect is not None:
            self._check_detect(self.detect)

    def _check_detect(self, least: float) -> None:
        """Raise InvalidParameter for a lenience that no amount of text could exclude."""
        if least < LENIENCES[0]:
            problem = f"lenience={least:g} is less than any that is bet on"
            raise InvalidParameter("detect", problem, f"the smallest that can be excluded is {LENIENCES[0]:g}")
        if "law" not in self.checks:
            raise InvalidParameter("detect", "needs the check law, which is not asked for", "add law to the checks")
        if rule_called(self.speculative.get("rule", AUTO)).judges_blocks:
            remedy = "leave it out, or use rule auto or p/q"
            raise InvalidParameter("detect", "under the rule block bets must not read the draft", remedy)


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        checks: in order.
        verdict: of all of them.
        smallest_effect_excluded: acceptance probabilities too large by this factor or more are excluded at 95 %; None
            if no factor is.
        is_detected: the lenience to detect is excluded, or there is none.
        seconds: duration.
    """

    checks: tuple[Check, ...]
    verdict: Verdict
    smallest_effect_excluded: float | None
    is_detected: bool
    seconds: float

    def exit_code(self, strict: bool = False) -> int:
        """The exit code for builds; see `verdict.exit_code`."""
        return exit_code(self.verdict, strict, self.is_detected)


def audit(
    plain: LLM,
    prompts: Sequence[Sequence[int]],
    plan: AuditPlan,
    bets: Bets | None = None,
    progress: NamedProgress = silent,
    clock: Callable[[], float] = time.monotonic,
) -> Audit:
    """Run the checks of `plan`.

    Args:
        plain: the model with plain decoding; the speculating one shares its weights.
        prompts: token ids, with those that draft well (copying) first or interleaved.
        bets: with the wealth of earlier audits.
        progress: called with (check, checks done, number of checks).
        clock: seconds, monotonic.
    """
    return _Audit(plain, prompts, plan, bets or Bets(), progress, clock).run()


class _Audit:
    """The state of a running audit."""

    def __init__(
        self, plain: LLM, prompts: Sequence[Sequence[int]], plan: AuditPlan, bets: Bets, progress: NamedProgress,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.plain, self.prompts, self.plan, self.bets = plain, prompts, plan, bets
        self.progress, self.clock = progress, clock
        self.started = clock()
        self.spec = plain.drafting_with(plan.speculative)
        if plan.detect is not None and self.spec.engine.speculation.judge_of(_SAMPLED, 0).coupled:
            remedy = "leave it out, or audit the rule p/q"
            raise InvalidParameter("detect", "with this drafter bets must not read drafts: they may know noise", remedy)
        self.rule = str(plan.speculative.get("rule", AUTO))
        self.cases: list[Case] = []
        self.controls: list[Control] = []
        self.token_seconds = self._pace()

    def run(self) -> Audit:
        """Run the checks of the plan in the order of `CHECKS`.

        Raises:
            KeyboardInterrupt: at Ctrl-C, with the verdicts of the checks so far. There is none of the audit: controls
                may still show that a check finds nothing.
        """
        wanted = [name for name in CHECKS if name in self.plan.checks]
        checks: list[Check] = []
        try:
            for number, name in enumerate(wanted):
                self.progress(f"audit: {name}", number, len(wanted))
                checks.append(getattr(self, f"_{name}")())
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_so_far(checks, len(wanted))) from None
        self.progress("audit", len(wanted), len(wanted))
        blind = blind_checks(self.controls)
        checks = without_blind(checks, blind)
        excluded = None if "law" in blind else self.bets.smallest_excluded()
        detected = self.plan.detect is None or (excluded is not None and excluded <= self.plan.detect)
        return Audit(tuple(checks), overall(checks), excluded, detected, self.clock() - self.started)

    def _rows(self) -> Check:
        return rows_check(self.plain.loaded.model)

    def _rule(self) -> Check:
        rules: dict[str, Verifier] = {self.rule: resolve(self.rule, **self.plan.speculative.get("rule_options", {}))}
        if self.rule == AUTO:
            rules |= {name: resolve(name) for name in ("p/q", "sample_and_match")}
        check = rule_check(self._places(), rules)
        if "controls" in self.plan.checks:
            self.controls += rule_controls(self._places())
        return check

    def _greedy(self) -> Check:
        return greedy_check(self.plain, self.spec, self._some("greedy", 3), self.plan.max_tokens)

    def _coupled(self) -> Check:
        if not rule_called(self.rule).keeps_seeds:
            says = f"rule {self.rule!r} promises the law, not the same text for a seed"
            return Check("coupled", "UNTESTED", says, arises=False)
        return coupled_check(self.plain, self.spec, self._some("coupled", 3), self.plan.max_tokens)

    def _load(self) -> Check:
        prompts = self._some("load", 3)
        return load_check(self.plain, self.spec, prompts, self.plan.max_tokens, rule_called(self.rule).keeps_seeds)

    def _accounting(self) -> Check:
        return accounting_check(self.plain, self.spec, self._some("accounting", 5), self.plan.max_tokens)

    def _controls(self) -> Check:
        seconds = SHARES["controls"] * 60 * self.plan.minutes
        if "greedy" in self.plan.checks and not rule_called(self.rule).is_lossy:
            few = self.prompts[:2]
            self.controls.append(greedy_control(self.plain, self.plan.speculative, few, self.plan.max_tokens))
        if "law" in self.plan.checks:
            few = self.prompts[: max(2, len(self.prompts) // 2)]
            self.controls += law_controls(
                self.plain, self.plan.speculative, few, self.plan.max_tokens, log(self.plan.alpha), seconds, self.clock
            )
        return controls_check(self.controls)

    def _law(self) -> Check:
        params = SamplingParams(temperature=1.0, max_tokens=self.plan.max_tokens)
        detect = self.plan.detect

        def is_enough(bets: Bets) -> bool:
            excluded = bets.smallest_excluded()
            return detect is not None and excluded is not None and excluded <= detect

        batches = answers_without_end(self.spec, self.prompts, params)
        deadline, reads_drafts = self.started + 60 * self.plan.minutes, not rule_called(self.rule).judges_blocks
        bet(batches, self.bets, log(self.plan.alpha), deadline, is_enough, clock=self.clock, reads_drafts=reads_drafts)
        return law_check(self.bets, log(self.plan.alpha))

    def _places(self) -> list[Case]:
        """The cases of the rule check, at the ends of the first prompts; computed once."""
        if not self.cases:
            some = self.prompts[:_NUM_CASES]
            self.cases = [case_of(self.plain.loaded.model, None, prompt, _SAMPLED) for prompt in some]
        return self.cases

    def _some(self, check: str, answers_per_prompt: int) -> Sequence[Sequence[int]]:
        """As many prompts as fit into the check's share of the time, but at least `_LEAST_PROMPTS`."""
        seconds = SHARES[check] * 60 * self.plan.minutes
        each = answers_per_prompt * self.plan.max_tokens * self.token_seconds
        return self.prompts[: max(_LEAST_PROMPTS, int(seconds / each))]

    def _pace(self) -> float:
        """Seconds per token of plain decoding, including the prefill."""
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        self.plain.generate([list(self.prompts[0])], params)
        began = self.clock()
        output = self.plain.generate([list(self.prompts[0])], params)[0]
        return max(self.clock() - began, 1e-6) / len(output.token_ids)


def _so_far(checks: Sequence[Check], num_wanted: int) -> str:
    """A line on an audit that was ended after some of its checks."""
    if not checks:
        return "ended before the first check was done; nothing is written"
    found = ", ".join(f"{check.name} {check.verdict}" for check in checks)
    return f"ended after {len(checks)} of {num_wanted} checks ({found}); this is no verdict, and nothing is written"
