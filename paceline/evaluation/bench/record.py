"""The file of a bench: one JSON line with its settings, then one per arm and cell, written at once.

A resumed run reads these lines and measures the cells that are missing. Not for statistics (`summary.py`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from paceline.disk import cut_off, whole_lines, writing
from paceline.errors import InvalidParameter
from paceline.evaluation.bench.arms import Answer, Cell

FORMAT, VERSION = "paceline-bench", 2
_ANOTHER = "give the same options, or name another file"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One arm's answers to one cell in one round.

    Attributes:
        round, cell: indices from 0.
        arm: its label.
        family: of the cell's prompts.
        temperature, concurrency: of the cell.
        place: number of arms that ran before it in this cell.
        seconds: from the first request of the cell to its last token.
        answers: one per prompt.
        clock: seconds since the bench began.
        load_average: of the machine when the cell began.
        rate: requests per second, in an open loop.
        joules: energy of the processor in that time; None if it cannot be read.
    """

    round: int
    cell: int
    arm: str
    family: str
    temperature: float
    concurrency: int
    place: int
    seconds: float
    answers: tuple[Answer, ...]
    clock: float = 0.0
    load_average: float | None = None
    rate: float | None = None
    joules: float | None = None

    @property
    def setting(self) -> tuple[float, int, float]:
        """The key of its table: (temperature, concurrent requests or those of an open cell, rate or 0)."""
        return self.temperature, self.concurrency, self.rate or 0.0

    @property
    def tokens(self) -> int:
        """Number of tokens of all answers."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def decoded_tokens(self) -> int:
        """Tokens after the first of each answer."""
        return sum(max(0, answer.tokens - 1) for answer in self.answers)

    @property
    def decode_seconds(self) -> float:
        """Seconds from the first token of the cell to its last one; in an open loop, the sum over its answers."""
        if self.rate is not None:
            return max(sum(answer.seconds - answer.first_token_seconds for answer in self.answers), 1e-9)
        return max(self.seconds - min(answer.first_token_seconds for answer in self.answers), 1e-9)

    @property
    def whole_seconds(self) -> float:
        """Seconds from the first request to the last token; in an open loop, the sum over its answers."""
        return self.seconds if self.rate is None else sum(answer.seconds for answer in self.answers)


class BenchFile:
    """The .jsonl file of one bench.

    Args:
        path: None keeps everything in memory.
        settings: all settings that affect the measurements; those in an existing file must be equal.

    Raises:
        InvalidParameter: the file is damaged, no bench, or has another version or other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, dict(settings)
        self.measurements: list[Measurement] = []
        self.num_resumed = 0
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            self._read(path)
            self.num_resumed = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"format": FORMAT, "version": VERSION, "settings": self.settings})

    def add(self, cell: Iterable[Measurement]) -> None:
        """Append the measurements of one complete cell."""
        kept = list(cell)
        self.measurements += kept
        for one in kept:
            self._append(asdict(one))

    def done(self) -> set[tuple[int, int]]:
        """(round, cell) of every cell that all arms have answered."""
        arms = {arm for arm in self.settings["arms"]}
        seen: dict[tuple[int, int], set[str]] = {}
        for one in self.measurements:
            seen.setdefault((one.round, one.cell), set()).add(one.arm)
        return {key for key, labels in seen.items() if arms <= labels}

    def _append(self, record: Mapping[str, Any]) -> None:
        if self.path is not None:
            with writing("resume", self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _read(self, path: Path) -> None:
        head, *lines = whole_lines(path) or [""]
        self._check(path, head)
        for number, line in enumerate(lines, 2):
            try:
                self.measurements.append(_measurement(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InvalidParameter("resume", f"{path}, line {number} is damaged", "remove it") from None
        cut_off(path)
        whole = self.done()
        latest = {(one.round, one.cell, one.arm): one for one in self.measurements}  # a cell may have been begun twice
        self.measurements = [one for one in latest.values() if (one.round, one.cell) in whole]

    def _check(self, path: Path, head: str) -> None:
        """Raise InvalidParameter unless the first line is that of a bench with the same version and settings."""
        try:
            first = json.loads(head)
        except ValueError:
            first = None
        if not isinstance(first, dict) or first.get("format") != FORMAT:
            raise InvalidParameter("resume", f"{path} is no bench", "name another file")
        begun = first.get("settings")
        if first.get("version") != VERSION or not isinstance(begun, dict):
            problem = f"{path} is a bench of another version of Paceline, which kept other settings"
            raise InvalidParameter("resume", problem, "name another file")
        now = _plain(self.settings)
        other = [name for name in now | begun if begun.get(name) != now.get(name)]
        if other:
            raise InvalidParameter("resume", f"{path} was begun with other {', '.join(other)}", _ANOTHER)


def digest_of(cells: Iterable[Cell]) -> str:
    """SHA-256 of the prompts and families in order, since the content of a file of prompts may change."""
    return sha256(json.dumps([(cell.family, cell.prompts) for cell in cells]).encode()).hexdigest()


def _measurement(values: Mapping[str, Any]) -> Measurement:
    """The measurement in a line. Raises ValueError, KeyError, TypeError or AttributeError if it is damaged."""
    answers = tuple(Answer.of_dict(answer) for answer in values["answers"])
    plain: dict[str, Any] = dict(values) | {"answers": answers}
    one = Measurement(**plain)
    kinds = {"round": int, "cell": int, "arm": str, "family": str, "temperature": int | float, "concurrency": int}
    if not all(isinstance(getattr(one, name), kind) for name, kind in kinds.items()):
        raise TypeError
    if min(one.decode_seconds, one.whole_seconds, one.tokens) < 0:
        raise ValueError
    return one


def _plain(value: Any) -> Any:
    """`value` written to JSON and read back."""
    return json.loads(json.dumps(value))
