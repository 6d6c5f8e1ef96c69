"""Statistics of measurements with intervals: per arm, family, temperature, and concurrency or rate."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.evaluation.bench.record import Measurement
from paceline.evaluation.bench.slo import Slo
from paceline.evaluation.report import Decoding, drafts_can_explain
from paceline.evaluation.stats import TOO_FEW, TOO_UNEVEN, Interval, Pairs, holm, time_ratio, typical_ratio

ALL = "all"
LEVEL = 0.05
NO_CAUSE = "drafts cannot be the cause"
"""The verdict on a ratio that is larger or smaller than drafts can make it."""


@dataclass(frozen=True, slots=True)
class Position:
    """Acceptance at one position of the draft.

    Attributes:
        conditional: accepted fraction of the tested tokens.
        marginal: fraction of all passes in which the position was accepted; 1 plus their sum is the tokens per pass.
        tested: number of tested tokens.
    """

    conditional: float
    marginal: float
    tested: int


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """Statistics of one arm over some cells. What the arm does not report is None.

    Attributes:
        arm, base: labels of the arm and of its baseline.
        decode: ratio to the baseline in tokens per second after the first token, over all prompts.
        whole: the same from the request on, prefill included.
        typical: geometric mean of the prompts' decode ratios.
        tokens_per_second: of decoding, the first token of each answer left out.
        tokens_per_pass: acceptance length; plain decoding is 1.
        acceptance: accepted / (accepted + rejected).
        positions: acceptance by position in the draft.
        wasted: fraction of the drafted tokens that were not accepted.
        draft_share: fraction of decoding time spent drafting.
        first_token_seconds: median.
        first_token_95, per_token_95: 95th percentile of seconds to the first token, and per further token.
        identical, num_cells: number of cells with the baseline's answers, and of all cells.
        in_time: fraction of answers that meet the latency limits (`Slo`); None without limits.
        goodput: answers that meet them per second of its cells; None without limits.
        joules_per_token: of the processor, prefill included; None if it cannot be read.
        is_plausible: whether drafts can explain the ratio (`report.drafts_can_explain`); True where that cannot be
            told: of servers that report no passes, and of requests that run together.
        verdict: ``faster``, ``slower``, ``no difference shown``, ``too noisy``, `NO_CAUSE`, ``baseline``, ``the
            baseline again: noise``, or why there is no interval.
    """

    arm: str
    base: str
    decode: Interval
    whole: Interval
    typical: Interval
    tokens_per_second: float
    tokens_per_pass: float | None
    acceptance: float | None
    positions: tuple[Position, ...]
    wasted: float | None
    draft_share: float | None
    first_token_seconds: float
    first_token_95: float
    per_token_95: float
    identical: int
    num_cells: int
    in_time: float | None = None
    goodput: float | None = None
    joules_per_token: float | None = None
    is_plausible: bool = True
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """All arms on one family at one temperature and one concurrency or rate.

    Attributes:
        rate: requests per second of an open loop; `concurrency` is then the number of requests of a cell.
        noise_floor: largest distance from 1 of the interval of plain decoding against itself; None if unknown.
        differs_from_itself: whether that interval does not hold 1; no smaller difference than the floor then counts.
        precision: largest noise floor with verdicts; None for no limit.
    """

    family: str
    temperature: float
    concurrency: int
    arms: tuple[ArmSummary, ...]
    noise_floor: float | None
    differs_from_itself: bool = False
    rate: float | None = None
    precision: float | None = None

    @property
    def noise(self) -> str | None:
        """Why the machine is too noisy for verdicts; None if it is not."""
        floor, most = self.noise_floor, self.precision
        if most is None or (floor is not None and floor <= most):
            return None
        if floor is None:
            is_uneven = any(one.decode.lacking == TOO_UNEVEN for one in self.arms)
            return "how far plain decoding differs from itself cannot be told: an answer stalled" if is_uneven else None
        return (
            f"plain decoding differs from itself by up to {100 * floor:.1f} %, more than the "
            f"{100 * most:.1f} % that were asked for"
        )


def tables_of(
    measurements: Sequence[Measurement],
    bases: dict[str, str],
    again: dict[str, str],
    precision: float | None = None,
    slo: Slo | None = None,
) -> list[Table]:
    """Tables of all prompts and, if there are several, of every family, for every temperature and concurrency or rate.

    Args:
        measurements: of complete cells only.
        bases: label of each arm to its baseline.
        again: baseline to its repetition.
        precision: largest noise floor with verdicts; None for no limit.
        slo: latency limits.
    """
    tables = []
    for temperature, concurrency, rate in sorted({one.setting for one in measurements}):
        inside = [m for m in measurements if m.setting == (temperature, concurrency, rate)]
        families = sorted({one.family for one in inside})
        for family in [ALL, *(families if len(families) > 1 else [])]:
            some = [one for one in inside if family in (ALL, one.family)]
            arms = tuple(_summary(label, base, some, slo) for label, base in bases.items())
            floor = _noise_floor(arms, again)
            differs = any(_holds_not_1(one.decode) for one in arms if one.arm in again.values())
            table = Table(family, temperature, concurrency, arms, floor, differs, rate or None, precision)
            tables.append(replace(table, arms=_judged(table, bases, again)))
    return tables


def idle_arms(measurements: Sequence[Measurement], bases: dict[str, str], again: dict[str, str]) -> list[str]:
    """Arms that report drafted tokens but drafted none: speculation is off, or finds nothing in these prompts."""
    drafted: dict[str, int] = defaultdict(int)
    for one in measurements:
        for answer in one.answers:
            if answer.drafted is not None:
                drafted[one.arm] += answer.drafted
    return [arm for arm, count in drafted.items() if not count and bases[arm] != arm and arm not in again.values()]


def pairs_of(measurements: Sequence[Measurement], arm: str, base: str, decode: bool) -> Pairs:
    """Seconds and tokens per cell of both arms, summed over rounds; cells with a sum of 0 are left out."""
    sums: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(4))
    families: dict[int, str] = {}
    for one in measurements:
        if one.arm not in (arm, base):
            continue
        seconds, tokens = (one.decode_seconds, one.decoded_tokens) if decode else (one.whole_seconds, one.tokens)
        families[one.cell] = one.family
        for label, place in ((base, 0), (arm, 2)):
            if one.arm == label:
                sums[one.cell][place : place + 2] += seconds, tokens
    kept = [cell for cell, values in sums.items() if (values > 0).all()]
    columns = np.array([sums[cell] for cell in kept]).reshape(-1, 4).T
    return Pairs(*columns, strata=[families[cell] for cell in kept])


def _summary(label: str, base: str, measurements: Sequence[Measurement], slo: Slo | None) -> ArmSummary:
    own = [one for one in measurements if one.arm == label]
    answers = [answer for one in own for answer in one.answers]
    decoding = pairs_of(measurements, label, base, decode=True)
    whole = pairs_of(measurements, label, base, decode=False)
    tokens, seconds = sum(one.decoded_tokens for one in own), sum(one.decode_seconds for one in own)
    theirs = {(one.round, one.cell): one for one in measurements if one.arm == base}
    passes = _sum(answer.passes for answer in answers)
    drafted, accepted = _sum(a.drafted for a in answers), _sum(a.accepted for a in answers)
    rejected = _sum(a.rejected for a in answers)
    emitted = sum((i + 1) * n for answer in answers for i, n in enumerate(answer.accepted_per_pass))
    return ArmSummary(
        arm=label,
        base=base,
        decode=time_ratio(decoding),
        whole=time_ratio(whole),
        typical=typical_ratio(decoding),
        tokens_per_second=tokens / seconds,
        tokens_per_pass=(emitted or (passes + (accepted or 0))) / passes if passes else None,
        acceptance=_ratio(accepted, accepted, rejected),
        positions=_positions(answers, passes),
        wasted=1 - accepted / drafted if drafted and accepted is not None else None,
        draft_share=_draft_share(answers),
        first_token_seconds=float(np.median([answer.first_token_seconds for answer in answers])),
        first_token_95=float(np.quantile([answer.first_token_seconds for answer in answers], 0.95)),
        per_token_95=float(np.quantile([answer.seconds_per_token for answer in answers], 0.95)),
        identical=sum(_same(one, theirs) for one in own),
        num_cells=len(own),
        in_time=slo.share(answers) if slo else None,
        goodput=slo.share(answers) * len(answers) / sum(one.seconds for one in own) if slo else None,
        joules_per_token=_joules_per_token(own),
        is_plausible=drafts_can_explain(_decodings(own, theirs)),
    )  # fmt: skip


def _decodings(
    own: Sequence[Measurement], theirs: Mapping[tuple[int, int], Measurement]
) -> list[tuple[Decoding, Decoding]]:
    """(the arm's, its baseline's) decoding of every prompt that was answered alone and whose passes are known."""
    pairs = [(_decoding(one), _decoding(theirs[one.round, one.cell])) for one in own]
    return [(mine, plain) for mine, plain in pairs if mine is not None and plain is not None]


def _decoding(one: Measurement) -> Decoding | None:
    [answer, *others] = one.answers
    if others or one.rate is not None or answer.passes is None or answer.verify_seconds is None:
        return None
    return Decoding(
        one.decoded_tokens, answer.passes, answer.drafted or 0, one.decode_seconds, answer.verify_seconds
    )  # fmt: skip


def _joules_per_token(own: Sequence[Measurement]) -> float | None:
    known = [one.joules for one in own if one.joules is not None]
    return sum(known) / sum(one.tokens for one in own) if len(known) == len(own) else None


def _same(one: Measurement, base: dict[tuple[int, int], Measurement]) -> bool:
    other = base[one.round, one.cell]
    return all(mine.says(theirs) for mine, theirs in zip(one.answers, other.answers, strict=True))


def _positions(answers: Sequence[Any], passes: int | None) -> tuple[Position, ...]:
    depth = max((len(answer.tested_per_level) for answer in answers), default=0)
    found = []
    for level in range(depth):
        tested = sum(a.tested_per_level[level] for a in answers if level < len(a.tested_per_level))
        accepted = sum(a.accepted_per_level[level] for a in answers if level < len(a.accepted_per_level))
        if tested and passes:
            found.append(Position(accepted / tested, accepted / passes, tested))
    return tuple(found)


def _draft_share(answers: Sequence[Any]) -> float | None:
    known = [answer for answer in answers if answer.draft_seconds is not None]
    busy = sum(a.draft_seconds + a.verify_seconds + a.other_seconds for a in known)
    return sum(a.draft_seconds for a in known) / busy if busy else None


def _ratio(part: int | None, *whole: int | None) -> float | None:
    """`part` / sum(`whole`); None if something is unknown or the sum is 0."""
    known = [number for number in whole if number is not None]
    return part / sum(known) if part is not None and len(known) == len(whole) and sum(known) else None


def _sum(values: Any) -> int | None:
    """The sum of `values`; None if it is empty or has a None."""
    known = list(values)
    return sum(known) if known and all(value is not None for value in known) else None


def _noise_floor(arms: Sequence[ArmSummary], again: dict[str, str]) -> float | None:
    floors = [_reach(one.decode) for one in arms if one.arm in again.values()]
    known = [floor for floor in floors if floor is not None]
    return max(known) if known and len(known) == len(floors) else None


def _reach(interval: Interval) -> float | None:
    """Largest distance of the interval's ends from 1; None without an interval."""
    if interval.low is None or interval.high is None:
        return None
    return max(abs(interval.high - 1), abs(1 - interval.low))


def _holds_not_1(interval: Interval) -> bool:
    """Whether there is an interval and 1 is outside of it."""
    return interval.low is not None and not interval.low <= 1 <= (interval.high or 0)


def _judged(table: Table, bases: dict[str, str], again: dict[str, str]) -> tuple[ArmSummary, ...]:
    """The table's arms with verdicts, from p-values adjusted for the number of arms compared."""
    compared = [one for one in table.arms if one.arm not in (*again, *again.values()) and one.decode.p is not None]
    corrected = dict(zip((one.arm for one in compared), holm([one.decode.p or 0.0 for one in compared]), strict=True))
    judged = []
    for one in table.arms:
        is_base = bases[one.arm] == one.arm or one.arm in again.values()
        least = (table.noise_floor or 0.0) if table.differs_from_itself else 0.0
        verdict = _verdict(one, corrected.get(one.arm), table.noise is not None, is_base, least)
        judged.append(replace(one, verdict=verdict))
    return tuple(judged)


def _verdict(one: ArmSummary, p: float | None, noisy: bool, is_base: bool, least: float) -> str:
    """The verdict on an arm; a ratio at most `least` from 1 is no difference."""
    if is_base:
        return "baseline" if one.base == one.arm else "the baseline again: noise"
    if one.decode.low is None or p is None:
        return one.decode.lacking or TOO_FEW
    if noisy:
        return "too noisy"
    if not one.is_plausible:
        return NO_CAUSE
    if p >= LEVEL or not _holds_not_1(one.decode) or abs(one.decode.ratio - 1) <= least:
        return "no difference shown"
    return "faster" if one.decode.ratio > 1 else "slower"
