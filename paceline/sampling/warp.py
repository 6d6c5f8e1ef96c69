"""`Warper`: logits processors; from a row of logits to the request's law, after its text or a drafted path.

The order is vLLM's: logit bias; penalties (repetition over prompt and output, then frequency and presence over the
output); forbidden tokens (end ids before `min_tokens`, last tokens of bad words, what a grammar or a list of allowed
ids leaves out); temperature; then min-p, top-k and top-p, each on the result of the one before. At temperature 0 the
law is one-hot at the largest edited logit, the lowest id on ties. transformers penalises before it biases and truncates
in the order top-k, top-p, min-p, so results differ when several are combined. Not for drawing (`randomness.py`) or for
tokenising bad words (the engine has the tokenizer).
"""

from collections.abc import Callable, Sequence
from math import inf, isnan

import numpy as np

from paceline.errors import InvalidParameter
from paceline.sampling.counts import OutputCounts
from paceline.sampling.edits import NO_IDS, NOTHING, Edits
from paceline.sampling.grammar import GrammarCursor
from paceline.sampling.law import GreedyLaw, Law
from paceline.types import SamplingParams

_LEAST_CONFIDENCE = 1e-4
"""Smallest probability, relative to the largest, that `Warper.confidence_law` keeps for greedy requests."""

_BINS_PER_NAT, _LAST_BIN = 8.0, 511.0
"""Histogram for the nucleus: its resolution, and its last bin, for everything at least 64 nats below the peak."""


class NothingAllowed(InvalidParameter):
    """Every token of the target's or a drafter's vocabulary is forbidden at a position; a draft ends before it."""


class Warper:
    """The logits processors of one request.

    It reads the request's own token list, which only grows, and processes every committed token once. Each call passes
    only the drafted path after the committed tokens.

    Args:
        params: of the request.
        bad_word_ids: token ids of each bad word; every spelling is an entry of its own.
        eos_token_ids: forbidden before `params.min_tokens` output tokens, as are `params.stop_token_ids`.
        token_ids: the request's prompt and output; read again at every call.
        num_prompt_tokens: length of the prompt, which only the repetition penalty counts.
        grammar: tokens that it does not allow are forbidden.
        vocab_size: if given, biased ids must be below it. Ids beyond a row of logits are ignored, since a drafter's
            vocabulary may be smaller than the target's.

    Raises:
        InvalidParameter: `logit_bias` or `allowed_token_ids` name an id outside the vocabulary, or a bad word has no
            tokens.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        bad_word_ids: Sequence[Sequence[int]] = (),
        eos_token_ids: Sequence[int] = (),
        token_ids: Sequence[int] = (),
        num_prompt_tokens: int = 0,
        grammar: GrammarCursor | None = None,
        vocab_size: int | None = None,
    ) -> None:
        _check_ids(params, bad_word_ids, vocab_size)
        self.params, self.grammar = params, grammar
        self._token_ids, self._num_prompt_tokens = token_ids, num_prompt_tokens
        self._bad_words = _BadWords(bad_word_ids)
        self._end_ids = np.unique(np.asarray([*eos_token_ids, *params.stop_token_ids], dtype=np.int64))
        self._bias_ids = np.asarray(sorted(params.logit_bias), dtype=np.int64)
        self._bias = np.asarray([params.logit_bias[i] for i in sorted(params.logit_bias)], dtype=np.float64)
        self._counts: OutputCounts | None = None
        if (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1, 0, 0):
            self._counts = OutputCounts(token_ids, num_prompt_tokens, params.repetition_penalty != 1)
        self._allowed = _mask(params.allowed_token_ids)
        edits = bool(self._counts is not None or len(self._bias_ids) or self._bad_words or self._allowed is not None)
        self._only_grammar = grammar is not None and not edits
        self._always_edits = edits or grammar is not None
        self.never_edits = not params.min_tokens and not self._always_edits
        """Whether nothing but temperature, min-p, top-k and top-p changes the logits of any row."""
        self.takes_argmax = params.is_greedy and self.never_edits
        """Whether every law is one-hot at the largest logit."""

    def law(self, logits: np.ndarray, path: Sequence[int] = (), ids: np.ndarray | None = None, best: int = -1) -> Law:
        """The warped law of the next token.

        Args:
            logits: [vocab] float32, unchanged by the call.
            path: drafted tokens after the committed ones, down to the node in question.
            ids: [k] int64, ascending: the token ids of `logits` [k], for a drafter with a reduced vocabulary.
            best: index of the largest of `logits`, the first on ties; -1 if unknown.

        Raises:
            InvalidParameter: the logits hold NaN or infinity.
            NothingAllowed: every token is forbidden.
        """
        if ids is not None:
            return self._of_some(self.law, logits, path, ids)
        if self.params.is_greedy:
            return self._greedy(logits, path, best)
        scores, best = self.scores(logits, path, best)
        if self.grammar is None and self._allowed is None:
            return self._sampled(scores, best)
        possible = np.flatnonzero(scores > -np.inf)
        return self._sampled(scores[possible], int(np.searchsorted(possible, best))).renamed(possible)

    def _greedy(self, logits: np.ndarray, path: Sequence[int], best: int) -> Law:
        """The law at temperature 0. Where only a grammar edits logits, the argmax is checked before a mask is built."""

        def smooth() -> Law:
            return truncated_law(_gaps(*self.scores(logits, path)))

        if self._only_grammar and not len(self._impossible_ends(path)):
            best = int(np.argmax(logits)) if best < 0 else best
            if self.grammar is not None and self.grammar.allows(best, path):
                check_peak(float(logits[best]), best)
                return GreedyLaw.of(best, smooth)
        scores, best = self.scores(logits, path, best)
        return GreedyLaw.of(best, lambda: truncated_law(_gaps(scores, best)))

    def _sampled(self, scores: np.ndarray, best: int) -> Law:
        """The law of `scores` [n] at a temperature above 0; `best` is the index of the largest."""
        params = self.params
        gaps = _gaps(scores, best)
        with np.errstate(over="ignore"):  # at tiny temperatures gaps may overflow to -inf, which is right
            gaps /= params.temperature
        return truncated_law(gaps, min_p=params.min_p, top_k=params.top_k, top_p=params.top_p)

    def confidence_law(self, logits: np.ndarray, path: Sequence[int] = (), ids: np.ndarray | None = None) -> Law:
        """The law that ranks a draft's candidates and gives its confidence: `law`, except for greedy requests.

        At temperature 0 the warped law is one-hot and ranks nothing, so the edited logits are taken at temperature 1,
        without tokens below 1e-4 of the largest probability, which no tree would include. Arguments as in `law`.
        """
        if ids is not None:
            return self._of_some(self.confidence_law, logits, path, ids)
        if not self.params.is_greedy:
            return self.law(logits, path)
        scores, best = self.scores(logits, path)
        peak = float(scores[best])
        tokens = np.flatnonzero(scores >= peak + np.log(_LEAST_CONFIDENCE))
        weights = np.exp(scores[tokens].astype(np.float64) - peak)
        return Law(tokens, weights / weights.sum())

    def _of_some(
        self, law: Callable[[np.ndarray, Sequence[int]], Law], logits: np.ndarray, path: Sequence[int], ids: np.ndarray
    ) -> Law:
        """`law` over the token ids `ids` [k]; on a full-size row only where single logits are edited."""
        if not self._edits(self._impossible_ends(path)):
            return law(logits, path).renamed(ids)
        whole = np.full(int(ids[-1]) + 1, -np.inf, np.float32)
        whole[ids] = logits
        return law(whole, path)

    def _edits(self, end_ids: np.ndarray) -> bool:
        """Whether single logits are changed before temperature; `end_ids` are forbidden."""
        return self._always_edits or len(end_ids) > 0

    def _impossible_ends(self, path: Sequence[int]) -> np.ndarray:
        """End ids that are forbidden after `path` because of `min_tokens`."""
        if not self.params.min_tokens:
            return NO_IDS
        num_said = len(self._token_ids) - self._num_prompt_tokens + len(path)
        return self._end_ids if num_said < self.params.min_tokens else self._end_ids[:0]

    def edits(self, path: Sequence[int] = ()) -> Edits | None:
        """The changes of single logits after `path`; None without any."""
        end_ids = self._impossible_ends(path)
        if not self._edits(end_ids):
            return None
        penalised, subtracted = (NO_IDS, NOTHING) if self._counts is None else self._penalties(path)
        bad = self._bad_words.next_ids(self._tail(path)) if self._bad_words else ()
        return Edits(
            self._bias_ids, self._bias, penalised, subtracted, self.params.repetition_penalty,
            np.concatenate([end_ids, np.asarray(bad, np.int64)]),
            self._allowed_after(path),
        )  # fmt: skip

    def _allowed_after(self, path: Sequence[int]) -> np.ndarray | None:
        """[v] bool: the ids that the grammar and `allowed_token_ids` both allow; None for all."""
        allowed = None if self.grammar is None else self.grammar.allowed(path)
        if allowed is None or self._allowed is None:
            return self._allowed if allowed is None else allowed
        size = min(len(allowed), len(self._allowed))
        return allowed[:size] & self._allowed[:size]

    def scores(self, logits: np.ndarray, path: Sequence[int] = (), best: int = -1) -> tuple[np.ndarray, int]:
        """([vocab] logits after bias, penalties and forbidden tokens, float64 where these change any; the id of the
        largest). Arguments and errors as of `law`.
        """
        edits, scores = self.edits(path), logits
        if edits is not None:
            scores = logits.astype(np.float64)
            edits.apply(scores)
        if edits is not None or best < 0:
            best = int(np.argmax(scores))  # the first NaN, when there is one
        check_peak(float(scores[best]), best)
        return scores, best

    def _penalties(self, path: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Penalised ids [k], and what frequency and presence penalties subtract from their logits [k]."""
        assert self._counts is not None
        ids, counts = self._counts.totals(path)
        return ids, self.params.frequency_penalty * counts + self.params.presence_penalty * (counts > 0)

    def _tail(self, path: Sequence[int]) -> tuple[int, ...]:
        """The last output tokens including `path`, at least as many as the longest bad word without its last token."""
        missing = self._bad_words.longest_opening - len(path)
        first = max(self._num_prompt_tokens, len(self._token_ids) - max(missing, 0))
        return (*self._token_ids[first:], *path)


class _BadWords:
    """Forbidden token sequences, indexed by their second last token."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self.longest_opening = max((len(word) - 1 for word in words), default=0)
        self._alone = [word[0] for word in words if len(word) == 1]
        self._after: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for *opening, last in words:
            if opening:
                self._after.setdefault(opening[-1], []).append((tuple(opening), last))

    def __bool__(self) -> bool:
        return bool(self._alone or self._after)

    def next_ids(self, tail: tuple[int, ...]) -> list[int]:
        """Last tokens of the words whose preceding tokens are a suffix of `tail`."""
        words = self._after.get(tail[-1], ()) if tail else ()
        return self._alone + [last for opening, last in words if tail[-len(opening) :] == opening]


def _gaps(scores: np.ndarray, best: int) -> np.ndarray:
    """[vocab] float64: `scores` minus their maximum."""
    gaps = scores.astype(np.float64)
    gaps -= gaps[best]
    return gaps


def truncated_law(gaps: np.ndarray, *, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Law:
    """The law proportional to exp(gaps) cut by min-p, top-k and top-p in this order.

    Args:
        gaps: [vocab] float64, scaled logits minus their maximum; 0 at the peak.
        min_p: removes tokens below this fraction of the largest probability; 0 keeps all.
        top_k: keeps this many most probable tokens, and all that tie with the last of them; 0 keeps all.
        top_p: keeps the smallest set of most probable tokens with this mass (nucleus, Holtzman et al. 2020), lower ids
            first on ties; 1 keeps all.
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

    A histogram over the gaps finds the bin in which the mass is reached. All bins of larger probability belong to the
    nucleus, and only that bin is sorted.
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


def _mask(token_ids: Sequence[int] | None) -> np.ndarray | None:
    """[largest id + 1] bool: True at `token_ids`; None for None."""
    if token_ids is None:
        return None
    mask = np.zeros(max(token_ids) + 1, bool)
    mask[list(token_ids)] = True
    return mask


def _check_ids(params: SamplingParams, bad_word_ids: Sequence[Sequence[int]], vocab_size: int | None) -> None:
    limit = np.inf if vocab_size is None else vocab_size
    for name, token_ids in (("logit_bias", params.logit_bias), ("allowed_token_ids", params.allowed_token_ids or ())):
        for token in token_ids:
            if not 0 <= token < limit:
                raise InvalidParameter(name, f"token id {token} is outside the vocabulary", "remove it")
    if not all(len(word) for word in bad_word_ids):
        raise InvalidParameter("bad_words", "a word has no tokens", "remove it")


def check_peak(peak: float, token: int) -> None:
    """Raise InvalidParameter when `peak`, the largest logit (at `token`), is NaN or infinite."""
    if isnan(peak) or peak == inf:
        raise InvalidParameter(
            "logits",
            f"the model gave {peak} at token {token}",
            "its numbers overflowed or its weights are damaged: load it in float32 or bfloat16 and check the file",
        )
    if peak == -inf:
        problem = "every token is forbidden at this place"
        raise NothingAllowed(
            "logits",
            problem,
            "allow one by easing bad_words, allowed_token_ids, logit_bias, min_tokens, stop ids or the grammar",
        )
