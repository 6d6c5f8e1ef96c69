"""Having a model write the text that a draft head of it is trained on, its hidden states included.

Prompts are the user's or the model's own (Magpie, `training/heads/openings.py`). The states are those of the passes
that wrote the answer. Not for training (`training/heads/`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.engine.engine import Engine
from paceline.errors import InvalidParameter
from paceline.models.tokenizer import Tokenizer
from paceline.training.heads.conversations import Conversation, is_contaminated
from paceline.training.heads.openings import own_prompts, writing_params
from paceline.training.heads.origins import GIVEN, OWN, Origin
from paceline.training.heads.recorder import TapRecorder
from paceline.training.heads.shards import TapStore
from paceline.types import Progress, SamplingParams

_ROUND, _LEAST_ROUND, _ROUND_TOKENS = 256, 32, 256 * 384
"""Prompts of a round, most and fewest, and the tokens that it may write: a shard is written after each."""
_LEAST_ANSWER = 4
_MOST_FRUITLESS = 3
"""Rounds in a row of which nothing was kept, after which writing ends: more of them would bring no more."""

Keep = Callable[[int, np.ndarray | None], None]
"""Told the number of a prompt whose answer is finished, and its states."""


@dataclass(frozen=True, slots=True)
class WritingLimits:
    """When to stop, and how long answers may be.

    Attributes:
        tokens: of answers, in all.
        seconds: from now; None for no limit.
        answer_tokens: most of one answer.
    """

    tokens: int
    seconds: float | None = None
    answer_tokens: int = 384


class HeadWriter:
    """Writes conversations to a store.

    Args:
        engine: of the target; its drafter is the `TapRecorder`, prefix caching is off.
        prompts: token ids to answer; None has the model write them.
        benchmark: word runs that no conversation may hold (`ngrams_of`).
        seed: with the number of shards it decides what is written next.

    Raises:
        InvalidParameter: there are no prompts and the model has no chat template.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, store: TapStore, prompts: Sequence[Sequence[int]] | None,
                 benchmark: set[tuple[str, ...]] | None = None, seed: int = 0) -> None:  # fmt: skip
        assert isinstance(engine.drafter, TapRecorder)
        self._engine, self._recorder, self._tokenizer, self._store = engine, engine.drafter, tokenizer, store
        self._prompts, self._benchmark, self._seed = prompts, benchmark or set(), seed
        if prompts is None and not tokenizer.has_chat_template:
            raise InvalidParameter("prompts", "are needed: the model has no chat template", "give --prompts FILE")
        known = (one.conversation for one in store.documents)
        self._seen = {tuple(one.ids[: one.num_prompt].tolist()) for one in known}

    def write(self, limits: WritingLimits, progress: Progress) -> bool:
        """Write shard by shard until a limit is reached; `progress` is told of answer tokens.

        Returns:
            False where it ended because a few rounds in a row had brought nothing: the model does not end its prompts,
            or all that it says is in the benchmark.
        """
        fruitless, end = 0, time.monotonic() + limits.seconds if limits.seconds is not None else None
        while self._store.num_answer_tokens < limits.tokens and (end is None or time.monotonic() < end):
            if fruitless == _MOST_FRUITLESS:
                return False
            before = len(self._store.documents)
            rng = np.random.default_rng([self._seed, before, *([fruitless] if fruitless else [])])
            size = min(_ROUND, max(_LEAST_ROUND, _ROUND_TOKENS // limits.answer_tokens))
            prompts = self._new_prompts(size, rng) if self._prompts is None else self._given_prompts(size, rng)
            self._write_shard(prompts, limits, progress, rng)
            fruitless = fruitless + 1 if len(self._store.documents) == before else 0
            progress(min(self._store.num_answer_tokens, limits.tokens), limits.tokens)
        return True

    def _new_prompts(self, size: int, rng: np.random.Generator) -> list[list[int]]:
        """Prompts that the model made up and has not answered yet."""
        found = own_prompts(self._tokenizer, self._run, size, rng)
        return [one for one in found if tuple(one) not in self._seen]

    def _given_prompts(self, size: int, rng: np.random.Generator) -> list[list[int]]:
        assert self._prompts is not None
        chosen = rng.permutation(len(self._prompts))[:size]
        return [list(self._prompts[i]) for i in chosen]

    def _write_shard(self, prompts: list[list[int]], limits: WritingLimits, progress: Progress,
                     rng: np.random.Generator) -> None:  # fmt: skip
        """Answer `prompts`, two in three of the new ones greedily, and keep the answers with their states.

        `progress` is told of each answer as it ends, whether it will be kept or not.
        """
        again = [tuple(prompt) in self._seen for prompt in prompts]
        temperatures = [float(was_there or rng.random() < 1 / 3) for was_there in again]
        params = [writing_params(temperature, limits.answer_tokens, rng) for temperature in temperatures]
        kept, states, done = [], [], self._store.num_answer_tokens

        def ended(number: int, found: np.ndarray | None) -> None:
            nonlocal done
            states.append((number, found))
            done += 0 if found is None else max(len(found) + 1 - len(prompts[number]), 0)
            progress(min(done, limits.tokens), limits.tokens)

        texts = self._run(prompts, params, keep=ended)
        for i, found in states:
            one = Conversation(np.array([*prompts[i], *texts[i]], np.int32), len(prompts[i]), temperatures[i])
            if found is not None and len(found) >= len(one.ids) - 1 and self._is_wanted(one):
                kept.append((one, found[: len(one.ids) - 1]))
        self._seen |= {tuple(prompt) for prompt in prompts}
        if kept:
            origin = Origin(OWN if self._prompts is None else GIVEN, self._seed, limits.answer_tokens)
            self._store.add([one for one, _ in kept], [found for _, found in kept], origin)

    def _is_wanted(self, one: Conversation) -> bool:
        text = self._tokenizer.decode(one.ids.tolist())
        return len(one.answer) >= _LEAST_ANSWER and not is_contaminated(text, self._benchmark)

    def _run(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams],
             keep: Keep | None = None) -> list[tuple[int, ...]]:  # fmt: skip
        """Ids of each answer; `keep` is told of states as answers finish."""
        found: list[tuple[int, ...]] = [()] * len(prompts)
        for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            if keep is not None:
                self._recorder.watch(str(number))
            self._engine.add_request(str(number), list(prompt), one)
        while self._engine.has_unfinished_requests:
            for output in self._engine.step():
                if output.finished:
                    number = int(output.request_id)
                    found[number] = output.finished.outputs[0].token_ids
                    if keep is not None:
                        keep(number, self._recorder.take(str(number)))
        return found
