"""The loop of a bench: every cell by all arms, until all cells are done, time is up or the precision is reached."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from paceline.errors import InvalidParameter
from paceline.evaluation.bench.arms import Arm, Cell
from paceline.evaluation.bench.energy import EnergyMeter
from paceline.evaluation.bench.open_loop import MOST_ARRIVALS, arrival_times
from paceline.evaluation.bench.record import BenchFile, Measurement
from paceline.evaluation.bench.schedule import in_order
from paceline.evaluation.bench.summary import pairs_of
from paceline.evaluation.prompts import Prompt
from paceline.evaluation.provenance import load_average
from paceline.evaluation.stats import LEAST_PROMPTS, time_ratio
from paceline.types import NamedProgress, silent


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        cells: in the order of measurement, the same in every round.
        rounds: number of rounds, each from a cold start.
        minutes: time after which no cell begins; None for no limit.
        precision: relative half-width of the intervals at which the bench may stop; None to measure everything.
    """

    cells: Sequence[Cell]
    rounds: int = 1
    minutes: float | None = None
    precision: float | None = None

    def __post_init__(self) -> None:
        if not self.cells:
            raise InvalidParameter("prompts", "there are none", "give at least one")
        if self.rounds < 1:
            raise InvalidParameter("rounds", f"{self.rounds} is less than 1", "ask everything at least once")
        for cell in self.cells:
            cell.params(len(cell.prompts) - 1)  # raises for invalid sampling parameters before a model is loaded
            if cell.max_tokens < 2:
                problem = f"{cell.max_tokens} leaves nothing to decode: the first token comes of reading the prompt"
                raise InvalidParameter("max_tokens", problem, "let answers have at least 2")
        for name, value in (("minutes", self.minutes), ("precision", self.precision)):
            if value is not None and not value > 0:
                raise InvalidParameter(name, f"{value} is not above 0", "leave it out for no limit")


def cells_of(
    prompts: Sequence[Prompt],
    temperatures: Sequence[float] = (0.0,),
    concurrency: Sequence[int] = (1,),
    seed: int | None = 0,
    max_tokens: int = 128,
    ignore_eos: bool = False,
) -> list[Cell]:
    """Closed-loop cells, with all settings interleaved: each has as many prompts of one family as its concurrency.

    Raises:
        InvalidParameter: a concurrency below 1, or above the number of prompts of every family.
    """
    cells: list[Cell] = []
    groups = {size: _groups(prompts, size) for size in concurrency}
    for number in range(max(map(len, groups.values()))):
        for temperature, size in product(temperatures, concurrency):
            if number < len(groups[size]):
                family, texts = groups[size][number]
                own = None if seed is None else seed + 1000 * number
                cells.append(Cell(len(cells), texts, family, temperature, own, max_tokens, ignore_eos))
    return cells


def open_cells_of(
    prompts: Sequence[Prompt], rates: Sequence[float], temperatures: Sequence[float] = (0.0,), seed: int | None = 0,
    max_tokens: int = 128, ignore_eos: bool = False,
) -> list[Cell]:  # fmt: skip
    """Open-loop cells: at each rate and temperature all prompts once, in cells of equal size, families mixed.

    The size of a cell is at most `MOST_ARRIVALS`, and small enough for `LEAST_PROMPTS` cells if there are prompts for
    two in each. Prompts that do not fill the last cell are left out.

    Raises:
        InvalidParameter: a rate that is not above 0, or fewer than two prompts.
    """
    if not all(rate > 0 for rate in rates):
        raise InvalidParameter("rate", f"{list(rates)} are not all above 0", "give requests a second")
    size = min(MOST_ARRIVALS, max(2, len(prompts) // LEAST_PROMPTS))
    texts = [tuple(each.text for each in prompts[first : first + size]) for first in range(0, len(prompts), size)]
    whole = [each for each in texts if len(each) == size]
    if not whole:
        raise InvalidParameter("rate", "there is one prompt", "give at least two")
    cells: list[Cell] = []
    for number, each in enumerate(whole):
        for temperature, rate in product(temperatures, rates):
            own = None if seed is None else seed + 1000 * number
            starts = arrival_times(rate, size, number)
            cells.append(Cell(len(cells), each, MIXED, temperature, own, max_tokens, ignore_eos, rate, starts))
    return cells


MIXED = "mixed"
"""The family of cells with prompts of several families."""


def _groups(prompts: Sequence[Prompt], size: int) -> list[tuple[str, tuple[str, ...]]]:
    if size < 1:
        raise InvalidParameter("concurrency", f"{size} is less than 1", "ask at least one at a time")
    families: dict[str, list[str]] = {}
    groups: list[tuple[str, tuple[str, ...]]] = []
    for prompt in prompts:
        waiting = families.setdefault(prompt.family, [])
        waiting.append(prompt.text)
        if len(waiting) == size:
            groups.append((prompt.family, tuple(waiting)))
            waiting.clear()
    if not groups:
        problem = f"no family has {size} prompts, the largest {max(map(len, families.values()), default=0)}"
        raise InvalidParameter("concurrency", problem, "name a file with more as --prompts, or ask fewer at once")
    return groups


def run_bench(
    arms: Sequence[Arm],
    plan: Plan,
    file: BenchFile,
    progress: NamedProgress = silent,
    clock: Callable[[], float] = time.monotonic,
    meter: EnergyMeter | None = None,
) -> str:
    """Measure the missing cells of `plan` and add them to `file`.

    Args:
        arms: the first of them is plain decoding.
        progress: called with ("round 1 of 2", cells done, number of cells).
        clock: seconds.
        meter: of energy; None for this machine's.

    Returns:
        Why it ended: ``all`` cells done, ``minutes`` or ``precision`` reached, or ``interrupted``.
    """
    started, done, meter = clock(), file.done(), meter or EnergyMeter()
    try:
        for number in range(plan.rounds):
            waiting = [cell for cell in plan.cells if (number, cell.number) not in done]
            if waiting:
                for arm in arms:
                    arm.begin(number)
            for cell in waiting:
                if plan.minutes is not None and clock() - started > 60 * plan.minutes:
                    return "minutes"
                what = f"round {number + 1} of {plan.rounds}"
                progress(what, cell.number, len(plan.cells))
                file.add(_measured(arms, number, cell, clock() - started, meter))
                if plan.precision is not None and is_known(arms, file, plan.precision):
                    return "precision"
            progress(f"round {number + 1} of {plan.rounds}", len(plan.cells), len(plan.cells))
    except KeyboardInterrupt:
        return "interrupted"
    return "all"


def _measured(
    arms: Sequence[Arm], number: int, cell: Cell, now: float, meter: EnergyMeter
) -> list[Measurement]:  # fmt: skip
    """The measurements of one cell by every arm, in the cell's order of the balanced ones."""
    load, measured = load_average(), []
    for place, arm in enumerate(in_order(arms, number + cell.number)):
        before = meter.read()
        seconds, answers = arm.answer(cell)
        joules = meter.joules(before, meter.read()) if arm.is_here else None
        measured.append(
            Measurement(
                number, cell.number, arm.label, cell.family, cell.temperature, len(cell.prompts), place, seconds,
                tuple(answers), now, load, cell.rate, joules,
            )
        )  # fmt: skip
    return measured


def is_known(arms: Sequence[Arm], file: BenchFile, precision: float) -> bool:
    """Whether every arm's interval at every setting has a relative half-width of at most `precision`."""
    settings = {one.setting for one in file.measurements}
    if len({one.cell for one in file.measurements}) < LEAST_PROMPTS * len(settings):
        return False
    for setting in settings:
        some = [m for m in file.measurements if m.setting == setting]
        for arm in arms:
            pairs = pairs_of(some, arm.label, arm.base, decode=True)
            if arm.label != arm.base and not time_ratio(pairs).half_width <= precision:
                return False
    return True
