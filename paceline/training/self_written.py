"""Answers that the target writes, to a user's prompts or to its own, in files that a later run resumes from.

The target's own prompts are made as in Magpie (`heads/openings.py`). Two answers of three are greedy, the third is
sampled at temperature 1 with top_p 0.95. Not for hidden states (`training_jobs/write_text.py`).
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.models.text.tokenizer import Tokenizer
from paceline.training.conversation_files import read_conversations, write_conversations
from paceline.training.heads.conversations import Conversation
from paceline.training.heads.openings import Generate, own_prompts, writing_params
from paceline.types import Progress

PER_FILE = 64
LONGEST_ANSWER = 384


class SelfWriter:
    """Generates answers with a target.

    Args:
        tokenizer: of the target.
        generate: runs the target.
        folder: where the files are written.
        prompts: token ids of prompts, each answered once; None lets the target write its own.
        seed: of everything random.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        generate: Generate,
        folder: Path,
        prompts: Sequence[Sequence[int]] | None = None,
        seed: int = 0,
    ) -> None:
        self._tokenizer, self._generate, self._folder = tokenizer, generate, folder
        self._prompts, self._seed = prompts, seed
        self._name = "answers-" + hashlib.sha256(repr((seed, prompts)).encode()).hexdigest()[:8]

    def write(self, num_tokens: int, progress: Progress) -> list[Conversation]:
        """Conversations with at least `num_tokens` answer tokens in all, by whole files, or fewer for want of prompts.

        Files of an earlier run with the same prompts and seed are read, not written again.
        """
        found: list[Conversation] = []
        written = 0
        for number in self._numbers():
            progress(min(written, num_tokens), num_tokens)
            if written >= num_tokens:
                break
            more = self._file(number)
            found += more
            written += sum(len(one.answer) for one in more)
        progress(num_tokens, num_tokens)
        return found

    def _numbers(self) -> Iterator[int]:
        number = 0
        while self._prompts is None or number * PER_FILE < len(self._prompts):
            yield number
            number += 1

    def _file(self, number: int) -> list[Conversation]:
        path = self._folder / f"{self._name}-{number:04d}.npz"
        if not path.is_file():
            write_conversations(path, self._answered(number))
        return read_conversations(path)

    def _answered(self, number: int) -> list[Conversation]:
        rng = np.random.default_rng((self._seed, number))
        if self._prompts is None:
            prompts = own_prompts(self._tokenizer, self._generate, PER_FILE, rng)
        else:
            prompts = [list(prompt) for prompt in self._prompts[number * PER_FILE : (number + 1) * PER_FILE]]
        params = [writing_params(float(i % 3 == 2), LONGEST_ANSWER, rng) for i in range(len(prompts))]
        answers = self._generate(prompts, params)
        return [
            Conversation(np.array([*prompt, *answer], np.int32), len(prompt), one.temperature)
            for prompt, answer, one in zip(prompts, answers, params, strict=True)
        ]
