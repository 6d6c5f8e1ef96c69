"""Collecting drafts with their accepted lengths: the training data of `paceline train disco`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.drafters.base import DraftContext, Drafter, read_along
from paceline.engine.loop.engine import Engine
from paceline.errors import InvalidParameter
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.policies.base import DraftLaw
from paceline.speculation.policies.disco import FEATURES, DraftTrace, features
from paceline.types import Progress, SamplingParams


def collect_traces(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    progress: Progress = lambda done, total: None,
) -> list[DraftTrace]:
    """Decode `prompts` one by one and return a trace of every draft: its features and its accepted length.

    Args:
        engine: drafts chains of a fixed length, with a drafter that has distributions.
        prompts: token ids.
        params: of all requests.
        progress: called with (prompts done, number of prompts).

    Raises:
        InvalidParameter: the drafter never called its length policy, so there are no traces.
    """
    recorder = _Recorder(engine.drafter)
    with engine.watched_by(recorder):
        for number, prompt in enumerate(prompts):
            engine.add_request(f"trace-{number}", prompt, params)
            recorder.group = number
            while engine.has_unfinished_requests:
                engine.step()
            progress(number + 1, len(prompts))
    if not recorder.traces:
        remedy = "use a drafter with a distribution, e.g. draft_model, and at least two draft tokens"
        raise InvalidParameter("method", "no draft had laws to learn from", remedy)
    return recorder.traces


class _Recorder:
    """Wraps a drafter and records the features of its laws and the accepted length of every chain."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.name, self.traits, self.group = inner, inner.name, inner.traits, 0
        self.traces: list[DraftTrace] = []
        self._open: dict[str, tuple[int, Sequence[int], list[np.ndarray]]] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        rows: list[list[np.ndarray]] = [[] for _ in contexts]
        listening = [_listening(context, into) for context, into in zip(contexts, rows, strict=True)]
        trees = self.inner.propose(listening)
        for context, tree, seen in zip(contexts, trees, rows, strict=True):
            if seen and tree.is_chain:
                self._open[context.request_id] = len(context.token_ids), tree.tokens, seen
        return trees

    def read_along(self, context: DraftContext) -> int:
        """See `ReadingDrafter`."""
        return read_along(self.inner, context)

    def observe(self, outcome: RequestOutcome) -> None:
        start, drafted, seen = self._open.pop(outcome.request_id, (0, (), []))
        if seen:
            run = _common_length(drafted, outcome.token_ids[start:])
            if start + run < len(outcome.token_ids):  # a text that ended inside the draft says nothing about the rest
                self.traces.append(DraftTrace(np.array(seen).reshape(-1, len(FEATURES)), run, self.group))
        self.inner.observe(outcome)

    def release(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self.inner.release(request_id)


def _listening(context: DraftContext, into: list[np.ndarray]) -> DraftContext:
    """The context with a length policy that never stops and appends the features of its laws to `into`."""

    def keep_drafting(laws: Sequence[DraftLaw]) -> bool:
        into.append(features(laws))
        return True

    return replace(context, keep_drafting=keep_drafting, asks_beliefs=True, asks_laws=True)


def _common_length(drafted: Sequence[int], committed: Sequence[int]) -> int:
    pairs = zip(drafted, committed, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(drafted), len(committed)))
