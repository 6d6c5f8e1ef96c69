"""Answers of the target that are at hand, read for the hidden states that heads learn from.

Reading takes one pass over many tokens where writing takes one for each. Only what the target itself says is kept: its
law is what a head learns, and other texts are not what it will be asked about. Not for ordinary text (`long_text.py`).
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from paceline.evaluation.own_text import is_drawn, is_greedy
from paceline.models.base import CausalLM, pages_for
from paceline.models.rows import Part, build_rows
from paceline.training.heads.conversations import Conversation
from paceline.training.heads.origins import ANSWERED, Origin
from paceline.training.heads.shards import TapStore, to_bfloat16
from paceline.types import Progress

_SHARD = 128
"""Answers that are read before a shard is written."""
_ROWS = 128
"""Rows of a pass, whose logits are held at once: 25 MB with 49,152 tokens."""
_LEAST_ANSWER = 4

Given = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt in the model's template, and of the answer."""


def read_answers(model: CausalLM, given: Sequence[Given], store: TapStore, most_tokens: int, progress: Progress) -> int:
    """Add the answers that are not in the store yet, until it holds `most_tokens` of answers.

    Greedy answers and draws are told apart by the model's own law, and what is neither is left out, as are answers of
    under four tokens and conversations beyond the model's positions.

    Args:
        progress: told of answers looked at, and of how many there are.

    Returns:
        How many were left out because another model must have said them.
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
    """The conversation with its [ids - 1, taps, hidden] uint16 states; None where the model does not talk like that.

    The first `_ROWS` tokens of the answer decide that.
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
    """0 for a greedy answer, 1 for a draw, None for neither; `logits` [n, vocabulary] decided `tokens` [n]."""
    if is_greedy(logits.argmax(axis=1) == tokens):
        return 0.0
    raised = logits - logits.max(axis=1, keepdims=True)
    weights = np.exp(raised)
    sums = weights.sum(axis=1)
    logprobs = raised[np.arange(len(tokens)), tokens] - np.log(sums)
    entropies = np.log(sums) - (weights * raised).sum(axis=1) / sums
    return 1.0 if is_drawn(logprobs, entropies) else None
