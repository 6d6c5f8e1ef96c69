"""`--gate`: a smallest speed-up that a bench must show, for use in builds."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.evaluation.bench.summary import ALL, Table
from paceline.evaluation.report import without_cause

_FORM = re.compile(r"^\s*(?P<arm>.+?)\s*>=\s*(?P<least>[0-9.]+)\s*(?:@\s*(?P<family>.+?)\s*)?$")


@dataclass(frozen=True, slots=True)
class Gate:
    """The condition that the interval of `arm`'s ratio to its baseline on `family` begins at `least` or above."""

    arm: str
    least: float
    family: str = ALL

    @classmethod
    def of(cls, text: str) -> "Gate":
        """Parse ``ARM>=RATIO`` or ``ARM>=RATIO@FAMILY``. Raises InvalidParameter for anything else."""
        found = _FORM.match(text)
        try:
            if found is None:
                raise ValueError
            return cls(found["arm"], float(found["least"]), found["family"] or ALL)
        except ValueError:
            raise InvalidParameter(
                "gate", f"{text!r} cannot be read", "write e.g. 'suffix>=1.2@summarization'"
            ) from None

    def check(self, arms: Sequence[str], families: Collection[str]) -> None:
        """Raise InvalidParameter, before the bench runs, if the arm or the family will not be measured."""
        if self.arm not in arms:
            raise InvalidParameter("gate", f"there is no arm {self.arm!r}", f"arms are {', '.join(arms)}")
        if self.family not in (ALL, *families):
            known = ", ".join(sorted(families))
            raise InvalidParameter("gate", f"there is no family {self.family!r}", f"families are {known}")

    def failures(self, tables: Sequence[Table]) -> list[str]:
        """A sentence for every setting at which the condition is not met."""
        some = [
            (table, one) for table in tables for one in table.arms if (table.family, one.arm) == (self.family, self.arm)
        ]
        if not some:  # the time was up before this family's first prompt
            return [f"{self.arm} on {self.family}: not measured"]
        failures = []
        for table, one in some:
            low, shown = one.decode.low, table.noise
            if low is None:
                shown = f"{one.decode.lacking}, so there is no interval"
            elif low < self.least:
                shown = f"its interval begins at {low:.3f}, not {self.least:g}"
            elif not one.is_plausible:
                shown = without_cause(one.decode.ratio)
            if shown is not None:
                failures.append(f"{self.arm} on {self.family}, temperature {table.temperature:g}: {shown}")
        return failures
