"""The text that a training job learns from: written by the target once, used by every job for the same model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config import EngineConfig
from paceline.engine.build import build_engine
from paceline.errors import InvalidParameter
from paceline.evaluation.given_answers import Given, read_answers
from paceline.evaluation.head_data import HeadWriter, WritingLimits
from paceline.models.base import NORMED
from paceline.models.heads.fingerprint import weights_digest
from paceline.models.loaded import LoadedModel
from paceline.training.heads.conversations import HELD_OUT_SHARE, NGRAM, is_contaminated, is_held_out
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
        answer_tokens: most of one answer that is written.
        benchmark: word runs that no text may hold.
        raw: whether prompts are text that is gone on with; whole drafts learn from their places too then.
    """

    model: str
    work: Path
    tokens: int
    seconds: float | None = None
    seed: int = 0
    prompts: Sequence[Sequence[int]] | None = None
    benchmark: frozenset[tuple[str, ...]] = frozenset()
    answers: Sequence[Given] = ()
    answer_tokens: int = 384
    raw: bool = False

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise InvalidParameter("tokens", f"{self.tokens} is less than 0", "give the answer tokens to have written")


def open_store(job: TextJob, loaded: LoadedModel) -> TapStore:
    """The text that is there, with the hidden states that any recipe reads.

    Raises:
        InvalidParameter: as `TapStore`, or texts are there that the benchmark holds.
        CorruptWeights: as `TapStore`.
    """
    taps = (*eagle_taps(loaded.model.config.num_hidden_layers), NORMED)
    store = _of_model(TapStore(job.work / "taps", taps, weights_digest(loaded.source)), "work", loaded)
    check_clean(store, loaded, job.benchmark)
    return store


def check_clean(store: TapStore, loaded: LoadedModel, benchmark: frozenset[tuple[str, ...]]) -> None:
    """Refuse text that was written without looking at the benchmark. Raises InvalidParameter."""
    if not benchmark:
        return
    decode, words = loaded.source.tokenizer.decode, set(benchmark)
    found = sum(is_contaminated(decode(one.conversation.ids.tolist()), words) for one in store.documents)
    if found:
        problem = f"{found} of the {len(store.documents)} texts in {store.folder} share {NGRAM} words in a row with it"
        raise InvalidParameter("exclude", problem, "give another folder as --work, where text is written without them")


def open_served(folder: Path, loaded: LoadedModel) -> TapStore:
    """What a server kept.

    Raises:
        InvalidParameter: nothing, or hidden states of another model.
        CorruptWeights: a file of it is damaged.
    """
    try:
        store = TapStore(folder, target=weights_digest(loaded.source))
    except InvalidParameter as error:
        raise error.about("served") from None
    if not store.documents:
        raise InvalidParameter("served", f"{folder} holds no texts yet", "serve more")
    return _of_model(store, "served", loaded)


def _of_model(store: TapStore, field: str, loaded: LoadedModel) -> TapStore:
    """`store`, whose rows are as wide as the model. Raises InvalidParameter where they are not."""
    width, wanted = store.width, loaded.model.config.hidden_size
    if width is not None and width != wanted:
        problem = f"{store.folder} holds hidden states of {width} values, the model's have {wanted}"
        raise InvalidParameter(field, problem, "use another folder")
    return store


def write_text(job: TextJob, loaded: LoadedModel, config: EngineConfig, store: TapStore,
               progress: NamedProgress) -> None:  # fmt: skip
    """Have the target read the answers that are at hand, and write what is missing.

    Raises:
        InvalidParameter: as `HeadWriter`; answers of another model; or so few prompts that training would be refused.
    """
    if job.answers:
        _read_given(job, loaded, store, progress)
    if store.num_answer_tokens >= job.tokens:
        return
    if job.prompts is not None:
        _check_held_out(job.prompts, store)
    elif job.answers and not loaded.source.tokenizer.has_chat_template:
        have, wish = f"the answers have {store.num_answer_tokens}", "a model without chat template asks itself nothing"
        remedy = f"give --tokens {store.num_answer_tokens} or fewer, or --prompts FILE for the rest"
        raise InvalidParameter("tokens", f"{job.tokens} are to be had, {have}, and {wish}", remedy)
    engine = build_engine(loaded, _writing(config), None, drafter=TapRecorder(store.taps))
    writer = HeadWriter(engine, loaded.source.tokenizer, store, job.prompts, set(job.benchmark), job.seed)
    limits = WritingLimits(job.tokens, job.seconds, job.answer_tokens)
    writer.write(limits, lambda done, total: progress("text written", done, total))


def _check_held_out(prompts: Sequence[Sequence[int]], store: TapStore) -> None:
    """Refuse now what training would refuse after all was written: no text to train on, or none to measure on."""
    held_out = [is_held_out(np.array(one)) for one in prompts] + [
        one.conversation.is_held_out for one in store.documents
    ]
    if all(held_out) or not any(held_out):
        problem = f"{len(prompts)} are too few: {'all' if any(held_out) else 'none'} of them would be held out"
        raise InvalidParameter("prompts", problem, f"give more; about one in {HELD_OUT_SHARE} is, to measure on")


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
