"""`Flight`: an accepted request in progress, with the output that its client has received, for resuming elsewhere.

Not for choosing its group (`controller.py`) or its start (`dispatcher.py`).
"""

import asyncio
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paceline.errors import GroupLost
from paceline.serving.models.job import Chunk, Job, Piece


class Turn(NamedTuple):
    """Where a request runs: the group and its incarnation; a failure report for an earlier incarnation is stale."""

    group: int
    life: int


@dataclass(slots=True)
class _Sample:
    """Text and tokens of one sample that the client has received."""

    text: str = ""
    texts: list[str] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class Flight:
    """An accepted request.

    Attributes:
        turn: future, done when the request may run.
        chunks: queue that its client reads.
        attempt: the latest turn in which it ran; a suspect that has its turn may have to wait for others.
        deaths: number of groups that failed while it ran there. Some make it a suspect, too many end it.
        killed: these groups.
    """

    job: Job
    turn: "asyncio.Future[Turn]"
    chunks: "asyncio.Queue[Chunk | Exception]" = field(default_factory=asyncio.Queue)
    task: "asyncio.Task[None] | None" = None
    attempt: Turn | None = None
    deaths: int = 0
    killed: list[int] = field(default_factory=list)
    _seen: dict[int, _Sample] = field(default_factory=dict)

    def splice(self) -> "Splice":
        """A filter for a new attempt, which passes on only output that the client has not received."""
        return Splice(self._seen, may_be_short=self.job.params.t_max_predict_ms > 0)


class Splice:
    """Compares one attempt's chunks with the output that the client received from earlier ones.

    Args:
        seen: by sample; extended by what is passed on.
        may_be_short: whether an attempt may end before what the client received, as its end depends on time.
    """

    def __init__(self, seen: dict[int, _Sample], may_be_short: bool = False) -> None:
        self._seen, self._may_be_short = seen, may_be_short
        self._at: dict[int, list[int]] = {}
        """[characters, texts of tokens, pieces] of this attempt so far, by sample."""

    def rest_of(self, chunk: Chunk) -> Chunk:
        """`chunk` without the part that the client already has.

        Raises:
            GroupLost: its tokens differ from those that the client has received.
        """
        sample, at = self._seen.setdefault(chunk.index, _Sample()), self._at.setdefault(chunk.index, [0, 0, 0])
        old_text = sample.text[at[0] : at[0] + len(chunk.text)]
        old_texts = sample.texts[at[1] : at[1] + len(chunk.texts)]
        old_pieces = sample.pieces[at[2] : at[2] + len(chunk.pieces)]
        new_ids = [piece.token_id for piece in chunk.pieces[: len(old_pieces)]]
        is_short = chunk.finish_reason is not None and at[0] + len(chunk.text) < len(sample.text)
        is_short = is_short and not self._may_be_short
        if not chunk.text.startswith(old_text) or new_ids != [old.token_id for old in old_pieces] or is_short:
            raise GroupLost("its group died, and the group that took over answers with other tokens")
        text, texts = chunk.text[len(old_text) :], chunk.texts[len(old_texts) :]
        pieces = chunk.pieces[len(old_pieces) :]
        for i, part in enumerate((chunk.text, chunk.texts, chunk.pieces)):
            at[i] += len(part)
        sample.text += text
        sample.texts += texts
        sample.pieces += pieces
        return replace(chunk, text=text, texts=texts, pieces=pieces)
