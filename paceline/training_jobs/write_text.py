"""Generating the text that a draft head is trained on, with the target's hidden states.

Prompts are the user's or the model's own (Magpie, `training/heads/openings.py`). The states are recorded while the
answers are generated. Not for training (`training/heads/`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.engine.loop.engine import Engine
from paceline.errors import InvalidParameter
from paceline.models.text.tokenizer import Tokenizer
from paceline.training.heads.conversations import Conversation, is_contaminated
from paceline.training.heads.openings import own_prompts, writing_params
from paceline.training.heads.origins import GIVEN, OWN, Origin
from paceline.training.heads.recorder import TapRecorder
from paceline.training.heads.shards import TapStore
from paceline.types import Progress, SamplingParams

_ROUND, _LEAST_ROUND, _ROUND_TOKENS = 256, 32, 256 * 384
"""Largest and smallest number of prompts of a round, and the tokens it may generate; each round writes a shard."""
_LEAST_ANSWER = 4
_MOST_FRUITLESS = 3
"""Generation ends after this many rounds in a row of which nothing was kept."""

Keep = Callable[[int, np.ndarray | None], None]
"""Called with (number of a prompt whose answer is finished, its hidden states)."""


@dataclass(frozen=True, slots=True)
class WritingLimits:
    """When to stop, and how long answers may be.

    Attributes:
        tokens: total number of answer tokens.
        seconds: time limit from now on; None for no limit.
        answer_tokens: largest length of an answer.
    """

    tokens: int
    seconds: float | None = None
    answer_tokens: int = 384


class _Share:
    """Tells `progress` how far writing is: by tokens, or by time where that will end it sooner.

    Units are the tokens of the limit. The first round is written to its end whatever the time: its answers count where
    they are slower than the time.
    """

    def __init__(self, limits: WritingLimits, first: int, progress: Progress) -> None:
        self._limits, self._first, self._progress = limits, first, progress
        self._began = time.monotonic()

    def __call__(self, tokens: int, rounds: float) -> None:
        """`tokens` are there after so many `rounds`, a fraction while one is under way."""
        total, done = self._limits.tokens, tokens
        if self._limits.seconds is not None and tokens < total:
            passed = (time.monotonic() - self._began) / max(self._limits.seconds, 1e-9)
            by_time = self._first + (total - self._first) * min(passed, rounds, 1.0)
            done = max(tokens, min(int(by_time), total - 1))
        self._progress(min(done, total), total)


class HeadWriter:
    """Generates conversations and adds them to a store.

    Args:
        engine: runs the target with a `TapRecorder` as drafter and without prefix caching.
        prompts: token ids to answer; None lets the model generate prompts.
        benchmark: n-grams that no conversation may contain (`ngrams_of`).
        seed: with the number of stored conversations, it decides what is generated next.

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
        """Generate shard by shard until a limit is reached; `progress` counts answer tokens, or the time in such units.

        Returns:
            False if it stopped because several rounds in a row gave nothing to keep: the model does not end its
            prompts, or everything it says is in the benchmark.
        """
        fruitless, rounds, end = 0, 0, time.monotonic() + limits.seconds if limits.seconds is not None else None
        share = _Share(limits, self._store.num_answer_tokens, progress)
        while self._store.num_answer_tokens < limits.tokens and (end is None or time.monotonic() < end):
            if fruitless == _MOST_FRUITLESS:
                break
            before = len(self._store.documents)
            rng = np.random.default_rng([self._seed, before, *([fruitless] if fruitless else [])])
            size = min(_ROUND, max(_LEAST_ROUND, _ROUND_TOKENS // limits.answer_tokens))
            prompts = self._new_prompts(size, rng) if self._prompts is None else self._given_prompts(size, rng)
            self._write_shard(prompts, limits, share, rounds, rng)
            fruitless, rounds = fruitless + 1 if len(self._store.documents) == before else 0, rounds + 1
            share(self._store.num_answer_tokens, rounds)
        progress(limits.tokens, limits.tokens)
        return fruitless < _MOST_FRUITLESS

    def _new_prompts(self, size: int, rng: np.random.Generator) -> list[list[int]]:
        """Up to `size` prompts generated by the model, without those answered before."""
        found = own_prompts(self._tokenizer, self._run, size, rng)
        return [one for one in found if tuple(one) not in self._seen]

    def _given_prompts(self, size: int, rng: np.random.Generator) -> list[list[int]]:
        assert self._prompts is not None
        chosen = rng.permutation(len(self._prompts))[:size]
        return [list(self._prompts[i]) for i in chosen]

    def _write_shard(self, prompts: list[list[int]], limits: WritingLimits, share: _Share, rounds: int,
                     rng: np.random.Generator) -> None:  # fmt: skip
        """Answer `prompts` and store the answers with their states, after so many `rounds`.

        New prompts are answered greedily with probability 2/3; all others are sampled at temperature 1. `share` is told
        of every answer, kept or not.
        """
        again = [tuple(prompt) in self._seen for prompt in prompts]
        temperatures = [float(was_there or rng.random() < 1 / 3) for was_there in again]
        params = [writing_params(temperature, limits.answer_tokens, rng) for temperature in temperatures]
        kept, states, done = [], [], self._store.num_answer_tokens

        def ended(number: int, found: np.ndarray | None) -> None:
            nonlocal done
            states.append((number, found))
            done += 0 if found is None else max(len(found) + 1 - len(prompts[number]), 0)
            share(done, rounds + len(states) / len(prompts))

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
        """Token ids of each answer; `keep` gets the hidden states as answers finish."""
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
