"""`Calls`: what several threads ask of one engine at the same time. Their requests share passes.

The thread whose outputs are missing runs the next step, for all. Not for asyncio, whose engine has a thread of its own
(`engine/async_llm.py`), or for what a prompt or an option may be (`engine/text/prompts.py`, `engine/llm.py`).
"""

import itertools
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.engine.loop.engine import Engine
from paceline.engine.loop.step import StepOutput
from paceline.models.loaded import LoadedModel
from paceline.types import RequestOutput, SamplingParams, TokenOutput

Inbox = deque[StepOutput]
"""Outputs of a call's requests that the call has not read yet."""


class TokenStream(Iterator[TokenOutput]):
    """Iterator over the tokens of one request as they are committed. `output` is set when the stream has ended."""

    def __init__(self, tokens: Generator[TokenOutput | RequestOutput | None, None, None]) -> None:
        next(tokens)  # a generator that was never begun has nothing to do when it is closed
        self._tokens = tokens
        self.output: RequestOutput | None = None

    def close(self) -> None:
        """Abort the request."""
        self._tokens.close()

    def __next__(self) -> TokenOutput:
        item = next(self._tokens)
        if isinstance(item, TokenOutput):
            return item
        self.output = item
        raise StopIteration


class Calls:
    """The requests of all calls that are running.

    Args:
        engine: runs the requests; it may be replaced while there are none.
        loaded: its weights; once they are closed, adding and reading raise EngineDead.
    """

    def __init__(self, engine: Engine, loaded: LoadedModel) -> None:
        self.engine, self._loaded, self._turn = engine, loaded, loaded.turn
        self._numbers = itertools.count()
        self._inboxes: dict[str, Inbox] = {}
        self._forgotten: deque[str] = deque()
        self._is_used = False

    def __len__(self) -> int:
        """Requests whose outputs somebody will read."""
        return len(self._inboxes)

    def add(self, token_ids: list[int], params: SamplingParams, inbox: Inbox, **how: Any) -> str:
        """Give the engine a request whose outputs go to `inbox`; its id. `how` as in `Engine.add_request`."""
        request_id = str(next(self._numbers))
        with self._using():
            self._loaded.check_open()
            self.engine.add_request(request_id, token_ids, params, **how)
            self._inboxes[request_id] = inbox
        return request_id

    def forget(self, request_ids: Iterable[str]) -> None:
        """Abort those of the requests that have not finished.

        A stream that nobody holds any more may be closed by a thread in the middle of a step: its request is aborted
        after that.
        """
        with self._turn:
            self._forgotten.extend(request_ids)
            if not self._is_used:
                self._abort_forgotten()

    def finished(self, inbox: Inbox, count: int) -> Iterator[RequestOutput]:
        """The outputs of the `count` requests of an inbox, as they finish."""
        if not count:
            return
        for output in self._outputs(inbox):
            if output.finished:
                yield output.finished
                count -= 1
                if not count:
                    return

    def stream(self, request_id: str, inbox: Inbox) -> TokenStream:
        """The tokens of a request, which is aborted if they are not read to the end."""
        return TokenStream(self._stream(request_id, inbox))

    def _stream(self, request_id: str, inbox: Inbox) -> Generator[TokenOutput | RequestOutput | None, None, None]:
        """None, then the tokens and the output of a request."""
        try:
            yield None
            for output in self._outputs(inbox):
                yield from output.tokens
                if output.finished:
                    yield output.finished
                    return
        finally:
            self.forget([request_id])

    def _outputs(self, inbox: Inbox) -> Iterator[StepOutput]:
        """What arrives in an inbox, without end; steps of the engine are run as long as it is empty."""
        while True:
            with self._using():
                if not inbox:
                    self._loaded.check_open()
                    for output in self.engine.step():
                        own = self._inboxes.get(output.request_id)
                        if own is not None:
                            own.append(output)
            while inbox:
                yield inbox.popleft()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Have the engine alone, and abort at the end what was forgotten meanwhile."""
        with self._turn:
            self._is_used = True
            try:
                yield
            finally:
                self._abort_forgotten()

    def _abort_forgotten(self) -> None:
        self._is_used = True  # what is forgotten meanwhile is aborted here, too
        while self._forgotten:
            request_id = self._forgotten.popleft()
            self.engine.abort(request_id)
            self._inboxes.pop(request_id, None)
        self._is_used = False
