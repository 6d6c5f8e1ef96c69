"""What `paceline serve` says when it listens."""

import asyncio
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from paceline.cli import serve
from paceline.errors import InvalidParameter
from paceline.serving.http.run import bind, listen
from paceline.serving.settings import Settings


@pytest.mark.parametrize(("rules", "is_told"), [(["auto", "typical", "typical"], True), (["p/q"], False), ([], False)])
def test_a_lossy_rule_is_told_at_the_start(monkeypatch, rules, is_told):
    shown = io.StringIO()
    monkeypatch.setattr(serve, "messages", Console(file=shown, width=200))

    class Silent:
        """A server that only says that it listens."""

        def __init__(self, app, gate, drain_seconds, on_start):
            self._say = on_start

        async def serve(self, sockets):
            self._say()
            sockets[0].close()

    monkeypatch.setattr("paceline.serving.http.run.Server", Silent)
    monkeypatch.setattr("paceline.serving.http.run.settle_memory", lambda: None)
    backend = SimpleNamespace(models=["mine"])
    asyncio.run(serve._listen(backend, settings=Settings(), host="127.0.0.1", port=0, log=None, rules=rules))
    assert "listening at http://127.0.0.1:" in shown.getvalue()
    assert shown.getvalue().count("the lossy rule 'typical'") == shown.getvalue().count("lossy") == is_told


def test_of_two_servers_that_start_at_once_on_one_port_the_second_says_so():
    """Both can bind it while their models are loaded."""
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        listen(first)
        backend = SimpleNamespace(models=["mine"])
        with pytest.raises(InvalidParameter, match=r"port: 127\.0\.0\.1:.* cannot be listened at"):
            asyncio.run(serve._listen(backend, settings=Settings(), host="127.0.0.1", port=0, log=None, bound=second))
