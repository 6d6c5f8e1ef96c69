"""`paceline serve --audit-rate`: the audit beside a server. Not for what it tests (`evaluation/audit/live.py`)."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.terminal.streams import messages
from paceline.errors import EngineDead, InvalidParameter

if TYPE_CHECKING:
    from paceline.engine.async_llm import AsyncLLM
    from paceline.evaluation.audit.live import LiveAudit
    from paceline.serving.models.model_spec import ModelSpec
    from paceline.serving.models.worker import OpenModel

_PAUSE = 0.5
"""Seconds between checks whether the server is idle."""


class AuditBeside:
    """Audits the first model that a server opens.

    Args:
        rate: fraction of its requests.
        ledger: file that evidence is added to; None keeps it in memory.
    """

    def __init__(self, rate: float, ledger: Path | None) -> None:
        if not 0 < rate <= 1:
            raise InvalidParameter("audit_rate", f"{rate} is not in (0, 1]", "give a share of the requests, e.g. 0.01")
        self._rate, self._ledger = rate, ledger
        self._llm: AsyncLLM | None = None
        self._audit: LiveAudit | None = None
        self._name = ""

    def opener(self, open_model: "OpenModel") -> "OpenModel":
        """`open_model`, wrapped so that the first model opened is audited."""

        def watched(spec: "ModelSpec") -> "AsyncLLM":
            llm = open_model(spec)
            if self._llm is not None:
                return llm
            if llm.speculative is None:
                raise InvalidParameter("audit_rate", "is given, and nothing is drafted", "name a drafter")
            self._name, self._llm = spec.name, llm
            return llm

        return watched

    def metrics(self) -> bytes:
        """The audit's part of the server's /metrics; empty before it begins."""
        return b"" if self._audit is None else self._audit.prometheus_text(self._name)

    async def beside(self, serving: Awaitable[None]) -> None:
        """Serve, and audit in between."""
        auditing = asyncio.create_task(self._work())
        try:
            await serving
        finally:
            auditing.cancel()
            with suppress(asyncio.CancelledError, EngineDead):
                await auditing

    async def _work(self) -> None:
        assert self._llm is not None
        self._audit = audit = await self._llm.between_steps(self._begin())
        was_lossy = audit.is_lossy
        while True:
            done = await self._llm.between_steps(audit.work)
            if audit.is_lossy and not was_lossy:
                was_lossy = True
                text = f"audit: answers do not follow the model's law (p < {audit.bets.p_value:.1g})"
                messages.print(f"{text}; likeliest cause: {audit.bets.favourite}", style="red", soft_wrap=True)
            await asyncio.sleep(0 if done else _PAUSE)

    def _begin(self) -> "Callable[..., LiveAudit]":
        from paceline.evaluation.audit.ledger import fingerprint
        from paceline.evaluation.audit.live import LiveAudit

        assert self._llm is not None
        assert self._llm.speculative is not None
        loaded, spec = self._llm.loaded, self._llm.speculative
        settings = {"dtype": self._llm.describe()["dtype"], "speculative": asdict(spec), "live": True}
        key = fingerprint(loaded.source.checkpoint.fingerprint, settings)
        return lambda engine: LiveAudit(loaded, engine, self._rate, spec.rule, self._ledger, key)
