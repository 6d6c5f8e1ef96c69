"""The text that a training job learns from: written by the target once, used by every job for the same model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config import EngineConfig
from paceline.disk import check_folder, writing
from paceline.engine.build import build_engine
from paceline.errors import CorruptWeights, InvalidParameter
from paceline.evaluation.given_answers import Given, read_answers
from paceline.evaluation.head_data import HeadWriter, WritingLimits
from paceline.evaluation.training_remarks import Tell
from paceline.models.base import NORMED
from paceline.models.heads.fingerprint import weights_digest
from paceline.models.loaded import LoadedModel
from paceline.training.heads.conversations import HELD_OUT_SHARE, NGRAM, is_contaminated, is_held_out
from paceline.training.heads.origins import counted, unheeded
from paceline.training.heads.recorder import TapRecorder
from paceline.training.heads.shards import TapStore
from paceline.training.heads.taps import eagle_taps
from paceline.training.run.checkpoint import has_checkpoint
from paceline.types import NamedProgress

_NOTE = "text.json"
"""In a run's folder: what it began with."""


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
    check_clean(store, loaded, job.benchmark, "give another folder as --work, where text is written without them")
    return store


def check_clean(store: TapStore, loaded: LoadedModel, benchmark: frozenset[tuple[str, ...]], remedy: str) -> None:
    """Refuse text that was kept without looking at the benchmark: InvalidParameter, which ends with `remedy`."""
    if not benchmark:
        return
    decode, words = loaded.source.tokenizer.decode, set(benchmark)
    found = sum(is_contaminated(decode(one.conversation.ids.tolist()), words) for one in store.documents)
    if found:
        problem = f"{found} of the {len(store.documents)} texts in {store.folder} share {NGRAM} words in a row with it"
        raise InvalidParameter("exclude", problem, remedy)


def check_nothing_given(job: TextJob) -> None:
    """Raises InvalidParameter for text that nobody would read beside served texts."""
    for name, given in (("answers", job.answers), ("prompts", job.prompts is not None)):
        if given:
            raise InvalidParameter(name, "are not read beside served texts", f"leave --{name} or --served out")


def open_served(folder: Path, job: TextJob, loaded: LoadedModel) -> TapStore:
    """What a server kept.

    Raises:
        InvalidParameter: nothing, or hidden states of another model, or texts that the benchmark holds.
        CorruptWeights: a file of it is damaged.
    """
    try:
        store = TapStore(folder, target=weights_digest(loaded.source))
    except InvalidParameter as error:
        raise error.about("served") from None
    if not store.documents:
        raise InvalidParameter("served", f"{folder} holds no texts yet", "serve more")
    check_clean(store, loaded, job.benchmark, "keep what is served anew, or leave --exclude out")
    return _of_model(store, "served", loaded)


def _of_model(store: TapStore, field: str, loaded: LoadedModel) -> TapStore:
    """`store`, whose rows are as wide as the model. Raises InvalidParameter where they are not."""
    width, wanted = store.width, loaded.model.config.hidden_size
    if width is not None and width != wanted:
        problem = f"{store.folder} holds hidden states of {width} values, the model's have {wanted}"
        raise InvalidParameter(field, problem, "use another folder")
    return store


def ready_text(job: TextJob, loaded: LoadedModel, config: EngineConfig, store: TapStore, progress: NamedProgress,
               runs: Sequence[Path], tell: Tell) -> Path | None:  # fmt: skip
    """Have the text that a job learns from: a run goes on with what it began with, a new one has it written.

    Args:
        runs: folders of the job's checkpoints, the main one first.
        tell: is told of wishes that the text does not heed.

    Returns:
        The run that has begun, if any.

    Raises:
        InvalidParameter: as `_write`; the work folder cannot be written.
    """
    check_folder("work", job.work)
    begun, note = next(filter(has_checkpoint, runs), None), runs[0] / _NOTE
    if begun is not None:
        began = _read_note(note)
        store.keep_first(began.get("texts", len(store.documents)))
        more = [f"--tokens {job.tokens}"] if job.tokens > began.get("tokens", job.tokens) else []
        _tell_unheeded(job, store, "this run goes on with the text it began with", more, tell)
        return begun
    before, is_fruitful = store.num_answer_tokens, _write(job, loaded, config, store, progress)
    with writing("work", note):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"texts": len(store.documents), "tokens": job.tokens}))
    if not is_fruitful:
        there = f"{store.num_answer_tokens} answer tokens are there"
        tell(f"nothing more could be kept of what the model says: too short, cut off, or in --exclude; {there}")
    elif store.num_answer_tokens == before:
        _tell_unheeded(job, store, "the text that is there is enough", [], tell)
    return None


def _read_note(path: Path) -> dict[str, int]:
    """How many texts a run began with, and the tokens that were asked for; empty where it is older than this."""
    try:
        found = json.loads(path.read_text())
        return {name: int(found[name]) for name in ("texts", "tokens")}
    except OSError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptWeights(f"{path}: cannot be read ({error}); delete its folder to begin anew") from None


def _tell_unheeded(job: TextJob, store: TapStore, why: str, more: Sequence[str], tell: Tell) -> None:
    """Name the wishes of a job that its text was not made by, `more` among them. Defaults are no wishes."""
    found = []
    if job.prompts is not None or job.answers:
        asked, said = {tuple(one) for one in job.prompts or ()}, {(*prompt, *one) for prompt, one in job.answers}
        texts = [one.conversation for one in store.documents]
        heeded = sum(tuple(one.ids[: one.num_prompt]) in asked or tuple(one.ids) in said for one in texts)
        names = "--prompts and --answers" if asked and said else "--prompts" if asked else "--answers"
        found += [f"{names} ({heeded} of {len(texts)} texts are of them)"] if heeded < len(texts) else []
    wishes = unheeded((one.origin for one in store.documents), job.seed, job.answer_tokens)
    default = TextJob("", job.work, 0)
    for name, value, usual in (
        ("max_tokens", job.answer_tokens, default.answer_tokens),
        ("seed", job.seed, default.seed),
    ):
        if name in wishes and value != usual:
            found.append(f"--{name.replace('_', '-')} {value}" + (" (of the text)" if name == "seed" else ""))
    found += more
    if found:
        there = f"{store.num_answer_tokens} answer tokens, {counted(one.origin for one in store.documents)}"
        tell(f"{why} ({there}); not heeded: {', '.join(found)}. Give another --work than {job.work} for other text")


def _write(job: TextJob, loaded: LoadedModel, config: EngineConfig, store: TapStore,
           progress: NamedProgress) -> bool:  # fmt: skip
    """Have the target read the answers that are at hand, and write what is missing; whether there was anything to keep.

    Raises:
        InvalidParameter: as `HeadWriter`; answers of another model; or so few prompts that training would be refused.
    """
    if job.answers:
        _read_given(job, loaded, store, progress)
    if store.num_answer_tokens >= job.tokens:
        return True
    if job.prompts is not None:
        _check_held_out(job.prompts, store)
    elif job.answers and not loaded.source.tokenizer.has_chat_template:
        have, wish = f"the answers have {store.num_answer_tokens}", "a model without chat template asks itself nothing"
        remedy = f"give --tokens {store.num_answer_tokens} or fewer, or --prompts FILE for the rest"
        raise InvalidParameter("tokens", f"{job.tokens} are to be had, {have}, and {wish}", remedy)
    engine = build_engine(loaded, _writing(config), None, drafter=TapRecorder(store.taps))
    writer = HeadWriter(engine, loaded.source.tokenizer, store, job.prompts, set(job.benchmark), job.seed)
    limits = WritingLimits(job.tokens, job.seconds, job.answer_tokens)
    return writer.write(limits, lambda done, total: progress("text written", done, total))


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


def text_card(store: TapStore) -> dict[str, Any]:
    """What a card says of the text."""
    return {
        "conversations": len(store.documents),
        "answer_tokens": store.num_answer_tokens,
        "prompts": counted(one.origin for one in store.documents),
    }


def _writing(config: EngineConfig) -> EngineConfig:
    """As `config`, for writing many texts at once with every state handed out."""
    return replace(config, prefix_caching=False, max_num_seqs=96, max_num_batched_tokens=1024)
