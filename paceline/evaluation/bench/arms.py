"""Arms: ways to answer prompts, measured side by side. Here those of an engine; servers are in `server_arm.py`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from paceline.engine.llm import LLM
from paceline.evaluation.bench.open_loop import answers_as_they_arrive
from paceline.types import RequestOutput, SamplingParams

WARM_UP = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt answered by one arm; what an arm does not report is None, never 0.

    Attributes:
        tokens: number of tokens of the answer.
        token_ids, text: of the answer; `token_ids` is None for servers.
        first_token_seconds: from the request to its first token.
        seconds: from the request to its last token.
        passes: target passes after the first token.
        drafted, accepted, rejected: numbers of tokens; rejected ones were tested, the rest was not.
        accepted_per_pass: histogram; entry i is the number of passes that emitted i + 1 tokens.
        drafted_per_level, tested_per_level, accepted_per_level: as in `RequestStats`.
        draft_seconds, verify_seconds, other_seconds, prefill_seconds: parts of the time.
        prompt_tokens: as the arm counts them.
    """

    tokens: int
    text: str
    first_token_seconds: float
    seconds: float
    token_ids: tuple[int, ...] | None = None
    passes: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    rejected: int | None = None
    accepted_per_pass: tuple[int, ...] = ()
    drafted_per_level: tuple[int, ...] = ()
    tested_per_level: tuple[int, ...] = ()
    accepted_per_level: tuple[int, ...] = ()
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    other_seconds: float | None = None
    prefill_seconds: float | None = None
    prompt_tokens: int | None = None

    @property
    def seconds_per_token(self) -> float:
        """Mean seconds per token after the first."""
        return (self.seconds - self.first_token_seconds) / max(1, self.tokens - 1)

    def says(self, other: "Answer") -> bool:
        """Whether both answers are equal: by token ids if both have them, else by text."""
        if self.token_ids is not None and other.token_ids is not None:
            return self.token_ids == other.token_ids
        return self.text == other.text

    def as_dict(self) -> dict[str, Any]:
        """All fields as a dict, for a record."""
        return asdict(self)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> "Answer":
        """The answer in a record; unknown fields are ignored."""
        known = {field.name for field in fields(cls)}
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**{name: value for name, value in plain.items() if name in known})


@dataclass(frozen=True, slots=True)
class Cell:
    """Prompts that every arm answers before the next cell begins.

    Attributes:
        number: its index in the round.
        prompts: as text; several are sent concurrently.
        family: of its prompts.
        temperature, seed, max_tokens, ignore_eos: sampling parameters; prompt i has `seed` + i.
        rate: mean requests per second of an open loop; None if all prompts are sent at once.
        starts: seconds at which each prompt is sent, in an open loop.
    """

    number: int
    prompts: tuple[str, ...]
    family: str
    temperature: float = 0.0
    seed: int | None = 0
    max_tokens: int = 128
    ignore_eos: bool = False
    rate: float | None = None
    starts: tuple[float, ...] = ()

    def params(self, index: int) -> SamplingParams:
        """Sampling parameters of prompt `index`."""
        seed = None if self.seed is None else self.seed + index
        return SamplingParams(
            temperature=self.temperature, seed=seed, max_tokens=self.max_tokens, ignore_eos=self.ignore_eos
        )


class Arm(Protocol):
    """A way to answer prompts.

    Attributes:
        label: its name in tables.
        base: label of its baseline.
        is_here: it runs on this machine's processors, so their energy is measured for it.
    """

    label: str
    base: str
    is_here: bool

    def begin(self, round_number: int) -> None:
        """Begin a round: clear all caches and memory of earlier answers, and warm up."""
        ...

    def answer(self, cell: Cell) -> tuple[float, list[Answer]]:
        """(seconds from the first request to the last token, one answer per prompt of the cell)."""
        ...


class EngineArm:
    """A speculative configuration on loaded weights; every round has a new engine.

    The same prompts are sent at every temperature, concurrency and rate. Each of these settings has its own salt, so
    that a drafter that remembers answers cannot use the same prompt's answer from another setting.

    Args:
        llm: has the weights.
        label, base: as in `Arm`.
        speculative: its speculative configuration, None for plain decoding.
        raw: do not put prompts into the model's chat template.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        llm: LLM,
        label: str,
        base: str,
        speculative: Mapping[str, Any] | None,
        raw: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.label, self.base, self.is_here = label, base, True
        self._weights, self._speculative, self._raw, self._clock = llm, speculative, raw, clock
        self._llm: LLM | None = None

    def begin(self, round_number: int) -> None:
        """See `Arm`."""
        self._llm = self._weights.drafting_with(self._speculative)
        self._llm.generate([[1] * 8], WARM_UP)

    def answer(self, cell: Cell) -> tuple[float, list[Answer]]:
        """See `Arm`."""
        if self._llm is None:
            self.begin(0)
        assert self._llm is not None
        ids = [self._llm.user_prompt(text, self._raw) for text in cell.prompts]
        started = self._clock()
        params = [cell.params(index) for index in range(len(ids))]
        salt = f"{cell.temperature} {len(ids)} {cell.rate}"
        if cell.starts:
            found = answers_as_they_arrive(self._llm, ids, params, cell.starts, salt, self._clock)
            return self._clock() - started, [_waited(answer_of(output), late) for output, late in found]
        outputs = self._llm.generate(ids, params, cache_salt=salt)
        return self._clock() - started, [answer_of(output) for output in outputs]


def answer_of(output: RequestOutput) -> Answer:
    """The `Answer` of an engine's output."""
    stats, metrics = output.stats, output.metrics
    return Answer(
        tokens=len(output.token_ids),
        text=output.text,
        first_token_seconds=metrics.first_token_seconds or metrics.total_seconds,
        seconds=metrics.total_seconds,
        token_ids=output.token_ids,
        passes=stats.num_target_passes,
        drafted=stats.num_draft_tokens,
        accepted=stats.num_accepted_tokens,
        rejected=stats.num_rejected_tokens,
        accepted_per_pass=stats.accepted_per_pass,
        drafted_per_level=stats.drafted_per_level,
        tested_per_level=stats.tested_per_level,
        accepted_per_level=stats.accepted_per_level,
        draft_seconds=stats.draft_seconds,
        verify_seconds=stats.verify_seconds,
        other_seconds=stats.other_seconds,
        prefill_seconds=stats.prefill_seconds,
    )


def _waited(answer: Answer, late: float) -> Answer:
    """`answer` with times counted from the arrival of its request, `late` seconds before it was added to the engine."""
    return replace(
        answer, first_token_seconds=answer.first_token_seconds + late, seconds=answer.seconds + late
    )  # fmt: skip
