"""What `paceline serve` says when it listens."""

import asyncio
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from paceline.cli import serve
from paceline.engine.async_llm import AsyncLLM
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


def test_the_dtype_of_each_model_is_told_at_the_start(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(serve, "messages", Console(file=shown, width=200))
    found = {"mine": {"dtype": "gguf", "dtype_reason": "multiplies blocks as they are"}, "code[x]": {"dtype": "int8"}}
    serve._say_dtypes(SimpleNamespace(models=list(found), describe=found.__getitem__))  # type: ignore[arg-type]
    assert shown.getvalue().splitlines() == [
        "mine runs in dtype gguf: multiplies blocks as they are", "code[x] runs in dtype int8",
    ]  # fmt: skip


@pytest.mark.weights
def test_a_model_tells_its_dtype_and_why():
    told = AsyncLLM(model="smollm2-135m").describe()
    assert told["dtype"] and told["dtype_reason"]


def test_of_two_servers_that_start_at_once_on_one_port_the_second_says_so():
    """Both can bind it while their models are loaded."""
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        listen(first)
        backend = SimpleNamespace(models=["mine"])
        with pytest.raises(InvalidParameter, match=r"port: 127\.0\.0\.1:.* cannot be listened at"):
            asyncio.run(serve._listen(backend, settings=Settings(), host="127.0.0.1", port=0, log=None, bound=second))
