"""`LogprobsReader`: log-probabilities of one sample's tokens, computed from the logits of each verify pass.

Not for the arithmetic (`sampling/logprobs.py`).
"""

from collections.abc import Sequence

import numpy as np

from paceline.sampling import TokenTree, Verdict, Warper
from paceline.sampling.logprobs import processed_logprobs, raw_logprobs
from paceline.scheduling.batch import Grant
from paceline.types import SamplingParams, TokenLogprobs


class LogprobsReader:
    """Collects the log-probabilities that a request asked for.

    Args:
        params: of the request.
        warper: of the request, for processed log-probabilities.
    """

    def __init__(self, params: SamplingParams, warper: Warper) -> None:
        self._params, self._warper = params, warper
        self._fresh: list[TokenLogprobs] = []
        self._output: list[TokenLogprobs] = []
        self._prompt: dict[int, TokenLogprobs] = {}

    def read_prompt(self, grant: Grant, rows: np.ndarray) -> np.ndarray:
        """Read prompt log-probabilities from the logits of a prefill chunk, if the request wants them.

        Returns the rows that the next token needs: the last one, [1, vocab], where `rows` covered the whole chunk.
        """
        num_top = self._params.prompt_logprobs
        if num_top is None or grant.is_decode or len(rows) < grant.num_prefill_tokens:
            return rows
        token_ids = grant.request.token_ids
        for row, position in zip(rows, range(grant.start + 1, len(token_ids)), strict=False):
            self._prompt[position] = raw_logprobs(row, token_ids[position], num_top)
        return rows[-1:]

    def read(self, tree: TokenTree, verdict: Verdict, rows: np.ndarray) -> None:
        """Read the log-probabilities of a verdict's tokens from `rows` [1 + nodes, vocab]: row 0 is the root's."""
        num_top = self._params.logprobs
        if num_top is None:
            return
        nodes = (-1, *verdict.path)
        tokens = (*(tree.tokens[node] for node in verdict.path), verdict.token)
        self._fresh = [
            self._read(rows[node + 1], tree.tokens_to(node), token, num_top)
            for node, token in zip(nodes, tokens, strict=True)
        ]

    def commit(self, count: int) -> list[TokenLogprobs | None]:
        """Keep the first `count` tokens just read, those that were committed; returns one entry for each."""
        if self._params.logprobs is None:
            return [None] * count
        kept, self._fresh = self._fresh[:count], []
        self._output += kept
        return [*kept]

    def output(self, count: int) -> tuple[TokenLogprobs, ...] | None:
        """Log-probabilities of the first `count` output tokens; None when the request wants none."""
        return None if self._params.logprobs is None else tuple(self._output[:count])

    def prompt(self, num_tokens: int) -> tuple[TokenLogprobs | None, ...] | None:
        """Log-probabilities of the prompt's `num_tokens` tokens.

        None when the request wants none, or another sample computed the prompt.
        """
        if self._params.prompt_logprobs is None or (num_tokens > 1 and not self._prompt):
            return None
        return tuple(self._prompt.get(position) for position in range(num_tokens))

    def _read(self, row: np.ndarray, path: Sequence[int], token: int, num_top: int) -> TokenLogprobs:
        if self._params.logprobs_mode == "raw":
            return raw_logprobs(row, token, num_top)
        return processed_logprobs(self._warper.law(row, path), token, num_top)
