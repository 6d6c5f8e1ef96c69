"""`Warper`: from a row of logits to the law a request asks for, with the path down to a tree node as its history.

The order is vLLM's: logit bias; penalties (repetition over prompt and output, then frequency and presence over the
output); impossible tokens (end ids before `min_tokens`, last tokens of bad words); temperature; then min-p, top-k and
top-p, each on what the one before left. At temperature 0 the law is one-hot at the largest logit that the edits leave,
the lowest id on ties. transformers penalises before it biases and cuts top-k, top-p, min-p in that order, so the two
differ when several are combined. Not the place for drawing (`randomness.py`) or for turning bad words into ids (the
engine has the tokenizer).
"""

from collections.abc import Sequence

import numpy as np

from paceline.errors import InvalidParameter
from paceline.sampling.law import Law
from paceline.types import SamplingParams

_LEAST_CONFIDENCE = 1e-4
"""Share of the peak's probability below which a greedy request's candidates are not looked at."""

_BINS_PER_NAT, _LAST_BIN = 8.0, 511.0
"""The histogram that finds the nucleus: its resolution, and the bin of everything at least 64 nats below the peak."""


class Warper:
    """The logits processors of one request.

    Args:
        params: what the request asks for.
        bad_word_ids: token ids of each bad word, every spelling its own entry.
        eos_token_ids: impossible before `params.min_tokens` output tokens, as are `params.stop_token_ids`.
        prompt_token_ids: counted by the repetition penalty.
        vocab_size: when given, biased ids are checked against it; ids beyond a row of logits are passed over, since a
            drafter may know fewer tokens than the target.

    Raises:
        InvalidParameter: `logit_bias` names an id outside the vocabulary, or a bad word has no tokens.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        bad_word_ids: Sequence[Sequence[int]] = (),
        eos_token_ids: Sequence[int] = (),
        prompt_token_ids: Sequence[int] = (),
        vocab_size: int | None = None,
    ) -> None:
        _check_ids(params, bad_word_ids, vocab_size)
        self.params = params
        self._bad_words = [tuple(word) for word in bad_word_ids]
        self._end_ids = np.unique(np.asarray([*eos_token_ids, *params.stop_token_ids], dtype=np.int64))
        self._prompt_ids = np.unique(np.asarray(prompt_token_ids, dtype=np.int64))
        self._bias_ids = np.asarray(sorted(params.logit_bias), dtype=np.int64)
        self._bias = np.asarray([params.logit_bias[i] for i in sorted(params.logit_bias)], dtype=np.float64)
        self._penalises = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1, 0, 0)
        self._edits = bool(self._penalises or len(self._bias_ids) or self._bad_words or params.min_tokens)

    @property
    def reads_history(self) -> bool:
        """Whether `law` looks at the history at all; when not, any will do."""
        return self._edits

    def law(self, logits: np.ndarray, history: Sequence[int]) -> Law:
        """The warped law of the next token.

        Args:
            logits: [vocab] float32, unchanged by the call.
            history: output tokens so far, the path down to the node included.

        Raises:
            InvalidParameter: the logits hold NaN or infinity, or every token is forbidden.
        """
        scores = self._edited(logits, history) if self._edits else logits
        best = int(np.argmax(scores))  # the first NaN, when there is one
        _check_peak(float(scores[best]), best)
        if self.params.is_greedy:
            return Law.one_hot(best)
        params = self.params
        gaps = scores.astype(np.float64)
        gaps -= gaps[best]
        gaps /= params.temperature
        return truncated_law(gaps, min_p=params.min_p, top_k=params.top_k, top_p=params.top_p)

    def confidence_law(self, logits: np.ndarray, history: Sequence[int]) -> Law:
        """The law that ranks candidates and says how sure a draft is of them: `law` itself unless that is greedy.

        At temperature 0 the warped law is a point and ranks nothing, so the edited logits are taken at temperature 1;
        tokens with less than a ten-thousandth of the largest probability are left out, since no tree reaches them.
        Arguments as in `law`.
        """
        if not self.params.is_greedy:
            return self.law(logits, history)
        scores = self._edited(logits, history) if self._edits else logits
        best = int(np.argmax(scores))
        peak = float(scores[best])
        _check_peak(peak, best)
        tokens = np.flatnonzero(scores >= peak + np.log(_LEAST_CONFIDENCE))
        weights = np.exp(scores[tokens].astype(np.float64) - peak)
        return Law(tokens, weights / weights.sum())

    def _edited(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        """[vocab] float64: logits after bias, penalties and impossible tokens."""
        scores = logits.astype(np.float64)
        inside = self._bias_ids < len(scores)
        scores[self._bias_ids[inside]] += self._bias[inside]
        if self._penalises:
            self._penalise(scores, history)
        scores[self._forbidden(history, len(scores))] = -np.inf
        return scores

    def _penalise(self, scores: np.ndarray, history: Sequence[int]) -> None:
        """Repetition penalty (Keskar et al. 2019, CTRL), then frequency and presence; in place."""
        output_ids, counts = np.unique(np.asarray(history, dtype=np.int64), return_counts=True)
        counts = counts[output_ids < len(scores)]
        output_ids = output_ids[output_ids < len(scores)]
        seen = np.union1d(self._prompt_ids, output_ids)
        seen = seen[seen < len(scores)]
        penalty = self.params.repetition_penalty
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
        scores[output_ids] -= self.params.frequency_penalty * counts + self.params.presence_penalty

    def _forbidden(self, history: Sequence[int], vocab_size: int) -> np.ndarray:
        """Ids that cannot come next: end ids too early, and the last token of a bad word whose others just came."""
        ids = set(self._end_ids.tolist()) if len(history) < self.params.min_tokens else set()
        for *opening, last in self._bad_words:
            if len(opening) <= len(history) and list(history[len(history) - len(opening) :]) == opening:
                ids.add(last)
        return np.asarray([i for i in ids if i < vocab_size], dtype=np.int64)


def truncated_law(gaps: np.ndarray, *, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Law:
    """The law proportional to exp(gaps) cut by min-p, top-k and top-p in this order.

    Args:
        gaps: [vocab] float64, scaled logits less their largest; 0 at the peak.
        min_p: tokens below this share of the most probable one go; 0 keeps all.
        top_k: that many most probable tokens stay, and all that tie with the last of them; 0 keeps all.
        top_p: the smallest set of most probable tokens that carries this mass stays (nucleus, Holtzman et al. 2020),
            the lower ids on ties; 1 keeps all.
    """
    tokens = np.arange(len(gaps))
    if min_p > 0:
        tokens = np.flatnonzero(gaps >= np.log(min_p))
        gaps = gaps[tokens]
    if 0 < top_k < len(gaps):
        kept = np.flatnonzero(gaps >= np.partition(gaps, len(gaps) - top_k)[len(gaps) - top_k])
        tokens, gaps = tokens[kept], gaps[kept]
    weights = np.exp(gaps)
    if top_p < 1 or not weights.all():
        kept = _nucleus(gaps, weights, top_p) if top_p < 1 else np.flatnonzero(weights)
        tokens, weights = tokens[kept], weights[kept]
    weights /= weights.sum()
    return Law(tokens, weights)


def _nucleus(gaps: np.ndarray, weights: np.ndarray, top_p: float) -> np.ndarray:
    """Ascending indices of the nucleus of `weights` [k] = exp(gaps).

    A histogram over the gaps finds the bin in which the mass is reached: all heavier bins belong to the nucleus, and
    only that bin is sorted.
    """
    bins = np.minimum(gaps * -_BINS_PER_NAT, _LAST_BIN).astype(np.int64)
    mass = np.bincount(bins, weights).cumsum()
    needed = top_p * mass[-1]
    edge = int(np.searchsorted(mass, needed))
    at_edge = np.flatnonzero((bins == edge) & (weights > 0))
    order = at_edge[np.argsort(-weights[at_edge], kind="stable")]
    mass_before = mass[edge - 1] if edge else 0.0
    count = int(np.searchsorted(mass_before + weights[order].cumsum(), needed)) + 1
    inside = bins < edge
    inside[order[:count]] = True
    return np.flatnonzero(inside)


def _check_ids(params: SamplingParams, bad_word_ids: Sequence[Sequence[int]], vocab_size: int | None) -> None:
    limit = np.inf if vocab_size is None else vocab_size
    for token, bias in params.logit_bias.items():
        if not 0 <= token < limit:
            raise InvalidParameter("logit_bias", f"token id {token} is outside the vocabulary", "remove it")
        if np.isnan(bias) or bias == np.inf:
            raise InvalidParameter(
                "logit_bias", f"{bias} for token id {token}", "use a finite number, or -inf to forbid"
            )
    if not all(len(word) for word in bad_word_ids):
        raise InvalidParameter("bad_words", "a word has no tokens", "remove it")


def _check_peak(peak: float, token: int) -> None:
    if np.isnan(peak) or peak == np.inf:
        raise InvalidParameter(
            "logits",
            f"the model gave {peak} at token {token}",
            "its numbers overflowed or its weights are damaged: load it in float32 or bfloat16 and check the file",
        )
    if peak == -np.inf:
        problem = "every token is forbidden at this place"
        raise InvalidParameter("logits", problem, "allow one by easing bad_words, logit_bias, min_tokens or stop ids")
