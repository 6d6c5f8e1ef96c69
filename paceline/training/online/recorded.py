"""`Recorded`: wraps any drafter, and stores finished requests with the target's hidden states for training.

Proposals are those of the wrapped drafter, so no text changes. Requests with a cache salt, whose owner wants nothing
shared, and requests that failed or were aborted are not stored. Of a request whose beginning came from the prefix
cache, the rest is stored.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from paceline.config import SpeculativeConfig
from paceline.drafters.auto import resolve_drafter
from paceline.drafters.base import ChoosingDrafter, DraftContext, Drafter, read_along
from paceline.drafters.registry import make_drafter
from paceline.drafters.services import DraftServices
from paceline.errors import DrafterWarning, InvalidParameter, PacelineError, warn_safely
from paceline.models.base import NORMED
from paceline.models.files.bfloat16 import to_bfloat16
from paceline.models.heads.fingerprint import weights_digest
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.training.heads.conversations import Conversation
from paceline.training.heads.taps import eagle_taps
from paceline.training.online.ring import MAX_TOKENS, ServedRing

METHOD = "paceline.training.online.recorded:make_recorded"
"""The drafter's name in a `SpeculativeConfig`."""


@dataclass(slots=True)
class _Request:
    """A running request: its states from position `first` to `end`, in pieces, and values of its `Conversation`."""

    num_prompt: int
    temperature: float
    first: int
    end: int
    pieces: list[np.ndarray] = field(default_factory=list)


class Recorded:
    """A drafter that proposes as `drafter` does and records requests.

    Args:
        ring: where finished requests are stored.
    """

    def __init__(self, drafter: Drafter, ring: ServedRing) -> None:
        self._drafter, self.ring, self.name = drafter, ring, drafter.name
        taps = tuple(dict.fromkeys((*drafter.traits.taps, *ring.store.taps)))
        self.traits = replace(drafter.traits, taps=taps)
        self._requests: dict[str, _Request] = {}
        self._is_full = False
        weakref.finalize(self, _write_rest, ring)

    @property
    def chosen_seconds(self) -> float:
        """Of a drafter with the trait `chooses`, see `ChoosingDrafter`."""
        return cast(ChoosingDrafter, self._drafter).chosen_seconds

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """The proposals of the wrapped drafter."""
        return self._drafter.propose(contexts)

    def read_along(self, context: DraftContext) -> int:
        """See `ReadingDrafter`."""
        return read_along(self._drafter, context)

    def observe(self, outcome: RequestOutcome) -> None:
        """Keep the states of the step; when the request has finished, store its text and states."""
        self._drafter.observe(outcome)
        if outcome.taps and not outcome.salt and not self._is_full:
            self._keep(outcome)
        if outcome.finished:
            self._end(outcome)

    def release(self, request_id: str) -> None:
        """Forget a request; an unfinished text is not stored."""
        self._requests.pop(request_id, None)
        self._drafter.release(request_id)

    def _keep(self, outcome: RequestOutcome) -> None:
        request = self._requests.get(outcome.request_id)
        if request is None or request.end != outcome.first_tapped:  # new, or computed again after preemption
            start = outcome.first_tapped
            request = _Request(outcome.num_prompt_tokens, outcome.temperature, start, start)
            self._requests[outcome.request_id] = request
        states = np.stack([outcome.taps[tap] for tap in self.ring.store.taps], axis=1)
        states = states[: len(outcome.token_ids) - request.end]
        request.pieces.append(to_bfloat16(states))
        request.end += len(states)

    def _end(self, outcome: RequestOutcome) -> None:
        request = self._requests.pop(outcome.request_id, None)
        if request is None:
            return
        rows = min(request.end, len(outcome.token_ids) - 1) - request.first
        num_prompt = max(request.num_prompt - request.first, 1)
        if rows < num_prompt:
            return
        ids = np.asarray(outcome.token_ids[request.first : request.first + rows + 1], np.int32)
        states = np.concatenate(request.pieces)[:rows]
        try:
            self.ring.add(Conversation(ids, num_prompt, request.temperature), states)
        except PacelineError as error:  # drafting goes on
            self._is_full = True
            self._requests.clear()
            warn_safely(f"nothing more is kept of what is served: {error}", DrafterWarning)


def _write_rest(ring: ServedRing) -> None:
    """Write the texts that are still in memory when the drafter is deleted, as at the end of a server."""
    try:
        ring.flush()
    except PacelineError as error:
        warn_safely(f"the last texts that were served are not kept: {error}", DrafterWarning)


def make_recorded(
    services: DraftServices, folder: str, drafter: str | Mapping[str, Any] = "auto", max_tokens: int = MAX_TOKENS,
    shard_rows: int = 4096,
) -> Recorded:  # fmt: skip
    """The drafter that `drafter` describes (a name, or a mapping with ``method``), recording into `folder`.

    Raises:
        InvalidParameter: as `make_drafter` and `ServedRing`.
    """
    values = {"method": drafter} if isinstance(drafter, str) else dict(drafter)
    wanted = SpeculativeConfig(values.pop("method"), model=values.pop("model", None), options=values)
    spec = resolve_drafter(wanted, services.target)
    assert spec is not None
    options = dict(spec.options) if spec.model is None else {**spec.options, "model": spec.model}
    own = make_drafter(spec.method, services, **options)
    taps = (*eagle_taps(services.target.model.config.num_hidden_layers), NORMED)
    return Recorded(own, ServedRing(Path(folder), taps, max_tokens, shard_rows, weights_digest(services.target.source)))


def recorded(spec: SpeculativeConfig | None, folder: Path, max_tokens: int = MAX_TOKENS) -> SpeculativeConfig:
    """`spec` with its drafter recording into `folder`.

    Raises:
        InvalidParameter: `spec` is None or plain decoding, which has no drafter.
    """
    if spec is None or spec.method == "plain":
        raise InvalidParameter("keep_served", "needs a drafter to keep states for", "name one with --draft")
    own: dict[str, Any] = {**spec.options, "method": spec.method}
    if spec.model is not None:
        own["model"] = spec.model
    options = {"folder": str(folder), "drafter": own, "max_tokens": max_tokens}
    return replace(spec, method=METHOD, model=None, options=options)
