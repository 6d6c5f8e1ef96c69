"""Score a given text: log-probability, rank and entropy of each token under a model, without generating.

A text is processed in chunks, so that only a few rows of logits are held at once. Rows do not depend on the chunk size,
bit for bit, so these are the numbers that the engine itself used. For acceptance by replay, tests of the law, and
ranks. Not for generating (`loop/`), nor for interpreting the numbers (`evaluation/`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import CausalLM, pages_for
from paceline.models.rows import Part, build_rows
from paceline.sampling import Warper
from paceline.sampling.law import Law
from paceline.types import SamplingParams

CHUNK = 64
"""Rows of a pass, and of logits held at once."""


@dataclass(frozen=True, eq=False, slots=True)
class TextScores:
    """Scores of n tokens of a text, each given all tokens before it.

    Attributes:
        logprobs: [n] float64, log-probability of the token under the warped law; -inf where that is 0.
        ranks: [n] int64, number of tokens ranked before it by logit: 0 is the greedy choice.
        picks: [n] int64, the most probable token.
        margins: [n] float64, difference of the two largest logits.
        entropies: [n] float64, of the warped law, in nats.
        top_tokens: [n, k] int64, the k most probable tokens of the warped law; -1 after the end of its support.
        top_probs: [n, k] float64, their probabilities.
    """

    logprobs: np.ndarray
    ranks: np.ndarray
    picks: np.ndarray
    margins: np.ndarray
    entropies: np.ndarray
    top_tokens: np.ndarray
    top_probs: np.ndarray

    def __len__(self) -> int:
        return len(self.logprobs)


def logits_of(model: CausalLM, token_ids: Sequence[int], first: int, chunk: int = CHUNK) -> Iterator[np.ndarray]:
    """Yield the logits [vocab] that predict each of ``token_ids[first:]``; each is valid until the next is requested.

    Args:
        model: the model; a new cache is allocated for the call.
        token_ids: a prompt and its continuation.
        first: index of the first token to predict, at least 1.
        chunk: rows of a pass.

    Raises:
        InvalidParameter: `first` is below 1, or the text is longer than the model's context.
    """
    _check_text(model, token_ids, first)
    cache = model.new_cache(pages_for(max(len(token_ids) - 1, 1)))
    pages = range(cache.num_pages)
    for start in range(0, first - 1, chunk):
        tokens = token_ids[start : min(start + chunk, first - 1)]
        model.forward(build_rows([Part(pages, start, tokens, logits="none")]), cache)
    for start in range(first - 1, len(token_ids) - 1, chunk):
        tokens = token_ids[start : min(start + chunk, len(token_ids) - 1)]
        yield from model.forward(build_rows([Part(pages, start, tokens)]), cache).logits


def laws_of(
    model: CausalLM,
    token_ids: Sequence[int],
    num_prompt_tokens: int,
    params: SamplingParams,
    eos_token_ids: Sequence[int] = (),
) -> Iterator[tuple[int, Law]]:
    """Yield (output token, the warped law that it was drawn from) for every output token of a text.

    Args:
        token_ids: prompt and output of one request.
        num_prompt_tokens: length of the prompt, at least 1.
        params: of the request; without `bad_words`, which would need the tokenizer.
        eos_token_ids: have probability 0 before `params.min_tokens` output tokens.

    Raises:
        InvalidParameter: as `logits_of`, or `bad_words` are given.
    """
    for token, logits, warper in _warped(model, token_ids, num_prompt_tokens, params, eos_token_ids):
        yield token, warper.law(logits)


def score(
    model: CausalLM,
    token_ids: Sequence[int],
    num_prompt_tokens: int,
    params: SamplingParams,
    eos_token_ids: Sequence[int] = (),
    num_top: int = 0,
) -> TextScores:
    """`TextScores` of every output token of a text; arguments as in `laws_of`.

    Args:
        num_top: number of most probable tokens to include at every position.
    """
    count = len(token_ids) - num_prompt_tokens
    scores = _empty(count, num_top)
    warped = _warped(model, token_ids, num_prompt_tokens, params, eos_token_ids)
    for place, (token, logits, warper) in enumerate(warped):
        law = warper.law(logits)
        prob = law.prob(token)
        scores.logprobs[place] = np.log(prob) if prob > 0 else -np.inf
        scores.ranks[place] = rank(logits, token)
        scores.picks[place] = int(logits.argmax())
        scores.margins[place] = margin(logits)
        scores.entropies[place] = -float((law.probs * np.log(law.probs)).sum())
        if num_top:
            tokens, probs = law.top(num_top)
            scores.top_tokens[place, : len(tokens)], scores.top_probs[place, : len(probs)] = tokens, probs
    return scores


def rank(logits: np.ndarray, token: int) -> int:
    """Rank of `token` by logit, from 0; equal logits are ordered by id."""
    own = logits[token]
    return int((logits > own).sum() + (logits[:token] == own).sum())


def margin(logits: np.ndarray) -> float:
    """Difference of the two largest of `logits` [vocab]: the margin of the greedy choice."""
    second, first = np.partition(logits, len(logits) - 2)[-2:]
    return float(first) - float(second)


def _warped(
    model: CausalLM,
    token_ids: Sequence[int],
    num_prompt_tokens: int,
    params: SamplingParams,
    eos_token_ids: Sequence[int],
) -> Iterator[tuple[int, np.ndarray, Warper]]:
    """Yield (output token, its logits, a warper whose history is the text before it)."""
    if params.bad_words:
        raise InvalidParameter("bad_words", "cannot be scored without the tokenizer", "leave them out")
    said = list(token_ids[:num_prompt_tokens])
    warper = Warper(params, eos_token_ids=eos_token_ids, token_ids=said, num_prompt_tokens=num_prompt_tokens)
    rows = logits_of(model, token_ids, num_prompt_tokens)
    for token, logits in zip(token_ids[num_prompt_tokens:], rows, strict=True):
        yield token, logits, warper
        said.append(token)


def _empty(count: int, num_top: int) -> TextScores:
    floats = [np.zeros(count) for _ in range(3)]
    ids = [np.zeros(count, np.int64) for _ in range(2)]
    top = np.full((count, num_top), -1, np.int64), np.zeros((count, num_top))
    return TextScores(floats[0], ids[0], ids[1], floats[1], floats[2], *top)


def _check_text(model: CausalLM, token_ids: Sequence[int], first: int) -> None:
    if first < 1:
        raise InvalidParameter("num_prompt_tokens", f"{first} is less than 1", "give at least one token of context")
    limit = model.config.max_position_embeddings
    if len(token_ids) > limit:
        problem = f"{len(token_ids)} tokens, and the model reads {limit}"
        raise InvalidParameter("token_ids", problem, "cut the text")
