"""Hidden states of existing answers of the target, for training heads.

A prefill needs far fewer passes than generation. Only answers that the target itself could have given are kept, because
a head learns its law on its own text. Not for ordinary text (`long_text.py`).
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from paceline.engine.text.own_text import is_drawn, is_greedy
from paceline.models.base import CausalLM, pages_for
from paceline.models.files.bfloat16 import to_bfloat16
from paceline.models.rows import Part, build_rows
from paceline.training.heads.conversations import Conversation
from paceline.training.heads.origins import ANSWERED, Origin
from paceline.training.heads.shards import TapStore
from paceline.types import Progress

_SHARD = 128
"""Answers per shard."""
_ROWS = 128
"""Rows of a pass; their logits take 25 MB for a vocabulary of 49,152."""
_LEAST_ANSWER = 4

Given = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt in the model's template, and of the answer."""


def read_answers(model: CausalLM, given: Sequence[Given], store: TapStore, most_tokens: int, progress: Progress) -> int:
    """Add the answers that are not in the store yet, until it holds `most_tokens` answer tokens.

    The model's law decides whether an answer is greedy or sampled. Answers that are neither are skipped, and so are
    those of under four tokens and conversations longer than the model's positions.

    Args:
        progress: called with (new answers examined, number of new answers).

    Returns:
        Number of answers skipped because the model is unlikely to have given them.
    """
    known = {tuple(one.conversation.ids.tolist()) for one in store.documents}
    fresh = [(prompt, answer) for prompt, answer in given if (*prompt, *answer) not in known]
    num_foreign = 0
    for start in range(0, len(fresh), _SHARD):
        if store.num_answer_tokens >= most_tokens:
            break
        kept: list[tuple[Conversation, np.ndarray]] = []
        for prompt, answer in fresh[start : start + _SHARD]:
            if len(answer) < _LEAST_ANSWER or len(prompt) + len(answer) > model.config.max_position_embeddings:
                continue
            found = _read(model, np.array([*prompt, *answer], np.int32), len(prompt), store.taps)
            num_foreign += found is None
            kept += [] if found is None else [found]
        if kept:
            store.add([one for one, _ in kept], [states for _, states in kept], Origin(ANSWERED))
        progress(min(start + _SHARD, len(fresh)), len(fresh))
    return num_foreign


def _read(
    model: CausalLM, ids: np.ndarray, num_prompt: int, taps: tuple[int, ...]
) -> tuple[Conversation, np.ndarray] | None:
    """(conversation, bfloat16 states [ids - 1, taps, hidden] as uint16); None if the answer is not the model's.

    The first `_ROWS` tokens of the answer decide this.
    """
    cache = model.new_cache(pages_for(len(ids)))
    answer, states, temperature = num_prompt - 1, [], None
    cuts = [*range(0, answer, _ROWS), *range(answer, len(ids) - 1, _ROWS), len(ids) - 1]
    for start, end in pairwise(cuts):
        part = Part(range(cache.num_pages), start, ids[start:end].tolist(), logits="all" if start == answer else "none")
        found = model.forward(build_rows([part]), cache, taps)
        states.append(to_bfloat16(np.stack([found.taps[tap] for tap in taps], axis=1)))
        if start == answer:
            temperature = _temperature(found.logits, ids[start + 1 : end + 1])
            if temperature is None:
                return None
    assert temperature is not None
    return Conversation(ids, num_prompt, temperature), np.concatenate(states)


def _temperature(logits: np.ndarray, tokens: np.ndarray) -> float | None:
    """0 for a greedy answer, 1 for a sampled one, None for neither; `logits` [n, vocabulary] predict `tokens` [n]."""
    if is_greedy(logits.argmax(axis=1) == tokens):
        return 0.0
    raised = logits - logits.max(axis=1, keepdims=True)
    weights = np.exp(raised)
    sums = weights.sum(axis=1)
    logprobs = raised[np.arange(len(tokens)), tokens] - np.log(sums)
    entropies = np.log(sums) - (weights * raised).sum(axis=1) / sums
    return 1.0 if is_drawn(logprobs, entropies) else None
