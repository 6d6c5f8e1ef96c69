"""`Flight`: an accepted request on its way, what its client has seen of it, and how it goes on at another group.

Not for deciding where it goes (`controller.py`) or when (`dispatcher.py`).
"""

import asyncio
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paceline.errors import GroupLost
from paceline.serving.job import Chunk, Job, Piece


class Turn(NamedTuple):
    """Where a request runs: the group, and in which of its lives; a report of an earlier one's death is stale."""

    group: int
    life: int


@dataclass(slots=True)
class _Sample:
    """What the client has of one sample: its text and tokens."""

    text: str = ""
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class Flight:
    """An accepted request.

    Attributes:
        turn: done once it may run.
        chunks: what its client reads next.
        deaths: of groups, while it ran there. One makes it a suspect, too many end it.
        killed: those groups.
    """

    job: Job
    turn: "asyncio.Future[Turn]"
    chunks: "asyncio.Queue[Chunk | Exception]" = field(default_factory=asyncio.Queue)
    task: "asyncio.Task[None] | None" = None
    deaths: int = 0
    killed: list[int] = field(default_factory=list)
    _seen: dict[int, _Sample] = field(default_factory=dict)

    def splice(self) -> "Splice":
        """For a new attempt: what passes on only what the client has not seen."""
        return Splice(self._seen)


class Splice:
    """One attempt's chunks against what the client has seen of earlier ones.

    Args:
        seen: by sample; grows with what is passed on.
    """

    def __init__(self, seen: dict[int, _Sample]) -> None:
        self._seen = seen
        self._at: dict[int, list[int]] = {}
        """Characters and pieces of this attempt so far, by sample."""

    def rest_of(self, chunk: Chunk) -> Chunk:
        """`chunk` without what the client has.

        Raises:
            GroupLost: it says other tokens than the client has seen, so that the two halves would not be one answer.
        """
        sample, at = self._seen.setdefault(chunk.index, _Sample()), self._at.setdefault(chunk.index, [0, 0])
        old_text = sample.text[at[0] : at[0] + len(chunk.text)]
        old_pieces = sample.pieces[at[1] : at[1] + len(chunk.pieces)]
        new_ids = [piece.token_id for piece in chunk.pieces[: len(old_pieces)]]
        is_short = chunk.finish_reason is not None and at[0] + len(chunk.text) < len(sample.text)
        if not chunk.text.startswith(old_text) or new_ids != [old.token_id for old in old_pieces] or is_short:
            raise GroupLost("its group died, and the group that took over answers with other tokens")
        text, pieces = chunk.text[len(old_text) :], chunk.pieces[len(old_pieces) :]
        at[0], at[1] = at[0] + len(chunk.text), at[1] + len(chunk.pieces)
        sample.text += text
        sample.pieces += pieces
        return replace(chunk, text=text, pieces=pieces)
