"""`--gate`: what a bench must show, as a line that a build can fail on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.evaluation.bench.summary import ALL, Table

_FORM = re.compile(r"^(?P<arm>.+?)>=(?P<least>[0-9.]+)(?:@(?P<family>.+))?$")


@dataclass(frozen=True, slots=True)
class Gate:
    """`arm` is at least `least` times its baseline on `family`: the lower end of its interval says so."""

    arm: str
    least: float
    family: str = ALL

    @classmethod
    def of(cls, text: str) -> "Gate":
        """From ``ARM>=RATIO`` or ``ARM>=RATIO@FAMILY``. Raises InvalidParameter for anything else."""
        found = _FORM.match(text.replace(" ", ""))
        try:
            if found is None:
                raise ValueError
            return cls(found["arm"], float(found["least"]), found["family"] or ALL)
        except ValueError:
            raise InvalidParameter(
                "gate", f"{text!r} cannot be read", "write e.g. 'suffix>=1.2@summarization'"
            ) from None

    def failures(self, tables: Sequence[Table]) -> list[str]:
        """A sentence for every setting at which it is not shown.

        Raises:
            InvalidParameter: there is no such arm or family.
        """
        some = [
            (table, one) for table in tables for one in table.arms if (table.family, one.arm) == (self.family, self.arm)
        ]
        if not some:
            known = ", ".join(sorted({one.arm for table in tables for one in table.arms}))
            raise InvalidParameter("gate", f"there is no arm {self.arm!r} on {self.family!r}", f"arms are {known}")
        failures = []
        for table, one in some:
            low = one.decode.low
            if low is None or low < self.least:
                shown = "too few prompts for an interval" if low is None else f"its interval begins at {low:.3f}"
                failures.append(
                    f"{self.arm} on {self.family}, temperature {table.temperature:g}: {shown}, not {self.least:g}"
                )
        return failures
