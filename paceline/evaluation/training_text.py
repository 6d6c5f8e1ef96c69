"""The text that a training job learns from: written by the target once, used by every job for the same model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.config import EngineConfig
from paceline.engine.build import build_engine
from paceline.errors import InvalidParameter
from paceline.evaluation.given_answers import Given, read_answers
from paceline.evaluation.head_data import HeadWriter, WritingLimits
from paceline.models.base import NORMED
from paceline.models.loaded import LoadedModel
from paceline.training.heads.conversations import is_contaminated
from paceline.training.heads.recorder import TapRecorder
from paceline.training.heads.shards import TapStore
from paceline.training.heads.taps import eagle_taps
from paceline.types import NamedProgress


@dataclass(frozen=True, slots=True)
class TextJob:
    """What text there is to be.

    Attributes:
        model: the target's name.
        work: folder; the text is in `taps`, checkpoints are in `runs`.
        tokens: of the target's answers, at least; none are written where there are as many.
        seconds: that writing may take; None for no limit.
        seed: of prompts and answers.
        prompts: token ids to answer; None has the target write them.
        answers: conversations that are at hand, read before anything is written.
        benchmark: word runs that no text may hold.
    """

    model: str
    work: Path
    tokens: int
    seconds: float | None = None
    seed: int = 0
    prompts: Sequence[Sequence[int]] | None = None
    benchmark: frozenset[tuple[str, ...]] = frozenset()
    answers: Sequence[Given] = ()


def open_store(job: TextJob, loaded: LoadedModel) -> TapStore:
    """The text that is there, with the hidden states that any recipe reads."""
    return TapStore(job.work / "taps", (*eagle_taps(loaded.model.config.num_hidden_layers), NORMED))


def write_text(job: TextJob, loaded: LoadedModel, config: EngineConfig, store: TapStore,
               progress: NamedProgress) -> None:  # fmt: skip
    """Have the target read the answers that are at hand, and write what is missing. Raises as `HeadWriter`."""
    if job.answers:
        _read_given(job, loaded, store, progress)
    if store.num_answer_tokens >= job.tokens:
        return
    engine = build_engine(loaded, _writing(config), None, drafter=TapRecorder(store.taps))
    writer = HeadWriter(engine, loaded.source.tokenizer, store, job.prompts, set(job.benchmark), job.seed)
    writer.write(WritingLimits(job.tokens, job.seconds), lambda done, total: progress("text written", done, total))


def _read_given(job: TextJob, loaded: LoadedModel, store: TapStore, progress: NamedProgress) -> None:
    decode, benchmark = loaded.source.tokenizer.decode, set(job.benchmark)
    wanted = [one for one in job.answers if not is_contaminated(decode([*one[0], *one[1]]), benchmark)]

    def told(done: int, total: int) -> None:
        progress("answers read", done, total)

    before = len(store.documents)
    num_foreign = read_answers(loaded.model, wanted, store, job.tokens, told)
    if num_foreign and len(store.documents) == before:
        problem = f"holds no answers of this model: {num_foreign} of {len(wanted)} were looked at"
        raise InvalidParameter("answers", problem, "give what the model itself said, or leave it out")


def text_card(job: TextJob, store: TapStore) -> dict[str, Any]:
    """What a card says of the text."""
    return {
        "conversations": len(store.documents),
        "answer_tokens": store.num_answer_tokens,
        "prompts": _prompts_of(job),
    }


def _prompts_of(job: TextJob) -> str:
    written = "written by the target from its chat template" if job.prompts is None else "given"
    return f"with the answers, {len(job.answers)} given; others {written}" if job.answers else written


def _writing(config: EngineConfig) -> EngineConfig:
    """As `config`, for writing many texts at once with every state handed out."""
    return replace(config, prefix_caching=False, max_num_seqs=96, max_num_batched_tokens=1024)
