"""A sequential test of a sampled text against its laws by betting: valid at any stopping time, combined by products.

If the text follows p, then E = prod a_t(x_t) / p_t(x_t) is a test martingale for every rival law a_t that was fixed
before x_t, and P(sup E >= 1 / alpha) <= alpha (Ville). A mixture of rivals is one too. Under a rival's law log E grows
by KL(a || p) per token, so about (ln 1 / alpha + ln rivals) / KL tokens are needed. The inverse 1 / E_a tests the rival
itself: where it reaches 20, that effect is excluded at 95 %. Shafer 2021; Ramdas et al. 2023 (2210.01948).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, log
from typing import Any

import numpy as np

from paceline.evaluation.audit.rivals import LENIENCES, RIVALS, draft_quantile, lenience_name, ratios
from paceline.sampling.law import Law

UNFORESEEN = "unforeseen"
HEDGE = 0.02
"""Weight of p in every bet, so that a single token cannot end the wealth of a rival close to the actual fault."""
_BINS = 10
_EXCLUDED = float(np.log(20))


@dataclass(slots=True)
class Bets:
    """Wealth of the bets on every rival, and the conclusions from it.

    Attributes:
        log_wealth: by rival, natural logarithm of its wealth.
        num_tokens, num_drafted: number of tokens, and of those for which something was drafted.
        num_compared, num_other: number of tokens that were compared with the draw of their request's noise, and of
            those that are others.
        peak: largest natural logarithm of the mixture's wealth so far.
        log_pure: by degree of lenience, log wealth without `HEDGE`, from which exclusions follow.
    """

    log_wealth: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*_NAMES, UNFORESEEN), 0.0))
    num_tokens: int = 0
    num_drafted: int = 0
    num_compared: int = 0
    num_other: int = 0
    peak: float = 0.0
    log_pure: dict[str, float] = field(default_factory=lambda: dict.fromkeys(map(lenience_name, LENIENCES), 0.0))
    _bins: np.ndarray = field(default_factory=lambda: np.ones(_BINS))
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Bets":
        """Bets that continue with the wealth of earlier, independent runs, from the output of `as_record`."""
        bets = cls(**{field: record[name] for name, field in _COUNTS.items()})
        for own, name in ((bets.log_wealth, "log_wealth"), (bets.log_pure, "log_pure")):
            own |= {rival: float(record[name].get(rival, 0.0)) for rival in own}
        bets.peak = max(0.0, bets.log_e, float(record.get("peak", 0.0)))
        return bets

    def as_record(self) -> dict[str, Any]:
        """JSON-ready, without infinities."""
        wealth = {name: {rival: max(value, -1e9) for rival, value in own.items()}
                  for name, own in (("log_wealth", self.log_wealth), ("log_pure", self.log_pure))}  # fmt: skip
        counts = {name: getattr(self, field) for name, field in _COUNTS.items()}
        return {**counts, "peak": min(self.peak, 1e9), **wealth}

    @property
    def log_e(self) -> float:
        """Natural logarithm of the mean wealth of all rivals."""
        return _log_mean(np.array(list(self.log_wealth.values())))

    @property
    def p_value(self) -> float:
        """The p-value of exact text, valid at any stopping time."""
        return float(np.exp(-max(0.0, self.peak)))

    @property
    def favourite(self) -> str:
        """The rival with the largest wealth."""
        return max(self.log_wealth, key=lambda name: self.log_wealth[name])

    def feed(
        self, p: Law, q: Law | None, token: int, is_drawn: bool | None = None, *, reads_draft: bool = True
    ) -> None:  # fmt: skip
        """Bet on one emitted token.

        Args:
            p: the law it should have been drawn from.
            q: the draft's law at its position, fixed before the token; None where nothing was drafted.
            is_drawn: whether it is the token that known noise draws from p, as it must be; None if none is known. Then
                the drafter may know the noise too, so that q is not fixed before the token, and no bet reads it.
            reads_draft: False for block verification, where the length of a round carries information on its tokens.
        """
        self.num_tokens += 1
        self.num_drafted += q is not None
        if is_drawn is not None:
            self.num_compared += 1
            self.num_other += not is_drawn
            reads_draft = False
        if is_drawn is False or not p.prob(token) > 0:
            self.peak = float("inf")
            return
        q = q if reads_draft else None
        gains = ratios(p, q, token)
        for name, gain in zip(_NAMES, gains.tolist(), strict=True):
            self.log_wealth[name] += log((1 - HEDGE) * gain + HEDGE)
            if name in self.log_pure:
                self.log_pure[name] += log(gain) if gain > 0 else -inf
        if q is not None:
            self._bet_on_histogram(draft_quantile(p, q, token, float(self._rng.random())))
        self.peak = max(self.peak, self.log_e)

    def is_excluded(self, factor: float) -> bool:
        """Whether a rule that is `factor` times too lenient is excluded at 95 %."""
        return self.log_pure[lenience_name(factor)] <= -_EXCLUDED

    def smallest_excluded(self) -> float | None:
        """The smallest lenience of the grid from which on all are excluded; None if the largest one is not."""
        found = None
        for factor in sorted(LENIENCES, reverse=True):
            if not self.is_excluded(factor):
                break
            found = factor
        return found

    def _bet_on_histogram(self, quantile: float) -> None:
        """Bet on the histogram of the quantiles so far, for faults that no rival describes."""
        place = min(int(quantile * _BINS), _BINS - 1)
        self.log_wealth[UNFORESEEN] += float(np.log(_BINS * self._bins[place] / self._bins.sum()))
        self._bins[place] += 1


_NAMES = tuple(rival.name for rival in RIVALS)
_COUNTS = {
    "tokens": "num_tokens", "drafted_tokens": "num_drafted", "compared_draws": "num_compared",
    "other_draws": "num_other",
}  # fmt: skip
"""Name in a record to attribute."""


def _log_mean(values: np.ndarray) -> float:
    """log(mean(exp(values))) without overflow."""
    largest = float(values.max())
    return -np.inf if np.isneginf(largest) else largest + float(np.log(np.exp(values - largest).mean()))
