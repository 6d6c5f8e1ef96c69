"""Recordings for `draft_replay.py`: a target's answers, and a draft model's laws at every position of the answers.

A recording is a file of JSON lines: a header (names and configurations of the models), then a line per answer. Real
models run only here, not in replays.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from common import console, read_prompts

from paceline import LLM, SamplingParams
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import CausalLM, pages_for
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import resolve_model
from paceline.models.rows import Part, build_rows

CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Categories of MT-Bench, which form one family."""
CHUNK = 256
"""Rows of a pass that reads a text."""
AT_ONCE = 8
"""Prompts answered together."""


@dataclass(frozen=True, slots=True)
class DraftLaws:
    """A draft model's most probable next tokens after the prompt and after every token of the answer.

    Attributes:
        tokens, probs: [answer + 1][k], in falling order of probability at temperature 1; row i is the law of the
            answer's token i. Probabilities are of the whole vocabulary, so a row sums to at most 1.
    """

    tokens: list[list[int]]
    probs: list[list[float]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One recorded answer, including its end-of-sequence token if there is one."""

    family: str
    temperature: float
    prompt_ids: list[int]
    answer_ids: list[int]
    laws: DraftLaws | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers of one target, with the models that made them.

    Attributes:
        target, draft: names; `draft` is None for a recording without laws.
        dtype: how both store their weights.
        target_config, draft_config: configurations, from which an engine estimates prices.
        end_token_ids: tokens that end an answer.
        max_tokens: most tokens of an answer.
    """

    target: str
    draft: str | None
    dtype: str
    target_config: ModelConfig
    draft_config: ModelConfig | None
    end_token_ids: tuple[int, ...]
    max_tokens: int
    answers: tuple[Answer, ...] = ()

    def at(self, temperature: float) -> list[Answer]:
        """Answers at a temperature, in the order of recording."""
        return [answer for answer in self.answers if answer.temperature == temperature]


def read_recording(path: Path) -> Recording:
    """The recording in a file that `record` wrote."""
    header, *answers = (json.loads(line) for line in path.read_text().splitlines())
    configs = {key: _config(header.pop(key)) for key in ("target_config", "draft_config")}
    header["end_token_ids"] = tuple(header["end_token_ids"])
    return Recording(**header, **configs, answers=tuple(map(_answer, answers)))  # type: ignore[arg-type]


def header_line(recording: Recording) -> str:
    """The first line of a recording's file."""
    return json.dumps({key: value for key, value in asdict(recording).items() if key != "answers"})


def answer_line(answer: Answer) -> str:
    """A further line."""
    return json.dumps(asdict(answer))


def _answer(line: dict[str, Any]) -> Answer:
    laws = line.pop("laws")
    return Answer(**line, laws=DraftLaws(**laws) if laws else None)


def _config(values: dict[str, Any] | None) -> ModelConfig | None:
    if values is None:
        return None
    return ModelConfig(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def record(path: Path, prompts: Path, target: str, draft: str | None, dtype: str, *, per_family: int,
           max_tokens: int, top: int, seed: int, temperatures: Sequence[float] = (0.0, 1.0)) -> None:  # fmt: skip
    """Answer the first prompts of each family at every temperature, and write the answers to `path`.

    Args:
        per_family: prompts of each family.
        top: tokens kept of each draft law.
        seed: of the answers at temperatures above 0.
    """
    llm = LLM(target, dtype=dtype)
    draft_model = NumbaModel(resolve_model(draft).checkpoint, dtype) if draft else None
    source, draft_config = resolve_model(target), draft_model.config if draft_model else None
    names = Path(target).stem, Path(draft).stem if draft else None
    header = Recording(*names, dtype, source.checkpoint.config, draft_config, source.eos_token_ids, max_tokens)
    path.parent.mkdir(parents=True, exist_ok=True)
    jobs = list(_jobs(llm, prompts, per_family))
    with path.open("w") as file:
        file.write(header_line(header) + "\n")
        for first in range(0, len(jobs), AT_ONCE):
            for answer in _answers(
                llm, draft_model, jobs[first : first + AT_ONCE], temperatures, max_tokens, top, seed
            ):
                file.write(answer_line(answer) + "\n")
            file.flush()
            console.print(f"{min(first + AT_ONCE, len(jobs))} of {len(jobs)} prompts recorded")


def _jobs(llm: LLM, prompts: Path, per_family: int) -> Iterator[tuple[str, list[int]]]:
    """(family, token ids in the chat template) of the first prompts of each family, the families in turn."""
    families: dict[str, list[list[int]]] = defaultdict(list)
    for prompt in read_prompts(prompts):
        family = "conversation" if prompt["category"] in CHAT else prompt["category"]
        if len(families[family]) < per_family:
            ids = llm.chat_prompt([{"role": "user", "content": prompt["text"]}])
            if ids not in families[family]:
                families[family].append(ids)
    for in_turn in zip_longest(*families.values()):
        yield from ((family, ids) for family, ids in zip(families, in_turn, strict=True) if ids)


def _answers(llm: LLM, draft: CausalLM | None, jobs: Sequence[tuple[str, list[int]]], temperatures: Sequence[float],
             max_tokens: int, top: int, seed: int) -> Iterator[Answer]:  # fmt: skip
    for temperature in temperatures:
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
        outputs = llm.generate([ids for _, ids in jobs], params)
        for (family, ids), output in zip(jobs, outputs, strict=True):
            said = list(output.token_ids)
            laws = draft_laws(draft, ids, said, top) if draft else None
            yield Answer(family, temperature, ids, said, laws)


def draft_laws(model: CausalLM, prompt_ids: Sequence[int], answer_ids: Sequence[int], top: int) -> DraftLaws:
    """The laws of `model` along another model's answer, from one prefill of prompt and answer."""
    tokens = [*prompt_ids, *answer_ids]
    pages = range(pages_for(len(tokens)))
    cache, last = model.new_cache(len(pages)), len(prompt_ids) - 1
    for start in range(0, last, CHUNK):
        model.forward(build_rows([Part(pages, start, tokens[start : min(start + CHUNK, last)], logits="none")]), cache)
    logits = model.forward(build_rows([Part(pages, last, tokens[last:])]), cache).logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    best = np.argsort(-logits, axis=1, kind="stable")[:, :top]
    probs = np.exp(np.take_along_axis(logits, best, axis=1))
    return DraftLaws(best.tolist(), [[float(f"{p:.6g}") for p in row] for row in probs])
