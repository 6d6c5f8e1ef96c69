"""The file of a bench: one JSON line for what was asked of it, then one per arm and cell, so that nothing is lost.

A run that is resumed reads its own lines and goes on where they end. Not for figures (`summary.py`).
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
    """What one arm did in one cell of one round.

    Attributes:
        round, cell: numbers from 0.
        arm: its label.
        family: of the cell's prompts.
        temperature, concurrency: of the cell.
        place: how many arms went before it in this cell.
        seconds: from the first request of the cell to its last token.
        answers: one per prompt.
        clock: seconds since the bench began.
        load_average: of the machine when the cell began.
        rate: requests a second, in an open loop.
        joules: that the processor took meanwhile; None where that cannot be read.
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
        """What cells of one table have in common: temperature, requests at once or in a cell, rate or 0."""
        return self.temperature, self.concurrency, self.rate or 0.0

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def decoded_tokens(self) -> int:
        """Tokens after the first of each answer."""
        return sum(max(0, answer.tokens - 1) for answer in self.answers)

    @property
    def decode_seconds(self) -> float:
        """From the first token of the cell to its last one; in an open loop of every answer by itself, added up."""
        if self.rate is not None:
            return max(sum(answer.seconds - answer.first_token_seconds for answer in self.answers), 1e-9)
        return max(self.seconds - min(answer.first_token_seconds for answer in self.answers), 1e-9)

    @property
    def whole_seconds(self) -> float:
        """From the request on; in an open loop of every answer by itself, added up."""
        return self.seconds if self.rate is None else sum(answer.seconds for answer in self.answers)


class BenchFile:
    """The .jsonl file of one bench.

    Args:
        path: None keeps everything in memory.
        settings: all that decides a figure; a file that was begun with others is refused.

    Raises:
        InvalidParameter: the file is none of a bench, or of another one.
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
        """The measurements of one whole cell."""
        kept = list(cell)
        self.measurements += kept
        for one in kept:
            self._append(asdict(one))

    def done(self) -> set[tuple[int, int]]:
        """(round, cell) that every arm has answered."""
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
        """Raise InvalidParameter unless the first line is that of a bench of the same settings."""
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
    """SHA-256 of the prompts in their order and families: files of the same name may hold others."""
    return sha256(json.dumps([(cell.family, cell.prompts) for cell in cells]).encode()).hexdigest()


def _measurement(values: Mapping[str, Any]) -> Measurement:
    """A line of the file. Raises ValueError, KeyError, TypeError or AttributeError for what is none."""
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
    """As it comes back from JSON."""
    return json.loads(json.dumps(value))
